//! Chooses the worker of a pool for each message.
//!
//! A [`Partitioner`] is called for every message, from any thread, so it takes no lock.
//! Partitioners that use a key return the same worker for the same key in every run: the hash is
//! fixed, and is not the one of `std`, which may change.
//!
//! | partitioner | a message goes to |
//! | --- | --- |
//! | [`HashBy`] | the worker that its key's hash names; nearly all keys move when the number of workers changes |
//! | [`RoundRobin`] | the next worker |
//! | [`RangeBy`] | the worker whose range holds its key |
//! | [`ConsistentHash`] | the next worker on a ring; few keys move when the number of workers changes |
//! | a closure `Fn(&M, usize) -> usize` | the worker that it returns |

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};

mod hash;
mod ring;

#[cfg(test)]
mod tests;

pub use hash::stable_hash;
pub use ring::{ConsistentHash, RING_WORKERS_MAX, VIRTUAL_NODES_DEFAULT, VIRTUAL_NODES_MAX};

/// Picks the worker for a message.
pub trait Partitioner<M: ?Sized>: Send + Sync {
    /// The worker for `message`, less than `workers`. [`choose`] rejects any other answer.
    fn partition(&self, message: &M, workers: usize) -> usize;

    /// Whether this partitioner can serve a pool of `workers`. A pool asks once, before it starts.
    fn for_workers(&self, workers: usize) -> Result<(), PartitionError> {
        at_least_one(workers)
    }
}

/// Why a message cannot be assigned to a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The pool has no workers.
    #[error("expected at least 1 worker, got 0")]
    NoWorkers,
    /// The partitioner named a worker that does not exist.
    #[error("expected a worker below {workers}, got {got}")]
    OutOfRange {
        /// The number of workers.
        workers: usize,
        /// The partitioner's answer.
        got: usize,
    },
    /// A bound that is not above the one before it, or is unordered (NaN).
    #[error("expected strictly ascending bounds, got bound {index} out of order")]
    NotAscending {
        /// Index of the bound, from zero.
        index: usize,
    },
    /// The ranges do not fit the pool.
    #[error("expected {expected} workers, one per range, got {got}")]
    WorkersMismatch {
        /// The number of ranges.
        expected: usize,
        /// The number of workers.
        got: usize,
    },
    /// More workers than the ring supports.
    #[error("expected at most {max} workers, got {got}")]
    TooManyWorkers {
        /// [`RING_WORKERS_MAX`].
        max: usize,
        /// The number of workers.
        got: usize,
    },
    /// No virtual nodes, or too many.
    #[error("expected 1 to {max} virtual nodes per worker, got {got}")]
    VirtualNodes {
        /// [`VIRTUAL_NODES_MAX`].
        max: usize,
        /// Virtual nodes asked for.
        got: usize,
    },
}

/// The worker for `message`, with a range check: partitioners may be foreign code.
pub fn choose<M: ?Sized>(
    partitioner: &(impl Partitioner<M> + ?Sized),
    message: &M,
    workers: usize,
) -> Result<usize, PartitionError> {
    at_least_one(workers)?;
    let got = partitioner.partition(message, workers);
    if got < workers { Ok(got) } else { Err(PartitionError::OutOfRange { workers, got }) }
}

impl<M: ?Sized, F: Fn(&M, usize) -> usize + Send + Sync> Partitioner<M> for F {
    fn partition(&self, message: &M, workers: usize) -> usize {
        self(message, workers)
    }
}

/// Partitions by the hash of a key that `F` takes from the message.
///
/// The key is an owned value. To use a borrowed part of the message, let `F` hash it:
/// [`stable_hash`].
///
/// ```
/// use panoply_runtime::partition::{HashBy, choose, stable_hash};
/// struct Order { customer: String, number: u64 }
/// let by_number = HashBy::new(|order: &Order| order.number);
/// let by_customer = HashBy::new(|order: &Order| stable_hash(&order.customer));
/// let order = Order { customer: "ada".into(), number: 7 };
/// assert!(choose(&by_number, &order, 4)? < 4 && choose(&by_customer, &order, 4)? < 4);
/// # Ok::<(), panoply_runtime::partition::PartitionError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HashBy<F> {
    key: F,
}

impl<F> HashBy<F> {
    /// Partitions by the hash of `key(message)`.
    pub const fn new(key: F) -> HashBy<F> {
        HashBy { key }
    }
}

impl<M: ?Sized, K: Hash, F: Fn(&M) -> K + Send + Sync> Partitioner<M> for HashBy<F> {
    fn partition(&self, message: &M, workers: usize) -> usize {
        scale(stable_hash(&(self.key)(message)), workers)
    }
}

/// One worker after the other, regardless of the message.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl RoundRobin {
    /// Starts at worker 0.
    pub const fn new() -> RoundRobin {
        RoundRobin { next: AtomicUsize::new(0) }
    }
}

impl<M: ?Sized> Partitioner<M> for RoundRobin {
    fn partition(&self, _message: &M, workers: usize) -> usize {
        // Only the count matters; the atomic publishes no other data.
        self.next.fetch_add(1, Ordering::Relaxed).checked_rem(workers).unwrap_or(0)
    }
}

/// Partitions by ranges of a key: a key below `bounds[0]` goes to worker 0, a key below `bounds[1]`
/// to worker 1, and a key that is below no bound to the last worker. An unordered key (NaN) goes to
/// worker 0.
#[derive(Clone, Debug)]
pub struct RangeBy<K, F> {
    bounds: Vec<K>,
    key: F,
}

impl<K: PartialOrd, F> RangeBy<K, F> {
    /// Ranges that end before each of `bounds`, which must ascend, and one range beyond the last.
    pub fn new(bounds: Vec<K>, key: F) -> Result<RangeBy<K, F>, PartitionError> {
        for (index, bound) in bounds.iter().enumerate() {
            let ordered = bound.partial_cmp(bound).is_some();
            if !ordered || (index > 0 && bounds[index - 1] >= *bound) {
                return Err(PartitionError::NotAscending { index });
            }
        }
        Ok(RangeBy { bounds, key })
    }

    /// Returns an error unless there is exactly one worker per range.
    pub fn for_workers(&self, workers: usize) -> Result<(), PartitionError> {
        let expected = self.bounds.len() + 1;
        if workers == expected { Ok(()) } else { Err(PartitionError::WorkersMismatch { expected, got: workers }) }
    }
}

impl<M: ?Sized, K, F> Partitioner<M> for RangeBy<K, F>
where
    K: PartialOrd + Send + Sync,
    F: Fn(&M) -> K + Send + Sync,
{
    /// With fewer workers than ranges, the last worker takes the remaining ranges.
    fn partition(&self, message: &M, workers: usize) -> usize {
        let key = (self.key)(message);
        self.bounds.partition_point(|bound| *bound <= key).min(workers.saturating_sub(1))
    }

    fn for_workers(&self, workers: usize) -> Result<(), PartitionError> {
        RangeBy::for_workers(self, workers)
    }
}

/// Maps a hash to `0..workers` evenly, by its upper bits.
fn scale(hash: u64, workers: usize) -> usize {
    ((u128::from(hash) * workers as u128) >> 64) as usize
}

fn at_least_one(workers: usize) -> Result<(), PartitionError> {
    if workers == 0 { Err(PartitionError::NoWorkers) } else { Ok(()) }
}

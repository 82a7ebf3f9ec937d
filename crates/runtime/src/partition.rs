//! Which worker of a pool gets a message.
//!
//! A [`Partitioner`] is asked for every message, from any thread, so it takes no lock. Those that go by a key give the
//! same worker for the same key in every run: the hash is fixed, and is not the one of `std`, which is free to change.
//!
//! | partitioner | a message goes to |
//! | --- | --- |
//! | [`HashBy`] | the worker that its key's hash names; nearly all keys move when the number of workers changes |
//! | [`RoundRobin`] | the next worker |
//! | [`RangeBy`] | the worker whose range holds its key |
//! | [`ConsistentHash`] | the next worker on a ring; few keys move when the number of workers changes |
//! | a closure `Fn(&M, usize) -> usize` | whatever it answers |

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Workers that [`ConsistentHash`] tells apart.
pub const RING_WORKERS_MAX: usize = 4096;

/// Places of one worker on the ring of [`ConsistentHash`] at most.
pub const VIRTUAL_NODES_MAX: usize = 1024;

/// Places of one worker on the ring unless the caller says otherwise: loads then differ by about a tenth.
pub const VIRTUAL_NODES_DEFAULT: usize = 128;

/// Picks the worker for a message.
pub trait Partitioner<M: ?Sized>: Send + Sync {
    /// The worker for `message`, less than `workers`. [`choose`] rejects any other answer.
    fn partition(&self, message: &M, workers: usize) -> usize;

    /// Whether this partitioner can serve a pool of `workers`. A pool asks once, before it starts.
    fn for_workers(&self, workers: usize) -> Result<(), PartitionError> {
        at_least_one(workers)
    }
}

/// Why a message cannot be given to a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A pool without workers.
    #[error("expected at least 1 worker, got 0")]
    NoWorkers,
    /// The partitioner named a worker that does not exist.
    #[error("expected a worker below {workers}, got {got}")]
    OutOfRange {
        /// How many workers there are.
        workers: usize,
        /// The partitioner's answer.
        got: usize,
    },
    /// A bound that is not above the one before it, or that has no order at all (NaN).
    #[error("expected strictly ascending bounds, got bound {index} out of order")]
    NotAscending {
        /// Which bound, counted from zero.
        index: usize,
    },
    /// The ranges do not fit the pool.
    #[error("expected {expected} workers, one per range, got {got}")]
    WorkersMismatch {
        /// How many ranges there are.
        expected: usize,
        /// How many workers there are.
        got: usize,
    },
    /// More workers than the ring tells apart.
    #[error("expected at most {max} workers, got {got}")]
    TooManyWorkers {
        /// [`RING_WORKERS_MAX`].
        max: usize,
        /// How many workers there are.
        got: usize,
    },
    /// No places on the ring, or too many.
    #[error("expected 1 to {max} virtual nodes per worker, got {got}")]
    VirtualNodes {
        /// [`VIRTUAL_NODES_MAX`].
        max: usize,
        /// Virtual nodes asked for.
        got: usize,
    },
}

/// The worker for `message`, checked: partitioners may be anybody's code.
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

/// By the hash of a key that `F` takes from the message.
///
/// The key is an owned value. To go by a borrowed part of the message, let `F` hash it: [`stable_hash`].
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
    /// By the hash of `key(message)`.
    pub const fn new(key: F) -> HashBy<F> {
        HashBy { key }
    }
}

impl<M: ?Sized, K: Hash, F: Fn(&M) -> K + Send + Sync> Partitioner<M> for HashBy<F> {
    fn partition(&self, message: &M, workers: usize) -> usize {
        scale(stable_hash(&(self.key)(message)), workers)
    }
}

/// One worker after the other, whatever the message.
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
        // Only the count matters; nothing else is published through it.
        self.next.fetch_add(1, Ordering::Relaxed).checked_rem(workers).unwrap_or(0)
    }
}

/// By ranges of a key: a key below `bounds[0]` goes to worker 0, one below `bounds[1]` to worker 1, and one that is below
/// no bound to the last worker. A key without an order (NaN) goes to worker 0.
#[derive(Clone, Debug)]
pub struct RangeBy<K, F> {
    bounds: Vec<K>,
    key: F,
}

impl<K: PartialOrd, F> RangeBy<K, F> {
    /// Ranges that end before each of `bounds`, which must ascend, and one beyond the last.
    pub fn new(bounds: Vec<K>, key: F) -> Result<RangeBy<K, F>, PartitionError> {
        for (index, bound) in bounds.iter().enumerate() {
            let ordered = bound.partial_cmp(bound).is_some();
            if !ordered || (index > 0 && bounds[index - 1] >= *bound) {
                return Err(PartitionError::NotAscending { index });
            }
        }
        Ok(RangeBy { bounds, key })
    }

    /// An error unless there is exactly one worker per range.
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
    /// With fewer workers than ranges the last worker takes the ranges beyond it.
    fn partition(&self, message: &M, workers: usize) -> usize {
        let key = (self.key)(message);
        self.bounds.partition_point(|bound| *bound <= key).min(workers.saturating_sub(1))
    }

    fn for_workers(&self, workers: usize) -> Result<(), PartitionError> {
        RangeBy::for_workers(self, workers)
    }
}

/// By a ring of hashes. Every worker has many places on the ring; a key belongs to the worker at the first place at or
/// after its own hash. One worker more takes only the keys just before its own places, about one in `workers`, and moves
/// no other.
///
/// There is one ring per power of two, built when it is first needed; places of workers that the pool does not have are
/// skipped. As a worker's places do not depend on the others, that is the ring of exactly the workers there are.
#[derive(Debug)]
pub struct ConsistentHash<F> {
    key: F,
    virtual_nodes: usize,
    rings: [OnceLock<Vec<Place>>; RING_WORKERS_MAX.ilog2() as usize + 1],
}

/// A hash and the worker that is there.
type Place = (u64, u32);

impl<F> ConsistentHash<F> {
    /// By the hash of `key(message)`, with [`VIRTUAL_NODES_DEFAULT`] places per worker.
    pub const fn new(key: F) -> ConsistentHash<F> {
        ConsistentHash { key, virtual_nodes: VIRTUAL_NODES_DEFAULT, rings: [const { OnceLock::new() }; _] }
    }

    /// With this many places per worker: more even, and slower to build.
    pub fn with_virtual_nodes(key: F, virtual_nodes: usize) -> Result<ConsistentHash<F>, PartitionError> {
        if (1..=VIRTUAL_NODES_MAX).contains(&virtual_nodes) {
            Ok(ConsistentHash { virtual_nodes, ..ConsistentHash::new(key) })
        } else {
            Err(PartitionError::VirtualNodes { max: VIRTUAL_NODES_MAX, got: virtual_nodes })
        }
    }

    /// The ring that holds at least the first `workers` workers.
    fn ring(&self, workers: usize) -> &[Place] {
        let size = workers.next_power_of_two();
        self.rings[size.ilog2() as usize].get_or_init(|| {
            let nodes = 0..self.virtual_nodes;
            let places = (0..size).flat_map(|worker| nodes.clone().map(move |node| place(worker, node)));
            let mut ring: Vec<Place> = places.collect();
            ring.sort_unstable();
            ring
        })
    }
}

impl<M: ?Sized, K: Hash, F: Fn(&M) -> K + Send + Sync> Partitioner<M> for ConsistentHash<F> {
    /// Workers beyond [`RING_WORKERS_MAX`] get no messages.
    fn partition(&self, message: &M, workers: usize) -> usize {
        let workers = workers.clamp(1, RING_WORKERS_MAX);
        let ring = self.ring(workers);
        let hash = stable_hash(&(self.key)(message));
        let start = ring.partition_point(|(place, _)| *place < hash);
        let (before, after) = ring.split_at(start);
        // More than half of the places belong to workers that exist, so the search is short.
        let owners = after.iter().chain(before).map(|(_, worker)| *worker as usize);
        owners.into_iter().find(|worker| *worker < workers).unwrap_or(0)
    }

    /// Also builds the ring, so that the first message does not wait for it.
    fn for_workers(&self, workers: usize) -> Result<(), PartitionError> {
        at_least_one(workers)?;
        if workers > RING_WORKERS_MAX {
            return Err(PartitionError::TooManyWorkers { max: RING_WORKERS_MAX, got: workers });
        }
        self.ring(workers);
        Ok(())
    }
}

/// A hash that is the same in every run, on every machine: FNV-1a over the value's bytes, then mixed so that every bit
/// counts. It is not made to withstand keys that are chosen to collide.
pub fn stable_hash<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = StableHasher(0xcbf2_9ce4_8422_2325);
    value.hash(&mut hasher);
    hasher.finish()
}

struct StableHasher(u64);

/// Numbers are written least significant byte first and `usize` as eight bytes, whatever the machine.
macro_rules! write_little_endian {
    ($($name:ident: $number:ty as $wide:ty),* $(,)?) => {$(
        fn $name(&mut self, number: $number) {
            self.write(&(number as $wide).to_le_bytes());
        }
    )*};
}

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    write_little_endian! {
        write_u16: u16 as u16, write_u32: u32 as u32, write_u64: u64 as u64, write_u128: u128 as u128,
        write_usize: usize as u64, write_i16: i16 as i16, write_i32: i32 as i32, write_i64: i64 as i64,
        write_i128: i128 as i128, write_isize: isize as i64,
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// Spreads every input bit over the whole word (the finalizer of SplitMix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn place(worker: usize, node: usize) -> Place {
    // Not zero for the first place, which `mix` would leave at zero.
    let label = (worker as u64 + 1) << 32 | node as u64;
    (mix(mix(label)), worker as u32)
}

/// Maps a hash to `0..workers` evenly, by its upper bits.
fn scale(hash: u64, workers: usize) -> usize {
    ((u128::from(hash) * workers as u128) >> 64) as usize
}

fn at_least_one(workers: usize) -> Result<(), PartitionError> {
    if workers == 0 { Err(PartitionError::NoWorkers) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

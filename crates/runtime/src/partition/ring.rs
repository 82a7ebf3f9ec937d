//! Consistent hashing: few keys move when the number of workers changes.

use std::hash::Hash;
use std::sync::OnceLock;

use super::hash::{mix, stable_hash};
use super::{PartitionError, Partitioner, at_least_one};

/// The largest number of workers that [`ConsistentHash`] supports.
pub const RING_WORKERS_MAX: usize = 4096;

/// The largest number of positions of one worker on the ring of [`ConsistentHash`].
pub const VIRTUAL_NODES_MAX: usize = 1024;

/// The default number of positions of one worker on the ring: loads then differ by about a tenth.
pub const VIRTUAL_NODES_DEFAULT: usize = 128;

/// Partitions by a ring of hashes. Every worker has many positions on the ring; a key belongs to
/// the worker at the first position at or after its own hash. An additional worker takes only the
/// keys just before its own positions, about one in `workers`, and moves no other.
///
/// There is one ring per power of two, built on first use. Positions of workers that the pool does
/// not have are skipped. Since a worker's positions do not depend on the others, the result is
/// exactly the ring of the existing workers.
#[derive(Debug)]
pub struct ConsistentHash<F> {
    key: F,
    virtual_nodes: usize,
    rings: [OnceLock<Vec<RingPosition>>; RING_WORKERS_MAX.ilog2() as usize + 1],
}

/// A hash and the worker at this position.
pub(super) type RingPosition = (u64, u32);

impl<F> ConsistentHash<F> {
    /// Partitions by the hash of `key(message)`, with [`VIRTUAL_NODES_DEFAULT`] positions per
    /// worker.
    pub const fn new(key: F) -> ConsistentHash<F> {
        ConsistentHash { key, virtual_nodes: VIRTUAL_NODES_DEFAULT, rings: [const { OnceLock::new() }; _] }
    }

    /// Partitions with this many positions per worker: more positions are more even and slower to
    /// build.
    pub fn with_virtual_nodes(key: F, virtual_nodes: usize) -> Result<ConsistentHash<F>, PartitionError> {
        if (1..=VIRTUAL_NODES_MAX).contains(&virtual_nodes) {
            Ok(ConsistentHash { virtual_nodes, ..ConsistentHash::new(key) })
        } else {
            Err(PartitionError::VirtualNodes { max: VIRTUAL_NODES_MAX, got: virtual_nodes })
        }
    }

    /// The ring that holds at least the first `workers` workers.
    fn ring(&self, workers: usize) -> &[RingPosition] {
        let size = workers.next_power_of_two();
        self.rings[size.ilog2() as usize].get_or_init(|| {
            let nodes = 0..self.virtual_nodes;
            let places = (0..size).flat_map(|worker| nodes.clone().map(move |node| place(worker, node)));
            let mut ring: Vec<RingPosition> = places.collect();
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
        // More than half of the positions belong to existing workers, so the search is short.
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

pub(super) fn place(worker: usize, node: usize) -> RingPosition {
    // The label is not zero for the first position: `mix` would map zero to zero.
    let label = (worker as u64 + 1) << 32 | node as u64;
    (mix(mix(label)), worker as u32)
}

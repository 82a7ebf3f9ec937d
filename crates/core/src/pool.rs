//! Size-classed pools: a returned block is kept for the next request of its class.
//!
//! The logic is the same for host memory, pinned host memory and device memory. A [`BlockSource`]
//! allocates and frees the actual blocks. A pool belongs to one worker. A block that it lends
//! travels as a [`Lease`] to any thread, and returns when the lease is dropped. Once a pool has
//! warmed up, the hot path requests nothing from the source.

use crate::backend::MemoryStats;
use crate::error::{Error, Result};
use crate::lease::{Home, Lease};

/// The smallest class. Smaller requests use this class too.
const CLASS_BYTES_MIN: usize = 4096;
/// Number of classes per doubling: a block is at most a quarter larger than the request.
const CLASSES_PER_DOUBLING: usize = 4;
const CLASS_COUNT: usize = (usize::BITS as usize - 12) * CLASSES_PER_DOUBLING;

/// The allocator of a pool's blocks.
pub trait BlockSource {
    /// A block of memory.
    type Block: Send;

    /// Allocates a block of at least this many bytes. Its contents are initialised.
    fn allocate(&mut self, bytes: usize) -> Result<Self::Block>;

    /// Frees a returned block. A block that returns after its pool is gone is only dropped, and is
    /// wiped first if it held a secret.
    fn release(&mut self, block: Self::Block) {
        drop(block);
    }

    /// Overwrites a block that held a secret. If it returns `false`, the block is freed instead of
    /// being reused. Called on the thread that drops the block, since the source may be gone by
    /// then.
    fn wipe(_block: &mut Self::Block) -> bool {
        false
    }

    /// The name of the memory in [`Error::OutOfMemory`].
    fn place(&self) -> String {
        "a pool".to_owned()
    }
}

/// A block together with its size class. A block that held a secret is wiped when it is dropped.
#[derive(Debug)]
pub struct PooledBlock<B> {
    /// The block.
    pub block: B,
    class: usize,
    is_secret: bool,
    wipe: fn(&mut B) -> bool,
}

impl<B> PooledBlock<B> {
    /// Marks the block as holding a secret. It is wiped or freed before anyone else gets it.
    pub fn mark_secret(&mut self) {
        self.is_secret = true;
    }

    /// The block, its class, and whether it can be reused. A block that held a secret can be reused
    /// only if it could be wiped.
    fn into_parts(mut self) -> (B, usize, bool) {
        let clean = !std::mem::take(&mut self.is_secret) || (self.wipe)(&mut self.block);
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so the block is moved out of it exactly once.
        (unsafe { std::ptr::read(&this.block) }, this.class, clean)
    }
}

impl<B> Drop for PooledBlock<B> {
    fn drop(&mut self) {
        if self.is_secret {
            (self.wipe)(&mut self.block);
        }
    }
}

/// A pool of blocks from one source.
pub struct Pool<S: BlockSource> {
    source: S,
    home: Home<PooledBlock<S::Block>>,
    free: Vec<Vec<S::Block>>,
    cached_bytes_max: usize,
    /// The most bytes in blocks, lent and cached.
    bytes_max: u64,
    stats: MemoryStats,
}

impl<S: BlockSource> Pool<S> {
    /// A pool that caches at most `cached_bytes_max` bytes for reuse.
    pub fn new(source: S, cached_bytes_max: usize) -> Pool<S> {
        let free = std::iter::repeat_with(Vec::new).take(CLASS_COUNT).collect();
        Pool { source, home: Home::new(), free, cached_bytes_max, bytes_max: u64::MAX, stats: MemoryStats::default() }
    }

    /// Sets the most bytes in blocks, lent and cached. A request beyond that is out of memory.
    pub fn with_bytes_max(mut self, bytes_max: Option<u64>) -> Pool<S> {
        self.bytes_max = bytes_max.unwrap_or(u64::MAX);
        self
    }

    /// Lends a block of at least `bytes`. Its contents are those of the last user. If the source is
    /// out of memory, the pool frees its cache and tries once more.
    pub fn lend(&mut self, bytes: usize) -> Result<Lease<PooledBlock<S::Block>>> {
        self.collect();
        let class = class_of(bytes);
        let class_bytes = class_bytes(class).ok_or_else(|| Error::OutOfMemory {
            place: self.source.place(),
            asked: bytes as u64,
            free: 0,
            largest: 0,
        })?;
        let block = match self.free[class].pop() {
            Some(block) => {
                self.stats.hits += 1;
                self.stats.cached_bytes -= class_bytes as u64;
                block
            }
            None => {
                self.stats.misses += 1;
                self.allocate(class_bytes)?
            }
        };
        self.stats.lent_bytes += class_bytes as u64;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.lent_bytes + self.stats.cached_bytes);
        Ok(self.home.lend(PooledBlock { block, class, is_secret: false, wipe: S::wipe }))
    }

    /// Frees cached blocks until at most `keep_bytes` are cached.
    pub fn trim(&mut self, keep_bytes: usize) {
        self.collect();
        for class in (0..CLASS_COUNT).rev() {
            let Some(class_bytes) = class_bytes(class) else { continue };
            while self.stats.cached_bytes > keep_bytes as u64
                && let Some(block) = self.free[class].pop()
            {
                self.source.release(block);
                self.stats.cached_bytes -= class_bytes as u64;
            }
        }
    }

    /// The current statistics of the pool.
    pub fn stats(&mut self) -> MemoryStats {
        self.collect();
        self.stats
    }

    fn allocate(&mut self, bytes: usize) -> Result<S::Block> {
        let left = self.bytes_max.saturating_sub(self.stats.lent_bytes);
        if bytes as u64 > left {
            return Err(Error::OutOfMemory {
                place: self.source.place(),
                asked: bytes as u64,
                free: left,
                largest: left,
            });
        }
        let room = left - bytes as u64;
        if self.stats.cached_bytes > room {
            // Cached blocks of other classes make room.
            self.trim(room as usize);
        }
        match self.source.allocate(bytes) {
            Err(Error::OutOfMemory { .. }) if self.stats.cached_bytes > 0 => {
                self.trim(0);
                self.source.allocate(bytes)
            }
            other => other,
        }
    }

    /// Takes back returned blocks. A block beyond the limit of the cache is freed at once.
    fn collect(&mut self) {
        let Pool { source, home, free, stats, cached_bytes_max, .. } = self;
        home.take_back(|returned| {
            let (block, class, clean) = returned.into_parts();
            let bytes = class_bytes(class).unwrap_or(0) as u64;
            stats.lent_bytes -= bytes;
            if clean && stats.cached_bytes + bytes <= *cached_bytes_max as u64 {
                stats.cached_bytes += bytes;
                free[class].push(block);
            } else {
                source.release(block);
            }
        });
    }
}

/// The class whose blocks hold at least `bytes`.
fn class_of(bytes: usize) -> usize {
    let bytes = bytes.max(CLASS_BYTES_MIN);
    let doubling = (usize::BITS - 1 - bytes.leading_zeros()) as usize;
    let quarter = 1_usize << (doubling - 2);
    let above = (bytes - (1 << doubling)).div_ceil(quarter);
    (doubling - 12) * CLASSES_PER_DOUBLING + above
}

/// Size of a class's blocks. `None` if it does not fit the address space.
fn class_bytes(class: usize) -> Option<usize> {
    let doubling = class / CLASSES_PER_DOUBLING + 12;
    let base = 1_usize.checked_shl(u32::try_from(doubling).ok()?)?;
    let bytes = base.checked_add((base >> 2).checked_mul(class % CLASSES_PER_DOUBLING)?)?;
    (class < CLASS_COUNT && bytes <= isize::MAX as usize).then_some(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct LimitedSource {
        left: usize,
    }

    impl BlockSource for LimitedSource {
        type Block = usize;

        fn allocate(&mut self, bytes: usize) -> Result<usize> {
            if bytes > self.left {
                let (asked, free) = (bytes as u64, self.left as u64);
                return Err(Error::OutOfMemory { place: "test".to_owned(), asked, free, largest: free });
            }
            Ok(bytes)
        }
    }

    /// A source whose blocks count how often they are wiped.
    struct Wiping(Arc<AtomicUsize>, bool);

    impl Wiping {
        fn new(can_wipe: bool) -> (Wiping, Arc<AtomicUsize>) {
            let wiped = Arc::new(AtomicUsize::new(0));
            (Wiping(Arc::clone(&wiped), can_wipe), wiped)
        }
    }

    impl BlockSource for Wiping {
        type Block = (Arc<AtomicUsize>, bool);

        fn allocate(&mut self, _bytes: usize) -> Result<Self::Block> {
            Ok((Arc::clone(&self.0), self.1))
        }

        fn wipe((wiped, can_wipe): &mut Self::Block) -> bool {
            wiped.fetch_add(1, Ordering::Relaxed);
            *can_wipe
        }
    }

    #[test]
    fn what_comes_back_is_reused_and_the_cap_holds() {
        let mut pool = Pool::new(LimitedSource { left: usize::MAX }, 16 << 10);
        let first = pool.lend(5000).unwrap();
        assert_eq!(first.block, 5120);
        drop(first);
        let second = pool.lend(5100).unwrap();
        assert_eq!((pool.stats().hits, pool.stats().misses), (1, 1));
        let large = pool.lend(1 << 20).unwrap();
        drop((second, large));
        let stats = pool.stats();
        assert_eq!((stats.lent_bytes, stats.cached_bytes), (0, 5120));
        pool.trim(0);
        assert_eq!(pool.stats().cached_bytes, 0);
    }

    #[test]
    fn a_block_that_held_a_secret_is_wiped_or_freed() {
        for (can_wipe, cached_bytes) in [(true, 4096), (false, 0)] {
            let (source, wiped) = Wiping::new(can_wipe);
            let mut pool = Pool::new(source, usize::MAX);
            let mut lease = pool.lend(100).unwrap();
            lease.mark_secret();
            drop(lease);
            assert_eq!((pool.stats().lent_bytes, pool.stats().cached_bytes), (0, cached_bytes));
            assert_eq!(wiped.load(Ordering::Relaxed), 1);
            drop(pool.lend(100).unwrap());
            assert_eq!((pool.stats().lent_bytes, wiped.load(Ordering::Relaxed)), (0, 1), "only once");
        }
    }

    #[test]
    fn a_block_that_held_a_secret_is_wiped_though_its_pool_is_gone() {
        let (source, wiped) = Wiping::new(true);
        let mut pool = Pool::new(source, usize::MAX);
        let [mut before, mut after, plain] = [(); 3].map(|()| pool.lend(100).unwrap());
        before.mark_secret();
        after.mark_secret();
        drop(before);
        drop(pool);
        assert_eq!(wiped.load(Ordering::Relaxed), 1, "one that came back and was not collected");
        drop((after, plain));
        assert_eq!(wiped.load(Ordering::Relaxed), 2, "one that came back too late");
    }

    #[test]
    fn lent_and_cached_blocks_stay_within_the_limit() {
        let mut pool = Pool::new(LimitedSource { left: usize::MAX }, usize::MAX).with_bytes_max(Some(64 << 10));
        let first = pool.lend(32 << 10).unwrap();
        drop(pool.lend(16 << 10).unwrap());
        assert_eq!((pool.stats().lent_bytes, pool.stats().cached_bytes), (32 << 10, 16 << 10));
        let second = pool.lend(32 << 10).unwrap();
        assert_eq!(pool.stats().cached_bytes, 0, "the cached block made room");
        let refused = pool.lend(4096).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory { asked: 4096, free: 0, largest: 0, .. })), "{refused:?}");
        drop(first);
        let refused = pool.lend(40 << 10).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory { asked: 40_960, free: 32_768, .. })), "{refused:?}");
        drop((pool.lend(32 << 10).unwrap(), second));
        assert!(pool.stats().peak_bytes <= 64 << 10);
    }

    #[test]
    fn impossible_requests_are_out_of_memory() {
        let mut pool = Pool::new(LimitedSource { left: 1 << 20 }, usize::MAX);
        assert!(matches!(pool.lend(2 << 20), Err(Error::OutOfMemory { .. })));
        assert!(matches!(pool.lend(usize::MAX), Err(Error::OutOfMemory { .. })));
        assert!(matches!(pool.lend(isize::MAX as usize), Err(Error::OutOfMemory { .. })));
    }

    proptest! {
        #[test]
        fn classes_hold_what_they_promise(bytes in 0_usize..(1 << 48)) {
            let size = class_bytes(class_of(bytes)).unwrap();
            prop_assert!(size >= bytes);
            prop_assert!(size <= CLASS_BYTES_MIN.max(bytes + bytes / 4 + 1));
        }
    }
}

//! Remembers which ops a device has run before, whose kernels are therefore compiled. The backend
//! reads on callers' threads, the engine writes on its own thread; neither waits for the other.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use panoply_core::{Describe, Op};

/// Entries of the table. If it is full, further ops stay cold, which costs only a detour.
const PLACES: usize = 4096;
/// The most entries examined for one op.
const PROBES_MAX: usize = 16;

/// A set that only grows.
pub struct GrowingSet {
    places: Box<[AtomicU64]>,
    hashes: RandomState,
}

impl Default for GrowingSet {
    fn default() -> GrowingSet {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        GrowingSet { places, hashes: RandomState::default() }
    }
}

impl GrowingSet {
    /// Whether a similar op has run.
    pub fn contains(&self, op: &Op) -> bool {
        let signature = self.signature(op);
        self.probes(signature).any(|place| place.load(Ordering::Relaxed) == signature)
    }

    /// Records that a similar op has run.
    pub fn insert(&self, op: &Op) {
        let signature = self.signature(op);
        for place in self.probes(signature) {
            match place.compare_exchange(0, signature, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(there) if there == signature => return,
                Err(_) => {}
            }
        }
    }

    fn probes(&self, signature: u64) -> impl Iterator<Item = &AtomicU64> {
        (0..PROBES_MAX).map(move |step| &self.places[(signature as usize).wrapping_add(step) % PLACES])
    }

    /// A hash of the properties that determine an op's kernels, as far as they are visible here:
    /// its name, its inputs' element types and ranks, whether they are contiguous, their size
    /// classes, and its own signature. Never zero.
    fn signature(&self, op: &Op) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        op.name().hash(&mut hasher);
        op.kernel_signature().hash(&mut hasher);
        op.for_each_tensor(&mut |tensor| {
            let size_class = tensor.elements().max(1).ilog2() / 4;
            (tensor.dtype(), tensor.shape().rank(), tensor.is_contiguous(), size_class).hash(&mut hasher);
        });
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::expr::Expr;
    use panoply_core::op::compute::Map;
    use panoply_core::{DType, Operation, Tensor};

    #[test]
    fn what_ran_is_warm_and_nothing_else() {
        let warm = GrowingSet::default();
        let of = |dtype, count: usize| {
            let values = Tensor::zeros(dtype, [count]).unwrap();
            Map::add(&values, &values).into_op().unwrap()
        };
        warm.insert(&of(DType::F32, 100));
        assert!(warm.contains(&of(DType::F32, 101)));
        assert!(!warm.contains(&of(DType::F16, 100)));
        assert!(!warm.contains(&of(DType::F32, 1 << 20)));
        let values = Tensor::zeros(DType::F32, [100]).unwrap();
        assert!(!warm.contains(&Map::mul(&values, &values).into_op().unwrap()));
    }

    #[test]
    fn maps_that_differ_in_constants_alone_share_a_kernel() {
        let values = Tensor::zeros(DType::F32, [100]).unwrap();
        let scaled = |by: f64| Map::new(Expr::input(0) * by, &[&values]).into_op().unwrap();
        let warm = GrowingSet::default();
        warm.insert(&scaled(2.0));
        assert!(warm.contains(&scaled(3.0)));
        assert!(!warm.contains(&Map::new(Expr::input(0) + 2.0, &[&values]).into_op().unwrap()));
    }
}

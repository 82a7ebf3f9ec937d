//! Which ops a device has run before, so that nothing must be compiled for them any more. The backend asks on callers'
//! threads, the engine adds on its own; neither waits for the other.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;
use panoply_core::expr::Node;
use panoply_core::op::compute::ComputeOp;
use panoply_core::{Describe, Op};

/// Places in the table. When they run out, ops that would need one stay cold, which costs them nothing but a detour.
const PLACES: usize = 4096;
/// Places that are looked at for one op.
const PROBES_MAX: usize = 16;

/// A set that only grows.
pub struct Warm {
    places: Box<[AtomicU64]>,
    hashes: DefaultHashBuilder,
    /// Whether a map with other constants is another kernel.
    constants_matter: bool,
}

impl Default for Warm {
    fn default() -> Warm {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Warm { places, hashes: DefaultHashBuilder::default(), constants_matter: true }
    }
}

impl Warm {
    /// For kernels that take a map's constants as arguments: expressions that differ in nothing else are one.
    pub fn ignoring_constants() -> Warm {
        Warm { constants_matter: false, ..Warm::default() }
    }

    /// Whether an op like this one has run.
    pub fn contains(&self, op: &Op) -> bool {
        let signature = self.signature(op);
        self.probes(signature).any(|place| place.load(Ordering::Relaxed) == signature)
    }

    /// An op like this one has run.
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

    /// What decides which kernels an op needs, as far as can be told from outside: its name, its inputs' element types and
    /// ranks, whether they are contiguous, about how large they are, and a map's expression. Never zero.
    fn signature(&self, op: &Op) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        op.name().hash(&mut hasher);
        if let Op::Compute(ComputeOp::Map(map)) = op
            && let Ok(program) = map.program()
        {
            if self.constants_matter {
                program.hash().hash(&mut hasher);
            } else {
                program.nodes().iter().for_each(|node| hash_form(node, &mut hasher));
            }
        }
        op.for_each_input(&mut |tensor| {
            let size_class = tensor.elements().max(1).ilog2() / 4;
            (tensor.dtype(), tensor.shape().rank(), tensor.is_contiguous(), size_class).hash(&mut hasher);
        });
        hasher.finish().max(1)
    }
}

/// A node without the number that it may be.
fn hash_form(node: &Node, hasher: &mut impl Hasher) {
    std::mem::discriminant(node).hash(hasher);
    match node {
        Node::Const(_) => {}
        other => other.hash(hasher),
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
        let warm = Warm::default();
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
    fn constants_matter_where_they_stand_in_the_text() {
        let values = Tensor::zeros(DType::F32, [100]).unwrap();
        let scaled = |by: f64| Map::new(Expr::input(0) * by, &[&values]).into_op().unwrap();
        let (text, arguments) = (Warm::default(), Warm::ignoring_constants());
        [&text, &arguments].iter().for_each(|warm| warm.insert(&scaled(2.0)));
        assert!(text.contains(&scaled(2.0)) && !text.contains(&scaled(3.0)));
        assert!(arguments.contains(&scaled(3.0)));
        let plus = Map::new(Expr::input(0) + 2.0, &[&values]).into_op().unwrap();
        assert!(!arguments.contains(&plus));
    }
}

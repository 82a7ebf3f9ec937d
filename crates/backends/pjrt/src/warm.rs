//! Records which ops have compiled programs: a table of signatures that is read without a lock. The
//! table may forget entries.

use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::op::compute::ComputeOp;
use panoply_core::{Describe, Op};

const PLACES: usize = 8192;
const PROBES: usize = 8;

/// A set of signatures.
pub(crate) struct SignatureSet(Box<[AtomicU64]>);

impl Default for SignatureSet {
    fn default() -> SignatureSet {
        SignatureSet((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl SignatureSet {
    /// Whether an op with the same signature has a compiled program.
    pub(crate) fn contains(&self, op: &Op) -> bool {
        self.has(signature(op))
    }

    /// Records that an op with this signature has a compiled program.
    pub(crate) fn insert(&self, op: &Op) {
        self.add(signature(op));
    }

    fn places(&self, signature: u64) -> impl Iterator<Item = &AtomicU64> {
        (0..PROBES).map(move |probe| &self.0[(signature as usize).wrapping_add(probe) % PLACES])
    }

    fn has(&self, signature: u64) -> bool {
        self.places(signature).any(|place| place.load(Ordering::Relaxed) == signature)
    }

    fn add(&self, signature: u64) {
        for place in self.places(signature) {
            let known = place.compare_exchange(0, signature, Ordering::Relaxed, Ordering::Relaxed);
            if known.is_ok() || known == Err(signature) {
                return;
            }
        }
        // All slots of this signature are used: overwrite the first.
        if let Some(place) = self.places(signature).next() {
            place.store(signature, Ordering::Relaxed);
        }
    }
}

/// A hash of everything that determines an op's program: its name and settings, the hashes of its
/// expressions, and the dtypes, shapes and strides of its tensors. A router computes it for every
/// decision, so it writes no program and allocates nothing. Never zero.
fn signature(op: &Op) -> u64 {
    let mut hasher = DefaultHasher::new();
    op.name().hash(&mut hasher);
    match op {
        Op::Graph(_) => op.kernel_signature().hash(&mut hasher),
        Op::Compute(ComputeOp::Map(map)) => map.program().ok().map(|program| program.hash()).hash(&mut hasher),
        Op::Compute(ComputeOp::RowMap(map)) => {
            for program in [map.before_program(), map.after_program()] {
                program.ok().map(|program| program.hash()).hash(&mut hasher);
            }
            // Writing into a hash does not fail.
            let _ = write!(HashWriter(&mut hasher), "{:?}", map.function);
        }
        other => {
            let _ = write!(HashWriter(&mut hasher), "{other:?}");
        }
    }
    op.for_each_tensor(&mut |tensor| {
        (tensor.dtype(), tensor.shape(), tensor.strides()).hash(&mut hasher);
    });
    hasher.finish().max(1)
}

/// Hashes text while it is written.
struct HashWriter<'a>(&'a mut DefaultHasher);

impl Write for HashWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::expr::Expr;
    use panoply_core::op::compute::{Map, Reduce, Softmax};
    use panoply_core::{DType, Operation, Tensor};

    use super::*;

    #[test]
    fn what_was_inserted_is_found_even_where_places_are_taken() {
        let warm = SignatureSet::default();
        assert!(!warm.has(7));
        for turn in 0..100 {
            let signature = 7 + turn * PLACES as u64;
            warm.add(signature);
            assert!(warm.has(signature), "{turn}");
        }
        assert!(!warm.has(7 + 1000 * PLACES as u64));
    }

    #[test]
    fn ops_whose_programs_differ_have_signatures_that_differ() {
        let zeros = |dims: &[usize]| Tensor::zeros(DType::F32, dims).unwrap();
        let (square, wide) = (zeros(&[4, 4]), zeros(&[2, 8]));
        let times = |factor: f32| Map::new(Expr::input(0) * factor, &[&square]).into_op().unwrap();
        let ops = [
            times(2.0),
            times(3.0),
            Softmax::new(&square).into_op().unwrap(),
            Softmax::new(&square).axis(0).into_op().unwrap(),
            Softmax::new(&square.transpose().unwrap()).into_op().unwrap(),
            Softmax::new(&wide).into_op().unwrap(),
            Reduce::sum(&square).into_op().unwrap(),
            Reduce::max(&square).into_op().unwrap(),
        ];
        let all: Vec<u64> = ops.iter().map(signature).collect();
        for (place, one) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == one), Some(place), "{:?}", ops[place]);
        }
        assert_eq!(signature(&times(2.0)), all[0]);
    }
}

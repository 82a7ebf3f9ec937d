//! The distinct ops of a graph under construction. A graph of many nodes has few distinct ops.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use super::placeholder::slot_of;
use crate::op::Op;
use crate::op::compute::ComputeOp;

/// Two hashes with random keys of this builder, so that no attacker can construct two ops with
/// equal hashes.
type TemplateKey = [u64; 2];

/// The ops by their hashes.
#[derive(Debug, Default)]
pub(super) struct Templates {
    known: HashMap<TemplateKey, Arc<Op>>,
    keys: [RandomState; 2],
}

impl Templates {
    /// Returns an equal op that is already stored, or stores this one. The op's tensors are
    /// placeholders of its operands.
    pub(super) fn shared(&mut self, op: Op) -> Arc<Op> {
        let mut hashers = TwoHashers(self.keys.each_ref().map(RandomState::build_hasher));
        hashers.add(&op);
        let key = hashers.0.map(|hasher| hasher.finish());
        Arc::clone(self.known.entry(key).or_insert_with(|| Arc::new(op)))
    }
}

struct TwoHashers<H>([H; 2]);

impl<H: Hasher> TwoHashers<H> {
    /// Hashes all that distinguishes an op: of a map its expression and inputs, of any other op its
    /// debug text.
    fn add(&mut self, op: &Op) {
        match op {
            Op::Compute(ComputeOp::Map(map)) if map.program().is_ok() => {
                self.value(&map.inputs().len());
                if let Ok(program) = map.program() {
                    self.value(program.nodes());
                }
                for input in map.inputs() {
                    self.value(&(slot_of(input), input.dtype(), input.shape()));
                }
            }
            op => {
                self.value(&usize::MAX);
                // Hashing never fails.
                let _ = write!(self, "{op:?}");
            }
        }
    }

    fn value(&mut self, value: &(impl Hash + ?Sized)) {
        self.0.iter_mut().for_each(|hasher| value.hash(hasher));
    }
}

impl<H: Hasher> Write for TwoHashers<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.iter_mut().for_each(|hasher| hasher.write(text.as_bytes()));
        Ok(())
    }
}

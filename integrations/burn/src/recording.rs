//! The operations that a session has received but not run yet. Their tensors are numbered in the
//! order of first occurrence, so that two rounds of the same loop give equal recordings.
//!
//! Numbers in operations on floats are taken out ([`lower::MASKED`]). Those that differ between two
//! otherwise equal recordings become inputs of the graph. The others stay constants, which the
//! compiler can fold.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use burn_ir::{IrVisitorMut, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use burn_std::DType as BurnType;
use panoply_core::{DType, Tensor};

use crate::error::Error;
use crate::lower::{self, LoweredGraph, MASKED};

/// The operations recorded since the last run.
#[derive(Default)]
pub(crate) struct Recording {
    ops: Vec<OperationIr>,
    /// The number of values so far.
    values: usize,
    /// The values that existed before, with their tensors.
    inputs: Vec<(usize, Tensor)>,
    numbers: Vec<f64>,
}

impl Recording {
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Adds an existing tensor as a value.
    pub(crate) fn input(&mut self, tensor: Tensor) -> usize {
        let value = self.values;
        self.values += 1;
        self.inputs.push((value, tensor));
        value
    }

    /// Records an operation on these values. Returns the values of its outputs, in order.
    pub(crate) fn record(&mut self, mut op: OperationIr, operands: &[usize]) -> Result<Vec<usize>, Error> {
        let first = self.values;
        let is_float = op.outputs().chain(op.inputs()).next().is_some_and(|tensor| {
            matches!(tensor.dtype, BurnType::F32 | BurnType::Flex32 | BurnType::F16 | BurnType::BF16)
        });
        let mut visitor =
            Renamer { operands, seen: 0, next: first, is_float, numbers: &mut self.numbers, is_wrong: false };
        op.visit_mut(&mut visitor);
        if visitor.is_wrong || visitor.seen < operands.len() {
            return Err(Error::unsupported(lower::name(&op), "its tensors or numbers do not add up"));
        }
        self.values = visitor.next;
        self.ops.push(op);
        Ok((first..self.values).collect())
    }
}

/// Replaces tensors by values, and numbers by their indices. Inputs are visited before outputs.
struct Renamer<'a> {
    operands: &'a [usize],
    seen: usize,
    next: usize,
    is_float: bool,
    numbers: &'a mut Vec<f64>,
    is_wrong: bool,
}

impl IrVisitorMut for Renamer<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let value = match self.operands.get(self.seen) {
            Some(value) => *value,
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        self.seen += 1;
        tensor.id = TensorId::new(value as u64);
        tensor.status = TensorStatus::ReadOnly;
    }

    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        match *scalar {
            ScalarIr::Float(value) if self.is_float => {
                *scalar = ScalarIr::UInt(MASKED + self.numbers.len() as u64);
                self.numbers.push(value);
            }
            ScalarIr::UInt(value) if value >= MASKED => self.is_wrong = true,
            _ => {}
        }
    }
}

/// The key by which a graph is found.
struct GraphKey {
    ops: Vec<OperationIr>,
    inputs: Vec<(usize, DType, Vec<usize>)>,
    wanted: Vec<usize>,
}

struct CachedGraph {
    key: GraphKey,
    numbers: Vec<f64>,
    varies: Vec<bool>,
    lowered: Arc<LoweredGraph>,
    last_use: u64,
}

/// The graphs of a session's recordings.
pub(crate) struct Plans {
    known: HashMap<u64, Vec<CachedGraph>>,
    count: usize,
    count_max: usize,
    uses: u64,
    /// The number of graphs that had to be made.
    pub(crate) made: u64,
}

/// A graph with its inputs.
pub(crate) struct Run {
    pub(crate) lowered: Arc<LoweredGraph>,
    pub(crate) inputs: Vec<Tensor>,
}

impl Plans {
    pub(crate) fn new(count_max: usize) -> Plans {
        Plans { known: HashMap::new(), count: 0, count_max: count_max.max(1), uses: 0, made: 0 }
    }

    /// Returns the graph that computes the wanted values of a recording.
    pub(crate) fn find(&mut self, recording: Recording, wanted: Vec<usize>) -> Result<Run, Error> {
        let Recording { ops, values, inputs, numbers } = recording;
        let types = inputs.iter().map(|(value, tensor)| (*value, tensor.dtype(), tensor.shape().to_vec()));
        let key = GraphKey { ops, inputs: types.collect(), wanted };
        let hash = key.hash();
        self.uses += 1;
        let is_same = |known: &&mut CachedGraph| known.key.is(&key) && known.numbers.len() == numbers.len();
        let lowered = match self.known.get_mut(&hash).and_then(|all| all.iter_mut().find(is_same)) {
            Some(known) => {
                known.last_use = self.uses;
                let mut is_new = false;
                for ((old, new), varies) in known.numbers.iter().zip(&numbers).zip(&mut known.varies) {
                    is_new |= !*varies && old.to_bits() != new.to_bits();
                    *varies |= old.to_bits() != new.to_bits();
                }
                if is_new {
                    let key = &known.key;
                    let lowered = lower::lower(&key.ops, values, &key.inputs, &key.wanted, &numbers, &known.varies)?;
                    self.made += 1;
                    known.lowered = Arc::new(lowered);
                }
                Arc::clone(&known.lowered)
            }
            None => {
                let varies = vec![false; numbers.len()];
                let lowered = lower::lower(&key.ops, values, &key.inputs, &key.wanted, &numbers, &varies)?;
                self.made += 1;
                let lowered = Arc::new(lowered);
                let known =
                    CachedGraph { key, numbers: numbers.clone(), varies, lowered: Arc::clone(&lowered), last_use: self.uses };
                self.keep(hash, known);
                lowered
            }
        };
        let mut given: Vec<Tensor> =
            lowered.inputs.iter().filter_map(|place| inputs.get(*place)).map(|(_, t)| t.clone()).collect();
        if !lowered.varying.is_empty() {
            let varying: Vec<f32> = lowered.varying.iter().map(|place| numbers[*place] as f32).collect();
            let count = varying.len();
            given.push(Tensor::from_vec(varying, [count])?);
        }
        Ok(Run { lowered, inputs: given })
    }

    /// Keeps a graph. If there are too many, drops the least recently used one.
    fn keep(&mut self, hash: u64, known: CachedGraph) {
        if self.count == self.count_max {
            let all = self.known.iter().flat_map(|(hash, all)| all.iter().map(move |known| (known.last_use, *hash)));
            if let Some((last_use, oldest)) = all.min() {
                if let Some(all) = self.known.get_mut(&oldest) {
                    all.retain(|known| known.last_use != last_use);
                    if all.is_empty() {
                        self.known.remove(&oldest);
                    }
                }
                self.count -= 1;
            }
        }
        self.known.entry(hash).or_default().push(known);
        self.count += 1;
    }
}

impl GraphKey {
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.ops.hash(&mut hasher);
        self.inputs.hash(&mut hasher);
        self.wanted.hash(&mut hasher);
        hasher.finish()
    }

    fn is(&self, other: &GraphKey) -> bool {
        self.ops == other.ops && self.inputs == other.inputs && self.wanted == other.wanted
    }
}

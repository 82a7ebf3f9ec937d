//! Ops: typed pieces of work.
//!
//! Typed at the edge, dynamic inside: each op is a struct that implements [`Operation`], so that the caller gets a typed
//! output; below that it is a value of the enum [`Op`], which queues, routers and engines handle alike. The six domains
//! are six modules here and on every other layer. A domain that has no op yet is an empty enum: the type says so.

use std::fmt;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

mod axis;
mod domain_ops;

pub mod compute;
pub mod crypto;
pub mod ml;
pub mod network;
pub mod signal;
pub mod video;

/// A family of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// Arithmetic on tensors.
    Compute,
    /// Sealing, hashing, signing and compressing.
    Crypto,
    /// Packets.
    Network,
    /// Models.
    Ml,
    /// Sampled signals.
    Signal,
    /// Pictures in motion.
    Video,
}

impl Domain {
    /// Every domain.
    pub const ALL: [Domain; 6] =
        [Domain::Compute, Domain::Crypto, Domain::Network, Domain::Ml, Domain::Signal, Domain::Video];

    /// The name used in modules, on the command line and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Domain::Compute => "compute",
            Domain::Crypto => "crypto",
            Domain::Network => "network",
            Domain::Ml => "ml",
            Domain::Signal => "signal",
            Domain::Video => "video",
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An op as its caller writes it: a struct with a typed output.
pub trait Operation: Send + 'static {
    /// What the caller gets.
    type Output: Send + 'static;

    /// Checks the op and makes it a value that a device can take. Bad input is rejected here, before anything moves.
    fn into_op(self) -> Result<Op>;

    /// The typed output from what an engine returned.
    fn output(value: Value) -> Result<Self::Output>;
}

/// What every op can tell about itself, whatever its domain.
pub trait Describe {
    /// The op's name in messages, metrics and benchmarks, such as `matmul`.
    fn name(&self) -> &'static str;

    /// Checks shapes, element types and arguments.
    fn validate(&self) -> Result<()>;

    /// Shows each input tensor to `visit`, in a fixed order.
    fn for_each_input(&self, visit: &mut dyn FnMut(&Tensor));

    /// Lets `visit` replace each input tensor by one with the same elements, such as a copy on another device.
    fn for_each_input_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor));

    /// How much there is to do, in a unit of the op's own: on one device, ops of one name and element type with equal work
    /// take about equally long, and more work takes longer. Without an answer of its own it is the elements of all
    /// inputs.
    fn work(&self) -> u64 {
        let mut elements = 0_u64;
        self.for_each_input(&mut |tensor| elements = elements.saturating_add(tensor.elements() as u64));
        elements
    }

    /// Ops with equal keys can run as one: the same arithmetic on operands of the same inner shape. `None`: it always runs
    /// alone. A key is a hash, so an engine that joins ops looks at them as well.
    fn batch_key(&self) -> Option<BatchKey> {
        None
    }
}

/// What ops that can run as one have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchKey(pub u64);

impl BatchKey {
    /// The key of what an op shares with those it can be joined with.
    pub fn of(shared: impl std::hash::Hash) -> BatchKey {
        use std::hash::Hasher;
        let mut hasher = std::hash::DefaultHasher::new();
        shared.hash(&mut hasher);
        BatchKey(hasher.finish())
    }
}

/// An op of any domain, ready for a queue.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // An op lives in its task record, never in a Vec.
pub enum Op {
    /// Arithmetic on tensors.
    Compute(compute::ComputeOp),
    /// Sealing, hashing, signing and compressing.
    Crypto(crypto::CryptoOp),
    /// Packets.
    Network(network::NetworkOp),
    /// Models.
    Ml(ml::MlOp),
    /// Sampled signals.
    Signal(signal::SignalOp),
    /// Pictures in motion.
    Video(video::VideoOp),
}

impl Op {
    /// The domain.
    pub fn domain(&self) -> Domain {
        match self {
            Op::Compute(_) => Domain::Compute,
            Op::Crypto(_) => Domain::Crypto,
            Op::Network(_) => Domain::Network,
            Op::Ml(_) => Domain::Ml,
            Op::Signal(_) => Domain::Signal,
            Op::Video(_) => Domain::Video,
        }
    }

    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> usize {
        let mut bytes = 0_usize;
        self.for_each_input(&mut |tensor| bytes = bytes.saturating_add(tensor.len_bytes()));
        bytes
    }

    /// The element type of the first input, if the op has one.
    pub fn dtype(&self) -> Option<crate::dtype::DType> {
        let mut first = None;
        self.for_each_input(&mut |tensor| first = first.or(Some(tensor.dtype())));
        first
    }

    fn describe(&self) -> &dyn Describe {
        match self {
            Op::Compute(op) => op.describe(),
            Op::Crypto(op) => match *op {},
            Op::Network(op) => match *op {},
            Op::Ml(op) => match *op {},
            Op::Signal(op) => op.describe(),
            Op::Video(op) => match *op {},
        }
    }
}

impl Describe for Op {
    fn name(&self) -> &'static str {
        self.describe().name()
    }

    fn validate(&self) -> Result<()> {
        self.describe().validate()
    }

    fn for_each_input(&self, visit: &mut dyn FnMut(&Tensor)) {
        self.describe().for_each_input(visit);
    }

    fn work(&self) -> u64 {
        self.describe().work()
    }

    fn batch_key(&self) -> Option<BatchKey> {
        self.describe().batch_key()
    }

    fn for_each_input_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        match self {
            Op::Compute(op) => op.describe_mut().for_each_input_mut(visit),
            Op::Crypto(op) => match *op {},
            Op::Network(op) => match *op {},
            Op::Ml(op) => match *op {},
            Op::Signal(op) => op.describe_mut().for_each_input_mut(visit),
            Op::Video(op) => match *op {},
        }
    }
}

/// What an engine returns for an op.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Moved once from the engine into the task record; a box would be an allocation per op.
pub enum Value {
    /// One tensor.
    Tensor(Tensor),
    /// Two tensors, such as sorted keys with their values.
    Pair(Tensor, Tensor),
}

impl Value {
    /// The one tensor.
    pub fn into_tensor(self) -> Result<Tensor> {
        match self {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Pair(..) => Err(Error::invalid("the engine's answer", "one tensor", "two")),
        }
    }

    /// The two tensors.
    pub fn into_pair(self) -> Result<(Tensor, Tensor)> {
        match self {
            Value::Pair(first, second) => Ok((first, second)),
            Value::Tensor(_) => Err(Error::invalid("the engine's answer", "two tensors", "one")),
        }
    }

    /// The tensors, however many.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let (first, second) = match self {
            Value::Tensor(tensor) => (tensor, None),
            Value::Pair(first, second) => (first, Some(second)),
        };
        std::iter::once(first).chain(second)
    }

    /// The value with each tensor replaced by what `change` makes of it.
    pub fn try_map(self, mut change: impl FnMut(Tensor) -> Result<Tensor>) -> Result<Value> {
        Ok(match self {
            Value::Tensor(tensor) => Value::Tensor(change(tensor)?),
            Value::Pair(first, second) => Value::Pair(change(first)?, change(second)?),
        })
    }
}

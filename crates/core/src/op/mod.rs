//! Ops: typed pieces of work.
//!
//! Typed at the edge, dynamic inside: each op is a struct that implements [`Operation`], so that the caller gets a typed
//! output; below that it is a value of the enum [`Op`], which queues, routers and engines handle alike. A domain is a
//! folder here and on every other layer; `list` names them all.

use std::fmt;

use crate::device::DeviceId;
use crate::error::{Error, Result};
use crate::part::{PartMut, PartRef};
use crate::tensor::Tensor;

mod axis;
mod extension;
mod list;
mod outputs;

pub mod compute;
pub mod crypto;
pub mod graph;
pub mod signal;

pub use crate::part::Value;
pub use extension::Extension;
pub use list::{Domain, Op};

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

/// What every op can tell about itself, whatever its domain. The first four methods are its own; the others have answers
/// that suit most ops.
pub trait Describe {
    /// The op's name in messages, metrics and benchmarks, such as `matmul`.
    fn name(&self) -> &'static str;

    /// Checks shapes, element types and arguments.
    fn validate(&self) -> Result<()>;

    /// Shows each part that goes into the op to `visit`, in a fixed order; of a list each of its parts.
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>));

    /// Lets `visit` replace each part by one with the same contents, such as a copy on another device.
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>));

    /// How much there is to do, in a unit of the op's own: on one device, ops of one name, element type and cost class with
    /// equal work take about equally long, and more work takes longer. Without an answer of its own it is the elements
    /// of all tensors and the bytes of all else.
    fn work(&self) -> u64 {
        let mut work = 0_u64;
        self.for_each_part(&mut |part| {
            let own = part.tensor().map_or_else(|| part.len_bytes(), Tensor::elements);
            work = work.saturating_add(own as u64);
        });
        work
    }

    /// Which ops of this name and element type share a curve of time over work: RSA with 4096 bits and Ed25519, or two
    /// models, do not.
    fn cost_class(&self) -> CostClass {
        CostClass::default()
    }

    /// What else decides which kernels the op needs, beyond its name and its tensors' element types, ranks, layouts and
    /// sizes: a hash of the expression of a map, of a model, of a user's source.
    fn kernel_signature(&self) -> u64 {
        0
    }

    /// Whether it may run twice and do no harm: a fallback must not send a packet or advance a filter again. An op with a sink
    /// among its parts is not repeatable, whatever it says here.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// The only device that can run it, where there is one: that of the device objects which it names.
    fn bound_to(&self) -> Option<DeviceId> {
        let mut device = None;
        self.for_each_part(&mut |part| device = device.or(part.object().map(|object| object.device())));
        device
    }

    /// Ops with equal keys can run as one: the same arithmetic on operands of the same inner shape. `None`: it always runs
    /// alone. A key is a hash, so an engine that joins ops looks at them as well.
    fn batch_key(&self) -> Option<BatchKey> {
        None
    }
}

/// What tells curves of time over work apart, within one op and element type. Secrets have no place in it: it is written
/// into profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostClass {
    /// A word for it, such as `rsa-4096`; empty where the op has one curve. Letters, digits, `-`, `_` and `.` alone.
    pub label: &'static str,
    /// A number for what has no word, such as the hash of a model's contents.
    pub variant: u64,
}

impl CostClass {
    /// The class of this word.
    pub const fn labelled(label: &'static str) -> CostClass {
        CostClass { label, variant: 0 }
    }

    /// The class of this number.
    pub const fn numbered(variant: u64) -> CostClass {
        CostClass { label: "", variant }
    }

    /// Whether the op has one curve.
    pub fn is_default(&self) -> bool {
        *self == CostClass::default()
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

impl Op {
    /// The op, unless it names device objects of two devices, or is of a domain whose engines keep no secrets.
    fn checked(self) -> Result<Op> {
        let (mut first, mut other, mut secret) = (None, None, false);
        self.for_each_part(&mut |part| {
            secret |= part.is_secret();
            if let Some(object) = part.object() {
                let device = *first.get_or_insert(object.device());
                other = other.or((object.device() != device).then(|| object.device()));
            }
        });
        if secret && matches!(self.domain(), Domain::Compute | Domain::Signal | Domain::Graph) {
            let expected = "no secret: ops on tensors copy their inputs to memory that is used again";
            return Err(Error::invalid("input", expected, "a secret part"));
        }
        match (first, other) {
            (Some(first), Some(other)) => {
                Err(Error::invalid("device objects of one op", format!("all on {first}"), format!("one on {other}")))
            }
            _ => Ok(self),
        }
    }

    /// Whether it may be under way for as long as it likes: an op that answers through a sink may, and an engine that has not
    /// ended it does not count as hung.
    pub fn is_session(&self) -> bool {
        let mut has_sink = false;
        self.for_each_part(&mut |part| has_sink |= part.sink().is_some());
        has_sink
    }

    /// Shows each input tensor to `visit`, in a fixed order.
    pub fn for_each_tensor(&self, visit: &mut dyn FnMut(&Tensor)) {
        self.for_each_part(&mut |part| {
            if let PartRef::Tensor(tensor) = part {
                visit(tensor);
            }
        });
    }

    /// Lets `visit` replace each input tensor by one with the same elements.
    pub fn for_each_tensor_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        self.for_each_part_mut(&mut |part| {
            if let PartMut::Tensor(tensor) = part {
                visit(tensor);
            }
        });
    }

    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> usize {
        let mut bytes = 0_usize;
        self.for_each_part(&mut |part| bytes = bytes.saturating_add(part.len_bytes()));
        bytes
    }

    /// The element type of the first input tensor, if the op has one.
    pub fn dtype(&self) -> Option<crate::dtype::DType> {
        let mut first = None;
        self.for_each_tensor(&mut |tensor| first = first.or(Some(tensor.dtype())));
        first
    }
}

impl Describe for Op {
    fn name(&self) -> &'static str {
        self.describe().name()
    }

    fn validate(&self) -> Result<()> {
        self.describe().validate()
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.describe().for_each_part(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.describe_mut().for_each_part_mut(visit);
    }

    fn work(&self) -> u64 {
        self.describe().work()
    }

    fn cost_class(&self) -> CostClass {
        self.describe().cost_class()
    }

    fn kernel_signature(&self) -> u64 {
        self.describe().kernel_signature()
    }

    fn is_repeatable(&self) -> bool {
        self.describe().is_repeatable() && !self.is_session()
    }

    fn bound_to(&self) -> Option<DeviceId> {
        self.describe().bound_to()
    }

    fn batch_key(&self) -> Option<BatchKey> {
        self.describe().batch_key()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "op_tests.rs"]
mod tests;

//! Ops: typed pieces of work.
//!
//! Each op is a struct that implements [`Operation`], so that the caller gets a typed output. Below
//! that interface it is a value of the enum [`Op`], which queues, routers and engines handle alike.
//! A domain is a folder here and on every other layer. `list` names all domains.

use std::fmt;

use crate::device::DeviceId;
use crate::error::{Error, Result};
use crate::part::{PartMut, PartRef};
use crate::tensor::Tensor;

mod axis;
mod domain_modules;
mod extension;
mod host;
mod list;
mod outputs;
mod recipe;

pub mod compute;
pub mod crypto;
pub mod graph;
pub mod signal;

pub use crate::part::Value;
pub use extension::Extension;
pub use host::{Host, HostOp, HostStates};
pub use list::{Domain, Op, all};
pub use outputs::{AnswerTypes, TensorTypes};

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An op as its caller writes it: a struct with a typed output.
pub trait Operation: Send + 'static {
    /// The typed output.
    type Output: Send + 'static;

    /// Checks the op and converts it to an [`Op`]. Bad input is rejected here, before any data
    /// moves.
    fn into_op(self) -> Result<Op>;

    /// Converts the engine's answer to the typed output.
    fn output(value: Value) -> Result<Self::Output>;
}

/// Runs ops one after another: a runtime, or kernels on the calling thread.
pub trait Runs {
    /// Runs an op and waits for its output.
    fn run<O: Operation>(&mut self, op: O) -> Result<O::Output>;
}

/// The description of an op, independent of its domain. Every op implements the first four methods.
/// The others have defaults that suit most ops.
pub trait Describe {
    /// The op's name in messages, metrics and benchmarks, such as `matmul`.
    fn name(&self) -> &'static str;

    /// Checks shapes, element types and arguments.
    fn validate(&self) -> Result<()>;

    /// Calls `visit` for each input part, in a fixed order. Each part of a list is visited.
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>));

    /// Lets `visit` replace each part by an equal one, such as a copy on another device.
    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>));

    /// The element types and shapes of the answer. Engines' answers are checked against them. Fails
    /// if the inputs are invalid. The default is [`AnswerTypes::Unknown`]. An op outside the list
    /// is asked once, when it is made.
    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Unknown)
    }

    /// Whether graphs can contain the op, provided that its answer's types are known. Graphs never
    /// contain ops outside the list.
    fn can_be_node(&self) -> bool {
        true
    }

    /// Whether an engine may make an answer without elements itself instead of running the op, if
    /// the op has an input without elements. Applies to ops of the list whose answer is one tensor
    /// or a pair.
    fn may_be_empty(&self) -> bool {
        true
    }

    /// The amount of work, in a unit that the op defines. On one device, ops of the same name,
    /// element type and cost class take about equally long for equal work, and longer for more
    /// work. The default is the number of elements of all tensors plus the bytes of all other
    /// parts.
    fn work(&self) -> u64 {
        let mut work = 0_u64;
        self.for_each_part(&mut |part| {
            let own = part.tensor().map_or_else(|| part.len_bytes(), Tensor::elements);
            work = work.saturating_add(own as u64);
        });
        work
    }

    /// The class of ops of this name and element type that share a curve of time over work. RSA
    /// with 4096 bits and Ed25519 have different classes, and so have two models.
    fn cost_class(&self) -> CostClass {
        CostClass::default()
    }

    /// A hash of everything that selects the op's kernels, beyond its name and the element types,
    /// ranks, layouts and sizes of its tensors: of a map's expression, of a model, of a user's
    /// source.
    fn kernel_signature(&self) -> u64 {
        0
    }

    /// Whether the op may safely run twice: a fallback must not send a packet or advance a filter
    /// again. An op with a sink among its parts is not repeatable, regardless of this method.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// The only device that can run the op: that of the device objects among its parts. `None` if
    /// there are none.
    fn bound_to(&self) -> Option<DeviceId> {
        let mut device = None;
        self.for_each_part(&mut |part| device = device.or(part.object().map(|object| object.device())));
        device
    }

    /// Ops with equal keys can run as one: the same arithmetic on operands of the same inner shape.
    /// `None`: the op always runs alone. A key is a hash, so an engine that joins ops also compares
    /// the ops.
    fn batch_key(&self) -> Option<BatchKey> {
        None
    }
}

/// The class of an op that has its own curve of time over work, within one op name and element
/// type. It is written into profiles, so it must contain no secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostClass {
    /// A label, such as `rsa-4096`: letters, digits, `-`, `_` and `.`. Empty if the op has one
    /// curve.
    pub label: &'static str,
    /// A number for classes without a label, such as the hash of a model's contents.
    pub variant: u64,
}

impl CostClass {
    /// The class of this label.
    pub const fn labelled(label: &'static str) -> CostClass {
        CostClass { label, variant: 0 }
    }

    /// The class of this number.
    pub const fn numbered(variant: u64) -> CostClass {
        CostClass { label: "", variant }
    }

    /// Whether this is the class of an op with one curve.
    pub fn is_default(&self) -> bool {
        *self == CostClass::default()
    }
}

/// The common key of ops that can run as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchKey(pub u64);

impl BatchKey {
    /// The key of the properties that an op shares with the ops it can be joined with.
    pub fn of(shared: impl std::hash::Hash) -> BatchKey {
        use std::hash::Hasher;
        let mut hasher = std::hash::DefaultHasher::new();
        shared.hash(&mut hasher);
        BatchKey(hasher.finish())
    }
}

impl Op {
    /// Returns the op. Fails if it names device objects of two devices, or has a secret part and is
    /// not an op that takes secrets.
    fn checked(self) -> Result<Op> {
        let (mut first, mut other, mut secret) = (None, None, false);
        self.for_each_part(&mut |part| {
            secret |= part.is_secret();
            if let Some(object) = part.object() {
                let device = *first.get_or_insert(object.device());
                other = other.or((object.device() != device).then(|| object.device()));
            }
        });
        if secret && !self.takes_secrets() {
            let expected = format!("no secret: engines do not wipe their copies of what {} reads", self.name());
            return Err(Error::invalid("input", expected, "a secret part"));
        }
        match (first, other) {
            (Some(first), Some(other)) => {
                Err(Error::invalid("device objects of one op", format!("all on {first}"), format!("one on {other}")))
            }
            _ => Ok(self),
        }
    }

    /// Whether the op may run without a time limit. An op that answers through a sink may, and an
    /// engine that has not ended it does not count as hung. An op that names state on its device (a
    /// device object) and has no sink is an ordinary op.
    pub fn is_session(&self) -> bool {
        let mut has_sink = false;
        self.for_each_part(&mut |part| has_sink |= part.sink().is_some());
        has_sink
    }

    /// Calls `visit` for each input tensor, in a fixed order.
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

    /// Total bytes of all inputs.
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

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        match self {
            Op::Extension(op) => Ok(op.stated_types()),
            op => op.describe().answer_types(),
        }
    }

    fn can_be_node(&self) -> bool {
        !matches!(self, Op::Extension(_)) && self.describe().can_be_node()
    }

    fn may_be_empty(&self) -> bool {
        self.describe().may_be_empty()
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

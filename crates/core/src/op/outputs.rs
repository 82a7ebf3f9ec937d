//! The outputs of an op, known before it runs: the element types and shapes of its tensors, in the
//! order of the parts of its value. Each op states them in [`Describe::answer_types`]. This file
//! checks whether an engine's answer has them.

use std::sync::Arc;

use super::crypto::answer;
use super::{Op, Value};
use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{Part, PartRef};
use crate::shape::Shape;
use crate::tensor::{Location, Tensor};

/// Number of parts of a wrong answer that its error message shows.
const PARTS_TOLD_MAX: usize = 4;

/// The form of an op's answer, as far as it is known before the op runs.
#[derive(Clone)]
pub enum AnswerTypes<'a> {
    /// The form depends on the contents of the inputs, or the answer has parts other than tensors.
    /// Engines' answers are accepted in any form.
    Unknown,
    /// One tensor.
    Tensor(DType, Shape),
    /// A pair of tensors.
    Pair([(DType, Shape); 2]),
    /// A list of tensors.
    List(Arc<[(DType, Shape)]>),
    /// A list of tensors whose types are part of the op. Nothing is allocated.
    ListOf(&'a dyn TensorTypes),
}

/// The element types and shapes of a list of tensors.
pub trait TensorTypes: Send + Sync {
    /// The type and shape of a tensor. `None` after the last.
    fn type_at(&self, index: usize) -> Option<(DType, Shape)>;
}

impl TensorTypes for Vec<Tensor> {
    fn type_at(&self, index: usize) -> Option<(DType, Shape)> {
        self.get(index).map(type_of)
    }
}

impl AnswerTypes<'_> {
    /// The types and shapes of all tensors. Empty if they are unknown.
    pub fn to_vec(&self) -> Vec<(DType, Shape)> {
        match self {
            AnswerTypes::Unknown => Vec::new(),
            AnswerTypes::Tensor(dtype, shape) => vec![(*dtype, *shape)],
            AnswerTypes::Pair(both) => both.to_vec(),
            AnswerTypes::List(types) => types.to_vec(),
            AnswerTypes::ListOf(types) => each(*types).collect(),
        }
    }

    /// Whether a value has these types. Allocates nothing.
    pub fn fit(&self, value: &Value) -> bool {
        match (self, value) {
            (AnswerTypes::Unknown, _) => true,
            (AnswerTypes::Tensor(dtype, shape), Value::Tensor(tensor)) => type_of(tensor) == (*dtype, *shape),
            (AnswerTypes::Pair(both), Value::Pair(first, second)) => [type_of(first), type_of(second)] == *both,
            (AnswerTypes::List(types), Value::List(parts)) => are(parts, types.iter().copied()),
            (AnswerTypes::ListOf(types), Value::List(parts)) => are(parts, each(*types)),
            _ => false,
        }
    }

    /// The same types, independent of the op.
    pub(super) fn into_owned(self) -> AnswerTypes<'static> {
        match self {
            AnswerTypes::Unknown => AnswerTypes::Unknown,
            AnswerTypes::Tensor(dtype, shape) => AnswerTypes::Tensor(dtype, shape),
            AnswerTypes::Pair(both) => AnswerTypes::Pair(both),
            AnswerTypes::List(types) => AnswerTypes::List(types),
            AnswerTypes::ListOf(types) => AnswerTypes::List(each(types).collect()),
        }
    }
}

fn each(types: &dyn TensorTypes) -> impl Iterator<Item = (DType, Shape)> + '_ {
    (0..).map_while(move |index| types.type_at(index))
}

fn type_of(tensor: &Tensor) -> (DType, Shape) {
    (tensor.dtype(), *tensor.shape())
}

fn are(parts: &[Part], types: impl Iterator<Item = (DType, Shape)>) -> bool {
    let got = parts.iter().map(|part| part.as_ref().tensor().map(type_of));
    got.eq(types.map(Some))
}

impl Op {
    /// The element types and shapes of the op's output tensors. Fails if the inputs are invalid,
    /// and for ops that cannot be nodes of graphs.
    pub fn outputs(&self) -> Result<Vec<(DType, Shape)>> {
        let types = if self.can_be_node() { self.answer_types()? } else { AnswerTypes::Unknown };
        if matches!(types, AnswerTypes::Unknown) {
            let reason = "the shapes of its outputs are not known before it runs".to_owned();
            return Err(Error::Unsupported { op: self.name(), reason });
        }
        Ok(types.to_vec())
    }

    /// The answer to an op whose outputs are all tensors without elements. `None` if there is
    /// something to compute or to check. Engines ask for it before they start: a kernel may
    /// otherwise loop over 2^40 rows of length zero.
    ///
    /// The engine handles an op with integer inputs, since indices and symbols are checked one by
    /// one, and an op that says so in [`Describe::may_be_empty`]. The code of an op outside this
    /// workspace is not called.
    pub fn empty_answer(&self) -> Option<Value> {
        if matches!(self, Op::Crypto(_) | Op::Extension(_)) || !self.may_be_empty() {
            return None;
        }
        let (mut has_empty, mut has_integers) = (false, false);
        self.for_each_tensor(&mut |tensor| {
            has_empty |= tensor.elements() == 0;
            has_integers |= tensor.elements() > 0 && tensor.dtype().is_integer();
        });
        if !has_empty || has_integers {
            return None;
        }
        let empty = |(dtype, shape): &(DType, Shape)| match shape.elements() {
            0 => Tensor::zeros(*dtype, *shape).ok(),
            _ => None,
        };
        match self.answer_types().ok()? {
            AnswerTypes::Tensor(dtype, shape) => empty(&(dtype, shape)).map(Value::Tensor),
            AnswerTypes::Pair([first, second]) => Some(Value::Pair(empty(&first)?, empty(&second)?)),
            AnswerTypes::List(_) | AnswerTypes::ListOf(_) | AnswerTypes::Unknown => None,
        }
    }

    /// Checks that this is an answer to the op from an engine of this device: tensors of the right
    /// number, element types and shapes, all of them on the host, on this device, or on a device
    /// that holds a part of the op. A wrong answer is [`Error::DeviceFault`]. An extension
    /// op is not called: its answer is compared with the types that the op stated when it was made.
    pub fn check_answer(&self, value: &Value, device: DeviceId) -> Result<()> {
        if let Ok(types) = self.answer_types()
            && !types.fit(value)
        {
            return Err(self.wrong_answer(value, device, &format!("expected {}", told(types.to_vec()))));
        }
        if let Op::Crypto(op) = self
            && !answer::fits(op, value)
        {
            return Err(self.wrong_answer(value, device, "expected one answer for each message"));
        }
        let astray = |part: &PartRef<'_>| match part.location() {
            Location::Host => false,
            at => at != Location::Device(device) && !self.has_part_at(at),
        };
        if let Some(part) = value.parts().find(astray) {
            let at = part.location();
            return Err(self.wrong_answer(value, device, &format!("one part is on {at}, where the op has none")));
        }
        Ok(())
    }

    fn has_part_at(&self, place: Location) -> bool {
        let mut found = false;
        if matches!(self, Op::Extension(_)) {
            return false;
        }
        self.for_each_part(&mut |part| found |= part.location() == place);
        found
    }

    #[cold]
    fn wrong_answer(&self, value: &Value, device: DeviceId, expected: &str) -> Error {
        let parts: Vec<String> = value.parts().take(PARTS_TOLD_MAX).map(|part| format!("{part:?}")).collect();
        let got = format!("{} parts ({})", value.parts().count(), parts.join(", "));
        let name = if matches!(self, Op::Extension(_)) { "an op of its own" } else { self.name() };
        Error::DeviceFault { device, reason: format!("it answered {name} with {got}; {expected}") }
    }
}

/// The types as text.
fn told(types: Vec<(DType, Shape)>) -> String {
    let each: Vec<String> =
        types.iter().take(PARTS_TOLD_MAX).map(|(dtype, shape)| format!("{dtype} {shape:?}")).collect();
    format!("{} tensors ({})", types.len(), each.join(", "))
}

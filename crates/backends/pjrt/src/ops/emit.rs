//! A program while its ops are written, and the checks that it makes of its inputs' contents.

use panoply_core::graph::slot_of;
use panoply_core::{Error, Result, Tensor};

use crate::hlo::{self, Value, Writer};

/// A program while its ops are written.
pub(crate) struct Emit {
    pub(crate) writer: Writer,
    /// The value of each slot that has been written so far.
    pub(crate) slots: Vec<Option<Value>>,
    /// Results that the program computes to check its inputs' contents, with their meaning.
    pub(crate) checks: Vec<(Value, Check)>,
}

/// A condition that only the device can check. It produces two numbers. The first one is not zero
/// if the check fails.
#[derive(Clone, Debug)]
pub(crate) enum Check {
    /// An index is out of range. The second number is the index.
    Index {
        /// Length of the indexed axis.
        len: usize,
        /// Whether indices are signed.
        signed: bool,
    },
}

impl Check {
    /// Converts the two numbers to an error, if the check failed.
    pub(crate) fn error(&self, numbers: [u32; 2]) -> Option<Error> {
        let Check::Index { len, signed } = self;
        let got = if *signed { i64::from(numbers[1] as i32) } else { i64::from(numbers[1]) };
        (numbers[0] != 0).then(|| Error::invalid("gather: index", format!("an index into {len}"), got))
    }
}

impl Emit {
    pub(crate) fn new(slots: usize) -> Emit {
        Emit { writer: Writer::new(), slots: vec![None; slots], checks: Vec::new() }
    }

    /// The value of a placeholder, in its own element type.
    pub(crate) fn tensor(&mut self, tensor: &Tensor) -> Result<Value> {
        let missing = || Error::invalid("a program's operand", "a slot that is filled", format!("{tensor:?}"));
        let base = slot_of(tensor).and_then(|slot| self.slots.get(slot)?.clone()).ok_or_else(missing)?;
        Ok(self.writer.view(&base, tensor.shape().dims(), tensor.strides(), tensor.offset()))
    }

    /// As [`Emit::tensor`], in its computation type.
    pub(super) fn number(&mut self, tensor: &Tensor) -> Result<Value> {
        let value = self.tensor(tensor)?;
        Ok(hlo::carried(&mut self.writer, &value))
    }
}

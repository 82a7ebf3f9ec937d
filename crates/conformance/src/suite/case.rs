//! A case: an op, ready to run, and the judge of its answer.

use panoply_core::{Op, Operation, Result, Value};

use crate::judge::Judge;
use crate::reference::reference;

/// One op to run and compare.
#[derive(Clone, Debug)]
pub struct Case {
    /// The unique name, of the form `op/dtype/what`.
    pub name: String,
    /// The op to run.
    pub op: Op,
    /// Decides whether an answer is right.
    pub judge: Judge,
    /// The right answer to an op outside the list, which the reference does not know.
    pub answer: Option<Value>,
}

impl Case {
    /// Makes a case of a valid op. Panics if the op is invalid, which is an error in the suite.
    pub fn new(name: impl Into<String>, op: impl Operation, judge: impl Into<Judge>) -> Case {
        let name = name.into();
        let op = op.into_op().unwrap_or_else(|error| panic!("case {name} is not valid: {error}"));
        Case { name, op, judge: judge.into(), answer: None }
    }

    /// Makes a case of an op outside the list, with its answer.
    pub fn with_answer(name: impl Into<String>, op: impl Operation, answer: Value, judge: impl Into<Judge>) -> Case {
        Case { answer: Some(answer), ..Case::new(name, op, judge) }
    }

    /// The right answer: the case's own, or the reference's.
    pub fn expected(&self) -> Result<Value> {
        self.answer.clone().map_or_else(|| reference(&self.op), Ok)
    }
}

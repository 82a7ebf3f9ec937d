//! The cases, one folder per domain and one file per op or group of ops. A case is an op, ready to
//! run, and the judge of its answer. If the reference answers with an error, an engine must answer
//! with an error of the same kind.

use panoply_core::{Op, Operation, Result, Value};

use crate::judge::Judge;
use crate::reference::reference;
pub use crate::tolerance::Tolerance;

mod compute;
mod crypto;
mod graph;
mod signal;

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

/// The names of the suite's ops, each once: the part of the cases' names before the first slash.
pub fn op_names() -> Vec<String> {
    let mut ops: Vec<String> =
        cases().iter().filter_map(|case| Some(case.name.split_once('/')?.0.to_owned())).collect();
    ops.sort();
    ops.dedup();
    ops
}

/// Prints the ops, for scripts that check them in parallel.
pub fn print_op_names() {
    let ops = op_names();
    assert!(ops.len() > 10, "the suite names {} ops", ops.len());
    ops.iter().for_each(|op| println!("op {op}"));
}

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    macro_rules! of_each {
        ($($domain:ident in $module:ident;)*) => { [$($module::cases()),*] };
    }
    panoply_core::for_each_domain!(of_each).concat()
}

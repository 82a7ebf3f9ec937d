//! The cases, one folder per domain and one file per op. A case is an op, ready to run, and the judge of its answer. Where the
//! reference answers with an error, an engine must answer with one of the same kind.

use panoply_core::{Op, Operation};

use crate::judge::Judge;
pub use crate::judge::Tolerance;

mod compute;
mod crypto;
mod graph;
mod signal;

/// One op to run and compare.
#[derive(Clone, Debug)]
pub struct Case {
    /// `op/dtype/what`, unique in the suite.
    pub name: String,
    /// What to run.
    pub op: Op,
    /// Says whether an answer is right.
    pub judge: Judge,
}

impl Case {
    /// A case of an op that passes its own checks. Panics where it does not: then the suite is wrong.
    pub fn new(name: impl Into<String>, op: impl Operation, judge: impl Into<Judge>) -> Case {
        let name = name.into();
        let op = op.into_op().unwrap_or_else(|error| panic!("case {name} is not valid: {error}"));
        Case { name, op, judge: judge.into() }
    }
}

/// The ops that the suite names, each once: what stands before the first slash of its cases' names.
pub fn op_names() -> Vec<String> {
    let mut ops: Vec<String> =
        cases().iter().filter_map(|case| Some(case.name.split_once('/')?.0.to_owned())).collect();
    ops.sort();
    ops.dedup();
    ops
}

/// Prints the ops for scripts that check them side by side.
pub fn print_op_names() {
    let ops = op_names();
    assert!(ops.len() > 10, "the suite names {} ops", ops.len());
    ops.iter().for_each(|op| println!("op {op}"));
}

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    let mut cases = compute::cases();
    cases.extend(crypto::cases());
    cases.extend(signal::cases());
    cases.extend(graph::cases());
    cases
}

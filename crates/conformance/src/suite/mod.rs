//! The cases, one folder per domain and one file per op or group of ops. If the reference answers
//! with an error, an engine must answer with an error of the same kind.
//!
//! This file lists the domains, and the `mod.rs` of a domain its files. A file of cases imports
//! [`Case`] and helpers from the files that define them, never from a list that names it.

pub use self::case::Case;
pub use crate::tolerance::Tolerance;

mod case;
mod compute;
mod crypto;
mod graph;
mod signal;

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

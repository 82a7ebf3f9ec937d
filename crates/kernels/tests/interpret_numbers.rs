//! The numbers of operations in `interpret.c` are the positions of the operations in their lists.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;

use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};

const INTERPRET: &str = include_str!("../src/c/interpret.c");

/// The numbers and names that the macro lists for the functions of one operand type.
fn listed(text: &str, kind: &str, suffix: &str) -> BTreeMap<usize, String> {
    let entry = format!("{kind}(");
    let entries = text.match_indices(&entry).map(|(at, _)| &text[at + entry.len()..]);
    let parsed = entries.filter_map(|rest| {
        let (number, name) = rest.split_once(')')?.0.split_once(", ")?;
        Some((number.parse().ok()?, name.strip_suffix(suffix)?.to_owned()))
    });
    let pairs: Vec<(usize, String)> = parsed.collect();
    let numbers: BTreeMap<_, _> = pairs.iter().cloned().collect();
    assert_eq!(pairs.len(), numbers.len(), "{kind}: a number stands for two functions: {pairs:?}");
    numbers
}

/// The numbers and names of the operations themselves.
fn known<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<usize, String> {
    names.map(str::to_owned).enumerate().collect()
}

#[test]
fn the_interpreter_numbers_operations_as_their_lists_do() {
    // Functions of every type, and those of floats alone, stand in macros of their own.
    let lists = [
        ("UNARY", known(UnaryOp::ALL.iter().map(|op| op.name()))),
        ("BINARY", known(BinaryOp::ALL.iter().map(|op| op.name()))),
        ("TERNARY", known(TernaryOp::ALL.iter().map(|op| op.name()))),
    ];
    for (kind, known) in &lists {
        assert_eq!(listed(INTERPRET, kind, "_##F"), *known, "{kind}");
        let complex = listed(INTERPRET, kind, "_complex64");
        assert!(!complex.is_empty() && complex.iter().all(|(number, name)| known[number] == *name), "{kind}");
    }
}

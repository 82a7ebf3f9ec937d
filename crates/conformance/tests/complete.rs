//! Every op of the list has a reference, cases in the suite, and a line in `docs/ops.md`, and
//! states the types of its answer.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use panoply_conformance::reference::reference;
use panoply_conformance::{Case, cases};
use panoply_core::{AnswerTypes, Describe, Domain, Op};

/// Ops that cannot be in the suite, each with the file that checks them, and the reason.
const ELSEWHERE: [(&str, &str, &str); 3] = [
    ("Sign", "crates/conformance/src/vectors/mod.rs", "the reference has no signatures; published vectors have"),
    (
        "StartFilter",
        "crates/backends/cpu/kernels/signal/tests/streams.rs",
        "a stream lives on a device, and the reference has none",
    ),
    (
        "StreamFilter",
        "crates/backends/cpu/kernels/signal/tests/streams.rs",
        "a stream lives on a device, and the reference has none",
    ),
];

/// Whether an op is checked outside the suite.
fn is_elsewhere(op: &str) -> bool {
    ELSEWHERE.iter().any(|(other, ..)| *other == op)
}

/// The cases of each op. Ops outside the list have no place in the suite.
fn cases_by_op(cases: &[Case]) -> BTreeMap<&'static str, Vec<&Case>> {
    let mut by_op: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        let op = case.op.type_name().unwrap_or_else(|| panic!("the case {} is an extension", case.name));
        by_op.entry(op).or_default().push(case);
    }
    by_op
}

#[test]
fn every_op_has_cases_in_the_suite() {
    let cases = cases();
    let by_op = cases_by_op(&cases);
    let wrong: Vec<_> = Op::TYPES.iter().filter(|op| by_op.contains_key(*op) == is_elsewhere(op)).collect();
    assert!(wrong.is_empty(), "{wrong:?} have no case in suite/, or have one and are listed as checked elsewhere");
}

#[test]
fn every_op_has_a_reference() {
    // The shapes alone answer an op without elements.
    let answers = |case: &&Case| case.op.empty_answer().is_none() && reference(&case.op).is_ok();
    let cases = cases();
    let by_op = cases_by_op(&cases);
    let missing: Vec<_> = by_op.iter().filter(|(_, cases)| !cases.iter().any(answers)).map(|(op, _)| op).collect();
    assert!(missing.is_empty(), "reference/ answers no case of the ops {missing:?}");
}

/// Answers of the crypto domain are compared with the messages instead.
#[test]
fn every_op_that_answers_tensors_states_their_types() {
    let unknown = |case: &&Case| matches!(case.op.answer_types(), Ok(AnswerTypes::Unknown));
    let cases = cases();
    let by_op = cases_by_op(&cases);
    let ops = by_op.iter().filter(|(_, cases)| cases.iter().all(|case| case.op.domain() != Domain::Crypto));
    let silent: Vec<&str> = ops.filter(|(_, cases)| cases.iter().all(unknown)).map(|(op, _)| *op).collect();
    assert_eq!(silent, ["Crc"], "its answer is a list of checksums; other ops lack `answer_types`");
}

#[test]
fn ops_outside_the_suite_are_checked_where_it_is_said() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (op, file, reason) in ELSEWHERE {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(has_word(&text, op), "{file} has no {op}, but is named because {reason}");
    }
}

#[test]
fn an_op_is_not_found_inside_a_longer_word() {
    assert!(has_word("run(Sign::new())", "Sign"));
    assert!(has_word("Signature, Sign", "Sign"));
    assert!(!has_word("Signature PreSign Sign_2", "Sign"));
}

/// Whether a text has a word by itself, not only as a part of longer words.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|other| other == word)
}

#[test]
fn every_op_has_a_line_in_the_documentation() {
    let listed: BTreeSet<&str> = Op::TYPES.iter().copied().collect();
    let text = include_str!("../../../docs/ops.md");
    let lines: Vec<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).collect();
    let documented: BTreeSet<&str> = lines.iter().map(|(op, _)| *op).collect();
    let missing: Vec<_> = listed.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&listed).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "docs/ops.md lacks {missing:?}, and has {unknown:?}");
    assert_eq!(lines.len(), listed.len(), "docs/ops.md has an op twice");
    assert!(lines.iter().all(|(_, rest)| rest.trim_end_matches([' ', '|']).len() > 5), "an op without a description");
    for domain in Domain::ALL.iter().filter(|domain| **domain != Domain::Extension) {
        assert!(text.contains(&format!("\n## `{domain}`: ")), "docs/ops.md has no section for {domain}");
    }
}

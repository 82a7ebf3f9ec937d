//! The domain in Panoply: its ops conform, run through the runtime, keep state on the device, and
//! need no line inside Panoply.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::Path;

use own_domain::{LETTERS, Letters, StartTally, TEXT, Tally};
use panoply::backend::{Backend, Value};
use panoply::op::signal::{Filter, StartFilter};
use panoply::{Api, Bytes, DType, Domain, Error, Operation, Runtime, Tensor};
use panoply_conformance::{Case, Tolerance, check_backend};
use panoply_cpu::CpuBackend;

fn bytes(text: &str) -> Bytes {
    Bytes::from_vec(text.as_bytes().to_vec())
}

fn of(counts: &Tensor, letter: u8) -> u32 {
    counts.as_slice::<u32>().unwrap()[usize::from(letter - b'a')]
}

fn runtime() -> Runtime {
    Runtime::builder().without_profile().build().unwrap()
}

#[test]
fn the_cpu_passes_the_domains_own_cases() {
    let counted = |text: &str| {
        let count = |letter: u8| text.bytes().filter(|byte| byte.to_ascii_lowercase() == letter).count() as u32;
        let counts: Vec<u32> = (b'a'..=b'z').map(count).collect();
        Value::Tensor(Tensor::from_vec(counts, [LETTERS]).unwrap())
    };
    let texts = [("empty", String::new()), ("mixed", "Ab, aB!".to_owned()), ("long", "panoply ".repeat(50_000))];
    let case = |(name, text): &(&str, String)| {
        let op = Letters { text: bytes(text) };
        Case::with_answer(format!("letters/{name}"), op, counted(text), Tolerance::Exact)
    };
    let cases: Vec<Case> = texts.iter().map(case).collect();
    let backend = CpuBackend::new();
    for device in backend.discover().unwrap() {
        let summary = check_backend(&backend, &device, &cases).unwrap();
        assert!(summary.failed.is_empty() && summary.unsupported.is_empty(), "{summary}");
        assert_eq!(summary.passed, cases.len());
    }
}

#[test]
fn an_op_runs_through_the_runtime_like_any_other() {
    let runtime = runtime();
    let op = Letters { text: bytes("letter") };
    let plain = op.clone().into_op().unwrap();
    assert_eq!((plain.domain(), plain.domain().to_string()), (Domain::Outside(TEXT), TEXT.to_owned()));
    let outcome = runtime.run(op).with_report().wait().unwrap();
    assert_eq!((of(&outcome.output, b't'), of(&outcome.output, b'e'), of(&outcome.output, b'a')), (2, 2, 0));
    assert_eq!(outcome.report.device.api, Api::CPU);
    let many: Vec<_> = (0..100).map(|_| runtime.run(Letters { text: bytes("tt") })).collect();
    assert!(many.into_iter().all(|pending| of(&pending.wait().unwrap(), b't') == 2));
}

#[test]
fn a_session_keeps_its_state_on_the_device_until_its_handle_is_dropped() {
    let runtime = runtime();
    let (first, second) = (runtime.run(StartTally).wait().unwrap(), runtime.run(StartTally).wait().unwrap());
    for round in 1..=3 {
        let sums = runtime.run(Tally { tally: first.clone(), text: bytes("tally") }).wait().unwrap();
        assert_eq!((of(&sums, b'l'), of(&sums, b't')), (2 * round, round));
    }
    let sums = runtime.run(Tally { tally: second, text: bytes("t") }).wait().unwrap();
    assert_eq!((of(&sums, b'l'), of(&sums, b't')), (0, 1), "another session has its own state");
}

#[test]
fn an_object_of_another_kind_is_refused() {
    let runtime = runtime();
    let taps = Tensor::from_vec(vec![1.0_f32], [1]).unwrap();
    let filter = runtime.run(StartFilter::new(Filter::fir(&taps), DType::F32)).wait().unwrap();
    let error = runtime.run(Tally { tally: filter, text: bytes("t") }).wait().unwrap_err();
    assert!(matches!(error, Error::ObjectLost { .. } | Error::InvalidArgument { .. }), "{error}");
}

/// Adding this domain changed no line inside Panoply: nothing there names it or one of its ops.
#[test]
fn nothing_inside_names_the_domain() {
    fn search(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            // That test has the list of README's commands, one of which runs this example.
            let is_readme = path.ends_with("app/tests/readme.rs");
            let is_text = !is_readme && path.extension().is_some_and(|ending| ending == "rs" || ending == "toml");
            if path.is_dir() {
                search(&path, found);
            } else if is_text {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = ["own_domain", "own-domain", "StartTally", "start_tally"];
                found.extend(names.iter().filter(|name| text.contains(**name)).map(|name| format!("{path:?}: {name}")));
            }
        }
    }
    let mut found = Vec::new();
    search(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates"), &mut found);
    assert!(found.is_empty(), "{found:?}");
}

//! The conformance suite's cases of the signal domain, at every level, with one thread and with
//! several.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeSet;

use panoply_conformance::cases;
use panoply_conformance::reference::reference;
use panoply_core::{Describe, Domain, HostBufferMut};
use panoply_cpu_signal::{Level, OneThread, Threads, Workspace};

/// Number of ops that this crate runs, without streams.
const OPS: usize = 34;

/// Threads that are spawned for each op.
struct ScopedThreads;

impl Threads for ScopedThreads {
    fn count(&self) -> usize {
        3
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| (0..tasks).for_each(|index| drop(scope.spawn(move || task(index)))));
    }
}

/// Memory with arbitrary contents, like that of a pool.
fn used_memory(bytes: usize) -> panoply_core::Result<HostBufferMut> {
    let mut memory = HostBufferMut::zeroed(bytes)?;
    memory.bytes_mut().fill(0xa5);
    Ok(memory)
}

#[test]
fn every_case_agrees_with_the_reference() {
    let mut spaces: Vec<Workspace> = Level::all().into_iter().map(Workspace::new).collect();
    let (mut answered, mut refused, mut wrong) = (0, 0, Vec::new());
    let mut ops = BTreeSet::new();
    for case in cases().into_iter().filter(|case| case.op.domain() == Domain::Signal) {
        if case.name.starts_with("fft/") || case.name.starts_with("ifft/") {
            continue;
        }
        ops.insert(case.op.name());
        let expected = reference(&case.op);
        for space in &mut spaces {
            for threads in [&OneThread as &dyn Threads, &ScopedThreads] {
                let got = panoply_cpu_signal::run(&case.op, space, threads, &mut used_memory).unwrap();
                match (&expected, got) {
                    (Ok(expected), Ok(got)) => {
                        let difference = case.judge.difference(&case.op, expected, &got);
                        wrong.extend(difference.map(|what| format!("{}: {what}", case.name)));
                        answered += 1;
                    }
                    (Err(expected), Err(got)) => {
                        assert_eq!(*expected, got, "{}", case.name);
                        refused += 1;
                    }
                    (expected, got) => panic!("{}: expected {expected:?}, got {got:?}", case.name),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    println!("{answered} answers, {refused} refusals, of ops {ops:?}");
    assert!(answered > 5000 && refused > 0 && ops.len() == OPS, "{answered} {refused} {ops:?}");
}

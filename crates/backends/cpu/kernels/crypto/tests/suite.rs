//! The suite's crypto cases on the CPU's functions, with one thread and with several.

use panoply_conformance::cases;
use panoply_conformance::reference::reference;
use panoply_core::{Domain, HostBufferMut, Op};
use panoply_cpu_crypto::{OneThread, State, Threads};

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
    let (mut wide, mut narrow) = (State::new(true), State::new(false));
    let cases: Vec<_> = cases().into_iter().filter(|case| case.op.domain() == Domain::Crypto).collect();
    let (mut answered, mut refused) = (0, 0);
    for case in &cases {
        let Op::Crypto(op) = &case.op else { panic!("{}", case.name) };
        let expected = reference(&case.op);
        for (state, threads) in [(&mut wide, &OneThread as &dyn Threads), (&mut narrow, &ScopedThreads)] {
            let got = panoply_cpu_crypto::run(op, state, threads, &mut used_memory);
            match (&expected, got) {
                (Ok(expected), Ok(got)) => {
                    assert_eq!(case.judge.difference(&case.op, expected, &got), None, "{}", case.name);
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
    println!("{} cases: {answered} answers, {refused} refusals", cases.len());
    assert!(answered > 2000 && refused > 200, "{answered} {refused}");
}

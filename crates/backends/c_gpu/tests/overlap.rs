//! Callers whose ops overlap on an emulated device, whose streams run late and in a random order.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::overlap;
use panoply_conformance::{few_or_all, run_there};
use panoply_core::op::compute::{Map, Transfer};
use panoply_core::{Backend, OpenOptions, Operation, Tensor};

fn with(test: impl FnOnce(EmulatedBackend)) {
    match EmulatedBackend::new() {
        Ok(backend) => test(backend),
        Err(absence) => println!("skipped: {absence}"),
    }
}

/// Each wait between streams that is missing makes some answer wrong. `PANOPLY_SEED=s` sets the
/// first seed.
#[test]
fn callers_on_shuffled_streams() {
    let first: u64 = std::env::var("PANOPLY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    with(|backend| {
        for seed in first..first + few_or_all(3, 20) as u64 {
            println!("PANOPLY_SEED={seed}");
            overlap::run(&backend.clone().shuffled_streams(seed), seed);
        }
    });
}

/// Three callers run one graph: they share neither the memory between its steps nor a recording,
/// and all read one constant.
#[test]
fn one_graph_of_several_callers_on_shuffled_streams() {
    with(|backend| {
        for seed in 1..=few_or_all(40, 400) as u64 {
            overlap::run_one_graph(&backend.clone().shuffled_streams(seed), seed);
        }
    });
}

/// A link costs its launch and the two events around it, as on a device with one lane.
#[test]
fn a_chain_alone_makes_no_further_driver_calls() {
    with(|backend| {
        let info = backend.discover().unwrap().remove(0);
        let mut engine = backend.open(&info, &OpenOptions::default()).unwrap();
        let ones = Tensor::from_vec(vec![1.0_f32; 64], [64]).unwrap();
        let mut run = |op| run_there(engine.as_mut(), op).unwrap().into_tensor().unwrap();
        let mut x = run(Transfer::to_device(&ones, info.id).into_op().unwrap());
        x = run(Map::add(&x, &x).into_op().unwrap());
        let before = backend.calls();
        for _ in 0..20 {
            x = run(Map::add(&x, &x).into_op().unwrap());
        }
        assert_eq!(backend.calls() - before, 20 * 3);
    });
}

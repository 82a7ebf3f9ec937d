//! Plans executed by an engine: memory is checked before any work, constants are copied once, and a
//! failed step leaves nothing behind.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::random_graph::{RandomGraph, random_graph};
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::graph::Graph;
use panoply_core::op::compute::Reduction;
use panoply_core::op::graph::RunGraph;
use panoply_core::{
    Api, DType, DeviceId, DeviceInfo, DeviceKind, Error, Op, Operation, Result, Support, Tensor, Value,
};
use panoply_graph::{Destination, Executor, Facts, Plans, Room, fits, plan_of, run};

use crate::targets::{GPU, PROCESSOR};

/// Runs steps with the reference, and counts the calls.
#[derive(Default)]
struct Counting {
    free_bytes: Option<u64>,
    constants: usize,
    steps: usize,
    /// The number of steps until the one that fails.
    failing: Option<usize>,
}

impl Executor for Counting {
    fn room(&mut self) -> Room {
        Room { place: "the test".to_owned(), free_bytes: self.free_bytes, shares_host_memory: false }
    }

    fn prepare(&mut self, _arena_bytes: usize) -> Result<()> {
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        tensor.contiguous()
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.constants += 1;
        Ok(tensor.clone())
    }

    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value> {
        self.steps += 1;
        if let Some(left) = self.failing {
            self.failing = left.checked_sub(1);
            if left == 0 {
                return Err(Error::invalid("the test", "a step that works", "one that does not"));
            }
        }
        let value = reference(op)?;
        for (tensor, output) in value.tensors().zip(outputs) {
            assert_eq!(tensor.len_bytes(), output.len_bytes);
        }
        Ok(value)
    }
}

/// Two products, with a constant between them that is folded once.
fn network() -> Graph {
    let mut g = Graph::builder("network");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 16.into()]).unwrap();
    let w = g.constant("w", &random_tensor(DType::F32, &[16, 16], 1)).unwrap();
    let half = g.map(&[w], |e| &e[0] * 0.5).unwrap();
    let h = g.matmul(x, half).unwrap();
    let s = g.softmax(h, 1).unwrap();
    g.rename(s, "weights").unwrap();
    let y = g.matmul(s, w).unwrap();
    g.output("y", y).unwrap();
    g.finish().unwrap()
}

fn on(graph: &Graph, batch: usize) -> RunGraph {
    RunGraph::new(graph, &[&random_tensor(DType::F32, &[batch, 16], batch as u64)])
}

#[test]
fn a_graph_whose_peak_does_not_fit_is_refused_before_any_work() {
    let (graph, mut plans) = (network(), Plans::default());
    let op = on(&graph, 64);
    let peak = plan_of(&op, &PROCESSOR).unwrap().peak.bytes(false);
    let mut executor = Counting { free_bytes: Some(peak - 1), ..Counting::default() };
    let refused = plans.get(&op, &PROCESSOR, &mut executor).err().unwrap();
    assert!(
        matches!(&refused, Error::OutOfMemory { asked, free, .. } if (*asked, *free) == (peak, peak - 1)),
        "{refused}"
    );
    assert!(refused.to_string().contains("network") && refused.to_string().contains("between steps"), "{refused}");
    assert_eq!((executor.constants, executor.steps), (0, 0));
    executor.free_bytes = Some(peak);
    assert!(plans.get(&op, &PROCESSOR, &mut executor).is_ok());
    // A cached plan already has its memory.
    executor.free_bytes = Some(0);
    assert!(plans.get(&op, &PROCESSOR, &mut executor).is_ok());
    assert!(plans.get(&on(&graph, 65), &PROCESSOR, &mut executor).is_err());
}

#[test]
fn a_device_that_is_too_small_says_so() {
    let (graph, id) = (network(), DeviceId { api: Api::CPU, index: 0 });
    let op = on(&graph, 64);
    let mut device = DeviceInfo::new(id, "small", DeviceKind::DiscreteGpu);
    assert_eq!(fits(&op, &PROCESSOR, &device), Support::Yes, "nobody knows how much it has");
    let peak = plan_of(&op, &PROCESSOR).unwrap().peak;
    for shares_host_memory in [false, true] {
        device.shares_host_memory = shares_host_memory;
        device.memory_total_bytes = Some(peak.bytes(shares_host_memory));
        assert_eq!(fits(&op, &PROCESSOR, &device), Support::Yes);
        device.memory_total_bytes = Some(peak.bytes(shares_host_memory) - 1);
        let Support::No(reason) = fits(&op, &PROCESSOR, &device) else { panic!("it is too small") };
        assert!(reason.contains("at its peak"), "{reason}");
    }
}

#[test]
fn plans_are_made_once_for_a_sort_of_device() {
    let graph = network();
    let (first, again) = (on(&graph, 3), on(&graph, 3));
    let same =
        |a: &Facts, b: &Facts| std::sync::Arc::ptr_eq(&plan_of(&first, a).unwrap(), &plan_of(&again, b).unwrap());
    assert!(same(&PROCESSOR, &PROCESSOR) && !same(&PROCESSOR, &GPU) && same(&GPU, &GPU));
    let (mut plans, mut executor) = (Plans::default(), Counting::default());
    for batch in [3, 3, 4, 3] {
        let op = on(&graph, batch);
        let ready = plans.get(&op, &PROCESSOR, &mut executor).unwrap();
        run(ready, &op, &mut executor).unwrap();
    }
    assert_eq!(executor.constants, 1, "all sizes share it");
}

#[test]
fn a_step_that_fails_names_its_node_and_leaves_nothing_behind() {
    let graph = network();
    let (mut plans, mut executor) = (Plans::default(), Counting::default());
    let op = on(&graph, 5);
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    let steps = plan_of(&op, &Facts::UNFUSED).unwrap().steps.len();
    for failing in (0..steps).chain([usize::MAX]) {
        let ready = plans.get(&op, &Facts::UNFUSED, &mut executor).unwrap();
        executor.failing = Some(failing);
        let ran = run(ready, &op, &mut executor);
        executor.failing = None;
        match ran {
            Err(error) => assert!(matches!(&error, Error::Node { .. }) && failing < steps, "{error}"),
            Ok(value) => {
                assert_eq!(failing, usize::MAX);
                let close = panoply_conformance::Tolerance::Close { relative: 1e-6, absolute: 1e-6 };
                let pairs = expected.tensors().zip(value.tensors());
                pairs.for_each(|(a, b)| assert_eq!(difference(a, b, close), None));
            }
        }
    }
    let named = |failing: usize| {
        let (mut plans, mut executor) = (Plans::default(), Counting::default());
        let ready = plans.get(&op, &Facts::UNFUSED, &mut executor).unwrap();
        executor.failing = Some(failing);
        run(ready, &op, &mut executor).unwrap_err().to_string()
    };
    assert!((0..steps).any(|step| named(step).contains("weights = softmax")));
}

/// Repeated runs on different inputs, of graphs of every form.
#[test]
fn runs_that_are_repeated_give_their_own_answers() {
    for seed in 0..300 {
        let RandomGraph { op, tolerance } = random_graph(seed);
        let (mut plans, mut executor) = (Plans::default(), Counting::default());
        let inputs = |salt: u64| -> Vec<Tensor> {
            let other = |tensor: &Tensor| random_tensor(tensor.dtype(), tensor.shape(), seed * 7 + salt);
            op.inputs().iter().map(other).collect()
        };
        for salt in 0..3 {
            let inputs = inputs(salt);
            let op = RunGraph::new(op.graph(), &inputs.iter().collect::<Vec<_>>());
            let expected = reference(&op.clone().into_op().unwrap()).unwrap();
            let ready = plans.get(&op, &PROCESSOR, &mut executor).unwrap();
            let got = run(ready, &op, &mut executor).unwrap();
            for (expected, got) in expected.tensors().zip(got.tensors()) {
                assert_eq!(difference(expected, got, tolerance), None, "seed {seed}, run {salt}");
            }
        }
    }
}

/// The sum of a constant stretched along a symbol has one length for all sizes, and another value
/// for each.
#[test]
fn results_of_constants_that_depend_on_sizes_are_computed_for_each() {
    let mut g = Graph::builder("sums");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 16.into()]).unwrap();
    let c = g.constant("c", &random_tensor(DType::F32, &[16], 1)).unwrap();
    let stretched = g.broadcast(c, &[batch, 16.into()]).unwrap();
    let sum = g.reduce(Reduction::Sum, stretched, &[0]).unwrap();
    let y = g.mul(x, sum).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    for facts in [PROCESSOR, GPU, Facts::UNFUSED] {
        let mut plans = Plans::default();
        [2, 5, 3, 2].into_iter().for_each(|size| expect_answer(&mut plans, &facts, &on(&graph, size)));
    }
}

/// Two products that share a weight are joined, each with its own others.
#[test]
fn weights_that_are_joined_twice_are_joined_with_their_own() {
    for widths in [[16, 16, 16], [16, 8, 24]] {
        let mut g = Graph::builder("joined");
        let (x, z) =
            (g.input("x", DType::F32, &[4.into(), 16.into()]), g.input("z", DType::F32, &[4.into(), 16.into()]));
        let (x, z) = (x.unwrap(), z.unwrap());
        let weights = [0, 1, 2].map(|place| {
            let weight = random_tensor(DType::F32, &[16, widths[place]], place as u64);
            g.constant(&format!("w{place}"), &weight).unwrap()
        });
        for (place, (input, weight)) in [(x, 0), (x, 1), (z, 0), (z, 2)].into_iter().enumerate() {
            let product = g.matmul(input, weights[weight]).unwrap();
            let share = g.softmax(product, 1).unwrap();
            let sum = g.add(share, product).unwrap();
            g.output(&format!("y{place}"), sum).unwrap();
        }
        let graph = g.finish().unwrap();
        let inputs = [7, 8].map(|seed| random_tensor(DType::F32, &[4, 16], seed));
        let op = RunGraph::new(&graph, &[&inputs[0], &inputs[1]]);
        [PROCESSOR, GPU].iter().for_each(|facts| expect_answer(&mut Plans::default(), facts, &op));
    }
}

/// Engines take host tensors only if they are contiguous.
#[test]
fn a_view_of_a_constant_that_no_step_reads_is_handed_out_contiguous() {
    let mut g = Graph::builder("view");
    let x = g.input("x", DType::F32, &[4.into(), 16.into()]).unwrap();
    let c = g.constant("c", &random_tensor(DType::F32, &[4, 6], 1)).unwrap();
    let (y, permuted) = (g.neg(x).unwrap(), g.permute(c, &[1, 0]).unwrap());
    g.output("y", y).unwrap();
    g.output("permuted", permuted).unwrap();
    let graph = g.finish().unwrap();
    let op = on(&graph, 4);
    let (mut plans, mut executor) = (Plans::default(), Counting::default());
    let ready = plans.get(&op, &GPU, &mut executor).unwrap();
    assert!(run(ready, &op, &mut executor).unwrap().tensors().all(Tensor::is_contiguous));
    expect_answer(&mut plans, &GPU, &op);
}

fn expect_answer(plans: &mut Plans, facts: &Facts, op: &RunGraph) {
    let mut executor = Counting::default();
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    let ready = plans.get(op, facts, &mut executor).unwrap();
    let got = run(ready, op, &mut executor).unwrap();
    let close = panoply_conformance::Tolerance::Close { relative: 1e-5, absolute: 1e-5 };
    let pairs = expected.tensors().zip(got.tensors());
    pairs.for_each(|(expected, got)| assert_eq!(difference(expected, got, close), None));
}

//! The time and the memory of planning large graphs: mixed ops, one chain, diamonds. Planning is
//! all work of an engine before the first step runs: the plan, and the tables that its runs fill.
//!
//! Measures a release build: `cargo test --release -p panoply-graph --test planning -- --ignored
//! --nocapture`.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "support/computed.rs"]
mod computed;
#[path = "support/targets.rs"]
mod targets;

use std::time::Duration;

use computed::computed;
use panoply_core::expr::BinaryOp;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Op, Result, Tensor, Value};
use panoply_counting_allocator::{Counting, forget_peak, live_bytes, peak_bytes};
use panoply_graph::{Destination, Executor, Facts, Plans, Room};
use targets::{GPU, PROCESSOR};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of nodes that are planned within the bounds below.
const NODES: usize = 100_000;
/// The most bytes that recording and planning them may hold at once.
const BYTES_MAX: usize = 150_000_000;
/// The longest that planning them may take in a release build.
const SECONDS_MAX: f64 = 1.0;
/// The most that planning twice the nodes may take, as a multiple of planning them once.
const DOUBLE_MAX: f64 = 3.0;
/// How often planning is measured before it counts as slower than linear.
const ATTEMPTS: usize = 3;

type Form = fn(&mut GraphBuilder, NodeId, usize) -> Result<NodeId>;

/// Products, reductions, views, maps that fuse and maps that do not.
fn mixed(g: &mut GraphBuilder, x: NodeId, count: usize) -> Result<NodeId> {
    let weights = Tensor::from_vec(vec![0.5_f32; 64], [8, 8])?;
    let weights = g.constant("weights", &weights)?;
    let mut last = x;
    // Twelve nodes each time.
    for number in 0..count / 12 {
        let product = g.matmul(last, weights)?;
        let turned = g.permute(product, &[1, 0])?;
        let scaled = g.with_number(BinaryOp::Mul, turned, 1.0 + (number % 97) as f64)?;
        let bent = g.tanh(scaled)?;
        let sums = g.op(&[bent], |t| Reduce::new(&t[0], Reduction::Sum).axes(&[1]).keep_dims())?;
        let wide = g.broadcast(sums, &[8.into(), 8.into()])?;
        let shares = g.softmax(wide, 1)?;
        let flat = g.reshape(shares, &[64.into()])?;
        let part = g.slice(flat, 0, 0, 64, 1)?;
        let again = g.reshape(part, &[8.into(), 8.into()])?;
        let sum = g.add(again, last)?;
        last = g.relu(sum)?;
    }
    Ok(last)
}

fn chain(g: &mut GraphBuilder, x: NodeId, count: usize) -> Result<NodeId> {
    (0..count).try_fold(x, |x, number| g.with_number(BinaryOp::Mul, x, number as f64))
}

fn unfused(g: &mut GraphBuilder, x: NodeId, count: usize) -> Result<NodeId> {
    (0..count).try_fold(x, |x, _| g.softmax(x, 1))
}

fn diamonds(g: &mut GraphBuilder, x: NodeId, count: usize) -> Result<NodeId> {
    (0..count / 3).try_fold(x, |x, _| {
        let (left, right) = (g.tanh(x)?, g.neg(x)?);
        g.add(left, right)
    })
}

/// In the mixed form half of the nodes are ops, as in models; in the others every node is an op. No
/// two ops of the chain are equal, as each has a number of its own.
const FORMS: [(&str, Form); 4] =
    [("mixed ops", mixed), ("one chain", chain), ("a chain that does not fuse", unfused), ("diamonds", diamonds)];

fn built(form: Form, count: usize) -> Graph {
    let mut g = Graph::builder("large");
    let x = g.input("x", DType::F32, &[Dim::fixed(8), Dim::fixed(8)]).unwrap();
    let y = form(&mut g, x, count).unwrap();
    g.output("y", y).unwrap();
    g.finish().unwrap()
}

/// How long planning takes, and how much recording and planning hold at once.
fn measured(form: Form, count: usize, facts: &Facts) -> (Duration, Duration, usize) {
    let before = live_bytes();
    forget_peak();
    let start = computed();
    let graph = built(form, count);
    let recorded = computed() - start;
    let input = Tensor::zeros(DType::F32, [8, 8]).unwrap();
    let op = RunGraph::new(&graph, &[&input]);
    let mut plans = Plans::default();
    let start = computed();
    let ready = plans.get(&op, facts, &mut Nothing).unwrap();
    let planned = computed() - start;
    assert!(!ready.held.plan.steps.is_empty());
    (recorded, planned, peak_bytes() - before)
}

/// An engine that has memory and runs nothing.
struct Nothing;

impl Executor for Nothing {
    fn room(&mut self) -> Room {
        Room { place: "nowhere".to_owned(), free_bytes: None, shares_host_memory: true }
    }

    fn prepare(&mut self, _arena_bytes: usize) -> Result<()> {
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        Ok(tensor.clone())
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        Ok(tensor.clone())
    }

    fn step(&mut self, op: &Op, _outputs: &[Destination]) -> Result<Value> {
        panic!("{op:?} is no part of planning")
    }
}

/// One test, since the allocator counts for the whole process.
#[test]
fn planning_is_linear_and_lean() {
    for (name, form) in FORMS {
        for (device, facts) in [("CPU", PROCESSOR), ("GPU", GPU)] {
            // Programs beside it may slow one attempt down. Planning that is not linear is slow in
            // every attempt.
            let is_linear = (0..ATTEMPTS).any(|_| {
                let (_, half, _) = measured(form, NODES / 2, &facts);
                let (recorded, whole, bytes) = measured(form, NODES, &facts);
                let mib = bytes as f64 / f64::from(1 << 20);
                println!("{name} for a {device}: recorded in {recorded:?}, planned in {whole:?}, {mib:.1} MiB at most");
                println!("{name} for a {device}: half the nodes are planned in {half:?}");
                assert!(bytes <= BYTES_MAX, "{name}: {bytes} bytes, expected at most {BYTES_MAX}");
                whole < half.mul_f64(DOUBLE_MAX) + Duration::from_millis(500)
            });
            assert!(is_linear, "{name} for a {device}: twice the nodes take more than {DOUBLE_MAX} times as long");
        }
    }
}

#[test]
#[ignore = "a claim about speed: run it alone, in a release build"]
fn a_hundred_thousand_nodes_are_planned_in_a_second() {
    for (name, form) in FORMS {
        for (device, facts) in [("CPU", PROCESSOR), ("GPU", GPU)] {
            let (recorded, planned, bytes) = measured(form, NODES, &facts);
            let mib = bytes as f64 / f64::from(1 << 20);
            println!("{name} for a {device}: recorded in {recorded:?}, planned in {planned:?}, {mib:.1} MiB at most");
            assert!(planned.as_secs_f64() <= SECONDS_MAX, "{name} for a {device}: {planned:?}");
        }
    }
}

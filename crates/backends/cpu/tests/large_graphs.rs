//! Random graphs of many thousand nodes of integers: their results are exact, so a value that is
//! overwritten, moved or fused wrongly is noticed however many nodes follow. `cargo xtask test
//! --all` runs a million nodes.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::time::Duration;

use panoply_conformance::few_or_all;
use panoply_conformance::reference::reference;
use panoply_conformance::values::Random;
use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Reduce, Reduction, Sort, TopK, Transpose};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Backend, DType, Engine, Item, Op, OpenOptions, Operation, Result, Tensor, Value};
use panoply_cpu::CpuBackend;

const ROWS: usize = 4;
const COLUMNS: usize = 6;
/// Runs of each graph, each with other inputs. All outputs are held until the last has ended.
const RUNS: usize = 3;
/// Outputs that are taken from anywhere in the graph.
const OUTPUTS: usize = 60;

struct Making {
    random: Random,
    g: GraphBuilder,
    /// Nodes of `ROWS` by `COLUMNS` integers.
    nodes: Vec<NodeId>,
}

impl Making {
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// A recent node in most cases, and any node in some, which then lives for long.
    fn pick(&mut self) -> NodeId {
        let back = match self.below(10) {
            0 => self.below(self.nodes.len()),
            _ => self.below(self.nodes.len().min(12)),
        };
        self.nodes[self.nodes.len() - 1 - back]
    }

    /// Adds some nodes that end in one of `ROWS` by `COLUMNS` integers.
    fn step(&mut self) -> Result<NodeId> {
        let (x, y, number) = (self.pick(), self.pick(), self.below(7) as f64 - 3.0);
        let whole = [ROWS.into(), COLUMNS.into()];
        match self.below(12) {
            0 => self.g.unary([UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Relu][number.abs() as usize % 3], x),
            1 | 2 => self.g.binary([BinaryOp::Add, BinaryOp::Sub][number.abs() as usize % 2], x, y),
            3 => self.g.binary([BinaryOp::Min, BinaryOp::Max][number.abs() as usize % 2], x, y),
            4 => self.g.with_number(BinaryOp::Mul, x, number),
            5 => {
                let z = self.pick();
                self.g.ternary(TernaryOp::MulAdd, x, y, z)
            }
            6 => {
                let turned = self.g.permute(x, &[1, 0])?;
                self.g.reshape(turned, &whole)
            }
            7 => {
                let turned = self.g.op(&[x], |t| Transpose::new(&t[0]))?;
                let other = self.g.permute(y, &[1, 0])?;
                let sum = self.g.add(turned, other)?;
                self.g.permute(sum, &[1, 0])
            }
            8 => {
                // The second output has as many bytes as the first. Some graphs read it alone.
                let (values, places) = self.g.op_pair(&[x], |t| TopK::new(&t[0], COLUMNS).axis(1))?;
                let places = self.g.cast(places, DType::I32)?;
                match self.below(3) {
                    0 => Ok(values),
                    1 => Ok(places),
                    _ => self.g.add(values, places),
                }
            }
            9 => {
                let axis = self.below(2);
                self.g.op(&[x], |t| Sort::new(&t[0]).axis(axis))
            }
            10 => {
                let axis = self.below(2);
                let extreme = self.g.op(&[x], |t| Reduce::new(&t[0], Reduction::Max).axes(&[axis]).keep_dims())?;
                let wide = self.g.broadcast(extreme, &whole)?;
                self.g.sub(wide, y)
            }
            _ => {
                let row = self.below(ROWS);
                let row = self.g.slice(x, 0, row, row + 1, 1)?;
                self.g.add(row, y)
            }
        }
    }
}

fn graph(seed: u64, steps: usize) -> Graph {
    let mut g = Graph::builder("large");
    let inputs: Vec<NodeId> = (0..3)
        .map(|input| g.input(&format!("x{input}"), DType::I32, &[ROWS.into(), COLUMNS.into()]).unwrap())
        .collect();
    let mut making = Making { random: Random::new(seed), g, nodes: inputs };
    for _ in 0..steps {
        let node = making.step().unwrap();
        making.nodes.push(node);
    }
    let last = *making.nodes.last().unwrap();
    making.g.output("last", last).unwrap();
    for output in 0..OUTPUTS {
        let node = making.nodes[making.random.below(making.nodes.len() as u64) as usize];
        making.g.output(&format!("y{output}"), node).unwrap();
    }
    making.g.finish().unwrap()
}

fn run(engine: &mut dyn Engine, op: &Op) -> Value {
    engine.submit(&mut vec![Item { token: 1, op: op.clone() }]);
    let mut finished = Vec::new();
    while finished.is_empty() {
        engine.poll(&mut finished, Duration::from_millis(10));
    }
    finished.remove(0).result.unwrap()
}

fn numbers(value: &Value) -> Vec<Vec<i32>> {
    value.tensors().map(|tensor| tensor.to_vec().unwrap()).collect()
}

#[test]
fn large_graphs_of_integers_are_exact() {
    let (graphs, steps) = few_or_all((2, 5_000), (16, 40_000));
    let backend = CpuBackend::new();
    let device = &backend.discover().unwrap()[0];
    let mut engine = backend.open(device, &OpenOptions::default()).unwrap();
    let mut total = 0;
    for seed in 0..graphs {
        let graph = graph(seed, steps);
        total += graph.nodes().len();
        let op = |set: usize| {
            let values =
                |input: usize| (0..ROWS * COLUMNS).map(move |x| ((x * 37 + input * 11 + set * 101) % 97) as i32 - 48);
            let tensor = |input| Tensor::from_vec(values(input).collect(), [ROWS, COLUMNS]).unwrap();
            let inputs: Vec<Tensor> = (0..3).map(tensor).collect();
            RunGraph::new(&graph, &inputs.iter().collect::<Vec<_>>()).into_op().unwrap()
        };
        let held: Vec<Value> = (0..RUNS).map(|set| run(engine.as_mut(), &op(set))).collect();
        for (set, held) in held.iter().enumerate() {
            let (expected, got) = (numbers(&reference(&op(set)).unwrap()), numbers(held));
            let wrong = expected.iter().zip(&got).position(|(expected, got)| expected != got);
            assert_eq!(wrong, None, "an output of run {set} of the graph of seed {seed} is wrong");
        }
    }
    println!("{total} nodes");
}

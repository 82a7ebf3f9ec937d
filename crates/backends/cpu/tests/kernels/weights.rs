//! Weights that a graph's products have packed: correct each time, and never confused with those of
//! a later graph.

use panoply_conformance::run_one;
use panoply_conformance::values::random_tensor;
use panoply_core::graph::Graph;
use panoply_core::op::compute::MatMul;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Backend, DType, OpenOptions, Operation, Part, Tensor, Value};
use panoply_cpu::CpuBackend;

/// Column counts that are not whole vectors, so that the packed product is used.
const SIZES: [usize; 2] = [333, 517];

fn graph(weights: &Tensor) -> Graph {
    let mut g = Graph::builder("product");
    let rows = g.symbol("rows").unwrap();
    let x = g.input("x", DType::F32, &[rows, SIZES[0].into()]).unwrap();
    let w = g.constant("w", weights).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    g.finish().unwrap()
}

fn bits(value: Value) -> Vec<u32> {
    let tensor = match value {
        Value::List(mut parts) => match parts.remove(0) {
            Part::Tensor(tensor) => tensor,
            other => panic!("a part that is no tensor: {other:?}"),
        },
        value => value.into_tensor().unwrap(),
    };
    tensor.to_vec::<f32>().unwrap().iter().map(|number| number.to_bits()).collect()
}

#[test]
fn weights_are_those_of_the_graph_that_runs() {
    let backend = CpuBackend::new();
    let info = backend.discover().unwrap().remove(0);
    let mut engine = backend.open(&info, &OpenOptions::default()).unwrap();
    // Weights of the same size one after the other: the allocator returns the same address again.
    for seed in 0..8 {
        let weights = random_tensor(DType::F32, &SIZES, seed);
        let graph = graph(&weights);
        for rows in [64, 2, 64, 600] {
            let x = random_tensor(DType::F32, &[rows, SIZES[0]], seed + rows as u64);
            let expected = bits(run_one(&mut *engine, MatMul::new(&x, &weights).into_op().unwrap()).unwrap());
            let got = bits(run_one(&mut *engine, RunGraph::new(&graph, &[&x]).into_op().unwrap()).unwrap());
            assert!(expected == got, "{rows} rows of graph {seed}");
        }
    }
}

//! Hand-written graphs for which an engine once gave a wrong result: each with sets of inputs and
//! exact judges.

use panoply_core::expr::BinaryOp;
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Reduce, Reduction, SortPairs, TopK, Transpose};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Operation, Result, Tensor};

use crate::reference::reference;
use crate::repeat::RUNS;
use crate::suite_graph::SuiteGraph;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

/// Number of input sets of each graph.
const SETS: u64 = RUNS as u64;

type Record = fn(&mut GraphBuilder) -> Result<Vec<NodeId>>;

/// All graphs, each with a name that describes its test.
pub fn past_failures() -> Result<Vec<(&'static str, SuiteGraph)>> {
    let all: [(&'static str, Record); 8] = [
        ("a view of an input among outputs", view_of_an_input),
        ("a stretched view of an output", stretched_output),
        ("one node given out twice, once as a view", given_out_twice),
        ("topk: values given out, indices read later", topk_indices_later),
        ("topk: indices given out, values read later", topk_values_later),
        ("sort_pairs: keys given out, values read later", sorted_values_later),
        ("views alone", views_alone),
        ("steps of large tensors, with views among their outputs", large_tensors),
    ];
    all.into_iter().map(|(name, record)| Ok((name, recorded(record)?))).collect()
}

/// `neg(m)`, `permute(x)` and `abs(m)` of `m = max(x)`.
fn view_of_an_input(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::F32, &[5.into(), 2.into(), 1.into()])?;
    let most = g.op(&[x], |t| Reduce::new(&t[0], Reduction::Max).axes(&[2]))?;
    let (minus, turned) = (g.neg(most)?, g.permute(x, &[1, 0, 2])?);
    let positive = g.abs(most)?;
    Ok(vec![minus, turned, positive])
}

fn stretched_output(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::F32, &[])?;
    let minus = g.neg(x)?;
    let back = g.neg(minus)?;
    let square = g.mul(back, back)?;
    let stretched = g.broadcast(square, &[3.into()])?;
    let bounded = g.relu(square)?;
    Ok(vec![stretched, bounded, minus])
}

fn given_out_twice(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::I32, &[4.into(), 3.into()])?;
    let sum = g.op(&[x], |t| Reduce::new(&t[0], Reduction::Max).axes(&[1]).keep_dims())?;
    let doubled = g.with_number(BinaryOp::Mul, sum, 2.0)?;
    let turned = g.permute(doubled, &[1, 0])?;
    let least = g.op(&[x], |t| Reduce::new(&t[0], Reduction::Min).axes(&[0]))?;
    Ok(vec![doubled, turned, doubled, least])
}

fn topk_indices_later(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::F32, &[7.into(), 33.into()])?;
    let (values, indices) = g.op_pair(&[x], |t| TopK::new(&t[0], 3))?;
    let most = g.op(&[indices], |t| Reduce::new(&t[0], Reduction::Max).axes(&[1]))?;
    Ok(vec![values, most])
}

fn topk_values_later(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::F32, &[7.into(), 33.into()])?;
    let (values, indices) = g.op_pair(&[x], |t| TopK::new(&t[0], 3))?;
    let most = g.op(&[values], |t| Reduce::new(&t[0], Reduction::Max).axes(&[1]))?;
    Ok(vec![indices, most])
}

fn sorted_values_later(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let keys = g.input("keys", DType::F32, &[5.into(), 40.into()])?;
    let values = g.input("values", DType::U32, &[5.into(), 40.into()])?;
    let (keys, values) = g.op_pair(&[keys, values], |t| SortPairs::new(&t[0], &t[1]))?;
    let first = g.op(&[values], |t| Reduce::new(&t[0], Reduction::Max).axes(&[1]))?;
    Ok(vec![keys, first])
}

fn views_alone(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::I32, &[1.into(), 1.into()])?;
    let y = g.input("y", DType::F32, &[3.into(), 4.into()])?;
    let (flat, turned) = (g.reshape(x, &[1.into()])?, g.permute(y, &[1, 0])?);
    let part = g.slice(y, 1, 1, 4, 2)?;
    Ok(vec![flat, turned, x, part])
}

/// Tensors so large that a device records a graph with their addresses, and copies none of them.
fn large_tensors(g: &mut GraphBuilder) -> Result<Vec<NodeId>> {
    let x = g.input("x", DType::F32, &[300.into(), 320.into()])?;
    let mut least = x;
    let mut outputs = vec![g.permute(x, &[1, 0])?];
    for _ in 0..4 {
        let turned = g.op(&[least], |t| Transpose::new(&t[0]))?;
        let most = g.op(&[turned], |t| Reduce::new(&t[0], Reduction::Max).axes(&[1]).keep_dims())?;
        let below = g.sub(turned, most)?;
        least = g.op(&[below], |t| Transpose::new(&t[0]))?;
    }
    outputs.extend([least, g.reshape(least, &[(300 * 320).into()])?]);
    Ok(outputs)
}

fn recorded(record: Record) -> Result<SuiteGraph> {
    let mut g = Graph::builder("past");
    let outputs = record(&mut g)?;
    for (place, node) in outputs.iter().enumerate() {
        g.output(&format!("y{place}"), *node)?;
    }
    let graph = g.finish()?;
    let sets = (0..SETS).map(|set| {
        let inputs = graph.inputs().iter().zip(0_u64..).map(|(input, place)| {
            let node = &graph.nodes()[*input];
            let dims: Vec<usize> = node.dims.iter().map(|dim| dim.as_fixed().unwrap_or(1)).collect();
            random_tensor(node.dtype, &dims, set << 8 | place)
        });
        let inputs: Vec<Tensor> = inputs.collect();
        let op = RunGraph::new(&graph, &inputs.iter().collect::<Vec<_>>()).into_op()?;
        let expected = reference(&op)?;
        Ok((inputs, expected))
    });
    let sets = sets.collect::<Result<_>>()?;
    Ok(SuiteGraph { judges: vec![Tolerance::Exact.into(); outputs.len()], graph, sets, own: Vec::new() })
}

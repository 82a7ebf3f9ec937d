//! Tests of recording, inference, errors that name the node, and instances.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use super::*;
use crate::backend::Support;
use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::expr::BinaryOp;
use crate::op::compute::{Attention, Reduction, Softmax, TopK};
use crate::op::graph::RunGraph;
use crate::op::signal::Fft;
use crate::op::{Describe, Op, Operation};
use crate::part::Value;

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, dims).unwrap()
}

fn text(graph: &Graph, node: usize) -> String {
    format!("{}{}", graph.nodes()[node].dtype, graph.0.nodes.dims_text(&graph.nodes()[node].dims))
}

/// The sample sizes of symbols may also occur as fixed sizes in a program.
#[test]
fn numbers_that_are_sample_sizes_stay_numbers() {
    let mut g = Graph::builder("test");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::Complex64, &[batch, 1009.into()]).unwrap();
    let y = g.op(&[x], |t| Fft::new(&t[0])).unwrap();
    let flat = g.reshape(x, &[batch * 1009]).unwrap();
    let z = g.op(&[flat], |t| Fft::new(&t[0])).unwrap();
    g.output("y", y).unwrap();
    g.output("z", z).unwrap();
    let graph = g.finish().unwrap();
    assert_eq!((text(&graph, 1), text(&graph, 3)), ("c64[batch, 1009]".to_owned(), "c64[1009*batch]".to_owned()));
}

#[test]
fn shapes_and_types_are_inferred_with_symbols() {
    let mut g = Graph::builder("test");
    let (batch, seq) = (g.symbol("batch").unwrap(), g.symbol("seq").unwrap());
    let x = g.input("x", DType::F32, &[batch, seq, 64.into()]).unwrap();
    let w = g.constant("w", &zeros(&[64, 3])).unwrap();
    let y = g.matmul(x, w).unwrap();
    let flat = g.reshape(y, &[batch * seq, 3.into()]).unwrap();
    let half = g.cast(flat, DType::F16).unwrap();
    let sum = g.reduce(Reduction::Mean, half, &[1]).unwrap();
    let (best, place) = g.op_pair(&[flat], |t| TopK::new(&t[0], 2)).unwrap();
    let turned = g.permute(best, &[1, 0]).unwrap();
    let first = g.slice(turned, 0, 0, 1, 1).unwrap();
    for (name, node) in [("sum", sum), ("place", place), ("first", first)] {
        g.output(name, node).unwrap();
    }
    let graph = g.finish().unwrap();
    let outputs: Vec<String> = graph.outputs().iter().map(|(_, node)| text(&graph, *node)).collect();
    assert_eq!(outputs, ["f16[batch*seq]", "u32[batch*seq, 2]", "f32[1, batch*seq]"]);
    assert_eq!(text(&graph, 2), "f32[batch, seq, 3]");
    let sizes = graph.sizes_of(&[zeros(&[2, 5, 64])]).unwrap();
    let instance = graph.instance(&sizes).unwrap();
    assert_eq!(instance.outputs[1].shape().dims(), [10, 2]);
    assert_eq!(instance.steps.len(), 4, "views are no steps");
    assert!(Arc::ptr_eq(&instance, &graph.instance(&sizes).unwrap()));
}

#[test]
fn attention_is_recorded_over_symbolic_batches_and_sequences() {
    let mut g = Graph::builder("test");
    let (batch, seq) = (g.symbol("batch").unwrap(), g.symbol("seq").unwrap());
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, DType::F32, &[batch, 4.into(), seq, 16.into()]).unwrap());
    let y = g.op(&[q, k, v], |t| Attention::new(&t[0], &t[1], &t[2])).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    assert_eq!(text(&graph, graph.outputs()[0].1), "f32[batch, 4, seq, 16]");
}

#[test]
fn errors_name_the_node() {
    let mut g = Graph::builder("test");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 784.into()]).unwrap();
    let w = g.constant("w1", &zeros(&[512, 10])).unwrap();
    let refused = g.matmul(x, w).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Caller);
    let message = refused.to_string();
    assert!(message.contains("x: f32[batch, 784]") && message.contains("w1: f32[512, 10]"), "{message}");
    let message = g.reshape(x, &[batch, 10.into()]).unwrap_err().to_string();
    assert!(message.contains("reshape(x: f32[batch, 784])") && message.contains("[batch, 10]"), "{message}");
    assert!(g.broadcast(x, &[3.into(), 784.into()]).is_err());
    assert!(g.permute(x, &[0, 0]).is_err() && g.permute(x, &[0]).is_err() && g.permute(x, &[0, 2]).is_err());
    assert!(g.slice(x, 1, 0, 785, 1).is_err() && g.slice(x, 2, 0, 1, 1).is_err() && g.slice(x, 1, 3, 2, 1).is_err());
    assert!(g.slice(x, 1, 0, 3, 0).is_err());
    // A length that is not a product of symbols is refused when it is recorded.
    let line = g.input("line", DType::F32, &[batch]).unwrap();
    let message = g.op(&[line], |t| Fft::new(&t[0])).unwrap_err().to_string();
    assert!(message.contains("fft") && message.contains("symbol"), "{message}");
    assert!(g.rename(x, "w1").is_err() && g.rename(x, "1").is_err() && g.rename(x, "").is_err());
    let mut other = Graph::builder("other");
    assert!(other.relu(x).unwrap_err().to_string().contains("another"));
    assert!(other.finish().unwrap_err().to_string().contains("at least one"));
    let captured = zeros(&[2]);
    assert!(g.op(&[x], |_| Softmax::new(&captured)).is_err());
    assert!(g.op(&[x], |t| Softmax::new(&t[0].transpose().unwrap())).is_err());
    // The refused nodes were removed.
    let y = g.softmax(x, 1).unwrap();
    g.output("y", y).unwrap();
    assert_eq!(g.finish().unwrap().nodes().len(), 4);
}

/// Regression: a symbol that no input binds had the size 1, without an error.
#[test]
fn a_symbol_that_no_input_binds_is_refused() {
    let stretched = |dims: &[Dim], make: &dyn Fn(&mut GraphBuilder, NodeId, Dim) -> Result<NodeId>| {
        let mut g = Graph::builder("test");
        let (batch, seq) = (g.symbol("batch").unwrap(), g.symbol("seq").unwrap());
        let dims: Vec<Dim> = dims.iter().copied().chain([batch]).collect();
        let x = g.input("x", DType::F32, &dims).unwrap();
        let y = make(&mut g, x, seq).unwrap();
        g.output("y", y).unwrap();
        g.finish()
    };
    let refused = stretched(&[1.into()], &|g, x, seq| g.broadcast(x, &[seq, Dim::symbol(0)])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Caller);
    assert!(matches!(&refused, Error::UnboundSymbol { symbol, .. } if symbol == "seq"), "{refused:?}");
    let message = refused.to_string();
    assert!(message.contains("broadcast(x: f32[1, batch])") && message.contains("f32[seq, batch]"), "{message}");
    // A node that no output needs, a reshape without elements, and a product of symbols.
    let unused = stretched(&[1.into()], &|g, x, seq| g.broadcast(x, &[seq, Dim::symbol(0)]).and(Ok(x)));
    let empty = stretched(&[0.into()], &|g, x, seq| g.reshape(x, &[seq, 0.into()]));
    let product = stretched(&[], &|g, x, seq| g.input("z", DType::F32, &[seq * Dim::symbol(0)]).and(Ok(x)));
    for refused in [unused, empty, product] {
        assert!(matches!(&refused, Err(Error::UnboundSymbol { symbol, .. }) if symbol == "seq"), "{refused:?}");
    }
    // A symbol without nodes has no meaning, and a second input may bind it.
    assert!(stretched(&[1.into()], &|_, x, _| Ok(x)).is_ok());
    let bound = stretched(&[], &|g, x, seq| {
        g.input("z", DType::F32, &[seq]).and_then(|z| g.reshape(z, &[seq, 1.into()])).and_then(|z| g.add(x, z))
    });
    assert!(bound.is_ok());
}

#[test]
fn inputs_are_checked_when_the_graph_runs() {
    let mut g = Graph::builder("test");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 4.into()]).unwrap();
    let y = g.input("y", DType::F32, &[batch, 1.into()]).unwrap();
    let sum = g.add(x, y).unwrap();
    let few = g.slice(sum, 0, 0, 3, 1).unwrap();
    g.output("few", few).unwrap();
    let graph = g.finish().unwrap();
    let run = |x: &Tensor, y: &Tensor| RunGraph::new(&graph, &[x, y]).into_op();
    assert!(run(&zeros(&[3, 4]), &zeros(&[3, 1])).is_ok());
    for (x, y) in [(&[3, 4], &[2, 1]), (&[3, 5], &[3, 1]), (&[2, 4], &[2, 1])] {
        let message = run(&zeros(x), &zeros(y)).unwrap_err().to_string();
        assert!(message.contains("= "), "{message}");
    }
    assert!(RunGraph::new(&graph, &[&zeros(&[3, 4])]).into_op().is_err());
    assert!(run(&Tensor::zeros(DType::F16, [3, 4]).unwrap(), &zeros(&[3, 1])).is_err());
    assert!(run(&zeros(&[3]), &zeros(&[3, 1])).is_err());
}

#[test]
fn an_instance_runs_op_by_op_and_a_batch_may_be_empty() {
    let mut g = Graph::builder("test");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 2.into()]).unwrap();
    let turned = g.permute(x, &[1, 0]).unwrap();
    let flat = g.reshape(turned, &[batch * 2]).unwrap();
    g.output("flat", flat).unwrap();
    g.output("x", x).unwrap();
    let graph = g.finish().unwrap();
    for rows in [0_usize, 3] {
        let x = Tensor::from_vec((0..rows * 2).map(|value| value as f32).collect(), [rows, 2]).unwrap();
        let op = RunGraph::new(&graph, &[&x]);
        let mut ran = 0;
        let outputs = op.instance().unwrap().run(&graph, op.inputs(), &mut |op: &Op| {
            ran += 1;
            let mut copied = None;
            op.for_each_tensor(&mut |tensor| copied = Some(tensor.contiguous().unwrap()));
            Ok(Value::Tensor(copied.unwrap()))
        });
        let outputs = outputs.unwrap();
        let expected: Vec<f32> =
            (0..2).flat_map(|column| (0..rows).map(move |row| (row * 2 + column) as f32)).collect();
        assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected);
        assert_eq!((outputs[1].shape().dims(), ran), ([rows, 2].as_slice(), usize::from(rows > 0)));
    }
}

#[test]
fn rows_are_told_from_what_mixes_them() {
    let build = |mixes: bool| {
        let mut g = Graph::builder("test");
        let batch = g.symbol("batch").unwrap();
        let x = g.input("x", DType::F32, &[batch, 4.into()]).unwrap();
        let w = g.constant("w", &zeros(&[4, 4])).unwrap();
        let h = g.matmul(x, w).unwrap();
        let h = g.softmax(h, usize::from(!mixes)).unwrap();
        let h = g.add(h, x).unwrap();
        g.output("h", h).unwrap();
        g.finish().unwrap()
    };
    assert!(build(false).has_rows() && !build(true).has_rows());
    assert_ne!(build(false).hash(), build(true).hash());
    assert_eq!(build(false).hash(), build(false).hash());
    let graph = build(false);
    let op = RunGraph::new(&graph, &[&zeros(&[2, 4])]);
    assert_eq!(op.batch_key(), RunGraph::new(&graph, &[&zeros(&[7, 4])]).batch_key());
    assert!(op.batch_key().is_some() && op.work() > 0);
}

#[test]
fn a_graph_of_many_nodes_is_recorded_and_instantiated() {
    let mut g = Graph::builder("long");
    let mut x = g.input("x", DType::F32, &[Dim::fixed(3)]).unwrap();
    for _ in 0..100_000 {
        x = g.with_number(BinaryOp::Add, x, 1.0).unwrap();
    }
    g.output("y", x).unwrap();
    let graph = g.finish().unwrap();
    let op = RunGraph::new(&graph, &[&zeros(&[3])]);
    assert_eq!(op.instance().unwrap().steps.len(), 100_000);
}

#[test]
fn a_graph_is_cut_where_a_device_lacks_an_op() {
    let mut g = Graph::builder("cut");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 4.into()]).unwrap();
    let w = g.constant("w", &zeros(&[4, 4])).unwrap();
    let h = g.matmul(x, w).unwrap();
    let turned = g.permute(h, &[1, 0]).unwrap();
    let (best, place) = g.op_pair(&[h], |t| TopK::new(&t[0], 2)).unwrap();
    let y = g.matmul(turned, best).unwrap();
    let y = g.reshape(y, &[8.into()]).unwrap();
    for (name, node) in [("y", y), ("place", place), ("x", x)] {
        g.output(name, node).unwrap();
    }
    let graph = g.finish().unwrap();
    let sizes = graph.sizes_of(&[zeros(&[3, 4])]).unwrap();
    let instance = graph.instance(&sizes).unwrap();
    let has = |lacking: &'static [&'static [&'static str]]| {
        move |device: DeviceId, op: &Op| match lacking[device.index as usize].contains(&op.name()) {
            true => Support::No("it has no kernel".to_owned()),
            false => Support::Yes,
        }
    };
    let parts = instance.parts(&graph, &DEVICES[..2], &has(&[&["topk"], &[]])).unwrap();
    let shape = |parts: &GraphParts| parts.parts.iter().map(|part| part.device.index).collect::<Vec<_>>();
    assert_eq!(shape(&parts), [0, 1, 0]);
    let reason = parts.parts[1].lacks.as_ref().unwrap();
    assert!(reason.contains("topk") && reason.contains("no kernel") && parts.parts[1].graph.nodes().len() == 3);
    assert!(parts.parts[0].lacks.is_none() && parts.parts[2].lacks.is_none());
    assert_eq!(parts.parts.iter().map(|part| part.makes_output).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(parts.parts[0].inputs, [TensorSource::Input(0)]);
    assert_eq!(parts.outputs[1], TensorSource::Output { part: 1, output: 1 });
    assert_eq!(parts.outputs.len(), 3);
    let again = instance.parts(&graph, &DEVICES[..2], &has(&[&[], &[]])).unwrap();
    assert!(Arc::ptr_eq(&parts, &again), "kept for the devices");
    let whole = instance.parts(&graph, &DEVICES[..1], &has(&[&[]])).unwrap();
    assert_eq!((whole.parts.len(), whole.parts[0].lacks.clone()), (1, None));
    // The first device has no op. The other two have all ops only together.
    let three = instance.parts(&graph, &DEVICES, &has(&[&["topk", "matmul"], &["topk"], &["matmul"]])).unwrap();
    assert_eq!(shape(&three), [1, 2, 1]);
    let nobody = [DEVICES[1], DEVICES[2]];
    let refused = instance.parts(&graph, &nobody, &has(&[&[], &["topk"], &["topk"]])).unwrap_err();
    assert!(matches!(&refused, Error::Node { node, .. } if node.contains("topk")), "{refused}");
    assert!(
        refused.to_string().contains("placeholder:1") && refused.to_string().contains("placeholder:2"),
        "{refused}"
    );
}

#[test]
fn cuts_are_bounded() {
    let mut g = Graph::builder("zigzag");
    let mut x = g.input("x", DType::F32, &[Dim::fixed(4)]).unwrap();
    for index in 0..200 {
        x = if index % 2 == 0 { g.softmax(x, 0).unwrap() } else { g.neg(x).unwrap() };
    }
    g.output("y", x).unwrap();
    let graph = g.finish().unwrap();
    let instance = graph.instance(&graph.sizes_of(&[zeros(&[4])]).unwrap()).unwrap();
    let ask = |device: DeviceId, op: &Op| match (device.index, op.name()) {
        (0, "softmax") => Support::No("it has none".to_owned()),
        _ => Support::Yes,
    };
    let refused = instance.parts(&graph, &DEVICES[..2], &ask).unwrap_err();
    assert!(refused.to_string().contains("fewer than 64"), "{refused}");
}

const DEVICES: [DeviceId; 3] = [NOWHERE, DeviceId { index: 1, ..NOWHERE }, DeviceId { index: 2, ..NOWHERE }];

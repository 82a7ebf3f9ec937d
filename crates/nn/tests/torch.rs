//! Comparison with PyTorch: outputs and gradients of every op, loss and layer, and the steps of
//! optimisers. `fixtures/gradients.py` made the numbers.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::sync::Arc;

use panoply_conformance::reference::reference;
use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Attention, Conv2dBackwardInput, ConvOptions, Gather, LayerNorm, MatMul, Pool2d, Reduction, Resize, ResizeMode,
    Scan, Softmax, Sort, TopK,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Operation, Tensor};
use panoply_cpu::CpuBackend;
use panoply_nn::grad::differentiate;
use panoply_nn::layers as layer;
use panoply_nn::loss::{self, Distance};
use panoply_nn::net::Role;
use panoply_nn::optim::Rule;
use panoply_nn::train::{Session, SessionOptions};
use panoply_nn::{Init, Layer, Mode, Net, Optimiser, Recording, Result};
use panoply_runtime::Runtime;

const FIXTURES: &str = include_str!("../fixtures/gradients.txt");

/// Dimensions and elements.
#[derive(Clone, Debug, Default)]
struct Numbers(Vec<usize>, Vec<f64>);

#[derive(Default)]
struct Case {
    inputs: Vec<(String, Numbers)>,
    output: Numbers,
    gradients: BTreeMap<String, Numbers>,
}

fn cases() -> BTreeMap<String, Case> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    let mut name = String::new();
    for line in FIXTURES.lines() {
        let (kind, rest) = line.split_once(' ').unwrap();
        if kind == "case" {
            name = rest.to_owned();
            cases.insert(name.clone(), Case::default());
            continue;
        }
        let (head, numbers) = rest.split_once(": ").unwrap();
        let (key, dims) = head.rsplit_once(' ').unwrap_or(("", head));
        let dims = dims.split(',').filter(|dim| *dim != "-").map(|dim| dim.parse().unwrap()).collect();
        let numbers = Numbers(dims, numbers.split(' ').map(|number| number.parse().unwrap()).collect());
        let case = cases.get_mut(&name).unwrap();
        match kind {
            "in" => case.inputs.push((key.to_owned(), numbers)),
            "out" => case.output = numbers,
            _ => drop(case.gradients.insert(key.to_owned(), numbers)),
        }
    }
    cases
}

fn tensor(dtype: DType, Numbers(dims, numbers): &Numbers) -> Tensor {
    match dtype {
        DType::F64 => Tensor::from_slice(numbers, dims).unwrap(),
        _ => Tensor::from_vec(numbers.iter().map(|number| *number as f32).collect(), dims).unwrap(),
    }
}

fn to_f64(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>().unwrap(),
        _ => tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
    }
}

fn run(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let op = RunGraph::new(graph, &inputs.iter().collect::<Vec<_>>()).into_op().unwrap();
    reference(&op).unwrap().tensors().cloned().collect()
}

fn dims_of(numbers: &Numbers) -> Vec<Dim> {
    numbers.0.iter().map(|size| (*size).into()).collect()
}

/// The weighted sum of the output's elements.
fn weighted(g: &mut GraphBuilder, y: NodeId, dtype: DType) -> NodeId {
    let sizes: Vec<usize> = g.type_of(y).unwrap().1.iter().map(|dim| dim.as_fixed().unwrap()).collect();
    let weights = (0..sizes.iter().product()).map(|place: usize| ((place * 7 % 11) as f64 - 5.0) / 4.0).collect();
    let weights = g.unnamed_constant(&tensor(dtype, &Numbers(sizes.clone(), weights))).unwrap();
    let products = g.mul(y, weights).unwrap();
    let axes: Vec<usize> = (0..sizes.len()).collect();
    if axes.is_empty() { products } else { g.reduce(Reduction::Sum, products, &axes).unwrap() }
}

fn compare(what: &str, got: &Tensor, expected: &Numbers, limit: f64) {
    assert_eq!(got.shape().dims(), expected.0, "{what}");
    for (place, (got, wanted)) in to_f64(got).iter().zip(&expected.1).enumerate() {
        assert!(
            (got - wanted).abs() <= limit * (1.0 + wanted.abs()),
            "{what}, {place}: {got}, and PyTorch has {wanted}"
        );
    }
}

/// Compares the first output, and the gradients of a scalar with respect to these nodes, with the
/// case's values of the same names.
fn check_graph(
    name: &str,
    case: &Case,
    graph: &Graph,
    scalar: usize,
    by: &[(&str, usize)],
    inputs: &[Tensor],
    limit: f64,
) {
    let nodes: Vec<usize> = by.iter().map(|(_, node)| *node).collect();
    let made = differentiate(graph, scalar, &nodes, &[], None).unwrap();
    let mut g = made.builder;
    g.output("y", made.values[graph.outputs()[0].1]).unwrap();
    for (place, gradient) in made.gradients.iter().enumerate() {
        g.output(&format!("g{place}"), *gradient).unwrap();
    }
    let got = run(&g.finish().unwrap(), inputs);
    compare(&format!("{name}: output"), &got[0], &case.output, limit);
    assert_eq!(by.len(), case.gradients.len(), "{name}");
    for ((input, _), got) in by.iter().zip(&got[1..]) {
        compare(&format!("{name}: gradient of {input}"), got, &case.gradients[*input], limit);
    }
}

/// Checks a case of plain ops, in f64, or in f32 if the op has no f64.
fn check(name: &str, case: &Case, dtype: DType, build: impl FnOnce(&mut GraphBuilder, &[NodeId]) -> NodeId) {
    let mut g = Graph::builder("case");
    let inputs = case.inputs.iter().map(|(name, numbers)| g.input(name, dtype, &dims_of(numbers)).unwrap());
    let inputs: Vec<NodeId> = inputs.collect();
    let y = build(&mut g, &inputs);
    let scalar = weighted(&mut g, y, dtype);
    g.output("y", y).unwrap();
    g.output("loss", scalar).unwrap();
    let graph = g.finish().unwrap();
    let by: Vec<(&str, usize)> =
        case.inputs.iter().zip(graph.inputs()).map(|((name, _), node)| (name.as_str(), *node)).collect();
    let tensors: Vec<Tensor> = case.inputs.iter().map(|(_, numbers)| tensor(dtype, numbers)).collect();
    let limit = if dtype == DType::F64 { 1e-8 } else { 2e-5 };
    check_graph(name, case, &graph, graph.outputs()[1].1, &by, &tensors, limit);
}

#[test]
fn elementwise_functions() {
    let cases = cases();
    let mut seen = 0;
    for (name, case) in &cases {
        let op = name.split('/').nth(1).unwrap_or("").split(' ').next().unwrap_or("");
        match name.split('/').next().unwrap() {
            "unary" => {
                let op = UnaryOp::ALL.iter().find(|unary| unary.name() == op).unwrap_or_else(|| panic!("{name}"));
                check(name, case, DType::F64, |g, x| g.unary(*op, x[0]).unwrap());
            }
            "binary" => {
                let op = BinaryOp::ALL.iter().find(|binary| binary.name() == op).unwrap_or_else(|| panic!("{name}"));
                check(name, case, DType::F64, |g, x| g.binary(*op, x[0], x[1]).unwrap());
            }
            "ternary" => check(name, case, DType::F64, |g, x| match op {
                "select" => g.map(x, |v| v[0].clone().gt(0.0).select(v[1].clone(), v[2].clone())).unwrap(),
                "clamp" => g.ternary(TernaryOp::Clamp, x[0], x[1], x[2]).unwrap(),
                _ => g.ternary(TernaryOp::MulAdd, x[0], x[1], x[2]).unwrap(),
            }),
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 31);
}

#[test]
fn products_and_windows() {
    let cases = cases();
    let f64s = |name: &str, build: &dyn Fn(&mut GraphBuilder, &[NodeId]) -> NodeId| {
        check(name, &cases[name], DType::F64, build)
    };
    for (name, transpose_a, transpose_b) in [
        ("matmul/nn", false, false),
        ("matmul/nt", false, true),
        ("matmul/tn", true, false),
        ("matmul/tt", true, true),
        ("matmul/batched", false, false),
        ("matmul/one for all", false, false),
    ] {
        f64s(name, &|g, x| g.op(x, |t| MatMul { transpose_a, transpose_b, ..MatMul::new(&t[0], &t[1]) }).unwrap());
    }
    let plain = ConvOptions::default();
    let strided = ConvOptions { stride: [2, 1], padding: [1, 2, 1, 2], dilation: [1, 2], groups: 1 };
    let grouped = ConvOptions { padding: [1; 4], groups: 2, ..plain };
    for (name, options) in [("conv2d/plain", plain), ("conv2d/strided", strided), ("conv2d/grouped", grouped)] {
        f64s(name, &|g, x| g.conv2d(x[0], x[1], options).unwrap());
    }
    let turned = ConvOptions { stride: [2; 2], padding: [1; 4], ..plain };
    f64s("conv2d/transposed", &|g, x| {
        g.op(x, |t| Conv2dBackwardInput::new(&t[0], &t[1], [6, 6]).options(turned)).unwrap()
    });
    let beside = |pool: Pool2d| pool.stride([2; 2]).padding([1; 4]);
    f64s("pool/max", &|g, x| g.op(x, |t| Pool2d::max(&t[0], [2, 2])).unwrap());
    f64s("pool/max overlapping", &|g, x| g.op(x, |t| beside(Pool2d::max(&t[0], [3, 3]))).unwrap());
    f64s("pool/average", &|g, x| g.op(x, |t| Pool2d::average(&t[0], [2, 2])).unwrap());
    for (name, counts) in [("pool/average with padding", true), ("pool/average without padding", false)] {
        f64s(name, &|g, x| g.op(x, |t| beside(Pool2d::average(&t[0], [3, 3])).count_padding(counts)).unwrap());
    }
    for (name, mode) in [
        ("resize/nearest", ResizeMode::Nearest),
        ("resize/bilinear", ResizeMode::Bilinear),
        ("resize/area", ResizeMode::Area),
    ] {
        check(name, &cases[name], DType::F32, |g, x| g.op(x, |t| Resize::new(&t[0], 5, 3).mode(mode)).unwrap());
    }
}

#[test]
fn rows_and_picks() {
    let cases = cases();
    let f64s = |name: &str, build: &dyn Fn(&mut GraphBuilder, &[NodeId]) -> NodeId| {
        check(name, &cases[name], DType::F64, build)
    };
    let f32s = |name: &str, build: &dyn Fn(&mut GraphBuilder, &[NodeId]) -> NodeId| {
        check(name, &cases[name], DType::F32, build)
    };
    for reduction in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min] {
        f64s(&format!("reduce/{}", reduction.name()), &|g, x| g.reduce(reduction, x[0], &[0, 2]).unwrap());
    }
    for axis in 0..2 {
        f64s(&format!("softmax/{axis}"), &|g, x| g.softmax(x[0], axis).unwrap());
        f64s(&format!("log_softmax/{axis}"), &|g, x| g.op(x, |t| Softmax::new(&t[0]).axis(axis).log()).unwrap());
    }
    f64s("layer_norm", &|g, x| g.layer_norm(x[0], x[1], x[2]).unwrap());
    f64s("rms_norm", &|g, x| g.op(x, |t| LayerNorm::new(&t[0]).weight(&t[1]).rms().epsilon(1e-5)).unwrap());
    f32s("attention/plain", &|g, x| g.op(x, |t| Attention::new(&t[0], &t[1], &t[2])).unwrap());
    f32s("attention/causal", &|g, x| g.op(x, |t| Attention::new(&t[0], &t[1], &t[2]).causal()).unwrap());
    f32s("attention/masked", &|g, x| g.op(x, |t| Attention::new(&t[0], &t[1], &t[2]).mask(&t[3])).unwrap());
    let indices = |g: &mut GraphBuilder, values: &[u32], dims: &[usize]| {
        g.unnamed_constant(&Tensor::from_slice(values, dims).unwrap()).unwrap()
    };
    f64s("gather", &|g, x| {
        let picks = indices(g, &[2, 0, 2, 1], &[4]);
        g.op(&[x[0], picks], |t| Gather::new(&t[0], &t[1], 1)).unwrap()
    });
    f64s("gather/along", &|g, x| {
        let picks = indices(g, &[2, 0, 2, 1, 0, 0, 1, 1], &[2, 4]);
        g.op(&[x[0], picks], |t| Gather::along(&t[0], &t[1], 1)).unwrap()
    });
    f64s("topk", &|g, x| g.op_pair(x, |t| TopK::new(&t[0], 2).axis(1)).unwrap().0);
    f64s("sort", &|g, x| g.op(x, |t| Sort::new(&t[0]).descending()).unwrap());
    f64s("scan", &|g, x| g.op(x, |t| Scan::sum(&t[0])).unwrap());
    f64s("slice", &|g, x| g.slice(x[0], 1, 1, 6, 2).unwrap());
    f64s("permute", &|g, x| g.permute(x[0], &[2, 0, 1]).unwrap());
    f64s("broadcast", &|g, x| g.broadcast(x[0], &[2.into(), 3.into(), 4.into()]).unwrap());
}

/// Checks the output of a network for data `x` (and `y`), if the case has them. The parameters have
/// the names of the case's other inputs.
fn check_net(name: &str, case: &Case, record: impl FnOnce(&mut Net, &[NodeId]) -> Result<NodeId>) {
    let mut net = Net::new("case", Mode::Train);
    let data: Vec<&(String, Numbers)> = case.inputs.iter().filter(|(name, _)| name == "x" || name == "y").collect();
    let nodes = data.iter().map(|(name, numbers)| net.data(name, DType::F32, &dims_of(numbers)).unwrap());
    let nodes: Vec<NodeId> = nodes.collect();
    let y = record(&mut net, &nodes).unwrap();
    let scalar = weighted(&mut net, y, DType::F32);
    let recording: Recording = net.finish(&[("y", y), ("loss", scalar)]).unwrap();
    let named = |role: &Role| match role {
        Role::Data(name) => name.clone(),
        Role::Value(spec) => recording.specs[*spec].name.trim_start_matches("it.").to_owned(),
        Role::Seed => panic!("no random numbers"),
    };
    let names: Vec<String> = recording.roles.iter().map(named).collect();
    let mut by = Vec::new();
    let mut inputs = Vec::new();
    for ((name, node), role) in names.iter().zip(recording.graph.inputs()).zip(&recording.roles) {
        match case.inputs.iter().find(|(input, _)| input == name) {
            Some((_, numbers)) => {
                by.push((name.as_str(), *node));
                inputs.push(tensor(DType::F32, numbers));
            }
            None => match role {
                Role::Value(spec) if !recording.specs[*spec].trained => {
                    inputs.push(recording.specs[*spec].first(0).unwrap());
                }
                _ => panic!("PyTorch has no parameter {name}"),
            },
        }
    }
    check_graph(name, case, &recording.graph, recording.graph.outputs()[1].1, &by, &inputs, 5e-5);
}

#[test]
fn losses() {
    let cases = cases();
    let labels =
        |net: &mut Net, values: &[i32]| net.unnamed_constant(&Tensor::from_slice(values, [values.len()]).unwrap());
    for (name, values, smoothing) in [
        ("loss/cross_entropy", [2, 0, 1, 2], 0.0),
        ("loss/smoothed", [2, 0, 1, 2], 0.2),
        ("loss/ignored", [2, -100, 1, -100], 0.2),
    ] {
        check_net(name, &cases[name], |net, x| {
            let labels = labels(net, &values)?;
            loss::cross_entropy(net, x[0], labels, smoothing)
        });
    }
    check_net("loss/binary", &cases["loss/binary"], |net, x| loss::binary_cross_entropy(net, x[0], x[1]));
    check_net("loss/divergence", &cases["loss/divergence"], |net, x| loss::divergence(net, x[0], x[1]));
    for (name, distance) in [
        ("loss/squared", Distance::Squared),
        ("loss/absolute", Distance::Absolute),
        ("loss/huber", Distance::Huber(0.7)),
    ] {
        check_net(name, &cases[name], |net, x| loss::regression(net, x[0], x[1], distance));
    }
}

#[test]
fn layers() {
    let cases = cases();
    let layers: [(&str, Box<dyn Layer>); 8] = [
        ("linear", Box::new(layer::Linear::new("it", 3, 2))),
        ("conv", Box::new(layer::Conv2d::new("it", 2, 3, 3).padding(1).stride(2))),
        ("conv_transpose", Box::new(layer::ConvTranspose2d::new("it", 2, 3, 3, 2))),
        ("batch_norm", Box::new(layer::BatchNorm::new("it", 2))),
        ("layer_norm", Box::new(layer::LayerNorm::new("it", 4))),
        ("lstm", Box::new(layer::Lstm::new("it", 3, 2).layers(2))),
        ("gru", Box::new(layer::Gru::new("it", 3, 2))),
        ("attention", Box::new(layer::MultiHeadAttention::new("it", 4, 2))),
    ];
    for (name, layer) in layers {
        let name = format!("layer/{name}");
        check_net(&name, &cases[&name], |net, x| layer.forward(net, x[0]));
    }
    check_net("layer/embedding", &cases["layer/embedding"], |net, _| {
        let words = net.unnamed_constant(&Tensor::from_slice(&[1_u32, 4, 1, 0], [2, 2])?)?;
        layer::Embedding::new("it", 5, 3).forward(net, words)
    });
}

#[test]
fn optimisers() {
    let cases = cases();
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    let optimisers = [
        ("sgd", Optimiser::sgd(0.1)),
        ("momentum", Optimiser::momentum(0.1, 0.9, false).weight_decay(0.01)),
        ("nesterov", Optimiser::momentum(0.1, 0.9, true)),
        ("adam", Optimiser::adam(0.1).weight_decay(0.01)),
        ("adamw", Optimiser::adamw(0.1)),
        ("rmsprop", Optimiser::rmsprop(0.05)),
        ("rmsprop_momentum", Optimiser::new(Rule::RmsProp { alpha: 0.9, epsilon: 1e-8, momentum: 0.5 }, 0.05)),
    ];
    for (name, optimiser) in optimisers {
        let mut net = Net::new("power", Mode::Train);
        let first = Tensor::from_vec(vec![1.5_f32, -0.5, 0.25], [3]).unwrap();
        let w = net.parameter("w", &[3], Init::Constant(0.0)).unwrap();
        let x = net.data("x", DType::F32, &[3.into()]).unwrap();
        let each = net.map(&[w, x], |v| v[0].clone().pow(4.0) / 12.0 * v[1].clone()).unwrap();
        let loss = net.reduce(Reduction::Sum, each, &[0]).unwrap();
        let recording = net.finish(&[("loss", loss)]).unwrap();
        let parameters = [("w".to_owned(), first)].into_iter().collect();
        let options = SessionOptions::default();
        let mut session = Session::new(Arc::clone(&runtime), recording, optimiser, Some(&parameters), options).unwrap();
        for step in 1..=6 {
            let x = [1.0, -2.0, 3.0].map(|x| x * step as f32);
            session.step(&[Tensor::from_slice(&x, [3]).unwrap()]).unwrap();
        }
        let got = session.parameters().unwrap().get("w").unwrap().clone();
        compare(&format!("optimiser/{name}"), &got, &cases[&format!("optimiser/{name}")].output, 2e-5);
    }
}

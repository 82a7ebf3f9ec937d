//! Graphs with channels-last images, and with heads adjacent in a row, on the emulated device: with
//! a library for convolutions, and with our own kernels.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::{EmulatedBackend, GpuBackend, GpuEngine};
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_conformance::{Tolerance, run_one};
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{ConvOptions, Pool2d};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Backend, DType, OpenOptions, Operation, Tensor, f16};

fn engine(chosen: impl Fn(EmulatedBackend) -> EmulatedBackend) -> Option<GpuEngine> {
    match EmulatedBackend::new() {
        Ok(backend) => {
            let backend = chosen(backend);
            let device = backend.discover().unwrap().remove(0);
            Some(backend.open_engine(&device, &OpenOptions::default()).unwrap())
        }
        Err(absence) => {
            println!("skipped: {absence}");
            None
        }
    }
}

fn half(dims: &[usize], seed: u64, scale: f32) -> Tensor {
    let wide = random_tensor(DType::F32, dims, seed).to_vec::<f32>().unwrap();
    Tensor::from_vec(wide.iter().map(|x| f16::from_f32(x * scale)).collect(), dims).unwrap()
}

/// A convolution with separate weights and a bias.
fn conv(g: &mut GraphBuilder, x: NodeId, dims: [usize; 4], stride: usize) -> NodeId {
    let seed = dims.iter().sum::<usize>() as u64;
    let terms = (dims[1] * dims[2] * dims[3]) as f32;
    let w = g.unnamed_constant(&half(&dims, seed, 1.0 / terms.sqrt())).unwrap();
    let bias = g.unnamed_constant(&half(&[1, dims[0], 1, 1], seed + 1, 0.1)).unwrap();
    let options = ConvOptions { padding: [dims[2] / 2; 4], stride: [stride; 2], ..ConvOptions::default() };
    let y = g.conv2d(x, w, options).unwrap();
    g.add(y, bias).unwrap()
}

/// A network on images of three channels: a pool, a block with a residual, a block with a stride of
/// two, and the channels' means.
fn residual_network() -> Graph {
    let mut g = Graph::builder("residual");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F16, &[batch, 3.into(), 40.into(), 36.into()]).unwrap();
    let x = conv(&mut g, x, [64, 3, 3, 3], 1);
    let x = g.relu(x).unwrap();
    let x = g.op(&[x], |t| Pool2d::max(&t[0], [3, 3]).stride([2, 2]).padding([1; 4])).unwrap();
    let y = conv(&mut g, x, [32, 64, 1, 1], 1);
    let y = conv(&mut g, y, [64, 32, 3, 3], 1);
    let y = g.relu(y).unwrap();
    let y = conv(&mut g, y, [64, 64, 1, 1], 1);
    let y = g.add(y, x).unwrap();
    let x = g.relu(y).unwrap();
    let short = conv(&mut g, x, [16, 64, 1, 1], 2);
    let y = conv(&mut g, x, [16, 64, 3, 3], 2);
    let y = g.add(y, short).unwrap();
    let y = g.sigmoid(y).unwrap();
    let means = g.op(&[y], |t| Pool2d::global_average(&t[0])).unwrap();
    let flat = g.reshape(means, &[batch, 16.into()]).unwrap();
    g.output("means", flat).unwrap();
    g.finish().unwrap()
}

/// Checks that the result is the same step by step, recorded and repeated; returns the launches of
/// each run.
fn launches(engine: &mut GpuEngine, graph: &Graph, dims: &[usize], close: Tolerance) -> Vec<u64> {
    let run = |seed: u64| {
        // Larger attention scores would be rounded more if they are stored in between.
        let x = half(dims, seed, 0.25);
        let op = RunGraph::new(graph, &[&x]).into_op().unwrap();
        let expected = reference(&op).unwrap();
        let before = engine.context_mut().launches();
        let got = run_one(engine, op).unwrap();
        for (expected, got) in expected.tensors().zip(got.tensors()) {
            assert_eq!(difference(expected, got, close), None, "seed {seed}");
        }
        engine.context_mut().launches() - before
    };
    [5, 6, 7, 7].map(run).to_vec()
}

#[test]
fn networks_of_images_answer_the_same_with_their_channels_last() {
    let close = Tolerance::Close { relative: 4e-3, absolute: 2e-3 };
    let graph = residual_network();
    let Some(mut by_library) = engine(EmulatedBackend::convolutions) else { return };
    let with = launches(&mut by_library, &graph, &[3, 3, 40, 36], close);
    assert_eq!(with[2..], [0, 0], "recorded, the library's calls too: {with:?}");
    // Small images do not use the library, and have the same layout.
    launches(&mut by_library, &graph, &[1, 3, 40, 36], close);
    let Some(mut by_kernels) = engine(|backend| backend) else { return };
    launches(&mut by_kernels, &graph, &[1, 3, 40, 36], close);
}

/// Attention with `heads` heads of `size` numbers, as in a network: three products of one tensor,
/// and a mask of keys.
fn layer(heads: usize, size: usize) -> Graph {
    let mut g = Graph::builder("layer");
    let (batch, rows) = (g.symbol("batch").unwrap(), g.symbol("rows").unwrap());
    let width = heads * size;
    let x = g.input("x", DType::F16, &[batch, rows, width.into()]).unwrap();
    let split = [batch, rows, heads.into(), size.into()];
    let [q, k, v] = [1, 2, 3].map(|seed| {
        let w = g.unnamed_constant(&half(&[width, width], seed, 1.0 / (width as f32).sqrt())).unwrap();
        let bias = g.unnamed_constant(&half(&[width], seed + 9, 0.1)).unwrap();
        let y = g.matmul(x, w).unwrap();
        let y = g.add(y, bias).unwrap();
        let y = g.reshape(y, &split).unwrap();
        g.permute(y, &[0, 2, 1, 3]).unwrap()
    });
    let k = g.permute(k, &[0, 1, 3, 2]).unwrap();
    let scores = g.matmul(q, k).unwrap();
    let scale = g.unnamed_constant(&half(&[], 20, 0.3)).unwrap();
    let scores = g.mul(scores, scale).unwrap();
    // The first number of each row is the weight of its key, for every query.
    let mask = g.slice(x, 2, 0, 1, 1).unwrap();
    let mask = g.reshape(mask, &[batch, 1.into(), 1.into(), rows]).unwrap();
    let scores = g.add(scores, mask).unwrap();
    let weights = g.softmax(scores, 3).unwrap();
    let mixed = g.matmul(weights, v).unwrap();
    let mixed = g.permute(mixed, &[0, 2, 1, 3]).unwrap();
    let mixed = g.reshape(mixed, &[batch, rows, width.into()]).unwrap();
    let w = g.unnamed_constant(&half(&[width, 8], 31, 0.2)).unwrap();
    let last = g.matmul(mixed, w).unwrap();
    let last = g.gelu(last).unwrap();
    g.output("last", last).unwrap();
    g.finish().unwrap()
}

#[test]
fn heads_lie_side_by_side() {
    let close = Tolerance::Close { relative: 2e-2, absolute: 4e-3 };
    let Some(mut groups) = engine(EmulatedBackend::warp_groups) else { return };
    launches(&mut groups, &layer(2, 64), &[2, 70, 128], close);
    for chosen in [(|backend| backend) as fn(EmulatedBackend) -> EmulatedBackend, EmulatedBackend::wide_warps] {
        let Some(mut engine) = engine(chosen) else { return };
        launches(&mut engine, &layer(2, 32), &[3, 33, 64], close);
        launches(&mut engine, &layer(3, 5), &[2, 9, 15], close);
    }
}

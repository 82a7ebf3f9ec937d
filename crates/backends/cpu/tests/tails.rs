//! Graphs in which convolutions of every kind apply the following map, against the same ops one by
//! one.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_conformance::{Tolerance, run_one};
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{ConvOptions, Kernel, KernelCall};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Backend, DType, Engine, Error, OpenOptions, Operation, Result, Tensor};
use panoply_cpu::CpuBackend;
use panoply_cpu::GRAPH_TARGET;
use panoply_graph::plan_of;

fn engine() -> Box<dyn Engine> {
    let backend = CpuBackend::new();
    let devices = backend.discover().unwrap();
    backend.open(&devices[0], &OpenOptions { threads: Some(3), ..OpenOptions::default() }).unwrap()
}

/// Batch, channels and size of images; filters, size, stride, padding and groups of the
/// convolution.
type Sizes = ([usize; 3], [usize; 5]);

/// Winograd's algorithm, many taps, one tap on large and small planes, few pixels, and depthwise
/// planes.
const SIZES: [Sizes; 8] = [
    ([1, 32, 40], [32, 3, 1, 1, 1]),
    ([2, 16, 30], [24, 3, 2, 1, 1]),
    ([1, 8, 33], [16, 5, 1, 2, 1]),
    ([1, 48, 50], [40, 1, 1, 0, 1]),
    ([2, 64, 14], [72, 1, 1, 0, 1]),
    ([1, 64, 3], [80, 3, 1, 1, 1]),
    ([1, 40, 37], [40, 3, 1, 1, 40]),
    ([3, 24, 10], [24, 5, 2, 2, 24]),
];

type Behind = fn(&mut GraphBuilder, NodeId, NodeId, NodeId) -> Result<NodeId>;

/// The map after the convolution. Its inputs are the convolution's result, a tensor of the same
/// size, and a number for each channel.
const BEHIND: [(&str, Behind); 4] = [
    ("residual and bounds", |g, y, other, _| g.map(&[other, y], |e| (&e[0] + &e[1]).clamp(-0.5, 6.0))),
    ("gate", |g, y, _, _| g.map(&[y], |e| e[0].clone() * e[0].clone().sigmoid())),
    ("hard gate", |g, y, _, _| g.map(&[y], |e| e[0].clone() * (e[0].clone() * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0))),
    ("channels", |g, y, other, channels| {
        let y = g.relu(y)?;
        let y = g.mul(channels, y)?;
        g.map(&[y, other], |e| e[0].clone() - e[1].clone().abs())
    }),
];

fn network(([batch, channels, size], [filters, taps, stride, padding, groups]): Sizes, behind: Behind) -> RunGraph {
    let mut g = Graph::builder("network");
    let options = ConvOptions { stride: [stride; 2], padding: [padding; 4], groups, ..ConvOptions::default() };
    let out = (size + 2 * padding - taps) / stride + 1;
    let image = random_tensor(DType::F32, &[batch, channels, size, size], 1);
    let other = random_tensor(DType::F32, &[batch, filters, out, out], 2);
    let each = random_tensor(DType::F32, &[batch, filters, 1, 1], 3);
    let input = |g: &mut GraphBuilder, name: &str, tensor: &Tensor| {
        let dims: Vec<_> = tensor.shape().iter().map(|dim| (*dim).into()).collect();
        g.input(name, DType::F32, &dims).unwrap()
    };
    let (x, more) = (input(&mut g, "x", &image), input(&mut g, "more", &other));
    let of_channels = input(&mut g, "each", &each);
    let w = g.constant("w", &random_tensor(DType::F32, &[filters, channels / groups, taps, taps], 4)).unwrap();
    // Both are computed within the graph, so that they are in its memory: inputs that are read late
    // must still be valid.
    let x = g.map(&[x], |e| e[0].clone() * 0.1).unwrap();
    let more = g.map(&[more], |e| e[0].clone() + 0.1).unwrap();
    let y = g.conv2d(x, w, options).unwrap();
    let y = behind(&mut g, y, more, of_channels).unwrap();
    let again = g.constant("v", &random_tensor(DType::F32, &[2, filters, 1, 1], 5)).unwrap();
    let z = g.conv2d(y, again, ConvOptions::default()).unwrap();
    g.output("y", z).unwrap();
    RunGraph::new(&g.finish().unwrap(), &[&image, &other, &each])
}

#[test]
fn maps_behind_convolutions_are_theirs() {
    let mut engine = engine();
    let close = Tolerance::Close { relative: 2e-4, absolute: 2e-4 };
    for (sizes, (name, behind)) in SIZES.into_iter().flat_map(|sizes| BEHIND.map(|behind| (sizes, behind))) {
        let op = network(sizes, behind);
        let plan = plan_of(&op, &GRAPH_TARGET.facts).unwrap();
        assert_eq!(plan.tails.iter().flatten().count(), 1, "{sizes:?}, {name}");
        let op = op.into_op().unwrap();
        let expected = reference(&op).unwrap();
        for turn in 0..2 {
            let got = run_one(engine.as_mut(), op.clone()).unwrap();
            for (expected, got) in expected.tensors().zip(got.tensors()) {
                assert_eq!(difference(expected, got, close), None, "{sizes:?}, {name}, turn {turn}");
            }
        }
    }
}

#[test]
fn closures_make_pieces_on_several_threads() {
    const ROWS: usize = 1000;
    const WIDTH: usize = 257;
    let body = |call: &mut KernelCall<'_>| {
        let pieces = call.pieces();
        let (x, y) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
        for (row, to) in pieces.clone().zip(y.chunks_exact_mut(WIDTH)) {
            if x[row * WIDTH] < 0.0 {
                return Err(Error::invalid("the test", "no sign", "one"));
            }
            to.iter_mut().zip(&x[row * WIDTH..]).for_each(|(to, x)| *to = x + row as f32);
        }
        Ok(())
    };
    let program = Kernel::on_cpu("rows", body).input("x", DType::F32).output("y", DType::F32).in_pieces(ROWS);
    let program = program.build().unwrap();
    let mut numbers: Vec<f32> = (0..ROWS * WIDTH).map(|x| (x % 91) as f32).collect();
    let run = |numbers: &[f32]| {
        let x = Tensor::from_vec(numbers.to_vec(), [ROWS, WIDTH]).unwrap();
        let kernel = Kernel::new(&program).input(&x).output(*x.shape());
        run_one(engine().as_mut(), kernel.into_op().unwrap())
    };
    let got = run(&numbers).unwrap();
    let got = got.tensors().next().unwrap().to_vec::<f32>().unwrap();
    for (at, (got, x)) in got.iter().zip(&numbers).enumerate() {
        assert_eq!(*got, x + (at / WIDTH) as f32, "element {at}");
    }
    numbers[777 * WIDTH] = -1.0;
    assert!(run(&numbers).unwrap_err().to_string().contains("no sign"), "a piece that fails fails the op");
}

//! Channels-last images, adjacent heads, and joined products of one tensor with several constants.

use std::sync::Arc;

use panoply_conformance::Tolerance;
use panoply_core::op::compute::{Kernel, KernelCall, KernelProgram, Pool2d};

use super::*;

const F16: Tolerance = Tolerance::Close { relative: 4e-3, absolute: 4e-3 };

fn half(dims: &[usize], seed: u64) -> Tensor {
    let wide = random_tensor(DType::F32, dims, seed).to_vec::<f32>().unwrap();
    Tensor::from_vec(wide.iter().map(|x| panoply_core::f16::from_f32(x * 0.1)).collect(), dims).unwrap()
}

/// The plan of a graph, after comparing its result with that of the ops one by one.
fn checked(graph: &Graph, inputs: &[&Tensor], close: Tolerance) -> Plan {
    let (plan, op) = planned(graph, inputs, &FACTS);
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    for (expected, got) in expected.tensors().zip(&run(&plan, &op).unwrap()) {
        assert_eq!(difference(expected, got, close), None);
    }
    plan
}

fn names(plan: &Plan) -> Vec<&'static str> {
    plan.steps.iter().map(|step| step.op.name()).collect()
}

fn padded(stride: usize) -> ConvOptions {
    ConvOptions { padding: [1; 4], stride: [stride; 2], ..ConvOptions::default() }
}

/// A convolution with weights of its own and a bias.
fn conv(g: &mut GraphBuilder, x: NodeId, dims: [usize; 4], options: ConvOptions) -> NodeId {
    let seed = dims.iter().sum::<usize>() as u64;
    let w = g.unnamed_constant(&half(&dims, seed)).unwrap();
    let bias = g.unnamed_constant(&half(&[1, dims[0], 1, 1], seed + 1)).unwrap();
    let y = g.conv2d(x, w, options).unwrap();
    g.add(y, bias).unwrap()
}

/// A network with a three-channel image, a pool, a block with a residual, and channel means.
/// `shows` makes the block an output.
fn residual_network(shows: bool) -> Graph {
    let mut g = Graph::builder("residual");
    let x = g.input("x", DType::F16, &[2.into(), 3.into(), 12.into(), 10.into()]).unwrap();
    let x = conv(&mut g, x, [16, 3, 3, 3], padded(1));
    let x = g.relu(x).unwrap();
    let x = g.op(&[x], |t| Pool2d::max(&t[0], [3, 3]).stride([2, 2]).padding([1; 4])).unwrap();
    let y = conv(&mut g, x, [8, 16, 1, 1], ConvOptions::default());
    let y = g.relu(y).unwrap();
    let y = conv(&mut g, y, [8, 8, 3, 3], padded(1));
    let y = g.relu(y).unwrap();
    let y = conv(&mut g, y, [16, 8, 1, 1], ConvOptions::default());
    let y = g.add(y, x).unwrap();
    let y = g.relu(y).unwrap();
    let means = g.op(&[y], |t| Pool2d::global_average(&t[0])).unwrap();
    let flat = g.reshape(means, &[2.into(), 16.into()]).unwrap();
    g.output("means", flat).unwrap();
    if shows {
        g.output("block", y).unwrap();
    }
    g.finish().unwrap()
}

#[test]
fn images_lie_with_their_channels_last_between_convolutions() {
    let x = half(&[2, 3, 12, 10], 9);
    let plan = checked(&residual_network(false), &[&x], F16);
    // Nothing is left between the ops only if the first convolution took its bias.
    assert_eq!(names(&plan), ["conv2d", "pool2d", "matmul", "conv2d", "matmul", "pool2d"]);
    assert_eq!(plan.layout_copies(), (0, 0));
    let ordered = plan.slots.iter().filter(|slot| slot.order.is_some() && slot.place != SlotPlace::Unread).count();
    assert_eq!(ordered, 3, "both convolutions and the first pool; the last is an output");
    let residual = plan.steps.iter().filter(|step| match &*step.op {
        panoply_core::Op::Compute(panoply_core::op::compute::ComputeOp::MatMul(op)) => op.c.is_some(),
        _ => false,
    });
    assert_eq!(residual.count(), 1);
    // An output has the layout of its op.
    let shown = checked(&residual_network(true), &[&x], F16);
    assert!(shown.slots.iter().all(|slot| slot.place != SlotPlace::Own || slot.order.is_none()));
}

#[test]
fn queries_keys_and_values_are_one_product_and_heads_lie_side_by_side() {
    let (rows, heads, size) = (6, 2, 4);
    let mut g = Graph::builder("layer");
    let batch = g.symbol("batch").unwrap();
    let width = heads * size;
    let x = g.input("x", DType::F16, &[batch, rows.into(), width.into()]).unwrap();
    let linear = |g: &mut GraphBuilder, x: NodeId, seed: u64| {
        let w = g.unnamed_constant(&half(&[width, width], seed)).unwrap();
        let bias = g.unnamed_constant(&half(&[width], seed + 50)).unwrap();
        let y = g.matmul(x, w).unwrap();
        g.add(y, bias).unwrap()
    };
    let split = [batch, rows.into(), heads.into(), size.into()];
    let parts = [1, 2, 3].map(|seed| {
        let y = linear(&mut g, x, seed);
        let y = g.reshape(y, &split).unwrap();
        g.permute(y, &[0, 2, 1, 3]).unwrap()
    });
    let turned = g.permute(parts[1], &[0, 1, 3, 2]).unwrap();
    let scores = g.matmul(parts[0], turned).unwrap();
    let weights = g.softmax(scores, 3).unwrap();
    let mixed = g.matmul(weights, parts[2]).unwrap();
    let mixed = g.permute(mixed, &[0, 2, 1, 3]).unwrap();
    let mixed = g.reshape(mixed, &[batch, rows.into(), width.into()]).unwrap();
    let out = linear(&mut g, mixed, 7);
    let sum = g.add(x, out).unwrap();
    let ones = g.unnamed_constant(&half(&[width], 8)).unwrap();
    let y = g.op(&[sum, ones], |t| panoply_core::op::compute::LayerNorm::new(&t[0]).weight(&t[1])).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    let x = half(&[3, rows, width], 11);
    let plan = checked(&graph, &[&x], Tolerance::Close { relative: 2e-2, absolute: 2e-2 });
    assert_eq!(names(&plan), ["matmul", "attention", "matmul", "row_map"]);
    assert_eq!(plan.slots.iter().filter(|slot| slot.joined.is_some()).count(), 2);
}

/// A kernel that doubles images, and has a permuted form for other axis orders.
fn doubled(image: &Tensor) -> Kernel {
    fn program() -> Arc<KernelProgram> {
        let body = |call: &mut KernelCall<'_>| -> Result<()> {
            let (x, y) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
            Ok(())
        };
        let turn = |kernel: &Kernel, order: &[usize]| {
            let image = kernel.inputs[0].permute(order).ok()?;
            Some(Kernel::new(&program()).input(&image).output(*image.shape()))
        };
        Kernel::on_cpu("doubled", body)
            .input("x", DType::F32)
            .output("y", DType::F32)
            .permute_with(turn)
            .build()
            .unwrap()
    }
    Kernel::new(&program()).input(image).output(*image.shape())
}

#[test]
fn pools_and_kernels_of_images_with_their_channels_last_write_them_so() {
    let mut g = Graph::builder("images");
    let x = g.input("x", DType::F32, &[2.into(), 8.into(), 6.into(), 5.into()]).unwrap();
    let turned = g.permute(x, &[0, 3, 1, 2]).unwrap();
    let y = g.relu(turned).unwrap();
    let pooled = g.op(&[y], |t| Pool2d::max(&t[0], [3, 3]).stride([2, 2]).padding([1; 4])).unwrap();
    let more = g.op(&[pooled], |t| doubled(&t[0])).unwrap();
    let part = g.slice(more, 1, 1, 4, 1).unwrap();
    let bent = g.map(&[part], |e| e[0].clone() * e[0].clone()).unwrap();
    let last = g.op(&[bent], |t| Pool2d::average(&t[0], [2, 2])).unwrap();
    let z = g.map(&[last], |e| e[0].clone() + 1.0).unwrap();
    g.output("z", z).unwrap();
    let graph = g.finish().unwrap();
    let x = random_tensor(DType::F32, &[2, 8, 6, 5], 4);
    let plan = checked(&graph, &[&x], Tolerance::Close { relative: 1e-5, absolute: 1e-5 });
    assert_eq!(names(&plan), ["map", "pool2d", "kernel", "map", "pool2d", "map"]);
    let shapes: Vec<Vec<usize>> =
        plan.steps.iter().map(|step| plan.slots[step.outputs.first().unwrap()].slot.shape.to_vec()).collect();
    assert_eq!(
        shapes[..5],
        [[2, 8, 6, 5], [2, 4, 3, 5], [2, 4, 3, 5], [2, 4, 3, 3], [2, 2, 1, 3]].map(|dims| dims.to_vec())
    );
    assert_eq!(plan.slots.iter().filter(|slot| slot.order.is_some()).count(), 2, "both pools");
    // Without the facts nothing is permuted.
    let facts = Facts { channels_last: false, channels_last_f32: false, ..FACTS };
    let (plan, _) = planned(&graph, &[&x], &facts);
    assert!(plan.slots.iter().all(|slot| slot.order.is_none()));
    let kernel = plan.steps.iter().find(|step| step.op.name() == "kernel").unwrap();
    assert_eq!(plan.slots[kernel.outputs.first().unwrap()].slot.shape.to_vec(), [2, 5, 4, 3]);
}

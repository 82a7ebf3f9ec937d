//! The results of the passes on graphs: the number and kind of the remaining steps, and an
//! unchanged answer.

mod attention;
mod bad_input;
mod layouts;
mod training;

use panoply_conformance::chains;
use panoply_conformance::random_graph::{RandomGraph, random_graph};
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_core::graph::{Graph, GraphBuilder, NodeId, fill_in, slot_of, view_of};
use panoply_core::op::compute::ConvOptions;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Describe, Operation, Part, Result, Tensor, Value};

use crate::cost::Rates;
use crate::execute::join;
use crate::{Facts, Plan, SlotPlace, compile};

pub(crate) const FACTS: Facts = Facts {
    map_inputs_max: 8,
    map_nodes_max: 64,
    row_len_max: 1 << 14,
    row_inputs_max: 8,
    attention_elements_max: 1 << 20,
    channels_last: true,
    channels_last_f32: true,
    adds_scaled: true,
    activates_any_shape: true,
    joins_heads: true,
    joins_sums: true,
    last_elements_max: 1 << 20,
    takes_tails: true,
};
/// A device without the fusions of GPUs.
pub(crate) const PROCESSOR: Facts =
    Facts { channels_last: false, joins_heads: false, joins_sums: false, last_elements_max: 0, ..FACTS };
pub(crate) const RATES: Rates = Rates { bytes_per_ns: 20.0, flops_per_ns: 120.0, launch_ns: 1_000.0 };

/// Runs a plan with the reference's ops.
fn run(plan: &Plan, op: &RunGraph) -> Result<Vec<Tensor>> {
    let mut filled: Vec<Option<Tensor>> = plan.slots.iter().map(|_| None).collect();
    for (place, slot) in filled.iter_mut().zip(&plan.slots) {
        *place = match slot.place {
            SlotPlace::Input(input) => Some(op.inputs()[input].contiguous()?),
            SlotPlace::Constant(node) => match &slot.joined {
                Some(joined) => Some(join(op.graph(), joined)?),
                None => op.graph().nodes()[node].constant().cloned(),
            },
            _ => None,
        };
    }
    for (index, step) in plan.once.iter().chain(&plan.steps).enumerate() {
        let mut one = panoply_core::Op::clone(&step.op);
        fill_in(&mut one, &|slot| filled[slot].clone())?;
        let mut made = reference(&one)?;
        let tail = index.checked_sub(plan.once.len()).and_then(|index| plan.tails[index].as_ref());
        if let Some(tail) = tail {
            let mut tail = tail.op(made.tensors().next().unwrap());
            fill_in(&mut tail, &|slot| filled[slot].clone())?;
            made = reference(&tail)?;
        }
        for (slot, tensor) in step.outputs.iter().zip(made.tensors()) {
            filled[slot] = Some(match plan.slots[slot].order {
                Some(order) => tensor.permute(order)?.contiguous()?,
                None => tensor.clone(),
            });
        }
        // Values without further readers are dropped, as in shared memory.
        if let Some(step) = index.checked_sub(plan.once.len()) {
            plan.ends.of(step).for_each(|slot| filled[slot] = None);
        }
    }
    plan.outputs.iter().map(|view| view_of(view, filled[slot_of(view).unwrap()].as_ref().unwrap())).collect()
}

fn planned(graph: &Graph, inputs: &[&Tensor], facts: &Facts) -> (Plan, RunGraph) {
    let op = RunGraph::new(graph, inputs);
    let plan = compile(graph, &op.instance().unwrap().sizes, facts).unwrap();
    (plan, op)
}

/// The names of the steps of a graph of two inputs of 65 × 40, after checking the answer.
fn steps(build: impl Fn(&mut GraphBuilder, NodeId, NodeId) -> Result<NodeId>) -> Vec<&'static str> {
    let mut g = Graph::builder("test");
    let rows = g.symbol("rows").unwrap();
    let dims = [rows, 40.into()];
    let (x, y) = (g.input("x", DType::F32, &dims).unwrap(), g.input("y", DType::F32, &dims).unwrap());
    let z = build(&mut g, x, y).unwrap();
    g.output("z", z).unwrap();
    let graph = g.finish().unwrap();
    let (x, y) = (random_tensor(DType::F32, &[65, 40], 1), random_tensor(DType::F32, &[65, 40], 2));
    let (plan, op) = planned(&graph, &[&x, &y], &FACTS);
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    let got = Value::List(run(&plan, &op).unwrap().into_iter().map(Part::Tensor).collect());
    let close = panoply_conformance::Tolerance::Close { relative: 1e-5, absolute: 1e-5 };
    for (expected, got) in expected.tensors().zip(got.tensors()) {
        assert_eq!(difference(expected, got, close), None);
    }
    plan.steps.iter().map(|step| step.op.name()).collect()
}

#[test]
fn chains_become_one_step() {
    let chain10 = steps(chains::chain10);
    assert_eq!(chain10, ["map"]);
    let add_layernorm_gelu = steps(|g, x, y| {
        let weight = g.constant("w", &random_tensor(DType::F32, &[40], 3))?;
        let bias = g.constant("b", &random_tensor(DType::F32, &[40], 4))?;
        chains::add_layernorm_gelu(g, x, y, weight, bias)
    });
    assert_eq!(add_layernorm_gelu, ["row_map"]);
    let softmax_mask = steps(chains::softmax_mask);
    assert_eq!(softmax_mask, ["row_map"]);
    let norm_rows = steps(|g, x, _| chains::norm_rows(g, x));
    assert_eq!(norm_rows, ["row_map"]);
    let plain = steps(|g, x, _| g.softmax(x, 1));
    assert_eq!(plain, ["softmax"]);
}

#[test]
fn products_take_bias_residual_and_activation() {
    let linear = steps(|g, x, y| {
        let w = g.constant("w", &random_tensor(DType::F32, &[40, 40], 3))?;
        let w = g.map(&[w], |e| &e[0] * 0.1)?;
        let turned = g.permute(w, &[1, 0])?;
        let bias = g.constant("b", &random_tensor(DType::F32, &[40], 4))?;
        let h = g.matmul(x, turned)?;
        let h = g.map(&[h], |e| &e[0] * 0.5)?;
        let h = g.add(h, bias)?;
        let h = g.add(y, h)?;
        g.gelu(h)
    });
    assert_eq!(linear, ["matmul"]);
    let twice = steps(|g, x, _| {
        let w = g.constant("w", &random_tensor(DType::F32, &[40, 40], 3))?;
        let h = g.matmul(x, w)?;
        let gate = g.sigmoid(h)?;
        g.mul(h, gate)
    });
    assert_eq!(twice, ["matmul", "map"], "what is read twice is kept");
    // An optimiser's momentum: a scaled tensor plus a product, in either order.
    for is_first in [false, true] {
        let kept = steps(|g, x, y| {
            let w = g.constant("w", &random_tensor(DType::F32, &[40, 40], 3))?;
            let h = g.matmul(x, w)?;
            g.map(&[y, h], |e| {
                let part = e[0].clone() * 0.9;
                if is_first { part + e[1].clone() } else { e[1].clone() + part }
            })
        });
        assert_eq!(kept, ["matmul"]);
    }
    let own = steps(|g, x, _| {
        let w = g.constant("w", &random_tensor(DType::F32, &[40, 40], 3))?;
        let h = g.matmul(x, w)?;
        g.map(&[h], |e| e[0].clone() * 0.9 + e[0].clone())
    });
    assert_eq!(own, ["matmul", "map"], "a part of itself is no residual");
}

/// However a sum reads a product, the product is computed once.
#[test]
fn products_are_computed_once() {
    let products = |names: &[&str]| names.iter().filter(|name| **name == "matmul").count();
    let weight = |g: &mut GraphBuilder, seed| g.constant("w", &random_tensor(DType::F32, &[40, 40], seed));
    let square = |g: &mut GraphBuilder, x: NodeId| {
        let turned = g.permute(x, &[1, 0])?;
        g.matmul(turned, x)
    };
    let mirrored = steps(|g, x, _| {
        let h = square(g, x)?;
        let product = g.matmul(h, h)?;
        let mirrored = g.permute(product, &[1, 0])?;
        g.add(product, mirrored)
    });
    assert_eq!(mirrored, ["matmul", "matmul", "map"], "the other view is no residual");
    let row_of_itself = steps(|g, x, _| {
        let product = square(g, x)?;
        let row = g.slice(product, 0, 3, 4, 1)?;
        g.add(product, row)
    });
    assert_eq!(row_of_itself, ["matmul", "map"], "its own row is no bias");
    let scaled_view = steps(|g, x, _| {
        let product = square(g, x)?;
        let mirrored = g.permute(product, &[1, 0])?;
        g.map(&[product, mirrored], |e| e[0].clone() + e[1].clone() * 0.5)
    });
    assert_eq!(scaled_view, ["matmul", "map"], "nor is a factor of its own view");
    let both_orders = steps(|g, x, _| {
        let w = weight(g, 3)?;
        let product = g.matmul(x, w)?;
        let one = g.add(x, product)?;
        let again = g.matmul(x, w)?;
        let other = g.add(again, x)?;
        let one = g.tanh(one)?;
        let other = g.exp(other)?;
        g.mul(one, other)
    });
    assert_eq!(products(&both_orders), 1, "{both_orders:?}");
    let layers = steps(|g, x, _| {
        let first = weight(g, 3)?;
        let second = g.constant("v", &random_tensor(DType::F32, &[40, 40], 4))?;
        let product = g.matmul(x, first)?;
        let h = g.add(x, product)?;
        let product = g.matmul(h, second)?;
        g.add(h, product)
    });
    assert_eq!(layers, ["matmul", "matmul"]);
    let of_one_product = steps(|g, x, y| {
        let w = weight(g, 3)?;
        let product = g.matmul(x, w)?;
        let (one, other) = (g.add(x, product)?, g.add(y, product)?);
        let (one, other) = (g.softmax(one, 1)?, g.softmax(other, 1)?);
        g.sub(one, other)
    });
    assert_eq!(products(&of_one_product), 1, "{of_one_product:?}");
}

/// A convolution takes its bias, its activation, and any map after it whose other inputs have the
/// same shape.
#[test]
fn convolutions_take_bias_and_activation() {
    let convolution = |g: &mut GraphBuilder, x: NodeId| -> Result<(NodeId, NodeId)> {
        let (_, dims) = g.type_of(x)?;
        let rows = dims[0];
        let image = g.reshape(x, &[rows, 2.into(), 4.into(), 5.into()])?;
        let w = g.constant("w", &random_tensor(DType::F32, &[2, 2, 3, 3], 3))?;
        let bias = g.constant("b", &random_tensor(DType::F32, &[2, 1, 1], 4))?;
        let h = g.conv2d(image, w, ConvOptions { padding: [1; 4], ..ConvOptions::default() })?;
        Ok((g.add(h, bias)?, image))
    };
    let plain = steps(|g, x, _| {
        let (h, _) = convolution(g, x)?;
        g.relu(h)
    });
    assert_eq!(plain, ["conv2d"]);
    let residual = steps(|g, x, _| {
        let (h, image) = convolution(g, x)?;
        let h = g.add(h, image)?;
        g.relu(h)
    });
    assert_eq!(residual, ["conv2d"]);
    let gated = steps(|g, x, _| {
        let (h, image) = convolution(g, x)?;
        let gate = g.sigmoid(h)?;
        let h = g.mul(h, gate)?;
        // Both read the image, which lives until the later of them.
        let other = g.mul(image, image)?;
        g.sub(other, h)
    });
    assert_eq!(gated, ["conv2d"], "what reads a result twice is behind it as well");
    let both = steps(|g, x, _| {
        let (h, image) = convolution(g, x)?;
        let w = g.constant("w2", &random_tensor(DType::F32, &[2, 2, 1, 1], 5))?;
        let short = g.conv2d(image, w, ConvOptions::default())?;
        let short = g.map(&[short], |e| e[0].clone().abs())?;
        let h = g.add(short, h)?;
        g.relu(h)
    });
    assert_eq!(both, ["conv2d", "conv2d"], "the second adds what the first made");
    let turned = steps(|g, x, _| {
        let (h, _) = convolution(g, x)?;
        let h = g.permute(h, &[0, 1, 3, 2])?;
        g.map(&[h], |e| e[0].clone().abs())
    });
    assert_eq!(turned, ["conv2d", "map"], "what reads it in another order is not behind it");
    let read_twice = steps(|g, x, _| {
        let (h, _) = convolution(g, x)?;
        let a = g.map(&[h], |e| e[0].clone().abs())?;
        let w = g.constant("w2", &random_tensor(DType::F32, &[2, 2, 1, 1], 5))?;
        let b = g.conv2d(h, w, ConvOptions::default())?;
        g.sub(a, b)
    });
    assert_eq!(read_twice, ["conv2d", "conv2d"], "the first is kept for the second and for what is behind that");
}

#[test]
fn views_are_strides_and_equal_nodes_are_one() {
    let views = steps(|g, x, y| {
        let (_, dims) = g.type_of(x)?;
        let rows = dims[0];
        let turned = g.permute(x, &[1, 0])?;
        let again = g.permute(x, &[1, 0])?;
        let flat = g.reshape(turned, &[rows * 40])?;
        let back = g.reshape(flat, &[40.into(), rows])?;
        let sum = g.add(back, again)?;
        let a = g.tanh(sum)?;
        let b = g.tanh(sum)?;
        let unused = g.exp(y)?;
        let _ = g.neg(unused)?;
        g.add(a, b)
    });
    assert_eq!(views, ["map"]);
}

#[test]
fn constants_are_folded_and_memory_is_shared() {
    let mut g = Graph::builder("deep");
    let mut x = g.input("x", DType::F32, &[64.into(), 64.into()]).unwrap();
    let w = g.constant("w", &random_tensor(DType::F32, &[64, 64], 1)).unwrap();
    let w = g.map(&[w], |e| &e[0] * 0.1).unwrap();
    for _ in 0..10 {
        x = g.matmul(x, w).unwrap();
    }
    g.output("y", x).unwrap();
    let graph = g.finish().unwrap();
    let input = random_tensor(DType::F32, &[64, 64], 2);
    let (plan, _) = planned(&graph, &[&input], &FACTS);
    assert_eq!((plan.once.len(), plan.steps.len()), (1, 10));
    assert_eq!((plan.arena_bytes, plan.live_bytes_max), (2 * 64 * 64 * 4, 2 * 64 * 64 * 4));
    let matrix = 64 * 64 * 4;
    assert_eq!((plan.peak.constant_bytes, plan.peak.kept_bytes), (matrix, matrix));
    // One input, one constant, one folded result, two values between the steps, one output.
    assert_eq!((plan.peak.bytes(false), plan.peak.bytes(true)), (6 * matrix, 4 * matrix));
    let costs: Vec<_> = plan.steps.iter().map(|step| crate::cost::cost(&step.op)).collect();
    assert_eq!((costs[0].bytes, costs[0].flops), (3 * 64 * 64 * 4, 2 * 64 * 64 * 64));
}

#[test]
fn random_graphs_mean_the_same_after_every_pass() {
    let (mut saved, mut attentions) = (0, 0);
    for seed in 0..3000 {
        let RandomGraph { op, tolerance } = random_graph(seed);
        let expected = reference(&op.clone().into_op().unwrap()).unwrap();
        let plan = compile(op.graph(), &op.instance().unwrap().sizes, &FACTS).unwrap();
        let got = run(&plan, &op).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for (expected, got) in expected.tensors().zip(&got) {
            let different = difference(expected, got, tolerance);
            assert_eq!(different, None, "seed {seed}: {plan:?}");
        }
        assert!(plan.arena_bytes >= plan.live_bytes_max);
        attentions += plan.steps.iter().filter(|step| step.op.name() == "attention").count();
        saved += op.instance().unwrap().steps.len() - plan.steps.len() - plan.once.len();
    }
    assert!(saved > 3000 && attentions > 200, "{saved} steps, {attentions} attentions");
}

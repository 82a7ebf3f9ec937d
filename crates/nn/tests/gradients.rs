//! Gradients of every differentiable op, compared with central differences of the reference, in f64
//! if the op supports it.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::reference::reference;
use panoply_core::expr::{BinaryOp, Expr, TernaryOp, UnaryOp};
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Activation, Attention, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, Gather, ImageLayout,
    LayerNorm, MatMul, Pool2d, Reduce, Reduction, Resize, ResizeMode, Scan, Softmax, Sort, TopK, Transpose,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Operation, Tensor};
use panoply_nn::grad::{Segment, differentiate};
use panoply_nn::random::Random;

/// The settings of a check: the element type of the inputs, the step of the differences and the
/// tolerance.
#[derive(Clone, Copy)]
struct GradientCheck {
    dtype: DType,
    step: f64,
    tolerance: f64,
    /// Added to every input, for functions that need positive numbers.
    shift: f64,
}

const F64: GradientCheck = GradientCheck { dtype: DType::F64, step: 1e-5, tolerance: 2e-7, shift: 0.0137 };
const POSITIVE: GradientCheck = GradientCheck { shift: 2.5, ..F64 };
const F32: GradientCheck = GradientCheck { dtype: DType::F32, step: 2e-2, tolerance: 2e-2, shift: 0.0 };

fn values(seed: u64, count: usize, shift: f64) -> Vec<f64> {
    let mut random = Random::new(seed, "values");
    // The numbers differ by more than a step, so the maximum is the same element in both
    // differences.
    let mut order: Vec<usize> = (0..count).collect();
    random.shuffle(&mut order);
    order.iter().map(|place| (*place as f64 + 0.5) / count as f64 * 4.0 - 2.0 + shift).collect()
}

fn tensor(dtype: DType, values: &[f64], dims: &[usize]) -> Tensor {
    match dtype {
        DType::F64 => Tensor::from_slice(values, dims).unwrap(),
        _ => Tensor::from_vec(values.iter().map(|value| *value as f32).collect(), dims).unwrap(),
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

/// A graph whose loss is a weighted sum of the node that `build` makes, over inputs of these
/// dimensions.
fn forward(dims: &[&[usize]], dtype: DType, build: &dyn Fn(&mut GraphBuilder, &[NodeId]) -> NodeId) -> Graph {
    let mut g = Graph::builder("checked");
    let inputs: Vec<NodeId> = dims
        .iter()
        .enumerate()
        .map(|(place, dims)| {
            let dims: Vec<_> = dims.iter().map(|size| (*size).into()).collect();
            g.input(&format!("x{place}"), dtype, &dims).unwrap()
        })
        .collect();
    let y = build(&mut g, &inputs);
    let sizes: Vec<usize> = g.type_of(y).unwrap().1.iter().map(|dim| dim.as_fixed().unwrap()).collect();
    let count = sizes.iter().product();
    let weights = tensor(dtype, &values(99, count, 0.3), &sizes);
    let weights = g.unnamed_constant(&weights).unwrap();
    let y = g.cast(y, dtype).unwrap();
    let y = g.mul(y, weights).unwrap();
    let axes: Vec<usize> = (0..sizes.len()).collect();
    let loss = g.reduce(Reduction::Sum, y, &axes).unwrap();
    g.output("loss", loss).unwrap();
    g.finish().unwrap()
}

fn gradient_graph(graph: &Graph, segments: &[Segment]) -> Graph {
    let loss = graph.outputs()[0].1;
    let made = differentiate(graph, loss, graph.inputs(), segments, None).unwrap();
    let mut g = made.builder;
    for (place, gradient) in made.gradients.iter().enumerate() {
        g.output(&format!("g{place}"), *gradient).unwrap();
    }
    g.output("loss", made.values[loss]).unwrap();
    g.finish().unwrap()
}

fn check_as(
    checked: GradientCheck,
    name: &str,
    dims: &[&[usize]],
    build: impl Fn(&mut GraphBuilder, &[NodeId]) -> NodeId,
) {
    let graph = forward(dims, checked.dtype, &build);
    let gradients = gradient_graph(&graph, &[]);
    let points: Vec<Vec<f64>> = dims
        .iter()
        .enumerate()
        .map(|(place, dims)| values(place as u64 + 1, dims.iter().product(), checked.shift))
        .collect();
    let inputs = |points: &[Vec<f64>]| -> Vec<Tensor> {
        points.iter().zip(dims).map(|(values, dims)| tensor(checked.dtype, values, dims)).collect()
    };
    let got = run(&gradients, &inputs(&points));
    let loss = |points: &[Vec<f64>]| to_f64(&run(&graph, &inputs(points))[0])[0];
    for (place, gradient) in got[..dims.len()].iter().enumerate() {
        assert_eq!(gradient.shape().dims(), dims[place], "{name}: gradient {place}");
        let gradient = to_f64(gradient);
        for (element, got) in gradient.iter().enumerate() {
            let at = |by: f64| {
                let mut moved = points.clone();
                moved[place][element] += by;
                loss(&moved)
            };
            let expected = (at(checked.step) - at(-checked.step)) / (2.0 * checked.step);
            let limit = checked.tolerance * (1.0 + expected.abs());
            assert!((expected - got).abs() <= limit, "{name}, input {place}, element {element}: {expected} and {got}");
        }
    }
}

fn check(name: &str, dims: &[&[usize]], build: impl Fn(&mut GraphBuilder, &[NodeId]) -> NodeId) {
    check_as(F64, name, dims, build);
}

#[test]
fn functions_of_one_value() {
    for op in UnaryOp::ALL {
        let checked = match op {
            UnaryOp::Log | UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip => POSITIVE,
            // These are step functions. The shift keeps the inputs away from the jumps, so the
            // derivative is zero.
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => GradientCheck { shift: 0.0271, ..F64 },
            _ => F64,
        };
        check_as(checked, op.name(), &[&[3, 5]], |g, x| g.unary(*op, x[0]).unwrap());
    }
}

#[test]
fn functions_of_two_values_with_broadcasting() {
    for op in BinaryOp::ALL {
        let checked = if matches!(op, BinaryOp::Pow | BinaryOp::Div | BinaryOp::Rem) { POSITIVE } else { F64 };
        check_as(checked, op.name(), &[&[2, 3, 4], &[3, 1]], |g, x| {
            let y = g.with_number(BinaryOp::Add, x[1], 0.011).unwrap();
            g.binary(*op, x[0], y).unwrap()
        });
    }
    check("a scalar", &[&[], &[4]], |g, x| g.mul(x[0], x[1]).unwrap());
}

#[test]
fn functions_of_three_values() {
    for op in TernaryOp::ALL {
        check(op.name(), &[&[4, 3], &[3], &[4, 1]], |g, x| match op {
            TernaryOp::Clamp => {
                let low = g.map(&[x[1]], |v| v[0].clone() * 0.1 - 1.0).unwrap();
                let high = g.map(&[x[2]], |v| v[0].clone() * 0.1 + 1.0).unwrap();
                g.ternary(*op, x[0], low, high).unwrap()
            }
            _ => g.ternary(*op, x[0], x[1], x[2]).unwrap(),
        });
    }
}

#[test]
fn expressions_with_shared_parts_and_casts() {
    check("shared", &[&[6], &[6]], |g, x| {
        let y = g.map(x, |v| {
            let product = v[0].clone() * v[1].clone();
            (product.clone() + product.clone().exp()).tanh() * product.sigmoid()
        });
        y.unwrap()
    });
    check_as(F32, "cast", &[&[6]], |g, x| {
        let wide = g.cast(x[0], DType::F64).unwrap();
        g.map(&[wide], |v: &[Expr]| v[0].clone() * v[0].clone() * 3.0).unwrap()
    });
}

#[test]
fn views() {
    check("reshape", &[&[2, 6]], |g, x| g.reshape(x[0], &[3.into(), 4.into()]).unwrap());
    check("permute", &[&[2, 3, 4]], |g, x| g.permute(x[0], &[2, 0, 1]).unwrap());
    check("broadcast", &[&[3, 1]], |g, x| g.broadcast(x[0], &[2.into(), 3.into(), 4.into()]).unwrap());
    check("slice", &[&[4, 7]], |g, x| g.slice(x[0], 1, 1, 6, 2).unwrap());
    check("slice of one", &[&[4, 7]], |g, x| g.slice(x[0], 0, 2, 3, 1).unwrap());
    check("transpose", &[&[2, 3, 4]], |g, x| g.op(&[x[0]], |t| Transpose::with_order(&t[0], &[1, 2, 0])).unwrap());
}

#[test]
fn products() {
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let a: &[usize] = if ta { &[4, 3] } else { &[3, 4] };
        let b: &[usize] = if tb { &[5, 4] } else { &[4, 5] };
        let name = format!("matmul {ta} {tb}");
        check(&name, &[a, b], |g, x| {
            g.op(&[x[0], x[1]], |t| MatMul { transpose_a: ta, transpose_b: tb, ..MatMul::new(&t[0], &t[1]).alpha(1.5) })
                .unwrap()
        });
        let (a3, b3) = ([&[2], a].concat(), [&[2], b].concat());
        let build = |g: &mut GraphBuilder, x: &[NodeId]| {
            let made = |t: &[Tensor]| MatMul { transpose_a: ta, transpose_b: tb, ..MatMul::new(&t[0], &t[1]) };
            g.op(&[x[0], x[1]], made).unwrap()
        };
        check(&name, &[&a3, &b3], build);
        check(&name, &[&a3, b], build);
        check(&name, &[a, &b3], build);
        check(&name, &[&[&[2, 1], a].concat(), &[&[3], b].concat()], build);
    }
    for activation in [Activation::Relu, Activation::Gelu, Activation::Silu, Activation::Sigmoid, Activation::Tanh] {
        check("epilogue", &[&[3, 4], &[4, 2], &[3, 1], &[2]], |g, x| {
            g.op(x, |t| MatMul::new(&t[0], &t[1]).beta(0.5, &t[2]).bias(&t[3]).activation(activation)).unwrap()
        });
    }
}

#[test]
fn convolutions() {
    let plain = ConvOptions::default();
    let strided = ConvOptions { stride: [2, 1], padding: [1, 0, 2, 1], dilation: [1, 2], groups: 1 };
    let grouped = ConvOptions { groups: 2, padding: [1; 4], stride: [2, 2], ..plain };
    for options in [plain, strided, grouped] {
        let weights: &[usize] = &[4, 4 / options.groups, 3, 2];
        check("conv2d", &[&[2, 4, 6, 5], weights], |g, x| g.conv2d(x[0], x[1], options).unwrap());
        let output = {
            let (x, w) =
                (Tensor::zeros(DType::F64, [2, 4, 6, 5]).unwrap(), Tensor::zeros(DType::F64, weights).unwrap());
            Conv2d::new(&x, &w).options(options).output_shape().unwrap().to_vec()
        };
        check("transposed", &[&output, weights], |g, x| {
            g.op(&[x[0], x[1]], |t| Conv2dBackwardInput::new(&t[0], &t[1], [6, 5]).options(options)).unwrap()
        });
        check("by weights", &[&[2, 4, 6, 5], &output], |g, x| {
            g.op(&[x[0], x[1]], |t| Conv2dBackwardWeight::new(&t[0], &t[1], [3, 2]).options(options)).unwrap()
        });
    }
    check("epilogue", &[&[1, 2, 4, 4], &[3, 2, 3, 3], &[3]], |g, x| {
        g.op(x, |t| Conv2d::new(&t[0], &t[1]).bias(&t[2]).activation(Activation::Tanh)).unwrap()
    });
}

#[test]
fn pools() {
    for (kernel, stride, padding) in [
        ([2, 2], [2, 2], [0; 4]),
        ([3, 2], [3, 2], [0; 4]),
        ([3, 3], [2, 2], [1; 4]),
        ([2, 3], [1, 2], [0, 1, 1, 0]),
        ([6, 6], [6, 6], [0; 4]),
        ([2, 2], [3, 3], [0; 4]),
    ] {
        let name = format!("{kernel:?} {stride:?} {padding:?}");
        // For windows without overlap and gaps, f64 uses another op than f32.
        for checked in [F64, GradientCheck { step: 1e-2, ..F32 }] {
            check_as(checked, &format!("max {name}"), &[&[2, 2, 6, 6]], |g, x| {
                g.op(&[x[0]], |t| Pool2d::max(&t[0], kernel).stride(stride).padding(padding)).unwrap()
            });
        }
        check_as(F32, &format!("average {name}"), &[&[2, 2, 6, 6]], |g, x| {
            g.op(&[x[0]], |t| Pool2d::average(&t[0], kernel).stride(stride).padding(padding)).unwrap()
        });
        for count_padding in [false, true] {
            check(&format!("average {name}"), &[&[2, 2, 6, 6]], |g, x| {
                let pool = |t: &[Tensor]| {
                    Pool2d::average(&t[0], kernel).stride(stride).padding(padding).count_padding(count_padding)
                };
                g.op(&[x[0]], pool).unwrap()
            });
        }
    }
}

#[test]
fn reductions() {
    for reduction in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min] {
        for axes in [vec![0], vec![1, 2], vec![0, 1, 2], vec![]] {
            let name = format!("{} {axes:?}", reduction.name());
            check(&name, &[&[2, 3, 4]], |g, x| g.reduce(reduction, x[0], &axes).unwrap());
            check(&name, &[&[2, 3, 4]], |g, x| {
                g.op(&[x[0]], |t| Reduce::new(&t[0], reduction).axes(&axes).keep_dims()).unwrap()
            });
        }
    }
}

#[test]
fn rows() {
    for axis in 0..3 {
        check("softmax", &[&[2, 3, 4]], |g, x| g.softmax(x[0], axis).unwrap());
        check("log softmax", &[&[2, 3, 4]], |g, x| g.op(&[x[0]], |t| Softmax::new(&t[0]).axis(axis).log()).unwrap());
    }
    check("layer norm", &[&[3, 5], &[5], &[5]], |g, x| g.layer_norm(x[0], x[1], x[2]).unwrap());
    check("two axes", &[&[3, 2, 5], &[2, 5]], |g, x| {
        g.op(x, |t| LayerNorm::new(&t[0]).weight(&t[1]).trailing_axes(2).epsilon(1e-3)).unwrap()
    });
    check("rms", &[&[3, 5], &[5], &[5]], |g, x| {
        g.op(x, |t| LayerNorm::new(&t[0]).weight(&t[1]).bias(&t[2]).rms()).unwrap()
    });
    check("bare", &[&[3, 5]], |g, x| g.op(x, |t| LayerNorm::new(&t[0])).unwrap());
}

#[test]
fn attention() {
    check_as(F32, "plain", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 3]], |g, x| {
        g.op(x, |t| Attention::new(&t[0], &t[1], &t[2])).unwrap()
    });
    check_as(F32, "grouped", &[&[1, 4, 3, 2], &[1, 2, 3, 2], &[1, 2, 3, 2]], |g, x| {
        g.op(x, |t| Attention::new(&t[0], &t[1], &t[2]).causal().scale(0.4)).unwrap()
    });
    check_as(F32, "masked", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 3], &[3, 5]], |g, x| {
        g.op(x, |t| Attention::new(&t[0], &t[1], &t[2]).mask(&t[3])).unwrap()
    });
}

#[test]
fn picks() {
    let indices = |g: &mut GraphBuilder, values: &[i32], dims: &[usize]| {
        g.unnamed_constant(&Tensor::from_slice(values, dims).unwrap()).unwrap()
    };
    for axis in 0..3 {
        check("gather", &[&[4, 4, 4]], |g, x| {
            let picked = indices(g, &[3, 0, -1, 2, 0, 1], &[2, 3]);
            g.op(&[x[0], picked], |t| Gather::new(&t[0], &t[1], axis)).unwrap()
        });
        check("along", &[&[2, 2, 2]], |g, x| {
            let mut dims = vec![2, 2, 2];
            dims[axis] = 3;
            let picked = indices(g, &[0, 1, -1, 0, 1, 1, 0, 0, 1, -2, 1, 0], &dims);
            g.op(&[x[0], picked], |t| Gather::along(&t[0], &t[1], axis)).unwrap()
        });
        check("topk", &[&[3, 4, 5]], |g, x| g.op_pair(&[x[0]], |t| TopK::new(&t[0], 2).axis(axis)).unwrap().0);
        check("sort", &[&[3, 4, 5]], |g, x| g.op(&[x[0]], |t| Sort::new(&t[0]).axis(axis).descending()).unwrap());
        for (reversed, excludes_own) in [(false, false), (true, false), (false, true), (true, true)] {
            check("scan", &[&[2, 3, 4]], |g, x| {
                g.op(&[x[0]], |t| Scan { reversed, excludes_own, ..Scan::sum(&t[0]).axis(axis) }).unwrap()
            });
        }
    }
}

#[test]
fn resized_images() {
    for mode in [ResizeMode::Nearest, ResizeMode::Bilinear, ResizeMode::Area] {
        for (layout, dims) in [(ImageLayout::Nchw, [1, 2, 4, 5]), (ImageLayout::Nhwc, [1, 4, 5, 2])] {
            for (height, width) in [(8, 7), (3, 2), (4, 5)] {
                check_as(F32, &format!("{mode:?}"), &[&dims], |g, x| {
                    g.op(&[x[0]], |t| Resize::new(&t[0], height, width).mode(mode).layout(layout)).unwrap()
                });
            }
        }
    }
}

#[test]
fn a_mean_over_a_symbol_is_divided_by_its_size() {
    let mut g = Graph::builder("batch");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F64, &[batch, 3.into()]).unwrap();
    let y = g.mul(x, x).unwrap();
    let loss = g.reduce(Reduction::Mean, y, &[0, 1]).unwrap();
    g.output("loss", loss).unwrap();
    let gradients = gradient_graph(&g.finish().unwrap(), &[]);
    for rows in [1, 4, 7] {
        let x = tensor(DType::F64, &values(1, rows * 3, 0.0), &[rows, 3]);
        let got = to_f64(&run(&gradients, std::slice::from_ref(&x))[0]);
        for (x, got) in to_f64(&x).iter().zip(got) {
            assert!((2.0 * x / (rows * 3) as f64 - got).abs() < 1e-12);
        }
    }
}

#[test]
fn what_has_no_derivative_says_so_and_names_the_node() {
    let mut g = Graph::builder("scan");
    let x = g.input("x", DType::F32, &[4.into()]).unwrap();
    let y = g.op(&[x], |t| Scan::new(&t[0], panoply_core::op::compute::ScanKind::Max)).unwrap();
    g.rename(y, "running").unwrap();
    let loss = g.reduce(Reduction::Sum, y, &[0]).unwrap();
    g.output("loss", loss).unwrap();
    let graph = g.finish().unwrap();
    let refused = differentiate(&graph, graph.outputs()[0].1, &[0], &[], None).unwrap_err().to_string();
    assert!(refused.contains("running = scan(x: f32[4])"), "{refused}");
    assert!(differentiate(&graph, 1, &[0], &[], None).is_err(), "not a scalar");
    assert!(differentiate(&graph, 99, &[0], &[], None).is_err() && differentiate(&graph, 2, &[99], &[], None).is_err());
}

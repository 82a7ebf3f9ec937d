//! Ops between the convolutions of a network on channels-last (NHWC) images: joins of whole images
//! and of parts, resizing, padding, pools, and channel means that scale the channels.

use panoply_models::{Array, ElementType};

use super::{agree, dims_of, floats_of, numbers};
use crate::bench::runtime;
use crate::onnx::*;

const DIMS: [usize; 4] = [2, 9, 11, 20];

fn sizes(name: &str, values: &[i64]) -> Message {
    i64s(name, &[values.len() as i64], values)
}

/// Image `a` is the input after Relu, `b` the negated input.
fn images() -> [Message; 3] {
    [
        node("Transpose", &["x"], &["turned"], &[ints("perm", &[0, 3, 1, 2])]),
        node("Relu", &["turned"], &["a"], &[]),
        node("Neg", &["turned"], &["b"], &[]),
    ]
}

/// Compares the outputs of these nodes with the host's. Graph outputs are row-major, so an `Abs`
/// follows each node to leave its own layout free.
fn check(nodes: Vec<Message>, shown: &[&str], constants: &[Message]) {
    let names: Vec<String> = shown.iter().map(|name| format!("{name}_out")).collect();
    let behind = shown.iter().zip(&names).map(|(name, out)| node("Abs", &[name], &[out], &[]));
    let nodes: Vec<Message> = images().into_iter().chain(nodes).chain(behind).collect();
    let ports = [port("x", ElementType::F32, &dims_of(&DIMS))];
    let outputs: Vec<Message> = names.iter().map(|name| any(name)).collect();
    let file = model(18, &graph(&nodes, constants, &ports, &outputs));
    let given = [("x", Array::from_slice(&numbers(DIMS.iter().product(), 6), DIMS).unwrap().into())];
    assert!(agree(&runtime(), &file, &given, 1e-5).starts_with("1 graph of"));
}

#[test]
fn joins() {
    let nodes = vec![
        node("Split", &["a", "parts"], &["front", "back"], &[int("axis", 1)]),
        node("Tanh", &["back"], &["bent"], &[]),
        node("Concat", &["a", "b"], &["both"], &[int("axis", 1)]),
        node("Concat", &["front", "b", "back", "bent"], &["shuffled"], &[int("axis", 1)]),
        node("Concat", &["a", "plain", "b"], &["mixed"], &[int("axis", 1)]),
        node("Concat", &["a", "b"], &["taller"], &[int("axis", 2)]),
        node("Concat", &["a", "b"], &["wider"], &[int("axis", 3)]),
        node("Concat", &["a", "b"], &["more"], &[int("axis", 0)]),
    ];
    let constants = [sizes("parts", &[7, 13]), floats_of("plain", &[2, 3, 9, 11], 5)];
    check(nodes, &["both", "shuffled", "mixed", "taller", "wider", "more"], &constants);
}

#[test]
fn planes_of_other_sizes() {
    let resized = |name: &str, scales: &str, to: &str, mode: &str| {
        node("Resize", &["a", "", scales, to], &[name], &[text("mode", mode)])
    };
    let smooth = [text("mode", "linear"), int("antialias", 1)];
    let nodes = vec![
        node("Resize", &["a", "", "double"], &["near"], &[text("mode", "nearest")]),
        resized("linear", "", "odd", "linear"),
        resized("cubic", "", "odd", "cubic"),
        resized("higher", "", "tall", "linear"),
        resized("picked", "", "few", "nearest"),
        node("Resize", &["a", "", "", "small"], &["fewer"], &smooth),
        node("Pad", &["a", "around", "seven"], &["framed"], &[]),
        node("Pad", &["a", "sides"], &["mirrored"], &[text("mode", "reflect")]),
        node("Pad", &["a", "everywhere", "seven"], &["larger"], &[]),
        node("Tile", &["a", "times"], &["tiled"], &[]),
    ];
    let constants = [
        f32s("double", &[4], &[1.0, 1.0, 2.0, 2.0]),
        sizes("odd", &[2, 20, 13, 7]),
        sizes("tall", &[2, 20, 21, 11]),
        sizes("few", &[2, 20, 5, 17]),
        sizes("small", &[2, 20, 4, 5]),
        sizes("around", &[0, 0, 2, 1, 0, 0, 1, 3]),
        sizes("sides", &[0, 0, 0, 2, 0, 0, 3, 1]),
        sizes("everywhere", &[0, 1, 1, 0, 1, 2, 0, 2]),
        sizes("times", &[1, 1, 2, 3]),
        f32s("seven", &[1], &[7.0]),
    ];
    let shown = ["near", "linear", "cubic", "higher", "picked", "fewer", "framed", "mirrored", "larger", "tiled"];
    check(nodes, &shown, &constants);
}

#[test]
fn pools_and_means() {
    let pool = |op: &str, name: &str, [size, stride, pads]: [i64; 3]| {
        let attributes = [ints("kernel_shape", &[size; 2]), ints("strides", &[stride; 2]), ints("pads", &[pads; 4])];
        node(op, &["a"], &[name], &attributes)
    };
    let nodes = vec![
        pool("MaxPool", "greatest", [3, 2, 1]),
        pool("MaxPool", "wide", [5, 1, 2]),
        pool("AveragePool", "halves", [2, 2, 0]),
        pool("AveragePool", "means", [3, 2, 1]),
        node("GlobalAveragePool", &["a"], &["mean"], &[]),
        node("GlobalMaxPool", &["b"], &["top"], &[]),
        node("ReduceMean", &["b", "plane"], &["scale"], &[int("keepdims", 1)]),
        node("Sigmoid", &["scale"], &["gate"], &[]),
        node("Mul", &["a", "gate"], &["gated"], &[]),
        node("ReduceMax", &["b", "channel"], &["crest"], &[int("keepdims", 1)]),
    ];
    let shown = ["greatest", "wide", "halves", "means", "mean", "top", "gated", "crest"];
    check(nodes, &shown, &[sizes("plane", &[2, 3]), sizes("channel", &[1])]);
}

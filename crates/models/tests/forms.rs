//! Custom kernels of models (concatenation, resampled planes, recurrent layers) on every kind of
//! device: whole graphs, compared with the host's answers.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use crate::bench::compare;
use crate::each::{numbers, on_each, weights};
use crate::onnx::*;
use panoply_models::{Array, ElementType, Network, Value};
use panoply_runtime::RunOptions;

/// Tests a model that is one graph, which each device has to run whole.
fn answers_on_devices(name: &str, file: &Message, given: &[(&str, Value)], absolute: f64) {
    // On devices that replay graphs with one call, the second run is recorded and later runs replay
    // it.
    answers_in_turns(name, file, given, absolute, 4);
}

fn answers_in_turns(name: &str, file: &Message, given: &[(&str, Value)], absolute: f64, turns: usize) {
    let expected = Network::from_bytes(&file.0).unwrap().reference(given).unwrap();
    on_each(|runtime, device| {
        let network = Network::from_bytes(&file.0).unwrap();
        for turn in 0..turns {
            let got = network
                .infer_values(runtime, given, &RunOptions::require(device))
                .unwrap_or_else(|error| panic!("{name}, turn {turn} on {device}: {error}"));
            assert_eq!(got.len(), expected.len());
            assert_eq!(without_numbers(&got), without_numbers(&expected), "{name}, turn {turn} on {device}");
            for (got, expected) in got.iter().zip(&expected) {
                compare(got, expected, 1e-4, absolute)
                    .unwrap_or_else(|reason| panic!("{name}, turn {turn} on {device}: {reason}"));
            }
        }
        let steps = network.steps();
        assert!(steps.starts_with("1 graph of") && steps.ends_with("nothing"), "{name}: {steps}");
    });
}

/// Number of NaNs in each output.
fn without_numbers(values: &[Value]) -> Vec<usize> {
    let count = |value: &Value| value.array().unwrap().to_floats().unwrap().iter().filter(|x| x.is_nan()).count();
    values.iter().map(count).collect()
}

fn array(dims: &[usize], seed: u32) -> Value {
    Array::from_slice(&numbers(dims.iter().product(), seed), dims).unwrap().into()
}

fn given(dims: &[usize], seed: u32) -> (Vec<Message>, Vec<(&'static str, Value)>) {
    let sizes: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
    (vec![port("x", ElementType::F32, &sizes)], vec![("x", array(dims, seed))])
}

#[test]
fn joins() {
    let ten: Vec<&str> = ["x", "c", "x", "c", "c", "x", "x", "c", "x", "x"].to_vec();
    let nodes = [
        node("Concat", &["x", "c", "x"], &["rows"], &[int("axis", 1)]),
        node("Concat", &["x", "x"], &["columns"], &[int("axis", -1)]),
        node("Concat", &ten, &["many"], &[int("axis", 1)]),
        node("Cast", &["x"], &["half"], &[int("to", 10)]),
        node("Concat", &["half", "half"], &["halves"], &[int("axis", 0)]),
        node("Cast", &["halves"], &["back"], &[int("to", 1)]),
        node("Greater", &["x", "c1"], &["above"], &[]),
        node("Cast", &["above"], &["bits"], &[int("to", 6)]),
        node("Concat", &["bits", "bits"], &["pairs"], &[int("axis", 2)]),
    ];
    let constants = [weights("c", &[2, 1, 6], 3), f32s("c1", &[1], &[0.1])];
    let (ports, given) = given(&[2, 3, 6], 1);
    let outputs = [any("rows"), any("columns"), any("many"), any("back"), any("pairs")];
    answers_on_devices("joins", &model(18, &graph(&nodes, &constants, &ports, &outputs)), &given, 1e-6);
}

/// Rows of small elements with an odd length: a 32-bit word holds parts of two rows or of two
/// sources.
#[test]
fn joins_and_frames_of_parts_of_words() {
    let sizes = |name: &str, values: &[i64]| i64s(name, &[values.len() as i64], values);
    let nodes = [
        node("Cast", &["x"], &["half"], &[int("to", 10)]),
        node("Slice", &["half", "from", "to", "axis"], &["part"], &[]),
        node("Concat", &["half", "part", "half"], &["halves"], &[int("axis", 2)]),
        node("Pad", &["half", "around", "seven"], &["framed"], &[]),
        node("Pad", &["half", "around"], &["edge"], &[text("mode", "edge")]),
        node("Tile", &["part", "times"], &["tiled"], &[]),
        node("Greater", &["x", "c"], &["above"], &[]),
        node("Cast", &["above"], &["bits"], &[int("to", 2)]),
        node("Concat", &["bits", "bits", "bits"], &["bytes"], &[int("axis", 1)]),
        node("Concat", &["bits", "bits"], &["pairs"], &[int("axis", 2)]),
        node("Pad", &["bits", "around", "nine"], &["framed_bytes"], &[]),
        node("Tile", &["bits", "times"], &["tiled_bytes"], &[]),
        node("Cast", &["above"], &["numbers"], &[int("to", 6)]),
        node("Pad", &["numbers", "around", "less"], &["framed_numbers"], &[]),
        node("Cast", &["halves"], &["o0"], &[int("to", 1)]),
        node("Cast", &["framed"], &["o1"], &[int("to", 1)]),
        node("Cast", &["edge"], &["o2"], &[int("to", 1)]),
        node("Cast", &["tiled"], &["o3"], &[int("to", 1)]),
    ];
    let seven = tensor("seven", ElementType::F16, &[1], &0x4700_u16.to_le_bytes());
    let nine = tensor("nine", ElementType::U8, &[1], &[9]);
    let constants = [
        sizes("from", &[1]),
        sizes("to", &[4]),
        sizes("axis", &[2]),
        sizes("around", &[1, 0, 2, 0, 3, 1]),
        sizes("times", &[1, 2, 3]),
        i32s("less", &[1], &[-2]),
        f32s("c", &[1], &[0.1]),
        seven,
        nine,
    ];
    let outputs = ["o0", "o1", "o2", "o3", "bytes", "pairs", "framed_bytes", "tiled_bytes", "framed_numbers"].map(any);
    let file = model(18, &graph(&nodes, &constants, &[port("x", ElementType::F32, &[3, 3, 5])], &outputs));
    let (_, given) = given(&[3, 3, 5], 21);
    answers_on_devices("parts of words", &file, &given, 1e-6);
}

#[test]
fn planes_of_other_sizes() {
    let sizes = |name: &str, values: &[i64]| i64s(name, &[values.len() as i64], values);
    let nodes = [
        node("Resize", &["x", "", "double"], &["near"], &[text("mode", "nearest")]),
        node("Resize", &["x", "", "", "odd"], &["linear"], &[text("mode", "linear")]),
        node("Resize", &["x", "", "", "odd"], &["cubic"], &[text("mode", "cubic")]),
        node("Resize", &["x", "", "", "small"], &["fewer"], &[text("mode", "linear"), int("antialias", 1)]),
    ];
    let constants =
        [f32s("double", &[4], &[1.0, 1.0, 2.0, 2.0]), sizes("odd", &[2, 3, 11, 4]), sizes("small", &[2, 3, 2, 3])];
    let (ports, given) = given(&[2, 3, 5, 7], 2);
    let outputs = [any("near"), any("linear"), any("cubic"), any("fewer")];
    answers_on_devices("resize", &model(18, &graph(&nodes, &constants, &ports, &outputs)), &given, 1e-6);
}

#[test]
fn frames_and_tiles() {
    let sizes = |name: &str, values: &[i64]| i64s(name, &[values.len() as i64], values);
    let nodes = [
        node("Pad", &["x", "around", "seven"], &["constant"], &[]),
        node("Pad", &["x", "last"], &["reflect"], &[text("mode", "reflect")]),
        node("Pad", &["x", "around"], &["edge"], &[text("mode", "edge")]),
        node("Pad", &["x", "wide"], &["wrap"], &[text("mode", "wrap")]),
        node("Pad", &["x", "less", "seven"], &["cut"], &[]),
        node("Tile", &["x", "times"], &["tiled"], &[]),
        node("Reshape", &["x", "flat"], &["line"], &[]),
        node("Pad", &["line", "ends", "seven"], &["longer"], &[]),
    ];
    let constants = [
        sizes("around", &[1, 0, 2, 1, 0, 3, 1, 2]),
        sizes("last", &[0, 0, 0, 3, 0, 0, 2, 1]),
        sizes("wide", &[0, 2, 0, 9, 0, 1, 4, 0]),
        sizes("less", &[0, -1, 1, -2, 0, 0, -1, 1]),
        sizes("times", &[2, 1, 3, 2]),
        sizes("flat", &[-1]),
        sizes("ends", &[2, 3]),
        f32s("seven", &[1], &[7.0]),
    ];
    let (ports, given) = given(&[2, 3, 4, 5], 4);
    let outputs = ["constant", "reflect", "edge", "wrap", "cut", "tiled", "longer"].map(any);
    answers_on_devices("pad", &model(18, &graph(&nodes, &constants, &ports, &outputs)), &given, 1e-6);
}

#[test]
fn elements_that_are_put_somewhere() {
    let reductions = ["none", "add", "mul", "max", "min"];
    let mut nodes: Vec<Message> = reductions
        .iter()
        .map(|kind| node("ScatterElements", &["x", "rows", "u"], &[kind], &[text("reduction", kind)]))
        .collect();
    let attributes = [text("reduction", "add"), int("axis", 1)];
    nodes.push(node("ScatterElements", &["x", "columns", "v"], &["middle"], &attributes));
    let rows: Vec<i64> = (0..7 * 3 * 5).map(|at| (at * 31 % 8 - 4) as i64).collect();
    let columns: Vec<i64> = (0..4 * 2 * 5).map(|at| (at * 17 % 3) as i64).collect();
    let constants = [
        i64s("rows", &[7, 3, 5], &rows),
        i64s("columns", &[4, 2, 5], &columns),
        f32s("u", &[7, 3, 5], &numbers(7 * 3 * 5, 6)),
        f32s("v", &[4, 2, 5], &numbers(4 * 2 * 5, 7)),
    ];
    let (ports, given) = given(&[4, 3, 5], 5);
    let outputs = ["none", "add", "mul", "max", "min", "middle"].map(any);
    answers_on_devices("scatter", &model(18, &graph(&nodes, &constants, &ports, &outputs)), &given, 1e-6);
}

#[test]
fn recurrent_layers() {
    let (steps, batch, input, hidden) = (5, 3, 4, 6);
    let layer = |op: &str, gates: i64, directions: i64, name: &str, attributes: &[Message], rest: &[&str]| {
        let made: Vec<String> = ["w", "r", "b"].iter().map(|of| format!("{name}_{of}")).collect();
        let mut inputs = vec!["x", &made[0], &made[1], &made[2]];
        inputs.extend_from_slice(rest);
        let (all, last, cells) = (format!("{name}_all"), format!("{name}_last"), format!("{name}_cells"));
        let mut outputs = vec![all.as_str(), last.as_str()];
        if op == "LSTM" {
            outputs.push(&cells);
        }
        let mut attributes = attributes.to_vec();
        attributes.push(int("hidden_size", hidden));
        let node = node(op, &inputs, &outputs, &attributes);
        let constants = [
            weights(&made[0], &[directions, gates * hidden, input], 11),
            weights(&made[1], &[directions, gates * hidden, hidden], 12),
            weights(&made[2], &[directions, 2 * gates * hidden], 13),
        ];
        let outputs: Vec<Message> = outputs.iter().map(|name| any(name)).collect();
        (node, constants, outputs)
    };
    let both = text("direction", "bidirectional");
    let layers = [
        layer("LSTM", 4, 2, "lstm", std::slice::from_ref(&both), &["lengths", "h", "c"]),
        layer("LSTM", 4, 1, "plain", &[], &[]),
        layer("GRU", 3, 2, "gru", &[both, int("linear_before_reset", 1)], &["", "h"]),
        layer("RNN", 1, 1, "rnn", &[text("direction", "reverse"), texts("activations", &["Relu"])], &["lengths"]),
        layer("RNN", 1, 1, "tanh", &[], &[]),
    ];
    let (mut nodes, mut outputs) = (Vec::new(), Vec::new());
    let mut constants = vec![
        i32s("lengths", &[batch], &[5, 1, 3]),
        weights("h", &[2, batch, hidden], 14),
        weights("c", &[2, batch, hidden], 15),
    ];
    for (node, own, made) in layers {
        nodes.push(node);
        constants.extend(own);
        outputs.extend(made);
    }
    let (ports, given) = given(&[steps as usize, batch as usize, input as usize], 16);
    let file = model(18, &graph(&nodes, &constants, &ports, &outputs));
    answers_on_devices("recurrent", &file, &given, 1e-6);
    // A NaN in one row reaches all later steps of the row, and no other row.
    let mut numbers = given[0].1.array().unwrap().as_slice::<f32>().unwrap().to_vec();
    numbers[(3 + 2) * 4] = f32::NAN;
    let given = [("x", Value::from(Array::from_slice(&numbers, [5, 3, 4]).unwrap()))];
    let expected = Network::from_bytes(&file.0).unwrap().reference(&given).unwrap();
    assert!(without_numbers(&expected).iter().all(|count| *count > 0), "{:?}", without_numbers(&expected));
    answers_on_devices("recurrent without numbers", &file, &given, 1e-6);
}

/// More units than a block's shared memory holds.
#[test]
fn recurrent_layers_of_many_units() {
    let (steps, batch, input) = (2, 2, 4);
    let both = text("direction", "bidirectional");
    let layers = [
        ("LSTM", 4, 520, vec![text("direction", "reverse")], vec!["lengths", "lstm_h", "lstm_c"]),
        ("GRU", 3, 690, vec![int("linear_before_reset", 1)], vec!["lengths", "gru_h"]),
        ("RNN", 1, 1030, vec![both, texts("activations", &["Relu", "Relu"])], vec![]),
    ];
    let mut constants = vec![i32s("lengths", &[batch], &[1, 2])];
    let (mut nodes, mut outputs) = (Vec::new(), Vec::new());
    for (place, (op, gates, hidden, mut attributes, rest)) in layers.into_iter().enumerate() {
        let (name, directions) = (op.to_lowercase(), if place == 2 { 2 } else { 1 });
        let own = ["w", "r", "b", "h", "c", "all", "last", "cells"].map(|of| format!("{name}_{of}"));
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        attributes.push(int("hidden_size", hidden));
        // Small weights keep the sums of many products in the curved range of the activations.
        let small = |name: &str, dims: &[i64], seed: u32| {
            let numbers = numbers(dims.iter().product::<i64>() as usize, seed);
            f32s(name, dims, &numbers.iter().map(|number| number * 0.2).collect::<Vec<_>>())
        };
        constants.extend([
            small(own[0], &[directions, gates * hidden, input], 31),
            small(own[1], &[directions, gates * hidden, hidden], 32),
            small(own[2], &[directions, 2 * gates * hidden], 33),
            small(own[3], &[directions, batch, hidden], 34),
            small(own[4], &[directions, batch, hidden], 35),
        ]);
        // One layer requests the last state only.
        let mut made = if place == 1 { vec!["", own[6]] } else { vec![own[5], own[6]] };
        made.extend((op == "LSTM").then_some(own[7]));
        nodes.push(node(op, &[&["x", own[0], own[1], own[2]], &rest[..]].concat(), &made, &attributes));
        outputs.extend(made.iter().filter(|name| !name.is_empty()).map(|name| any(name)));
    }
    let (ports, given) = given(&[steps, batch as usize, input as usize], 36);
    let file = model(18, &graph(&nodes, &constants, &ports, &outputs));
    answers_in_turns("many units", &file, &given, 1e-5, 2);
}

/// Composed elementwise functions, with arguments near their branch points and far from them.
#[test]
fn functions_of_one_element() {
    let names = ["Sign", "Softplus", "Mish", "Elu", "Celu", "Selu", "Shrink"];
    let nodes: Vec<Message> = names
        .iter()
        .map(|name| {
            let attributes: &[Message] = match *name {
                "Elu" | "Celu" => &[float("alpha", 1.7)],
                "Shrink" => &[float("bias", 0.3), float("lambd", 0.4)],
                _ => &[],
            };
            node(name, &["x"], &[name], attributes)
        })
        .collect();
    let values: Vec<f32> = [-90.0, -20.5, -5.001, -4.9, -0.45, -0.26, -0.24, -1e-3, -1e-6, -0.0, 0.0]
        .into_iter()
        .chain([1e-6, 0.2, 0.41, 1.0, 4.0, 19.0, 21.0, 80.0, f32::INFINITY, f32::NEG_INFINITY])
        .collect();
    let len = values.len();
    let given = [("x", Value::from(Array::from_slice(&values, [len]).unwrap()))];
    let outputs: Vec<Message> = names.iter().map(|name| any(name)).collect();
    let ports = [port("x", ElementType::F32, &[len as i64])];
    answers_on_devices("functions", &model(22, &graph(&nodes, &[], &ports, &outputs)), &given, 1e-14);
}

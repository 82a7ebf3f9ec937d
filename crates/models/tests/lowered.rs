//! Nodes that graphs compute differently from the host: recurrent layers, byte products, scatter.
//! Each is compared with the host's loops, which share only the ONNX file with the graph.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

mod images;

use crate::bench::{compare, runtime};
use crate::onnx::*;
use panoply_models::{Array, ElementType, Network, Value};
use panoply_runtime::Runtime;

/// Pseudo-random numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn dims_of(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|dim| *dim as i64).collect()
}

fn floats_of(name: &str, dims: &[usize], seed: u64) -> Message {
    f32s(name, &dims_of(dims), &numbers(dims.iter().product(), seed))
}

/// Compares a model on the host with two runs on devices. Returns its graphs and host steps.
fn agree(runtime: &Runtime, model: &Message, inputs: &[(&str, Value)], off: f64) -> String {
    let expected = Network::from_bytes(&model.0).unwrap().reference(inputs).unwrap();
    let network = Network::from_bytes(&model.0).unwrap();
    for _ in 0..2 {
        let got = network.infer_values(runtime, inputs, &Default::default()).unwrap();
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(&expected) {
            compare(got, expected, off, off).unwrap();
        }
    }
    network.steps()
}

struct Layer {
    op: &'static str,
    gates: usize,
    attributes: Vec<Message>,
}

fn layers() -> Vec<Layer> {
    let layer = |op, gates, attributes: &[Message]| Layer { op, gates, attributes: attributes.to_vec() };
    vec![
        layer("LSTM", 4, &[]),
        layer("GRU", 3, &[int("linear_before_reset", 1)]),
        layer("GRU", 3, &[]),
        layer("RNN", 1, &[]),
        layer("RNN", 1, &[texts("activations", &["Relu", "Relu"])]),
        layer("LSTM", 4, &[texts("activations", &["Sigmoid", "Tanh", "Relu", "Sigmoid", "Tanh", "Relu"])]),
        layer("LSTM", 4, &[Message::default().text(1, "clip").float(2, 0.4).number(20, 1)]),
    ]
}

#[test]
fn recurrent_layers() {
    let runtime = runtime();
    for (number, layer) in layers().into_iter().enumerate() {
        let shapes = [(7, 1, 5, 3), (6, 17, 33, 20), (3, 5, 8, 64), (20, 9, 12, 70)];
        for (steps, batch, input, hidden) in shapes {
            for (direction, count) in [("forward", 1), ("reverse", 1), ("bidirectional", 2)] {
                for (lengths, states) in [(false, false), (true, true), (false, true)] {
                    let rows = layer.gates * hidden;
                    let seed = (number * 100 + steps) as u64;
                    let mut constants = vec![
                        floats_of("w", &[count, rows, input], seed),
                        // Small, so that the rounding errors of f32 do not grow with each step.
                        f32s(
                            "r",
                            &dims_of(&[count, rows, hidden]),
                            &numbers(count * rows * hidden, seed + 1).iter().map(|r| r * 0.15).collect::<Vec<_>>(),
                        ),
                        floats_of("b", &[count, 2 * rows], seed + 2),
                    ];
                    let lens: Vec<i32> = (0..batch).map(|row| (row * 5 % (steps + 1)) as i32).collect();
                    let bytes: Vec<u8> = lens.iter().flat_map(|len| len.to_le_bytes()).collect();
                    constants.push(tensor("l", ElementType::I32, &[batch as i64], &bytes));
                    constants.push(floats_of("c0", &[count, batch, hidden], seed + 3));
                    let mut given = vec!["x", "w", "r", "b", if lengths { "l" } else { "" }];
                    given.push(if states { "h0" } else { "" });
                    if layer.op == "LSTM" {
                        given.push(if states { "c0" } else { "" });
                    }
                    let made: &[&str] = if layer.op == "LSTM" { &["y", "yh", "yc"] } else { &["y", "yh"] };
                    let mut attributes = layer.attributes.clone();
                    attributes.extend([int("hidden_size", hidden as i64), text("direction", direction)]);
                    let node = node(layer.op, &given, made, &attributes);
                    let port = |name: &str, dims: &[usize]| port(name, ElementType::F32, &dims_of(dims));
                    let ports = [port("x", &[steps, batch, input]), port("h0", &[count, batch, hidden])];
                    let outputs: Vec<Message> = made.iter().map(|name| any(name)).collect();
                    let model = model(14, &graph(&[node], &constants, &ports, &outputs));
                    let array = |dims: &[usize], seed: u64| {
                        Value::from(Array::from_slice(&numbers(dims.iter().product(), seed), dims).unwrap())
                    };
                    let inputs = [
                        ("x", array(&[steps, batch, input], seed + 4)),
                        ("h0", array(&[count, batch, hidden], seed + 5)),
                    ];
                    let steps = agree(&runtime, &model, &inputs, 2e-5);
                    assert!(steps.ends_with("on the host nothing"), "{} is on the host: {steps}", layer.op);
                }
            }
        }
    }
}

/// Weights carried unchanged, directly or through an `Identity`, beside numbers that change.
#[test]
fn loops_that_carry_constants() {
    let float = |name: &str, dims: &[i64]| port(name, ElementType::F32, dims);
    let body = graph(
        &[
            node("MatMul", &["h", "w"], &["hw"], &[]),
            node("Add", &["hw", "b"], &["h2"], &[]),
            node("Add", &["b", "one"], &["b2"], &[]),
            node("Identity", &["w"], &["w2"], &[]),
            node("Identity", &["go"], &["on"], &[]),
            node("MatMul", &["h2", "u"], &["seen"], &[]),
        ],
        &[f32s("one", &[1], &[1.0])],
        &[
            port("i", ElementType::I64, &[]),
            port("go", ElementType::Bool, &[]),
            float("h", &[1, 2]),
            float("w", &[2, 2]),
            float("b", &[1]),
            float("u", &[2, 1]),
        ],
        &["on", "h2", "w2", "b2", "u", "seen"].map(any),
    );
    let (w, u) = ([0.5_f32, -0.25, 0.125, 1.0], [2.0_f32, -1.0]);
    let constants =
        [i64s("turns", &[], &[3]), f32s("w0", &[2, 2], &w), f32s("b0", &[1], &[0.5]), f32s("u0", &[2, 1], &u)];
    let names = ["h3", "w3", "b3", "u3", "all"];
    let turns = node("Loop", &["turns", "", "x", "w0", "b0", "u0"], &names, &[graph_of("body", &body)]);
    let model = model(18, &graph(&[turns], &constants, &[float("x", &[1, 2])], &names.map(any)));
    let (mut h, mut b, mut seen) = ([1.0_f32, -3.0], 0.5_f32, Vec::new());
    let x = Value::from(Array::from_slice(&h, [1, 2]).unwrap());
    for _ in 0..3 {
        h = [h[0] * w[0] + h[1] * w[2] + b, h[0] * w[1] + h[1] * w[3] + b];
        b += 1.0;
        seen.push(h[0] * u[0] + h[1] * u[1]);
    }
    let network = Network::from_bytes(&model.0).unwrap();
    for _ in 0..2 {
        let got = network.infer_values(&runtime(), &[("x", x.clone())], &Default::default()).unwrap();
        let expected: [(&[f32], &[usize]); 5] =
            [(&h, &[1, 2]), (&w, &[2, 2]), (&[b], &[1]), (&u, &[2, 1]), (&seen, &[3, 1, 1])];
        assert_eq!(got.len(), expected.len());
        for (got, (values, dims)) in got.iter().zip(expected) {
            compare(got, &Value::from(Array::from_slice(values, dims).unwrap()), 1e-6, 1e-6).unwrap();
        }
    }
}

#[test]
fn products_of_changing_bytes() {
    let runtime = runtime();
    // Includes the extreme bytes, for which sums of pairs exceed 16 bits.
    let extremes = |count: usize, kind: ElementType, seed: u64| {
        let (low, high) = if kind == ElementType::U8 { (0_u8, 255_u8) } else { (0x80, 0x7f) };
        let byte = |(at, value): (usize, f32)| match at % 3 {
            0 => high,
            1 if value < 0.0 => low,
            _ => (value * 127.0) as i8 as u8,
        };
        numbers(count, seed).into_iter().enumerate().map(byte).collect::<Vec<u8>>()
    };
    let kinds = [ElementType::U8, ElementType::I8];
    for (a_kind, b_kind) in kinds.into_iter().flat_map(|a| kinds.map(|b| (a, b))) {
        for (a_dims, b_dims) in [
            (vec![1, 1], vec![1, 1]),
            (vec![2, 3, 33, 65], vec![2, 3, 65, 17]),
            (vec![7, 300], vec![4, 300, 40]),
            (vec![2, 5, 64], vec![64, 128]),
        ] {
            for zeros in [false, true] {
                let given: &[&str] = if zeros { &["a", "b", "az", "bz"] } else { &["a", "b"] };
                let node = node("MatMulInteger", given, &["y"], &[]);
                let ports = [
                    port("a", a_kind, &dims_of(&a_dims)),
                    port("b", b_kind, &dims_of(&b_dims)),
                    port("az", a_kind, &[]),
                    port("bz", b_kind, &[]),
                ];
                let model = model(14, &graph(&[node], &[], &ports, &[any("y")]));
                let array = |kind, dims: &[usize], seed| {
                    let bytes = extremes(dims.iter().product(), kind, seed);
                    Value::from(Array::from_bytes(kind, dims, &bytes).unwrap())
                };
                let inputs = [
                    ("a", array(a_kind, &a_dims, 3)),
                    ("b", array(b_kind, &b_dims, 4)),
                    ("az", array(a_kind, &[], 5)),
                    ("bz", array(b_kind, &[], 6)),
                ];
                let steps = agree(&runtime, &model, &inputs, 0.0);
                assert!(steps.ends_with("on the host nothing"), "{steps}");
            }
        }
    }
}

#[test]
fn floats_that_were_bytes() {
    let runtime = runtime();
    for (kind, zero) in [(ElementType::U8, 0_u8), (ElementType::U8, 131), (ElementType::I8, 0), (ElementType::I8, 250)]
    {
        for (weights, zeros) in [(ElementType::I8, 0_u8), (ElementType::U8, 128)] {
            for (dims, n, by_column) in [(vec![3, 5, 64], 70, true), (vec![19, 33], 1, false), (vec![1, 500], 40, true)]
            {
                let k = dims[dims.len() - 1];
                let bytes: Vec<u8> =
                    numbers(k * n, 3).iter().map(|value| (value * 127.0) as i8 as u8 ^ zeros).collect();
                let (columns, shape) = if by_column { (n, vec![n as i64]) } else { (1, Vec::new()) };
                let scales: Vec<f32> = numbers(columns, 4).iter().map(|value| 0.01 + value.abs() * 0.02).collect();
                let constants = [
                    tensor("q", weights, &[k as i64, n as i64], &bytes),
                    f32s("qs", &shape, &scales),
                    tensor("qz", weights, &shape, &vec![zeros; columns]),
                    f32s("s", &[], &[0.0173]),
                    tensor("z", kind, &[], &[zero]),
                ];
                let nodes = [
                    node("QuantizeLinear", &["x", "s", "z"], &["xq"], &[]),
                    node("DequantizeLinear", &["xq", "s", "z"], &["xd"], &[]),
                    node("DequantizeLinear", &["q", "qs", "qz"], &["w"], &[int("axis", 1)]),
                    node("MatMul", &["xd", "w"], &["y"], &[]),
                ];
                let ports = [port("x", ElementType::F32, &dims_of(&dims))];
                let model = model(14, &graph(&nodes, &constants, &ports, &[any("y")]));
                let x: Vec<f32> = numbers(dims.iter().product(), 9).iter().map(|value| value * 3.0).collect();
                let inputs = [("x", Value::from(Array::from_slice(&x, &dims).unwrap()))];
                let steps = agree(&runtime, &model, &inputs, 1e-5);
                assert!(steps.ends_with("on the host nothing"), "{steps}");
            }
        }
    }
}

/// Scales whose product overflows f32, a zero scale, and an axis attribute with a single scale.
#[test]
fn floats_that_were_bytes_have_scales_of_any_size() {
    let runtime = runtime();
    let bytes: Vec<u8> = numbers(8 * 3, 3).iter().map(|value| (value * 5.0) as i8 as u8).collect();
    for (a, b, axis, largest) in [(1e25, 1e25, 1, 0), (0.0, 1.0, 1, 15), (0.5, 0.25, 2, 15)] {
        let constants = [tensor("q", ElementType::I8, &[8, 3], &bytes), f32s("a", &[], &[a]), f32s("b", &[], &[b])];
        let nodes = [
            node("DequantizeLinear", &["x", "a"], &["xd"], &[]),
            node("DequantizeLinear", &["q", "b"], &["w"], &[int("axis", axis)]),
            node("MatMul", &["xd", "w"], &["y"], &[]),
        ];
        let ports = [port("x", ElementType::I8, &[2, 8])];
        let model = model(14, &graph(&nodes, &constants, &ports, &[any("y")]));
        let x: Vec<u8> = (0..16_u8).map(|at| at.min(largest)).collect();
        let inputs = [("x", Value::from(Array::from_bytes(ElementType::I8, [2, 8], &x).unwrap()))];
        agree(&runtime, &model, &inputs, 1e-6);
    }
}

/// Folding copies shared weights for each normalization, only as long as a model has room.
#[test]
fn normalizations_of_shared_weights_are_folded_where_there_is_room() {
    const SIZE: usize = 1024;
    let size = SIZE as i64;
    let (mut nodes, count) = (Vec::new(), 40);
    for place in 0..count {
        let (convolved, normal) = (format!("c{place}"), format!("y{place}"));
        nodes.push(node("Conv", &["x", "w"], &[&convolved], &[]));
        nodes.push(node("BatchNormalization", &[&convolved, "s", "b", "m", "v"], &[&normal], &[]));
    }
    let [weights, scale, bias, mean] =
        [(SIZE * SIZE, 1), (SIZE, 2), (SIZE, 3), (SIZE, 4)].map(|(n, seed)| numbers(n, seed));
    let constants = [
        f32s("w", &[size, size, 1, 1], &weights),
        f32s("s", &[size], &scale),
        f32s("b", &[size], &bias),
        f32s("m", &[size], &mean),
        f32s("v", &[size], &[0.25; SIZE]),
    ];
    let outputs = ["y0".to_owned(), format!("y{}", count - 1)].map(|name| any(&name));
    let ports = [port("x", ElementType::F32, &[1, size, 1, 1])];
    let network = Network::from_bytes(&model(15, &graph(&nodes, &constants, &ports, &outputs)).0).unwrap();
    let x = numbers(SIZE, 5);
    let inputs = [("x", Value::from(Array::from_slice(&x, [1, SIZE, 1, 1]).unwrap()))];
    let expected: Vec<f32> = (0..SIZE)
        .map(|filter| {
            let products = weights[filter * SIZE..][..SIZE].iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let [scale, bias, mean] = [&scale, &bias, &mean].map(|list| f64::from(list[filter]));
            ((products.sum::<f64>() - mean) / (0.25_f64 + f64::from(1e-5_f32)).sqrt() * scale + bias) as f32
        })
        .collect();
    let expected = Value::from(Array::from_slice(&expected, [1, SIZE, 1, 1]).unwrap());
    for got in network.infer_values(&runtime(), &inputs, &Default::default()).unwrap() {
        compare(&got, &expected, 1e-4, 1e-4).unwrap();
    }
}

/// The expected result of a scatter, element by element.
fn scattered(x: &[f32], dims: [usize; 2], places: &[i64], updates: &[f32], reduction: &str) -> Vec<f32> {
    let mut made = x.to_vec();
    for (at, update) in updates.iter().enumerate() {
        let index = if places[at] < 0 { places[at] + dims[0] as i64 } else { places[at] } as usize;
        let old = &mut made[index * dims[1] + at % dims[1]];
        *old = match reduction {
            "none" => *update,
            "add" => *old + update,
            "mul" => *old * update,
            "max" => old.max(*update),
            _ => old.min(*update),
        };
    }
    made
}

#[test]
fn rows_and_elements_are_put_alike() {
    let runtime = runtime();
    let (dims, count) = ([6, 5], 9);
    let index = |at: usize, by_row: bool| (if by_row { at / dims[1] * 7 } else { at * 5 } % 11) as i64 - 5;
    for reduction in ["none", "add", "mul", "max", "min"] {
        for by_row in [true, false] {
            let places: Vec<i64> = (0..count * dims[1]).map(|at| index(at, by_row)).collect();
            let (x, updates) = (numbers(dims[0] * dims[1], 1), numbers(count * dims[1], 2));
            let node = node("ScatterElements", &["x", "i", "u"], &["y"], &[text("reduction", reduction)]);
            let ports = [
                port("x", ElementType::F32, &dims_of(&dims)),
                port("i", ElementType::I64, &[count as i64, dims[1] as i64]),
                port("u", ElementType::F32, &[count as i64, dims[1] as i64]),
            ];
            let model = model(18, &graph(&[node], &[], &ports, &[any("y")]));
            let network = Network::from_bytes(&model.0).unwrap();
            let inputs = [
                ("x", Value::from(Array::from_slice(&x, dims).unwrap())),
                ("i", Array::from_slice(&places, [count, dims[1]]).unwrap().into()),
                ("u", Array::from_slice(&updates, [count, dims[1]]).unwrap().into()),
            ];
            let made = network.reference(&inputs).unwrap();
            let expected = scattered(&x, dims, &places, &updates, reduction);
            assert_eq!(made[0].array().unwrap().as_slice::<f32>().unwrap(), expected, "{reduction} {by_row}");
            // The only step on the host converts the indices.
            let steps = agree(&runtime, &model, &inputs, 0.0);
            assert!(steps.starts_with("1 graph of") && steps.ends_with("on the host 1 indices"), "{steps}");
        }
    }
}

/// Elements along a middle axis, and rows selected by tuples of one index.
#[test]
fn elements_are_put_and_rows_picked_along_any_axis() {
    let runtime = runtime();
    let dims = [3, 700, 40];
    let indices = |count: usize, below: usize| -> Vec<i64> {
        (0..count).map(|at| (at * 7919 % (2 * below)) as i64 - below as i64).collect()
    };
    for (axis, count) in [(0_usize, 5_usize), (1, 900), (2, 3), (1, 1)] {
        let mut updates = dims;
        updates[axis] = count;
        let len: usize = updates.iter().product();
        let attributes = [text("reduction", "add"), int("axis", axis as i64)];
        let nodes = [
            node("ScatterElements", &["x", "i", "u"], &["y"], &attributes),
            node("GatherND", &["y", "t"], &["z"], &[]),
        ];
        let ports = [
            port("x", ElementType::F32, &dims_of(&dims)),
            port("i", ElementType::I64, &dims_of(&updates)),
            port("u", ElementType::F32, &dims_of(&updates)),
            port("t", ElementType::I64, &[2, 4, 1]),
        ];
        let model = model(18, &graph(&nodes, &[], &ports, &[any("y"), any("z")]));
        let inputs = [
            ("x", Value::from(Array::from_slice(&numbers(dims.iter().product(), 3), dims).unwrap())),
            ("i", Array::from_slice(&indices(len, dims[axis]), updates).unwrap().into()),
            ("u", Array::from_slice(&numbers(len, 4), updates).unwrap().into()),
            ("t", Array::from_slice(&indices(8, dims[0]), [2, 4, 1]).unwrap().into()),
        ];
        let steps = agree(&runtime, &model, &inputs, 0.0);
        assert!(steps.starts_with("1 graph of") && steps.ends_with("on the host 2 indices"), "{axis} {count}: {steps}");
    }
}

/// A layer norm node by node, with this power, epsilon and axis of the means.
fn spelled_out(power: &[f32], epsilon: &[f32], axis: i64, outputs: &[&str]) -> (Message, [usize; 3]) {
    let dims = [2, 3, 70];
    let mean = [ints("axes", &[axis])];
    let nodes = [
        node("ReduceMean", &["x"], &["mean"], &mean),
        node("Sub", &["x", "mean"], &["centred"], &[]),
        node("Pow", &["centred", "power"], &["squares"], &[]),
        node("ReduceMean", &["squares"], &["variance"], &mean),
        node("Add", &["variance", "epsilon"], &["more"], &[]),
        node("Sqrt", &["more"], &["deviation"], &[]),
        node("Div", &["centred", "deviation"], &["normal"], &[]),
        node("Mul", &["normal", "weight"], &["scaled"], &[]),
        node("Relu", &["scaled"], &["y"], &[]),
    ];
    let scalar = |name: &str, values: &[f32]| {
        let dims: Vec<i64> = if values.len() == 1 { Vec::new() } else { vec![values.len() as i64, 1] };
        f32s(name, &dims, values)
    };
    let constants = [scalar("power", power), scalar("epsilon", epsilon), floats_of("weight", &dims[2..], 3)];
    let ports = [port("x", ElementType::F32, &dims_of(&dims))];
    let outputs: Vec<Message> = outputs.iter().map(|name| any(name)).collect();
    (model(13, &graph(&nodes, &constants, &ports, &outputs)), dims)
}

/// The expected values of every node, computed in plain loops along the lines of an axis.
fn normalized(x: &[f32], dims: [usize; 3], power: f64, epsilon: impl Fn(usize) -> f64, axis: usize) -> [Vec<f32>; 2] {
    let weight = numbers(dims[2], 3);
    let (mut centred, mut results) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let stride: usize = dims[axis + 1..].iter().product();
    for start in (0..x.len()).filter(|at| (at / stride).is_multiple_of(dims[axis])) {
        let line: Vec<usize> = (0..dims[axis]).map(|index| start + index * stride).collect();
        let mean = line.iter().map(|at| f64::from(x[*at])).sum::<f64>() / line.len() as f64;
        let squares = line.iter().map(|at| (f64::from(x[*at]) - mean).powf(power)).sum::<f64>();
        let deviation = (squares / line.len() as f64 + epsilon(start / dims[2] % dims[1])).sqrt();
        for at in line {
            centred[at] = (f64::from(x[at]) - mean) as f32;
            results[at] = (f64::from(centred[at]) / deviation * f64::from(weight[at % dims[2]])).max(0.0) as f32;
        }
    }
    [results, centred]
}

/// Nodes that form a layer norm become one op, and similar nodes are left unchanged.
#[test]
fn layer_norms_that_are_spelled_out() {
    let runtime = runtime();
    let rows = [0.1, 0.4, 3.0];
    for (power, epsilon, axis, outputs, nodes) in [
        (&[2.0][..], &[0.3][..], -1, &["y"][..], 3),
        // The centred numbers are an output too.
        (&[2.0], &[0.3], -1, &["y", "centred"], 5),
        (&[4.0], &[0.3], -1, &["y"], 9),
        // The op has neither an epsilon for each row nor other axes.
        (&[2.0], &rows, -1, &["y"], 9),
        (&[2.0], &[0.3], 1, &["y"], 9),
    ] {
        let (model, dims) = spelled_out(power, epsilon, axis, outputs);
        let x = numbers(dims.iter().product(), 11);
        let inputs = [("x", Value::from(Array::from_slice(&x, dims).unwrap()))];
        let network = Network::from_bytes(&model.0).unwrap();
        assert_eq!(network.nodes(), nodes, "{power:?} {epsilon:?} {axis} {outputs:?}");
        let axis = if axis < 0 { 2 } else { axis as usize };
        let epsilon_of = |row: usize| f64::from(epsilon[row % epsilon.len()]);
        let expected = normalized(&x, dims, f64::from(power[0]), epsilon_of, axis);
        let made = [
            network.reference(&inputs).unwrap(),
            network.infer_values(&runtime, &inputs, &Default::default()).unwrap(),
        ];
        for (made, expected) in made.iter().flat_map(|made| made.iter().zip(&expected)) {
            let expected = Value::from(Array::from_slice(expected, dims).unwrap());
            compare(made, &expected, 1e-5, 1e-5).unwrap();
        }
    }
}

/// Nodes that compute y from x, the number that remain, and the expected y.
type DecomposedCase = (Vec<Message>, usize, Box<dyn Fn(f64) -> f64>);

fn binary(op: &str, left: &str, right: &str, made: &str) -> Message {
    node(op, &[left, right], &[made], &[])
}

fn unary(op: &str, from: &str, made: &str) -> Message {
    node(op, &[from], &[made], &[])
}

/// Spelled-out activations become one op each, in any operand order; other numbers prevent that.
#[test]
fn activations_that_are_spelled_out() {
    let runtime = runtime();
    let numbers_of: [(&str, f32); 6] =
        [("root", 2.0_f32.sqrt()), ("one", 1.0), ("half", 0.5), ("three", 3.0), ("six", 6.0), ("zero", 0.0)];
    let constants = numbers_of.map(|(name, number)| f32s(name, &[], &[number]));
    let dims = [3, 70];
    let x: Vec<f32> = numbers(210, 5).iter().map(|x| 5.0 * x).collect();
    let inputs = [("x", Value::from(Array::from_slice(&x, dims).unwrap()))];
    for (number, (nodes, count, function)) in gelus().iter().chain(&swishes()).enumerate() {
        let ports = [port("x", ElementType::F32, &dims_of(&dims))];
        let network = Network::from_bytes(&model(14, &graph(nodes, &constants, &ports, &[any("y")])).0).unwrap();
        assert_eq!(network.nodes(), *count, "case {number}");
        let expected: Vec<f32> = x.iter().map(|x| function(f64::from(*x)) as f32).collect();
        let expected = Value::from(Array::from_slice(&expected, dims).unwrap());
        compare(&network.reference(&inputs).unwrap()[0], &expected, 2e-6, 2e-6).unwrap();
        let made = network.infer_values(&runtime, &inputs, &Default::default()).unwrap();
        compare(&made[0], &expected, 2e-6, 2e-6).unwrap();
    }
}

fn gelus() -> Vec<DecomposedCase> {
    let gelu = |x: f64| 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt()));
    let scaled = [binary("Div", "x", "root", "scaled"), unary("Erf", "scaled", "e"), binary("Add", "e", "one", "more")];
    let with = |last: &[Message]| [&scaled, last].concat();
    let behind_others = vec![
        unary("Identity", "x", "same"),
        binary("Div", "same", "root", "scaled"),
        unary("Erf", "scaled", "e"),
        unary("Identity", "e", "same_e"),
        binary("Add", "same_e", "one", "more"),
        binary("Mul", "x", "more", "p"),
        binary("Mul", "p", "half", "y"),
    ];
    vec![
        (with(&[binary("Mul", "x", "more", "p"), binary("Mul", "p", "half", "y")]), 1, Box::new(gelu)),
        (with(&[binary("Mul", "half", "x", "p"), binary("Mul", "p", "more", "y")]), 1, Box::new(gelu)),
        (with(&[binary("Mul", "more", "half", "p"), binary("Mul", "x", "p", "y")]), 1, Box::new(gelu)),
        (
            with(&[binary("Mul", "x", "more", "p"), binary("Mul", "p", "three", "y")]),
            5,
            Box::new(move |x| 6.0 * gelu(x)),
        ),
        (behind_others, 1, Box::new(gelu)),
    ]
}

fn swishes() -> Vec<DecomposedCase> {
    let swish = |x: f64| x / (1.0 + (-x).exp());
    let hard_swish = |x: f64| x * (x + 3.0).clamp(0.0, 6.0) / 6.0;
    let hard = |alpha: f32| {
        let alpha = Message::default().text(1, "alpha").float(2, alpha).number(20, 1);
        node("HardSigmoid", &["x"], &["s"], &[alpha])
    };
    let clipped = |limit: &str, last: [Message; 2]| {
        let clip = node("Clip", &["three_more", "zero", limit], &["clipped"], &[]);
        [&[binary("Add", "x", "three", "three_more"), clip][..], &last].concat()
    };
    let divided_last = || [binary("Mul", "x", "clipped", "p"), binary("Div", "p", "six", "y")];
    let divided_first = [binary("Div", "clipped", "six", "p"), binary("Mul", "p", "x", "y")];
    vec![
        (vec![unary("Sigmoid", "x", "s"), binary("Mul", "x", "s", "y")], 1, Box::new(swish)),
        (vec![unary("Sigmoid", "x", "s"), binary("Mul", "s", "x", "y")], 1, Box::new(swish)),
        (clipped("six", divided_last()), 1, Box::new(hard_swish)),
        (clipped("six", divided_first), 1, Box::new(hard_swish)),
        (clipped("three", divided_last()), 4, Box::new(|x| x * (x + 3.0).clamp(0.0, 3.0) / 6.0)),
        (vec![hard(1.0 / 6.0), binary("Mul", "x", "s", "y")], 1, Box::new(hard_swish)),
        (vec![hard(0.2), binary("Mul", "x", "s", "y")], 2, Box::new(|x| x * (0.2 * x + 0.5).clamp(0.0, 1.0))),
    ]
}

/// The error function by its integral: Simpson's rule.
fn erf(x: f64) -> f64 {
    let (steps, height) = (2000, x / 2000.0);
    let value = |step: usize| (-(step as f64 * height).powi(2)).exp();
    let weighted = |step: usize| {
        if step == 0 || step == steps {
            1.0
        } else if step % 2 == 1 {
            4.0
        } else {
            2.0
        }
    };
    (0..=steps).map(|step| weighted(step) * value(step)).sum::<f64>() * height / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
}

/// Regression: looking up each carried value and input took quadratic time.
#[test]
fn a_loop_that_carries_many_constants_is_read_at_once() {
    const CARRIED: usize = 20_000;
    let names = |of: &str| (0..CARRIED).map(|place| format!("{of}{place}")).collect::<Vec<_>>();
    let [weights, own, made, last] = ["w", "own", "made", "last"].map(names);
    let mut nodes: Vec<Message> =
        own.iter().zip(&made).map(|(own, made)| node("Identity", &[own], &[made], &[])).collect();
    nodes.push(node("Identity", &["go"], &["on"], &[]));
    let mut inputs = vec![any("turn"), any("go")];
    inputs.extend(own.iter().map(|name| any(name)));
    let mut outputs = vec![any("on")];
    outputs.extend(made.iter().map(|name| any(name)));
    let body = graph(&nodes, &[], &inputs, &outputs);
    let mut given = vec!["turns", ""];
    given.extend(weights.iter().map(String::as_str));
    let last: Vec<&str> = last.iter().map(String::as_str).collect();
    let mut constants: Vec<Message> = weights.iter().map(|name| f32s(name, &[1], &[1.0])).collect();
    constants.push(i64s("turns", &[], &[2]));
    let nodes = [node("Loop", &given, &last, &[graph_of("body", &body)])];
    let file = model(18, &graph(&nodes, &constants, &[], &[any(last[CARRIED - 1])]));
    let started = std::time::Instant::now();
    let network = Network::from_bytes(&file.0).unwrap();
    assert!(started.elapsed() < std::time::Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(network.reference(&[]).unwrap()[0].array().unwrap().to_floats().unwrap(), [1.0]);
}

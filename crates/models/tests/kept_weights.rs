//! Weights that devices cache in an order of their own. The cached weights are those of their model
//! for as long as it exists, and weights that come with each run are read again in each run. Each
//! answer is compared with that of plain loops.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use crate::bench::runtime;
use crate::onnx::*;
use panoply_models::{Array, ElementType, Network, Value};
use panoply_runtime::Runtime;

/// Filters, channels, and height and width of kernels. With `SIDES`, one image has pixels in vector
/// lanes, the other has filters in them.
const KERNEL: [usize; 4] = [40, 6, 3, 3];
const SIDES: [usize; 2] = [12, 3];

/// Small integers, whose sums of products are exact in f32.
fn whole(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1013 % 9) as f32 - 4.0).collect()
}

/// A convolution of both images with the same weights, which are constants or inputs, and a product
/// of the same kind.
fn model_of(weights: Option<(&[f32], &[f32])>) -> Network {
    let dims = KERNEL.map(|dim| dim as i64);
    let pads = ints("pads", &[1, 1, 1, 1]);
    let nodes = [
        node("Conv", &["x0", "w"], &["y0"], std::slice::from_ref(&pads)),
        node("Conv", &["x1", "w"], &["y1"], &[pads]),
        node("MatMul", &["a", "m"], &["y2"], &[]),
    ];
    let image = |side: usize| [1, KERNEL[1] as i64, side as i64, side as i64];
    let mut ports = vec![
        port("x0", ElementType::F32, &image(SIDES[0])),
        port("x1", ElementType::F32, &image(SIDES[1])),
        port("a", ElementType::F32, &[5, 16]),
    ];
    let constants = match weights {
        Some((w, m)) => vec![f32s("w", &dims, w), f32s("m", &[16, 33], m)],
        None => {
            ports.extend([port("w", ElementType::F32, &dims), port("m", ElementType::F32, &[16, 33])]);
            Vec::new()
        }
    };
    let outputs = ["y0", "y1", "y2"].map(any);
    Network::from_bytes(&model(14, &graph(&nodes, &constants, &ports, &outputs)).0).unwrap()
}

fn weights(seed: usize) -> (Vec<f32>, Vec<f32>) {
    (whole(KERNEL.iter().product(), seed), whole(16 * 33, seed + 1))
}

fn array(values: &[f32], dims: &[usize]) -> Value {
    Array::from_slice(values, dims).unwrap().into()
}

fn images(seed: usize) -> Vec<(&'static str, Value)> {
    let image = |side: usize, seed| {
        let dims = [1, KERNEL[1], side, side];
        array(&whole(dims.iter().product(), seed), &dims)
    };
    vec![("x0", image(SIDES[0], seed)), ("x1", image(SIDES[1], seed + 1)), ("a", array(&whole(80, seed + 2), &[5, 16]))]
}

/// The convolution of one image, by its definition.
fn convolved(x: &[f32], w: &[f32], side: usize) -> Vec<f32> {
    let [filters, channels, rows, columns] = KERNEL;
    let mut made = Vec::new();
    for (filter, y, x_at) in (0..filters).flat_map(|f| (0..side).flat_map(move |y| (0..side).map(move |x| (f, y, x)))) {
        let mut sum = 0.0;
        for (channel, ky, kx) in
            (0..channels).flat_map(|c| (0..rows).flat_map(move |y| (0..columns).map(move |x| (c, y, x))))
        {
            let (row, column) = ((y + ky).wrapping_sub(1), (x_at + kx).wrapping_sub(1));
            if row < side && column < side {
                let weight = w[((filter * channels + channel) * rows + ky) * columns + kx];
                sum += x[(channel * side + row) * side + column] * weight;
            }
        }
        made.push(sum);
    }
    made
}

/// The expected outputs of the model for these inputs and weights.
fn expected(inputs: &[(&str, Value)], (w, m): &(Vec<f32>, Vec<f32>)) -> Vec<Vec<f32>> {
    let floats = |place: usize| match &inputs[place].1 {
        Value::Array(array) => array.as_slice::<f32>().unwrap().to_vec(),
        other => panic!("{other:?}"),
    };
    let a = floats(2);
    let product = |row: usize, column: usize| (0..16).map(|at| a[row * 16 + at] * m[at * 33 + column]).sum::<f32>();
    let product = (0..5).flat_map(|row| (0..33).map(move |column| product(row, column))).collect();
    vec![convolved(&floats(0), w, SIDES[0]), convolved(&floats(1), w, SIDES[1]), product]
}

fn run(runtime: &Runtime, network: &Network, inputs: &[(&str, Value)]) -> Vec<Vec<f32>> {
    let made = network.infer_values(runtime, inputs, &Default::default()).unwrap();
    let floats = |value: &Value| match value {
        Value::Array(array) => array.as_slice::<f32>().unwrap().to_vec(),
        other => panic!("{other:?}"),
    };
    made.iter().map(floats).collect()
}

#[test]
fn weights_that_come_with_a_run_are_read_in_it() {
    let (runtime, network) = (runtime(), model_of(None));
    for turn in 0..6 {
        let own = weights(turn * 31);
        let mut inputs = images(turn);
        let answer = expected(&inputs, &own);
        inputs.push(("w", array(&own.0, &KERNEL)));
        inputs.push(("m", array(&own.1, &[16, 33])));
        assert_eq!(run(&runtime, &network, &inputs), answer, "turn {turn}");
    }
}

#[test]
fn models_of_one_shape_have_weights_of_their_own() {
    let runtime = runtime();
    // Two models at once, used in turn. Each round frees them and may reuse their addresses.
    for round in 0..8 {
        let pair = [weights(round * 10), weights(round * 10 + 5)];
        let networks = [0, 1].map(|place: usize| model_of(Some((&pair[place].0[..], &pair[place].1[..]))));
        for turn in 0..4 {
            let inputs = images(round + turn);
            let answer = expected(&inputs, &pair[turn % 2]);
            assert_eq!(run(&runtime, &networks[turn % 2], &inputs), answer, "round {round}, turn {turn}");
        }
    }
}

#[test]
fn threads_share_a_model() {
    let (runtime, own) = (runtime(), weights(3));
    let network = model_of(Some((&own.0[..], &own.1[..])));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (runtime, network, own) = (&runtime, &network, &own);
            scope.spawn(move || {
                for turn in 0..5 {
                    let inputs = images(thread * 10 + turn);
                    assert_eq!(run(runtime, network, &inputs), expected(&inputs, own), "thread {thread}, turn {turn}");
                }
            });
        }
    });
}

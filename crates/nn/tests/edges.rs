//! Gradients and losses in edge cases: at zero, without keys, over many elements, and of empty
//! inputs.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::reference::reference;
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Attention, ConvOptions, Gather, Reduction};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Operation, Tensor, f16};
use panoply_nn::grad::differentiate;
use panoply_nn::layers::{BatchNorm, Conv2d, ConvTranspose2d, Dropout};
use panoply_nn::{Layer, Mode, Net, Recording, Result, loss};

fn run(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let op = RunGraph::new(graph, &inputs.iter().collect::<Vec<_>>()).into_op().unwrap();
    reference(&op).unwrap().tensors().cloned().collect()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::F16 => tensor.to_vec::<f16>().unwrap().into_iter().map(f16::to_f32).collect(),
        _ => tensor.to_vec::<f32>().unwrap(),
    }
}

/// The gradients of a graph's first output with respect to its float inputs.
fn gradients(graph: &Graph, inputs: &[Tensor]) -> Vec<Vec<f32>> {
    let floats = graph.inputs().iter().copied().filter(|node| graph.nodes()[*node].dtype.is_float());
    let made = differentiate(graph, graph.outputs()[0].1, &floats.collect::<Vec<_>>(), &[], None).unwrap();
    let mut g = made.builder;
    for (place, gradient) in made.gradients.iter().enumerate() {
        g.output(&format!("g{place}"), *gradient).unwrap();
    }
    run(&g.finish().unwrap(), inputs).iter().map(numbers).collect()
}

/// The gradients of the sum of the recorded node with respect to inputs of these tensors' types and
/// shapes.
fn of_sum(inputs: &[Tensor], record: impl FnOnce(&mut GraphBuilder, &[NodeId]) -> NodeId) -> Vec<Vec<f32>> {
    let mut g = Graph::builder("sum");
    let mut nodes = Vec::new();
    for (place, tensor) in inputs.iter().enumerate() {
        let dims: Vec<_> = tensor.shape().iter().map(|size| (*size).into()).collect();
        nodes.push(g.input(&format!("x{place}"), tensor.dtype(), &dims).unwrap());
    }
    let y = record(&mut g, &nodes);
    let axes: Vec<usize> = (0..g.type_of(y).unwrap().1.len()).collect();
    let loss = g.reduce(Reduction::Sum, y, &axes).unwrap();
    g.output("loss", loss).unwrap();
    gradients(&g.finish().unwrap(), inputs)
}

fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims).unwrap()
}

#[test]
fn a_query_without_keys_passes_nothing_on() {
    let many = |count: usize| (0..count).map(|place| place as f32 * 0.1 - 0.3).collect::<Vec<f32>>();
    let (q, k, v) = (tensor(&many(6), &[1, 3, 2]), tensor(&many(4), &[1, 2, 2]), tensor(&many(4), &[1, 2, 2]));
    // Three queries and two keys: in causal attention the first query sees no key.
    let causal = of_sum(&[q.clone(), k.clone(), v.clone()], |g, x| {
        g.op(x, |t| Attention::new(&t[0], &t[1], &t[2]).causal()).unwrap()
    });
    assert!(causal.iter().flatten().all(|number| number.is_finite()), "{causal:?}");
    assert_eq!(causal[0][..2], [0.0, 0.0]);
    assert_eq!(causal[2].iter().sum::<f32>(), 4.0, "the two other queries have weights of one in all, in each column");
    let inf = f32::NEG_INFINITY;
    let mask = tensor(&[inf, inf, 0.0, inf, 0.0, 0.5], &[3, 2]);
    let masked = of_sum(&[q, k, v, mask], |g, x| g.op(x, |t| Attention::new(&t[0], &t[1], &t[2]).mask(&t[3])).unwrap());
    assert!(masked.iter().flatten().all(|number| number.is_finite()), "{masked:?}");
    assert_eq!(masked[0][..2], [0.0, 0.0]);
}

#[test]
fn a_mean_of_many_16_bit_floats_has_a_gradient() {
    let x = Tensor::from_vec(vec![f16::ONE; 70_000], [70_000]).unwrap();
    let mean = of_sum(std::slice::from_ref(&x), |g, x| g.reduce(Reduction::Mean, x[0], &[0]).unwrap());
    // f16 cannot hold a count of 65,536 or more. Division by that count in f16 used to give zero.
    assert!(mean[0].iter().all(|share| (share * 70_000.0 - 1.0).abs() < 0.01), "{}", mean[0][0]);
    let most = of_sum(&[x], |g, x| {
        let most = g.reduce(Reduction::Max, x[0], &[0]).unwrap();
        g.map(&[most], |v| v[0].clone() * 64.0).unwrap()
    });
    assert!(most[0].iter().all(|share| (share * 70_000.0 / 64.0 - 1.0).abs() < 0.01), "{}", most[0][0]);
}

#[test]
fn slices_of_nothing_pass_zeros_on() {
    let share = of_sum(&[tensor(&[1.0, 2.0, 3.0], &[3])], |g, x| {
        let nothing = g.slice(x[0], 0, 1, 1, 1).unwrap();
        let sum = g.reduce(Reduction::Sum, nothing, &[0]).unwrap();
        let whole = g.reduce(Reduction::Sum, x[0], &[0]).unwrap();
        g.map(&[sum, whole], |v| v[0].clone() * 5.0 + v[1].clone()).unwrap()
    });
    assert_eq!(share, [[1.0; 3]]);
}

#[test]
fn powers_of_zero_have_a_gradient() {
    let bases = tensor(&[0.0, 0.0, 2.0, 3.0], &[4]);
    let exponents = tensor(&[0.0, 2.0, 0.0, 2.0], &[4]);
    let shares = of_sum(&[bases, exponents], |g, x| g.map(x, |v| v[0].clone().pow(v[1].clone())).unwrap());
    assert_eq!(shares[0], [0.0, 0.0, 0.0, 6.0], "as PyTorch has them");
    let expected = [0.0, 0.0, 2.0_f32.ln(), 9.0 * 3.0_f32.ln()];
    assert!(shares[1].iter().zip(expected).all(|(got, wanted)| (got - wanted).abs() < 1e-5), "{:?}", shares[1]);
}

#[test]
fn a_large_table_has_the_gradient_of_a_small_one() {
    for (rows, dtype) in [(7, DType::U32), (5_000, DType::U32), (5_000, DType::I32)] {
        let picks: Vec<i32> = vec![3, rows - 1, 0, 3, 6, rows - 1, 3];
        let indices = match dtype {
            DType::U32 => Tensor::from_vec(picks.iter().map(|pick| *pick as u32).collect(), [7]).unwrap(),
            _ => Tensor::from_vec(picks.iter().map(|pick| if *pick == rows - 1 { -1 } else { *pick }).collect(), [7])
                .unwrap(),
        };
        let weights = tensor(&(0..14).map(|place| place as f32 + 1.0).collect::<Vec<_>>(), &[7, 2]);
        let table = Tensor::zeros(DType::F32, [rows as usize, 2]).unwrap();
        let shares = of_sum(&[table, weights.clone(), indices], |g, x| {
            let picked = g.op(&[x[0], x[2]], |t| Gather::new(&t[0], &t[1], 0)).unwrap();
            g.mul(picked, x[1]).unwrap()
        });
        let mut expected = vec![0.0; rows as usize * 2];
        for (place, pick) in picks.iter().enumerate() {
            expected[*pick as usize * 2] += place as f32 * 2.0 + 1.0;
            expected[*pick as usize * 2 + 1] += place as f32 * 2.0 + 2.0;
        }
        assert_eq!(shares[0], expected, "{rows} rows");
    }
}

#[test]
fn a_large_table_needs_no_matrix_of_rows_by_indices() {
    let mut g = Graph::builder("table");
    let (rows, picks) = (50_000, 4_096);
    let table = g.input("table", DType::F32, &[rows.into(), 8.into()]).unwrap();
    let indices = g.input("indices", DType::U32, &[picks.into()]).unwrap();
    let picked = g.op(&[table, indices], |t| Gather::new(&t[0], &t[1], 0)).unwrap();
    let loss = g.reduce(Reduction::Sum, picked, &[0, 1]).unwrap();
    g.output("loss", loss).unwrap();
    let graph = g.finish().unwrap();
    let made = differentiate(&graph, graph.outputs()[0].1, &[0], &[], None).unwrap();
    let mut g = made.builder;
    g.output("g", made.gradients[0]).unwrap();
    let largest = g
        .finish()
        .unwrap()
        .nodes()
        .iter()
        .map(|node| node.dims.iter().map(|dim| dim.as_fixed().unwrap()).product::<usize>())
        .max();
    assert!(largest.unwrap() <= (rows + 1) * 8, "{largest:?}");
}

/// A network over logits and labels or wanted numbers; its only output is the loss.
fn loss_graph(dims: &[usize], wanted: DType, record: impl FnOnce(&mut Net, NodeId, NodeId) -> Result<NodeId>) -> Graph {
    let mut net = Net::new("loss", Mode::Train);
    let dims: Vec<_> = dims.iter().map(|size| (*size).into()).collect();
    let logits = net.data("logits", DType::F32, &dims).unwrap();
    let labels = net.data("wanted", wanted, if wanted == DType::F32 { &dims } else { &dims[..1] }).unwrap();
    let loss = record(&mut net, logits, labels).unwrap();
    net.finish(&[("loss", loss)]).unwrap().graph
}

#[test]
fn binary_cross_entropy_has_its_slope_at_zero() {
    let graph = loss_graph(&[4], DType::F32, loss::binary_cross_entropy);
    let (logits, wanted) = ([0.0_f32, 0.0, 2.0, -80.0], [1.0_f32, 0.0, 1.0, 0.0]);
    let got = gradients(&graph, &[tensor(&logits, &[4]), tensor(&wanted, &[4])]);
    for ((logit, wanted), got) in logits.iter().zip(wanted).zip(&got[0]) {
        let expected = (1.0 / (1.0 + (-logit).exp()) - wanted) / 4.0;
        assert!((got - expected).abs() < 1e-6, "at {logit}: {expected} and {got}");
    }
}

#[test]
fn rows_with_negative_labels_do_not_count() {
    let values = [0.3_f32, -0.2, 1.0, 2.0, 0.1, -1.0];
    let few = |labels: &[i32], smoothing: f64| {
        let graph = loss_graph(&[labels.len(), 2], DType::I32, |net, logits, labels| {
            loss::cross_entropy(net, logits, labels, smoothing)
        });
        let inputs = [
            tensor(&values[..labels.len() * 2], &[labels.len(), 2]),
            Tensor::from_slice(labels, [labels.len()]).unwrap(),
        ];
        (numbers(&run(&graph, &inputs)[0])[0], gradients(&graph, &inputs)[0].clone())
    };
    for smoothing in [0.0, 0.2] {
        let ((all, by_all), (some, by_some)) = (few(&[1, 0], smoothing), few(&[1, 0, -1], smoothing));
        assert!((all - some).abs() < 1e-6, "{all} and {some}: the last class is not meant by -1");
        assert_eq!(by_some[4..], [0.0, 0.0]);
        assert!(by_all.iter().zip(&by_some).all(|(all, some)| (all - some).abs() < 1e-6));
    }
    assert_eq!(few(&[-100, -1, -2], 0.0), (0.0, vec![0.0; 6]));
    let graph = loss_graph(&[3, 2], DType::I32, loss::accuracy);
    let inputs = [tensor(&values, &[3, 2]), Tensor::from_slice(&[0, 0, -1], [3]).unwrap()];
    assert_eq!(numbers(&run(&graph, &inputs)[0]), [0.5]);
}

fn record(layer: &dyn Layer, dims: &[usize]) -> Result<Recording> {
    let mut net = Net::new("layer", Mode::Train);
    let dims: Vec<_> = dims.iter().map(|size| (*size).into()).collect();
    let x = net.data("x", DType::F32, &dims)?;
    let y = layer.forward(&mut net, x)?;
    let y = loss::mean(&mut net, y)?;
    net.finish(&[("loss", y)])
}

#[test]
fn convolutions_of_nothing_are_refused() {
    let options = ConvOptions::default();
    let layers: [Box<dyn Layer>; 7] = [
        Box::new(ConvTranspose2d::new("up", 4, 4, 0, 1)),
        Box::new(ConvTranspose2d::new("up", 4, 4, usize::MAX, 1)),
        Box::new(ConvTranspose2d::new("up", 4, 4, 3, usize::MAX)),
        Box::new(ConvTranspose2d {
            options: ConvOptions { padding: [usize::MAX; 4], ..options },
            ..ConvTranspose2d::new("up", 4, 4, 3, 1)
        }),
        Box::new(Conv2d::new("conv", 4, 4, 0)),
        Box::new(Conv2d::new("conv", 4, 4, 3).stride(0)),
        Box::new(Conv2d::new("conv", 4, 4, 3).options(ConvOptions { groups: 3, ..options })),
    ];
    for layer in layers {
        let refused = record(&*layer, &[2, 4, 6, 6]).unwrap_err().to_string();
        assert!(refused.contains("layer up") || refused.contains("layer conv"), "{refused}");
    }
}

#[test]
fn a_batch_norm_that_is_used_twice_sees_both() {
    let norm = BatchNorm { momentum: 0.5, ..BatchNorm::new("norm", 1) };
    let twice = move |net: &mut Net, x: NodeId| {
        let y = norm.forward(net, x)?;
        let moved = net.map(&[x], |v| v[0].clone() + 10.0)?;
        let z = norm.forward(net, moved)?;
        Ok(net.add(y, z)?)
    };
    let recording = record(&twice, &[2, 1]).unwrap();
    assert_eq!(recording.updates.len(), 2, "a mean and a variance, once each");
    let mut inputs = vec![tensor(&[1.0, 3.0], &[2, 1])];
    for spec in &recording.specs {
        inputs.push(spec.first(0).unwrap());
    }
    let made = run(&recording.graph, &inputs);
    let place = recording.updates.iter().position(|spec| recording.specs[*spec].name == "norm.running_mean").unwrap();
    // First half of 2, then half of that plus half of 12.
    assert_eq!(numbers(&made[recording.named + place]), [6.5]);
}

#[test]
fn a_dropout_that_is_used_twice_drops_others() {
    let drop = Dropout::new("drop", 0.5);
    let mut net = Net::new("twice", Mode::Train);
    let x = net.data("x", DType::F32, &[1000.into()]).unwrap();
    let (a, b) = (drop.forward(&mut net, x).unwrap(), drop.forward(&mut net, x).unwrap());
    let recording = net.finish(&[("a", a), ("b", b)]).unwrap();
    let made = run(&recording.graph, &[tensor(&[1.0; 1000], &[1000]), Tensor::scalar(5_u32).unwrap()]);
    let same = numbers(&made[0]).iter().zip(numbers(&made[1])).filter(|(a, b)| **a == *b).count();
    assert!((400..600).contains(&same), "{same}");
}

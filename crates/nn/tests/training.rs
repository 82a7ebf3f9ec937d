//! Networks that learn: the loss decreases in the same way on one graph and on several, on one
//! device and on two, with and without faults.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::graph::NodeId;
use panoply_core::{Api, DType, DeviceId, Tensor};
use panoply_cpu::CpuBackend;
use panoply_nn::layers::{
    BatchNorm, Conv2d, Dropout, Embedding, Flatten, Gru, LayerNorm, Linear, Lstm, MaxPool2d, MultiHeadAttention, Relu,
};
use panoply_nn::random::Random;
use panoply_nn::train::{Session, SessionOptions};
use panoply_nn::{Clip, Error, Layer, Mode, Net, Optimiser, Parameters, Recording, Result, Sequential, loss};
use panoply_runtime::Runtime;

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

fn virtual_devices(scripts: Vec<Script>) -> (Arc<Runtime>, Vec<Arc<VirtualControl>>) {
    let count = scripts.len();
    let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::new(CpuBackend::new())), VirtualBackend::device);
    let controls = (0..count).map(|index| backend.control(index).unwrap()).collect();
    (Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap()), controls)
}

/// A classifier over these layers, for training.
fn classifier(layers: &dyn Layer, dims: &[usize], dtype: DType, compute: DType) -> Result<Recording> {
    let mut net = Net::new("classifier", Mode::Train).with_compute(compute);
    let batch = net.symbol("batch")?;
    let dims: Vec<_> = [batch].into_iter().chain(dims.iter().map(|size| (*size).into())).collect();
    let x = net.data("x", dtype, &dims)?;
    let labels = net.data("labels", DType::U32, &[batch])?;
    let logits = layers.forward(&mut net, x)?;
    let loss = loss::cross_entropy(&mut net, logits, labels, 0.0)?;
    let right = loss::accuracy(&mut net, logits, labels)?;
    net.finish(&[("loss", loss), ("accuracy", right)])
}

/// Rows of three classes that a network can separate.
fn rows(count: usize, dims: &[usize], seed: u64) -> Vec<Tensor> {
    let mut random = Random::new(seed, "rows");
    let each: usize = dims.iter().product();
    let labels: Vec<u32> = (0..count).map(|row| (row % 3) as u32).collect();
    let values: Vec<f32> = labels
        .iter()
        .flat_map(|label| {
            let own: Vec<f32> = (0..each)
                .map(|place| random.normal() * 0.5 + if place % 3 == *label as usize { 1.0 } else { -0.3 })
                .collect();
            own
        })
        .collect();
    let x = Tensor::from_vec(values, [&[count], dims].concat()).unwrap();
    vec![x, Tensor::from_vec(labels, [count]).unwrap()]
}

fn mlp() -> Sequential {
    Sequential::new("").with(Linear::new("fc1", 12, 16)).with(Relu).with(Linear::new("fc2", 16, 3))
}

fn losses(session: &mut Session, batch: &[Tensor], steps: usize) -> Vec<f32> {
    (0..steps)
        .map(|_| {
            let outcome = session.step(batch).unwrap();
            session.figures(outcome.step).unwrap()[0]
        })
        .collect()
}

fn session(runtime: &Arc<Runtime>, optimiser: Optimiser, options: SessionOptions) -> Session {
    let recording = classifier(&mlp(), &[12], DType::F32, DType::F32).unwrap();
    Session::new(Arc::clone(runtime), recording, optimiser, None, options).unwrap()
}

#[test]
fn every_optimiser_learns() {
    let (runtime, batch) = (cpu(), rows(30, &[12], 1));
    let optimisers = [
        Optimiser::sgd(0.5),
        Optimiser::momentum(0.1, 0.9, false).weight_decay(1e-4),
        Optimiser::momentum(0.1, 0.9, true),
        Optimiser::adam(0.02).clip(Clip::Norm(1.0)),
        Optimiser::adamw(0.02).clip(Clip::Value(0.1)),
        Optimiser::rmsprop(0.01),
        Optimiser::new(panoply_nn::optim::Rule::RmsProp { alpha: 0.9, epsilon: 1e-8, momentum: 0.5 }, 0.005),
        Optimiser::lion(0.01).weight_decay(0.1),
    ];
    for optimiser in optimisers {
        let text = format!("{:?}", optimiser.rule);
        let found = losses(&mut session(&runtime, optimiser, SessionOptions::default()), &batch, 60);
        assert!(found[0] > 0.8 && found[59] < 0.2, "{text}: {} to {}", found[0], found[59]);
    }
}

/// Adam computed by hand, in f64.
#[test]
fn adam_is_what_its_formula_says() {
    let mut net = Net::new("square", Mode::Train);
    let w = net.parameter("w", &[2], panoply_nn::Init::Constant(1.5)).unwrap();
    let target = net.data("target", DType::F32, &[2.into()]).unwrap();
    let loss = loss::regression(&mut net, w, target, loss::Distance::Squared).unwrap();
    let recording = net.finish(&[("loss", loss)]).unwrap();
    let target = [Tensor::from_vec(vec![0.5_f32, -2.0], [2]).unwrap()];
    let mut session =
        Session::new(cpu(), recording, Optimiser::adam(0.1).weight_decay(0.2), None, SessionOptions::default())
            .unwrap();
    let (mut w, mut m, mut v) = ([1.5_f64; 2], [0.0; 2], [0.0; 2]);
    for step in 1..=20 {
        session.step(&target).unwrap();
        for (place, wanted) in [0.5, -2.0].into_iter().enumerate() {
            let gradient = w[place] - wanted + 0.2 * w[place];
            m[place] = 0.9 * m[place] + 0.1 * gradient;
            v[place] = 0.999 * v[place] + 0.001 * gradient * gradient;
            let (mean, variance) = (m[place] / (1.0 - 0.9_f64.powi(step)), v[place] / (1.0 - 0.999_f64.powi(step)));
            w[place] -= 0.1 * mean / (variance.sqrt() + 1e-8);
        }
    }
    let got = session.parameters().unwrap().get("w").unwrap().to_vec::<f32>().unwrap();
    assert!(got.iter().zip(w).all(|(got, wanted)| (f64::from(*got) - wanted).abs() < 1e-4), "{got:?} {w:?}");
}

#[test]
fn every_layer_learns() {
    let runtime = cpu();
    let sequence = |last: Box<dyn Layer>| move |net: &mut Net, x: NodeId| last.forward(net, x);
    let image = Sequential::new("")
        .with(Conv2d::new("conv", 1, 8, 3).padding(1))
        .with(BatchNorm::new("norm", 8))
        .with(Relu)
        .with(MaxPool2d::new(2))
        .with(Flatten)
        .with(Linear::new("head", 8 * 3 * 3, 3));
    let pooled = |net: &mut Net, x: NodeId| Ok(net.reduce(panoply_core::op::compute::Reduction::Mean, x, &[1])?);
    let attention = Sequential::new("block")
        .with(LayerNorm::new("norm", 6))
        .with(MultiHeadAttention::new("attention", 6, 2).causal())
        .with(pooled)
        .with(Linear::new("head", 6, 3));
    let lstm =
        Sequential::new("").with(Lstm::new("lstm", 6, 10).layers(2).last_only()).with(Linear::new("head", 10, 3));
    let gru = Sequential::new("").with(Gru::new("gru", 6, 10)).with(pooled).with(Linear::new("head", 10, 3));
    let cases: [(&str, Box<dyn Layer>, Vec<usize>); 4] = [
        ("image", Box::new(image), vec![1, 6, 6]),
        ("attention", Box::new(attention), vec![6, 6]),
        ("lstm", Box::new(sequence(Box::new(lstm))), vec![6, 6]),
        ("gru", Box::new(gru), vec![6, 6]),
    ];
    for (name, layers, dims) in cases {
        let recording = classifier(&*layers, &dims, DType::F32, DType::F32).unwrap();
        let options = SessionOptions::default();
        let mut session = Session::new(Arc::clone(&runtime), recording, Optimiser::adam(0.02), None, options).unwrap();
        let found = losses(&mut session, &rows(24, &dims, 2), 50);
        assert!(found[0] > 0.8 && found[49] < 0.3, "{name}: {} to {}", found[0], found[49]);
    }
    let words = Sequential::new("").with(Embedding::new("words", 9, 8)).with(pooled).with(Linear::new("head", 8, 3));
    let recording = classifier(&words, &[5], DType::U32, DType::F32).unwrap();
    let mut session = Session::new(runtime, recording, Optimiser::adam(0.05), None, SessionOptions::default()).unwrap();
    let mut random = Random::new(5, "words");
    let labels: Vec<u32> = (0..30).map(|row| row % 3).collect();
    let ids: Vec<u32> = labels.iter().flat_map(|label| [0; 5].map(|_| label * 3 + random.below(3) as u32)).collect();
    let batch = [Tensor::from_vec(ids, [30, 5]).unwrap(), Tensor::from_vec(labels, [30]).unwrap()];
    let found = losses(&mut session, &batch, 40);
    assert!(found[39] < 0.2, "embedding: {} to {}", found[0], found[39]);
}

#[test]
fn batch_norm_keeps_what_it_saw_for_use() {
    let layers = Sequential::new("")
        .with(Linear::new("fc", 12, 6))
        .with(BatchNorm::new("norm", 6))
        .with(Linear::new("out", 6, 3));
    let recording = classifier(&layers, &[12], DType::F32, DType::F32).unwrap();
    let mut session = Session::new(cpu(), recording, Optimiser::sgd(0.0), None, SessionOptions::default()).unwrap();
    let batch = rows(16, &[12], 3);
    losses(&mut session, &batch, 200);
    let parameters = session.parameters().unwrap();
    let get = |name: &str| parameters.get(name).unwrap().to_vec::<f32>().unwrap();
    let (weight, bias) = (get("fc.weight"), get("fc.bias"));
    let x = batch[0].to_vec::<f32>().unwrap();
    for feature in 0..6 {
        let sums: Vec<f32> = (0..16)
            .map(|row| {
                bias[feature] + (0..12).map(|place| x[row * 12 + place] * weight[feature * 12 + place]).sum::<f32>()
            })
            .collect();
        let mean = sums.iter().sum::<f32>() / 16.0;
        let variance = sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f32>() / 15.0;
        assert!((get("norm.running_mean")[feature] - mean).abs() < 1e-3);
        assert!((get("norm.running_var")[feature] - variance).abs() < 1e-3, "the unbiased one");
    }
}

fn close(a: &[f32], b: &[f32], limit: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= limit * (1.0 + b.abs()))
}

#[test]
fn accumulated_batches_are_one_large_batch() {
    let (runtime, batch) = (cpu(), rows(32, &[12], 4));
    let whole = losses(&mut session(&runtime, Optimiser::adam(0.02), SessionOptions::default()), &batch, 20);
    let options = SessionOptions { accumulate: 4, ..SessionOptions::default() };
    let parts = losses(&mut session(&runtime, Optimiser::adam(0.02), options), &batch, 20);
    assert!(close(&whole, &parts, 1e-4), "{whole:?} {parts:?}");
}

#[test]
fn two_devices_are_one() {
    let batch = rows(33, &[12], 4);
    let alone = losses(&mut session(&cpu(), Optimiser::adam(0.02), SessionOptions::default()), &batch, 30);
    let (runtime, controls) = virtual_devices(vec![Script::new().resident(), Script::new().resident()]);
    let options = SessionOptions { devices: vec![FIRST, SECOND], ..SessionOptions::default() };
    let mut shared = session(&runtime, Optimiser::adam(0.02), options);
    let together = losses(&mut shared, &batch, 30);
    assert!(close(&alone, &together, 1e-4), "{alone:?} {together:?}");
    assert!(controls.iter().all(|control| control.counters().submitted >= 60), "both worked");
}

#[test]
fn one_of_two_devices_is_lost_and_the_other_goes_on() {
    let batch = rows(33, &[12], 4);
    let alone = losses(&mut session(&cpu(), Optimiser::adam(0.02), SessionOptions::default()), &batch, 30);
    let lost = Script::new().resident().fault_at(25, Fault::Lost).gone_after_opens(1);
    let (runtime, _) = virtual_devices(vec![Script::new().resident(), lost]);
    let options = SessionOptions { devices: vec![FIRST, SECOND], ..SessionOptions::default() };
    let mut shared = session(&runtime, Optimiser::adam(0.02), options);
    let together = losses(&mut shared, &batch, 30);
    assert!(close(&alone, &together, 1e-4), "{alone:?} {together:?}");
    assert_eq!(shared.devices(), [FIRST]);
}

#[test]
fn a_device_that_is_lost_in_mid_training_breaks_no_curve() {
    let layers = || {
        Sequential::new("")
            .with(Linear::new("fc1", 12, 16))
            .with(Relu)
            .with(Dropout::new("drop", 0.2))
            .with(Linear::new("fc2", 16, 3))
    };
    let batch = rows(30, &[12], 6);
    let train = |runtime: Arc<Runtime>| {
        let recording = classifier(&layers(), &[12], DType::F32, DType::F32).unwrap();
        let options = SessionOptions { copy_every: 7, ..SessionOptions::default() };
        let mut session = Session::new(runtime, recording, Optimiser::adam(0.02), None, options).unwrap();
        let found: Vec<f32> = (0..40)
            .map(|_| {
                let outcome = session.step(&batch).unwrap();
                session.figures(outcome.step).unwrap()[0]
            })
            .collect();
        (found, session.recoveries())
    };
    let (expected, none) = train(cpu());
    assert_eq!(none, 0);
    let (runtime, controls) =
        virtual_devices(vec![Script::new().resident().fault_at(23, Fault::Lost).fault_at(60, Fault::Lost)]);
    let (found, recoveries) = train(runtime);
    assert!(close(&expected, &found, 1e-5), "{expected:?} {found:?}");
    assert!(recoveries >= 1 && controls[0].counters().opened >= 2, "{recoveries}");
}

#[test]
fn training_goes_on_elsewhere_when_its_device_is_gone_for_good() {
    let batch = rows(30, &[12], 6);
    let expected = losses(&mut session(&cpu(), Optimiser::adam(0.02), SessionOptions::default()), &batch, 40);
    // The first device is faster, so it gets the work until it is lost; it never comes back.
    let quick = Script::new().resident().fault_at(30, Fault::Lost).gone_after_opens(1);
    let slow = Script::new().resident().latency(std::time::Duration::from_millis(30));
    let (runtime, _) = virtual_devices(vec![quick, slow]);
    let options = SessionOptions { copy_every: 5, ..SessionOptions::default() };
    let mut disturbed = session(&runtime, Optimiser::adam(0.02), options);
    let (mut found, mut devices) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let outcome = disturbed.step(&batch).unwrap();
        found.push(disturbed.figures(outcome.step).unwrap()[0]);
        devices.push(outcome.reports[0].device);
    }
    assert!(devices[..5].contains(&FIRST), "{devices:?}");
    assert!(devices[35..].iter().all(|device| *device == SECOND), "{devices:?}");
    assert!(close(&expected, &found, 1e-5), "{expected:?} {found:?}");
    assert!(disturbed.recoveries() >= 1);
}

#[test]
fn masks_on_a_device_are_the_numbers_of_the_host() {
    let mut g = panoply_core::graph::Graph::builder("mask");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 7.into()]).unwrap();
    let seed = g.input("seed", DType::U32, &[]).unwrap();
    let mask = panoply_nn::random::mask(&mut g, &[batch, 7.into()], DType::F32, 0.7, seed, "layer.mask").unwrap();
    let y = g.mul(x, mask).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    let ones = Tensor::from_vec(vec![1.0_f32; 700], [100, 7]).unwrap();
    for seed in [0, 1, u32::MAX] {
        let op = panoply_core::op::graph::RunGraph::new(&graph, &[&ones, &Tensor::scalar(seed).unwrap()]);
        let got = cpu().run(op).wait().unwrap()[0].to_vec::<f32>().unwrap();
        let key = panoply_nn::random::mask_key(seed, "layer.mask");
        let limit = (0.7 * 4_294_967_296.0_f64) as u32;
        let host = |at: u32| f32::from(u8::from(panoply_nn::random::number(key, at) < limit));
        assert_eq!(got, (0..700).map(host).collect::<Vec<_>>());
        let share = got.iter().sum::<f32>() / 700.0;
        assert!((share - 0.7).abs() < 0.07, "{share}");
    }
}

#[test]
fn sixteen_bits_learn_with_a_scaled_loss() {
    for (compute, scale) in [(DType::F16, Some(1e8)), (DType::BF16, None)] {
        let recording = classifier(&mlp(), &[12], DType::F32, compute).unwrap();
        let options = SessionOptions { loss_scale: scale, ..SessionOptions::default() };
        let mut session = Session::new(cpu(), recording, Optimiser::adam(0.02), None, options).unwrap();
        let found = losses(&mut session, &rows(30, &[12], 1), 80);
        assert!(found[79] < 0.2, "{compute}: {} to {}", found[0], found[79]);
        // A loss scale that overflows is halved until it no longer does. Meanwhile the parameters
        // are not changed.
        assert!(scale.is_none_or(|scale| session.loss_scale() < scale), "{}", session.loss_scale());
    }
}

#[test]
fn a_checkpointed_segment_gives_the_same_gradients_for_less_memory() {
    let deep = |checkpointed: bool| {
        let block = |name: String| {
            Sequential::new(&name)
                .with(Linear::new("a", 64, 64))
                .with(Relu)
                .with(Linear::new("b", 64, 64))
                .with(Relu)
                .with(Linear::new("c", 64, 64))
        };
        let layers = move |net: &mut Net, mut x: NodeId| {
            for number in 0..6 {
                let block = block(format!("block{number}"));
                x = match checkpointed {
                    true => net.checkpoint(&format!("segment{number}"), x, |net, x| block.forward(net, x))?,
                    false => block.forward(net, x)?,
                };
            }
            Linear::new("head", 64, 3).forward(net, x)
        };
        classifier(&layers, &[64], DType::F32, DType::F32).unwrap()
    };
    let batch = rows(256, &[64], 8);
    let mut curves = Vec::new();
    let mut peaks = Vec::new();
    for checkpointed in [false, true] {
        let recording = deep(checkpointed);
        let loss = recording.graph.outputs()[0].1;
        let inputs: Vec<usize> = recording.graph.inputs()[2..].to_vec();
        let made = panoply_nn::grad::differentiate(&recording.graph, loss, &inputs, &recording.segments, None).unwrap();
        let mut g = made.builder;
        for (place, gradient) in made.gradients.iter().enumerate() {
            g.output(&format!("g{place}"), *gradient).unwrap();
        }
        let graph = g.finish().unwrap();
        let sizes = panoply_core::graph::SymbolSizes([256, 1, 1, 1]);
        peaks.push(panoply_graph::compile(&graph, &sizes, &panoply_cpu::GRAPH_TARGET.facts).unwrap().arena_bytes);
        let options = SessionOptions::default();
        let mut session = Session::new(cpu(), recording, Optimiser::adam(0.005), None, options).unwrap();
        curves.push(losses(&mut session, &batch, 5));
    }
    assert!(close(&curves[0], &curves[1], 1e-5), "{curves:?}");
    assert!(peaks[1] * 4 < peaks[0] * 3, "{peaks:?}");
}

#[test]
fn a_loss_that_is_not_a_number_names_its_origin() {
    let layers = |net: &mut Net, x: NodeId| {
        let y = Linear::new("fc", 12, 3).forward(net, x)?;
        let shifted = net.map(&[y], |v| v[0].clone() * 0.0 - 1.0)?;
        let logs = net.unary(panoply_core::expr::UnaryOp::Log, shifted)?;
        net.rename(logs, "the.log")?;
        Ok(logs)
    };
    let recording = classifier(&layers, &[12], DType::F32, DType::F32).unwrap();
    let options = SessionOptions { debug: true, ..SessionOptions::default() };
    let mut session = Session::new(cpu(), recording, Optimiser::sgd(0.1), None, options).unwrap();
    let error = session.step(&rows(6, &[12], 1)).unwrap_err();
    let Error::Diverged { step: 0, origin, .. } = &error else { panic!("{error}") };
    assert!(origin.contains("the.log = map("), "{origin}");
    let mut rows = rows(6, &[12], 1);
    rows[0] = Tensor::from_vec(vec![f32::NAN; 72], [6, 12]).unwrap();
    let recording = classifier(&mlp(), &[12], DType::F32, DType::F32).unwrap();
    let options = SessionOptions { debug: true, ..SessionOptions::default() };
    let mut session = Session::new(cpu(), recording, Optimiser::sgd(0.1), None, options).unwrap();
    assert!(session.step(&rows).unwrap_err().to_string().contains("the input x is not finite"));
}

#[test]
fn errors_of_shapes_name_the_layer() {
    let wrong = Sequential::new("encoder").with(Linear::new("fc1", 12, 16)).with(Linear::new("fc2", 15, 3));
    let error = classifier(&wrong, &[12], DType::F32, DType::F32).unwrap_err();
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "encoder.fc2"), "{error}");
    assert!(error.to_string().contains("15") && error.to_string().contains("16"), "{error}");
    let image = Conv2d::new("conv", 3, 4, 3);
    let error = classifier(&image, &[1, 6, 6], DType::F32, DType::F32).unwrap_err();
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "conv"), "{error}");
    let heads = MultiHeadAttention::new("attention", 6, 4);
    assert!(classifier(&heads, &[5, 6], DType::F32, DType::F32).unwrap_err().to_string().contains("attention"));
    let runtime = cpu();
    let mut session = session(&runtime, Optimiser::sgd(0.1), SessionOptions::default());
    let error = session.step(&rows(6, &[11], 1)).unwrap_err().to_string();
    assert!(error.contains("x = input"), "{error}");
    let mut parameters = session.parameters().unwrap();
    parameters.insert("fc1.weight", Tensor::zeros(DType::F32, [2, 2]).unwrap());
    let recording = classifier(&mlp(), &[12], DType::F32, DType::F32).unwrap();
    let refused = Session::new(runtime, recording, Optimiser::sgd(0.1), Some(&parameters), SessionOptions::default());
    assert!(matches!(refused.err().unwrap(), Error::Parameter { name, .. } if name == "fc1.weight"));
    assert!(Parameters::new().is_empty());
}

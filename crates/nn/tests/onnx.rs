//! Networks written as ONNX files are read by this library's models and give the same results. If
//! `PANOPLY_ONNX_OUT` is set, the files, their inputs and their outputs are written to that folder;
//! `fixtures/onnx_runtime.py` compares them with ONNX Runtime's results.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_core::graph::NodeId;
use panoply_core::op::compute::{ConvOptions, Reduction};
use panoply_core::{DType, Tensor};
use panoply_cpu::CpuBackend;
use panoply_models::{Array, Model};
use panoply_nn::layers::{
    AvgPool2d, BatchNorm, Conv2d, ConvTranspose2d, Dropout, Embedding, Flatten, GlobalAvgPool2d, Gru, LayerNorm,
    Linear, Lstm, MaxPool2d, MultiHeadAttention, Relu,
};
use panoply_nn::random::Random;
use panoply_nn::samples::resnet20;
use panoply_nn::train::trainer::apply;
use panoply_nn::{Layer, Mode, Net, Parameters, Recording, Sequential, onnx};
use panoply_runtime::Runtime;

fn recorded(layers: &dyn Layer, dims: &[usize], dtype: DType, mode: Mode) -> Recording {
    let mut net = Net::new("network", mode);
    let batch = net.symbol("batch").unwrap();
    let dims: Vec<_> = [batch].into_iter().chain(dims.iter().map(|size| (*size).into())).collect();
    let x = net.data("x", dtype, &dims).unwrap();
    let y = layers.forward(&mut net, x).unwrap();
    net.finish(&[("y", y)]).unwrap()
}

/// Random parameters that differ from the initial ones, and buffers other than zero and one.
fn parameters(recording: &Recording) -> Parameters {
    let mut random = Random::new(3, "values");
    let made = recording.specs.iter().map(|spec| {
        let count = spec.dims.iter().product();
        let low = if spec.name.ends_with("running_var") { 0.5 } else { -0.4 };
        let values: Vec<f32> = (0..count).map(|_| low + random.uniform() * 0.8).collect();
        (spec.name.clone(), Tensor::from_vec(values, &spec.dims).unwrap())
    });
    made.collect()
}

fn input(dims: &[usize], dtype: DType) -> Tensor {
    let mut random = Random::new(4, "input");
    let count = dims.iter().product();
    match dtype {
        DType::U32 => Tensor::from_vec((0..count).map(|_| random.below(9) as u32).collect(), dims).unwrap(),
        _ => Tensor::from_vec((0..count).map(|_| random.normal()).collect(), dims).unwrap(),
    }
}

fn check(name: &str, layers: &dyn Layer, dims: &[usize], dtype: DType) {
    let recording = recorded(layers, dims, dtype, Mode::Use);
    let parameters = parameters(&recording);
    let bytes = onnx::to_bytes(&recording, &parameters).unwrap();
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    let model = Model::from_bytes(Arc::clone(&runtime), &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    // Symbolic dimensions stay symbolic: the model runs with two batch sizes.
    for rows in [1, 3] {
        let x = input(&[&[rows], dims].concat(), dtype);
        let expected = apply(&runtime, &recording, &parameters, std::slice::from_ref(&x)).unwrap()[0].clone();
        let given = Array::from_tensor(&x).unwrap();
        let got = model.infer(&[("x", given)]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let got = got.first().unwrap().tensor().unwrap();
        assert_eq!(got.shape(), expected.shape(), "{name}");
        let (got, wanted) = (got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        let close = |(got, wanted): (&f32, &f32)| (got - wanted).abs() <= 2e-4 * (1.0 + wanted.abs());
        assert!(got.iter().zip(&wanted).all(close), "{name}: {got:?} {wanted:?}");
        if let Some(folder) = std::env::var_os("PANOPLY_ONNX_OUT").filter(|_| rows == 3) {
            let write = |kind: &str, bytes: &[u8]| {
                std::fs::write(std::path::Path::new(&folder).join(format!("{name}.{kind}")), bytes).unwrap();
            };
            write("onnx", &bytes);
            write("x", x.as_bytes().unwrap());
            write("y", expected.contiguous().unwrap().as_bytes().unwrap());
        }
    }
}

#[test]
fn networks_are_read_back() {
    let images = Sequential::new("")
        .with(Conv2d::new("conv", 4, 8, 3).padding(1).options(ConvOptions {
            groups: 2,
            padding: [1; 4],
            ..ConvOptions::default()
        }))
        .with(BatchNorm::new("norm", 8))
        .with(Relu)
        .with(MaxPool2d::new(2))
        .with(ConvTranspose2d::new("up", 8, 4, 3, 2))
        .with(AvgPool2d { padding: [1; 4], count_padding: false, stride: [2; 2], ..AvgPool2d::new(3) })
        .with(Flatten)
        .with(Dropout::new("drop", 0.5))
        .with(Linear::new("head", 4 * 4 * 4, 5));
    check("images", &images, &[4, 6, 6], DType::F32);
    check("resnet20", &resnet20(), &[3, 32, 32], DType::F32);
    let pooled = |net: &mut Net, x: NodeId| Ok(net.reduce(Reduction::Mean, x, &[1])?);
    let block = Sequential::new("block")
        .with(LayerNorm::new("norm", 8))
        .with(MultiHeadAttention::new("attention", 8, 2).causal())
        .with(LayerNorm::rms("rms", 8))
        .with(pooled)
        .with(Linear::new("head", 8, 3).without_bias());
    check("block", &block, &[5, 8], DType::F32);
    check("lstm", &Sequential::new("").with(Lstm::new("lstm", 6, 5).layers(2).last_only()), &[4, 6], DType::F32);
    check("gru", &Sequential::new("").with(Gru::new("gru", 6, 5)), &[4, 6], DType::F32);
    check("words", &Sequential::new("").with(Embedding::new("words", 9, 4)).with(pooled), &[5], DType::U32);
    let functions = |net: &mut Net, x: NodeId| {
        Ok(net.map(&[x], |v| {
            let x = || v[0].clone();
            let smooth = x().gelu() + x().silu() + (x() * x() + 1.0).rsqrt() + x().sin() * x().clamp(-1.0, 0.5);
            x().gt(0.3).select(smooth, x().abs().pow(1.5)) - x().lt(0.0)
        })?)
    };
    check("functions", &functions, &[7], DType::F32);
    check("pooled", &Sequential::new("").with(GlobalAvgPool2d), &[2, 3, 3], DType::F32);
}

#[test]
fn what_onnx_has_no_form_for_is_refused() {
    let dropping = Sequential::new("").with(Linear::new("fc", 4, 4)).with(Dropout::new("drop", 0.5));
    let recording = recorded(&dropping, &[4], DType::F32, Mode::Train);
    let refused = onnx::to_bytes(&recording, &parameters(&recording)).unwrap_err().to_string();
    assert!(refused.contains("random"), "{refused}");
    let sorted = |net: &mut Net, x: NodeId| Ok(net.op(&[x], |t| panoply_core::op::compute::Sort::new(&t[0]))?);
    let recording = recorded(&sorted, &[4], DType::F32, Mode::Use);
    let refused = onnx::to_bytes(&recording, &Parameters::new()).unwrap_err().to_string();
    assert!(refused.contains("sort"), "{refused}");
    let recording = recorded(&Linear::new("fc", 4, 4), &[4], DType::F32, Mode::Use);
    assert!(onnx::to_bytes(&recording, &Parameters::new()).is_err(), "its weights are not there");
}

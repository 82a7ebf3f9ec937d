//! The compute backend: every op gives the same result on the runtime as on the host, in every
//! element type.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_arrays::{
    Array, Array1, Array2, Array3, Array4, ComputeBackend, Float, FusedBackend, HostBackend, Indices, RuntimeBackend,
};
use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend};
use panoply_core::op::compute::ConvOptions;
use panoply_core::{bf16, f16};
use panoply_cpu::CpuBackend;
use panoply_nn::Result;
use panoply_nn::random::Random;
use panoply_runtime::Runtime;

fn on_runtime() -> RuntimeBackend {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    RuntimeBackend::new(Arc::new(runtime))
}

fn fused() -> FusedBackend {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    FusedBackend::new(Arc::new(runtime))
}

fn array<B: ComputeBackend, T: Float, const D: usize>(
    backend: &B,
    shape: [usize; D],
    seed: u64,
) -> Result<Array<B, T, D>> {
    let mut random = Random::new(seed, "array");
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| random.uniform() * 2.0 - 1.0).collect();
    Array::from_vec(backend, values, shape)?.cast::<T>()
}

/// The results of all ops of arrays, each as numbers.
fn answers<B: ComputeBackend, T: Float>(backend: &B) -> Result<Vec<(&'static str, Vec<f32>)>> {
    let mut all = Vec::new();
    let x: Array2<B, T> = array(backend, [4, 6], 1)?;
    let y: Array2<B, T> = array(backend, [4, 6], 2)?;
    let row: Array1<B, T> = array(backend, [6], 3)?;
    let mut add = |name, values: Result<Vec<f32>>| values.map(|values| all.push((name, values)));
    fn wide<B: ComputeBackend, T: Float, const D: usize>(array: Result<Array<B, T, D>>) -> Result<Vec<f32>> {
        array?.cast::<f32>()?.to_vec()
    }
    add("add", wide(x.add(&row)))?;
    add("operators", wide((&x - &y).and_then(|difference| &difference * &row)))?;
    add("div", wide(x.map(|x| x + 3.0)?.div(&y.map(|y| y + 2.0)?)))?;
    add("transpose", wide(x.transpose()))?;
    add("reshape", wide(x.transpose()?.reshape([3, 8])))?;
    add("slice", wide(x.slice(1, 2, 5)?.slice(0, 1, 3)))?;
    add("broadcast", wide(row.broadcast([2, 6])))?;
    add("permute", wide(array::<B, T, 3>(backend, [2, 3, 4], 4)?.permute([2, 0, 1])))?;
    add("sum", wide(x.sum(0)))?;
    add("mean", wide(x.mean(1)))?;
    add("max", wide(x.max(1)))?;
    add("argmax", x.arg_max(1)?.to_vec().map(|places| places.into_iter().map(|place| place as f32).collect()))?;
    add("relu", wide(x.relu()))?;
    add("gelu", wide(x.gelu()))?;
    add("silu", wide(x.silu()))?;
    add("tanh", wide(x.tanh()?.sigmoid()?.exp()?.log()?.negated()))?;
    add("softmax", wide(x.softmax(1)))?;
    add("log softmax", wide(x.log_softmax(0)))?;
    add("layer norm", wide(x.layer_norm(&row, &row, 1e-5)))?;
    add("dropout", wide(x.dropout(0.4, 7, "layer")))?;
    add("matmul", wide(x.matmul(&y.transpose()?)))?;
    let batched: Array3<B, T> = array(backend, [2, 3, 4], 5)?;
    add("batched", wide(batched.matmul(&batched.transpose()?)))?;
    let images: Array4<B, T> = array(backend, [2, 4, 6, 6], 6)?;
    let weights: Array4<B, T> = array(backend, [4, 2, 3, 3], 7)?;
    let options = ConvOptions { stride: [2, 1], padding: [1; 4], dilation: [1, 2], groups: 2 };
    let convolved = images.conv2d(&weights, options)?;
    add("conv2d", wide(Ok(convolved.clone())))?;
    add("transposed", wide(convolved.conv_transpose2d(&weights, options, [6, 6])))?;
    add("max pool", wide(images.max_pool([2, 3])))?;
    add("avg pool", wide(images.avg_pool([2, 2])))?;
    let four: Array1<B, T> = array::<B, T, 1>(backend, [4], 8)?.map(|x| x + 2.0)?;
    add("batch norm", wide(images.batch_norm([&four, &four, &four, &four], 1e-5)))?;
    let q: Array4<B, T> = array(backend, [1, 2, 5, 4], 9)?;
    for is_causal in [false, true] {
        add("attention", wide(q.attention(&q, &q, is_causal)))?;
    }
    let indices = Indices::from_vec(backend, vec![3, 0, 3, 1], [2, 2])?;
    add("embedding", wide(x.embedding::<2, 3>(&indices)))?;
    add("cross entropy", x.cross_entropy(&[0, 5, 2, 1]).map(|loss| vec![loss]))?;
    add("squared error", x.squared_error(&y).map(|loss| vec![loss]))?;
    Ok(all)
}

fn compare<T: Float>(limit: f32) {
    let backend = on_runtime();
    compare_on::<_, T>(&backend, limit);
    assert!(backend.fallbacks().is_empty() && backend.name().contains("cpu"));
    let backend = fused();
    compare_on::<_, T>(&backend, limit);
    assert!(backend.fallbacks().is_empty() && backend.name().contains("fused"));
}

fn compare_on<B: ComputeBackend, T: Float>(backend: &B, limit: f32) {
    let host = answers::<_, T>(&HostBackend::new()).unwrap();
    let there = answers::<_, T>(backend).unwrap();
    for ((name, host), (_, there)) in host.iter().zip(&there) {
        assert_eq!(host.len(), there.len(), "{name}");
        for (place, (host, there)) in host.iter().zip(there).enumerate() {
            assert!(
                (host - there).abs() <= limit * (1.0 + host.abs()),
                "{name} in {}, {place}: {host} and {there}",
                T::DTYPE
            );
        }
    }
}

#[test]
fn the_runtime_computes_what_the_host_does() {
    compare::<f32>(2e-6);
    compare::<f16>(4e-3);
    compare::<bf16>(3e-2);
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    fn refused<B: ComputeBackend>(backend: &B) {
        let x: Array2<B> = array(backend, [4, 6], 1).unwrap();
        let other: Array1<B> = array(backend, [4], 1).unwrap();
        assert!(x.add(&other).is_err() && x.matmul(&x).is_err() && x.reshape([5, 5]).is_err());
        assert!(
            x.slice(1, 3, 9).is_err() && x.slice(2, 0, 1).is_err() && x.sum(2).is_err() && x.permute([0, 0]).is_err()
        );
        assert!(x.broadcast([4, 5]).is_err() && x.softmax(7).is_err() && x.dropout(1.0, 0, "").is_err());
        assert!(x.cross_entropy(&[0, 1]).is_err() && x.cross_entropy(&[0, 1, 2, 6]).is_err());
        assert!(x.layer_norm(&other, &other, 1e-5).is_err());
        let outside = x.embedding::<1, 2>(&Indices::from_vec(backend, vec![4], [1]).unwrap());
        assert!(outside.and_then(|rows| rows.to_vec()).is_err(), "at once, or when it is read");
        assert!(Array3::<B>::from_ndarray(backend, ndarray::Array2::zeros((2, 2))).is_err(), "another rank");
        let images: Array4<B> = array(backend, [1, 2, 4, 4], 1).unwrap();
        assert!(images.conv2d(&array(backend, [2, 3, 3, 3], 1).unwrap(), ConvOptions::default()).is_err());
        assert!(images.max_pool([5, 5]).is_err());
    }
    refused(&HostBackend::new());
    refused(&on_runtime());
    refused(&fused());
}

#[test]
fn ndarrays_come_and_go() {
    let backend = on_runtime();
    let rows = ndarray::Array2::from_shape_fn((3, 4), |(row, column)| (row * 10 + column) as f32);
    let place = rows.as_ptr();
    let array: Array2<RuntimeBackend> = Array2::from_ndarray(&backend, rows.clone()).unwrap();
    assert_eq!(array.to_ndarray().unwrap(), rows.clone().into_dyn());
    // A row-major array is taken over without a copy.
    let moved: Array2<RuntimeBackend> = Array2::from_ndarray(&backend, rows).unwrap();
    assert_eq!(moved.with_view(|view| view.as_ptr()).unwrap(), place);
    let turned = ndarray::Array2::from_shape_fn((3, 4), |(row, column)| (row * 10 + column) as f32).reversed_axes();
    let array: Array2<RuntimeBackend> = Array2::from_ndarray(&backend, turned.clone()).unwrap();
    assert_eq!(array.to_ndarray().unwrap(), turned.into_dyn());
    let sum = array.with_view(|view| view.sum()).unwrap();
    assert_eq!(sum, 138.0);
}

#[test]
fn a_fallback_is_reported() {
    let script = Script::new().fault_at(0, Fault::Error);
    let virtual_one = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script).device(Script::new());
    let runtime = Runtime::builder().backend(Arc::new(virtual_one)).build().unwrap();
    let first = runtime.devices().next().unwrap().id;
    let backend = RuntimeBackend::with_options(Arc::new(runtime), panoply_runtime::RunOptions::prefer(first));
    let x: Array2<RuntimeBackend> = Array2::from_vec(&backend, vec![1.0, -1.0], [1, 2]).unwrap();
    assert_eq!(x.relu().unwrap().to_vec().unwrap(), [1.0, 0.0]);
    let fallbacks = backend.fallbacks();
    assert_eq!((fallbacks.len(), fallbacks[0].from), (1, first), "{fallbacks:?}");
}

#[path = "../examples/ported.rs"]
mod ported;

#[test]
fn a_network_of_ndarrays_learns_the_same_over_every_backend() {
    let before = ported::losses_before(100);
    assert!(before[99] < before[0] * 0.5, "it learns: {} to {}", before[0], before[99]);
    for after in [
        ported::losses_after(&HostBackend::new(), 100),
        ported::losses_after(&on_runtime(), 100),
        ported::losses_after(&fused(), 100),
    ] {
        for (step, (before, after)) in before.iter().zip(after.unwrap()).enumerate() {
            assert!((before - after).abs() < 1e-3 * before, "step {step}: {before} and {after}");
        }
    }
}

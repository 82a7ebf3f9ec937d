//! Runs tests on every device of a machine, beside the CPU. Each test uses a part of this module.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(dead_code)]

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_core::{Backend, DeviceId};
use panoply_cpu::CpuBackend;
use panoply_cuda::CudaBackend;
use panoply_models::{Array, ElementType, Value};
use panoply_runtime::Runtime;
use panoply_vulkan::VulkanBackend;

use crate::onnx::{Message, any, f32s, graph, int, ints, model, node, port};

/// Runs a test on each available device, with a runtime that has the device and, for ops that the
/// device lacks, the CPU.
pub fn on_each(mut test: impl FnMut(&Arc<Runtime>, DeviceId)) {
    let emulated = EmulatedBackend::new().map(|backend| Arc::new(backend) as Arc<dyn Backend>);
    let vulkan = Ok(Arc::new(VulkanBackend::new()) as Arc<dyn Backend>);
    let cuda = Ok(Arc::new(CudaBackend::new()) as Arc<dyn Backend>);
    for backend in [emulated, vulkan, cuda] {
        let found = backend.and_then(|backend| backend.discover().map(|devices| (backend, devices)));
        let (backend, device) = match found {
            Ok((backend, devices)) if !devices.is_empty() => (backend, devices[0].id),
            Ok(_) => continue,
            Err(absence) => {
                println!("skipped: {absence}");
                continue;
            }
        };
        println!("on {device}");
        let runtime = Runtime::builder().backend(backend).backend(Arc::new(CpuBackend::new())).build().unwrap();
        test(&Arc::new(runtime), device);
    }
}

/// Number of ops that a device has completed.
pub fn completed(runtime: &Runtime, device: DeviceId) -> u64 {
    runtime.workers().iter().filter(|worker| worker.device == device).map(|worker| worker.counters.completed).sum()
}

/// Whether a device completes at least `count` ops within ten seconds. A worker counts an op after
/// its caller has the answer.
pub fn completes(runtime: &Runtime, device: DeviceId, count: u64) -> bool {
    let started = std::time::Instant::now();
    while completed(runtime, device) < count {
        if started.elapsed() > std::time::Duration::from_secs(10) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

pub fn weights(name: &str, dims: &[i64], seed: u32) -> Message {
    f32s(name, dims, &numbers(dims.iter().product::<i64>() as usize, seed))
}

/// A network of convolutions, normalisation, pools and a classifier.
pub fn pictures() -> (Message, Vec<(&'static str, Value)>) {
    let nodes = [
        node("Conv", &["x", "w1", "b1"], &["c1"], &[ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 2])]),
        node("BatchNormalization", &["c1", "scale", "b1", "b1", "variance"], &["n1"], &[]),
        node("Relu", &["n1"], &["r1"], &[]),
        node("Conv", &["r1", "w2"], &["c2"], &[int("group", 8), ints("pads", &[1, 1, 1, 1])]),
        node("HardSwish", &["c2"], &["h2"], &[]),
        node("MaxPool", &["h2"], &["p2"], &[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]),
        node("GlobalAveragePool", &["p2"], &["mean"], &[]),
        node("Flatten", &["mean"], &["flat"], &[]),
        node("Gemm", &["flat", "w3"], &["logits"], &[int("transB", 1)]),
        node("Softmax", &["logits"], &["y"], &[int("axis", 1)]),
    ];
    let constants = [
        weights("w1", &[8, 3, 3, 3], 1),
        weights("b1", &[8], 2),
        f32s("scale", &[8], &[1.5; 8]),
        f32s("variance", &[8], &[0.7; 8]),
        weights("w2", &[8, 1, 3, 3], 3),
        weights("w3", &[5, 8], 4),
    ];
    let ports = [port("x", ElementType::F32, &[-1, 3, 16, 16])];
    let given = Array::from_slice(&numbers(2 * 3 * 256, 5), [2, 3, 16, 16]).unwrap();
    (model(18, &graph(&nodes, &constants, &ports, &[any("y")])), vec![("x", given.into())])
}

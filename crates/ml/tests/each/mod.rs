//! Tests that run on every device that a machine has, beside the CPU. Not every test needs everything.
#![allow(dead_code)]

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_core::{Backend, DeviceId};
use panoply_cpu::CpuBackend;
use panoply_cuda::CudaBackend;
use panoply_runtime::Runtime;
use panoply_vulkan::VulkanBackend;

use crate::onnx::{Message, f32s};

/// Runs a test on each device that is there, with a runtime that has it and the CPU, for what has no op.
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

/// How many ops a device has answered.
pub fn completed(runtime: &Runtime, device: DeviceId) -> u64 {
    runtime.workers().iter().filter(|worker| worker.device == device).map(|worker| worker.counters.completed).sum()
}

/// Whether a device has answered so many ops within ten seconds: a worker counts an op after its caller has the answer.
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

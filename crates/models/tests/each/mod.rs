//! Runs tests on every device of a machine, beside the CPU. Each test uses a part of this module.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(dead_code)]

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_core::{Backend, DeviceId};
use panoply_cpu::CpuBackend;
use panoply_cuda::CudaBackend;
use panoply_runtime::Runtime;
use panoply_vulkan::VulkanBackend;

use crate::onnx::{Message, f32s};

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

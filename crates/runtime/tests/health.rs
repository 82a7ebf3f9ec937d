//! The health that devices report: memory that is measured again, heat that makes batches smaller,
//! and the capacity of all devices together.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{MatMul, Transpose};
use panoply_core::{Api, DType, DeviceId, DeviceInfo, Error, ErrorKind, Health, MemoryUse, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Batching, HealthRules, Priority, RunOptions, Runtime, SystemCapacity, WorkerLimits};

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
/// Longer than any step of these tests takes on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(20);
const MEMORY_BYTES: u64 = 1 << 30;

fn build(
    scripts: impl IntoIterator<Item = Script>,
    rules: HealthRules,
    batching: Batching,
) -> (Runtime, Vec<Arc<VirtualControl>>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = scripts.into_iter().fold(backend, VirtualBackend::device);
    let controls = (0..).map_while(|index| backend.control(index)).collect();
    let runtime = Runtime::builder().backend(Arc::new(backend)).health(rules).batching(batching).build();
    (runtime.unwrap(), controls)
}

fn matrix() -> Tensor {
    Tensor::zeros(DType::F32, [256, 1024]).unwrap()
}

/// The first device, freshly measured.
fn measured(runtime: &Runtime) -> DeviceInfo {
    assert!(runtime.examine(WAIT_MAX), "a worker does not look");
    runtime.devices().next().unwrap()
}

fn used_bytes(device: &DeviceInfo) -> u64 {
    let (total, available) = (device.memory_total_bytes.unwrap(), device.memory_available_bytes.unwrap());
    assert!(available <= total && total == MEMORY_BYTES);
    device.memory_used_bytes().unwrap()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_allocation_moves_the_memory_in_use() {
    let script = Script::new().memory_bytes(MEMORY_BYTES).resident();
    let (runtime, _) = build([script], HealthRules::default(), Batching::default());
    assert_eq!(used_bytes(&measured(&runtime)), 0);
    let there = runtime.run(Transpose::new(&matrix())).wait().unwrap();
    let device = measured(&runtime);
    assert_eq!(used_bytes(&device), 1 << 20);
    assert!((device.memory_usage_percent().unwrap() - 100.0 / 1024.0).abs() < 1e-6);
    let backends = runtime.backends();
    assert_eq!(backends[0].devices.as_ref().unwrap()[0].memory_used_bytes(), Some(1 << 20));
    let text = runtime.metrics().prometheus_text();
    for (name, value) in [
        ("total_bytes", "1073741824"),
        ("available_bytes", "1072693248"),
        ("used_bytes", "1048576"),
        ("used_percent", "0.09765625"),
    ] {
        let line = format!("panoply_device_memory_{name}{{device=\"simulated:0\"}} {value}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    drop(there);
    assert_eq!(used_bytes(&measured(&runtime)), 0, "an idle device is measured again");
}

#[test]
fn reading_old_figures_has_them_measured_again() {
    let rules = HealthRules { look_every: Duration::from_millis(5), ..HealthRules::default() };
    let (runtime, controls) = build([Script::new()], rules, Batching::default());
    let tell = |available| Health { memory: Some(MemoryUse::new(1000, available)), ..Health::default() };
    for available in [900, 100, 300] {
        controls[0].set_health(tell(available));
        until("the device is idle, and nobody waits for its figures", || {
            runtime.devices().next().unwrap().memory_available_bytes == Some(available)
        });
    }
    controls[0].set_health(tell(700));
    until("so do metrics", || {
        runtime.metrics().prometheus_text().contains("memory_available_bytes{device=\"simulated:0\"} 700\n")
    });
}

#[test]
fn looks_that_many_ask_for_are_few() {
    let (runtime, _) = build([Script::new()], HealthRules::default(), Batching::default());
    let start = Instant::now();
    (0..10).for_each(|_| assert!(runtime.examine(WAIT_MAX)));
    // Each look begins at least 20 ms after the one before.
    assert!(start.elapsed() >= Duration::from_millis(9 * 20), "{:?}", start.elapsed());
}

/// The largest batch of 40 equal ops that are sent at once.
fn largest_batch(runtime: &Runtime) -> u32 {
    let small = Tensor::zeros(DType::F32, [2, 2]).unwrap();
    let ops: Vec<_> = (0..40).map(|_| runtime.run(MatMul::new(&small, &small)).with_report()).collect();
    ops.into_iter().map(|op| op.wait().unwrap().report.batch_size).max().unwrap()
}

#[test]
fn a_throttled_device_gets_smaller_batches() {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().fused());
    let controls = [backend.control(0).unwrap()];
    // 40 ops are full groups, with half the capacity as well, so none waits.
    let batching = Batching::TimeOrSize { size_max: 8, wait_max: Duration::from_secs(5) };
    let limits = WorkerLimits { batch_max: 8, ..WorkerLimits::default() };
    let runtime = Runtime::builder().backend(Arc::new(backend)).batching(batching).limits(limits).build().unwrap();
    assert_eq!(largest_batch(&runtime), 8);
    controls[0].set_health(Health { throttled: Some(true), ..Health::default() });
    assert!(runtime.examine(WAIT_MAX));
    assert_eq!(runtime.workers()[0].health.capacity, 0.5);
    assert_eq!(largest_batch(&runtime), 4);
    controls[0].set_health(Health::default());
    assert!(runtime.examine(WAIT_MAX));
    assert_eq!(largest_batch(&runtime), 8);
}

#[test]
fn too_little_capacity_is_told_and_patient_ops_are_refused() {
    let rules = HealthRules { refuse_patient: true, ..HealthRules::default() };
    let (runtime, controls) = build([Script::new(), Script::new()], rules, Batching::default());
    let small = Tensor::zeros(DType::F32, [2, 3]).unwrap();
    let send = |priority| {
        let options = RunOptions::default().priority(priority);
        runtime.run_with(Transpose::new(&small), options).wait().map(drop)
    };
    let tell = |device: usize, vitals: Health| {
        controls[device].set_health(vitals);
        assert!(runtime.examine(WAIT_MAX));
        runtime.capacity()
    };
    let hot = || Health { temperature_celsius: Some(95.0), ..Health::default() };
    let full = || Health { memory: Some(MemoryUse::new(100, 1)), ..Health::default() };
    assert_eq!(runtime.capacity(), SystemCapacity { devices: 2, fit: 2.0, minimum: 0.75 });
    let one_hot = tell(0, hot());
    assert_eq!((one_hot.fit, one_hot.share(), one_hot.is_degraded()), (1.5, 0.75, false));
    send(Priority::Patient).unwrap();
    let one_full = tell(1, full());
    assert_eq!((one_full.fit, one_full.share(), one_full.is_degraded()), (0.5, 0.25, true));
    let refused = send(Priority::Patient).unwrap_err();
    assert_eq!(refused, Error::Degraded { fit_percent: 25, min_percent: 75 });
    assert_eq!(refused.kind(), ErrorKind::Capacity);
    [Priority::Normal, Priority::Urgent].into_iter().for_each(|priority| send(priority).unwrap());
    let text = runtime.metrics().prometheus_text();
    for line in ["panoply_system_capacity 0.25\n", "panoply_system_degraded 1\n", "panoply_system_capacity_min 0.75\n"]
    {
        assert!(text.contains(line), "{line}{text}");
    }
    assert_eq!(tell(0, Health::default()).share(), 0.5);
    assert_eq!(tell(1, Health::default()).share(), 1.0);
    send(Priority::Patient).unwrap();
    assert!(runtime.metrics().prometheus_text().contains("panoply_system_degraded 0\n"));
}

#[test]
fn patient_ops_run_in_a_degraded_runtime_unless_the_rules_refuse_them() {
    let (runtime, controls) = build([Script::new()], HealthRules::default(), Batching::default());
    controls[0].set_health(Health { temperature_celsius: Some(95.0), ..Health::default() });
    assert!(runtime.examine(WAIT_MAX) && runtime.capacity().is_degraded());
    let options = RunOptions::require(FIRST).priority(Priority::Patient);
    runtime.run_with(Transpose::new(&matrix()), options).wait().unwrap();
}

#[test]
fn a_device_that_is_gone_lowers_the_capacity() {
    let (runtime, controls) = build([Script::new(), Script::new()], HealthRules::default(), Batching::default());
    controls[1].set_present(false);
    runtime.rediscover().unwrap();
    let capacity = runtime.capacity();
    assert_eq!((capacity.devices, capacity.fit, capacity.is_degraded()), (2, 1.0, true));
    controls[1].set_present(true);
    runtime.rediscover().unwrap();
    until("it is back", || runtime.capacity().share() == 1.0);
}

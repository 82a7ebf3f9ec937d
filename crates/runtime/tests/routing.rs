//! Where ops go: locality, learned speed, hints, cold kernels, one GPU behind two APIs, receipts,
//! profiles, discovery.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{MatMul, Reduce, Transfer, Transpose};
use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, DeviceKind, Engine, Error, Health, Location, MemoryUse, Op,
    OpenOptions, Outcome, PciAddress, Support, Tensor, Verdict,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{DeviceChange, Exploration, Goal, HealthRules, Priority, RunOptions, Runtime, WorkerLimits};

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };

fn virtual_devices(scripts: impl IntoIterator<Item = Script>) -> (VirtualBackend, Vec<Arc<VirtualControl>>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = scripts.into_iter().fold(backend, VirtualBackend::device);
    let controls = (0..).map_while(|index| backend.control(index)).collect();
    (backend, controls)
}

fn runtime(scripts: impl IntoIterator<Item = Script>) -> (Runtime, Vec<Arc<VirtualControl>>) {
    let (backend, controls) = virtual_devices(scripts);
    (Runtime::builder().backend(Arc::new(backend)).build().unwrap(), controls)
}

fn matrix() -> Tensor {
    Tensor::from_vec((0..6).map(|value| value as f32).collect(), [2, 3]).unwrap()
}

fn latency(micros: u64) -> Script {
    Script::new().latency(Duration::from_micros(micros))
}

fn report<T>(outcome: panoply_core::Result<Outcome<T>>) -> panoply_core::Report {
    outcome.map(|outcome| outcome.report).unwrap()
}

#[test]
fn inputs_follow_an_op_to_another_device() {
    let (runtime, controls) = runtime([Script::new().resident(), Script::new().resident()]);
    let there = runtime.run_with(Transpose::new(&matrix()), RunOptions::require(FIRST)).wait().unwrap();
    assert_eq!(there.location(), Location::Device(FIRST));
    let moved = runtime.run_with(MatMul::new(&there, &matrix()), RunOptions::require(SECOND)).with_report();
    let Outcome { output, report } = moved.wait().unwrap();
    assert_eq!((report.device, output.location()), (SECOND, Location::Device(SECOND)));
    assert_eq!(report.bytes_moved, 24 + 48, "one input came from the first device, both went to the second");
    // Both inputs are the same view, so it is fetched once.
    let twice = runtime.run_with(MatMul::new(&there, &there).transpose_b(), RunOptions::require(SECOND)).with_report();
    let Outcome { output, report } = twice.wait().unwrap();
    assert_eq!(report.bytes_moved, 24 + 48);
    let back = runtime.run(Transfer::to_host(&output)).wait().unwrap();
    assert_eq!(back.as_slice::<f32>().unwrap(), [9.0, 12.0, 15.0, 12.0, 17.0, 22.0, 15.0, 22.0, 29.0]);
    drop((there, output));
    runtime.shutdown(Duration::from_secs(5));
    assert!(controls.iter().all(|control| control.counters().live_bytes == 0));
}

#[test]
fn transfers_go_between_any_two_devices() {
    let (runtime, _) = runtime([Script::new().resident(), Script::new().resident()]);
    let first = runtime.run(Transfer::to_device(&matrix(), FIRST)).wait().unwrap();
    assert_eq!(first.location(), Location::Device(FIRST));
    let second = runtime.run(Transfer::to_device(&first, SECOND)).wait().unwrap();
    assert_eq!(second.location(), Location::Device(SECOND));
    let home = runtime.run(Transfer::to_host(&second)).wait().unwrap();
    assert_eq!(home.as_slice::<f32>().unwrap(), matrix().as_slice::<f32>().unwrap());
}

#[test]
fn an_op_goes_where_its_large_operand_lives() {
    let link = |script: Script| script.resident().link(Duration::from_micros(10), Duration::from_millis(20));
    let (runtime, _) = runtime([link(latency(50)), link(latency(50))]);
    let large = Tensor::from_vec(vec![1.0_f32; 1 << 18], [512, 512]).unwrap();
    for device in [FIRST, SECOND].into_iter().cycle().take(12) {
        runtime.run_with(Reduce::sum(&large), RunOptions::require(device)).wait().unwrap();
    }
    for home in [SECOND, FIRST] {
        let resident = runtime.run(Transfer::to_device(&large, home)).wait().unwrap();
        for _ in 0..5 {
            let report = report(runtime.run(Reduce::sum(&resident)).with_report().wait());
            assert_eq!((report.device, report.bytes_moved), (home, 0), "{report:?}");
        }
    }
}

#[test]
fn the_faster_device_is_found_and_used() {
    let (runtime, _) = runtime([latency(3000), latency(100)]);
    let mut on_fast = 0;
    for _ in 0..60 {
        let report = report(runtime.run(Transpose::new(&matrix())).with_report().wait());
        on_fast += usize::from(report.device == SECOND);
    }
    assert!(on_fast >= 50, "{on_fast} of 60");
    let told = runtime.explain(Transpose::new(&matrix()), &RunOptions::default()).unwrap();
    let slow = told.iter().find(|device| device.device == FIRST).unwrap();
    assert!(slow.measured && slow.prediction.unwrap().run > Duration::from_millis(1), "{told:?}");
    assert!(told.iter().any(|device| device.device == SECOND && device.verdict == Verdict::Chosen), "{told:?}");
}

#[test]
fn a_long_queue_makes_the_slower_device_the_better_one() {
    let (runtime, _) = runtime([latency(4000), latency(1000)]);
    for device in [FIRST, SECOND].into_iter().cycle().take(8) {
        runtime.run_with(Transpose::new(&matrix()), RunOptions::require(device)).wait().unwrap();
    }
    let pending: Vec<_> = (0..40).map(|_| runtime.run(Transpose::new(&matrix())).with_report()).collect();
    let devices: Vec<DeviceId> = pending.into_iter().map(|op| report(op.wait()).device).collect();
    let on_slow = devices.iter().filter(|device| **device == FIRST).count();
    assert!((1..30).contains(&on_slow), "some of them, a fifth on a machine at rest: {on_slow} of 40");
}

#[test]
fn contradictory_wishes_are_refused_with_both_of_them() {
    let (runtime, _) = runtime([Script::new(), Script::new()]);
    let refused = |options: RunOptions| match runtime.run_with(Transpose::new(&matrix()), options).wait() {
        Err(Error::Contradiction { first, second }) => format!("{first} / {second}"),
        other => panic!("{other:?}"),
    };
    let both = refused(RunOptions::require(FIRST).forbid([FIRST]));
    assert_eq!(both, "requiring simulated:0 / forbidding simulated:0");
    let both = refused(RunOptions::prefer(FIRST).forbid([SECOND, FIRST]));
    assert_eq!(both, "preferring simulated:0 / forbidding simulated:0");
    let both = refused(RunOptions { prefer: Some(SECOND), ..RunOptions::require(FIRST) });
    assert_eq!(both, "requiring simulated:0 / preferring simulated:1");
    let both = refused(RunOptions::require(FIRST).fallback(panoply_runtime::FallbackPolicy::Cpu));
    assert_eq!(both, "requiring simulated:0 / the fallback policy Cpu");
    let late = RunOptions::default().deadline(Instant::now() - Duration::from_millis(5));
    assert!(matches!(
        runtime.run_with(Transpose::new(&matrix()), late).wait(),
        Err(Error::DeadlineExceeded { late_by }) if late_by >= Duration::from_millis(5)
    ));
    let nowhere = RunOptions::default().forbid([DeviceId { api: Api::CUDA, index: 3 }]);
    assert!(matches!(runtime.run_with(Transpose::new(&matrix()), nowhere).wait(), Err(Error::NoSuchDevice { .. })));
    let all = RunOptions::default().forbid([FIRST, SECOND]);
    assert!(matches!(runtime.run_with(Transpose::new(&matrix()), all).wait(), Err(Error::Unsupported { .. })));
}

#[test]
fn wishes_are_kept() {
    let (runtime, _) = runtime([latency(2000), latency(50), latency(50).without("transpose")]);
    let third = DeviceId { index: 2, ..FIRST };
    let on =
        |options: RunOptions| report(runtime.run_with(Transpose::new(&matrix()), options).with_report().wait()).device;
    (0..12).for_each(|_| _ = on(RunOptions::default()));
    assert_eq!(on(RunOptions::prefer(FIRST)), FIRST);
    assert_eq!(on(RunOptions::prefer(SECOND)), SECOND);
    assert_ne!(on(RunOptions::prefer(third)), third, "a preferred device that cannot is no reason to fail");
    assert_eq!(on(RunOptions::default().forbid([SECOND])), FIRST);
    assert_eq!(on(RunOptions::default().goal(Goal::Throughput).forbid([FIRST])), SECOND);
    assert_eq!(on(RunOptions::default().goal(Goal::Energy).priority(Priority::Patient).forbid([FIRST])), SECOND);
    let refused = runtime.run_with(Transpose::new(&matrix()), RunOptions::require(third)).wait();
    assert!(
        matches!(&refused, Err(Error::Unsupported { reason, .. }) if reason.contains("leaves transpose out")),
        "{refused:?}"
    );
}

#[test]
fn receipts_tell_what_was_expected_and_what_else_there_was() {
    let (runtime, _) = runtime([latency(200), latency(200).without("transpose")]);
    (0..4).for_each(|_| _ = runtime.run(Transpose::new(&matrix())).wait().unwrap());
    let plain = report(runtime.run(Transpose::new(&matrix())).with_report().wait());
    assert!(plain.alternatives.is_empty() && plain.attempts == 1 && plain.fallback.is_none());
    let predicted = plain.predicted.unwrap();
    assert!(predicted.run >= Duration::from_micros(20) && predicted.finish() >= predicted.run, "{predicted:?}");
    let told = runtime.run_with(Transpose::new(&matrix()), RunOptions::default().explain()).with_report();
    let told = report(told.wait());
    assert_eq!(told.alternatives.len(), 2);
    assert_eq!(told.alternatives[0].verdict, Verdict::Chosen);
    assert!(matches!(&told.alternatives[1].verdict, Verdict::Unsupported(reason) if reason.contains("leaves")));
}

#[test]
fn an_output_can_be_had_on_the_host() {
    let (runtime, control) = runtime([Script::new().resident()]);
    let Outcome { output, report } =
        runtime.run_with(Transpose::new(&matrix()), RunOptions::default().to_host()).with_report().wait().unwrap();
    assert_eq!(output.as_slice::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(report.bytes_moved, 48, "there and back");
    let resident = runtime.run(Transpose::new(&matrix())).wait().unwrap();
    let pair = panoply_core::op::compute::TopK::new(&resident, 1);
    let (values, ids) = runtime.run_with(pair, RunOptions::default().to_host()).wait().unwrap();
    assert_eq!((values.location(), ids.location()), (Location::Host, Location::Host));
    drop(resident);
    runtime.shutdown(Duration::from_secs(5));
    assert_eq!(control[0].counters().live_bytes, 0);
}

#[test]
fn the_cpu_serves_while_another_device_compiles() {
    let (backend, controls) =
        virtual_devices([Script::new().compiles(Duration::from_millis(400)).kind(DeviceKind::DiscreteGpu)]);
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).backend(Arc::new(backend)).build().unwrap();
    let told = runtime.explain(Transpose::new(&matrix()), &RunOptions::default()).unwrap();
    assert!(told.iter().any(|device| device.verdict == Verdict::Cold), "{told:?}");
    let start = Instant::now();
    for _ in 0..20 {
        let report = report(runtime.run(Transpose::new(&matrix())).with_report().wait());
        if start.elapsed() < Duration::from_millis(300) {
            assert_eq!(report.device.api, Api::CPU);
        }
    }
    // The device was asked to warm up meanwhile, and is used once it is warm.
    while controls[0].counters().submitted == 0 {
        runtime.run(Transpose::new(&matrix())).wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "it never gets warm");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn hot_devices_get_less_and_full_ones_nothing() {
    let (backend, controls) = virtual_devices([latency(300), latency(300)]);
    let rules = HealthRules { look_every: Duration::from_millis(1), ..HealthRules::default() };
    let runtime = Runtime::builder().backend(Arc::new(backend)).health(rules).build().unwrap();
    let run = || report(runtime.run(Transpose::new(&matrix())).with_report().wait()).device;
    (0..10).for_each(|_| _ = run());
    controls[0].set_health(Health { temperature_celsius: Some(91.0), ..Health::default() });
    let start = Instant::now();
    while runtime.workers()[0].health.capacity != 0.5 {
        runtime.run_with(Transpose::new(&matrix()), RunOptions::require(FIRST)).wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    controls[1].set_health(Health { memory: Some(MemoryUse::new(100, 1)), ..Health::default() });
    while !runtime.workers()[1].health.full {
        runtime.run_with(Transpose::new(&matrix()), RunOptions::require(SECOND)).wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert!((0..10).all(|_| run() == FIRST), "half a device is better than a full one");
    controls[1].set_health(Health::default());
    while runtime.workers()[1].health.full {
        assert!(start.elapsed() < Duration::from_secs(5), "an idle device is looked at again");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(runtime.workers()[1].health.transitions >= 2);
}

#[test]
fn what_was_learned_can_be_taken_elsewhere() {
    let (teacher, _) = runtime([latency(1500), latency(100)]);
    (0..40).for_each(|_| _ = teacher.run(Transpose::new(&matrix())).wait().unwrap());
    let text = teacher.profile().to_text();
    let (pupil, _) = runtime([latency(1500), latency(100)]);
    let known = pupil.use_profile(&text.parse().unwrap());
    assert_eq!(known.len(), 2);
    let told = pupil.explain(Transpose::new(&matrix()), &RunOptions::default()).unwrap();
    let slow = told.iter().find(|device| device.device == FIRST).unwrap();
    assert!(slow.measured && slow.prediction.unwrap().run > Duration::from_micros(500), "{told:?}");
    let other = text.replace("simulated device", "another device");
    let (stranger, _) = runtime([latency(100)]);
    assert_eq!(stranger.use_profile(&other.parse().unwrap()), []);
}

#[test]
fn devices_come_and_go() {
    let (backend, controls) = virtual_devices([latency(100), latency(100)]);
    let runtime = Runtime::builder().backend(Arc::new(backend)).build().unwrap();
    assert_eq!(runtime.rediscover().unwrap(), []);
    controls[1].set_present(false);
    let queued: Vec<_> =
        (0..20).map(|_| runtime.run_with(Transpose::new(&matrix()), RunOptions::prefer(SECOND))).collect();
    assert_eq!(runtime.rediscover().unwrap(), [DeviceChange::Gone(SECOND)]);
    queued.into_iter().for_each(|op| _ = op.wait().unwrap());
    let on =
        || report(runtime.run_with(Transpose::new(&matrix()), RunOptions::prefer(SECOND)).with_report().wait()).device;
    assert_eq!(on(), FIRST);
    controls[1].set_present(true);
    assert_eq!(runtime.rediscover().unwrap(), [DeviceChange::Appeared(SECOND)]);
    let start = Instant::now();
    while on() != SECOND {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(runtime.devices().count(), 2);
}

#[test]
fn figures_can_be_scraped() {
    let (runtime, _) = runtime([latency(50)]);
    (0..5).for_each(|_| _ = runtime.run(Transpose::new(&matrix())).wait().unwrap());
    let text = runtime.metrics().prometheus_text();
    assert!(text.contains("panoply_ops_completed_total{device=\"simulated:0\"} 5\n"), "{text}");
    assert!(text.contains("panoply_run_seconds_count{device=\"simulated:0\"} 5\n"), "{text}");
    assert!(text.contains("panoply_run_seconds_bucket{device=\"simulated:0\",le=\"+Inf\"} 5\n"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("panoply_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn small_limits_make_try_run_take_the_next_best() {
    let (backend, _) = virtual_devices([latency(50_000), latency(50_000)]);
    let limits = WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..WorkerLimits::default() };
    let runtime = Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap();
    let mut accepted = Vec::new();
    while let Ok(op) = runtime.try_run(Transpose::new(&matrix())) {
        accepted.push(op);
        assert!(accepted.len() < 50);
    }
    assert!(accepted.len() >= 4, "both queues were filled: {}", accepted.len());
    drop(accepted);
    runtime.abort();
}

/// A virtual backend under another API's name, so that one piece of hardware is visible through two
/// APIs.
struct RelabelledBackend(VirtualBackend);

impl RelabelledBackend {
    fn inside(&self, device: &DeviceInfo) -> DeviceInfo {
        DeviceInfo { id: DeviceId { api: Api::SIMULATED, index: device.id.index }, ..device.clone() }
    }
}

impl Backend for RelabelledBackend {
    fn api(&self) -> Api {
        Api::VULKAN
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let outside = |info: DeviceInfo| DeviceInfo { id: DeviceId { api: Api::VULKAN, index: info.id.index }, ..info };
        Ok(self.0.discover()?.into_iter().map(outside).collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(&self.inside(device), op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> panoply_core::Result<Box<dyn Engine>> {
        self.0.open(&self.inside(device), options)
    }
}

#[test]
fn one_gpu_behind_two_apis_counts_once() {
    let address: PciAddress = "0000:3b:00.0".parse().unwrap();
    let (fast, _) = virtual_devices([latency(100).pci_address(address)]);
    let (slow, slow_control) = virtual_devices([latency(2000).pci_address(address)]);
    let runtime = Runtime::builder()
        .backend(Arc::new(fast))
        .backend(Arc::new(RelabelledBackend(slow)))
        .exploration(Exploration { one_in: 1000, first: 2 })
        .build()
        .unwrap();
    let vulkan = DeviceId { api: Api::VULKAN, index: 0 };
    for device in [FIRST, vulkan].into_iter().cycle().take(8) {
        runtime.run_with(Transpose::new(&matrix()), RunOptions::require(device)).wait().unwrap();
    }
    let before = slow_control[0].counters().submitted;
    let pending: Vec<_> = (0..64).map(|_| runtime.run(Transpose::new(&matrix()))).collect();
    let told = runtime.explain(Transpose::new(&matrix()), &RunOptions::default()).unwrap();
    assert!(told.iter().any(|device| device.verdict == Verdict::SameHardware(FIRST)), "{told:?}");
    pending.into_iter().for_each(|op| _ = op.wait().unwrap());
    assert!(slow_control[0].counters().submitted - before <= 2, "the slower API is not fed, however long the queue");
}

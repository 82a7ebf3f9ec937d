//! More devices than a runtime serves, devices that stay dead, and failing backends: none of them
//! keeps another device out.
#![allow(unsafe_code)] // The counting allocator that tests share.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::support::eventually;
use panoply_core::op::compute::Transpose;
use panoply_core::{
    Absence, Api, Backend, DType, DeviceId, DeviceInfo, DeviceKind, Engine, Error, Op, OpenOptions, Result, Support,
    Tensor,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{DeviceChange, FallbackPolicy, RunOptions, Runtime, WorkerLimits, WorkerState};

/// The most devices that a runtime serves at once.
const SERVED_MAX: usize = 48;

/// Devices of one API. Each of them is the processor under another name.
struct Crowd {
    api: Api,
    count: AtomicU32,
    /// The lowest device index that is found.
    first: AtomicU32,
    /// Whether opening a device fails.
    broken: AtomicBool,
    panics: AtomicBool,
}

impl Crowd {
    fn new(api: &'static str, count: u32) -> Arc<Crowd> {
        Arc::new(Crowd {
            api: Api::new(api),
            count: AtomicU32::new(count),
            first: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            panics: AtomicBool::new(false),
        })
    }

    fn device(&self, index: u32) -> DeviceId {
        DeviceId { api: self.api, index }
    }
}

impl Backend for Crowd {
    fn api(&self) -> Api {
        self.api
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        if self.panics.load(Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("the driver is out of order"));
        }
        let first = self.first.load(Ordering::SeqCst);
        let info = |index| DeviceInfo::new(self.device(index), "one of many", DeviceKind::DiscreteGpu);
        Ok((first..first + self.count.load(Ordering::SeqCst)).map(info).collect())
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        let inner = CpuBackend::new();
        inner.supports(&inner.discover().unwrap()[0], op)
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        if self.broken.load(Ordering::SeqCst) {
            let reason = "it is broken".to_owned();
            return Err(Error::DeviceUnavailable { device: device.id, reason });
        }
        let inner = CpuBackend::new();
        inner.open(&inner.discover().unwrap()[0], &OpenOptions { threads: Some(1), ..OpenOptions::default() })
    }
}

fn limits() -> WorkerLimits {
    WorkerLimits {
        queue_depth_max: 4,
        reopen_wait_min: Duration::from_micros(100),
        reopen_wait_max: Duration::from_micros(200),
        reopen_attempts_max: 1,
        ..WorkerLimits::default()
    }
}

fn op() -> Transpose {
    Transpose::new(&Tensor::zeros(DType::F32, [2, 3]).unwrap())
}

fn left_out(runtime: &Runtime) -> Vec<String> {
    let reports = runtime.backends();
    let reasons = reports.iter().filter_map(|report| report.devices.as_ref().err());
    reasons.filter(|absence| matches!(absence, Absence::LeftOut { .. })).map(ToString::to_string).collect()
}

fn wait_for(runtime: &Runtime, state: WorkerState) {
    eventually("every worker has this state", || runtime.workers().iter().all(|worker| worker.state == state));
}

#[test]
fn twelve_cards_through_five_apis_are_served_as_far_as_there_is_room() {
    let crowds: Vec<_> = ["a", "b", "c", "d", "e"].map(|api| Crowd::new(api, 12)).into();
    let builder = crowds.iter().fold(Runtime::builder().limits(limits()), |builder, crowd| {
        builder.backend(Arc::clone(crowd) as Arc<dyn Backend>)
    });
    let runtime = builder.build().unwrap();
    assert_eq!(runtime.devices().count(), SERVED_MAX);
    let reasons = left_out(&runtime);
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(reasons[0].contains("e:0, e:1") && reasons[0].contains("and 4 more"), "{reasons:?}");
    assert!(reasons[0].contains("48 devices at once"), "{reasons:?}");
    runtime.run_with(op(), RunOptions::require(crowds[3].device(11))).wait().unwrap();
    let refused = runtime.run_with(op(), RunOptions::require(crowds[4].device(0))).wait();
    assert!(matches!(refused, Err(Error::NoSuchDevice { .. })), "{refused:?}");
    // Twelve devices are unplugged: those that were left out take over their slots.
    crowds[0].count.store(0, Ordering::SeqCst);
    let changes = runtime.rediscover().unwrap();
    let appeared = changes.iter().filter(|change| matches!(change, DeviceChange::Appeared(_))).count();
    assert_eq!((changes.len(), appeared), (24, 12));
    assert_eq!((runtime.devices().count(), left_out(&runtime)), (SERVED_MAX, Vec::new()));
    wait_for(&runtime, WorkerState::Ready);
    runtime.run_with(op(), RunOptions::require(crowds[4].device(11))).wait().unwrap();
    let gone = runtime.run_with(op(), RunOptions::require(crowds[0].device(0))).wait();
    assert!(matches!(gone, Err(Error::NoSuchDevice { .. })), "{gone:?}");
}

#[test]
fn a_device_that_stays_dead_costs_no_slot_however_often_it_is_looked_for() {
    let (sick, well) = (Crowd::new("sick", 1), Crowd::new("well", 1));
    sick.broken.store(true, Ordering::SeqCst);
    let builder = Runtime::builder().limits(limits()).backend(Arc::clone(&sick) as Arc<dyn Backend>);
    let runtime = builder.backend(Arc::clone(&well) as Arc<dyn Backend>).build().unwrap();
    for _ in 0..200 {
        eventually("it is given up", || runtime.workers()[0].state == WorkerState::Failed);
        assert_eq!(runtime.rediscover().unwrap(), [DeviceChange::Appeared(sick.device(0))]);
    }
    eventually("it is given up", || runtime.workers()[0].state == WorkerState::Failed);
    // Other devices can be added all the same, and the dead one works once it can be opened.
    well.count.store(40, Ordering::SeqCst);
    sick.broken.store(false, Ordering::SeqCst);
    assert_eq!(runtime.rediscover().unwrap().len(), 40);
    wait_for(&runtime, WorkerState::Ready);
    assert_eq!((runtime.devices().count(), left_out(&runtime)), (41, Vec::new()));
    for device in [sick.device(0), well.device(39)] {
        let outcome = runtime.run_with(op(), RunOptions::require(device)).with_report().wait().unwrap();
        assert_eq!(outcome.report.device, device);
    }
}

#[test]
fn a_backend_that_fails_hides_no_other() {
    let (first, second) = (Crowd::new("first", 2), Crowd::new("second", 2));
    first.panics.store(true, Ordering::SeqCst);
    let builder = Runtime::builder().limits(limits()).backend(Arc::clone(&first) as Arc<dyn Backend>);
    let runtime = builder.backend(Arc::clone(&second) as Arc<dyn Backend>).build().unwrap();
    assert_eq!(runtime.devices().count(), 2);
    // A backend with far more devices than there is room for comes before one with a new device.
    first.panics.store(false, Ordering::SeqCst);
    first.count.store(10_000, Ordering::SeqCst);
    runtime.rediscover().unwrap();
    assert_eq!(runtime.devices().count(), SERVED_MAX);
    let reasons = left_out(&runtime);
    assert!(reasons.len() == 1 && reasons[0].contains("and 9946 more") && reasons[0].len() < 500, "{reasons:?}");
    wait_for(&runtime, WorkerState::Ready);
    runtime.run_with(op(), RunOptions::require(second.device(1))).wait().unwrap();
}

#[test]
fn an_op_never_reaches_the_device_that_took_over_the_slot_of_its_own() {
    let crowd = Crowd::new("crowd", SERVED_MAX as u32);
    let runtime = Runtime::builder().limits(limits()).backend(Arc::clone(&crowd) as Arc<dyn Backend>).build().unwrap();
    let options =
        |index| RunOptions::require(crowd.device(index)).fallback(FallbackPolicy::Retry { times: 3 }).explain();
    let runtime = &runtime;
    let end = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for index in 0..4 {
            scope.spawn(move || {
                while !end.load(Ordering::SeqCst) {
                    for index in [index, SERVED_MAX as u32 + index] {
                        if let Ok(outcome) = runtime.run_with(op(), options(index)).with_report().wait() {
                            assert_eq!(outcome.report.device, crowd_device(index));
                        }
                    }
                }
            });
        }
        // The whole crowd is exchanged for another one, repeatedly.
        for round in 0..6 {
            crowd.first.store(if round % 2 == 0 { SERVED_MAX as u32 } else { 0 }, Ordering::SeqCst);
            assert_eq!(runtime.rediscover().unwrap().len(), 2 * SERVED_MAX);
            wait_for(runtime, WorkerState::Ready);
        }
        end.store(true, Ordering::SeqCst);
    });
    assert_eq!((runtime.devices().count(), left_out(runtime)), (SERVED_MAX, Vec::new()));
}

fn crowd_device(index: u32) -> DeviceId {
    DeviceId { api: Api::new("crowd"), index }
}

#[test]
fn crowds_that_take_turns_cost_no_more_lanes_however_often_they_do() {
    let crowd = Crowd::new("turns", SERVED_MAX as u32);
    let runtime = Runtime::builder().limits(limits()).backend(Arc::clone(&crowd) as Arc<dyn Backend>).build().unwrap();
    for round in 0..14 {
        wait_for(&runtime, WorkerState::Ready);
        let first = if round % 2 == 0 { SERVED_MAX as u32 } else { 0 };
        crowd.first.store(first, Ordering::SeqCst);
        assert_eq!(runtime.rediscover().unwrap().len(), 2 * SERVED_MAX, "round {round}");
        let index = first + round % SERVED_MAX as u32;
        let outcome = runtime.run_with(op(), RunOptions::require(crowd.device(index))).with_report().wait().unwrap();
        assert_eq!(outcome.report.device, crowd.device(index));
        // The slot of a device of the other crowd must not serve a request for this device.
        let other = crowd.device((index + SERVED_MAX as u32) % (2 * SERVED_MAX as u32));
        let refused = runtime.run_with(op(), RunOptions::require(other)).wait();
        assert!(matches!(refused, Err(Error::NoSuchDevice { .. })), "{refused:?}");
    }
    assert_eq!((runtime.devices().count(), left_out(&runtime)), (SERVED_MAX, Vec::new()));
    // There is room for devices that were never here.
    wait_for(&runtime, WorkerState::Ready);
    crowd.first.store(2 * SERVED_MAX as u32, Ordering::SeqCst);
    assert_eq!(runtime.rediscover().unwrap().len(), 2 * SERVED_MAX);
    let newest = RunOptions::require(crowd.device(3 * SERVED_MAX as u32 - 1));
    runtime.run_with(op(), newest).wait().unwrap();
}

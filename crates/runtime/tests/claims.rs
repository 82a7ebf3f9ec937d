//! Claims of devices, and workers that own a device or a part of one.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::Duration;

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{Map, Reduce};
use panoply_core::{DeviceId, Error, Location, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{
    AcceleratedWorker, DeviceShare, Envelope, PoolOptions, RunOptions, Runtime, Share, WorkerError, WorkerLimits,
    WorkerPool,
};

/// A runtime with two equal virtual devices.
fn two_devices() -> (Arc<Runtime>, [DeviceId; 2], [Arc<VirtualControl>; 2]) {
    let script = || Script::new().resident();
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script()).device(script());
    let controls = [0, 1].map(|index| backend.control(index).unwrap());
    let limits = WorkerLimits { queue_depth_max: 16, ..WorkerLimits::default() };
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap());
    let ids: Vec<DeviceId> = runtime.devices().map(|device| device.id).collect();
    (runtime, [ids[0], ids[1]], controls)
}

fn row() -> Tensor {
    Tensor::from_vec(vec![1.0_f32, 2.0, 3.0], [3]).unwrap()
}

fn ran_on(runtime: &Runtime, options: RunOptions) -> Result<DeviceId, Error> {
    runtime.run_with(Map::add(&row(), &row()), options).with_report().wait().map(|outcome| outcome.report.device)
}

#[test]
fn a_claimed_device_runs_nobody_elses_ops() {
    let (runtime, [mine, other], controls) = two_devices();
    let share = runtime.claim(mine, Share::Whole).unwrap();
    let before = controls[0].counters().submitted;
    for _ in 0..200 {
        assert_eq!(ran_on(&runtime, RunOptions::default()).unwrap(), other);
    }
    assert_eq!(controls[0].counters().submitted, before, "exploring leaves it alone, too");
    let refused = ran_on(&runtime, RunOptions::require(mine)).unwrap_err();
    assert!(matches!(refused, Error::DeviceUnavailable { device, .. } if device == mine), "{refused}");
    assert_eq!(ran_on(&runtime, RunOptions::prefer(mine)).unwrap(), other);
    for _ in 0..20 {
        assert_eq!(ran_on(&runtime, share.options()).unwrap(), mine);
    }
    // Its answers can be read without the claim.
    let answer = share.run(Map::add(&row(), &row())).wait().unwrap();
    assert_eq!(answer.location(), Location::Device(mine));
    let copied = runtime.run(panoply_core::op::compute::Transfer::to_host(&answer)).wait().unwrap();
    assert_eq!(copied.as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    assert!(runtime.claim(mine, Share::Whole).is_err() && runtime.claim(mine, Share::Part(0.1)).is_err());
    let contradictions = [share.options().forbid([mine]), RunOptions { device: Some(other), ..share.options() }];
    for options in contradictions {
        assert!(matches!(ran_on(&runtime, options.clone()), Err(Error::Contradiction { .. })), "{options:?}");
    }
    drop(share);
    assert_eq!(ran_on(&runtime, RunOptions::require(mine)).unwrap(), mine, "it is free again");
}

#[test]
fn a_part_bounds_the_ops_in_flight_and_leaves_the_rest_to_others() {
    let (runtime, [device, _], controls) = two_devices();
    let quarter = runtime.claim(device, Share::Part(0.25)).unwrap();
    assert_eq!(quarter.in_flight_max(), 4, "of 16 places");
    assert!(runtime.claim(device, Share::Part(0.8)).is_err());
    let _rest = runtime.claim(device, Share::Part(0.75)).unwrap();
    controls[0].inject(Fault::Slow(Duration::from_millis(100)));
    let pending: Vec<_> = (0..6).map(|_| quarter.run(Map::add(&row(), &row()))).collect();
    let answers: Vec<_> = pending.into_iter().map(|pending| pending.wait()).collect();
    assert!(answers[..4].iter().all(Result::is_ok), "{answers:?}");
    assert!(answers[4..].iter().all(|answer| matches!(answer, Err(Error::Busy { queue_depth_max: 4, .. }))));
    assert!(quarter.run(Map::add(&row(), &row())).wait().is_ok(), "there is room again");
    assert_eq!(ran_on(&runtime, RunOptions::require(device)).unwrap(), device, "others may use the device");
}

/// A table on the device, made when the worker starts, and sums with its elements.
struct Table {
    index: usize,
    table: Option<Tensor>,
}

impl AcceleratedWorker for Table {
    type Message = f32;
    type Reply = (usize, DeviceId, f32);

    fn init(&mut self, device: &DeviceShare) -> Result<(), BoxError> {
        let table = Tensor::from_vec(vec![self.index as f32; 3], [3])?;
        self.table = Some(device.run(Map::add(&table, &table)).wait()?);
        Ok(())
    }

    fn handle(&mut self, device: &DeviceShare, envelope: Envelope<f32>) -> Result<Self::Reply, BoxError> {
        let table = self.table.as_ref().ok_or("no table")?;
        if envelope.message < 0.0 {
            return Err("asked to fail".into());
        }
        let added = device.run(Map::add(table, &Tensor::from_vec(vec![envelope.message; 3], [3])?)).wait()?;
        let sum = device.run_with(Reduce::sum(&added), RunOptions::default().to_host()).with_report().wait()?;
        Ok((self.index, sum.report.device, sum.output.as_slice::<f32>()?[0]))
    }
}

#[test]
fn each_worker_owns_its_device_with_state_in_its_memory() {
    let (runtime, ids, controls) = two_devices();
    let shares = ids.map(|device| runtime.claim(device, Share::Whole).unwrap());
    let options = PoolOptions { workers: 2, ..PoolOptions::default() };
    let pool = WorkerPool::start_on_devices(options, shares.to_vec(), |index| Table { index, table: None }).unwrap();
    drop(shares);
    for (worker, id) in ids.into_iter().enumerate() {
        for _ in 0..3 {
            let reply = pool.request_to(worker, 1.0).unwrap().wait().unwrap();
            assert_eq!(reply, (worker, id, 3.0 + 6.0 * worker as f32));
        }
    }
    assert!(controls.iter().all(|control| control.counters().live_bytes >= 12), "the tables live there");
    assert!(ran_on(&runtime, RunOptions::default()).is_err(), "all devices are claimed");
    // A worker that fails is made again, with its table.
    assert!(pool.request_to(1, -1.0).unwrap().wait().is_err());
    assert_eq!(pool.request_to(1, 2.0).unwrap().wait().unwrap(), (1, ids[1], 12.0));
    drop(pool);
    assert!(ran_on(&runtime, RunOptions::default()).is_ok(), "the pool gave its devices back");
}

#[test]
fn a_worker_outlives_a_lost_device() {
    let (runtime, [device, _], controls) = two_devices();
    let share = runtime.claim(device, Share::Whole).unwrap();
    let make = |_| Table { index: 5, table: None };
    let pool = WorkerPool::start_on_devices(PoolOptions::default(), vec![share], make).unwrap();
    assert_eq!(pool.request(1.0).unwrap().wait().unwrap().2, 33.0);
    controls[0].inject(Fault::Lost);
    let start = std::time::Instant::now();
    let mut failures = 0;
    let reply = loop {
        match pool.request(1.0).unwrap().wait() {
            Ok(reply) => break reply,
            Err(WorkerError::Failed { .. } | WorkerError::GivenUp { .. }) => failures += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the worker never came back");
    };
    assert!(failures > 0, "the lost device is an error");
    assert_eq!((reply.1, reply.2), (device, 33.0), "the table was made again on the same device");
    assert_eq!(controls[0].counters().opened, 2);
}

#[test]
fn the_number_of_workers_is_that_of_shares() {
    let (runtime, [device, _], _) = two_devices();
    let shares = || vec![runtime.claim(device, Share::Part(0.5)).unwrap()];
    let options = PoolOptions { workers: 2, ..PoolOptions::default() };
    let refused = WorkerPool::start_on_devices(options, shares(), |index| Table { index, table: None }).err().unwrap();
    assert!(matches!(refused, WorkerError::BadOption { what: "workers", .. }), "{refused}");
    assert!(
        WorkerPool::start_on_devices(PoolOptions::default(), shares(), |index| Table { index, table: None }).is_ok()
    );
}

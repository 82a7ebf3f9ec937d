//! Where the threads of device workers run, as the kernel shows it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::cpu_set::CpuSet;
use panoply_core::op::compute::Transpose;
use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, DeviceKind, Engine, Op, OpenOptions, Result, Support, Tensor,
};
use panoply_cpu::CpuBackend;
use panoply_placement::affinity::{RealtimePriority, current};
use panoply_placement::{CoreUse, PlacementOptions, Topology, WorkerWishes};
use panoply_runtime::{RunOptions, Runtime, WorkerReport, WorkerState};

const CPU: DeviceId = DeviceId { api: Api::CPU, index: 0 };
const VIRTUAL: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };

/// The worker's thread, and its CPUs while it opened the device.
type OpenThreads = Arc<Mutex<Vec<(i32, CpuSet)>>>;

/// A backend that notes on which thread its devices are opened.
struct Witness {
    inner: Arc<dyn Backend>,
    opened: OpenThreads,
}

impl Backend for Witness {
    fn api(&self) -> Api {
        self.inner.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.inner.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.inner.supports(device, op)
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.opened.lock().unwrap().push((thread, current().unwrap()));
        self.inner.open(device, options)
    }
}

/// A runtime with the CPU and a virtual GPU, and the threads of both.
fn runtime(placement: PlacementOptions) -> (Runtime, [OpenThreads; 2]) {
    let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new());
    let gpu = VirtualBackend::new(Arc::clone(&cpu)).device(Script::new().kind(DeviceKind::DiscreteGpu));
    let [of_cpu, of_gpu] = [OpenThreads::default(), OpenThreads::default()];
    let runtime = Runtime::builder()
        .backend(Arc::new(Witness { inner: cpu, opened: Arc::clone(&of_cpu) }))
        .backend(Arc::new(Witness { inner: Arc::new(gpu), opened: Arc::clone(&of_gpu) }))
        .placement(placement)
        .build()
        .unwrap();
    (runtime, [of_cpu, of_gpu])
}

fn thread(opened: &OpenThreads) -> i32 {
    opened.lock().unwrap().last().unwrap().0
}

/// The CPUs of a thread of this process.
fn cpus(thread: i32) -> CpuSet {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().parse().unwrap()
}

/// The scheduling class (1 is `SCHED_FIFO`) and the real-time priority of a thread of this process.
fn scheduling(thread: i32) -> (u32, u8) {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    // The name before the last bracket may hold spaces. The state after it is the third field.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[41 - 3].parse().unwrap(), fields[40 - 3].parse().unwrap())
}

fn report(runtime: &Runtime, device: DeviceId) -> WorkerReport {
    runtime.workers().into_iter().find(|worker| worker.device == device).unwrap()
}

fn runs(runtime: &Runtime, device: DeviceId) {
    let op = Transpose::new(&Tensor::from_vec(vec![1.0_f32; 6], [2, 3]).unwrap());
    runtime.run_with(op, RunOptions::require(device)).wait().unwrap();
}

fn own_cores() -> PlacementOptions {
    PlacementOptions { cores: CoreUse::Own, ..PlacementOptions::default() }
}

#[test]
fn a_small_machine_binds_no_thread_by_default() {
    if Topology::current().cores().len() >= panoply_placement::CORES_PER_OWN_CORE {
        return println!("skipped: this machine is not small");
    }
    let before = current().unwrap();
    let (runtime, opened) = runtime(PlacementOptions::default());
    for (device, opened) in [CPU, VIRTUAL].into_iter().zip(&opened) {
        runs(&runtime, device);
        let worker = thread(opened);
        if runtime.devices().filter(|info| info.kind == DeviceKind::Cpu).count() == 1 {
            assert_eq!(cpus(worker), before, "{device}");
        }
        let placement = report(&runtime, device).placement;
        assert_eq!((scheduling(worker), placement.own_core, placement.notes.len()), ((0, 0), false, 0), "{device}");
    }
}

#[test]
fn the_worker_of_an_accelerator_has_the_core_of_the_plan_and_the_cpu_device_leaves_it_alone() {
    let topology = Topology::current();
    if topology.effective_cpus() < 2 || topology.cores().len() < 2 {
        return println!("skipped: there are no two cores");
    }
    let (runtime, [of_cpu, of_gpu]) = runtime(own_cores());
    let planned = runtime.plan().place(VIRTUAL, None, 0);
    let (core, near) = (planned.cpus.clone().unwrap(), planned.near.clone().unwrap());
    assert!(planned.own_core && core.len() == 1, "{}", runtime.plan());
    runs(&runtime, VIRTUAL);
    assert_eq!(cpus(thread(&of_gpu)), core, "{}", runtime.plan());
    let placement = report(&runtime, VIRTUAL).placement;
    assert_eq!((placement.cpus, placement.own_core, placement.notes), (Some(core.clone()), true, Vec::new()));
    assert_eq!(of_gpu.lock().unwrap()[0].1, near, "the driver's threads may run beside the core");
    // Every thread of the CPU device keeps off the core, and off its siblings.
    runs(&runtime, CPU);
    let own = runtime.plan().own_cores();
    assert!(core.is_subset(&own));
    assert!(cpus(thread(&of_cpu)).is_disjoint(&own), "{}", runtime.plan());
    assert_eq!(report(&runtime, CPU).placement.cpus, Some(cpus(thread(&of_cpu))));
    runtime.shutdown(Duration::from_secs(5));
}

#[test]
fn real_time_is_granted_or_the_note_names_what_is_missing() {
    let priority = RealtimePriority::new(7).unwrap();
    let wishes = WorkerWishes { realtime: Some(priority), isolated: true };
    let (runtime, [of_cpu, of_gpu]) = runtime(PlacementOptions { wishes, ..PlacementOptions::default() });
    runs(&runtime, VIRTUAL);
    let placement = report(&runtime, VIRTUAL).placement;
    match placement.realtime {
        Some(granted) => assert_eq!((granted, scheduling(thread(&of_gpu))), (priority, (1, 7))),
        None => {
            let named = ["SCHED_FIFO priority 7", "CAP_SYS_NICE"].map(|word| placement.notes.concat().contains(word));
            assert!(named[0] && (named[1] || placement.notes.concat().contains("rt_runtime_us")), "{placement:?}");
            assert_eq!(scheduling(thread(&of_gpu)), (0, 0));
        }
    }
    println!("{placement:?}");
    if Topology::current().isolated().is_empty() {
        assert!(!placement.isolated && placement.notes.concat().contains("isolcpus"), "{placement:?}");
    }
    assert_eq!(scheduling(thread(&of_cpu)), (0, 0), "the CPU device asked for nothing");
}

#[test]
fn a_replaced_worker_returns_to_its_place() {
    if Topology::current().effective_cpus() < 2 || Topology::current().cores().len() < 2 {
        return println!("skipped: there are no two cores");
    }
    let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new());
    let script = Script::new().kind(DeviceKind::DiscreteGpu);
    let gpu = VirtualBackend::new(cpu).device(script);
    let (control, opened) = (gpu.control(0).unwrap(), OpenThreads::default());
    let witness = Witness { inner: Arc::new(gpu), opened: Arc::clone(&opened) };
    let runtime = Runtime::builder().backend(Arc::new(witness)).placement(own_cores()).build().unwrap();
    let core = runtime.plan().place(VIRTUAL, None, 0).cpus.unwrap();
    control.inject(panoply_conformance::virtual_device::Fault::Lost);
    let op = Transpose::new(&Tensor::from_vec(vec![1.0_f32; 6], [2, 3]).unwrap());
    let _ = runtime.run(op).wait();
    let began = Instant::now();
    while opened.lock().unwrap().len() < 2 || report(&runtime, VIRTUAL).state != WorkerState::Ready {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", report(&runtime, VIRTUAL));
        std::thread::sleep(Duration::from_millis(2));
    }
    runs(&runtime, VIRTUAL);
    assert_eq!(cpus(thread(&opened)), core);
    let opened = opened.lock().unwrap();
    assert_eq!(opened[0].1, opened[1].1, "the device is opened again where it was opened first");
}

#[test]
fn the_plan_of_a_builder_is_the_plan_of_its_runtime() {
    let builder = || {
        let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new());
        let gpu = VirtualBackend::new(Arc::clone(&cpu)).device(Script::new().kind(DeviceKind::DiscreteGpu));
        Runtime::builder().backend(cpu).backend(Arc::new(gpu)).placement(own_cores())
    };
    let (before, runtime) = (builder().plan(), builder().build().unwrap());
    assert_eq!(before.to_string(), runtime.plan().to_string());
    assert!(runtime.rediscover().unwrap().is_empty());
    assert_eq!(before.to_string(), runtime.plan().to_string(), "a second search moves nobody");
    let row = format!("{VIRTUAL}       gpu");
    assert!(before.to_string().contains(&row) && before.to_string().contains("cpu:0"), "{before}");
}

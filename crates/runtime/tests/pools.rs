//! Pools: workers of their own for kinds of work, on the CPU and on virtual devices.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::op::compute::{MatMul, Transpose};
use panoply_core::op::crypto::{AeadAlgorithm, Key, Seal};
use panoply_core::op::signal::{Filter, StartFilter, StreamFilter};
use panoply_core::{
    Absence, Api, Backend, DType, DeviceId, DeviceInfo, Domain, Engine, MemoryLimits, Op, OpenOptions, Support, Tensor,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{
    Batching, BuildError, DevicePool, FallbackPolicy, PoolName, PoolPriority, Pools, RunOptions, Runtime, WorkerState,
};

use super::support::eventually;

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };
const CRYPTO: PoolName = PoolName::Domain(Domain::Crypto);

fn on_cpu(pools: Pools) -> Runtime {
    Runtime::builder().backend(Arc::new(CpuBackend::new())).pools(pools).build().unwrap()
}

fn of_crypto(pool: DevicePool) -> Pools {
    let mut pools = Pools::none();
    *pools.entry(CRYPTO) = pool;
    pools
}

fn seal(key: &Key) -> Seal {
    Seal::new(key, [1; 12], vec![9; 1024])
}

fn key() -> Key {
    Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap()
}

fn matrix(side: usize) -> Tensor {
    Tensor::from_vec(vec![1.0_f32; side * side], [side, side]).unwrap()
}

#[test]
fn a_seal_overtakes_a_product_on_the_cpu() {
    let (runtime, key, product) = (on_cpu(Pools::default()), key(), matrix(1536));
    let took = || {
        let start = Instant::now();
        runtime.run(MatMul::new(&product, &product)).wait().unwrap();
        start.elapsed()
    };
    let alone = took().min(took());
    (0..4).for_each(|_| drop(runtime.run(seal(&key)).wait().unwrap()));
    let stop = AtomicBool::new(false);
    let mut seals: Vec<Duration> = std::thread::scope(|scope| {
        // Two products wait or run at every moment.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    took();
                }
            });
        }
        std::thread::sleep(alone / 4);
        let timed = |_| {
            let start = Instant::now();
            drop(runtime.run(seal(&key)).wait().unwrap());
            start.elapsed()
        };
        let seals = (0..40).map(timed).collect();
        stop.store(true, Ordering::Relaxed);
        seals
    });
    seals.sort();
    let median = seals[seals.len() / 2];
    assert!(median < alone / 4, "a seal takes {median:?}, a product {alone:?}");
    // The device is one, and its figures are the sums over its workers.
    assert_eq!(runtime.devices().count(), runtime.workers().len());
    let worker = &runtime.workers()[0];
    let of_pool = &worker.pool_workers[0];
    assert_eq!((of_pool.pool, of_pool.state), (PoolName::Short, WorkerState::Ready));
    assert!(of_pool.counters.completed >= 40 && of_pool.counters.completed < worker.counters.completed, "{worker:?}");
    assert_eq!(runtime.metrics().devices[0].run_ns.count, worker.counters.completed);
    assert!(runtime.shutdown(Duration::from_secs(20)).drained);
}

#[test]
fn streams_stay_with_the_engine_that_knows_them() {
    let mut of_signal = Pools::default();
    of_signal.entry(PoolName::Domain(Domain::Signal)).workers = 2;
    for (pools, of_pool) in [(Pools::default(), false), (of_signal, true)] {
        let runtime = on_cpu(pools);
        let taps = Tensor::from_vec(vec![1.0_f32, 1.0], [2]).unwrap();
        let input = Tensor::from_vec(vec![1.0_f32; 8], [8]).unwrap();
        let streams: Vec<_> =
            (0..4).map(|_| runtime.run(StartFilter::new(Filter::fir(&taps), DType::F32)).wait().unwrap()).collect();
        for _ in 0..20 {
            let all: Vec<_> = streams.iter().map(|stream| runtime.run(StreamFilter::new(stream, &input))).collect();
            all.into_iter().for_each(|answer| drop(answer.wait().unwrap()));
        }
        let worker = &runtime.workers()[0];
        let completed = |name| {
            let workers = worker.pool_workers.iter().filter(|worker| worker.pool == name);
            workers.map(|worker| worker.counters.completed).collect::<Vec<_>>()
        };
        assert_eq!(completed(PoolName::Short), [0]);
        let expected: &[u64] = if of_pool { &[84, 0] } else { &[] };
        assert_eq!(completed(PoolName::Domain(Domain::Signal)), expected);
    }
}

/// The CPU backend. Remembers how each of its engines was opened, by the name of the thread.
struct Recording(CpuBackend, Mutex<Vec<(String, OpenOptions)>>);

impl Backend for Recording {
    fn api(&self) -> Api {
        self.0.api()
    }
    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.0.discover()
    }
    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(device, op)
    }
    fn inner(&self) -> Option<&dyn Backend> {
        Some(&self.0)
    }
    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> panoply_core::Result<Box<dyn Engine>> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.1.lock().unwrap().push((thread, options.clone()));
        self.0.open(device, options)
    }
}

#[test]
fn a_pool_opens_its_own_engines_as_it_says() {
    let backend = Arc::new(Recording(CpuBackend::new(), Mutex::default()));
    let pool = DevicePool {
        workers: 2,
        core_share: 0.5,
        memory_bytes_max: Some(4096),
        queue_depth_max: Some(8),
        ..DevicePool::default()
    };
    let open = OpenOptions {
        memory: MemoryLimits { pool_bytes_max: Some(1 << 20), ..MemoryLimits::default() },
        ..OpenOptions::default()
    };
    let builder = Runtime::builder().backend(backend.clone()).open_options(open).pools(of_crypto(pool));
    let runtime = builder.build().unwrap();
    let opened = backend.1.lock().unwrap().clone();
    let (own, of_pool): (Vec<_>, Vec<_>) = opened.into_iter().partition(|(thread, _)| !thread.ends_with("-crypto"));
    let devices = runtime.devices().count();
    assert_eq!((own.len(), of_pool.len()), (devices, 2 * devices));
    let cores = own[0].1.threads.unwrap();
    assert_eq!(own[0].1.memory.pool_bytes_max, Some(1 << 20));
    assert!(of_pool.iter().all(|(_, options)| options.threads == Some(cores.div_ceil(2))), "{of_pool:?} of {cores}");
    assert!(of_pool.iter().all(|(_, options)| options.memory.pool_bytes_max == Some(4096)));
    let worker = &runtime.workers()[0];
    assert!(worker.pool_workers.iter().all(|worker| worker.queue_depth_max == 8), "{worker:?}");
    assert_ne!(worker.queue_depth_max, 8);
    (0..20).for_each(|_| drop(runtime.run(seal(&key())).wait().unwrap()));
    let worker = &runtime.workers()[0];
    let completed: u64 = worker.pool_workers.iter().map(|worker| worker.counters.completed).sum();
    assert_eq!((completed, worker.counters.completed), (20, 20));
}

#[cfg(target_os = "linux")]
#[test]
fn threads_of_a_pool_run_where_and_how_it_says() {
    let cpu = panoply_runtime::placement::Topology::current().allowed().iter().last().unwrap();
    let cores = panoply_core::cpu_set::CpuSet::from_cpus([cpu]).unwrap();
    let pool = DevicePool { cores: Some(cores), priority: PoolPriority::Patient, ..DevicePool::default() };
    let runtime = on_cpu(of_crypto(pool));
    drop(runtime.run(seal(&key())).wait().unwrap());
    let mut seen = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        // The system keeps fifteen characters of a name.
        if !read("comm").starts_with("panoply-cpu:") || !read("comm").trim_end().ends_with("-c") {
            continue;
        }
        seen += 1;
        let (stat, status) = (read("stat"), read("status"));
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let (nice, policy) = (fields[16], fields[38]);
        assert_eq!((nice, policy), ("10", "3"), "nice 10 and the batch policy: {stat}");
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.split_whitespace().nth(1), Some(cpu.to_string().as_str()));
    }
    assert!(seen > 0, "the pool has a thread");
}

#[test]
fn a_pool_holds_ops_back_as_it_says() {
    let wait_max = Duration::from_secs(1);
    let batching = Batching::AtLeast { size_min: 4, size_max: 8, wait_max };
    let runtime = on_cpu(of_crypto(DevicePool { batching: Some(batching), ..DevicePool::default() }));
    let key = key();
    let took = |count: usize| {
        let start = Instant::now();
        let all: Vec<_> = (0..count).map(|_| runtime.run(seal(&key))).collect();
        all.into_iter().for_each(|answer| drop(answer.wait().unwrap()));
        start.elapsed()
    };
    let (few, enough) = (took(3), took(4));
    assert!(few >= wait_max, "three wait for a fourth: {few:?}");
    assert!(enough < wait_max, "four are enough for an idle engine: {enough:?}");
    // Ops of other domains are not held back.
    let start = Instant::now();
    runtime.run(Transpose::new(&matrix(4))).wait().unwrap();
    assert!(start.elapsed() < wait_max);
}

#[test]
fn the_ops_of_a_pool_run_on_its_devices_alone() {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = (0..2).fold(backend, |backend, _| backend.device(Script::new().in_host_memory()));
    let mut pools = Pools::none();
    pools.entry(PoolName::Domain(Domain::Compute)).devices = vec![SECOND];
    let runtime = Runtime::builder().backend(Arc::new(backend)).pools(pools).build().unwrap();
    let matrix = matrix(4);
    for _ in 0..40 {
        let outcome = runtime.run(Transpose::new(&matrix)).with_report().wait().unwrap();
        assert_eq!(outcome.report.device, SECOND);
    }
    let refused = runtime.run_with(Transpose::new(&matrix), RunOptions::require(FIRST)).wait().unwrap_err();
    assert!(refused.to_string().contains("`pools.compute.devices`"), "{refused}");
    // Other domains have no pool.
    let on = RunOptions::require(FIRST).to_host();
    assert!(runtime.run_with(seal(&key()), on).wait().is_ok());
    let of_second = runtime.workers().into_iter().find(|worker| worker.device == SECOND).unwrap();
    assert_eq!(of_second.pool_workers[0].counters.completed, 40);
}

#[test]
fn a_device_that_goes_takes_the_workers_of_its_pools_along() {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().in_host_memory());
    let backend = backend.device(Script::new().in_host_memory());
    let control = backend.control(1).unwrap();
    let mut pools = Pools::none();
    (pools.short.workers, pools.short.devices) = (1, vec![SECOND]);
    let builder = Runtime::builder().backend(Arc::new(backend)).pools(pools).fallback(FallbackPolicy::Alternate);
    let runtime = builder.build().unwrap();
    let states = || {
        let worker = runtime.workers().into_iter().find(|worker| worker.device == SECOND).unwrap();
        (worker.state, worker.pool_workers[0].state)
    };
    let on = || {
        let prefer = RunOptions::prefer(SECOND);
        runtime.run_with(Transpose::new(&matrix(4)), prefer).with_report().wait().unwrap().report.device
    };
    assert_eq!((on(), states()), (SECOND, (WorkerState::Ready, WorkerState::Ready)));
    control.set_present(false);
    runtime.rediscover().unwrap();
    assert_eq!((on(), states()), (FIRST, (WorkerState::Failed, WorkerState::Failed)));
    control.set_present(true);
    runtime.rediscover().unwrap();
    eventually("both work again", || states() == (WorkerState::Ready, WorkerState::Ready));
    eventually("ops go there", || on() == SECOND);
    assert_eq!(runtime.devices().count(), 2);
    assert!(runtime.shutdown(Duration::from_secs(5)).drained);
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let refusal = |pools: Pools| {
        let built = Runtime::builder().backend(Arc::new(CpuBackend::new())).pools(pools).build();
        built.map(drop).unwrap_err().to_string()
    };
    let of = |change: fn(&mut DevicePool)| {
        let mut pool = DevicePool::default();
        change(&mut pool);
        refusal(of_crypto(pool))
    };
    assert!(of(|pool| pool.workers = 0).contains("expected 1 to 16"));
    assert!(of(|pool| pool.workers = 17).contains("got 17 in the pool crypto"));
    assert!(of(|pool| pool.core_share = f32::NAN).contains("core_share: expected more than 0, at most 1"));
    assert!(of(|pool| pool.queue_depth_max = Some(0)).contains("queue_depth_max: expected 1 to 1048576"));
    assert!(of(|pool| pool.cores = Some("8191".parse().unwrap())).contains("CPUs that this process may use"));
    assert!(of(|pool| pool.devices = vec![FIRST]).contains("simulated:0 in the pool crypto; there are: cpu:0"));
    let wait_max = Duration::from_millis(1);
    let upside_down = Batching::AtLeast { size_min: 9, size_max: 8, wait_max };
    let built = Runtime::builder().backend(Arc::new(CpuBackend::new())).batching(upside_down).build();
    assert!(matches!(built.map(drop), Err(BuildError::Contradiction { .. })));
    assert!(refusal(Pools { short_run_max: Duration::ZERO, ..Pools::default() }).contains("pools.short.run_us_max"));
}

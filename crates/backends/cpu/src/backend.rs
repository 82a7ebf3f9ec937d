//! Finds the CPU's NUMA nodes and opens them.

use std::fs;
use std::path::{Path, PathBuf};

use panoply_core::{
    Absence, Api, Backend, Capabilities, Describe, DeviceId, DeviceInfo, DeviceKind, Engine, Error, FirstGuess, Op,
    OpenOptions, Result, Support,
};
use panoply_placement::Memory;

use crate::context::Context;
use crate::engine::CpuEngine;
use crate::health::Sensors;
use crate::memory::HostMemory;
use crate::ops;
use crate::simd::Simd;
use crate::team::{THREADS_MAX, Team};

/// Maximal number of NUMA nodes that are searched for.
const NODES_MAX: u32 = 1024;

/// The CPU backend: one device per NUMA node with CPUs that this process may use.
pub struct CpuBackend {
    root: PathBuf,
}

impl CpuBackend {
    /// The backend for this machine.
    pub fn new() -> CpuBackend {
        CpuBackend { root: PathBuf::from("/") }
    }

    /// A backend that reads `sys` and `proc` below another folder, for tests.
    pub fn with_root(root: impl Into<PathBuf>) -> CpuBackend {
        CpuBackend { root: root.into() }
    }
}

impl Default for CpuBackend {
    fn default() -> CpuBackend {
        CpuBackend::new()
    }
}

impl Backend for CpuBackend {
    fn api(&self) -> Api {
        Api::CPU
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let nodes = node_numbers(&self.root);
        let name = model_name(&self.root).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        // A machine without NUMA, or one that hides it, is one device.
        let nodes: Vec<Option<u32>> = if nodes.is_empty() { vec![None] } else { nodes.into_iter().map(Some).collect() };
        let devices = nodes.iter().zip(0..).map(|(node, index)| describe(&self.root, &name, *node, index));
        Ok(devices.collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        ops::supports(op, device)
    }

    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        ops::can_run(op, device)
    }

    /// The cost of a signature depends strongly on the batch: batches are made in lanes, if there
    /// are any.
    fn first_guess(&self, device: &DeviceInfo, op: &Op) -> FirstGuess {
        let guess = FirstGuess::of(device);
        let threads = device.compute_units.map_or(1, |units| units as usize);
        match op {
            Op::Crypto(crypto) => match panoply_cpu_crypto::signing_ns(crypto, threads) {
                Some(time_ns) => FirstGuess { work_unit_ns: (time_ns / op.work().max(1) as f64) as f32, ..guess },
                None => guess,
            },
            _ => guess,
        }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or(available.min(THREADS_MAX));
        if threads > THREADS_MAX {
            return Err(Error::OutOfBounds { what: "threads of an engine", limit: THREADS_MAX, got: threads });
        }
        let team = Team::new(threads);
        let context = Context::new(team, Simd::detect(), HostMemory::new(options.memory), options.crypto_provider);
        Ok(Box::new(CpuEngine::new(device.clone(), context, Sensors::find(&self.root, device))))
    }
}

fn describe(root: &Path, name: &str, node: Option<u32>, index: u32) -> DeviceInfo {
    let id = DeviceId { api: Api::CPU, index };
    let mut info = DeviceInfo::new(id, name, DeviceKind::Cpu);
    let memory = Memory::read(root, node);
    (info.memory_total_bytes, info.memory_available_bytes) = (memory.total_bytes, memory.available_bytes);
    info.compute_capability = Some(Simd::detect().name().to_owned());
    info.compute_units = std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok());
    info.numa_node = node;
    info.shares_host_memory = true;
    info.computes_in_submit = true;
    info.runs_on_cores = true;
    info.capabilities = Capabilities { domains: ops::domains(), features: features() };
    info
}

/// The numbers of the NUMA nodes that have CPUs, in order.
fn node_numbers(root: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return Vec::new() };
    let numbers = entries.take(NODES_MAX as usize * 2).filter_map(|entry| {
        let entry = entry.ok()?;
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        (!cpus.trim().is_empty()).then_some(number)
    });
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

fn model_name(root: &Path) -> Option<String> {
    let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<String> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    known.into_iter().filter(|(_, present)| *present).map(|(name, _)| name.to_owned()).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<String> {
    vec![Simd::detect().name().to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_cpu() {
        let devices = CpuBackend::new().discover().unwrap();
        assert!(!devices.is_empty());
        assert!(devices.iter().all(|device| device.kind == DeviceKind::Cpu && device.memory_available_bytes > Some(0)));
    }

    #[test]
    fn more_threads_than_a_team_has_are_refused() {
        let device = CpuBackend::new().discover().unwrap().remove(0);
        for threads in [THREADS_MAX + 1, usize::MAX] {
            let options = OpenOptions { threads: Some(threads), ..OpenOptions::default() };
            let refused = CpuBackend::new().open(&device, &options).map(drop);
            let expected = Error::OutOfBounds { what: "threads of an engine", limit: THREADS_MAX, got: threads };
            assert_eq!(refused, Err(expected));
        }
    }

    #[test]
    fn a_batch_of_signatures_is_guessed_as_no_dearer_than_its_messages() {
        use panoply_core::Operation;
        use panoply_core::op::crypto::{EcdsaEncoding, Hash, HashAlgorithm, Key, Messages, Sign, SignatureAlgorithm};
        let device = CpuBackend::new().discover().unwrap().remove(0);
        let key = Key::sign(SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed), &[1; 32]).unwrap();
        let guessed_ns = |count: usize| {
            let op = Sign::new(&key, Messages::split(vec![0; 32 * count].into(), 32).unwrap()).into_op().unwrap();
            let guess = CpuBackend::new().first_guess(&device, &op);
            guess.overhead_ns + guess.work_unit_ns * op.work() as f32
        };
        let one = guessed_ns(1);
        assert!((10_000.0..100_000.0).contains(&one), "{one}");
        for (few, many) in [(1, 64), (64, 1024), (1024, 100_000)] {
            let (few_ns, many_ns) = (guessed_ns(few), guessed_ns(many));
            assert!(
                few_ns <= 1.01 * many_ns && many_ns <= few_ns * 1.01 * (many / few + 1) as f32,
                "{few_ns} {many_ns}"
            );
        }
        // For other ops the guess is that of any device that shares the host's memory.
        let op = Hash::new(HashAlgorithm::Sha256, vec![0]);
        assert_eq!(CpuBackend::new().first_guess(&device, &op.into_op().unwrap()), FirstGuess::of(&device));
    }

    #[test]
    fn a_machine_that_tells_nothing_is_one_device() {
        let devices = CpuBackend::with_root("/nonexistent").discover().unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].memory_total_bytes, devices[0].numa_node), (None, None));
    }

    #[test]
    fn the_only_node_has_the_whole_machines_memory_within_the_control_group() {
        let root = std::env::temp_dir().join(format!("panoply-cpu-memory-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), text).unwrap();
        };
        write("sys/devices/system/node/node0/cpulist", "0-1\n");
        write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 4608 kB\nNode 0 MemFree: 100 kB\n");
        write("proc/meminfo", "MemTotal: 131072 kB\nMemAvailable: 65536 kB\n");
        let memory = || {
            let device = CpuBackend::with_root(&root).discover().unwrap().remove(0);
            assert_eq!(device.numa_node, Some(0));
            (device.memory_total_bytes, device.memory_available_bytes)
        };
        assert_eq!(memory(), (Some(128 << 20), Some(64 << 20)));
        write("proc/self/cgroup", "0::/\n");
        write("sys/fs/cgroup/memory.max", "8388608\n");
        write("sys/fs/cgroup/memory.current", "2097152\n");
        assert_eq!(memory(), (Some(8 << 20), Some(6 << 20)));
        fs::remove_dir_all(&root).unwrap();
    }
}

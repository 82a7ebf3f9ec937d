//! Finds the devices of PJRT plugins and opens them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use panoply_core::backend::FirstGuess;
use panoply_core::op::compute::ComputeOp;
use panoply_core::vendor::Loading;
use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Op, OpenOptions,
    Result, Support, Warmth,
};
use panoply_kernels::cache::Cache;

use crate::cache::Programs;
use crate::client::{Client, Device};
use crate::engine::PjrtEngine;
use crate::plugin::{PjrtError, Plugin, code};
use crate::warm::SignatureSet;
use crate::{find, ops};

/// The folder's name in the user's cache.
const CACHE: &str = "pjrt";
/// Number of devices with their own table of compiled programs. Further devices share these tables.
const DEVICES_MAX: usize = 8;

/// The backend for everything with a PJRT plugin: one device for each device that a plugin shows to
/// this process.
pub struct PjrtBackend {
    /// The plugins' files. `None` searches for them.
    plugins: Option<Vec<PathBuf>>,
    /// The folder for compiled programs. `None` is the user's folder.
    cache: Option<PathBuf>,
    seen: Mutex<Vec<DiscoveredDevice>>,
    /// The ops with compiled programs, by the device's index. Callers read the tables without a
    /// lock.
    warm: [Arc<SignatureSet>; DEVICES_MAX],
}

/// A discovered device: its plugin and its number within the plugin. The position in the list is
/// the device's index.
struct DiscoveredDevice {
    plugin: PathBuf,
    number: usize,
    /// The plugin's client, while an engine uses it.
    client: Weak<Client>,
}

impl PjrtBackend {
    /// Uses the plugins that [`find::plugins`] finds.
    #[allow(clippy::new_without_default)] // Discovery depends on the machine.
    pub fn new() -> PjrtBackend {
        PjrtBackend { plugins: None, cache: None, seen: Mutex::default(), warm: Default::default() }
    }

    /// Uses only these plugins.
    pub fn of(plugins: Vec<PathBuf>) -> PjrtBackend {
        PjrtBackend { plugins: Some(plugins), ..PjrtBackend::new() }
    }

    /// Stores compiled programs in this folder instead of the user's.
    pub fn cache_in(self, folder: PathBuf) -> PjrtBackend {
        PjrtBackend { cache: Some(folder), ..self }
    }

    /// Opens a device, like [`Backend::open`].
    pub fn open_engine(&self, info: &DeviceInfo) -> Result<PjrtEngine> {
        let unavailable = |error: PjrtError| Error::DeviceUnavailable { device: info.id, reason: error.to_string() };
        let refused = |absence: Absence| Error::DeviceUnavailable { device: info.id, reason: absence.to_string() };
        let _loading = Loading::begin().map_err(refused)?;
        let (plugin, number) = self.seen(info.id)?;
        let client = self.client(&plugin).map_err(unavailable)?;
        let devices = client.devices().map_err(unavailable)?;
        let gone = || Error::DeviceUnavailable { device: info.id, reason: "the plugin does not show it".to_owned() };
        let device = *devices.get(number).ok_or_else(gone)?;
        let kind = client.describe(device).map_err(unavailable)?.kind;
        let disk = match &self.cache {
            Some(folder) => Cache::open_in(folder.clone()),
            None => Cache::open(CACHE),
        };
        let programs = Programs::new(&client, &kind, disk.ok());
        Ok(PjrtEngine::new(info.clone(), client, device, programs, Arc::clone(self.warm(info.id))))
    }

    fn warm(&self, id: DeviceId) -> &Arc<SignatureSet> {
        &self.warm[id.index as usize % DEVICES_MAX]
    }

    fn seen(&self, id: DeviceId) -> Result<(PathBuf, usize)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = || Error::DeviceUnavailable { device: id, reason: "it was never found".to_owned() };
        let seen = seen.get(id.index as usize).ok_or_else(unknown)?;
        Ok((seen.plugin.clone(), seen.number))
    }

    /// Returns the client that an engine uses, or creates one. A plugin has one client at a time.
    fn client(&self, path: &PathBuf) -> Result<Arc<Client>, PjrtError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = seen.iter().filter(|seen| seen.plugin == *path).find_map(|seen| seen.client.upgrade()) {
            return Ok(client);
        }
        let client = Client::new(&Plugin::load(path)?)?;
        for seen in seen.iter_mut().filter(|seen| seen.plugin == *path) {
            seen.client = Arc::downgrade(&client);
        }
        Ok(client)
    }

    /// Lists the devices of one plugin.
    fn devices(&self, path: &PathBuf) -> Result<Vec<DeviceInfo>, PjrtError> {
        let client = self.client(path)?;
        let mut devices = client.devices()?;
        if kind_of(&client.platform) == DeviceKind::Cpu {
            // CPU plugins list the same cores several times.
            devices.truncate(1);
        }
        devices.into_iter().enumerate().map(|(number, device)| self.describe(&client, path, number, device)).collect()
    }

    fn describe(
        &self,
        client: &Arc<Client>,
        path: &PathBuf,
        number: usize,
        device: Device,
    ) -> Result<DeviceInfo, PjrtError> {
        let description = client.describe(device)?;
        let id = DeviceId { api: Api::PJRT, index: self.index(client, path, number) };
        let kind = kind_of(&client.platform);
        let name = format!("{} {} ({})", description.kind, description.id, client.platform);
        let mut info = DeviceInfo::new(id, name, kind);
        let memory = client.memory(device);
        info.memory_total_bytes = memory.and_then(|memory| memory.limit_bytes);
        info.memory_available_bytes =
            memory.and_then(|memory| memory.limit_bytes.map(|limit| limit.saturating_sub(memory.used_bytes)));
        info.driver_version = client.version.lines().next().map(str::to_owned);
        info.runs_on_cores = kind == DeviceKind::Cpu;
        info.is_exclusive = kind == DeviceKind::Tpu;
        let (major, minor) = client.plugin.version();
        // XLA promises nothing about subnormal numbers: on processors it sets the flag that flushes
        // them.
        let flushes = Capabilities::FLUSHES_SUBNORMALS.to_owned();
        let features = vec![format!("pjrt-{major}.{minor}"), format!("platform-{}", client.platform), flushes];
        info.capabilities = Capabilities { domains: vec![Domain::Compute, Domain::Graph], features };
        Ok(info)
    }

    fn index(&self, client: &Arc<Client>, path: &PathBuf, number: usize) -> u32 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.iter().position(|seen| seen.plugin == *path && seen.number == number);
        let index = known.unwrap_or_else(|| {
            seen.push(DiscoveredDevice { plugin: path.clone(), number, client: Arc::downgrade(client) });
            seen.len() - 1
        });
        index as u32
    }
}

/// The kind of hardware of a platform. Unknown platforms count as tensor processors, since most
/// plugins are written for these.
fn kind_of(platform: &str) -> DeviceKind {
    match platform.to_ascii_lowercase().as_str() {
        "cpu" | "host" => DeviceKind::Cpu,
        "cuda" | "rocm" | "gpu" => DeviceKind::DiscreteGpu,
        _ => DeviceKind::Tpu,
    }
}

impl Backend for PjrtBackend {
    fn api(&self) -> Api {
        Api::PJRT
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let plugins = self.plugins.clone().unwrap_or_else(find::plugins);
        if plugins.is_empty() {
            let tried = format!("{} and the packages jax_plugins, xla_plugins and libtpu of Python's", find::VARIABLE);
            return Err(Absence::LibraryMissing { tried: vec![tried] });
        }
        let (mut devices, mut reasons, mut denied) = (Vec::new(), Vec::new(), false);
        for path in &plugins {
            if find::is_libtpu(path) && !find::has_tpu() {
                reasons.push(format!("{}: neither /dev/accel* nor /dev/vfio/* is there", path.display()));
                continue;
            }
            let _loading = Loading::begin()?;
            match self.devices(path) {
                Ok(found) => devices.extend(found),
                Err(error) => {
                    denied |= matches!(error, PjrtError::Call { code: code::PERMISSION_DENIED, .. });
                    reasons.push(format!("{}: {error}", path.display()));
                }
            }
        }
        let reason = reasons.join("; ");
        match (devices.is_empty(), denied) {
            (false, _) => Ok(devices),
            (true, true) => Err(Absence::Denied { reason }),
            (true, false) if reason.is_empty() => {
                Err(Absence::NoDevice { reason: "the plugins show no device".to_owned() })
            }
            (true, false) => Err(Absence::NoDevice { reason }),
        }
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        let mut has_secrets = false;
        op.for_each_tensor(&mut |tensor| has_secrets |= tensor.buffer().is_secret());
        match has_secrets {
            true => Support::No("a plugin's memory is not wiped, and the op has a secret".to_owned()),
            false => ops::supports(device, op),
        }
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        match op {
            // A contiguous tensor is transferred without a program.
            Op::Compute(ComputeOp::Transfer(_)) => Warmth::Warm,
            op if self.warm(device.id).contains(op) => Warmth::Warm,
            _ => Warmth::Cold,
        }
    }

    fn first_guess(&self, device: &DeviceInfo, _op: &Op) -> FirstGuess {
        match device.runs_on_cores {
            true => FirstGuess { overhead_ns: 100_000.0, work_unit_ns: 0.5 },
            false => FirstGuess { overhead_ns: 50_000.0, work_unit_ns: 0.02 },
        }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device)?))
    }
}

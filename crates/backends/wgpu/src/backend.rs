//! Finds adapters, reports which ops each supports, and opens them.

use std::sync::{Arc, OnceLock};

use panoply_core::{
    Absence, Api, Backend, DeviceInfo, Engine, Error, Op, OpenOptions, Result, Support, Warmth, vendor,
};
use panoply_kernels::cache::{Cache, CacheError};
use panoply_kernels::warm::GrowingSet;
use panoply_wgsl_gpu::fault::Faults;
use panoply_wgsl_gpu::profile::Profile;
use panoply_wgsl_gpu::quirks::known_ways;
use panoply_wgsl_gpu::{GpuEngine, Opening, ops};

use crate::adapter::{MATRIX_FEATURES, describe, device_id, profile};
use crate::driver::{DriverParts, WgpuDriver};
use crate::fault::{at_once, translate};
use crate::quirks::{KNOWN_WAYS, TransferWays, WAYS};
use crate::vulkan;

/// An opened adapter.
pub type WgpuEngine = GpuEngine<WgpuDriver>;

/// The least workgroup memory that kernels are written for, in bytes.
const WORKGROUP_BYTES_MIN: u32 = 16_384;
/// Number of adapters with a `GrowingSet` of their own. Higher indices wrap around and share one.
const DEVICES_MAX: usize = 8;
/// The least number of storage buffers of one kernel.
const BUFFERS_MIN: u32 = 8;

/// The backend for every GPU that wgpu reaches through Vulkan, Metal or DX12.
pub struct WgpuBackend {
    backends: wgpu::Backends,
    limits: Option<wgpu::Limits>,
    ways: Option<TransferWays>,
    /// The store of compiled kernels between runs, or the reason why there is none.
    cache: OnceLock<Result<Arc<Cache>, CacheError>>,
    found: OnceLock<Discovery>,
    warm: [Arc<GrowingSet>; DEVICES_MAX],
}

/// The adapters, searched for once: their indices must not change while devices are open.
struct Discovery {
    adapters: Vec<(wgpu::Adapter, Profile, DeviceInfo)>,
    refused: Vec<String>,
}

impl WgpuBackend {
    /// The backend for this machine.
    pub fn new() -> WgpuBackend {
        WgpuBackend::with_backends(wgpu::Backends::PRIMARY)
    }

    /// The backend over some of the APIs only.
    pub fn with_backends(backends: wgpu::Backends) -> WgpuBackend {
        let (limits, ways) = (None, None);
        let (cache, found, warm) =
            (OnceLock::new(), OnceLock::new(), std::array::from_fn(|_| Arc::new(GrowingSet::default())));
        WgpuBackend { backends, limits, ways, cache, found, warm }
    }

    /// A backend whose adapters have these limits instead of their own, to simulate small adapters.
    pub fn with_limits(limits: wgpu::Limits) -> WgpuBackend {
        WgpuBackend { limits: Some(limits), ..WgpuBackend::new() }
    }

    /// A backend that transfers bytes in these ways instead of the best known ways: for
    /// measurements.
    pub fn with_ways(ways: TransferWays) -> WgpuBackend {
        WgpuBackend { ways: Some(ways), ..WgpuBackend::new() }
    }

    fn cache(&self) -> &Result<Arc<Cache>, CacheError> {
        self.cache.get_or_init(|| Cache::open("wgpu").map(Arc::new))
    }

    fn found(&self) -> Result<&Discovery, Absence> {
        vendor::load(|| Ok(self.found.get_or_init(|| self.find())))
    }

    fn find(&self) -> Discovery {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = self.backends;
        descriptor.flags = wgpu::InstanceFlags::empty();
        let instance = wgpu::Instance::new(descriptor);
        let mut adapters = at_once(instance.enumerate_adapters(self.backends)).unwrap_or_default();
        // Callers that choose no device get the first one.
        adapters.sort_by_key(|adapter| preference(adapter.get_info().device_type));
        let mut found = Discovery { adapters: Vec::new(), refused: Vec::new() };
        for adapter in adapters {
            let info = adapter.get_info();
            let limits = self.limits_of(&adapter);
            match shortcoming(&adapter, &limits) {
                Some(reason) => found.refused.push(format!("{}: {reason}", info.name)),
                None => {
                    let id = device_id(found.adapters.len());
                    let mut device = describe(id, &info, &limits, adapter.features(), vulkan::identity(&adapter));
                    if let Err(error) = self.cache() {
                        device.capabilities.features.push(format!("no kernel cache: {error}"));
                    }
                    let matrices = adapter.cooperative_matrix_properties();
                    let profile = profile(id, &info, &limits, adapter.features(), &matrices);
                    found.adapters.push((adapter, profile, device));
                }
            }
        }
        found
    }

    fn limits_of(&self, adapter: &wgpu::Adapter) -> wgpu::Limits {
        self.limits.clone().unwrap_or_else(|| adapter.limits())
    }

    /// Opens a device.
    pub(crate) fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<WgpuEngine> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: device.id, reason };
        vendor::check().map_err(|absence| unavailable(absence.to_string()))?;
        let (adapter, profile, info) =
            self.adapter(device).ok_or_else(|| unavailable("there is no such adapter".to_owned()))?;
        let kind = adapter.get_info().device_type;
        let is_integrated = matches!(kind, wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu);
        let wanted = wgpu::Features::PIPELINE_CACHE
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::SUBGROUP
            | wgpu::Features::IMMEDIATES
            | if profile.matrix_units { MATRIX_FEATURES } else { wgpu::Features::empty() }
            | if is_integrated { wgpu::Features::MAPPABLE_PRIMARY_BUFFERS } else { wgpu::Features::empty() };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("panoply"),
            required_features: adapter.features() & wanted,
            required_limits: self.limits_of(adapter),
            experimental_features: if profile.matrix_units {
                // SAFETY: only our own kernels multiply matrices, only of the one kind that the
                // adapter reports, and their results are checked like all others.
                unsafe { wgpu::ExperimentalFeatures::enabled() }
            } else {
                wgpu::ExperimentalFeatures::disabled()
            },
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let (gpu, queue) = match vulkan::open(adapter, &descriptor) {
            Some(opened) => opened,
            None => {
                let answer = at_once(adapter.request_device(&descriptor));
                let answer = answer.ok_or_else(|| unavailable("the adapter did not answer at once".to_owned()))?;
                answer.map_err(|error| unavailable(error.to_string()))?
            }
        };
        let faults = Arc::new(Faults::new(device.id));
        let heard = Arc::clone(&faults);
        gpu.set_device_lost_callback(move |reason, message| heard.lose(format!("{reason:?}: {message}")));
        let heard = Arc::clone(&faults);
        gpu.on_uncaptured_error(Arc::new(move |error| heard.report(translate(&heard, error, 0))));
        let cache = self.cache().as_ref().ok().cloned();
        let driver = WgpuDriver::new(DriverParts {
            device: gpu,
            queue,
            faults,
            immediate_words_max: profile.immediate_words_max,
            cache: cache.clone().map(|cache| (cache, profile.cache_name("pipelines"))),
            has_memory_budget: vulkan::identity(adapter).has_memory_budget,
            ways: self.ways.or_else(|| known_ways(KNOWN_WAYS, &profile.name, &profile.driver)).unwrap_or(WAYS),
            is_integrated,
        });
        let opening = Opening {
            info: info.clone(),
            profile: profile.clone(),
            warm: Arc::clone(self.warm(device)),
            cache,
            memory: options.memory,
        };
        Ok(GpuEngine::new(driver, opening))
    }

    fn warm(&self, device: &DeviceInfo) -> &Arc<GrowingSet> {
        &self.warm[device.id.index as usize % DEVICES_MAX]
    }

    fn adapter(&self, device: &DeviceInfo) -> Option<&(wgpu::Adapter, Profile, DeviceInfo)> {
        // Asked for every op, after the adapters were found.
        let found = self.found.get().map_or_else(|| self.found().ok(), Some);
        found?.adapters.iter().find(|(_, profile, _)| profile.id == device.id)
    }
}

impl Default for WgpuBackend {
    fn default() -> WgpuBackend {
        WgpuBackend::new()
    }
}

impl Backend for WgpuBackend {
    fn api(&self) -> Api {
        Api::WGPU
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let found = self.found()?;
        if found.adapters.is_empty() {
            let reason = match found.refused.as_slice() {
                [] => "no adapter that Vulkan, Metal or DX12 reaches; is a driver installed?".to_owned(),
                refused => refused.join("; "),
            };
            return Err(Absence::NoDevice { reason });
        }
        Ok(found.adapters.iter().map(|(_, _, device)| device.clone()).collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        match self.adapter(device) {
            None => Support::No(format!("there is no adapter {}", device.id)),
            Some((_, profile, _)) => ops::support_on(profile, device, op),
        }
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        if self.warm(device).contains(op) { Warmth::Warm } else { Warmth::Cold }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

/// The sort key of an adapter: hardware before software, discrete before integrated.
fn preference(kind: wgpu::DeviceType) -> u8 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::VirtualGpu => 1,
        wgpu::DeviceType::IntegratedGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// The first need of every kernel that an adapter does not meet, as text.
fn shortcoming(adapter: &wgpu::Adapter, limits: &wgpu::Limits) -> Option<String> {
    let flags = adapter.get_downlevel_capabilities().flags;
    if !flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
        return Some("no compute shaders".to_owned());
    }
    let least = [
        ("invocations in a workgroup", limits.max_compute_invocations_per_workgroup, 256),
        ("bytes of workgroup memory", limits.max_compute_workgroup_storage_size, WORKGROUP_BYTES_MIN),
        ("storage buffers in a kernel", limits.max_storage_buffers_per_shader_stage, BUFFERS_MIN),
    ];
    let short = least.into_iter().find(|(_, got, needed)| got < needed);
    short.map(|(what, got, needed)| format!("{got} {what}; kernels need {needed}"))
}

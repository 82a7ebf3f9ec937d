//! Finds devices, reports which ops each device supports, and opens devices.

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};

use panoply_core::{
    Absence, Api, Backend, DeviceInfo, Engine, Error, Op, OpenOptions, Result, Support, Warmth, vendor,
};
use panoply_kernels::cache::{Cache, CacheError};
use panoply_kernels::warm::GrowingSet;
use panoply_wgsl_gpu::fault::Faults;
use panoply_wgsl_gpu::quirks::known_ways;
use panoply_wgsl_gpu::{GpuEngine, Opening, ops};

use crate::adapter::{Adapter, look, preference};
use crate::driver::VulkanDriver;
use crate::gpu::Gpu;
use crate::loader::{Loader, LoaderOptions};
use crate::quirks::{KNOWN_WAYS, Limits, TransferWays, WAYS};

pub use crate::validation::Messages;

/// An opened device.
pub type VulkanEngine = GpuEngine<VulkanDriver>;

/// Number of devices with a `GrowingSet` of their own. Higher indices wrap around and share one.
const DEVICES_MAX: usize = 8;

/// The backend for every device with a driver for Vulkan 1.2 or later.
pub struct VulkanBackend {
    wish: LoaderOptions,
    limits: Option<Limits>,
    ways: Option<TransferWays>,
    /// The store of compiled kernels between runs, or the reason why there is none.
    cache: OnceLock<Result<Arc<Cache>, CacheError>>,
    found: OnceLock<Result<Discovery, Absence>>,
    warm: [Arc<GrowingSet>; DEVICES_MAX],
}

/// The devices, searched for once: their indices must not change while devices are open.
struct Discovery {
    loader: Arc<Loader>,
    adapters: Vec<Adapter>,
    refused: Vec<String>,
}

impl VulkanBackend {
    /// The backend for this machine.
    pub fn new() -> VulkanBackend {
        let (cache, found) = (OnceLock::new(), OnceLock::new());
        let warm = std::array::from_fn(|_| Arc::new(GrowingSet::default()));
        VulkanBackend { wish: LoaderOptions::default(), limits: None, ways: None, cache, found, warm }
    }

    /// A backend that loads `library` instead of the system's Vulkan library.
    pub fn with_library(library: impl Into<OsString>) -> VulkanBackend {
        let wish = LoaderOptions { library: Some(library.into()), ..LoaderOptions::default() };
        VulkanBackend { wish, ..VulkanBackend::new() }
    }

    /// A backend whose devices have at most these limits, to simulate small devices.
    pub fn with_limits(limits: Limits) -> VulkanBackend {
        VulkanBackend { limits: Some(limits), ..VulkanBackend::new() }
    }

    /// A backend that transfers bytes in these ways instead of the best known ways: for
    /// measurements.
    pub fn with_ways(ways: TransferWays) -> VulkanBackend {
        VulkanBackend { ways: Some(ways), ..VulkanBackend::new() }
    }

    /// The backend with Vulkan's validation layers, which report their findings to `messages`. The
    /// backend is absent if the layers are not installed.
    pub fn validated(self, messages: &Arc<Messages>) -> VulkanBackend {
        let wish = LoaderOptions { messages: Some(Arc::clone(messages)), ..self.wish };
        VulkanBackend { wish, ..self }
    }

    /// The backend with compiled kernels in `cache` instead of the user's folder.
    #[cfg(test)]
    pub(crate) fn with_cache(cache: Cache) -> VulkanBackend {
        VulkanBackend { cache: OnceLock::from(Ok(Arc::new(cache))), ..VulkanBackend::new() }
    }

    fn cache(&self) -> &Result<Arc<Cache>, CacheError> {
        self.cache.get_or_init(|| Cache::open("vulkan").map(Arc::new))
    }

    fn found(&self) -> Result<&Discovery, Absence> {
        vendor::load(|| self.found.get_or_init(|| self.find()).as_ref().map_err(Absence::clone))
    }

    fn find(&self) -> Result<Discovery, Absence> {
        self.find_through(Loader::open(&self.wish)?)
    }

    /// The backend over a loader that was changed: tests let its drivers lie.
    #[cfg(test)]
    pub(crate) fn through(self, loader: Loader) -> VulkanBackend {
        let found = OnceLock::from(self.find_through(loader));
        VulkanBackend { found, ..self }
    }

    fn find_through(&self, loader: Loader) -> Result<Discovery, Absence> {
        let mut devices = loader.devices()?;
        // Callers that choose no device get the first one.
        devices.sort_by_key(|device| preference(&loader, *device));
        let (mut adapters, mut refused) = (Vec::new(), Vec::new());
        for device in devices {
            match look(&loader, device, adapters.len(), self.limits) {
                Ok(mut adapter) => {
                    if let Err(error) = self.cache() {
                        adapter.info.capabilities.features.push(format!("no kernel cache: {error}"));
                    }
                    adapters.push(adapter);
                }
                Err(reason) => refused.push(reason),
            }
        }
        Ok(Discovery { loader: Arc::new(loader), adapters, refused })
    }

    /// Opens a device.
    pub(crate) fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<VulkanEngine> {
        self.open_changed(device, options, |_| {})
    }

    /// Opens a device after `change` has modified it: tests let its driver fail.
    pub(crate) fn open_changed(
        &self,
        device: &DeviceInfo,
        options: &OpenOptions,
        change: impl FnOnce(&mut Gpu),
    ) -> Result<VulkanEngine> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: device.id, reason };
        let found = self.found().map_err(|absence| unavailable(absence.to_string()))?;
        let adapter = self.adapter(device).ok_or_else(|| unavailable("there is no such device".to_owned()))?;
        let profile = adapter.profile.clone();
        let ways = self.ways.or_else(|| known_ways(KNOWN_WAYS, &profile.name, &profile.driver)).unwrap_or(WAYS);
        let faults = Arc::new(Faults::new(device.id));
        let gpu = Gpu::open(&found.loader, adapter, &faults, ways.copies);
        let mut gpu = gpu.map_err(|error| unavailable(format!("it does not open: {error}")))?;
        change(&mut gpu);
        let cache = self.cache().as_ref().ok().cloned();
        let opening = Opening {
            info: adapter.info.clone(),
            profile,
            warm: Arc::clone(self.warm(device)),
            cache: cache.clone(),
            memory: options.memory,
        };
        Ok(GpuEngine::new(VulkanDriver::new(gpu, cache, ways), opening))
    }

    fn warm(&self, device: &DeviceInfo) -> &Arc<GrowingSet> {
        &self.warm[device.id.index as usize % DEVICES_MAX]
    }

    fn adapter(&self, device: &DeviceInfo) -> Option<&Adapter> {
        // Asked for every op, after the devices were found.
        let found = self.found.get().map_or_else(|| self.found().ok(), |found| found.as_ref().ok());
        found?.adapters.iter().find(|adapter| adapter.info.id == device.id)
    }
}

impl Default for VulkanBackend {
    fn default() -> VulkanBackend {
        VulkanBackend::new()
    }
}

impl Backend for VulkanBackend {
    fn api(&self) -> Api {
        Api::VULKAN
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let found = self.found()?;
        if found.adapters.is_empty() {
            let reason = match found.refused.as_slice() {
                [] => "the Vulkan loader found a driver, but no device".to_owned(),
                refused => refused.join("; "),
            };
            return Err(Absence::NoDevice { reason });
        }
        Ok(found.adapters.iter().map(|adapter| adapter.info.clone()).collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        match self.adapter(device) {
            None => Support::No(format!("there is no device {}", device.id)),
            Some(adapter) => ops::support_on(&adapter.profile, device, op),
        }
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        if self.warm(device).contains(op) { Warmth::Warm } else { Warmth::Cold }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

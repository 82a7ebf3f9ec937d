//! Queries platforms and devices, and decides which devices can run the kernels.
//!
//! A property that a driver reports is trusted only if its use is checked. `quirks` corrects
//! properties that are known to be wrong.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use panoply_c_gpu::devices::cache_feature;
use panoply_core::{Absence, Api, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, PciAddress};
use panoply_placement::{SYSTEM, locate};

use crate::calls::{Library, number};
use crate::quirks::{self, Correction};
use crate::sys::{self, Handle};
use crate::warps::Warps;

/// The fewest threads of a block, and the least block memory, with which every kernel runs.
const BLOCK_THREADS_MIN: u64 = 256;
const SHARED_BYTES_MIN: u64 = 32 << 10;
/// The oldest supported version of OpenCL, as major and minor.
const VERSION_MIN: (u32, u32) = (1, 2);

/// Locked while devices are listed: some drivers (PoCL 3.1) end the process if two threads make the
/// first query at the same time.
static FINDING: Mutex<()> = Mutex::new(());

/// Upper limits on the reported properties of devices, for tests of smaller devices on larger ones
/// and for programs that share a device. Nothing is limited by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory_bytes_max: Option<u64>,
    /// Bytes of block memory.
    pub shared_bytes_max: Option<u64>,
    /// Threads of a block.
    pub block_threads_max: Option<u64>,
    /// Whether devices count as devices without f64.
    pub without_f64: bool,
    /// Compute units of one device: larger devices are used as several.
    pub units: Option<u32>,
}

/// A device that can be opened.
pub(crate) struct DiscoveredDevice {
    pub(crate) handle: DeviceHandle,
    pub(crate) info: DeviceInfo,
    pub(crate) facts: Facts,
    /// How threads see each other's values. Measured when the device is first opened.
    pub(crate) warps: OnceLock<Warps>,
}

/// A device's handle, which any thread may use.
#[derive(Clone, Copy)]
pub(crate) struct DeviceHandle(pub(crate) Handle);

// SAFETY: a name that the driver takes from any thread, and that is never released.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

/// Properties that compiling, launching and allocating depend on.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// All properties that determine the compiler's output for a text.
    pub(crate) identity: String,
    pub(crate) extensions: Vec<String>,
    pub(crate) units: u32,
    pub(crate) block_threads_max: u64,
    pub(crate) shared_bytes_max: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) allocation_bytes_max: u64,
    pub(crate) has_f64: bool,
    pub(crate) is_processor: bool,
    pub(crate) shares_host_memory: bool,
    /// Whether programs are kept as text.
    pub(crate) text_only: bool,
    /// The lanes of a warp that NVIDIA's and AMD's devices report, and those that Intel's may have.
    pub(crate) nvidia_lanes: u64,
    /// The compute capability's first number, for which NVIDIA's compiler takes instructions.
    pub(crate) nvidia_capability: u64,
    pub(crate) amd_lanes: u64,
    pub(crate) intel_lanes: Vec<u64>,
    pub(crate) queue_properties: u64,
    /// Options for every text.
    pub(crate) options: String,
}

/// Whether a device with these abilities in f32 may flush subnormal numbers: OpenCL
/// permits it if this bit is missing.
fn flushes_subnormals(single_fp_config: u64) -> bool {
    single_fp_config & sys::FP_DENORM == 0
}

impl Facts {
    pub(crate) fn has(&self, extension: &str) -> bool {
        self.extensions.iter().any(|one| one == extension)
    }
}

/// Returns every device that can run the kernels, or the reason why there is none.
pub(crate) fn find(library: &Arc<Library>, limits: &Limits) -> Result<Vec<DiscoveredDevice>, Absence> {
    let _alone = FINDING.lock().unwrap_or_else(PoisonError::into_inner);
    let platforms = library.platforms().map_err(|code| match code.0 {
        sys::PLATFORM_NOT_FOUND => Absence::NoDevice {
            reason: "the loader found no driver; install one (on Linux it is named by a file in /etc/OpenCL/vendors)"
                .to_owned(),
        },
        _ => Absence::NoDevice { reason: format!("the loader answers {code}") },
    })?;
    let (mut found, mut unfit) = (Vec::new(), Vec::new());
    for platform in platforms {
        let name = library.platform_text(platform, sys::PLATFORM_NAME);
        let version = library.platform_text(platform, sys::PLATFORM_VERSION);
        let devices = match library.devices(platform) {
            Ok(devices) => devices,
            Err(code) => {
                unfit.push(format!("{name} answers {code}"));
                continue;
            }
        };
        for device in devices.into_iter().flat_map(|device| parts(library, device, limits)) {
            let id = DeviceId { api: Api::OPENCL, index: found.len() as u32 };
            match DiscoveredDevice::new(library, device, id, (&name, &version), limits) {
                Ok(device) => found.push(device),
                Err(reason) => unfit.push(reason),
            }
        }
    }
    match (found.is_empty(), unfit.is_empty()) {
        (false, _) => Ok(found),
        (true, true) => Err(Absence::NoDevice { reason: "the machine's drivers show no device".to_owned() }),
        (true, false) => Err(Absence::NoDevice { reason: unfit.join("; ") }),
    }
}

/// The device itself, or its parts of `limits.units` compute units if the driver can split it.
fn parts(library: &Library, device: Handle, limits: &Limits) -> Vec<Handle> {
    let most = library.device_number(device, sys::DEVICE_PARTITION_MAX_SUB_DEVICES);
    let units = library.device_number(device, sys::DEVICE_MAX_COMPUTE_UNITS);
    match limits.units {
        Some(wanted) if wanted > 0 && u64::from(wanted) < units && most > 1 => {
            library.parts(device, wanted).ok().filter(|parts| !parts.is_empty()).unwrap_or_else(|| vec![device])
        }
        _ => vec![device],
    }
}

impl DiscoveredDevice {
    /// Queries a device. The error is the reason why it cannot be used.
    fn new(
        library: &Library,
        device: Handle,
        id: DeviceId,
        (platform, platform_version): (&str, &str),
        limits: &Limits,
    ) -> Result<DiscoveredDevice, String> {
        let (text, number) = (|what| library.device_text(device, what), |what| library.device_number(device, what));
        let name = text(sys::DEVICE_NAME);
        let facts = Facts::new(library, device, (platform, platform_version), &name, limits);
        facts.check(library, device).map_err(|reason| format!("{name} ({platform}): {reason}"))?;
        let kind = match (facts.is_processor, facts.shares_host_memory) {
            (true, _) => DeviceKind::SoftwareGpu,
            (false, true) => DeviceKind::IntegratedGpu,
            (false, false) => DeviceKind::DiscreteGpu,
        };
        let mut info = DeviceInfo::new(id, format!("{name} ({platform})"), kind);
        info.memory_total_bytes = Some(facts.memory_bytes);
        info.driver_version = Some(format!("{} ({})", text(sys::DRIVER_VERSION), text(sys::DEVICE_VERSION)));
        info.threads_per_block_max = u32::try_from(facts.block_threads_max).ok();
        info.shared_memory_bytes_max = Some(facts.shared_bytes_max);
        info.compute_units = Some(facts.units);
        if let Some(address) = pci_address(library, device, &facts) {
            locate(&mut info, Path::new(SYSTEM), address);
        }
        info.uuid = uuid(library, device, &facts);
        info.runs_on_cores = facts.is_processor;
        let mut features: Vec<String> = quirks::of(platform, &name).map(|quirk| quirk.reason.to_owned()).collect();
        let named =
            [("fp64", facts.has_f64), ("fp16", facts.has("cl_khr_fp16")), ("subgroups", facts.has("cl_khr_subgroups"))];
        features.extend(named.iter().filter(|(_, has)| *has).map(|(name, _)| (*name).to_owned()));
        if flushes_subnormals(number(sys::DEVICE_SINGLE_FP_CONFIG)) {
            features.push(Capabilities::FLUSHES_SUBNORMALS.to_owned());
        }
        if number(sys::DEVICE_TYPE) & (sys::DEVICE_TYPE_CPU | sys::DEVICE_TYPE_GPU) == 0 {
            features.push("accelerator".to_owned());
        }
        features.push(cache_feature());
        // A graph's need for f64 is known only once it is compiled.
        let runs = |domain: &Domain| facts.has_f64 || *domain != Domain::Graph;
        let domains = panoply_c_gpu::ops::DOMAINS.iter().copied().filter(runs).collect();
        info.capabilities = Capabilities { domains, features };
        Ok(DiscoveredDevice { handle: DeviceHandle(device), info, facts, warps: OnceLock::new() })
    }
}

impl Facts {
    fn new(
        library: &Library,
        device: Handle,
        (platform, platform_version): (&str, &str),
        name: &str,
        limits: &Limits,
    ) -> Facts {
        let (text, number_of) = (|what| library.device_text(device, what), |what| library.device_number(device, what));
        let extensions: Vec<String> = text(sys::DEVICE_EXTENSIONS).split_whitespace().map(str::to_owned).collect();
        let has = |extension: &str| extensions.iter().any(|one| one == extension);
        let sizes = library.device_bytes(device, sys::DEVICE_SUB_GROUP_SIZES_INTEL).unwrap_or_default();
        let items = library.device_bytes(device, sys::DEVICE_MAX_WORK_ITEM_SIZES).unwrap_or_default();
        let first_axis = items.chunks_exact(size_of::<usize>()).next().map_or(0, number);
        let kind = number_of(sys::DEVICE_TYPE);
        let memory = number_of(sys::DEVICE_GLOBAL_MEM_SIZE);
        let memory_bytes = limits.memory_bytes_max.map_or(memory, |most| memory.min(most));
        let nvidia = |what| if has("cl_nv_device_attribute_query") { number_of(what) } else { 0 };
        let mut facts = Facts {
            identity: [platform, platform_version, name, &text(sys::DRIVER_VERSION), &text(sys::DEVICE_VERSION)]
                .join("\0"),
            units: (number_of(sys::DEVICE_MAX_COMPUTE_UNITS) as u32).max(1),
            block_threads_max: number_of(sys::DEVICE_MAX_WORK_GROUP_SIZE).min(first_axis),
            shared_bytes_max: number_of(sys::DEVICE_LOCAL_MEM_SIZE),
            memory_bytes,
            // A limit of zero means that the driver does not report it.
            allocation_bytes_max: match number_of(sys::DEVICE_MAX_MEM_ALLOC_SIZE) {
                0 => memory_bytes,
                most => most.min(memory_bytes),
            },
            has_f64: has("cl_khr_fp64") && !limits.without_f64,
            is_processor: kind & sys::DEVICE_TYPE_CPU != 0,
            shares_host_memory: number_of(sys::DEVICE_HOST_UNIFIED_MEMORY) != 0,
            text_only: false,
            nvidia_lanes: nvidia(sys::DEVICE_WARP_SIZE_NV),
            nvidia_capability: nvidia(sys::DEVICE_COMPUTE_CAPABILITY_MAJOR_NV),
            amd_lanes: number_of(sys::DEVICE_WAVEFRONT_WIDTH_AMD),
            intel_lanes: sizes.chunks_exact(size_of::<usize>()).map(number).collect(),
            queue_properties: number_of(sys::DEVICE_QUEUE_PROPERTIES),
            options: String::new(),
            extensions,
        };
        for quirk in quirks::of(platform, name) {
            match quirk.correction {
                Correction::TextOnly => facts.text_only = true,
                Correction::SharedBytesMax(most) => facts.shared_bytes_max = facts.shared_bytes_max.min(most),
                Correction::ThreadsMax(most) => facts.block_threads_max = facts.block_threads_max.min(most),
            }
        }
        let capped = |told: u64, most: Option<u64>| most.map_or(told, |most| told.min(most));
        facts.shared_bytes_max = capped(facts.shared_bytes_max, limits.shared_bytes_max);
        facts.block_threads_max = capped(facts.block_threads_max, limits.block_threads_max);
        facts.options = facts.options_for(library, device);
        facts
    }

    /// The options that every text is compiled with.
    fn options_for(&self, library: &Library, device: Handle) -> String {
        // Without `-w` drivers print the compiler's warnings, and a caller has no use for them.
        let mut options = vec![
            "-w",
            match c_version(library, device) {
                (3.., _) => "-cl-std=CL3.0",
                (2, _) => "-cl-std=CL2.0",
                _ => "-cl-std=CL1.2",
            },
        ];
        if library.device_number(device, sys::DEVICE_SINGLE_FP_CONFIG) & sys::FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0 {
            options.push("-cl-fp32-correctly-rounded-divide-sqrt");
        }
        if !self.has_f64 {
            options.push("-DPANOPLY_NO_F64");
        }
        if !self.is_processor {
            options.push("-DPANOPLY_UNROLLS");
        }
        options.join(" ")
    }

    /// The reason why the kernels cannot run on this device.
    fn check(&self, library: &Library, device: Handle) -> Result<(), String> {
        let number = |what| library.device_number(device, what);
        let version = version_in(&library.device_text(device, sys::DEVICE_VERSION));
        let profile = library.device_text(device, sys::DEVICE_PROFILE);
        if number(sys::DEVICE_AVAILABLE) == 0 {
            return Err("the driver says that it is not available".to_owned());
        }
        if number(sys::DEVICE_COMPILER_AVAILABLE) == 0 {
            return Err("its driver has no compiler".to_owned());
        }
        if version < VERSION_MIN || profile != "FULL_PROFILE" {
            return Err(format!(
                "it has OpenCL {}.{} {profile}; 1.2 with the full profile is needed",
                version.0, version.1
            ));
        }
        if number(sys::DEVICE_ENDIAN_LITTLE) == 0 {
            return Err("its bytes are in another order than the host's".to_owned());
        }
        if self.block_threads_max < BLOCK_THREADS_MIN {
            return Err(format!(
                "its blocks have at most {} threads; {BLOCK_THREADS_MIN} are needed",
                self.block_threads_max
            ));
        }
        if self.shared_bytes_max < SHARED_BYTES_MIN {
            let got = self.shared_bytes_max;
            return Err(format!("its blocks have {got} bytes of memory; {SHARED_BYTES_MIN} are needed"));
        }
        if self.memory_bytes == 0 {
            return Err("its driver says that it has no memory".to_owned());
        }
        Ok(())
    }
}

/// Parses a version such as `OpenCL 3.0 PoCL …`.
fn version_in(text: &str) -> (u32, u32) {
    let digits = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).unwrap_or("");
    let mut parts = digits.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// The newest OpenCL C that the device compiles. Devices before 3.0 compile the OpenCL C of their
/// own version.
fn c_version(library: &Library, device: Handle) -> (u32, u32) {
    let all = library.device_bytes(device, sys::DEVICE_OPENCL_C_ALL_VERSIONS).unwrap_or_default();
    let listed = all.chunks_exact(sys::NAME_VERSION_BYTES).map(|one| {
        let version = number(&one[..4]) as u32;
        (version >> 22, version >> 12 & 0x3ff)
    });
    listed.max().unwrap_or_else(|| version_in(&library.device_text(device, sys::DEVICE_VERSION)))
}

fn pci_address(library: &Library, device: Handle, facts: &Facts) -> Option<PciAddress> {
    let number = |what| library.device_number(device, what);
    if facts.has("cl_khr_pci_bus_info") {
        let told = library.device_bytes(device, sys::DEVICE_PCI_BUS_INFO_KHR).ok().filter(|told| told.len() == 16)?;
        let part = |index: usize| crate::calls::number(&told[index * 4..][..4]);
        let (domain, bus) = (part(0) as u32, part(1) as u8);
        return Some(PciAddress { domain, bus, device: part(2) as u8, function: part(3) as u8 });
    }
    if facts.has("cl_nv_device_attribute_query") {
        let (domain, slot) = (number(sys::DEVICE_PCI_DOMAIN_ID_NV) as u32, number(sys::DEVICE_PCI_SLOT_ID_NV));
        let bus = number(sys::DEVICE_PCI_BUS_ID_NV) as u8;
        return Some(PciAddress { domain, bus, device: (slot >> 3) as u8, function: (slot & 7) as u8 });
    }
    if facts.has("cl_amd_device_attribute_query") {
        let told = library.device_bytes(device, sys::DEVICE_TOPOLOGY_AMD).ok().filter(|told| told.len() == 24)?;
        return Some(PciAddress { domain: 0, bus: told[21], device: told[22], function: told[23] });
    }
    None
}

fn uuid(library: &Library, device: Handle, facts: &Facts) -> Option<[u8; 16]> {
    if !facts.has("cl_khr_device_uuid") {
        return None;
    }
    library.device_bytes(device, sys::DEVICE_UUID_KHR).ok()?.try_into().ok().filter(|uuid| *uuid != [0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_the_bit_for_subnormal_numbers_say_that_they_flush_them() {
        const ROUND_TO_NEAREST: u64 = 1 << 2;
        assert!(flushes_subnormals(ROUND_TO_NEAREST));
        assert!(!flushes_subnormals(ROUND_TO_NEAREST | sys::FP_DENORM));
    }

    #[test]
    fn versions_are_read_from_texts() {
        assert_eq!(version_in("OpenCL 3.0 PoCL HSTR: pthread-x86_64"), (3, 0));
        assert_eq!(version_in("OpenCL 1.2 CUDA"), (1, 2));
        assert_eq!(version_in("nonsense"), (0, 0));
    }
}

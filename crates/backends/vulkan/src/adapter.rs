//! Finds out what a Vulkan device is and which features it has.

use std::ffi::CStr;
use std::fmt::Write;
use std::path::Path;

use ash::vk;
use panoply_core::{Api, Capabilities, DeviceId, DeviceInfo, DeviceKind, PciAddress};
use panoply_kernels::wgsl::CoopKernel;
use panoply_placement::{SYSTEM, locate};
use panoply_wgsl_gpu::profile::{Profile, WideMatrices};

use crate::bfloat16::{BFLOAT16_NAME, Bfloat16Features, COMPONENT_BFLOAT16};
use crate::float_controls::FloatControls;
use crate::loader::{Loader, version_text};
use crate::quirks::{KNOWN_LIMITS, Limits, QUIRKS, kept};

/// The most words of parameters that a dispatch carries itself (as push constants), if the device
/// can.
const IMMEDIATE_WORDS_MAX: usize = 64;
/// The most bytes of a buffer that kernels see: indices into it are signed 32-bit integers.
const BINDING_BYTES_MAX: u64 = i32::MAX as u64;
/// The most storage buffers that a kernel may bind.
const BUFFERS_MAX: u32 = 64;
/// The workgroup limits that every kernel needs.
const INVOCATIONS_MIN: u32 = 256;
const WORKGROUP_BYTES_MIN: u32 = 16_384;
const BUFFERS_MIN: u32 = 8;
/// The smallest size of a buffer, and of the part that a kernel sees, that is believed: Vulkan
/// promises far more.
const BUFFER_BYTES_MIN: u64 = 1 << 20;
/// The largest alignment of parameters in a uniform buffer that Vulkan allows.
const PARAMS_STEP_BYTES_MAX: u64 = 256;
/// The largest alignment of imported pages that is believed.
const IMPORT_STEP_BYTES_MAX: u64 = 2 << 20;

/// If set to `compute`, kernels go to a queue without graphics, if there is one: for measurements.
const QUEUE_VARIABLE: &str = "PANOPLY_VULKAN_QUEUE";

/// One device that can be opened.
#[derive(Clone)]
pub(crate) struct Adapter {
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) profile: Profile,
    pub(crate) info: DeviceInfo,
    pub(crate) limits: Limits,
    pub(crate) has: DeviceFeatures,
    /// The queue family for kernels, and a separate family for copies alone.
    pub(crate) compute_family: u32,
    pub(crate) transfer_family: Option<u32>,
    /// The name of the file that stores compiled kernels.
    pub(crate) cache_key: String,
    /// The header that the driver's own cache of compiled kernels must have.
    pub(crate) cache_header: CacheHeader,
}

/// The features of a device beyond Vulkan 1.2.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceFeatures {
    pub(crate) version: u32,
    /// 16-bit floating-point numbers are available, in registers and in memory.
    pub(crate) f16: bool,
    /// The subgroup size varies, so a kernel must require the size that it needs; the device allows
    /// this.
    pub(crate) asks_subgroup_size: bool,
    pub(crate) zero_workgroup_memory: bool,
    pub(crate) memory_budget: bool,
    pub(crate) portability_subset: bool,
    /// Alignment in bytes at which host memory can be imported.
    pub(crate) import_step_bytes: Option<u64>,
    /// Nanoseconds per tick of a time stamp.
    pub(crate) stamp_nanoseconds: Option<f64>,
    /// The most invocations of a workgroup along each axis.
    pub(crate) workgroup_size_max: [u32; 3],
    /// The matrix units multiply bf16 matrices.
    pub(crate) bf16_matrices: bool,
    /// The most memory allocations that may exist at a time.
    pub(crate) allocations_max: u32,
    /// Host and device share their memory.
    pub(crate) is_unified: bool,
    /// Which behaviour kernels can ask for with subnormal numbers, NaN and infinities.
    pub(crate) floats: FloatControls,
}

/// Identifies the device and driver that have made a cache of compiled kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheHeader {
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    pub(crate) uuid: [u8; vk::UUID_SIZE],
}

impl CacheHeader {
    /// Whether `data` was made by this device's driver. A driver may crash on foreign data.
    pub(crate) fn begins(&self, data: &[u8]) -> bool {
        let word = |place: usize| {
            let bytes = data.get(place..place + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        word(0).is_some_and(|length| (32..=data.len()).contains(&(length as usize)))
            && word(4) == Some(vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32)
            && word(8) == Some(self.vendor)
            && word(12) == Some(self.device)
            && data.get(16..32) == Some(&self.uuid[..])
    }
}

/// Inspects a device. Returns the name and the reason for a device that cannot run kernels.
pub(crate) fn look(
    loader: &Loader,
    physical: vk::PhysicalDevice,
    index: usize,
    lower: Option<Limits>,
) -> Result<Adapter, String> {
    let seen = DeviceReport::new(loader, physical);
    let name = seen.name();
    let refused = |reason: String| format!("{name}: {reason}");
    if seen.version < vk::API_VERSION_1_2 {
        return Err(refused(format!("Vulkan {}; 1.2 is needed", version_text(seen.version))));
    }
    if seen.features12.timeline_semaphore == vk::FALSE {
        return Err(refused("no timeline semaphores".to_owned()));
    }
    let families = seen.families(loader);
    let (compute_family, transfer_family) = families.ok_or_else(|| refused("no queue for kernels".to_owned()))?;
    let driver = seen.driver();
    let claimed = kept(KNOWN_LIMITS, &name, &driver, seen.limits());
    let limits = lower.map_or(claimed, |lower| claimed.within(lower));
    if let Some(reason) = shortcoming(&limits).or_else(|| absurdity(&claimed, &seen)) {
        return Err(refused(reason));
    }
    let id = DeviceId { api: Api::VULKAN, index: u32::try_from(index).unwrap_or(u32::MAX) };
    let (subgroup_lanes, asks_subgroup_size) = seen.subgroups();
    let has = seen.has(loader, compute_family, asks_subgroup_size);
    let matrix_units = subgroup_lanes == Some(32)
        && has.f16
        && limits.workgroup_bytes_max >= CoopKernel::workgroup_bytes()
        && seen.matrices(loader, vk::ComponentTypeKHR::FLOAT16);
    let wide_matrices = WideMatrices { f16: matrix_units, bf16: matrix_units && has.bf16_matrices };
    let profile = Profile {
        id,
        name: name.clone(),
        driver: driver.clone(),
        binding_bytes_max: limits.binding_bytes_max & !15,
        buffer_bytes_max: limits.buffer_bytes_max & !15,
        workgroup_bytes_max: limits.workgroup_bytes_max,
        buffers_max: limits.buffers_max as usize,
        immediate_words_max: IMMEDIATE_WORDS_MAX.min(limits.immediate_bytes_max as usize / 4),
        params_step_bytes: seen.properties.limits.min_uniform_buffer_offset_alignment as usize,
        is_software: seen.properties.device_type == vk::PhysicalDeviceType::CPU,
        subgroup_lanes,
        matrix_units,
        wide_matrices,
        quirks: QUIRKS,
    };
    let info = seen.describe(loader, &profile, &has, transfer_family);
    let properties = &seen.properties;
    let cache_header = CacheHeader {
        vendor: properties.vendor_id,
        device: properties.device_id,
        uuid: properties.pipeline_cache_uuid,
    };
    let cache_key =
        format!("{}-{}-{:x}", profile.cache_name("pipelines"), hex(&cache_header.uuid), properties.driver_version);
    Ok(Adapter { physical, profile, info, limits, has, compute_family, transfer_family, cache_key, cache_header })
}

/// The sort key of a device: hardware before software, discrete before integrated.
pub(crate) fn preference(loader: &Loader, physical: vk::PhysicalDevice) -> u8 {
    // SAFETY: the device is the instance's own.
    match unsafe { loader.instance.get_physical_device_properties(physical) }.device_type {
        vk::PhysicalDeviceType::DISCRETE_GPU => 0,
        vk::PhysicalDeviceType::VIRTUAL_GPU => 1,
        vk::PhysicalDeviceType::INTEGRATED_GPU => 2,
        vk::PhysicalDeviceType::CPU => 4,
        _ => 3,
    }
}

/// The first limit that is below the needs of every kernel, as text.
fn shortcoming(limits: &Limits) -> Option<String> {
    let least = [
        ("invocations in a workgroup", limits.invocations_max, INVOCATIONS_MIN),
        ("bytes of workgroup memory", limits.workgroup_bytes_max, WORKGROUP_BYTES_MIN),
        ("storage buffers in a kernel", limits.buffers_max, BUFFERS_MIN),
    ];
    let short = least.into_iter().find(|(_, got, needed)| got < needed);
    short.map(|(what, got, needed)| format!("{got} {what}; kernels need {needed}"))
}

/// The first claim of a driver that cannot be true, as text.
fn absurdity(claimed: &Limits, seen: &DeviceReport) -> Option<String> {
    let bytes = claimed.buffer_bytes_max.min(claimed.binding_bytes_max);
    if bytes < BUFFER_BYTES_MIN {
        return Some(format!("buffers of {bytes} bytes"));
    }
    let step = seen.properties.limits.min_uniform_buffer_offset_alignment;
    let is_sound = step.is_power_of_two() && step <= PARAMS_STEP_BYTES_MAX;
    (!is_sound).then(|| format!("parameters at multiples of {step} bytes"))
}

/// The device's memory types and heaps. Their counts are clamped to Vulkan's maxima, and types in
/// heaps that do not exist are disabled.
pub(crate) fn memory_types(loader: &Loader, physical: vk::PhysicalDevice) -> vk::PhysicalDeviceMemoryProperties {
    // SAFETY: the device is the instance's own.
    sound(unsafe { loader.instance.get_physical_device_memory_properties(physical) })
}

fn sound(mut memory: vk::PhysicalDeviceMemoryProperties) -> vk::PhysicalDeviceMemoryProperties {
    memory.memory_heap_count = memory.memory_heap_count.min(vk::MAX_MEMORY_HEAPS as u32);
    memory.memory_type_count = memory.memory_type_count.min(vk::MAX_MEMORY_TYPES as u32);
    let heaps = memory.memory_heap_count;
    // A type in a heap that does not exist is marked protected, and so is never chosen.
    for kind in memory.memory_types.iter_mut().filter(|kind| kind.heap_index >= heaps) {
        *kind = vk::MemoryType { property_flags: vk::MemoryPropertyFlags::PROTECTED, heap_index: 0 };
    }
    memory
}

/// The answers of Vulkan about a device.
struct DeviceReport {
    physical: vk::PhysicalDevice,
    version: u32,
    properties: vk::PhysicalDeviceProperties,
    ids: vk::PhysicalDeviceIDProperties<'static>,
    drivers: vk::PhysicalDeviceDriverProperties<'static>,
    subgroup: vk::PhysicalDeviceSubgroupProperties<'static>,
    sizes: vk::PhysicalDeviceSubgroupSizeControlProperties<'static>,
    allocation_bytes_max: u64,
    buffer_bytes_max: Option<u64>,
    pci: Option<PciAddress>,
    import_step_bytes: u64,
    floats: FloatControls,
    features11: vk::PhysicalDeviceVulkan11Features<'static>,
    features12: vk::PhysicalDeviceVulkan12Features<'static>,
    features13: vk::PhysicalDeviceVulkan13Features<'static>,
    matrices: bool,
    bf16_matrices: bool,
    extensions: Vec<std::ffi::CString>,
}

impl DeviceReport {
    fn new(loader: &Loader, physical: vk::PhysicalDevice) -> DeviceReport {
        let instance = &loader.instance;
        // SAFETY: the device is the instance's own.
        let properties = unsafe { instance.get_physical_device_properties(physical) };
        let extensions = extensions(instance, physical);
        let has = |name: &CStr| extensions.iter().any(|one| one.as_c_str() == name);
        // Features beyond the version that the instance was made for must not be used.
        let version = properties.api_version.min(loader.version);
        let is_13 = version >= vk::API_VERSION_1_3;
        let (mut ids, mut drivers, mut subgroup, mut floats, mut pci) = Default::default();
        let mut maintenance3 = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut maintenance4 = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let (mut features11, mut features12, mut features13) = Default::default();
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut bf16 = Bfloat16Features::default();
        if version >= vk::API_VERSION_1_2 {
            let mut all = vk::PhysicalDeviceProperties2::default()
                .push_next(&mut ids)
                .push_next(&mut drivers)
                .push_next(&mut subgroup)
                .push_next(&mut floats)
                .push_next(&mut maintenance3);
            let mut features =
                vk::PhysicalDeviceFeatures2::default().push_next(&mut features11).push_next(&mut features12);
            if is_13 {
                all = all.push_next(&mut maintenance4).push_next(&mut sizes);
                features = features.push_next(&mut features13);
            }
            if has(ash::ext::pci_bus_info::NAME) {
                all = all.push_next(&mut pci);
            }
            if has(ash::ext::external_memory_host::NAME) {
                all = all.push_next(&mut host);
            }
            if has(ash::khr::cooperative_matrix::NAME) {
                features = features.push_next(&mut matrices);
            }
            if has(BFLOAT16_NAME) {
                features = features.push_next(&mut bf16);
            }
            // SAFETY: the device supports Vulkan 1.2 and every structure of the chains.
            unsafe {
                instance.get_physical_device_properties2(physical, &mut all);
                instance.get_physical_device_features2(physical, &mut features);
            }
        }
        let pci = has(ash::ext::pci_bus_info::NAME).then(|| pci_address(&pci));
        DeviceReport {
            physical,
            version,
            properties,
            allocation_bytes_max: maintenance3.max_memory_allocation_size,
            buffer_bytes_max: is_13.then_some(maintenance4.max_buffer_size).filter(|bytes| *bytes > 0),
            floats: FloatControls::of(&floats),
            import_step_bytes: host.min_imported_host_pointer_alignment,
            matrices: matrices.cooperative_matrix == vk::TRUE,
            bf16_matrices: bf16.has_type == vk::TRUE && bf16.has_matrices == vk::TRUE,
            ids: unchained(ids, |ids| ids.p_next = std::ptr::null_mut()),
            drivers: unchained(drivers, |drivers| drivers.p_next = std::ptr::null_mut()),
            subgroup: unchained(subgroup, |subgroup| subgroup.p_next = std::ptr::null_mut()),
            sizes: unchained(sizes, |sizes| sizes.p_next = std::ptr::null_mut()),
            features11: unchained(features11, |features| features.p_next = std::ptr::null_mut()),
            features12: unchained(features12, |features| features.p_next = std::ptr::null_mut()),
            features13: unchained(features13, |features| features.p_next = std::ptr::null_mut()),
            pci,
            extensions,
        }
    }

    fn has_extension(&self, name: &CStr) -> bool {
        self.extensions.iter().any(|one| one.as_c_str() == name)
    }

    fn name(&self) -> String {
        text(self.properties.device_name_as_c_str().ok())
    }

    fn driver(&self) -> String {
        let (name, info) =
            (text(self.drivers.driver_name_as_c_str().ok()), text(self.drivers.driver_info_as_c_str().ok()));
        format!("{name} {info}").trim().to_owned()
    }

    fn limits(&self) -> Limits {
        let limits = &self.properties.limits;
        let claimed = match self.buffer_bytes_max {
            // An allocation may be larger than the promised maximum; it reports an error if it
            // fails.
            Some(bytes) if self.properties.device_type == vk::PhysicalDeviceType::DISCRETE_GPU => bytes,
            Some(bytes) => bytes.min(self.allocation_bytes_max),
            None => self.allocation_bytes_max,
        };
        let per_axis = limits.max_compute_work_group_size[0];
        Limits {
            binding_bytes_max: u64::from(limits.max_storage_buffer_range).min(BINDING_BYTES_MAX),
            buffer_bytes_max: claimed.min(1 << 52),
            workgroup_bytes_max: limits.max_compute_shared_memory_size,
            invocations_max: limits.max_compute_work_group_invocations.min(per_axis),
            buffers_max: limits
                .max_per_stage_descriptor_storage_buffers
                .min(limits.max_descriptor_set_storage_buffers)
                .min(limits.max_per_stage_resources.saturating_sub(1))
                .min(BUFFERS_MAX),
            immediate_bytes_max: limits.max_push_constants_size,
        }
    }

    /// The queue families for kernels and for copies alone.
    fn families(&self, loader: &Loader) -> Option<(u32, Option<u32>)> {
        // SAFETY: the device is the instance's own.
        let families = unsafe { loader.instance.get_physical_device_queue_family_properties(self.physical) };
        let find = |suits: &dyn Fn(vk::QueueFlags) -> bool| {
            families.iter().zip(0..).find(|(family, _)| family.queue_count > 0 && suits(family.queue_flags))
        };
        let for_kernels = |flags: vk::QueueFlags| flags.contains(vk::QueueFlags::COMPUTE);
        let without_graphics = |flags| for_kernels(flags) && !flags.contains(vk::QueueFlags::GRAPHICS);
        let asked = std::env::var_os(QUEUE_VARIABLE).is_some_and(|kind| kind == "compute");
        let (_, compute) = find(&without_graphics).filter(|_| asked).or_else(|| find(&for_kernels))?;
        let other = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
        let copies = find(&|flags| flags.contains(vk::QueueFlags::TRANSFER) && !flags.intersects(other));
        Some((compute, copies.map(|(_, number)| number)))
    }

    /// The subgroup size, if all subgroups have the same one, and whether kernels must require it.
    fn subgroups(&self) -> (Option<u8>, bool) {
        use vk::SubgroupFeatureFlags as Ops;
        let needed =
            Ops::BASIC | Ops::VOTE | Ops::ARITHMETIC | Ops::BALLOT | Ops::SHUFFLE | Ops::SHUFFLE_RELATIVE | Ops::QUAD;
        let runs = self.subgroup.supported_operations.contains(needed)
            && self.subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
        let varies = self.sizes.min_subgroup_size != self.sizes.max_subgroup_size;
        let asks = varies
            && self.features13.subgroup_size_control == vk::TRUE
            && self.sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
        let lanes = u8::try_from(self.subgroup.subgroup_size).ok();
        let lanes = lanes.filter(|lanes| (4..=64).contains(lanes) && lanes.is_power_of_two());
        (lanes.filter(|_| runs && (!varies || asks)), asks)
    }

    /// Whether the device multiplies 16×16 matrices of `element` as our kernels need.
    fn matrices(&self, loader: &Loader, element: vk::ComponentTypeKHR) -> bool {
        use vk::ComponentTypeKHR as Component;
        if !self.matrices || self.features12.vulkan_memory_model == vk::FALSE {
            return false;
        }
        let functions = ash::khr::cooperative_matrix::Instance::new(&loader.entry, &loader.instance);
        // SAFETY: the device has the extension.
        let listed = unsafe { functions.get_physical_device_cooperative_matrix_properties(self.physical) };
        listed.unwrap_or_default().iter().any(|one| {
            [one.m_size, one.n_size, one.k_size] == [16; 3]
                && (one.a_type, one.b_type) == (element, element)
                && (one.c_type, one.result_type) == (Component::FLOAT32, Component::FLOAT32)
                && one.scope == vk::ScopeKHR::SUBGROUP
        })
    }

    fn has(&self, loader: &Loader, family: u32, asks_subgroup_size: bool) -> DeviceFeatures {
        let is = |flag: vk::Bool32| flag == vk::TRUE;
        // SAFETY: the device is the instance's own.
        let families = unsafe { loader.instance.get_physical_device_queue_family_properties(self.physical) };
        let memory = memory_types(loader, self.physical);
        let stamped = families.get(family as usize).is_some_and(|family| family.timestamp_valid_bits > 0);
        let step = self.import_step_bytes;
        let imports = self.has_extension(ash::ext::external_memory_host::NAME)
            && step.is_power_of_two()
            && step <= IMPORT_STEP_BYTES_MAX;
        let tick =
            Some(f64::from(self.properties.limits.timestamp_period)).filter(|tick| tick.is_finite() && *tick > 0.0);
        let heaps = memory.memory_heaps_as_slice();
        DeviceFeatures {
            version: self.version,
            f16: is(self.features12.shader_float16)
                && is(self.features11.storage_buffer16_bit_access)
                && is(self.features11.uniform_and_storage_buffer16_bit_access),
            asks_subgroup_size,
            floats: self.floats,
            zero_workgroup_memory: is(self.features13.shader_zero_initialize_workgroup_memory),
            memory_budget: self.has_extension(ash::ext::memory_budget::NAME),
            portability_subset: self.has_extension(ash::khr::portability_subset::NAME),
            import_step_bytes: imports.then_some(step),
            stamp_nanoseconds: tick.filter(|_| stamped),
            workgroup_size_max: self.properties.limits.max_compute_work_group_size,
            bf16_matrices: self.bf16_matrices && self.matrices(loader, COMPONENT_BFLOAT16),
            allocations_max: self.properties.limits.max_memory_allocation_count,
            is_unified: heaps.iter().all(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
                && self.properties.device_type != vk::PhysicalDeviceType::DISCRETE_GPU,
        }
    }

    /// The device's public description. Facts that Vulkan does not report stay `None`.
    fn describe(&self, loader: &Loader, profile: &Profile, has: &DeviceFeatures, transfer: Option<u32>) -> DeviceInfo {
        let kind = match self.properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU | vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::DiscreteGpu,
            vk::PhysicalDeviceType::CPU => DeviceKind::SoftwareGpu,
            _ => DeviceKind::IntegratedGpu,
        };
        let mut device = DeviceInfo::new(profile.id, profile.name.clone(), kind);
        device.driver_version = Some(profile.driver.clone()).filter(|driver| !driver.is_empty());
        device.threads_per_block_max = Some(self.properties.limits.max_compute_work_group_invocations);
        device.shared_memory_bytes_max = Some(u64::from(profile.workgroup_bytes_max));
        if let Some(address) = self.pci {
            locate(&mut device, Path::new(SYSTEM), address);
        }
        device.uuid = Some(self.ids.device_uuid).filter(|uuid| *uuid != [0; 16]);
        device.runs_on_cores = kind == DeviceKind::SoftwareGpu;
        if kind == DeviceKind::DiscreteGpu {
            let (total, free) = memory(loader, self.physical, has.memory_budget);
            (device.memory_total_bytes, device.memory_available_bytes) = (total, free);
        }
        let features = [
            ("f16", has.f16),
            ("subgroups", profile.subgroup_lanes.is_some()),
            ("timestamps", has.stamp_nanoseconds.is_some()),
            ("cooperative-matrix", profile.matrix_units),
            ("bf16-matrix", profile.wide_matrices.bf16),
            ("transfer-queue", transfer.is_some()),
            ("host-memory-import", has.import_step_bytes.is_some()),
            ("memory-budget", has.memory_budget),
            (Capabilities::FLUSHES_SUBNORMALS, !has.floats.keeps_subnormals()),
        ];
        let names = features.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned());
        device.capabilities =
            Capabilities { domains: panoply_wgsl_gpu::ops::DOMAINS.to_vec(), features: names.collect() };
        device
    }
}

/// The size of the largest device-local heap in bytes, and how much of it this process may still
/// allocate.
pub(crate) fn memory(loader: &Loader, physical: vk::PhysicalDevice, budget: bool) -> (Option<u64>, Option<u64>) {
    let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut asked = vk::PhysicalDeviceMemoryProperties2::default();
    if budget {
        asked = asked.push_next(&mut budgets);
    }
    // SAFETY: the device is the instance's own and supports Vulkan 1.1; the budget structure is
    // chained only if `budget` says that the extension is there.
    unsafe { loader.instance.get_physical_device_memory_properties2(physical, &mut asked) };
    let heaps = sound(asked.memory_properties).memory_heaps_as_slice().to_vec();
    let own = heaps.iter().enumerate().filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let Some((number, heap)) = own.max_by_key(|(_, heap)| heap.size) else { return (None, None) };
    let free = budgets.heap_budget[number].saturating_sub(budgets.heap_usage[number]);
    (Some(heap.size), budget.then_some(free.min(heap.size)))
}

/// The extensions that a device supports.
fn extensions(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Vec<std::ffi::CString> {
    // SAFETY: the device is the instance's own.
    let listed = unsafe { instance.enumerate_device_extension_properties(physical) }.unwrap_or_default();
    listed.iter().filter_map(|one| one.extension_name_as_c_str().ok().map(CStr::to_owned)).collect()
}

fn pci_address(bus: &vk::PhysicalDevicePCIBusInfoPropertiesEXT<'_>) -> PciAddress {
    PciAddress {
        domain: bus.pci_domain,
        bus: bus.pci_bus as u8,
        device: bus.pci_device as u8,
        function: bus.pci_function as u8,
    }
}

/// The structure, removed from the chain that it was part of.
fn unchained<T>(mut structure: T, cut: impl FnOnce(&mut T)) -> T {
    cut(&mut structure);
    structure
}

fn text(name: Option<&CStr>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: CacheHeader = CacheHeader { vendor: 0x10de, device: 7, uuid: [9; 16] };

    fn data(length: u32, version: u32, vendor: u32, device: u32, uuid: [u8; 16]) -> Vec<u8> {
        let words = [length, version, vendor, device].map(u32::to_le_bytes);
        words.into_iter().flatten().chain(uuid).chain([1, 2, 3]).collect()
    }

    #[test]
    fn only_the_drivers_own_cache_is_its_own() {
        assert!(HEADER.begins(&data(32, 1, 0x10de, 7, [9; 16])));
        for foreign in [
            data(32, 1, 0x1002, 7, [9; 16]),
            data(32, 1, 0x10de, 8, [9; 16]),
            data(32, 1, 0x10de, 7, [8; 16]),
            data(32, 2, 0x10de, 7, [9; 16]),
            data(16, 1, 0x10de, 7, [9; 16]),
            data(4000, 1, 0x10de, 7, [9; 16]),
            data(32, 1, 0x10de, 7, [9; 16])[..31].to_vec(),
            Vec::new(),
        ] {
            assert!(!HEADER.begins(&foreign), "{foreign:?}");
        }
    }
}

//! Reads facts that Vulkan reports and WebGPU does not, and opens Vulkan devices without buffer
//! checks by the driver.
//!
//! wgpu asks drivers to check every access to a buffer (`robustBufferAccess`). Our kernels stay
//! inside their buffers without these checks, which cost half of the memory's bandwidth and more: a
//! driver that checks cannot read vectors of four at once. So the device is made here as wgpu would
//! make it, but without the checks.

use panoply_core::MemoryUse;

/// Opens the device and its queue; `None` if the adapter is not a Vulkan adapter, or does not open
/// in this way.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    use ash::vk;
    use wgpu::hal::api::Vulkan;

    /// The queue family that wgpu uses.
    const QUEUE_FAMILY: u32 = 0;

    let features = descriptor.required_features;
    let opened = {
        // SAFETY: the adapter is only read and asked to open a device; nothing of it is destroyed.
        let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
        let mut extensions = hal.required_device_extensions(features);
        let imports = ash::ext::external_memory_host::NAME;
        if hal.physical_device_capabilities().supports_extension(imports) && !extensions.contains(&imports) {
            extensions.push(imports);
        }
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let mut enabled = hal.physical_device_features(&extensions, features);
        let core = enabled.get_core().robust_buffer_access(false);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(QUEUE_FAMILY).queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let mut info = enabled.add_to_device_create(info);
        info.p_enabled_features = &raw const core;
        // SAFETY: the chain consists of the structures in `enabled`, which is borrowed for it and
        // lives as long; each begins with its type and a next pointer, and only the structure with
        // the matching type is cast.
        unsafe {
            let mut next = info.p_next.cast_mut().cast::<vk::BaseOutStructure<'_>>();
            while !next.is_null() {
                let (kind, following) = ((*next).s_type, (*next).p_next);
                if kind == vk::StructureType::PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT {
                    (*next.cast::<vk::PhysicalDeviceRobustness2FeaturesEXT<'_>>()).robust_buffer_access2 = vk::FALSE;
                }
                next = following;
            }
        }
        let instance = hal.shared_instance().raw_instance();
        // SAFETY: the physical device belongs to the instance, and everything that `info` points to
        // is alive.
        let raw = unsafe { instance.create_device(hal.raw_physical_device(), &info, None) }.ok()?;
        let (limits, hints) = (&descriptor.required_limits, &descriptor.memory_hints);
        // SAFETY: the device was made from this adapter with this family, these extensions, and its
        // features except the buffer checks. Our own kernels rely on no such checks. wgpu compiles
        // callers' kernels with its own checks; only if the adapter has `robustBufferAccess2`, wgpu
        // leaves storage buffers to the driver's checks. wgpu owns the device from here on.
        unsafe { hal.device_from_raw(raw, None, &extensions, features, limits, hints, QUEUE_FAMILY, 0) }.ok()?
    };
    // SAFETY: the device was opened from this adapter, with the descriptor's features.
    unsafe { adapter.create_device_from_hal(opened, descriptor) }.ok()
}

/// Facts that Vulkan reports about an adapter and WebGPU does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The hardware's UUID, the same through every API.
    pub(crate) uuid: Option<[u8; 16]>,
    /// Size of the largest device-local heap in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Whether the driver reports how much of its memory is free.
    pub(crate) has_memory_budget: bool,
}

/// The identity of an adapter; empty if it is not a Vulkan adapter, or its Vulkan is older than
/// 1.1.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) fn identity(adapter: &wgpu::Adapter) -> Identity {
    use ash::vk;
    use wgpu::hal::api::Vulkan;

    // SAFETY: the adapter is only read.
    let Some(hal) = (unsafe { adapter.as_hal::<Vulkan>() }) else { return Identity::default() };
    let device_version = hal.physical_device_capabilities().properties().api_version;
    if hal.shared_instance().instance_api_version().min(device_version) < vk::API_VERSION_1_1 {
        return Identity::default();
    }
    let (instance, device) = (hal.shared_instance().raw_instance(), hal.raw_physical_device());
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
    // SAFETY: the physical device belongs to the instance, and both support Vulkan 1.1, to which
    // this call belongs.
    let memory = unsafe {
        instance.get_physical_device_properties2(device, &mut properties);
        instance.get_physical_device_memory_properties(device)
    };
    let heaps = memory.memory_heaps_as_slice().iter();
    let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)).map(|heap| heap.size).max();
    let has_memory_budget = hal.physical_device_capabilities().supports_extension(ash::ext::memory_budget::NAME);
    Identity { uuid: Some(ids.device_uuid).filter(|uuid| *uuid != [0; 16]), memory_bytes: own, has_memory_budget }
}

/// The largest device-local heap of an opened device, and what this process may still allocate of
/// it. `None` if the device is not a Vulkan device. The adapter must have a memory budget.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
pub(crate) fn memory(device: &wgpu::Device) -> Option<MemoryUse> {
    use ash::vk;
    use wgpu::hal::api::Vulkan;

    // SAFETY: the device is only read.
    let hal = unsafe { device.as_hal::<Vulkan>() }?;
    let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut asked = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budgets);
    // SAFETY: the physical device belongs to the instance, has the extension, and supports Vulkan
    // 1.1, to which this call belongs: `identity` has checked both.
    unsafe {
        hal.shared_instance()
            .raw_instance()
            .get_physical_device_memory_properties2(hal.raw_physical_device(), &mut asked);
    }
    let heaps = asked.memory_properties;
    let heaps = heaps.memory_heaps.iter().take(heaps.memory_heap_count as usize).enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let (number, heap) = own.max_by_key(|(_, heap)| heap.size)?;
    let free = budgets.heap_budget[number].saturating_sub(budgets.heap_usage[number]);
    Some(MemoryUse::new(heap.size, free))
}

/// Returns `None`: there is no Vulkan on this system.
#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) fn memory(_device: &wgpu::Device) -> Option<MemoryUse> {
    None
}

/// Returns nothing: there is no Vulkan on this system.
#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) fn identity(_adapter: &wgpu::Adapter) -> Identity {
    Identity::default()
}

/// Returns `None`: there is no Vulkan on this system.
#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
pub(crate) fn open(
    _adapter: &wgpu::Adapter,
    _descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    None
}

//! Host memory that we choose through Vulkan and that stays mapped. wgpu's own staging memory is
//! mapped and unmapped each time, and its kind is unknown.
//!
//! 1. The memory and its `VkBuffer` live in an [`Allocation`] with two owners: wgpu, which releases
//!    it when the device has finished with the buffer or is lost, and an [`OwnStaging`], which
//!    tensors may keep as long as they like.
//! 2. An `OwnStaging` also holds wgpu's buffer, and with it the device: so the device outlives the
//!    memory, in any order in which the owners release it.
//! 3. Host tensors that kernels read in place are imported too. Such an allocation has one owner,
//!    wgpu, and keeps the tensor's memory alive.
//! 4. All of it is coherent, so it needs no flushes. The host sees bytes that the device wrote
//!    after a barrier, which `WgpuCommands::submit` records, and the fence.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ash::vk;
use panoply_core::HostBuffer;
use panoply_wgsl_gpu::driver::Direction;
use panoply_wgsl_gpu::pages::Pages;
use wgpu::hal::api::Vulkan;

use crate::quirks::Memory;

/// The most allocations at a time. Vulkan promises 4096, and wgpu needs some of them.
const ALLOCATIONS_MAX: usize = 1024;
/// Kernels read vectors of this size.
const VECTOR_BYTES: u64 = 16;
/// The size of a page, which is certainly mapped as a whole.
const PAGE_BYTES: u64 = 4096;

/// Makes staging memory on one opened device.
pub(crate) struct HostMemory {
    device: ash::Device,
    types: vk::PhysicalDeviceMemoryProperties,
    import: Option<Import>,
    allocations: Arc<AtomicUsize>,
}

/// The functions to import pages, and the alignment that they need.
struct Import {
    functions: ash::ext::external_memory_host::Device,
    alignment: u64,
}

impl HostMemory {
    /// Returns `None` if the device is not a Vulkan device.
    pub(crate) fn open(device: &wgpu::Device) -> Option<HostMemory> {
        // SAFETY: the device is only read.
        let hal = unsafe { device.as_hal::<Vulkan>() }?;
        let (instance, physical) = (hal.shared_instance().raw_instance(), hal.raw_physical_device());
        // SAFETY: the physical device is the instance's own.
        let types = unsafe { instance.get_physical_device_memory_properties(physical) };
        let imports = hal.enabled_device_extensions().contains(&ash::ext::external_memory_host::NAME);
        let import = imports.then(|| {
            let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
            // SAFETY: the extension is enabled, which requires Vulkan 1.1, to which this call
            // belongs.
            unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
            let functions = ash::ext::external_memory_host::Device::new(instance, hal.raw_device());
            Import { functions, alignment: host.min_imported_host_pointer_alignment }
        });
        Some(HostMemory { device: hal.raw_device().clone(), types, import, allocations: Arc::default() })
    }

    /// Staging memory of this kind; `None` if it is not available.
    pub(crate) fn staging(
        &self,
        device: &wgpu::Device,
        bytes: u64,
        memory: Memory,
        direction: Direction,
    ) -> Option<OwnStaging> {
        if self.allocations.load(Ordering::Relaxed) >= ALLOCATIONS_MAX {
            return None;
        }
        let allocation = Arc::new(match memory {
            Memory::Imported => self.imported(bytes, direction)?,
            other => self.allocated(bytes, other, direction)?,
        });
        let is_cached = allocation.is_cached;
        let usage = match direction {
            Direction::Up => wgpu::BufferUsages::COPY_SRC,
            Direction::Down => wgpu::BufferUsages::COPY_DST,
        };
        let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        let shared = Arc::clone(&allocation);
        // SAFETY: the buffer was made from this device with this size and usage. It lives until
        // both its owners have released it; wgpu is one of them, and its share is dropped by the
        // callback.
        let buffer = unsafe {
            let hal =
                wgpu::hal::vulkan::Buffer::from_raw_externally_owned(allocation.buffer, Box::new(move || drop(shared)));
            device.create_buffer_from_hal::<Vulkan>(hal, &descriptor)
        };
        Some(OwnStaging { start: allocation.start, is_cached, _allocation: allocation, buffer })
    }

    /// Allocates memory from Vulkan.
    fn allocated(&self, bytes: u64, memory: Memory, direction: Direction) -> Option<Allocation> {
        let buffer = self.raw_buffer(bytes, usage_of(direction), false)?;
        let requirements = buffer.requirements();
        let wanted = wanted(memory)?;
        let (number, flags) = self.memory_type(requirements.memory_type_bits, wanted)?;
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer.raw);
        let info = vk::MemoryAllocateInfo::default().allocation_size(requirements.size).memory_type_index(number);
        // SAFETY: the type is one of the device's; memory and buffer are bound once, and freed by
        // their owner.
        let (memory, start) = unsafe {
            let memory = self.device.allocate_memory(&info.push_next(&mut dedicated), None).ok()?;
            let bound = self.device.bind_buffer_memory(buffer.raw, memory, 0);
            let mapped =
                bound.and_then(|()| self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()));
            match mapped.ok().and_then(|start| NonNull::new(start.cast())) {
                Some(start) => (memory, start),
                None => {
                    self.device.free_memory(memory, None);
                    return None;
                }
            }
        };
        Some(self.allocation(buffer, memory, start, flags))
    }

    /// A tensor's memory as a buffer that kernels read, and the offset of `bytes` in it; `None` if
    /// the device cannot import it.
    pub(crate) fn import(&self, device: &wgpu::Device, host: &HostBuffer, bytes: &[u8]) -> Option<(wgpu::Buffer, u64)> {
        let is_unified = self
            .types
            .memory_heaps_as_slice()
            .iter()
            .all(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        // The import covers whole pages around the bytes, which are mapped as long as the bytes
        // are. With steps larger than a page this is not certain.
        let step = self.import.as_ref()?.alignment;
        let begin = bytes.as_ptr().addr() as u64;
        let is_full = self.allocations.load(Ordering::Relaxed) >= ALLOCATIONS_MAX;
        if !is_unified || is_full || step > PAGE_BYTES || !begin.is_multiple_of(VECTOR_BYTES) {
            return None;
        }
        let first = begin / step * step;
        let size = (begin + bytes.len() as u64).next_multiple_of(step) - first;
        let start = NonNull::new(bytes.as_ptr().cast_mut().wrapping_sub((begin - first) as usize))?;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_SRC;
        let mut allocation = self.import_pages(start, size, size, usage)?;
        allocation._host = Some(host.clone());
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        // SAFETY: the buffer was made from this device with this size and usage. It lives until
        // wgpu, its only owner, drops the callback.
        let buffer = unsafe {
            let raw = allocation.buffer;
            let hal = wgpu::hal::vulkan::Buffer::from_raw_externally_owned(raw, Box::new(move || drop(allocation)));
            device.create_buffer_from_hal::<Vulkan>(hal, &descriptor)
        };
        Some((buffer, begin - first))
    }

    /// Imports pages of this process.
    fn imported(&self, bytes: u64, direction: Direction) -> Option<Allocation> {
        let pages = Pages::new(bytes.next_multiple_of(self.import.as_ref()?.alignment) as usize)?;
        let size = pages.len_bytes() as u64;
        let mut allocation = self.import_pages(pages.start(), size, bytes, usage_of(direction))?;
        allocation._pages = Some(pages);
        Some(allocation)
    }

    /// Imports `size` bytes from `start` on, as a buffer of `bytes` bytes.
    fn import_pages(
        &self,
        start: NonNull<u8>,
        size: u64,
        bytes: u64,
        usage: vk::BufferUsageFlags,
    ) -> Option<Allocation> {
        let import = self.import.as_ref()?;
        let is_aligned = (start.addr().get() as u64).is_multiple_of(import.alignment);
        if !is_aligned || !size.is_multiple_of(import.alignment) {
            return None;
        }
        let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        let get = import.functions.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the pages are mapped, and aligned as the device asks.
        let asked = unsafe { get(self.device.handle(), handle, start.as_ptr().cast(), &mut properties) };
        asked.result().ok()?;
        let buffer = self.raw_buffer(bytes, usage, true)?;
        let types = properties.memory_type_bits & buffer.requirements().memory_type_bits;
        let (number, flags) = self.memory_type(types, wanted(Memory::Cached)?)?;
        let mut imported =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(handle).host_pointer(start.as_ptr().cast());
        let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(number);
        // SAFETY: the memory is freed before the pages; memory and buffer are bound once.
        let memory = unsafe {
            let memory = self.device.allocate_memory(&info.push_next(&mut imported), None).ok()?;
            if self.device.bind_buffer_memory(buffer.raw, memory, 0).is_err() {
                self.device.free_memory(memory, None);
                return None;
            }
            memory
        };
        Some(self.allocation(buffer, memory, start, flags))
    }

    fn allocation(
        &self,
        buffer: RawBuffer<'_>,
        memory: vk::DeviceMemory,
        start: NonNull<u8>,
        flags: vk::MemoryPropertyFlags,
    ) -> Allocation {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let is_cached = flags.contains(vk::MemoryPropertyFlags::HOST_CACHED);
        let (device, allocations) = (self.device.clone(), Arc::clone(&self.allocations));
        let buffer = buffer.keep();
        Allocation { device, buffer, memory, start, is_cached, allocations, _pages: None, _host: None }
    }

    fn raw_buffer(&self, bytes: u64, usage: vk::BufferUsageFlags, is_external: bool) -> Option<RawBuffer<'_>> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default()
            .handle_types(vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT);
        let mut info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        if is_external {
            info = info.push_next(&mut external);
        }
        // SAFETY: the structures are alive, and the owner destroys the buffer.
        let raw = unsafe { self.device.create_buffer(&info, None) }.ok()?;
        Some(RawBuffer { device: &self.device, raw })
    }

    /// The first allowed memory type with the wanted properties, and all its properties.
    fn memory_type(
        &self,
        allowed: u32,
        (with, without): (vk::MemoryPropertyFlags, vk::MemoryPropertyFlags),
    ) -> Option<(u32, vk::MemoryPropertyFlags)> {
        let types = self.types.memory_types_as_slice().iter().map(|kind| kind.property_flags).zip(0..);
        let mut fitting = types.filter(|(flags, number)| {
            allowed & (1 << number) != 0 && flags.contains(with) && !flags.intersects(without)
        });
        fitting.next().map(|(flags, number)| (number, flags))
    }
}

/// The use of staging memory.
fn usage_of(direction: Direction) -> vk::BufferUsageFlags {
    match direction {
        Direction::Up => vk::BufferUsageFlags::TRANSFER_SRC,
        Direction::Down => vk::BufferUsageFlags::TRANSFER_DST,
    }
}

/// The properties that memory of a kind must and must not have.
fn wanted(memory: Memory) -> Option<(vk::MemoryPropertyFlags, vk::MemoryPropertyFlags)> {
    use vk::MemoryPropertyFlags as Flags;
    let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    match memory {
        Memory::Cached => Some((host | Flags::HOST_CACHED, Flags::PROTECTED)),
        Memory::Uncached => Some((host, Flags::HOST_CACHED | Flags::DEVICE_LOCAL)),
        Memory::Device => Some((host | Flags::DEVICE_LOCAL, Flags::PROTECTED)),
        Memory::Mapped | Memory::Imported => None,
    }
}

/// A buffer without an owner yet. It is destroyed on drop.
struct RawBuffer<'a> {
    device: &'a ash::Device,
    raw: vk::Buffer,
}

impl RawBuffer<'_> {
    fn requirements(&self) -> vk::MemoryRequirements {
        // SAFETY: the buffer is the device's own.
        unsafe { self.device.get_buffer_memory_requirements(self.raw) }
    }

    /// The buffer, which its new owner destroys.
    fn keep(self) -> vk::Buffer {
        let raw = self.raw;
        std::mem::forget(self);
        raw
    }
}

impl Drop for RawBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer is not in use.
        unsafe { self.device.destroy_buffer(self.raw, None) };
    }
}

/// A buffer with its memory.
struct Allocation {
    device: ash::Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    start: NonNull<u8>,
    is_cached: bool,
    allocations: Arc<AtomicUsize>,
    /// Freed after the memory that they were imported as.
    _pages: Option<Pages>,
    /// The tensor's memory that was imported.
    _host: Option<HostBuffer>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: both owners have released the allocation: the device has finished with the
        // buffer, and no tensor reads the memory. The device itself still exists, since wgpu's
        // buffer, which keeps it alive, is dropped last (see `OwnStaging`).
        unsafe {
            self.device.destroy_buffer(self.buffer, None);
            self.device.free_memory(self.memory, None);
        }
        self.allocations.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: handles and an address; one owner at a time writes the memory behind it.
unsafe impl Send for Allocation {}
// SAFETY: as above; sharing it shares the address only.
unsafe impl Sync for Allocation {}

/// Staging memory that stays mapped.
pub struct OwnStaging {
    start: NonNull<u8>,
    is_cached: bool,
    /// Declared before the buffer: the device must exist when the memory is freed, and is destroyed
    /// with its last buffer.
    _allocation: Arc<Allocation>,
    buffer: wgpu::Buffer,
}

// SAFETY: as for `Allocation`.
unsafe impl Send for OwnStaging {}
// SAFETY: as for `Allocation`.
unsafe impl Sync for OwnStaging {}

impl OwnStaging {
    /// The first byte, at the start of a page.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Whether the CPU caches the memory.
    pub(crate) fn is_cached(&self) -> bool {
        self.is_cached
    }

    /// The memory as a wgpu buffer.
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

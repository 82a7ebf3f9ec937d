//! Buffers: memory of the device, and host memory that the device sees.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;
use panoply_core::{HostBuffer, Result};
use panoply_wgsl_gpu::pages::Pages;

use crate::gpu::{BufferMemory, Gpu, LastUses, RetiredObject};

/// Alignment of the offset and size of host-visible parts of memory.
const PAGE_BYTES: u64 = 4096;
/// Kernels read vectors of this many bytes.
const VECTOR_BYTES: u64 = 16;

/// Device memory that kernels read and write.
pub struct VulkanBuffer(pub(crate) Arc<Bytes>);

/// A `VkBuffer` with its memory, and marks of the commands that used it. Only the driver's thread
/// changes the marks.
pub(crate) struct Bytes {
    gpu: Arc<Gpu>,
    pub(crate) raw: vk::Buffer,
    pub(crate) len_bytes: u64,
    /// `None` once it is dropped.
    held: Option<BufferMemory>,
    pub(crate) uses: LastUses,
    /// The stretch between two barriers in which the buffer was last written, and last read.
    written: AtomicU64,
    read: AtomicU64,
    /// The recordings in which the buffer last took part in a copy beside the kernels: to the
    /// device, and to the host.
    pub(crate) up: AtomicU64,
    pub(crate) down: AtomicU64,
    /// The end offset of the last upload on the lane of copies: an upload that begins there or
    /// later touches none of the bytes before. `u64::MAX` if the last copy was a download.
    copied_to: AtomicU64,
}

impl Bytes {
    /// Whether a command that touches the buffer must wait for commands of this stretch.
    pub(crate) fn touch(&self, stretch: u64, writes: bool) -> bool {
        let was_written = self.written.load(Ordering::Relaxed) == stretch;
        was_written || (writes && self.read.load(Ordering::Relaxed) == stretch)
    }

    /// Notes that a command touches the buffer in this stretch.
    pub(crate) fn note(&self, stretch: u64, writes: bool) {
        let mark = if writes { &self.written } else { &self.read };
        mark.store(stretch, Ordering::Relaxed);
    }

    /// Notes an upload on the lane of copies. Returns whether it may overlap earlier copies on that
    /// lane.
    pub(crate) fn is_uploaded_again(&self, begin: u64, bytes: u64) -> bool {
        begin < self.copied_to.swap(begin + bytes, Ordering::Relaxed)
    }

    /// Notes a download on the lane of copies.
    pub(crate) fn is_downloaded(&self) {
        self.copied_to.store(u64::MAX, Ordering::Relaxed);
    }

    fn new(gpu: &Arc<Gpu>, raw: vk::Buffer, len_bytes: u64, held: BufferMemory) -> Bytes {
        let (gpu, held, uses) = (Arc::clone(gpu), Some(held), LastUses::default());
        let (written, read, up, down, copied_to) = Default::default();
        Bytes { gpu, raw, len_bytes, held, uses, written, read, up, down, copied_to }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.gpu.retire(RetiredObject::Buffer(self.raw, held), self.uses.stamp());
        }
    }
}

/// The usage of a buffer, and the properties that its memory must and must not have.
#[derive(Clone, Copy)]
pub(crate) struct BufferRequest {
    pub(crate) usage: vk::BufferUsageFlags,
    pub(crate) with: vk::MemoryPropertyFlags,
    pub(crate) without: vk::MemoryPropertyFlags,
}

/// Device-local memory.
pub(crate) const OWN: BufferRequest = BufferRequest {
    usage: vk::BufferUsageFlags::from_raw(
        vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
            | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
            | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
    ),
    with: vk::MemoryPropertyFlags::DEVICE_LOCAL,
    without: vk::MemoryPropertyFlags::PROTECTED,
};

/// Makes a buffer, or returns `None` if the device has no such memory.
pub(crate) fn make(gpu: &Arc<Gpu>, bytes: u64, wanted: BufferRequest) -> Result<Option<NewBuffer>> {
    let unowned =
        UnownedBuffer::new(gpu, bytes, wanted.usage, false).map_err(|error| gpu.memory_error(error, bytes))?;
    let requirements = unowned.requirements();
    let found = gpu.memory().find(requirements.memory_type_bits, wanted.with, wanted.without);
    let Some((kind, flags)) = found else { return Ok(None) };
    let is_host = flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
    let step = if is_host { PAGE_BYTES } else { 1 };
    // A driver that reports less than the buffer's size, or more than can exist, is not believed.
    let size = requirements.size.max(bytes).checked_next_multiple_of(step);
    let size = size.ok_or_else(|| gpu.memory_error(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, bytes))?;
    let align = requirements.alignment.max(step);
    let is_own = flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL);
    let taken = {
        let mut memory = gpu.memory();
        let has_room = memory.has_room(kind, size, align);
        if !has_room && is_own && gpu.is_over_budget(size) {
            memory.trim(&gpu.raw);
            if gpu.is_over_budget(size) {
                return Err(gpu.memory_error(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, bytes));
            }
        }
        memory.allocate(&gpu.raw, kind, size, align).or_else(|_| {
            memory.trim(&gpu.raw);
            memory.allocate(&gpu.raw, kind, size, align)
        })
    };
    let part = taken.map_err(|error| gpu.memory_error(error, bytes))?;
    // SAFETY: the part is of an allowed type, long enough and aligned. The buffer is bound once.
    let bound = unsafe { gpu.raw.bind_buffer_memory(unowned.raw, part.memory, part.offset()) };
    if let Err(error) = bound {
        gpu.memory().free(&gpu.raw, &part);
        return Err(gpu.memory_error(error, bytes));
    }
    let start = part.start;
    let bytes = Arc::new(Bytes::new(gpu, unowned.keep(), bytes, BufferMemory::Part(part)));
    Ok(Some(NewBuffer { bytes, start, is_cached: flags.contains(vk::MemoryPropertyFlags::HOST_CACHED) }))
}

/// A buffer that was just made: `start` is the first byte if the host can reach the memory, and
/// `is_cached` says whether the host caches it.
pub(crate) struct NewBuffer {
    pub(crate) bytes: Arc<Bytes>,
    pub(crate) start: Option<NonNull<u8>>,
    pub(crate) is_cached: bool,
}

/// A buffer over pages of this process; `None` if the device cannot import them.
pub(crate) fn import_pages(gpu: &Arc<Gpu>, bytes: u64, usage: vk::BufferUsageFlags) -> Option<NewBuffer> {
    let step = gpu.import.as_ref()?.step_bytes;
    let pages = Pages::new(usize::try_from(bytes.next_multiple_of(step)).ok()?)?;
    let (start, size) = (pages.start(), pages.len_bytes() as u64);
    let (raw, memory) = import(gpu, start, size, bytes, usage)?;
    let bytes = Arc::new(Bytes::new(gpu, raw, bytes, BufferMemory::Pages(memory, pages)));
    Some(NewBuffer { bytes, start: Some(start), is_cached: true })
}

/// A tensor's memory as a buffer, and the offset of `bytes` in it; `None` if the device cannot
/// import it. The buffer keeps the tensor's memory alive until the device is done with it.
pub(crate) fn import_host(gpu: &Arc<Gpu>, host: &HostBuffer, bytes: &[u8]) -> Option<(Arc<Bytes>, u64)> {
    // The import covers whole pages around the bytes, which are mapped as long as the bytes are.
    // With steps larger than a page this is not certain.
    let step = gpu.import.as_ref()?.step_bytes;
    if step > PAGE_BYTES {
        return None;
    }
    let begin = bytes.as_ptr().addr() as u64;
    if !begin.is_multiple_of(VECTOR_BYTES) {
        return None;
    }
    let first = begin / step * step;
    let size = (begin + bytes.len() as u64).next_multiple_of(step) - first;
    let start = NonNull::new(bytes.as_ptr().cast_mut().wrapping_sub((begin - first) as usize))?;
    let (raw, memory) = import(gpu, start, size, size, OWN.usage)?;
    Some((Arc::new(Bytes::new(gpu, raw, size, BufferMemory::Host(memory, host.clone()))), begin - first))
}

fn import(
    gpu: &Arc<Gpu>,
    start: NonNull<u8>,
    size: u64,
    bytes: u64,
    usage: vk::BufferUsageFlags,
) -> Option<(vk::Buffer, vk::DeviceMemory)> {
    let import = gpu.import.as_ref()?;
    let is_aligned = (start.addr().get() as u64).is_multiple_of(import.step_bytes);
    if !is_aligned || !size.is_multiple_of(import.step_bytes) {
        return None;
    }
    let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
    let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
    let get = import.functions.fp().get_memory_host_pointer_properties_ext;
    // SAFETY: the memory is mapped, and aligned as the device asks.
    let asked = unsafe { get(gpu.raw.handle(), handle, start.as_ptr().cast(), &mut properties) };
    asked.result().ok()?;
    let unowned = UnownedBuffer::new(gpu, bytes, usage, true).ok()?;
    let requirements = unowned.requirements();
    let allowed = properties.memory_type_bits & requirements.memory_type_bits;
    let with = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
    let (kind, _) = gpu.memory().find(allowed, with, vk::MemoryPropertyFlags::PROTECTED)?;
    if !gpu.memory().count() {
        return None;
    }
    let mut imported =
        vk::ImportMemoryHostPointerInfoEXT::default().handle_type(handle).host_pointer(start.as_ptr().cast());
    let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(kind as u32);
    // SAFETY: the import is freed before the host memory; memory and buffer are bound once.
    let memory = unsafe {
        let made = gpu.raw.allocate_memory(&info.push_next(&mut imported), None).ok();
        made.filter(|memory| {
            let is_bound = requirements.size <= size && gpu.raw.bind_buffer_memory(unowned.raw, *memory, 0).is_ok();
            if !is_bound {
                gpu.raw.free_memory(*memory, None);
            }
            is_bound
        })
    };
    if memory.is_none() {
        gpu.memory().discount();
    }
    memory.map(|memory| (unowned.keep(), memory))
}

/// A buffer without an owner yet. It is destroyed on drop.
struct UnownedBuffer<'a> {
    gpu: &'a Gpu,
    raw: vk::Buffer,
}

impl<'a> UnownedBuffer<'a> {
    fn new(
        gpu: &'a Gpu,
        bytes: u64,
        usage: vk::BufferUsageFlags,
        is_imported: bool,
    ) -> Result<UnownedBuffer<'a>, vk::Result> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default()
            .handle_types(vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT);
        let mut info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        if let [_, _, ..] = *gpu.families {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&gpu.families);
        }
        if is_imported {
            info = info.push_next(&mut external);
        }
        // SAFETY: the structures are alive, and the owner destroys the buffer.
        let raw = unsafe { gpu.raw.create_buffer(&info, None) }?;
        Ok(UnownedBuffer { gpu, raw })
    }

    fn requirements(&self) -> vk::MemoryRequirements {
        // SAFETY: the buffer is the device's own.
        unsafe { self.gpu.raw.get_buffer_memory_requirements(self.raw) }
    }

    /// The buffer, which its new owner destroys.
    fn keep(self) -> vk::Buffer {
        let raw = self.raw;
        std::mem::forget(self);
        raw
    }
}

impl Drop for UnownedBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer is not in use.
        unsafe { self.gpu.raw.destroy_buffer(self.raw, None) };
    }
}

//! Staging memory, which host and device both reach. All of it is coherent and stays mapped, so it
//! needs no flushes. The host sees bytes that the device wrote after the barrier at the end of a
//! submission and its fence.

use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use panoply_core::Result;
use panoply_wgsl_gpu::Staging;
use panoply_wgsl_gpu::driver::Direction;

use crate::buffer::{BufferRequest, Bytes, NewBuffer, import_pages, make};
use crate::gpu::Gpu;
use crate::quirks::Memory;

/// Smaller staging memory is never imported: each import is an allocation of its own.
const IMPORT_BYTES_MIN: u64 = 256 << 10;

/// Staging memory.
pub struct VulkanStaging {
    pub(crate) bytes: Arc<Bytes>,
    start: NonNull<u8>,
    is_cached: bool,
}

// SAFETY: an address and a shared buffer; one owner at a time writes the memory, as the engine
// hands it over.
unsafe impl Send for VulkanStaging {}
// SAFETY: as above; sharing it shares the address only.
unsafe impl Sync for VulkanStaging {}

impl VulkanStaging {
    /// Allocates memory of this kind, or of another kind if the device lacks it.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64, direction: Direction, memory: Memory) -> Result<VulkanStaging> {
        let usage = match direction {
            Direction::Up => vk::BufferUsageFlags::TRANSFER_SRC,
            Direction::Down => vk::BufferUsageFlags::TRANSFER_DST,
        };
        let bytes = bytes.next_multiple_of(16);
        if memory == Memory::Imported
            && bytes >= IMPORT_BYTES_MIN
            && let Some(made) = import_pages(gpu, bytes, usage)
        {
            return VulkanStaging::of(gpu, made);
        }
        for (with, without) in kinds(memory) {
            if let Some(made) = make(gpu, bytes, BufferRequest { usage, with, without })? {
                return VulkanStaging::of(gpu, made);
            }
        }
        Err(gpu.faults.fault("the device has no memory that the host reaches, which Vulkan promises"))
    }

    fn of(gpu: &Gpu, made: NewBuffer) -> Result<VulkanStaging> {
        let NewBuffer { bytes, start, is_cached } = made;
        let start = start.ok_or_else(|| gpu.faults.fault("memory of the host was not mapped"))?;
        Ok(VulkanStaging { bytes, start, is_cached })
    }
}

/// The properties that memory of a kind must and must not have, then those of the fallback.
fn kinds(memory: Memory) -> [(vk::MemoryPropertyFlags, vk::MemoryPropertyFlags); 2] {
    use vk::MemoryPropertyFlags as Flags;
    let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let first = match memory {
        Memory::Cached | Memory::Imported => (host | Flags::HOST_CACHED, Flags::PROTECTED),
        Memory::Uncached => (host, Flags::HOST_CACHED | Flags::DEVICE_LOCAL),
        Memory::Device => (host | Flags::DEVICE_LOCAL, Flags::PROTECTED),
    };
    [first, (host, Flags::PROTECTED)]
}

impl Staging for VulkanStaging {
    fn len_bytes(&self) -> u64 {
        self.bytes.len_bytes
    }

    fn start(&self) -> Result<NonNull<u8>> {
        Ok(self.start)
    }

    fn is_kept(&self) -> bool {
        self.is_cached
    }

    fn hand_over(&self) {}

    fn call_back(&self) {}

    fn is_back(&self) -> bool {
        // The caller knows that the submission has ended.
        true
    }
}

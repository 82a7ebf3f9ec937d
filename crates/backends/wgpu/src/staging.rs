//! Staging memory, which host and device both reach: wgpu's own, which is mapped and unmapped each
//! time, or memory that we choose through Vulkan, which stays mapped.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use panoply_core::Result;
use panoply_wgsl_gpu::Staging;
use panoply_wgsl_gpu::driver::Direction;
use panoply_wgsl_gpu::fault::Faults;

use crate::fault::checked;
use crate::host_memory::OwnStaging;

/// Staging memory.
pub enum WgpuStaging {
    /// wgpu's own memory.
    Mapped(MappedBuffer),
    /// Memory that we chose through Vulkan.
    Own(OwnStaging),
}

impl WgpuStaging {
    /// The memory as a wgpu buffer.
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        match self {
            WgpuStaging::Mapped(mapped) => &mapped.buffer,
            WgpuStaging::Own(own) => own.buffer(),
        }
    }
}

impl Staging for WgpuStaging {
    fn len_bytes(&self) -> u64 {
        self.buffer().size()
    }

    fn start(&self) -> Result<NonNull<u8>> {
        match self {
            WgpuStaging::Mapped(mapped) => mapped.start(),
            WgpuStaging::Own(own) => Ok(own.start()),
        }
    }

    fn is_kept(&self) -> bool {
        match self {
            WgpuStaging::Mapped(_) => false,
            WgpuStaging::Own(own) => own.is_cached(),
        }
    }

    fn hand_over(&self) {
        if let WgpuStaging::Mapped(mapped) = self {
            mapped.hand_over();
        }
    }

    fn call_back(&self) {
        if let WgpuStaging::Mapped(mapped) = self {
            mapped.call_back();
        }
    }

    fn is_back(&self) -> bool {
        match self {
            WgpuStaging::Mapped(mapped) => mapped.is_back(),
            // The caller knows that the submission has ended.
            WgpuStaging::Own(_) => true,
        }
    }
}

/// The device may use the buffer.
const AWAY: u8 = 0;
/// A mapping was requested.
const ASKED: u8 = 1;
/// The buffer is mapped for the host.
const MAPPED: u8 = 2;
/// The mapping has failed.
const FAILED: u8 = 3;

/// A buffer that wgpu maps.
pub struct MappedBuffer {
    buffer: wgpu::Buffer,
    direction: Direction,
    faults: Arc<Faults>,
    state: Arc<AtomicU8>,
}

impl MappedBuffer {
    pub(crate) fn new(
        device: &wgpu::Device,
        faults: &Arc<Faults>,
        bytes: u64,
        direction: Direction,
    ) -> Result<MappedBuffer> {
        let (usage, state) = match direction {
            Direction::Up => (wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC, MAPPED),
            Direction::Down => (wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST, AWAY),
        };
        let (size, mapped_at_creation) = (bytes.next_multiple_of(16), state == MAPPED);
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation };
        let buffer = checked(device, faults, size, || device.create_buffer(&descriptor))?;
        Ok(MappedBuffer { buffer, direction, faults: Arc::clone(faults), state: Arc::new(AtomicU8::new(state)) })
    }

    /// The first byte. The pointer stays valid until the buffer is unmapped, which only
    /// [`MappedBuffer::hand_over`] does.
    fn start(&self) -> Result<NonNull<u8>> {
        if self.state.load(Ordering::Acquire) != MAPPED {
            return Err(self.faults.lost().unwrap_or_else(|| self.faults.fault("staging memory could not be mapped")));
        }
        let unmapped = |error: wgpu::MapRangeError| self.faults.fault(error.to_string());
        Ok(match self.direction {
            Direction::Up => {
                let mut view = self.buffer.get_mapped_range_mut(..).map_err(unmapped)?;
                view.slice(..).as_raw_ptr().cast()
            }
            Direction::Down => NonNull::from(&*self.buffer.get_mapped_range(..).map_err(unmapped)?).cast(),
        })
    }

    fn hand_over(&self) {
        if matches!(self.state.load(Ordering::Acquire), ASKED | MAPPED) {
            self.buffer.unmap();
        }
        self.state.store(AWAY, Ordering::Release);
    }

    fn call_back(&self) {
        self.state.store(ASKED, Ordering::Release);
        let state = Arc::clone(&self.state);
        let mode = if self.direction == Direction::Up { wgpu::MapMode::Write } else { wgpu::MapMode::Read };
        self.buffer.map_async(mode, .., move |mapped| {
            state.store(if mapped.is_ok() { MAPPED } else { FAILED }, Ordering::Release);
        });
    }

    fn is_back(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), MAPPED | FAILED)
    }
}

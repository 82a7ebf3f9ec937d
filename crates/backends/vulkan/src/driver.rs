//! Vulkan as a driver of the engine: the objects of one opened device, and the progress of its
//! submissions.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::{Error, HostBuffer, MemoryUse, Result};
use panoply_kernels::cache::Cache;
use panoply_wgsl_gpu::Driver;
use panoply_wgsl_gpu::driver::{BoundRange, Direction, Fence, KernelText, Transfers};
use panoply_wgsl_gpu::fault::Faults;

use crate::bindings::{Stretch, VulkanBindings};
use crate::buffer::{BufferRequest, OWN, VulkanBuffer, import_host, make};
use crate::commands::VulkanCommands;
use crate::fences::Fences;
use crate::gpu::{Gpu, LaneValues};
use crate::pipelines::{Pipelines, VulkanPipeline};
use crate::quirks::TransferWays;
use crate::staging::VulkanStaging;

/// The longest time that a dropped engine waits for its work.
const LAST_WAIT_MAX: Duration = Duration::from_secs(5);
/// The longest wait for memory that work in flight still uses, when an allocation fails.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(1);
/// Tensors of at least this size are read in place, if the device can: for smaller tensors, the
/// import takes longer than the copy.
const IN_PLACE_BYTES_MIN: usize = 256 << 10;

/// One opened device.
pub struct VulkanDriver {
    /// Declared before the device, which it needs to save its kernels when dropped.
    pipelines: Pipelines,
    pub(crate) gpu: Arc<Gpu>,
    fences: Rc<Fences>,
    ways: TransferWays,
}

impl VulkanDriver {
    pub(crate) fn new(gpu: Gpu, disk: Option<Arc<Cache>>, ways: TransferWays) -> VulkanDriver {
        let gpu = Arc::new(gpu);
        VulkanDriver { pipelines: Pipelines::new(&gpu, disk), gpu, fences: Rc::default(), ways }
    }

    /// Device-local memory, or memory of any kind if the device has none.
    fn own_memory(&self, bytes: u64) -> Result<VulkanBuffer> {
        let anywhere = BufferRequest { with: Default::default(), ..OWN };
        for wanted in [OWN, anywhere] {
            if let Some(made) = make(&self.gpu, bytes, wanted)? {
                return Ok(VulkanBuffer(made.bytes));
            }
        }
        Err(self.gpu.faults.fault("the device has no memory for buffers, which Vulkan promises"))
    }
}

impl Driver for VulkanDriver {
    type Buffer = VulkanBuffer;
    type Pipeline = VulkanPipeline;
    type Bindings = VulkanBindings;
    type Staging = VulkanStaging;
    type Commands = VulkanCommands;

    fn faults(&self) -> &Arc<Faults> {
        &self.gpu.faults
    }

    fn transfers(&self) -> Transfers {
        self.ways.transfers
    }

    fn buffer(&self, bytes: u64) -> Result<VulkanBuffer> {
        match self.own_memory(bytes) {
            Err(Error::OutOfMemory { .. }) => {
                // Freed memory may still be used by work in flight.
                let submitted = self.gpu.submitted();
                self.gpu.wait(submitted, MEMORY_WAIT_MAX);
                self.own_memory(bytes)
            }
            other => other,
        }
    }

    fn memory(&self) -> Option<MemoryUse> {
        self.gpu.memory_use()
    }

    fn in_place(&self, host: &HostBuffer, bytes: &[u8]) -> Option<(VulkanBuffer, u64)> {
        let suits = self.ways.in_place && self.gpu.adapter().has.is_unified && bytes.len() >= IN_PLACE_BYTES_MIN;
        let (buffer, offset) = suits.then(|| import_host(&self.gpu, host, bytes)).flatten()?;
        Some((VulkanBuffer(buffer), offset))
    }

    fn pipeline(&self, kernel: &KernelText<'_>) -> Result<VulkanPipeline> {
        self.pipelines.compile(kernel)
    }

    fn bindings(&self, pipeline: &VulkanPipeline, bound: &[BoundRange<'_, VulkanDriver>]) -> VulkanBindings {
        let stretches: Vec<Stretch<'_>> = bound
            .iter()
            .map(|BoundRange { buffer, offset, bytes }| Stretch {
                bytes: &buffer.0,
                offset: *offset,
                len_bytes: *bytes,
            })
            .collect();
        let made = VulkanBindings::new(&self.gpu, pipeline.layout.set, pipeline.writes, &stretches);
        made.unwrap_or_else(|error| {
            self.gpu.faults.report(self.gpu.error("bindings", error));
            VulkanBindings::none(&self.gpu)
        })
    }

    fn staging(&self, bytes: u64, direction: Direction) -> Result<VulkanStaging> {
        let memory = match direction {
            Direction::Up => self.ways.up,
            Direction::Down => self.ways.down,
        };
        VulkanStaging::new(&self.gpu, bytes, direction, memory)
    }

    fn commands(&self) -> VulkanCommands {
        VulkanCommands::new(&self.gpu, &self.fences)
    }

    fn is_past(&self, fence: Fence) -> bool {
        self.fences.stamp(fence).is_none_or(|stamp| self.gpu.is_past(stamp))
    }

    fn look(&self) {
        self.gpu.look();
        self.fences.forget_past(&self.gpu);
    }

    fn wait(&self, fence: Fence, wait_max: Duration) {
        match self.fences.stamp(fence) {
            Some(stamp) if stamp != LaneValues::default() => self.gpu.wait(stamp, wait_max),
            _ => self.gpu.look(),
        }
        self.fences.forget_past(&self.gpu);
    }
}

impl Drop for VulkanDriver {
    fn drop(&mut self) {
        self.gpu.abandon(LAST_WAIT_MAX);
    }
}

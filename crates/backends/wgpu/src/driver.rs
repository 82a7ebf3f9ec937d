//! wgpu as a driver of the engine: buffers, pipelines, bind groups, and the progress of the queue.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use panoply_core::{HostBuffer, MemoryUse, Result};
use panoply_kernels::cache::Cache;
use panoply_wgsl_gpu::Driver;
use panoply_wgsl_gpu::driver::{BoundRange, Direction, Fence, KernelText, Transfers};
use panoply_wgsl_gpu::fault::Faults;

use crate::commands::WgpuCommands;
use crate::fault::checked;
use crate::host_memory::HostMemory;
use crate::quirks::{Memory, Sharing, TransferWays};
use crate::staging::{MappedBuffer, WgpuStaging};
use crate::vulkan;

/// Smaller staging memory is always wgpu's own, which wgpu cuts from larger pieces.
const OWN_BYTES_MIN: u64 = 256 << 10;
/// Smaller tensors are always copied: a buffer of their own costs more.
const SHARED_BYTES_MIN: usize = 256 << 10;

/// One opened adapter.
pub struct WgpuDriver {
    pub(crate) device: wgpu::Device,
    queue: wgpu::Queue,
    faults: Arc<Faults>,
    params: wgpu::BindGroupLayout,
    /// The layouts by shape, and by whether the dispatch carries the parameters.
    layouts: RefCell<HashMap<(Shape, bool), (wgpu::BindGroupLayout, wgpu::PipelineLayout)>>,
    immediate_words_max: usize,
    fences: Rc<Fences>,
    disk: Option<Disk>,
    /// Host memory that we choose through Vulkan; `None` with other APIs.
    host: Option<HostMemory>,
    has_memory_budget: bool,
    ways: TransferWays,
    is_integrated: bool,
}

/// Numbers of buffers that a kernel writes and reads.
type Shape = (usize, usize);

/// A compiled kernel, and the layout of its bindings.
pub struct WgpuPipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    storage: wgpu::BindGroupLayout,
}

/// The driver's own cache of compiled kernels, kept between runs.
struct Disk {
    compiled: wgpu::PipelineCache,
    cache: Arc<Cache>,
    key: String,
    is_stale: Cell<bool>,
}

/// The parts of a driver.
pub(crate) struct DriverParts {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) faults: Arc<Faults>,
    pub(crate) immediate_words_max: usize,
    /// The store of compiled kernels between runs, and the key in it.
    pub(crate) cache: Option<(Arc<Cache>, String)>,
    /// Whether Vulkan reports how much memory is free.
    pub(crate) has_memory_budget: bool,
    pub(crate) ways: TransferWays,
    /// Whether the adapter has no memory of its own.
    pub(crate) is_integrated: bool,
}

impl WgpuDriver {
    pub(crate) fn new(parts: DriverParts) -> WgpuDriver {
        let DriverParts { device, queue, faults, immediate_words_max, cache, has_memory_budget, ways, is_integrated } =
            parts;
        let uniform = wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Uniform,
            has_dynamic_offset: true,
            min_binding_size: None,
        };
        let params = device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &[entry(0, uniform)] });
        let disk = cache.and_then(|(cache, key)| open_cache(&device, cache, key));
        let host = HostMemory::open(&device);
        let (layouts, fences) = (RefCell::default(), Rc::default());
        WgpuDriver {
            device,
            queue,
            faults,
            params,
            layouts,
            immediate_words_max,
            fences,
            disk,
            host,
            has_memory_budget,
            ways,
            is_integrated,
        }
    }

    fn layout(&self, shape: Shape, immediate: bool) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let (device, params) = (&self.device, Some(&self.params).filter(|_| !immediate));
        let immediate_size = if immediate { 4 * self.immediate_words_max as u32 } else { 0 };
        let mut layouts = self.layouts.borrow_mut();
        let made = layouts.entry((shape, immediate)).or_insert_with(|| {
            let entries: Vec<_> = (0..shape.0 + shape.1)
                .map(|place| {
                    let ty = wgpu::BufferBindingType::Storage { read_only: place >= shape.0 };
                    let binding = wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
                    entry(place as u32, binding)
                })
                .collect();
            let storage =
                device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[params, Some(&storage)],
                immediate_size,
            });
            (storage, layout)
        });
        made.clone()
    }
}

impl WgpuDriver {
    /// A buffer that kernels read, filled by the host. `None` if the adapter does not map such
    /// buffers, or has no memory for it.
    fn mapped(&self, bytes: &[u8]) -> Option<wgpu::Buffer> {
        if !self.device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS) {
            return None;
        }
        let size = (bytes.len() as u64).next_multiple_of(16);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::MAP_WRITE;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: true };
        let buffer = checked(&self.device, &self.faults, size, || self.device.create_buffer(&descriptor)).ok()?;
        let mut view = buffer.get_mapped_range_mut(..).ok()?;
        view.slice(..bytes.len()).copy_from_slice(bytes);
        drop(view);
        buffer.unmap();
        Some(buffer)
    }
}

impl Driver for WgpuDriver {
    type Buffer = wgpu::Buffer;
    type Pipeline = WgpuPipeline;
    type Bindings = wgpu::BindGroup;
    type Staging = WgpuStaging;
    type Commands = WgpuCommands;

    fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    fn transfers(&self) -> Transfers {
        self.ways.transfers
    }

    fn buffer(&self, bytes: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        checked(&self.device, &self.faults, bytes, || self.device.create_buffer(&descriptor))
    }

    fn memory(&self) -> Option<MemoryUse> {
        self.has_memory_budget.then(|| vulkan::memory(&self.device)).flatten()
    }

    fn in_place(&self, host: &HostBuffer, bytes: &[u8]) -> Option<(wgpu::Buffer, u64)> {
        if !self.is_integrated || bytes.len() < SHARED_BYTES_MIN {
            return None;
        }
        match (self.ways.sharing, &self.host) {
            (Sharing::Copied, _) => None,
            (Sharing::InPlace, Some(memory)) => memory.import(&self.device, host, bytes),
            (Sharing::Mapped, _) | (Sharing::InPlace, None) => self.mapped(bytes).map(|buffer| (buffer, 0)),
        }
    }

    fn pipeline(&self, kernel: &KernelText<'_>) -> Result<WgpuPipeline> {
        if kernel.wide.is_some() {
            return Err(self.faults.fault("wgpu has no matrices but those of the text"));
        }
        let (storage, layout) = self.layout(kernel.shape, kernel.immediates.is_some());
        let (device, cache) = (&self.device, self.disk.as_ref().map(|disk| &disk.compiled));
        let pipeline = checked(device, &self.faults, 0, || {
            let source = wgpu::ShaderSource::Wgsl(kernel.source.into());
            let descriptor = wgpu::ShaderModuleDescriptor { label: None, source };
            let module = if kernel.checked {
                device.create_shader_module(descriptor)
            } else {
                // SAFETY: kernels keep their indices inside their buffers, never divide by zero,
                // and end all their loops for all data (rule 6 of `panoply_kernels::wgsl`); sizes
                // are checked before the recording.
                unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
            };
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&layout),
                module: &module,
                entry_point: Some(kernel.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &[],
                    zero_initialize_workgroup_memory: kernel.checked,
                },
                cache,
            })
        })?;
        if let Some(disk) = &self.disk {
            disk.is_stale.set(true);
        }
        Ok(WgpuPipeline { pipeline, storage })
    }

    fn bindings(&self, pipeline: &WgpuPipeline, bound: &[BoundRange<'_, WgpuDriver>]) -> wgpu::BindGroup {
        let entries: Vec<wgpu::BindGroupEntry<'_>> = bound
            .iter()
            .zip(0..)
            .map(|(BoundRange { buffer, offset, bytes }, binding)| {
                let size = wgpu::BufferSize::new(*bytes);
                let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: *offset, size });
                wgpu::BindGroupEntry { binding, resource }
            })
            .collect();
        let layout = &pipeline.storage;
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }

    fn staging(&self, bytes: u64, direction: Direction) -> Result<WgpuStaging> {
        let memory = match direction {
            Direction::Up => self.ways.up,
            Direction::Down => self.ways.down,
        };
        if memory != Memory::Mapped
            && bytes >= OWN_BYTES_MIN
            && let Some(host) = &self.host
            && let Some(staging) = host.staging(&self.device, bytes, memory, direction)
        {
            return Ok(WgpuStaging::Own(staging));
        }
        // If that kind of memory is not available, wgpu's own is used.
        MappedBuffer::new(&self.device, &self.faults, bytes, direction).map(WgpuStaging::Mapped)
    }

    fn commands(&self) -> WgpuCommands {
        WgpuCommands::new(&self.device, &self.queue, &self.params, &self.fences)
    }

    fn is_past(&self, fence: Fence) -> bool {
        self.fences.is_past(fence)
    }

    fn look(&self) {
        // The callback reports a lost device.
        let _ = self.device.poll(wgpu::PollType::Poll);
        self.fences.forget_past();
    }

    fn wait(&self, fence: Fence, wait_max: Duration) {
        let Some(index) = self.fences.index(fence) else { return self.look() };
        // A timeout is reported as an error, which is ignored here.
        let _ = self.device.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(wait_max) });
        self.fences.forget_past();
    }
}

impl Drop for WgpuDriver {
    /// Writes newly compiled kernels to disk. A failure only costs time at the next start.
    fn drop(&mut self) {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.is_stale.get()) else { return };
        if self.faults.lost().is_none()
            && let Some(data) = disk.compiled.get_data()
        {
            disk.cache.write(disk.key.as_bytes(), &data);
        }
    }
}

/// Tracks which submissions have ended.
#[derive(Default)]
pub(crate) struct Fences {
    /// Number of the last submission that has ended, as reported by the callback.
    past: Arc<AtomicU64>,
    last: Cell<u64>,
    /// The submissions that may be waited for.
    under_way: RefCell<VecDeque<(Fence, wgpu::SubmissionIndex)>>,
}

impl Fences {
    /// Adds a submission that was just made.
    pub(crate) fn submitted(&self, queue: &wgpu::Queue, index: wgpu::SubmissionIndex) -> Fence {
        let number = self.last.get() + 1;
        self.last.set(number);
        let past = Arc::clone(&self.past);
        queue.on_submitted_work_done(move || {
            past.fetch_max(number, Ordering::Release);
        });
        self.under_way.borrow_mut().push_back((Fence(number), index));
        Fence(number)
    }

    fn is_past(&self, Fence(number): Fence) -> bool {
        self.past.load(Ordering::Acquire) >= number
    }

    fn index(&self, fence: Fence) -> Option<wgpu::SubmissionIndex> {
        self.under_way.borrow().iter().find(|(own, _)| *own == fence).map(|(_, index)| index.clone())
    }

    fn forget_past(&self) {
        let mut under_way = self.under_way.borrow_mut();
        while under_way.front().is_some_and(|(fence, _)| self.is_past(*fence)) {
            under_way.pop_front();
        }
    }
}

fn open_cache(device: &wgpu::Device, cache: Arc<Cache>, key: String) -> Option<Disk> {
    if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return None;
    }
    let data = cache.read(key.as_bytes());
    // SAFETY: the data is the output of `get_data` for this adapter and driver, whose names are
    // part of the key. It comes from a folder that no other user can write to, and is complete, as
    // its checksum says. The driver checks its own header, and with `fallback` any other data is
    // replaced by an empty cache.
    let compiled = unsafe {
        device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
            label: None,
            data: data.as_deref(),
            fallback: true,
        })
    };
    Some(Disk { compiled, cache, key, is_stale: Cell::new(false) })
}

fn entry(binding: u32, ty: wgpu::BindingType) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry { binding, visibility: wgpu::ShaderStages::COMPUTE, ty, count: None }
}

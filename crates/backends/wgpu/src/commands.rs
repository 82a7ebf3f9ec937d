//! Records commands with wgpu: one encoder, and all dispatches in one pass as long as no copy comes
//! between them.

use std::rc::Rc;

use panoply_wgsl_gpu::driver::{BufferOffset, Fence, Params, STAMPS_BYTES_MAX, TIMED_PASSES_MAX};
use panoply_wgsl_gpu::{Commands, PARAMS_BYTES, PARAMS_BYTES_MAX};

use crate::driver::{Fences, WgpuDriver, WgpuPipeline};
use crate::staging::WgpuStaging;

/// Number of parameter buffers. Submissions take turns with them, so that a submission need not
/// wait for the one before.
const PARAMS_BUFFERS: usize = 4;
/// Size of one time stamp.
const STAMP_BYTES: u64 = 8;

/// Commands under construction.
pub struct WgpuCommands {
    device: wgpu::Device,
    queue: wgpu::Queue,
    fences: Rc<Fences>,
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    /// The pipeline that the pass has set.
    last_pipeline: Option<wgpu::ComputePipeline>,
    params: Vec<(wgpu::Buffer, wgpu::BindGroup)>,
    turn: usize,
    /// Buffers in memory of our own that the device writes. The host sees the bytes after a
    /// transition of these buffers.
    written: Vec<wgpu::Buffer>,
    /// One timer for each turn; empty if the device has no time stamps.
    timers: Vec<Timer>,
    /// Number of passes timed so far, while a submission is timed.
    timed_passes: Option<u32>,
}

/// The time stamps of one submission, and the buffer that they are resolved into.
struct Timer {
    stamps: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

impl WgpuCommands {
    pub(crate) fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        params: &wgpu::BindGroupLayout,
        fences: &Rc<Fences>,
    ) -> WgpuCommands {
        WgpuCommands {
            device: device.clone(),
            queue: queue.clone(),
            fences: Rc::clone(fences),
            encoder: None,
            pass: None,
            last_pipeline: None,
            params: (0..PARAMS_BUFFERS).map(|_| params_buffer(device, params)).collect(),
            turn: 0,
            written: Vec::new(),
            timers: timers(device),
            timed_passes: None,
        }
    }

    /// The encoder, for copies. Ends the pass.
    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let device = &self.device;
        self.encoder.get_or_insert_with(|| new_encoder(device))
    }

    fn begin_pass(&mut self) {
        let stamps = match &mut self.timed_passes {
            Some(passes) if *passes < TIMED_PASSES_MAX => {
                *passes += 1;
                Some((self.timers[self.turn].stamps.clone(), 2 * (*passes - 1)))
            }
            _ => None,
        };
        let timestamp_writes = stamps.as_ref().map(|(query_set, first)| wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(*first),
            end_of_pass_write_index: Some(*first + 1),
        });
        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
        self.last_pipeline = None;
        self.pass = Some(self.encoder().begin_compute_pass(&descriptor).forget_lifetime());
    }
}

impl Commands<WgpuDriver> for WgpuCommands {
    fn dispatch(&mut self, pipeline: &WgpuPipeline, group: &wgpu::BindGroup, params: Params<'_>, groups: [u32; 3]) {
        if self.pass.is_none() {
            self.begin_pass();
        }
        let Some(pass) = &mut self.pass else { return };
        if self.last_pipeline.as_ref() != Some(&pipeline.pipeline) {
            pass.set_pipeline(&pipeline.pipeline);
            self.last_pipeline = Some(pipeline.pipeline.clone());
        }
        match params {
            Params::Words(words) => pass.set_immediates(0, bytemuck::cast_slice(words)),
            Params::At(offset) => pass.set_bind_group(0, &self.params[self.turn].1, &[offset]),
        }
        pass.set_bind_group(1, group, &[]);
        let [x, y, z] = groups;
        pass.dispatch_workgroups(x, y, z);
    }

    fn copy(&mut self, from: BufferOffset<'_, wgpu::Buffer>, to: BufferOffset<'_, wgpu::Buffer>, bytes: u64) {
        self.encoder().copy_buffer_to_buffer(from.buffer, from.offset, to.buffer, to.offset, bytes);
    }

    fn clear(&mut self, target: BufferOffset<'_, wgpu::Buffer>, bytes: u64) {
        self.encoder().clear_buffer(target.buffer, target.offset, Some(bytes));
    }

    fn upload(&mut self, from: BufferOffset<'_, WgpuStaging>, to: BufferOffset<'_, wgpu::Buffer>, bytes: u64) {
        self.encoder().copy_buffer_to_buffer(from.buffer.buffer(), from.offset, to.buffer, to.offset, bytes);
    }

    fn download(&mut self, from: BufferOffset<'_, wgpu::Buffer>, to: BufferOffset<'_, WgpuStaging>, bytes: u64) {
        self.encoder().copy_buffer_to_buffer(from.buffer, from.offset, to.buffer.buffer(), to.offset, bytes);
        if let WgpuStaging::Own(staging) = to.buffer {
            self.written.push(staging.buffer().clone());
        }
    }

    fn start_timing(&mut self) -> bool {
        self.timed_passes = (!self.timers.is_empty()).then_some(0);
        self.timed_passes.is_some()
    }

    fn end_timing(&mut self, to: &WgpuStaging) -> Option<usize> {
        self.pass = None;
        let passes = self.timed_passes.take().filter(|passes| *passes > 0)?;
        let timer = &self.timers[self.turn];
        let encoder = self.encoder.as_mut()?;
        encoder.resolve_query_set(&timer.stamps, 0..2 * passes, &timer.resolved, 0);
        let bytes = 2 * u64::from(passes) * STAMP_BYTES;
        encoder.copy_buffer_to_buffer(&timer.resolved, 0, to.buffer(), 0, bytes);
        Some(bytes as usize)
    }

    fn stamp_nanoseconds(&self) -> f64 {
        f64::from(self.queue.get_timestamp_period())
    }

    /// Copies the parameters with a command buffer of its own. `write_buffer` would make a buffer
    /// for the parameters of each submission. If staging memory fills all blocks of host memory,
    /// each such buffer takes a new block from the driver: 4 ms on an H200.
    fn submit(&mut self, params: Option<(BufferOffset<'_, WgpuStaging>, u64)>) -> Fence {
        self.timed_passes = None;
        let written = std::mem::take(&mut self.written);
        let encoder = self.encoder();
        if !written.is_empty() {
            let state = wgpu::BufferUses::MAP_READ;
            let handed_back = written.iter().map(|buffer| wgpu::BufferTransition { buffer, state });
            encoder.transition_resources(handed_back, std::iter::empty());
        }
        let before = params.map(|(from, bytes)| {
            let mut encoder = new_encoder(&self.device);
            let target = &self.params[self.turn].0;
            encoder.copy_buffer_to_buffer(from.buffer.buffer(), from.offset, target, 0, bytes.next_multiple_of(4));
            encoder
        });
        self.turn = (self.turn + 1) % PARAMS_BUFFERS;
        let recorded = before.into_iter().chain(self.encoder.take());
        let index = self.queue.submit(recorded.map(wgpu::CommandEncoder::finish));
        self.fences.submitted(&self.queue, index)
    }

    fn discard(&mut self) {
        self.pass = None;
        self.encoder = None;
        self.timed_passes = None;
        self.written.clear();
    }
}

fn new_encoder(device: &wgpu::Device) -> wgpu::CommandEncoder {
    device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None })
}

fn timers(device: &wgpu::Device) -> Vec<Timer> {
    if !device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
        return Vec::new();
    }
    let make = || Timer {
        stamps: device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: 2 * TIMED_PASSES_MAX,
        }),
        resolved: device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: STAMPS_BYTES_MAX,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        }),
    };
    std::iter::repeat_with(make).take(PARAMS_BUFFERS).collect()
}

fn params_buffer(device: &wgpu::Device, layout: &wgpu::BindGroupLayout) -> (wgpu::Buffer, wgpu::BindGroup) {
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: PARAMS_BYTES_MAX as u64 + PARAMS_BYTES,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let binding = wgpu::BufferBinding { buffer: &buffer, offset: 0, size: wgpu::BufferSize::new(PARAMS_BYTES) };
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout,
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(binding) }],
    });
    (buffer, group)
}

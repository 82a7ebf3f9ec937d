//! From dispatches to command buffers.
//!
//! All ops of a batch go into one command buffer, and all their dispatches into one pass as long as no copy comes between.
//! Parameters come with each dispatch where they are few and the device can; else they are gathered on the host and written
//! once per submission, and a dispatch names its own by an offset. Bind
//! groups are cached by the blocks that they bind, which a warm pool gives out again and again.
//!
//! Small maps that follow each other become one dispatch: they wait in a [`Group`] until it can take no more, or anything
//! else is recorded. Whatever asks for the encoder or a pass gets them recorded first.

use hashbrown::HashMap;
use panoply_core::{Error, Result};

use crate::arena::Arena;
use crate::joined::{Group, Waiting};
use crate::operand::Operand;
use crate::pipelines::{Pipeline, Pipelines};
use crate::staging::Belt;

/// Bytes that a kernel may take its parameters from.
const PARAMS_BYTES: u64 = 4096;
/// Bytes of parameters in one submission; when they are used up the commands so far are submitted.
const PARAMS_BYTES_MAX: usize = 1 << 20;
/// Submissions that take turns with buffers of parameters, so that one need not wait for the other.
const PARAMS_BUFFERS: usize = 4;
/// The most bind groups that are kept. They keep their blocks alive, so there is a bound.
const BIND_GROUPS_MAX: usize = 16_384;
/// The most passes of a submission that are timed.
const TIMED_PASSES_MAX: u32 = 32;
/// Bytes of one time stamp.
const STAMP_BYTES: u64 = 8;
/// The most workgroups along one dimension, on every adapter.
const GROUPS_MAX: u64 = 65_535;

/// How many blocks are written, then every bound buffer with the start of the window in it.
type BindKey = Vec<(u64, usize)>;

/// Commands under construction.
pub(crate) struct Recorder {
    device: wgpu::Device,
    queue: wgpu::Queue,
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    params: Vec<u8>,
    params_step: usize,
    params_buffers: Vec<(wgpu::Buffer, wgpu::BindGroup)>,
    turn: usize,
    groups: HashMap<BindKey, wgpu::BindGroup>,
    /// The key of the last dispatch's bind group, whose memory the next one uses.
    key: BindKey,
    /// Maps that wait.
    waiting: Group,
    /// The arena that they lie in, bound as a whole.
    arena: Option<(u64, wgpu::BindGroup)>,
    /// The pipeline that the pass has set.
    last_pipeline: Option<wgpu::ComputePipeline>,
    /// Dispatches so far.
    #[cfg(test)]
    pub(crate) dispatches: usize,
    binding_bytes_max: u64,
    /// One for each turn; none where the device has no time stamps.
    timers: Vec<Timer>,
    /// Passes timed so far, while a submission is timed.
    timed_passes: Option<u32>,
}

/// Time stamps of one submission, and where they are put together.
struct Timer {
    stamps: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

impl Recorder {
    pub(crate) fn new(device: &wgpu::Device, queue: &wgpu::Queue, pipelines: &Pipelines) -> Recorder {
        let limits = device.limits();
        let params_buffers = (0..PARAMS_BUFFERS).map(|_| params_buffer(device, pipelines.params_layout())).collect();
        Recorder {
            device: device.clone(),
            queue: queue.clone(),
            encoder: None,
            pass: None,
            params: Vec::new(),
            params_step: limits.min_uniform_buffer_offset_alignment.max(16) as usize,
            params_buffers,
            turn: 0,
            groups: HashMap::new(),
            key: BindKey::new(),
            waiting: Group::new(),
            arena: None,
            last_pipeline: None,
            #[cfg(test)]
            dispatches: 0,
            binding_bytes_max: limits.max_storage_buffer_binding_size,
            timers: timers(device),
            timed_passes: None,
        }
    }

    /// Times the passes of this submission, where the device can.
    pub(crate) fn start_timing(&mut self) {
        self.timed_passes = (!self.timers.is_empty()).then_some(0);
    }

    /// Ends the timing: records how stamps are put together, and gives the buffer with two of them for each pass.
    pub(crate) fn end_timing(&mut self) -> Option<(wgpu::Buffer, usize)> {
        self.flush();
        self.pass = None;
        let passes = self.timed_passes.take().filter(|passes| *passes > 0)?;
        let timer = &self.timers[self.turn];
        let encoder = self.encoder.as_mut()?;
        encoder.resolve_query_set(&timer.stamps, 0..2 * passes, &timer.resolved, 0);
        Some((timer.resolved.clone(), 2 * passes as usize * STAMP_BYTES as usize))
    }

    /// Whether the next dispatch has no room for its parameters behind those that wait: submit first.
    pub(crate) fn is_full(&self) -> bool {
        let coming = if self.waiting.is_empty() { 1 } else { 2 };
        self.params.len() + coming * PARAMS_BYTES as usize > PARAMS_BYTES_MAX
    }

    /// Lets a map wait for others, behind those that must come before it.
    pub(crate) fn join(&mut self, arena: &Arena, map: &Waiting<'_>) {
        if self.arena.as_ref().is_none_or(|(bound, _)| *bound != arena.id) {
            // Those that wait lie in the one that was bound.
            self.flush();
            let entire = wgpu::BindGroupEntry { binding: 0, resource: arena.buffer.as_entire_binding() };
            self.arena = Some((arena.id, self.bind_group(map.kernel.pipeline(0), &[entire])));
        }
        if !self.waiting.takes(map, map.kernel.words_max()) {
            self.flush();
        }
        self.waiting.push(map);
    }

    /// Records the maps that wait.
    fn flush(&mut self) {
        let Some((kernel, mut params, groups)) = self.waiting.end() else { return };
        let pipeline = kernel.pipeline(params.len());
        // The API wants all words that come with a dispatch to be given.
        params.resize(pipeline.immediates.unwrap_or(0).max(params.len()), 0);
        if let Some((_, arena)) = self.arena.clone() {
            self.record(pipeline, &arena, &params, (groups as u32, 1));
        }
        self.waiting.reuse(params);
    }

    /// The encoder, for copies. Ends the pass.
    pub(crate) fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.flush();
        self.pass = None;
        let device = &self.device;
        self.encoder
            .get_or_insert_with(|| device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None }))
    }

    /// Records a dispatch over so many workgroups.
    pub(crate) fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        writes: &[&Operand],
        reads: &[&Operand],
        params: &[u32],
        groups: u64,
    ) -> Result<()> {
        self.flush();
        let size = folded(groups)?;
        self.key.clear();
        self.key.push((writes.len() as u64, 0));
        let bound = |operand: &&Operand| (operand.block().buffer_id(), operand.window_in_buffer());
        self.key.extend(writes.iter().chain(reads).map(bound));
        let group = match self.groups.get(&self.key) {
            Some(group) => group.clone(),
            None => {
                let made = self.bind(pipeline, writes.iter().chain(reads).copied());
                if self.groups.len() >= BIND_GROUPS_MAX {
                    self.groups.clear();
                }
                self.groups.insert(self.key.clone(), made.clone());
                made
            }
        };
        self.record(pipeline, &group, params, size);
        Ok(())
    }

    /// Records a dispatch behind those that wait.
    fn record(&mut self, pipeline: &Pipeline, group: &wgpu::BindGroup, params: &[u32], (x, y): (u32, u32)) {
        let offset = self.params.len();
        if pipeline.immediates.is_none() {
            self.params.extend_from_slice(bytemuck::cast_slice(params));
            self.params.resize(self.params.len().next_multiple_of(self.params_step), 0);
        }
        if self.pass.is_none() {
            self.begin_pass();
        }
        let Some(pass) = &mut self.pass else { return };
        if self.last_pipeline.as_ref() != Some(&pipeline.pipeline) {
            pass.set_pipeline(&pipeline.pipeline);
            self.last_pipeline = Some(pipeline.pipeline.clone());
        }
        match pipeline.immediates {
            Some(words) => pass.set_immediates(0, bytemuck::cast_slice(&params[..words.min(params.len())])),
            None => pass.set_bind_group(0, &self.params_buffers[self.turn].1, &[offset as u32]),
        }
        pass.set_bind_group(1, group, &[]);
        pass.dispatch_workgroups(x, y, 1);
        #[cfg(test)]
        {
            self.dispatches += 1;
        }
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

    /// Forgets cached bind groups, and with them the last hold on blocks that the pool has freed.
    pub(crate) fn forget_groups(&mut self) {
        self.flush();
        self.groups.clear();
        self.arena = None;
    }

    /// The commands that bring the parameters to the device.
    ///
    /// (`write_buffer` would make a buffer for each submission. Where the belt's chunks fill all blocks of host memory that
    /// there are, that takes a block of its own from the driver each time: 4 ms on an H200.)
    fn params_upload(&mut self, belt: &mut Belt) -> Option<wgpu::CommandEncoder> {
        if self.params.is_empty() {
            return None;
        }
        let target = &self.params_buffers[self.turn].0;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None });
        let uploaded = belt.upload(&mut encoder, target, 0, &self.params);
        if uploaded.is_err() {
            self.queue.write_buffer(target, 0, &self.params);
        }
        self.params.clear();
        uploaded.is_ok().then_some(encoder)
    }

    /// Hands everything recorded to the queue, behind the upload of the parameters, and sends the belt's chunks on their
    /// way back. Nothing where nothing was recorded.
    pub(crate) fn submit(&mut self, belt: &mut Belt) -> Option<wgpu::SubmissionIndex> {
        self.flush();
        self.pass = None;
        self.timed_passes = None;
        let encoder = self.encoder.take()?;
        let params = self.params_upload(belt);
        let closed = belt.close();
        self.turn = (self.turn + 1) % PARAMS_BUFFERS;
        let index = self.queue.submit(params.into_iter().chain([encoder]).map(wgpu::CommandEncoder::finish));
        belt.recall(closed);
        Some(index)
    }

    fn bind<'a>(&self, pipeline: &Pipeline, operands: impl Iterator<Item = &'a Operand>) -> wgpu::BindGroup {
        let entries: Vec<wgpu::BindGroupEntry<'_>> = operands
            .zip(0..)
            .map(|(operand, binding)| {
                let (buffer, offset) = (operand.block().buffer(), operand.window_in_buffer() as u64);
                let size = (operand.block().size() - operand.window as u64).min(self.binding_bytes_max & !15);
                let size = wgpu::BufferSize::new(size);
                let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
                wgpu::BindGroupEntry { binding, resource }
            })
            .collect();
        self.bind_group(pipeline, &entries)
    }

    fn bind_group(&self, pipeline: &Pipeline, entries: &[wgpu::BindGroupEntry<'_>]) -> wgpu::BindGroup {
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &pipeline.storage, entries })
    }
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
            size: 2 * u64::from(TIMED_PASSES_MAX) * STAMP_BYTES,
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

/// Workgroups in two dimensions, none beyond what adapters allow. Kernels count them along one line.
fn folded(groups: u64) -> Result<(u32, u32)> {
    if groups <= GROUPS_MAX {
        return Ok((groups as u32, 1));
    }
    let rows = groups.div_ceil(GROUPS_MAX);
    if rows > GROUPS_MAX {
        let expected = format!("at most {} workgroups", GROUPS_MAX * GROUPS_MAX);
        return Err(Error::invalid("the size of the op", expected, groups));
    }
    Ok((groups.div_ceil(rows) as u32, rows as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workgroups_are_folded() {
        for groups in [1, 65_535, 65_536, 100_000, 1 << 30] {
            let (x, y) = folded(groups).unwrap();
            assert!(u64::from(x) * u64::from(y) >= groups, "{groups}");
            assert!(u64::from(x) <= GROUPS_MAX && u64::from(y) <= GROUPS_MAX, "{groups}");
            // At most one row of workgroups more than needed.
            assert!(u64::from(x) * u64::from(y) - groups < u64::from(y), "{groups}");
        }
        assert!(folded(1 << 40).is_err());
    }
}

//! Records commands and submits them.
//!
//! 1. Kernels and small copies go into one command buffer (the list), on the lane for kernels, in
//!    the order of the calls. The commands between two barriers form a *stretch*. A buffer
//!    remembers in which stretch it was last written and read. A barrier is recorded before a
//!    command that would touch bytes that the same stretch has written, or write bytes that it has
//!    read.
//! 2. Large copies between host and device go to the lane for copies, if there is one: uploads
//!    before the list, unless the list has used their target already; downloads after it. Before a
//!    command that writes to the source of a pending download, the downloads are recorded in the
//!    list.
//! 3. Lanes wait for each other with their timeline semaphores: an upload waits for the last
//!    kernels that used its target, kernels for the last copy of the buffers that they touch,
//!    downloads for the list. Everything that a lane waits for was submitted before, so no wait
//!    lasts for ever.
//! 4. If commands cannot be recorded or submitted, everything in the submission fails. The barriers
//!    of that submission are then missing, so the next list begins with one.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ash::vk;
use panoply_wgsl_gpu::Commands;
use panoply_wgsl_gpu::driver::{BufferOffset, Fence, Params, TIMED_PASSES_MAX};

use crate::bindings::VulkanBindings;
use crate::buffer::{Bytes, VulkanBuffer};
use crate::driver::VulkanDriver;
use crate::fences::Fences;
use crate::gpu::{Gpu, LaneValues, RetiredObject};
use crate::lists::{Lists, Submission};
use crate::params::{PARAMS_BUFFERS, ParamsBuffers};
use crate::pipelines::VulkanPipeline;
use crate::staging::VulkanStaging;

/// Copies of at least this size go beside the kernels: for smaller copies, waiting for another lane
/// takes longer than the copy.
const BESIDE_BYTES_MIN: u64 = 1 << 20;
/// Size of one time stamp.
const STAMP_BYTES: u64 = 8;
/// The kinds of commands: dispatches, and copies or fills.
const KERNELS: vk::PipelineStageFlags = vk::PipelineStageFlags::COMPUTE_SHADER;
const COPIES: vk::PipelineStageFlags = vk::PipelineStageFlags::TRANSFER;

/// Commands under construction.
pub struct VulkanCommands {
    gpu: Arc<Gpu>,
    fences: Rc<Fences>,
    lists: Lists,
    copy_lists: Option<Lists>,
    /// The command buffer for the lane of kernels, once it is begun.
    list: Option<vk::CommandBuffer>,
    /// Copies for the other lane: before the list, and after it.
    uploads: Vec<Copy>,
    downloads: Vec<Copy>,
    /// The number of the recording under construction, and of its current stretch.
    recording: u64,
    stretch: u64,
    /// The kinds of commands in the current stretch.
    done: vk::PipelineStageFlags,
    /// The value on the lane of copies that the list waits for, and whether it waits for its own
    /// uploads.
    waits_for: u64,
    needs_uploads: bool,
    /// The value on the lane of kernels that the uploads wait for.
    uploads_wait_for: u64,
    /// The value of the other lane that each lane has waited for. Later submissions need not wait
    /// for it again.
    waited: LaneValues,
    /// Barriers were recorded in a list that was never run.
    lacks_barriers: bool,
    bound: (vk::Pipeline, vk::DescriptorSet),
    /// The list writes memory that the host reads.
    writes_host: bool,
    params: Option<ParamsBuffers>,
    turn: usize,
    /// One timer pool for each turn; empty if the device has no time stamps.
    timers: Vec<vk::QueryPool>,
    timing: Option<Timing>,
}

/// A copy that is not recorded yet.
struct Copy {
    from: Arc<Bytes>,
    to: Arc<Bytes>,
    region: vk::BufferCopy,
}

/// The progress of the timing.
#[derive(Clone, Copy, Default)]
struct Timing {
    passes: u32,
    is_open: bool,
}

impl VulkanCommands {
    pub(crate) fn new(gpu: &Arc<Gpu>, fences: &Rc<Fences>) -> VulkanCommands {
        VulkanCommands {
            gpu: Arc::clone(gpu),
            fences: Rc::clone(fences),
            lists: Lists::new(gpu.compute.family),
            copy_lists: gpu.transfer.as_ref().map(|lane| Lists::new(lane.family)),
            list: None,
            uploads: Vec::new(),
            downloads: Vec::new(),
            recording: 1,
            stretch: 1,
            done: KERNELS,
            waits_for: 0,
            needs_uploads: false,
            uploads_wait_for: 0,
            waited: LaneValues::default(),
            lacks_barriers: false,
            bound: Default::default(),
            writes_host: false,
            params: None,
            turn: 0,
            timers: timers(gpu),
            timing: None,
        }
    }

    /// The command buffer, begun if necessary. `None` if it cannot be started; the error is
    /// reported.
    fn list(&mut self) -> Option<vk::CommandBuffer> {
        if self.list.is_none() {
            self.bound = Default::default();
            self.gpu.set_recording(true);
            match self.lists.begin(&self.gpu, &self.gpu.compute) {
                Ok(list) => {
                    self.list = Some(list);
                    if std::mem::take(&mut self.lacks_barriers) {
                        self.end_stretch(list, KERNELS | COPIES);
                    }
                }
                Err(error) => self.gpu.faults.report(self.gpu.error("a list of commands", error)),
            }
        }
        self.list
    }

    /// The value of the kernels' lane after the recording under construction.
    fn value(&self) -> u64 {
        self.gpu.compute.submitted.load(Ordering::Relaxed) + 1
    }

    /// Prepares a command of the list, of this kind, that touches these buffers and writes the
    /// first `writes`.
    fn touch<'a>(
        &mut self,
        list: vk::CommandBuffer,
        kind: vk::PipelineStageFlags,
        touched: impl Iterator<Item = &'a Arc<Bytes>> + Clone,
        writes: usize,
    ) {
        if self.gpu.transfer.is_some() {
            self.heed_copies(touched.clone(), writes);
        }
        let is_late = |(place, bytes): (usize, &Arc<Bytes>)| bytes.touch(self.stretch, place < writes);
        if touched.clone().enumerate().any(is_late) {
            self.end_stretch(list, self.done);
        }
        self.done |= kind;
        let value = self.value();
        for (place, bytes) in touched.enumerate() {
            bytes.note(self.stretch, place < writes);
            bytes.uses.on_compute(value);
        }
    }

    /// Ends the stretch: later commands wait for its commands of these kinds.
    fn end_stretch(&mut self, list: vk::CommandBuffer, done: vk::PipelineStageFlags) {
        barrier(&self.gpu, list, done, KERNELS | COPIES);
        self.stretch += 1;
        self.done = vk::PipelineStageFlags::empty();
    }

    /// Makes the list wait for copies of the buffers that it touches, and records downloads in the
    /// list if a later download would see overwritten bytes.
    fn heed_copies<'a>(&mut self, touched: impl Iterator<Item = &'a Arc<Bytes>> + Clone, writes: usize) {
        let mut written = touched.clone().take(writes);
        if written.any(|bytes| bytes.down.load(Ordering::Relaxed) == self.recording) {
            for copy in std::mem::take(&mut self.downloads) {
                copy.from.down.store(0, Ordering::Relaxed);
                self.copy_in_list(&copy.from, &copy.to, copy.region);
                self.writes_host = true;
            }
        }
        for bytes in touched {
            self.needs_uploads |= bytes.up.load(Ordering::Relaxed) == self.recording;
            self.waits_for = self.waits_for.max(bytes.uses.stamp().transfer);
        }
    }

    fn copy_in_list(&mut self, from: &Arc<Bytes>, to: &Arc<Bytes>, region: vk::BufferCopy) {
        self.end_pass();
        let Some(list) = self.list() else { return };
        self.touch(list, COPIES, [to, from].into_iter(), 1);
        // SAFETY: the list is being recorded; the ranges are inside both buffers, which live until
        // it has run.
        unsafe { self.gpu.raw.cmd_copy_buffer(list, from.raw, to.raw, &[region]) };
    }

    fn begin_pass(&mut self, list: vk::CommandBuffer) {
        let Some(timing) = self.timing.filter(|timing| !timing.is_open && timing.passes < TIMED_PASSES_MAX) else {
            return;
        };
        let timer = self.timers[self.turn];
        // SAFETY: the list is being recorded, and the pool has room for the stamps of every pass;
        // the submission that used the pool before has read its stamps.
        unsafe {
            if timing.passes == 0 {
                barrier(&self.gpu, list, KERNELS | COPIES, KERNELS | COPIES);
                self.gpu.raw.cmd_reset_query_pool(list, timer, 0, 2 * TIMED_PASSES_MAX);
            }
            let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
            self.gpu.raw.cmd_write_timestamp(list, stage, timer, 2 * timing.passes);
        }
        self.timing = Some(Timing { passes: timing.passes + 1, is_open: true });
    }

    fn end_pass(&mut self) {
        let (Some(timing), Some(list)) = (self.timing.filter(|timing| timing.is_open), self.list) else { return };
        let (timer, stage) = (self.timers[self.turn], vk::PipelineStageFlags::BOTTOM_OF_PIPE);
        // SAFETY: as for the first stamp of the pass.
        unsafe { self.gpu.raw.cmd_write_timestamp(list, stage, timer, 2 * timing.passes - 1) };
        self.timing = Some(Timing { is_open: false, ..timing });
    }

    /// Records copies for the lane of copies and submits them; they wait for the value `behind` of
    /// the kernels' lane. Returns the value after them, or 0 if there were none or they could not
    /// be submitted.
    fn submit_copies(&mut self, copies: Vec<Copy>, behind: u64, to_host: bool) -> u64 {
        let gpu = Arc::clone(&self.gpu);
        let (Some(lane), Some(lists), false) = (&gpu.transfer, &mut self.copy_lists, copies.is_empty()) else {
            return 0;
        };
        let value = lane.submitted.load(Ordering::Relaxed) + 1;
        let submitted = lists.begin(&gpu, lane).and_then(|list| {
            if to_host {
                barrier(&gpu, list, COPIES, COPIES);
                copies.iter().for_each(|copy| copy.from.is_downloaded());
            }
            for copy in &copies {
                // The chunks of a large upload follow each other without a barrier.
                if !to_host && copy.to.is_uploaded_again(copy.region.dst_offset, copy.region.size) {
                    barrier(&gpu, list, COPIES, COPIES);
                }
                copy.from.uses.on_transfer(value);
                copy.to.uses.on_transfer(value);
                // SAFETY: as for copies in the list.
                unsafe { gpu.raw.cmd_copy_buffer(list, copy.from.raw, copy.to.raw, &[copy.region]) };
            }
            if to_host {
                barrier_to_host(&gpu, list);
            }
            let behind = behind.min(gpu.compute.submitted.load(Ordering::Relaxed));
            let wait = (behind > self.waited.compute).then_some((gpu.compute.timeline, behind));
            lists.submit(&gpu, lane, Submission { before: None, list, wait, value }).map(|()| behind)
        });
        match submitted {
            Ok(behind) => {
                self.waited.compute = self.waited.compute.max(behind);
                value
            }
            Err(error) => {
                gpu.faults.report(gpu.error("copies", error));
                0
            }
        }
    }

    /// Submits the list. Returns the value after it, or 0 if there was none or it could not be
    /// submitted.
    fn submit_list(&mut self, uploads: u64, params: Option<(BufferOffset<'_, VulkanStaging>, u64)>) -> u64 {
        self.end_pass();
        let Some(list) = self.list.take() else { return 0 };
        let (gpu, value) = (Arc::clone(&self.gpu), self.value());
        if std::mem::take(&mut self.writes_host) {
            barrier_to_host(&gpu, list);
        }
        let before = match (params, &self.params) {
            (Some((from, bytes)), Some(buffers)) => {
                from.buffer.bytes.uses.on_compute(value);
                let to = buffers.buffer(self.turn);
                to.uses.on_compute(value);
                let region = region(from.offset, 0, bytes.next_multiple_of(4));
                Some(self.lists.begin(&gpu, &gpu.compute).inspect(|before| {
                    barrier(&gpu, *before, KERNELS | COPIES, COPIES);
                    // SAFETY: as for copies in the list.
                    unsafe { gpu.raw.cmd_copy_buffer(*before, from.buffer.bytes.raw, to.raw, &[region]) };
                    barrier(&gpu, *before, COPIES, KERNELS);
                }))
            }
            _ => None,
        };
        let copied = gpu.transfer.as_ref().map_or(0, |lane| lane.submitted.load(Ordering::Relaxed));
        let behind = self.waits_for.max(if self.needs_uploads { uploads } else { 0 }).min(copied);
        let lane = gpu.transfer.as_ref().filter(|_| behind > self.waited.transfer);
        let wait = lane.map(|lane| (lane.timeline, behind));
        let submitted = match before.transpose() {
            Ok(before) => self.lists.submit(&gpu, &gpu.compute, Submission { before, list, wait, value }),
            Err(error) => {
                self.lists.discard(&gpu, list);
                Err(error)
            }
        };
        match submitted {
            Ok(()) => {
                self.waited.transfer = self.waited.transfer.max(behind);
                value
            }
            Err(error) => {
                self.lacks_barriers = true;
                gpu.faults.report(gpu.error("kernels", error));
                0
            }
        }
    }

    /// Starts the next recording.
    fn begin_anew(&mut self) {
        self.timing = None;
        self.writes_host = false;
        (self.waits_for, self.uploads_wait_for, self.needs_uploads) = (0, 0, false);
        self.recording += 1;
        self.gpu.set_recording(false);
        self.turn = (self.turn + 1) % PARAMS_BUFFERS;
    }

    /// Whether a copy of `bytes` bytes goes beside the kernels.
    fn is_beside(&self, bytes: u64) -> bool {
        self.gpu.transfer.is_some() && bytes >= BESIDE_BYTES_MIN
    }
}

impl Commands<VulkanDriver> for VulkanCommands {
    fn dispatch(&mut self, pipeline: &VulkanPipeline, bindings: &VulkanBindings, params: Params<'_>, groups: [u32; 3]) {
        let Some(list) = self.list() else { return };
        if bindings.set == vk::DescriptorSet::null() {
            return;
        }
        // Parameters at an offset need the parameter buffers.
        if matches!(params, Params::At(_)) && self.params.is_none() {
            match ParamsBuffers::new(&self.gpu) {
                Ok(buffers) => self.params = Some(buffers),
                Err(error) => return self.gpu.faults.report(error),
            }
        }
        self.touch(list, KERNELS, bindings.buffers.iter(), bindings.writes);
        self.begin_pass(list);
        let value = self.value();
        pipeline.uses.on_compute(value);
        bindings.uses.on_compute(value);
        let (device, layout, point) = (&self.gpu.raw, pipeline.layout.pipeline, vk::PipelineBindPoint::COMPUTE);
        // SAFETY: the list is being recorded; all objects that it names live until it has run; the
        // bindings match the kernel's layout, and the parameters its length.
        unsafe {
            if self.bound.0 != pipeline.raw {
                device.cmd_bind_pipeline(list, point, pipeline.raw);
            }
            if self.bound.1 != bindings.set {
                device.cmd_bind_descriptor_sets(list, point, layout, 1, &[bindings.set], &[]);
            }
            match (params, &self.params) {
                (Params::Words(words), _) => {
                    let bytes = std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words));
                    device.cmd_push_constants(list, layout, vk::ShaderStageFlags::COMPUTE, 0, bytes);
                }
                (Params::At(offset), Some(buffers)) => {
                    let set = buffers.set(self.turn);
                    device.cmd_bind_descriptor_sets(list, point, layout, 0, &[set], &[offset]);
                }
                (Params::At(_), None) => {}
            }
            let [x, y, z] = groups;
            device.cmd_dispatch(list, x, y, z);
        }
        self.bound = (pipeline.raw, bindings.set);
    }

    fn copy(&mut self, from: BufferOffset<'_, VulkanBuffer>, to: BufferOffset<'_, VulkanBuffer>, bytes: u64) {
        if bytes > 0 {
            self.copy_in_list(&from.buffer.0, &to.buffer.0, region(from.offset, to.offset, bytes));
        }
    }

    fn clear(&mut self, target: BufferOffset<'_, VulkanBuffer>, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.end_pass();
        let Some(list) = self.list() else { return };
        self.touch(list, COPIES, std::iter::once(&target.buffer.0), 1);
        // SAFETY: as for copies.
        unsafe { self.gpu.raw.cmd_fill_buffer(list, target.buffer.0.raw, target.offset, bytes, 0) };
    }

    fn upload(&mut self, from: BufferOffset<'_, VulkanStaging>, to: BufferOffset<'_, VulkanBuffer>, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (target, region) = (&to.buffer.0, region(from.offset, to.offset, bytes));
        let last_use = target.uses.stamp().compute;
        let is_used = last_use >= self.value() || target.down.load(Ordering::Relaxed) == self.recording;
        if !self.is_beside(bytes) || is_used {
            return self.copy_in_list(&from.buffer.bytes, target, region);
        }
        target.up.store(self.recording, Ordering::Relaxed);
        self.uploads_wait_for = self.uploads_wait_for.max(last_use);
        self.gpu.set_recording(true);
        let (from, to) = (Arc::clone(&from.buffer.bytes), Arc::clone(target));
        self.uploads.push(Copy { from, to, region });
    }

    fn download(&mut self, from: BufferOffset<'_, VulkanBuffer>, to: BufferOffset<'_, VulkanStaging>, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (source, region) = (&from.buffer.0, region(from.offset, to.offset, bytes));
        if !self.is_beside(bytes) {
            self.copy_in_list(source, &to.buffer.bytes, region);
            self.writes_host = true;
            return;
        }
        source.down.store(self.recording, Ordering::Relaxed);
        self.gpu.set_recording(true);
        let (from, to) = (Arc::clone(source), Arc::clone(&to.buffer.bytes));
        self.downloads.push(Copy { from, to, region });
    }

    fn start_timing(&mut self) -> bool {
        self.timing = (!self.timers.is_empty()).then(Timing::default);
        self.timing.is_some()
    }

    fn end_timing(&mut self, to: &VulkanStaging) -> Option<usize> {
        self.end_pass();
        let passes = self.timing.take().map(|timing| timing.passes).filter(|passes| *passes > 0)?;
        let list = self.list?;
        self.touch(list, COPIES, std::iter::once(&to.bytes), 1);
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        let timer = self.timers[self.turn];
        // SAFETY: the list is being recorded; this many stamps were written before, and the memory
        // has room for the most.
        unsafe {
            let results = self.gpu.raw.fp_v1_0().cmd_copy_query_pool_results;
            results(list, timer, 0, 2 * passes, to.bytes.raw, 0, STAMP_BYTES, flags);
        }
        self.writes_host = true;
        Some((2 * u64::from(passes) * STAMP_BYTES) as usize)
    }

    fn stamp_nanoseconds(&self) -> f64 {
        self.gpu.adapter().has.stamp_nanoseconds.unwrap_or(1.0)
    }

    fn submit(&mut self, params: Option<(BufferOffset<'_, VulkanStaging>, u64)>) -> Fence {
        let (uploads, behind) = (std::mem::take(&mut self.uploads), self.uploads_wait_for);
        let uploaded = self.submit_copies(uploads, behind, false);
        let compute = self.submit_list(uploaded, params);
        let downloads = std::mem::take(&mut self.downloads);
        let behind = downloads.iter().map(|copy| copy.from.uses.stamp().compute).max().unwrap_or(0);
        let downloaded = self.submit_copies(downloads, behind, true);
        self.begin_anew();
        self.fences.submitted(LaneValues { compute, transfer: uploaded.max(downloaded) })
    }

    fn discard(&mut self) {
        if let Some(list) = self.list.take() {
            self.lists.discard(&self.gpu, list);
            self.lacks_barriers = true;
        }
        self.uploads.clear();
        self.downloads.clear();
        self.begin_anew();
    }
}

impl Drop for VulkanCommands {
    fn drop(&mut self) {
        let stamp = self.gpu.submitted();
        let pools = [self.lists.pool(), self.copy_lists.as_ref().and_then(Lists::pool)];
        pools.into_iter().flatten().for_each(|pool| self.gpu.retire(RetiredObject::Commands(pool), stamp));
        self.timers.drain(..).for_each(|timer| self.gpu.retire(RetiredObject::Queries(timer), stamp));
        if let Some(params) = &self.params {
            self.gpu.retire(RetiredObject::Descriptors(params.pool()), stamp);
        }
    }
}

fn region(from: u64, to: u64, bytes: u64) -> vk::BufferCopy {
    vk::BufferCopy { src_offset: from, dst_offset: to, size: bytes }
}

/// Makes later commands of the kinds `to` wait for earlier commands of the kinds `from`.
fn barrier(gpu: &Gpu, list: vk::CommandBuffer, from: vk::PipelineStageFlags, to: vk::PipelineStageFlags) {
    let memory = [vk::MemoryBarrier::default().src_access_mask(written(from)).dst_access_mask(written(to) | read(to))];
    // SAFETY: the list is being recorded.
    unsafe { gpu.raw.cmd_pipeline_barrier(list, from, to, vk::DependencyFlags::empty(), &memory, &[], &[]) };
}

/// The write accesses of commands of these kinds.
fn written(kinds: vk::PipelineStageFlags) -> vk::AccessFlags {
    let access = |kind, access| if kinds.contains(kind) { access } else { vk::AccessFlags::empty() };
    access(KERNELS, vk::AccessFlags::SHADER_WRITE) | access(COPIES, vk::AccessFlags::TRANSFER_WRITE)
}

/// The read accesses of commands of these kinds.
fn read(kinds: vk::PipelineStageFlags) -> vk::AccessFlags {
    let access = |kind, access| if kinds.contains(kind) { access } else { vk::AccessFlags::empty() };
    let kernels = vk::AccessFlags::SHADER_READ | vk::AccessFlags::UNIFORM_READ;
    access(KERNELS, kernels) | access(COPIES, vk::AccessFlags::TRANSFER_READ)
}

/// Makes the written bytes visible to the host once the list has ended.
fn barrier_to_host(gpu: &Gpu, list: vk::CommandBuffer) {
    use vk::AccessFlags as Access;
    use vk::PipelineStageFlags as Stage;
    let memory =
        [vk::MemoryBarrier::default().src_access_mask(Access::MEMORY_WRITE).dst_access_mask(Access::HOST_READ)];
    let (from, to) = (Stage::ALL_COMMANDS, Stage::HOST);
    // SAFETY: the list is being recorded.
    unsafe { gpu.raw.cmd_pipeline_barrier(list, from, to, vk::DependencyFlags::empty(), &memory, &[], &[]) };
}

fn timers(gpu: &Gpu) -> Vec<vk::QueryPool> {
    if gpu.adapter().has.stamp_nanoseconds.is_none() {
        return Vec::new();
    }
    let info =
        vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2 * TIMED_PASSES_MAX);
    // SAFETY: the device has time stamps. Nothing is timed unless there is a pool for each turn.
    let mut made: Vec<_> =
        (0..PARAMS_BUFFERS).map_while(|_| unsafe { gpu.raw.create_query_pool(&info, None) }.ok()).collect();
    if made.len() < PARAMS_BUFFERS {
        // SAFETY: the pools are not in use.
        made.drain(..).for_each(|pool| unsafe { gpu.raw.destroy_query_pool(pool, None) });
    }
    made
}

//! The tools of an op while it is recorded: operands, memory, kernels, and the commands so far.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use panoply_core::{Buffer, DType, DeviceId, Error, HostBuffer, MemoryLimits, MemoryStats, Result, Shape, Tensor};
use panoply_kernels::cache::Cache;
use panoply_kernels::wgsl::{Kernel, MoveKernel, WORKGROUP_SIZE, carrier_dtype};

use crate::arena::Arena;
use crate::belt::StagingBelt;
use crate::driver::{BoundRange, BufferOffset, Commands, Driver, Fence, STAMPS_BYTES_MAX, Staging};
use crate::joined::{BatchedMapKernels, DeferredMap};
use crate::memory::{DeviceMemory, LentMemory, MemoryBlock};
use crate::operand::{Operand, WINDOW_STEP_BYTES, collapsed};
use crate::pieces::in_pieces;
use crate::pipelines::{Pipeline, Pipelines};
use crate::profile::Profile;
use crate::readback::{Download, Readback};
use crate::recorder::Recorder;
use crate::ring::{FilledChunk, LARGE_BYTES_MIN, Ring};
use crate::states::States;
use crate::windows;

/// When the uploads of one submission exceed this, they are submitted at once, so that their chunks
/// come back.
const UPLOAD_BYTES_MAX: usize = 64 << 20;

/// Owned by the engine, lent to one op at a time.
pub struct Context<D: Driver> {
    /// The device.
    pub device: DeviceId,
    /// The facts about the device that ops need.
    pub profile: Profile,
    /// The driver of the API.
    pub driver: Rc<D>,
    /// The device's memory.
    pub memory: DeviceMemory<D>,
    /// Compiled kernels.
    pub pipelines: Pipelines<D>,
    /// The user's cache, in which ops store measurements; without it they repeat them.
    pub(crate) cache: Option<Arc<Cache>>,
    /// The ops' own state.
    pub(crate) states: States,
    recorder: Recorder<D>,
    belt: StagingBelt<D>,
    ring: Option<Ring<D>>,
    readback: Readback<D>,
    /// Downloads of the batch under construction.
    downloads: Vec<Download<D>>,
    uploaded_bytes: usize,
    /// Bytes that crossed between host and device for the op under construction.
    pub(crate) moved_bytes: u64,
    /// If set, kernels are compiled and nothing is recorded.
    rehearsal: bool,
}

impl<D: Driver> Context<D> {
    pub(crate) fn new(driver: D, profile: Profile, cache: Option<Arc<Cache>>, limits: &MemoryLimits) -> Context<D> {
        let driver = Rc::new(driver);
        Context {
            device: profile.id,
            memory: DeviceMemory::new(&driver, &profile, limits),
            recorder: Recorder::new(&driver, profile.params_step_bytes, profile.binding_bytes_max),
            belt: StagingBelt::new(&driver, limits.pinned_bytes_max),
            ring: None,
            readback: Readback::new(&driver, limits.pinned_bytes_max),
            cache,
            states: States::default(),
            downloads: Vec::new(),
            uploaded_bytes: 0,
            moved_bytes: 0,
            rehearsal: false,
            pipelines: Pipelines::new(&driver, profile.immediate_words_max),
            profile,
            driver,
        }
    }

    /// Frees cached memory, until at most `keep_bytes` are cached in each pool.
    pub(crate) fn trim(&mut self, keep_bytes: usize) {
        // Cached bindings hold buffers.
        self.recorder.forget_bindings();
        self.memory.trim(keep_bytes);
        self.belt.trim(keep_bytes as u64);
        self.readback.trim(keep_bytes);
    }

    /// The figures of the pools of device memory and of host memory for transfers.
    pub(crate) fn memory_stats(&mut self) -> MemoryStats {
        let (device, host) = (self.memory.stats(), self.readback.stats());
        MemoryStats {
            lent_bytes: device.lent_bytes + host.lent_bytes,
            cached_bytes: device.cached_bytes + host.cached_bytes,
            peak_bytes: device.peak_bytes + host.peak_bytes,
            hits: device.hits + host.hits,
            misses: device.misses + host.misses,
        }
    }

    /// The commands so far, for tests that count them.
    pub fn recorder(&mut self) -> &mut Recorder<D> {
        &mut self.recorder
    }

    /// A tensor as an operand: in place if it lives on this device, uploaded if it is on the host.
    pub(crate) fn operand(&mut self, tensor: &Tensor) -> Result<Operand<D>> {
        match tensor.buffer() {
            Buffer::Device(handle) => {
                let block = self.memory.find(handle)?;
                let (dtype, offset) = (tensor.dtype(), tensor.offset());
                let (shape, strides) = (*tensor.shape(), *tensor.strides());
                let operand = Operand { block, dtype, shape, strides, offset, window: 0 };
                let whole = operand.block().size() <= self.profile.binding_bytes_max;
                Ok(if whole { operand } else { operand.windowed() })
            }
            Buffer::Host(_) => self.upload(tensor),
        }
    }

    /// A tensor as a contiguous operand.
    pub(crate) fn input(&mut self, tensor: &Tensor) -> Result<Operand<D>> {
        let operand = self.operand(tensor)?;
        self.dense(operand)
    }

    /// The operand itself if it is contiguous, otherwise a contiguous copy.
    pub(crate) fn dense(&mut self, operand: Operand<D>) -> Result<Operand<D>> {
        if operand.is_contiguous() {
            return Ok(operand);
        }
        let output = self.output(operand.dtype, operand.shape)?;
        let limit = self.profile.binding_bytes_max;
        let within = operand.is_within(limit) && output.is_within(limit);
        if !within && windows::are_counted(&operand, &self.profile) {
            windows::move_view(&operand, &output, self)?;
            return Ok(output);
        }
        in_pieces(&[operand], &output, self, &mut |views, output, context| context.move_view(&views[0], output))?;
        Ok(output)
    }

    fn move_view(&mut self, view: &Operand<D>, output: &Operand<D>) -> Result<()> {
        let (dims, strides) = collapsed(&view.shape, &[&view.strides]);
        let mut params = vec![view.elements() as u32, view.start()];
        params.extend(&dims);
        params.extend(&strides[0]);
        let element_bytes = view.dtype.size_bytes() as u8;
        let kernel = Kernel::Move(MoveKernel { element_bytes, rank: dims.len() as u8, windowed: false });
        let words = (view.elements() * usize::from(element_bytes)).div_ceil(usize::from(element_bytes.max(4)));
        self.run(&kernel, &[output], &[view], &params, groups_for(words))
    }

    /// Allocates memory for elements. The caller must write all of it.
    pub(crate) fn output(&mut self, dtype: DType, shape: Shape) -> Result<Operand<D>> {
        let bytes = padded_bytes(dtype, shape);
        let block = match self.memory.take(bytes) {
            Err(Error::OutOfMemory { .. }) => {
                // Memory that the pool has freed may be held only by cached bindings.
                self.recorder.forget_bindings();
                self.memory.shrink();
                self.memory.take(bytes)?
            }
            taken => taken?,
        };
        Ok(Operand::whole(Rc::new(block), dtype, shape))
    }

    /// Allocates memory for elements that come from the host and that no kernel writes.
    fn uploaded(&mut self, dtype: DType, shape: Shape) -> Result<Operand<D>> {
        match self.memory.take_slot(padded_bytes(dtype, shape)) {
            Some(slot) => Ok(Operand::whole(Rc::new(LentMemory::Slot(slot)), dtype, shape)),
            None => self.output(dtype, shape),
        }
    }

    /// Allocates memory for `count` words.
    pub(crate) fn words(&mut self, count: usize) -> Result<Operand<D>> {
        self.output(DType::U32, Shape::new([count])?)
    }

    /// Allocates memory for the carriers of elements of type `dtype`.
    pub(crate) fn carriers(&mut self, dtype: DType, shape: Shape) -> Result<Operand<D>> {
        self.output(carrier_dtype(dtype), shape)
    }

    /// Carriers as elements of the wanted type: unchanged if the carrier has that size, otherwise
    /// packed.
    pub(crate) fn narrow(&mut self, carriers: Operand<D>, dtype: DType) -> Result<Operand<D>> {
        if dtype.size_bytes() >= 4 {
            return Ok(carriers.retyped(dtype));
        }
        let output = self.output(dtype, carriers.shape)?;
        // Pieces of a size at which both operands begin at a window's start.
        let elements = carriers.elements();
        let seen = self.profile.binding_bytes_max as usize / 4 / WINDOW_STEP_BYTES * WINDOW_STEP_BYTES;
        for first in (0..elements).step_by(seen) {
            let count = seen.min(elements - first);
            let words = (count * dtype.size_bytes()).div_ceil(4);
            let (from, to) = (carriers.span(first, count)?, output.span(first, count)?);
            let (from, to) = if count == elements { (from, to) } else { (from.windowed(), to.windowed()) };
            self.run(&Kernel::Narrow(dtype), &[&to], &[&from], &[count as u32], groups_for(words))?;
        }
        Ok(output)
    }

    /// Carriers as a tensor of the wanted type.
    pub(crate) fn finish_as(&mut self, carriers: Operand<D>, dtype: DType) -> Result<Tensor> {
        let output = self.narrow(carriers, dtype)?;
        self.finish(output)
    }

    /// A contiguous operand as a tensor for the caller.
    pub(crate) fn finish(&mut self, operand: Operand<D>) -> Result<Tensor> {
        let offset = operand.offset_in_block();
        let bytes = (offset + operand.elements()) * operand.dtype.size_bytes();
        let handle = self.memory.publish(operand.block, bytes);
        let buffer = Buffer::Device(handle);
        Tensor::from_parts(operand.dtype, operand.shape, operand.strides, offset, buffer)
    }

    /// Records a kernel over `groups` workgroups. Records nothing for 0.
    pub(crate) fn run(
        &mut self,
        kernel: &Kernel,
        writes: &[&Operand<D>],
        reads: &[&Operand<D>],
        params: &[u32],
        groups: u64,
    ) -> Result<()> {
        if groups == 0 {
            return Ok(());
        }
        let pipeline = self.pipelines.get(kernel, (writes.len(), reads.len()))?;
        self.dispatch(&pipeline, writes, reads, params, groups)
    }

    /// Records a kernel that is compiled already.
    pub(crate) fn dispatch(
        &mut self,
        pipeline: &Pipeline<D>,
        writes: &[&Operand<D>],
        reads: &[&Operand<D>],
        params: &[u32],
        groups: u64,
    ) -> Result<()> {
        if self.rehearsal {
            return Ok(());
        }
        if self.recorder.is_full() {
            self.submit();
        }
        self.recorder.dispatch(pipeline, writes, reads, params, groups)
    }

    /// Records a caller's own kernel, which sees exactly the elements of its operands: each begins
    /// at a window's start.
    pub(crate) fn run_exact(
        &mut self,
        kernel: &Kernel,
        writes: &[Operand<D>],
        reads: &[Operand<D>],
        params: &[u32],
        groups: [u32; 3],
    ) -> Result<()> {
        let pipeline = self.pipelines.get(kernel, (writes.len(), reads.len()))?;
        if self.rehearsal {
            return Ok(());
        }
        if self.recorder.is_full() {
            self.submit();
        }
        let bound: Vec<BoundRange<'_, D>> = writes.iter().chain(reads).map(exactly).collect();
        self.recorder.dispatch_exact(&pipeline, &bound, params, groups);
        Ok(())
    }

    /// Lets a map wait for others like it. All its operands lie in the arena. The map will run, so
    /// nothing that may fail must follow for this op.
    pub(crate) fn join(&mut self, arena: &Arena<D>, map: &DeferredMap<'_, BatchedMapKernels<D>>) {
        if self.recorder.is_full() {
            self.submit();
        }
        self.recorder.join(arena, map);
    }

    /// Whether kernels are only compiled and nothing is recorded.
    pub(crate) fn is_rehearsal(&self) -> bool {
        self.rehearsal
    }

    /// Uploads small data of the op itself.
    pub(crate) fn constants(&mut self, words: &[u32]) -> Result<Operand<D>> {
        let target = self.words(words.len().max(1))?;
        if !self.rehearsal {
            let place = BufferOffset { buffer: target.block().buffer(), offset: 0 };
            self.belt.upload(self.recorder.commands(), place, bytemuck::cast_slice(words))?;
        }
        Ok(target)
    }

    /// Copies a contiguous operand's bytes into another operand, at a byte offset that is a
    /// multiple of four.
    pub(crate) fn copy(&mut self, from: &Operand<D>, to: &Operand<D>, to_offset: u64) {
        if self.rehearsal {
            return;
        }
        let size = from.dtype.size_bytes();
        let (start, bytes) = (from.block().start() + from.start_byte(), from.elements() * size);
        let bytes = bytes.next_multiple_of(4) as u64;
        let source = BufferOffset { buffer: from.block().buffer(), offset: start as u64 };
        let target = BufferOffset { buffer: to.block().buffer(), offset: to.block().start() as u64 + to_offset };
        self.recorder.commands().copy(source, target, bytes);
    }

    /// Sets an operand's block to zeros.
    pub(crate) fn clear(&mut self, operand: &Operand<D>) {
        if !self.rehearsal {
            let block = operand.block();
            let target = BufferOffset { buffer: block.buffer(), offset: block.start() as u64 };
            self.recorder.commands().clear(target, block.size());
        }
    }

    /// Records the download of a contiguous operand. Returns the download's number in this batch.
    pub(crate) fn download(&mut self, operand: &Operand<D>) -> Result<usize> {
        let bytes = operand.elements() * operand.dtype.size_bytes();
        // Copies start at multiples of four: a view in the middle of a word is moved to a block of
        // its own first.
        let operand = if operand.start_byte().is_multiple_of(4) { operand.clone() } else { self.moved(operand)? };
        if self.rehearsal {
            return Ok(0);
        }
        let offset = (operand.block().start() + operand.start_byte()) as u64;
        let source = BufferOffset { buffer: operand.block().buffer(), offset };
        let download = self.readback.download(self.recorder.commands(), source, bytes)?;
        self.moved_bytes += bytes as u64;
        self.downloads.push(download);
        Ok(self.downloads.len() - 1)
    }

    /// A copy that starts at the beginning of a block.
    fn moved(&mut self, operand: &Operand<D>) -> Result<Operand<D>> {
        let output = self.output(operand.dtype, operand.shape)?;
        self.copy_elements(operand, &output)?;
        Ok(output)
    }

    /// Copies the elements of a contiguous operand to the start of another's block.
    pub(crate) fn copy_elements(&mut self, operand: &Operand<D>, output: &Operand<D>) -> Result<()> {
        let line = Shape::new([operand.elements()])?;
        let (view, output) = (operand.reshaped(line), output.reshaped(line));
        in_pieces(&[view], &output, self, &mut |views, output, context| context.move_view(&views[0], output))
    }

    /// Lets `run` compile the kernels that it needs without recording anything.
    pub(crate) fn rehearse(&mut self, run: impl FnOnce(&mut Context<D>)) {
        self.rehearsal = true;
        // Even if `run` panics, the next op is no rehearsal.
        drop(catch_unwind(AssertUnwindSafe(|| run(self))));
        self.rehearsal = false;
    }

    /// Records even during a rehearsal.
    pub(crate) fn in_earnest<T>(&mut self, record: impl FnOnce(&mut Context<D>) -> T) -> T {
        let rehearsal = std::mem::replace(&mut self.rehearsal, false);
        let recorded = record(self);
        self.rehearsal = rehearsal;
        recorded
    }

    /// Times the submission under construction, if the device can.
    pub(crate) fn start_timing(&mut self) {
        self.recorder.start_timing();
    }

    /// Ends the timing. Returns the number of the download with the time stamps.
    pub(crate) fn end_timing(&mut self) -> Option<usize> {
        let download = self.readback.prepare(STAMPS_BYTES_MAX as usize).ok()?;
        let bytes = self.recorder.end_timing(download.staging())?;
        self.downloads.push(download.shortened(bytes));
        Some(self.downloads.len() - 1)
    }

    /// The error that belongs to no call, if there was one. Cached bindings may be empty after an
    /// error, so all of them are forgotten.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.driver.faults().take_error().inspect(|_| self.recorder.forget_bindings())
    }

    /// Nanoseconds per tick of a time stamp.
    pub(crate) fn stamp_nanoseconds(&self) -> f64 {
        self.recorder.stamp_nanoseconds()
    }

    /// Submits everything that was recorded so far.
    pub fn submit(&mut self) -> Option<Fence> {
        let fence = self.recorder.submit(&mut self.belt)?;
        self.uploaded_bytes = 0;
        Some(fence)
    }

    /// The downloads of the batch, which was just submitted. Asks for their memory back.
    pub(crate) fn take_downloads(&mut self) -> Vec<Download<D>> {
        let downloads = std::mem::take(&mut self.downloads);
        downloads.iter().for_each(Download::ask);
        downloads
    }

    /// The bytes of a finished download.
    pub(crate) fn downloaded(&mut self, download: Download<D>) -> Result<HostBuffer> {
        self.readback.take(download)
    }

    fn upload(&mut self, tensor: &Tensor) -> Result<Operand<D>> {
        // Broadcast axes are uploaded once and broadcast again on the device.
        let mut compact = tensor.clone();
        if !tensor.is_contiguous() {
            for (axis, stride) in tensor.strides().iter().enumerate() {
                if *stride == 0 && tensor.shape()[axis] > 1 {
                    compact = compact.slice(axis, 0, 1)?;
                }
            }
            compact = compact.contiguous()?;
        }
        let bytes = compact.as_bytes()?;
        if let Some(operand) = self.in_place(&compact, bytes) {
            return stretched(&operand, tensor.shape());
        }
        let target = self.uploaded(tensor.dtype(), *compact.shape())?;
        if !self.rehearsal {
            self.send(bytes, &target)?;
            self.moved_bytes += bytes.len() as u64;
        }
        stretched(&target, tensor.shape())
    }

    /// A contiguous host tensor in place, if the device can reach it.
    fn in_place(&self, tensor: &Tensor, bytes: &[u8]) -> Option<Operand<D>> {
        let (Buffer::Host(host), false) = (tensor.buffer(), self.rehearsal) else { return None };
        let (buffer, before) = self.driver.in_place(host, bytes)?;
        let size = tensor.dtype().size_bytes();
        // Kernels may read past the last element, up to the end of a vector.
        let seen = before + bytes.len().next_multiple_of(16) as u64;
        let block = Rc::new(LentMemory::Host(MemoryBlock::foreign(buffer, seen)));
        let operand = Operand::whole(block, tensor.dtype(), *tensor.shape());
        let operand = Operand { offset: before as usize / size, ..operand };
        // An operand larger than a kernel's reach is cut at windows' starts, so it must begin at
        // one.
        let within = seen <= self.profile.binding_bytes_max;
        let is_window = (before as usize).is_multiple_of(WINDOW_STEP_BYTES);
        let suits = (before as usize).is_multiple_of(size) && (within || is_window);
        suits.then(|| if within { operand } else { operand.windowed() })
    }

    /// Sends bytes from the host to the start of an operand's block.
    fn send(&mut self, bytes: &[u8], target: &Operand<D>) -> Result<()> {
        let (buffer, start) = (target.block().buffer(), target.block().start() as u64);
        if bytes.len() < LARGE_BYTES_MIN {
            self.belt.upload(self.recorder.commands(), BufferOffset { buffer, offset: start }, bytes)?;
            self.uploaded_bytes += bytes.len();
            if self.uploaded_bytes > UPLOAD_BYTES_MAX {
                self.submit();
                // Chunks come back only when the driver looks.
                self.driver.look();
            }
            return Ok(());
        }
        let mut ring = match self.ring.take() {
            Some(ring) => ring,
            None => Ring::new(&self.driver)?,
        };
        let sent = ring.send(bytes, &mut |filled| {
            for FilledChunk { chunk, bytes, place } in filled {
                let from = BufferOffset { buffer: *chunk, offset: 0 };
                let size = (*bytes as u64).next_multiple_of(4);
                self.recorder.commands().upload(from, BufferOffset { buffer, offset: start + *place as u64 }, size);
                chunk.hand_over();
            }
            let fence = self.submit();
            filled.iter().for_each(|filled| filled.chunk.call_back());
            fence
        });
        self.ring = Some(ring);
        sent
    }
}

/// The bytes of a contiguous operand, rounded up to whole words.
fn exactly<D: Driver>(operand: &Operand<D>) -> BoundRange<'_, D> {
    let (buffer, offset) = (operand.block().buffer(), (operand.block().start() + operand.start_byte()) as u64);
    BoundRange { buffer, offset, bytes: (operand.elements() * operand.dtype.size_bytes()).next_multiple_of(4) as u64 }
}

/// The operand with dimensions of size one broadcast to a shape of the same rank.
fn stretched<D: Driver>(operand: &Operand<D>, shape: &Shape) -> Result<Operand<D>> {
    if operand.shape == *shape {
        return Ok(operand.clone());
    }
    let steps = operand.shape.iter().zip(operand.strides.iter()).zip(shape.iter());
    let steps: Vec<isize> = steps.map(|((own, step), wanted)| if own == wanted { *step } else { 0 }).collect();
    Ok(Operand { shape: *shape, strides: panoply_core::shape::Strides::new(steps)?, ..operand.clone() })
}

/// Size of elements in memory: kernels may reach past the last element, up to the end of a vector.
fn padded_bytes(dtype: DType, shape: Shape) -> usize {
    (shape.elements() * dtype.size_bytes()).next_multiple_of(16)
}

/// Number of workgroups for `invocations` invocations.
pub(crate) fn groups_for(invocations: usize) -> u64 {
    (invocations as u64).div_ceil(u64::from(WORKGROUP_SIZE))
}

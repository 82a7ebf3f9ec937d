//! What an op has at hand while it is submitted: inputs brought to the device, memory for outputs and scratch, kernels and
//! launches. Everything is queued on the compute stream; nothing here waits for the device.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use panoply_core::{Buffer, DType, DeviceBuffer, DeviceId, Error, HostBufferMut, MemoryStats, Result, Shape, Tensor};
use panoply_kernels::c::{Dialect, Kernel};

use crate::complaint::{Complaint, Complaints};
use crate::driver::{Address, Driver, Event, Launch, Stream};
use crate::kernels::Kernels;
use crate::library::Libraries;
use crate::memory::{Block, DeviceMemory};
use crate::ops::map::Maps;
use crate::ops::scan::ScanBoard;
use crate::peers::{Peer, Peers};
use crate::staging::{SMALL_BYTES_MAX, Staging};
use crate::strides::Axes;

/// The most axes of a layout; see `layout` in the kernels' prelude.
pub(crate) const LAYOUT_AXES_MAX: usize = 8;
/// Room for one launch's arguments.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 1536;
const ARGUMENTS_MAX: usize = 40;

/// Owned by the engine, lent to one op at a time.
pub(crate) struct Context {
    pub(crate) driver: Rc<dyn Driver>,
    pub(crate) memory: DeviceMemory,
    pub(crate) device: DeviceId,
    staging: Staging,
    kernels: Kernels,
    /// Generated elementwise kernels.
    pub(crate) maps: Maps,
    /// Where scans leave word from tile to tile.
    pub(crate) scans: ScanBoard,
    complaints: Complaints,
    /// The other engines of the backend, where there are any, and those whose memory this one reads.
    peers: Option<Arc<Peers>>,
    reached: Vec<Weak<Peer>>,
    /// Numbers that are zero whenever no kernel runs.
    counters: Option<Block>,
    /// Events that no op uses.
    events: Vec<Event>,
    /// What the op under way has queued so far.
    queued: Queued,
    /// Whether kernels are only loaded, and nothing is queued.
    rehearsal: bool,
    /// Kernels that were started.
    #[cfg(test)]
    pub(crate) launches: usize,
}

/// What an op that was submitted leaves behind until it has finished.
#[derive(Default)]
pub(crate) struct Queued {
    /// Memory that its kernels use.
    #[allow(dead_code)] // Held so that the pool does not lend it again.
    pub(crate) held: Vec<Block>,
    /// Host memory that it uploads from.
    #[allow(dead_code)] // Held so that nobody writes to it.
    pinned: Vec<HostBufferMut>,
    /// Engines whose memory its kernels read.
    #[allow(dead_code)] // Held so that their memory stands.
    pub(crate) peers: Vec<Arc<Peer>>,
    /// Bytes between host and device.
    pub(crate) bytes_moved: u64,
    /// Around its large copies.
    pub(crate) copies: Option<(Event, Event)>,
    /// Whether it ends with a copy to the host.
    pub(crate) downloads: bool,
    /// What its kernels may have found wrong with its input.
    complaint: Option<Complaint>,
}

impl Queued {
    /// Takes over what was queued before and will not be handed out. What can be queued so has no complaints.
    pub(crate) fn absorb(&mut self, before: Queued) {
        self.held.extend(before.held);
        self.pinned.extend(before.pinned);
        self.peers.extend(before.peers);
        self.bytes_moved += before.bytes_moved;
    }
}

/// A tensor's elements on the device, in any layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The first element.
    pub(crate) address: Address,
    /// Sizes and strides in elements.
    pub(crate) layout: Layout,
}

/// The `layout` of the kernels' prelude: the last axis first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Layout {
    rank: u32,
    size: [u32; LAYOUT_AXES_MAX],
    stride: [i64; LAYOUT_AXES_MAX],
}

/// An output being computed.
pub(crate) struct Output {
    /// Where it goes.
    pub(crate) address: Address,
    tensor: Tensor,
}

impl Output {
    /// The tensor, to be handed out when the op has finished.
    pub(crate) fn into_tensor(self) -> Tensor {
        self.tensor
    }
}

impl Context {
    pub(crate) fn new(
        driver: Rc<dyn Driver>,
        device: DeviceId,
        dialect: Dialect,
        cached_bytes_max: usize,
        peers: Option<Arc<Peers>>,
    ) -> Context {
        let peer = peers.as_ref().map(|peers| peers.join(device, driver.foundation()));
        let memory = DeviceMemory::new(Rc::clone(&driver), device, cached_bytes_max, peer);
        let staging = Staging::new(Rc::clone(&driver));
        let kernels = Kernels::new(device, dialect);
        let (maps, scans, events, queued) = (Maps::default(), ScanBoard::default(), Vec::new(), Queued::default());
        let (complaints, counters, rehearsal) = (Complaints::new(Rc::clone(&driver)), None, false);
        Context {
            driver,
            memory,
            device,
            staging,
            kernels,
            maps,
            scans,
            complaints,
            peers,
            reached: Vec::new(),
            counters,
            events,
            queued,
            rehearsal,
            #[cfg(test)]
            launches: 0,
        }
    }

    /// The vendor's libraries, where the device has them.
    pub(crate) fn libraries(&self) -> Option<&Libraries> {
        self.driver.libraries()
    }

    /// A tensor's elements on the device, one after the other: where they are, or copied there.
    pub(crate) fn input(&mut self, tensor: &Tensor) -> Result<Address> {
        let view = self.view(tensor)?;
        if tensor.is_contiguous() || !self.owns(tensor) {
            return Ok(view.address);
        }
        let target = self.scratch(tensor.len_bytes())?;
        self.copy_view(target, &view, tensor.dtype(), tensor.elements())?;
        Ok(target)
    }

    /// Whether a tensor lies on this device. What comes from elsewhere becomes contiguous on its way.
    pub(crate) fn owns(&self, tensor: &Tensor) -> bool {
        matches!(tensor.buffer(), Buffer::Device(buffer) if buffer.device() == self.device)
    }

    /// A tensor's elements on the device, as they lie. What comes from elsewhere is contiguous.
    pub(crate) fn view(&mut self, tensor: &Tensor) -> Result<View> {
        match tensor.buffer() {
            Buffer::Device(buffer) if buffer.device() == self.device => {
                Ok(View::of_tensor(self.memory.address(buffer)?, tensor))
            }
            _ => {
                let address = self.scratch(tensor.len_bytes())?;
                self.place(address, tensor)?;
                Ok(View { address, layout: Layout::new(tensor.shape(), &tensor.shape().contiguous_strides()) })
            }
        }
    }

    /// A tensor of another device, as it lies there; the op under way keeps that device's memory as it is.
    fn view_of_peer(&mut self, tensor: &Tensor, buffer: &DeviceBuffer) -> Result<View> {
        let found = self.peers.as_ref().and_then(|peers| peers.find(buffer));
        let (peer, start) = found.ok_or(Error::NotOnHost { device: buffer.device() })?;
        self.reached.retain(|reached| reached.strong_count() > 0);
        if !self.reached.iter().any(|reached| std::ptr::eq(reached.as_ptr(), Arc::as_ptr(&peer))) {
            self.driver.reach(&peer.foundation)?;
            self.reached.push(Arc::downgrade(&peer));
        }
        self.queued.peers.push(peer);
        self.queued.bytes_moved += tensor.len_bytes() as u64;
        Ok(View::of_tensor(start, tensor))
    }

    /// An output to be written in full.
    pub(crate) fn output(&mut self, dtype: DType, shape: Shape) -> Result<Output> {
        let (buffer, address) = self.memory.tensor(shape.elements() * dtype.size_bytes())?;
        Ok(Output { address, tensor: Tensor::from_device(dtype, shape, buffer)? })
    }

    /// Memory that the op needs until it has finished; at least 256-byte aligned, arbitrary contents.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<Address> {
        let block = self.memory.scratch(bytes)?;
        let address = block.block.0;
        self.queued.held.push(block);
        Ok(address)
    }

    /// Queues a kernel. The arguments must be what the kernel's text declares; addresses must come from this context.
    pub(crate) fn launch(&mut self, kernel: &Kernel, launch: Launch, arguments: &mut Arguments) -> Result<()> {
        let function = self.kernels.get(&*self.driver, kernel)?;
        if self.rehearsal {
            return Ok(());
        }
        #[cfg(test)]
        {
            self.launches += 1;
        }
        // SAFETY: ops build the arguments for the kernel whose text they name, from addresses that this context lent and
        // keeps until the op has finished.
        unsafe { self.driver.launch(function, &launch, arguments.pointers(), Stream::Compute) }
    }

    /// Fills memory with one byte.
    pub(crate) fn fill(&mut self, target: Address, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 || self.rehearsal { Ok(()) } else { self.driver.fill(target, byte, bytes, Stream::Compute) }
    }

    /// Copies within the device.
    pub(crate) fn copy(&mut self, target: Address, source: Address, bytes: usize) -> Result<()> {
        if bytes == 0 || self.rehearsal { Ok(()) } else { self.driver.copy(target, source, bytes, Stream::Compute) }
    }

    /// A launch for a grid-stride loop over so many elements, `per_thread` of them for each thread, in at most as many
    /// blocks as keep the device busy.
    pub(crate) fn blocks(&self, elements: usize, threads: u32, per_thread: usize) -> Launch {
        let wanted = elements.div_ceil(threads as usize * per_thread).max(1);
        let most = self.driver.properties().multiprocessors as usize * (2048 / threads.max(1) as usize).max(1) * 4;
        Launch::new(wanted.min(most) as u32, threads)
    }

    /// Writes a tensor's elements, one after the other, into memory of this context.
    pub(crate) fn place(&mut self, target: Address, tensor: &Tensor) -> Result<()> {
        match tensor.buffer() {
            Buffer::Host(_) => {
                let tensor = tensor.contiguous()?;
                self.upload(target, tensor.as_bytes()?)
            }
            Buffer::Device(buffer) => {
                let view = match self.owns(tensor) {
                    true => self.view(tensor)?,
                    false => self.view_of_peer(tensor, buffer)?,
                };
                if tensor.is_contiguous() {
                    return self.copy(target, view.address, tensor.len_bytes());
                }
                self.copy_view(target, &view, tensor.dtype(), tensor.elements())
            }
        }
    }

    /// Writes so many bytes, which `fill` puts together in pinned memory, into memory of this context.
    pub(crate) fn place_filled(&mut self, target: Address, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut pinned = self.staging.target(bytes)?;
        fill(pinned.bytes_mut());
        self.upload(target, pinned.bytes_mut())?;
        self.queued.pinned.push(pinned);
        Ok(())
    }

    /// A tensor on the host with what is at this address when the compute stream gets here.
    pub(crate) fn download(&mut self, source: Address, dtype: DType, shape: Shape) -> Result<Tensor> {
        if shape.elements() > 0 && !self.rehearsal {
            let computed = self.event()?;
            self.driver.record(computed, Stream::Compute)?;
            self.driver.wait_for(Stream::Download, computed)?;
            self.events.push(computed);
        }
        self.download_finished(source, dtype, shape)
    }

    /// A tensor on the host with what an op that has finished left at this address.
    pub(crate) fn download_finished(&mut self, source: Address, dtype: DType, shape: Shape) -> Result<Tensor> {
        let bytes = shape.elements() * dtype.size_bytes();
        let mut target = self.staging.target(bytes)?;
        if bytes > 0 && !self.rehearsal {
            self.begin_copies(Stream::Download)?;
            // SAFETY: the buffer is not handed out before the op has finished.
            unsafe { self.driver.download(target.bytes_mut().as_mut_ptr(), source, bytes, Stream::Download)? };
            self.end_copies(Stream::Download)?;
            self.queued.downloads = true;
            self.queued.bytes_moved += bytes as u64;
        }
        Tensor::from_host(dtype, shape, target.freeze())
    }

    /// Small copies go with the kernels; large ones have a stream of their own, which the kernels wait for.
    fn upload(&mut self, target: Address, bytes: &[u8]) -> Result<()> {
        self.queued.bytes_moved += bytes.len() as u64;
        if bytes.is_empty() || self.rehearsal {
            return Ok(());
        }
        if bytes.len() <= SMALL_BYTES_MAX {
            // SAFETY: the target was lent by this context; the op that holds the bytes is kept until it has finished.
            return unsafe { self.driver.upload(target, bytes.as_ptr(), bytes.len(), Stream::Compute) };
        }
        self.begin_copies(Stream::Upload)?;
        self.staging.upload(target, bytes)?;
        let done = self.end_copies(Stream::Upload)?;
        self.driver.wait_for(Stream::Compute, done)
    }

    fn begin_copies(&mut self, stream: Stream) -> Result<()> {
        if self.queued.copies.is_none() {
            let (start, stop) = (self.event()?, self.event()?);
            self.driver.record(start, stream)?;
            self.queued.copies = Some((start, stop));
        }
        Ok(())
    }

    /// How many numbers [`Context::counters`] has.
    pub(crate) const COUNTERS: usize = 4096;

    /// `u32` numbers that are zero when a kernel starts, and that it leaves at zero: with them the last block of several to
    /// finish knows that it is the last.
    pub(crate) fn counters(&mut self) -> Result<Address> {
        if let Some(block) = &self.counters {
            return Ok(block.block.0);
        }
        let block = self.memory.scratch(Context::COUNTERS * 4)?;
        let address = block.block.0;
        self.lasting(|context| context.fill(address, 0, Context::COUNTERS * 4))?;
        self.counters = Some(block);
        Ok(address)
    }

    /// A word for what the kernels of the op under way find wrong with its input: zero, unless one of them writes it. The op
    /// then ends with the error that `describe` makes of the word and of `detail`. An op has one such word at most.
    pub(crate) fn complaint(&mut self, describe: fn(u64, u64) -> Error, detail: u64) -> Result<Address> {
        let (complaint, address) = self.complaints.lend(describe, detail)?;
        self.queued.complaint = Some(complaint);
        Ok(address)
    }

    /// What the kernels of an op that has finished found wrong with its input.
    pub(crate) fn settle(&mut self, queued: &mut Queued) -> Result<()> {
        queued.complaint.take().map_or(Ok(()), |complaint| self.complaints.settle(complaint))
    }

    /// Queues what later ops count on, in a rehearsal too.
    pub(crate) fn lasting<T>(&mut self, queue: impl FnOnce(&mut Context) -> T) -> T {
        let rehearsal = std::mem::replace(&mut self.rehearsal, false);
        let queued = queue(self);
        self.rehearsal = rehearsal;
        queued
    }

    fn end_copies(&mut self, stream: Stream) -> Result<Event> {
        let stop = match self.queued.copies {
            Some((_, stop)) => stop,
            None => self.event()?,
        };
        self.driver.record(stop, stream)?;
        Ok(stop)
    }

    /// Lets `run` load what it needs without queueing anything.
    pub(crate) fn rehearse(&mut self, run: impl FnOnce(&mut Context)) {
        self.rehearsal = true;
        // Whatever becomes of it, the next op is no rehearsal.
        drop(catch_unwind(AssertUnwindSafe(|| run(self))));
        self.rehearsal = false;
        let mut queued = self.take_queued();
        // No kernel ran, so none has complained.
        drop(self.settle(&mut queued));
    }

    /// Whether nothing must be queued now: ops that call a library leave it at having planned.
    pub(crate) fn is_rehearsal(&self) -> bool {
        self.rehearsal
    }

    /// An event that nobody uses.
    pub(crate) fn event(&mut self) -> Result<Event> {
        self.events.pop().map_or_else(|| self.driver.event(), Ok)
    }

    /// Gives an event back that no op waits for any more.
    pub(crate) fn give_back(&mut self, event: Event) {
        self.events.push(event);
    }

    /// What the op that was just submitted leaves behind.
    pub(crate) fn take_queued(&mut self) -> Queued {
        std::mem::take(&mut self.queued)
    }

    /// What the pools of device memory and of pinned host memory hold.
    pub(crate) fn memory_stats(&mut self) -> MemoryStats {
        let (device, pinned) = (self.memory.stats(), self.staging.stats());
        MemoryStats {
            lent_bytes: device.lent_bytes + pinned.lent_bytes,
            cached_bytes: device.cached_bytes + pinned.cached_bytes,
            peak_bytes: device.peak_bytes + pinned.peak_bytes,
            hits: device.hits + pinned.hits,
            misses: device.misses + pinned.misses,
        }
    }
}

impl Layout {
    /// The layout of a view.
    pub(crate) fn new(shape: &[usize], strides: &[isize]) -> Layout {
        let mut layout = Layout { rank: shape.len() as u32, ..Layout::default() };
        for (axis, (size, stride)) in shape.iter().zip(strides).rev().enumerate() {
            layout.size[axis] = u32::try_from(*size).unwrap_or(u32::MAX);
            layout.stride[axis] = *stride as i64;
        }
        layout
    }

    /// Size and stride of each axis, the last one first.
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, i64)> {
        (0..self.rank as usize).map(|axis| (self.size[axis] as usize, self.stride[axis]))
    }

    /// The layout of one of several views.
    pub(crate) fn of_axes<const N: usize>(axes: &Axes<N>, view: usize) -> Layout {
        let mut layout = Layout { rank: axes.rank as u32, ..Layout::default() };
        for axis in 0..axes.rank {
            layout.size[axis] = u32::try_from(axes.sizes[axis]).unwrap_or(u32::MAX);
            layout.stride[axis] = axes.strides[view][axis];
        }
        layout
    }
}

impl View {
    /// A tensor whose buffer begins here.
    fn of_tensor(start: Address, tensor: &Tensor) -> View {
        let offset = if tensor.elements() == 0 { 0 } else { tensor.offset() * tensor.dtype().size_bytes() };
        View { address: start + offset as u64, layout: Layout::new(tensor.shape(), tensor.strides()) }
    }

    /// One of several views that go over the same axes.
    pub(crate) fn of_axes<const N: usize>(address: Address, axes: &Axes<N>, view: usize) -> View {
        View { address, layout: Layout::of_axes(axes, view) }
    }
}

/// The arguments of one launch, in the order of the kernel's parameters.
pub(crate) struct Arguments {
    storage: [u64; ARGUMENT_BYTES_MAX / 8],
    used: usize,
    offsets: [usize; ARGUMENTS_MAX],
    pointers: [*mut c_void; ARGUMENTS_MAX],
    count: usize,
}

impl Arguments {
    pub(crate) fn new() -> Arguments {
        Arguments {
            storage: [0; ARGUMENT_BYTES_MAX / 8],
            used: 0,
            offsets: [0; ARGUMENTS_MAX],
            pointers: [std::ptr::null_mut(); ARGUMENTS_MAX],
            count: 0,
        }
    }

    /// A pointer into device memory; 0 is the null pointer.
    pub(crate) fn address(self, address: Address) -> Arguments {
        self.push(&[address])
    }

    pub(crate) fn u32(self, value: u32) -> Arguments {
        self.push(&[u64::from(value)])
    }

    pub(crate) fn u64(self, value: u64) -> Arguments {
        self.push(&[value])
    }

    pub(crate) fn i64(self, value: i64) -> Arguments {
        self.push(&[value as u64])
    }

    pub(crate) fn f32(self, value: f32) -> Arguments {
        self.push(&[u64::from(value.to_bits())])
    }

    pub(crate) fn f64(self, value: f64) -> Arguments {
        self.push(&[value.to_bits()])
    }

    pub(crate) fn layout(self, layout: &Layout) -> Arguments {
        let mut words = [0_u64; size_of::<Layout>() / 8];
        words[0] = u64::from(layout.rank) | u64::from(layout.size[0]) << 32;
        for pair in 0..3 {
            words[1 + pair] = u64::from(layout.size[1 + 2 * pair]) | u64::from(layout.size[2 + 2 * pair]) << 32;
        }
        words[4] = u64::from(layout.size[7]);
        for (word, stride) in words[5..].iter_mut().zip(layout.stride) {
            *word = stride as u64;
        }
        self.push(&words)
    }

    /// A structure of the kernel's own, as words in the target's layout.
    pub(crate) fn structure(self, words: &[u64]) -> Arguments {
        self.push(words)
    }

    /// Numbers narrower than a word lie in its low bytes, which come first on every machine that CUDA runs on.
    fn push(mut self, words: &[u64]) -> Arguments {
        debug_assert!(self.used + words.len() <= self.storage.len() && self.count < ARGUMENTS_MAX);
        self.storage[self.used..self.used + words.len()].copy_from_slice(words);
        self.offsets[self.count] = self.used;
        self.used += words.len();
        self.count += 1;
        self
    }

    /// Pointers to the values, made when they no longer move.
    fn pointers(&mut self) -> &mut [*mut c_void] {
        for index in 0..self.count {
            self.pointers[index] = (&raw mut self.storage[self.offsets[index]]).cast();
        }
        &mut self.pointers[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_kernels_shape() {
        assert_eq!(size_of::<Layout>(), 104);
        let layout = Layout::new(&[2, 3, 5], &[15, -5, 1]);
        let mut arguments = Arguments::new().u32(7).layout(&layout).address(9);
        let pointers = arguments.pointers().to_vec();
        // SAFETY: the second argument is a layout, stored by the builder.
        let stored = unsafe { pointers[1].cast::<Layout>().read_unaligned() };
        assert_eq!((stored.rank, stored.size, stored.stride), (3, layout.size, layout.stride));
        assert_eq!(stored.size[..3], [5, 3, 2]);
        // SAFETY: the third argument is one word.
        assert_eq!(unsafe { pointers[2].cast::<u64>().read() }, 9);
    }
}

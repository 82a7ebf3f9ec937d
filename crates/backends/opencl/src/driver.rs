//! One opened device. Every call's result is checked and becomes a typed error.
//!
//! Three in-order queues are the engine's three streams. Streams wait for each other through marks.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use panoply_c_gpu::arguments::{Argument, Arguments};
use panoply_c_gpu::compile::Compiler;
use panoply_c_gpu::driver::{Address, ContextHandle, Driver, Event, Function, Launch, Properties, Stream};
use panoply_c_gpu::library::Sensors;
use panoply_core::{DeviceId, Error, Health, MemoryUse, Result};
use panoply_kernels::c::OPENCL_ENTRY_PREFIX;
use panoply_sensors::CardSensors;

use crate::backend::unavailable;
use crate::buffers::Buffers;
use crate::calls::{self, Buffer, ClResult, Code, Context, Kernel, Library, Program, Queue, Range};
use crate::compiler::ProgramCompiler;
use crate::marks::{MarkedQueue, Marks};
use crate::platform::{DeviceHandle, DiscoveredDevice, Facts};
use crate::sys;
use crate::warps::{TRIAL_THREADS, Warps};

/// The smallest block memory of a launch, if the kernel has a parameter for it.
const SHARED_BYTES_MIN: usize = 16;
/// The size from which host memory is worth a buffer of its own, and the alignment that kernels
/// need.
const LENT_BYTES_MIN: usize = 64 << 10;
const LENT_ALIGN_BYTES: usize = 64;
/// Size of a word of pinned memory that a kernel may write.
const WORD_BYTES: usize = 8;

/// A device with a context of its own.
pub(crate) struct OpenClDriver {
    device: DeviceId,
    handle: DeviceHandle,
    facts: Facts,
    properties: Properties,
    context: Arc<Context>,
    lines: [MarkedQueue; 3],
    tells_times: bool,
    compiler: Arc<ProgramCompiler>,
    buffers: RefCell<Buffers>,
    marks: Marks,
    /// Copies of unpinned host memory, with the commands after which they may be freed.
    parcels: RefCell<VecDeque<HostCopy>>,
    /// Loaded kernels, by their addresses.
    loaded: RefCell<HashSet<NonNull<c_void>>>,
    library: Arc<Library>,
    /// The sensors of the card: OpenCL has none.
    sensors: RefCell<CardSensors>,
}

/// The buffer for small allocations: its largest size, the divisor that limits it to a share of the
/// device's memory, and the largest allocation in it.
const SHARED_BYTES: usize = 64 << 20;
const SHARED_MEMORY_SHARE: u64 = 64;
const SHARED_PART_BYTES_MAX: usize = 1 << 20;

/// A copy of host memory, and the command that reads it.
type HostCopy = (Box<[u8]>, Rc<calls::Event>);

/// A kernel, and the limits of its launches.
struct LoadedKernel {
    kernel: Kernel,
    arguments: usize,
    /// The most threads of a block, and the threads that the kernel's text demands (0 if none).
    threads_max: u64,
    threads_demanded: u64,
    shared_bytes: u64,
    name: String,
    /// Held alive for the kernel.
    _program: Program,
}

impl OpenClDriver {
    /// Opens a device. With `timed` it reports how long commands took, which makes launches slower
    /// with some drivers.
    pub(crate) fn open(library: &Arc<Library>, found: &DiscoveredDevice, timed: bool) -> Result<OpenClDriver> {
        let (id, handle, facts) = (found.info.id, found.handle, found.facts.clone());
        let failed = |code: Code| unavailable(id, code.to_string());
        let context = Arc::new(Context::new(library, handle.0).map_err(failed)?);
        let times = if timed { facts.queue_properties & sys::QUEUE_PROFILING_ENABLE } else { 0 };
        let queue = || context.queue(handle.0, times).map_err(failed);
        let queues = [queue()?, queue()?, queue()?];
        let warps = *found.warps.get_or_init(|| find_warps(library, handle, &facts));
        let mut number = 0..;
        let lines = queues.map(|queue| MarkedQueue::new(queue, number.next().unwrap_or(0)));
        let properties = Properties {
            multiprocessors: facts.units,
            shared_bytes_max: u32::try_from(facts.shared_bytes_max).unwrap_or(u32::MAX),
            block_threads_max: u32::try_from(facts.block_threads_max).unwrap_or(u32::MAX),
            warp_lanes: warps.lanes,
            pointers: false,
            matrix_tiles: false,
            tiles_of_16: warps.tiles,
            warp_groups: false,
        };
        Ok(OpenClDriver {
            device: id,
            handle,
            properties,
            compiler: Arc::new(ProgramCompiler::new(&context, handle, &facts, warps)),
            facts,
            context,
            lines,
            tells_times: times != 0,
            buffers: RefCell::default(),
            marks: Marks::default(),
            parcels: RefCell::default(),
            loaded: RefCell::default(),
            library: Arc::clone(library),
            sensors: RefCell::new(CardSensors::of(&found.info)),
        })
    }

    fn line(&self, stream: Stream) -> &MarkedQueue {
        &self.lines[stream as usize]
    }

    /// Queues a command.
    fn push(
        &self,
        stream: Stream,
        command: impl FnOnce(&Queue) -> ClResult<calls::Event>,
    ) -> ClResult<Rc<calls::Event>> {
        self.line(stream).push(&self.marks, command)
    }

    fn check<T>(&self, result: ClResult<T>) -> Result<T> {
        result.map_err(|code| self.error(code))
    }

    /// The meaning of an error code. After some errors a driver returns nothing but errors: then
    /// the device is lost.
    fn error(&self, code: Code) -> Error {
        let (device, reason) = (self.device, code.to_string());
        match code.0 {
            sys::DEVICE_NOT_AVAILABLE
            | sys::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
            | sys::INVALID_CONTEXT
            | sys::INVALID_COMMAND_QUEUE => Error::DeviceLost { device, reason },
            sys::MEM_OBJECT_ALLOCATION_FAILURE | sys::OUT_OF_HOST_MEMORY | sys::INVALID_BUFFER_SIZE => {
                self.out_of_memory(0)
            }
            _ => Error::DeviceFault { device, reason },
        }
    }

    /// The error of queued work that failed: nothing after it has run either.
    fn lost(&self, code: Code) -> Error {
        Error::DeviceLost { device: self.device, reason: format!("what was queued ended with {code}") }
    }

    fn fault(&self, reason: impl Into<String>) -> Error {
        Error::DeviceFault { device: self.device, reason: reason.into() }
    }

    fn out_of_memory(&self, asked: usize) -> Error {
        let free = self.free_bytes();
        let largest = free.min(self.facts.allocation_bytes_max);
        Error::OutOfMemory { place: self.device.to_string(), asked: asked as u64, free, largest }
    }

    /// A small allocation's part of the shared buffer, which the first such allocation makes.
    fn shared_part(&self, bytes: usize) -> Option<Address> {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.shared().is_none() {
            let size = SHARED_BYTES.min(usize::try_from(self.facts.memory_bytes / SHARED_MEMORY_SHARE).ok()?);
            let buffer = self.context.buffer(size.max(1)).ok()?;
            buffers.share(buffer, size);
        }
        buffers.part(bytes)
    }

    /// Free device memory, computed from this process' own allocations: OpenCL does not report it.
    fn free_bytes(&self) -> u64 {
        self.facts.memory_bytes.saturating_sub(self.buffers.borrow().bytes())
    }

    /// Calls `call` with the part of a buffer that begins at `at`.
    fn with_range<T>(&self, at: Address, bytes: usize, call: impl FnOnce(Range<'_>) -> ClResult<T>) -> Result<T> {
        let buffers = self.buffers.borrow();
        let Some((buffer, offset)) = buffers.find(at) else { return Err(self.fault(format!("no memory at {at:x}"))) };
        self.check(call(Range { buffer, offset, bytes }))
    }

    /// Sets a kernel's arguments. Returns the words of pinned memory among them.
    fn set_arguments(&self, loaded: &LoadedKernel, launch: &Launch, arguments: &Arguments) -> Result<Vec<Address>> {
        let (buffers, mut pinned, mut index) = (self.buffers.borrow(), Vec::new(), 0);
        for argument in arguments.each() {
            match argument {
                Argument::Value(words) => {
                    self.check(loaded.kernel.set_words(index, words))?;
                    index += 1;
                }
                Argument::Address(address) => {
                    let place = buffers.find(address);
                    if place.is_none() && !address.is_null() {
                        return Err(self.fault(format!("no memory at {address:x}")));
                    }
                    self.check(loaded.kernel.set_buffer(index, place.map(|(buffer, _)| buffer)))?;
                    self.check(loaded.kernel.set_words(index + 1, &[place.map_or(0, |(_, offset)| offset as u64)]))?;
                    index += 2;
                    if buffers.host_of(address).is_some() {
                        pinned.push(address);
                    }
                }
            }
        }
        if loaded.arguments == index + 1 {
            self.check(loaded.kernel.set_shared(index, (launch.shared_bytes as usize).max(SHARED_BYTES_MIN)))?;
        } else if loaded.arguments != index {
            let reason = format!("{} takes {} arguments, and was given {index}", loaded.name, loaded.arguments);
            return Err(self.fault(reason));
        }
        Ok(pinned)
    }

    /// Checks that the driver lets this kernel have a block of this size.
    fn check_block(&self, loaded: &LoadedKernel, launch: &Launch) -> Result<()> {
        let threads: u64 = launch.block.iter().map(|size| u64::from(*size)).product();
        let shared = loaded.shared_bytes.saturating_add(u64::from(launch.shared_bytes));
        // A driver that compiled a text for a block size must launch such blocks, even if it
        // reports a smaller limit.
        if loaded.threads_max > 0 && threads > loaded.threads_max && threads != loaded.threads_demanded {
            let (name, most) = (&loaded.name, loaded.threads_max);
            return Err(self.fault(format!("{name} needs blocks of {threads} threads; the driver lets it have {most}")));
        }
        if shared > self.facts.shared_bytes_max {
            let (name, most) = (&loaded.name, self.facts.shared_bytes_max);
            return Err(self.fault(format!("{name} needs {shared} bytes of block memory; the device has {most}")));
        }
        Ok(())
    }

    /// Copies the words of pinned memory that a launch names to the device, or back.
    fn exchange(&self, pinned: &[Address], stream: Stream, to_device: bool) -> Result<()> {
        for address in pinned {
            let Some(host) = self.buffers.borrow().host_of(*address) else { continue };
            self.with_range(*address, WORD_BYTES, |range| {
                // SAFETY: the word is in memory that the engine has pinned and keeps until the op
                // has finished; it is not read before that.
                self.push(stream, |queue| unsafe {
                    if to_device { queue.write(range, host) } else { queue.read(host, range) }
                })
            })?;
        }
        Ok(())
    }
}

/// The best way for threads to exchange values that works on this device.
fn find_warps(library: &Arc<Library>, device: DeviceHandle, facts: &Facts) -> Warps {
    let works = |warps: &Warps| *warps == Warps::ALONE || tries(library, device, facts, *warps).unwrap_or(false);
    Warps::candidates(facts).into_iter().find(works).unwrap_or(Warps::ALONE)
}

/// Runs the trial, and returns whether it wrote the expected words. The trial has a context of its
/// own, because a context is useless after a fault.
fn tries(library: &Arc<Library>, device: DeviceHandle, facts: &Facts, warps: Warps) -> Option<bool> {
    let context = &Arc::new(Context::new(library, device.0).ok()?);
    let queue = context.queue(device.0, 0).ok()?;
    let compiler = ProgramCompiler::new(context, device, facts, warps);
    let image = compiler.compile(&warps.trial().source(warps.target())).ok()?;
    let program = compiler.load(&image).ok()?;
    let kernel = program.kernel(c"panoply_entry_trial").ok()?;
    let expected = warps.expected();
    let mut words = vec![0_u32; expected.len()];
    let bytes = size_of_val(words.as_slice());
    let buffer = context.buffer(bytes).ok()?;
    kernel.set_buffer(0, Some(&buffer)).ok()?;
    kernel.set_words(1, &[0]).ok()?;
    // SAFETY: the buffer has room for the words of every thread, and is released after the queue
    // has finished.
    unsafe { queue.launch(&kernel, [TRIAL_THREADS, 1, 1], [TRIAL_THREADS, 1, 1]) }.ok()?;
    // SAFETY: the words are read after the queue has finished, below.
    unsafe { queue.read(words.as_mut_ptr().cast(), Range { buffer: &buffer, offset: 0, bytes }) }.ok()?;
    queue.finish().ok()?;
    Some(words == expected)
}

/// The card's sensors, and its free memory if the vendor has an extension that reports it.
impl Sensors for OpenClDriver {
    fn health(&self) -> Health {
        let mut health = self.sensors.borrow_mut().read();
        if self.facts.has("cl_amd_device_attribute_query") {
            let told = self.library.device_bytes(self.handle.0, sys::DEVICE_GLOBAL_FREE_MEMORY_AMD).ok();
            // KiB in all, and in the largest block.
            let kib = told.as_deref().and_then(|told| told.get(..size_of::<usize>())).map(calls::number);
            let reported = kib.map(|kib| MemoryUse::new(self.facts.memory_bytes, kib.saturating_mul(1024)));
            health.memory = reported.map(|memory| memory.at_most(health.memory)).or(health.memory);
        }
        health
    }
}

impl Driver for OpenClDriver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn make_current(&self) -> Result<()> {
        // Every call names its queue; there is no current context.
        Ok(())
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        Arc::clone(&self.compiler) as Arc<dyn Compiler>
    }

    fn load(&self, name: &str, image: &[u8], entry: &str) -> Result<Function> {
        let program = self.compiler.load(image).map_err(|reason| self.fault(format!("{name}: {reason}")))?;
        let entry = CString::new([OPENCL_ENTRY_PREFIX, entry].concat())
            .map_err(|_| self.fault("a kernel's name with a zero in it"))?;
        let kernel = self.check(program.kernel(&entry))?;
        let arguments = self.check(kernel.arguments())?;
        // If a driver does not report these, the launch itself checks them.
        let told = |what| kernel.on_device(self.handle.0, what).unwrap_or(0);
        let (threads_max, shared_bytes) = (told(sys::KERNEL_WORK_GROUP_SIZE), told(sys::KERNEL_LOCAL_MEM_SIZE));
        let threads_demanded = told(sys::KERNEL_COMPILE_WORK_GROUP_SIZE);
        let (name, _program) = (name.to_owned(), program);
        let loaded =
            Box::new(LoadedKernel { kernel, arguments, threads_max, threads_demanded, shared_bytes, name, _program });
        let place = NonNull::from(Box::leak(loaded)).cast();
        self.loaded.borrow_mut().insert(place);
        Ok(Function(place))
    }

    fn unload(&self, function: Function) {
        if self.loaded.borrow_mut().remove(&function.0) {
            // SAFETY: a box that `load` leaked, which is taken back once; it is not launched any
            // more.
            drop(unsafe { Box::from_raw(function.0.cast::<LoadedKernel>().as_ptr()) });
        }
    }

    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: a box that `load` leaked, and that `unload` takes back after the last launch.
        let loaded = unsafe { function.0.cast::<LoadedKernel>().as_ref() };
        self.check_block(loaded, launch)?;
        let pinned = self.set_arguments(loaded, launch, arguments)?;
        self.exchange(&pinned, stream, true)?;
        let local = launch.block.map(|size| size as usize);
        let global = std::array::from_fn(|axis| launch.blocks[axis] * local[axis]);
        // SAFETY: the caller vouches for the arguments.
        let launched = self.push(stream, |queue| unsafe { queue.launch(&loaded.kernel, global, local) });
        launched.map_err(|code| match self.error(code) {
            Error::DeviceFault { device, reason } => {
                Error::DeviceFault { device, reason: format!("{} was not launched: {reason}", loaded.name) }
            }
            other => other,
        })?;
        self.exchange(&pinned, stream, false)
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        if bytes as u64 > self.facts.allocation_bytes_max.min(self.free_bytes()) {
            return Err(self.out_of_memory(bytes));
        }
        if bytes <= SHARED_PART_BYTES_MAX
            && let Some(part) = self.shared_part(bytes)
        {
            return Ok(part);
        }
        let buffer: Buffer = self.context.buffer(bytes.max(1)).map_err(|code| match self.error(code) {
            Error::OutOfMemory { .. } => self.out_of_memory(bytes),
            other => other,
        })?;
        Ok(self.buffers.borrow_mut().insert(buffer, bytes))
    }

    fn free(&self, address: Address) {
        self.buffers.borrow_mut().remove(address);
    }

    fn shared_buffer(&self) -> Option<Address> {
        self.buffers.borrow().shared()
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        Ok((self.free_bytes(), self.facts.memory_bytes))
    }

    fn sensors(&self) -> Option<&dyn Sensors> {
        Some(self)
    }

    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        let has_own_memory = !self.facts.shares_host_memory && !self.facts.is_processor;
        // SAFETY: the range stays allocated until it is unpinned, which releases the buffer, or the
        // driver is dropped. If the driver cannot keep memory in place, it is copied like any other
        // memory.
        let kept = has_own_memory.then(|| unsafe { self.context.kept_in_place(start.as_ptr(), bytes) }.ok()).flatten();
        self.buffers.borrow_mut().pin(start.as_ptr(), bytes, kept);
        Ok(())
    }

    fn unpin(&self, start: NonNull<u8>) {
        self.buffers.borrow_mut().unpin(start.as_ptr());
    }

    fn is_pinned(&self, start: *const u8) -> bool {
        self.buffers.borrow().is_pinned(start)
    }

    fn pinned_address(&self, byte: *const u8) -> Result<Address> {
        match self.buffers.borrow_mut().pinned_address(byte, &self.context) {
            Some(Ok(address)) => Ok(address),
            Some(Err(code)) => Err(self.fault(code.to_string())),
            None => Err(self.fault("the byte is in no memory that was pinned")),
        }
    }

    unsafe fn lend(&self, start: *const u8, bytes: usize) -> Option<Address> {
        let fits = bytes >= LENT_BYTES_MIN && (start as usize).is_multiple_of(LENT_ALIGN_BYTES);
        if !self.facts.shares_host_memory || !fits {
            return None;
        }
        // SAFETY: the caller vouches for the range.
        let buffer = unsafe { self.context.host_buffer(start, bytes) }.ok()?;
        Some(self.buffers.borrow_mut().insert_lent(buffer))
    }

    fn take_back(&self, address: Address) {
        self.free(address);
    }

    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()> {
        if self.is_pinned(source) {
            let written = self.with_range(target, bytes, |range| {
                // SAFETY: the caller vouches for both ranges.
                self.push(stream, |queue| unsafe { queue.write(range, source) })
            });
            return written.map(drop);
        }
        // SAFETY: the caller vouches for the range, which is read before this returns.
        let parcel: Box<[u8]> = unsafe { std::slice::from_raw_parts(source, bytes) }.into();
        let sent = self.with_range(target, bytes, |range| {
            // SAFETY: the parcel is kept until its command has ended.
            self.push(stream, |queue| unsafe { queue.write(range, parcel.as_ptr()) })
        })?;
        let mut parcels = self.parcels.borrow_mut();
        while parcels.front().is_some_and(|(_, read)| read.is_past().unwrap_or(false)) {
            parcels.pop_front();
        }
        parcels.push_back((parcel, sent));
        Ok(())
    }

    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        let read = self.with_range(source, bytes, |range| {
            // SAFETY: the caller vouches for both ranges.
            self.push(stream, |queue| unsafe { queue.read(target, range) })
        });
        read.map(drop)
    }

    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        let buffers = self.buffers.borrow();
        let (Some(to), Some(from)) = (buffers.find(target), buffers.find(source)) else {
            return Err(self.fault(format!("no memory at {target:x} or {source:x}")));
        };
        let range = |(buffer, offset): (_, usize)| Range { buffer, offset, bytes };
        self.check(self.push(stream, |queue| queue.copy(range(to), range(from)))).map(drop)
    }

    fn fill(&self, target: Address, byte: u8, bytes: usize, stream: Stream) -> Result<()> {
        self.with_range(target, bytes, |range| self.push(stream, |queue| queue.fill(range, byte))).map(drop)
    }

    fn event(&self) -> Result<Event> {
        Ok(self.marks.add())
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.line(stream).set(&self.marks, event);
        Ok(())
    }

    fn is_past(&self, event: Event) -> Result<bool> {
        let mark = self.marks.get(event);
        if mark.before.borrow().is_none() {
            return Ok(true);
        }
        let line = &self.lines[mark.line.get()];
        // The commands that the host asks about must be submitted.
        line.flush().and_then(|()| line.is_past(mark)).map_err(|code| self.lost(code))
    }

    fn wait_for(&self, stream: Stream, event: Event) -> Result<()> {
        let mark = self.marks.get(event);
        match &*mark.before.borrow() {
            Some(last) => {
                // The commands that another queue waits for must be submitted.
                self.lines[mark.line.get()].flush().map_err(|code| self.lost(code))?;
                self.check(self.push(stream, |queue| queue.wait_for(last))).map(drop)
            }
            None => Ok(()),
        }
    }

    fn between(&self, start: Event, stop: Event) -> Result<Duration> {
        if !self.tells_times {
            return self.check(Err(Code(sys::PROFILING_INFO_NOT_AVAILABLE)));
        }
        let (began, ended) = (self.marks.get(start).began_at(), self.marks.get(stop).ended_at());
        let (Some(began), Some(ended)) = (began, ended) else { return Ok(Duration::ZERO) };
        Ok(Duration::from_nanos(self.check(ended)?.saturating_sub(self.check(began)?)))
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.line(stream).finish().map_err(|code| self.lost(code))
    }

    fn context_handle(&self) -> ContextHandle {
        Arc::clone(&self.context) as ContextHandle
    }

    fn reach(&self, _other: &ContextHandle) -> Result<()> {
        Err(self.fault("OpenCL's devices do not read each other's memory"))
    }
}

impl Drop for OpenClDriver {
    fn drop(&mut self) {
        // Work in flight uses memory that is dropped with the driver.
        for line in &self.lines {
            // A lost device has no work in flight.
            let _ = line.finish();
        }
        let loaded: Vec<NonNull<c_void>> = self.loaded.borrow().iter().copied().collect();
        loaded.into_iter().for_each(|function| self.unload(Function(function)));
    }
}

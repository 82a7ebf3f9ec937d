//! One emulated device: its memory is the host's, and its streams run everything immediately, or
//! late and shuffled if a test asks for that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::num::NonZero;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libloading::Library;
use panoply_core::{DeviceId, Error, Result};

use super::compiler::{HostCompiler, fresh_file};
use super::convolutions::Loops;
use super::memory::EmulatedMemory;
use super::recording::{RecordedCommand, Recording};
use super::streams::ShuffledStreams;
use crate::arguments::{Arguments, Bounds};
use crate::compile::Compiler;
use crate::driver::{
    Address, CapturedGraph, Captures, ContextHandle, Driver, Event, Function, LANES_MAX, Launch, Properties, Stream,
};
use crate::host_reads::HostReads;
use crate::library::Convolutions;

/// Size of the emulated device's memory.
const MEMORY_BYTES: u64 = 4 << 30;

/// Maximum number of commands that one call waits for.
const ROUNDS_MAX: usize = 1 << 20;

/// Maximum time of a launch of a caller's own kernel.
pub const LAUNCH_TIME_MAX: Duration = Duration::from_secs(30);

/// Number of the next driver, so that each thread knows which driver is current on it.
static OPENED: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Serialises launches, because kernels install signal handlers for the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Parameters: arguments, grid, block, bytes of block memory; the accessible ranges, their number,
/// and the time limit in nanoseconds. Returns the fault, or null.
type LaunchFunction =
    unsafe extern "C" fn(*mut *mut c_void, *const u32, *const u32, u64, *const Bounds, u64, u64) -> *const c_char;

/// An emulated device.
pub struct EmulatedDriver {
    device: DeviceId,
    number: u64,
    properties: Properties,
    compiler: Arc<HostCompiler>,
    launch_time_max: Duration,
    memory: Arc<EmulatedMemory>,
    /// Boxed, because the returned functions point to the elements.
    #[allow(clippy::vec_box)]
    functions: RefCell<Vec<Box<LoadedKernel>>>,
    recording: Recording,
    /// Convolutions in plain loops, if a test asks for such a library.
    loops: Option<Loops>,
    /// The kernel whose result gets one bit flipped, and the index of the byte.
    spoiled: Option<(&'static str, usize)>,
    /// Whether it has no memory of its own, so that kernels read pinned host memory in place.
    is_integrated: bool,
    /// The ranges of pinned host memory, by their starts.
    pinned: RefCell<BTreeMap<usize, usize>>,
    /// Queued copies from the host, if they are delayed until an operation needs them; `None` if
    /// copies are done at once.
    late: Option<RefCell<Vec<Upload>>>,
    lane: Rc<Cell<usize>>,
    /// Streams that run late and in a random order, if a test asks for that.
    shuffled: Option<Rc<ShuffledStreams>>,
    /// The first fault of such a stream.
    fault: RefCell<Option<Error>>,
    /// Number of calls that queue work or events, for tests.
    calls: Arc<AtomicU64>,
}

/// A copy from the host's memory to the device's.
struct Upload {
    target: Address,
    source: *const u8,
    bytes: usize,
}

struct LoadedKernel {
    launch: LaunchFunction,
    name: String,
    #[allow(dead_code)] // Held so that `launch` stays loaded.
    library: Library,
}

/// The index of an event of shuffled streams.
fn number_of(event: Event) -> usize {
    event.0.as_ptr().addr() - 1
}

/// Whether a kernel's name, which begins with its unit, has this entry.
fn is_entry(name: &str, entry: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    let own = name.split_once('/').map_or("", |(_, rest)| rest);
    own.split(|letter| !is_letter(letter)).next() == Some(entry)
}

impl EmulatedDriver {
    /// Records this operation if a recording is in progress.
    fn records(&self, one: impl FnOnce() -> RecordedCommand) -> bool {
        match &mut *self.recording.commands.borrow_mut() {
            Some(recording) => {
                recording.push(one());
                true
            }
            None => false,
        }
    }

    /// A device whose kernels this compiler compiles, with warps of `warp_lanes` lanes; current on
    /// the calling thread.
    pub fn new(device: DeviceId, compiler: PathBuf, warp_lanes: u32) -> EmulatedDriver {
        let properties = Properties {
            multiprocessors: 4,
            shared_bytes_max: 96 << 10,
            block_threads_max: 1024,
            warp_lanes,
            pointers: true,
            matrix_tiles: warp_lanes == 32,
            tiles_of_16: warp_lanes == 64,
            warp_groups: false,
        };
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        CURRENT.set(number);
        let compiler = Arc::new(HostCompiler::new(compiler, warp_lanes));
        EmulatedDriver {
            device,
            number,
            properties,
            compiler,
            launch_time_max: LAUNCH_TIME_MAX,
            memory: Arc::default(),
            functions: RefCell::default(),
            recording: Recording::default(),
            loops: None,
            spoiled: None,
            is_integrated: false,
            pinned: RefCell::default(),
            late: None,
            lane: Rc::default(),
            shuffled: None,
            fault: RefCell::default(),
            calls: Arc::default(),
        }
    }

    /// Delays copies from the host until an operation needs their target, as a device may. The
    /// source must stay valid until then.
    pub fn with_late_uploads(mut self) -> EmulatedDriver {
        self.late = Some(RefCell::default());
        self
    }

    /// Runs all work late and in a random order, as far as events allow: each stream overtakes the
    /// others. The memory that the work reads and writes must stay valid until the work has run. A
    /// kernel that fails loses the device.
    pub fn with_shuffled_streams(mut self, seed: u64) -> EmulatedDriver {
        let streams = Rc::new(ShuffledStreams::new(seed));
        // The cell is new: it has no streams yet.
        let _ = self.recording.shuffled.set((Rc::clone(&streams), Rc::clone(&self.lane)));
        self.shuffled = Some(streams);
        self
    }

    /// Counts the calls that queue work, record events or wait for them.
    pub fn with_counted_calls(mut self, calls: Arc<AtomicU64>) -> EmulatedDriver {
        self.calls = calls;
        self
    }

    /// Counts a call. Queues its work if streams are shuffled; returns the command otherwise.
    fn queue(&self, stream: Stream, command: RecordedCommand) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(streams) = &self.shuffled else { return self.perform(command) };
        streams.push(stream, self.lane.get(), command);
        self.advance(streams.below(3), false);
        Ok(())
    }

    /// Runs up to this many commands of shuffled streams; those of the stream that is held back
    /// only if it `is_urgent`.
    fn advance(&self, count: u64, is_urgent: bool) {
        let Some(streams) = &self.shuffled else { return };
        for _ in 0..count {
            let Some(command) = streams.next(is_urgent).filter(|_| self.fault.borrow().is_none()) else { return };
            if let Err(error) = self.perform(command) {
                let (device, reason) = (self.device, error.to_string());
                self.fault.borrow_mut().get_or_insert(Error::DeviceLost { device, reason });
            }
        }
    }

    /// The fault of an earlier command, or of its order.
    fn check_fault(&self) -> Result<()> {
        self.fault.borrow().clone().map_or(Ok(()), Err)
    }

    /// Performs a command now.
    fn perform(&self, command: RecordedCommand) -> Result<()> {
        match command {
            RecordedCommand::Launch(function, launch, mut arguments) => self.run(function, &launch, &mut arguments),
            RecordedCommand::Copy { target, source, bytes } => {
                if let Some(late) = &self.late {
                    late.borrow_mut().push(Upload { target, source, bytes });
                    return Ok(());
                }
                // SAFETY: the caller guaranteed both ranges; the device's memory is the host's.
                unsafe { std::ptr::copy(source, target.0 as *mut u8, bytes) };
                Ok(())
            }
            RecordedCommand::Download { target, source, bytes } => {
                self.catch_up();
                // SAFETY: as above.
                unsafe { std::ptr::copy(source.0 as *const u8, target, bytes) };
                if let Some((_, byte)) = self.spoiled.filter(|(kernel, byte)| *kernel == "download" && *byte < bytes) {
                    // SAFETY: the byte is within the range that was just written.
                    unsafe { *target.add(byte) ^= 1 };
                }
                Ok(())
            }
            RecordedCommand::Fill { target, byte, bytes } => {
                self.catch_up();
                // SAFETY: the range is within an allocation of this device.
                unsafe { std::ptr::write_bytes(target.0 as *mut u8, byte, bytes) };
                Ok(())
            }
            RecordedCommand::Call(call) => {
                self.catch_up();
                call();
                Ok(())
            }
        }
    }

    /// Runs a kernel now.
    fn run(&self, function: Function, launch: &Launch, arguments: &mut Arguments) -> Result<()> {
        self.catch_up();
        // SAFETY: functions are made only by `load` and live until `unload`.
        let loaded = unsafe { function.0.cast::<LoadedKernel>().as_ref() };
        let bounds = arguments.bounds().to_vec();
        // A checked kernel raises no signals and has separate state, so it needs no lock; if it
        // does not end, it must not block the others.
        let _one = bounds.is_empty().then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
        let time_max_ns = u64::try_from(self.launch_time_max.as_nanos()).unwrap_or(u64::MAX / 2);
        // SAFETY: the caller of `launch` guarantees the arguments; grid and block have three
        // numbers each, and the bounds are a slice.
        let failure = unsafe {
            (loaded.launch)(
                arguments.pointers().as_mut_ptr(),
                launch.grid_u32().as_ptr(),
                launch.block.as_ptr(),
                u64::from(launch.shared_bytes),
                bounds.as_ptr(),
                bounds.len() as u64,
                time_max_ns,
            )
        };
        if !failure.is_null() {
            // SAFETY: a failure is a string in the library's own memory, which the next launch
            // overwrites.
            let reason = unsafe { CStr::from_ptr(failure) }.to_string_lossy().into_owned();
            let kernel = loaded.name.split('/').next().unwrap_or_default().to_owned();
            return Err(Error::KernelFault { kernel, reason });
        }
        self.spoil_launch(&loaded.name, arguments);
        self.check_guards(&loaded.name)
    }

    /// Makes it a device without memory of its own, whose kernels read pinned host memory in place.
    pub fn integrated(mut self) -> EmulatedDriver {
        self.is_integrated = true;
        self
    }

    /// Performs the delayed copies.
    fn catch_up(&self) {
        for Upload { target, source, bytes } in self.late.iter().flat_map(RefCell::take) {
            // SAFETY: the caller of `upload` guarantees both ranges until the stream has passed the
            // copy.
            unsafe { std::ptr::copy(source, target.0 as *mut u8, bytes) };
        }
    }

    /// Adds groups of warps that multiply together, and the block memory of devices that have them.
    pub fn with_warp_groups(mut self) -> EmulatedDriver {
        self.properties.warp_groups = true;
        self.properties.shared_bytes_max = 227 << 10;
        self
    }

    /// Injects a fault. After each launch of `kernel`, the lowest bit of byte `byte` of its first
    /// argument's memory is flipped; for `download`, that byte of every download that is long
    /// enough.
    pub fn with_spoiled(mut self, kernel: &'static str, byte: usize) -> EmulatedDriver {
        self.spoiled = Some((kernel, byte));
        self
    }

    /// Puts a fault into the text of kernels: behind this line, wherever it occurs, this statement
    /// runs too.
    pub fn with_altered(mut self, compiler: PathBuf, line: &'static str, statement: &'static str) -> EmulatedDriver {
        self.compiler = Arc::new(HostCompiler::new(compiler, self.properties.warp_lanes).altered(line, statement));
        self
    }

    /// Flips a bit if this launch must be spoiled.
    fn spoil_launch(&self, name: &str, arguments: &mut Arguments) {
        let Some((_, byte)) = self.spoiled.filter(|(kernel, _)| is_entry(name, kernel)) else { return };
        let Some(first) = arguments.pointers().first() else { return };
        // SAFETY: the first argument of the kernels that tests name is the address of their output,
        // which is longer than `byte`.
        unsafe {
            let written = first.cast::<u64>().read() as *mut u8;
            *written.add(byte) ^= 1;
        }
    }

    /// Adds a library of convolutions in plain loops.
    pub fn with_convolutions(mut self) -> EmulatedDriver {
        self.loops = Some(Loops::new(Rc::clone(&self.recording)));
        self
    }

    /// Sets the time limit for one launch of a caller's own kernel.
    pub fn launch_time_max(mut self, limit: Duration) -> EmulatedDriver {
        self.launch_time_max = limit;
        self
    }

    fn fault(&self, reason: impl Into<String>) -> Error {
        Error::DeviceFault { device: self.device, reason: reason.into() }
    }

    /// As strict as CUDA, whose calls apply to the thread's current device.
    fn expect_current(&self) -> Result<()> {
        if CURRENT.get() == self.number { Ok(()) } else { Err(self.fault("another device is current on this thread")) }
    }

    /// Detects a kernel that wrote past the end of an allocation.
    fn check_guards(&self, name: &str) -> Result<()> {
        match self.memory.are_guards_whole() {
            true => Ok(()),
            false => Err(self.fault(format!("{name} wrote past the end of an allocation"))),
        }
    }
}

impl Driver for EmulatedDriver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn make_current(&self) -> Result<()> {
        CURRENT.set(self.number);
        Ok(())
    }

    fn lanes(&self) -> usize {
        LANES_MAX
    }

    fn use_lane(&self, lane: usize) {
        self.lane.set(lane);
    }

    fn context_handle(&self) -> ContextHandle {
        Arc::clone(&self.memory) as ContextHandle
    }

    fn reach(&self, other: &ContextHandle) -> Result<()> {
        self.expect_current()?;
        if other.is::<EmulatedMemory>() { Ok(()) } else { Err(self.fault("the other is not emulated")) }
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.expect_current()?;
        let free = MEMORY_BYTES - self.memory.used_bytes();
        let out_of_memory =
            || Error::OutOfMemory { place: self.device.to_string(), asked: bytes as u64, free, largest: free };
        if bytes as u64 > free {
            return Err(out_of_memory());
        }
        self.memory.allocate(bytes).ok_or_else(out_of_memory)
    }

    fn free(&self, address: Address) {
        self.catch_up();
        match self.shuffled {
            Some(_) => self.memory.spoil(address),
            None => self.memory.free(address),
        }
    }

    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        self.pinned.borrow_mut().insert(start.addr().get(), bytes);
        Ok(())
    }

    fn unpin(&self, start: NonNull<u8>) {
        self.pinned.borrow_mut().remove(&start.addr().get());
    }

    fn is_pinned(&self, start: *const u8) -> bool {
        let pinned = self.pinned.borrow();
        let before = pinned.range(..=start.addr()).next_back();
        self.is_integrated && before.is_some_and(|(first, bytes)| start.addr() - first < *bytes)
    }

    unsafe fn lend(&self, start: *const u8, bytes: usize) -> Option<Address> {
        let reads = HostReads::of(self.is_integrated, true, false);
        reads.include(start, bytes, || self.is_pinned(start)).then_some(Address(start as u64))
    }

    fn pinned_address(&self, byte: *const u8) -> Result<Address> {
        Ok(Address(byte as u64))
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        self.expect_current()?;
        Ok((MEMORY_BYTES - self.memory.used_bytes(), MEMORY_BYTES))
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        Arc::clone(&self.compiler) as Arc<dyn Compiler>
    }

    fn load(&self, name: &str, image: &[u8], _entry: &str) -> Result<Function> {
        self.expect_current()?;
        // Each load uses a separate file, and therefore a separate copy of the emulator's state.
        let file = fresh_file("loaded");
        let written = std::fs::File::options().write(true).create_new(true).open(&file);
        written.and_then(|mut opened| opened.write_all(image)).map_err(|error| self.fault(error.to_string()))?;
        // SAFETY: the compiler made the file from this project's text; loading it runs no code
        // except its empty initialisers.
        let library = unsafe { Library::new(&file) }.map_err(|error| self.fault(error.to_string()));
        // A loaded library no longer needs its file name.
        let _ = std::fs::remove_file(&file);
        let library = library?;
        // SAFETY: every emulated kernel exports this function with this signature.
        let launch = unsafe { library.get::<LaunchFunction>(b"panoply_launch\0") }
            .map(|symbol| *symbol)
            .map_err(|error| self.fault(error.to_string()))?;
        let loaded = Box::new(LoadedKernel { launch, name: name.to_owned(), library });
        let function = Function(NonNull::from(&*loaded).cast());
        self.functions.borrow_mut().push(loaded);
        Ok(function)
    }

    fn unload(&self, function: Function) {
        if self.shuffled.as_ref().is_some_and(|streams| streams.uses(function)) {
            let (device, reason) = (self.device, "a kernel was unloaded before it ran".to_owned());
            self.fault.borrow_mut().get_or_insert(Error::DeviceLost { device, reason });
            return;
        }
        self.functions.borrow_mut().retain(|loaded| Function(NonNull::from(&**loaded).cast()) != function);
    }

    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        stream: Stream,
    ) -> Result<()> {
        self.expect_current()?;
        if launch.blocks.contains(&0) || launch.block.contains(&0) {
            return Err(self.fault(format!("a launch of {launch:?}")));
        }
        let command = || RecordedCommand::Launch(function, *launch, Box::new(arguments.clone()));
        if self.records(command) {
            return Ok(());
        }
        if self.shuffled.is_some() {
            return self.queue(stream, command());
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.run(function, launch, arguments)
    }

    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()> {
        self.expect_current()?;
        let command = RecordedCommand::Copy { target, source, bytes };
        if self.records(|| command.clone()) { Ok(()) } else { self.queue(stream, command) }
    }

    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        self.expect_current()?;
        self.queue(stream, RecordedCommand::Download { target, source, bytes })
    }

    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: both addresses are allocations of this device, which is the host's memory.
        unsafe { self.upload(target, source.0 as *const u8, bytes, stream) }
    }

    fn fill(&self, target: Address, byte: u8, bytes: usize, stream: Stream) -> Result<()> {
        self.expect_current()?;
        let command = RecordedCommand::Fill { target, byte, bytes };
        if self.records(|| command.clone()) { Ok(()) } else { self.queue(stream, command) }
    }

    fn event(&self) -> Result<Event> {
        self.expect_current()?;
        let number = self.shuffled.as_ref().map_or(0, |streams| streams.event());
        Ok(Event(NonNull::without_provenance(NonZero::<usize>::MIN.saturating_add(number))))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(streams) = &self.shuffled {
            streams.record(number_of(event), stream, self.lane.get());
        }
        Ok(())
    }

    fn is_past(&self, event: Event) -> Result<bool> {
        self.catch_up();
        let Some(streams) = &self.shuffled else { return Ok(true) };
        self.advance(1 + streams.below(3), true);
        self.check_fault()?;
        Ok(streams.is_past(number_of(event)))
    }

    fn wait_for(&self, stream: Stream, event: Event) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(streams) = &self.shuffled {
            streams.wait_for(stream, self.lane.get(), number_of(event));
        }
        Ok(())
    }

    fn between(&self, _start: Event, _stop: Event) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.catch_up();
        let Some(streams) = &self.shuffled else { return Ok(()) };
        // Every round runs a command, or passes events.
        for _ in 0..ROUNDS_MAX {
            self.check_fault()?;
            if streams.is_empty(stream, self.lane.get()) {
                return Ok(());
            }
            self.advance(1, true);
        }
        Err(self.fault("streams wait for each other"))
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }

    fn convolutions(&self) -> Option<&dyn Convolutions> {
        self.loops.as_ref().map(|loops| loops as &dyn Convolutions)
    }
}

impl Captures for EmulatedDriver {
    fn begin(&self) -> Result<()> {
        self.expect_current()?;
        match self.recording.commands.borrow_mut().replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(self.fault("a recording is being made already")),
        }
    }

    fn end(&self) -> Result<CapturedGraph> {
        let recording =
            self.recording.commands.borrow_mut().take().ok_or_else(|| self.fault("no recording is being made"))?;
        Ok(CapturedGraph(NonNull::from(Box::leak(Box::new(recording))).cast()))
    }

    unsafe fn replay(&self, captured: CapturedGraph) -> Result<()> {
        // SAFETY: recordings are made only by `end` and live until `release`.
        let recording = unsafe { captured.0.cast::<Vec<RecordedCommand>>().as_ref() };
        recording.iter().try_for_each(|command| self.queue(Stream::Compute, command.clone()))
    }

    fn release(&self, captured: CapturedGraph) {
        // SAFETY: made by `end` with this type, and released once.
        drop(unsafe { Box::from_raw(captured.0.cast::<Vec<RecordedCommand>>().as_ptr()) });
    }
}

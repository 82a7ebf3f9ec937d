//! One emulated device: its memory is the host's, and its streams run everything immediately.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libloading::Library;
use panoply_core::{DeviceId, Error, Result};

use super::compiler::{HostCompiler, fresh_file};
use super::convolutions::Loops;
use crate::arguments::{Arguments, Bounds};
use crate::compile::Compiler;
use crate::driver::{
    Address, CapturedGraph, Captures, ContextHandle, Driver, Event, Function, Launch, Properties, Stream,
};
use crate::host_reads::HostReads;
use crate::library::Convolutions;

/// Size of the emulated device's memory.
const MEMORY_BYTES: u64 = 4 << 30;
const ALIGN_BYTES: usize = 256;
/// Guard bytes after every allocation, which no kernel may touch.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xab;

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
}

/// A copy from the host's memory to the device's.
struct Upload {
    target: Address,
    source: *const u8,
    bytes: usize,
}

/// The work queued since a recording began; `None` while nothing is recorded.
pub(super) type Recording = Rc<RecordingCell>;

/// The same, shared by the device and its library.
#[derive(Default)]
pub(super) struct RecordingCell(RefCell<Option<Vec<RecordedCommand>>>);

impl RecordingCell {
    /// Performs a library's work, or records it.
    pub(super) fn call(&self, call: Rc<dyn Fn()>) {
        match &mut *self.0.borrow_mut() {
            Some(recording) => recording.push(RecordedCommand::Call(call)),
            None => call(),
        }
    }
}

/// The device's memory. It is freed as a whole after its last user is gone.
#[derive(Default)]
struct EmulatedMemory {
    blocks: Mutex<HashMap<Address, Layout>>,
    used_bytes: AtomicU64,
}

impl EmulatedMemory {
    fn blocks(&self) -> MutexGuard<'_, HashMap<Address, Layout>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn free(&self, address: Address) {
        if let Some(layout) = self.blocks().remove(&address) {
            self.used_bytes.fetch_sub((layout.size() - GUARD_BYTES) as u64, Ordering::Relaxed);
            // SAFETY: allocated with this layout, and removed from the table that held it.
            unsafe { dealloc(address.0 as *mut u8, layout) };
        }
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        let addresses: Vec<Address> = self.blocks().keys().copied().collect();
        addresses.into_iter().for_each(|address| self.free(address));
    }
}

struct LoadedKernel {
    launch: LaunchFunction,
    name: String,
    #[allow(dead_code)] // Held so that `launch` stays loaded.
    library: Library,
}

/// A recorded operation.
enum RecordedCommand {
    Launch(Function, Launch, Box<Arguments>),
    Copy { target: Address, source: *const u8, bytes: usize },
    Fill { target: Address, byte: u8, bytes: usize },
    Call(Rc<dyn Fn()>),
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
        match &mut *self.recording.0.borrow_mut() {
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
        }
    }

    /// Delays copies from the host until an operation needs their target, as a device may. The
    /// source must stay valid until then.
    pub fn with_late_uploads(mut self) -> EmulatedDriver {
        self.late = Some(RefCell::default());
        self
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
        for (address, layout) in &*self.memory.blocks() {
            let guard = (address.0 as usize + layout.size() - GUARD_BYTES) as *const u8;
            // SAFETY: the guard is the end of an allocation of this layout that is still alive.
            let bytes = unsafe { std::slice::from_raw_parts(guard, GUARD_BYTES) };
            if bytes.iter().any(|byte| *byte != GUARD) {
                return Err(self.fault(format!("{name} wrote past the end of an allocation")));
            }
        }
        Ok(())
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
        let layout = Layout::from_size_align(bytes + GUARD_BYTES, ALIGN_BYTES).map_err(|_| out_of_memory())?;
        // SAFETY: the layout's size is above zero.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(out_of_memory)?;
        // SAFETY: the allocation has this size. The fill pattern exposes memory that no kernel has
        // written.
        unsafe { start.as_ptr().write_bytes(0xcd, bytes) };
        // SAFETY: the guard is the allocation's end.
        unsafe { start.as_ptr().add(bytes).write_bytes(GUARD, GUARD_BYTES) };
        self.memory.used_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let address = Address(start.as_ptr() as u64);
        self.memory.blocks().insert(address, layout);
        Ok(address)
    }

    fn free(&self, address: Address) {
        self.catch_up();
        self.memory.free(address);
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
        self.functions.borrow_mut().retain(|loaded| Function(NonNull::from(&**loaded).cast()) != function);
    }

    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        _stream: Stream,
    ) -> Result<()> {
        self.expect_current()?;
        if launch.blocks.contains(&0) || launch.block.contains(&0) {
            return Err(self.fault(format!("a launch of {launch:?}")));
        }
        if self.records(|| RecordedCommand::Launch(function, *launch, Box::new(arguments.clone()))) {
            return Ok(());
        }
        self.catch_up();
        // SAFETY: functions are made only by `load` and live until `unload`.
        let loaded = unsafe { function.0.cast::<LoadedKernel>().as_ref() };
        let bounds = arguments.bounds().to_vec();
        // A checked kernel raises no signals and has separate state, so it needs no lock; if it
        // does not end, it must not block the others.
        let _one = bounds.is_empty().then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
        let time_max_ns = u64::try_from(self.launch_time_max.as_nanos()).unwrap_or(u64::MAX / 2);
        // SAFETY: the caller guarantees the arguments; grid and block have three numbers each, and
        // the bounds are a slice.
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

    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, _stream: Stream) -> Result<()> {
        self.expect_current()?;
        if self.records(|| RecordedCommand::Copy { target, source, bytes }) {
            return Ok(());
        }
        if let Some(late) = &self.late {
            late.borrow_mut().push(Upload { target, source, bytes });
            return Ok(());
        }
        // SAFETY: the caller guarantees both ranges; the device's memory is the host's.
        unsafe { std::ptr::copy(source, target.0 as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, _stream: Stream) -> Result<()> {
        self.expect_current()?;
        self.catch_up();
        // SAFETY: as above.
        unsafe { std::ptr::copy(source.0 as *const u8, target, bytes) };
        if let Some((_, byte)) = self.spoiled.filter(|(kernel, byte)| *kernel == "download" && *byte < bytes) {
            // SAFETY: the byte is within the range that was just written.
            unsafe { *target.add(byte) ^= 1 };
        }
        Ok(())
    }

    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: both addresses are allocations of this device, which is the host's memory.
        unsafe { self.upload(target, source.0 as *const u8, bytes, stream) }
    }

    fn fill(&self, target: Address, byte: u8, bytes: usize, _stream: Stream) -> Result<()> {
        self.expect_current()?;
        if self.records(|| RecordedCommand::Fill { target, byte, bytes }) {
            return Ok(());
        }
        self.catch_up();
        // SAFETY: the range is within an allocation of this device.
        unsafe { std::ptr::write_bytes(target.0 as *mut u8, byte, bytes) };
        Ok(())
    }

    fn event(&self) -> Result<Event> {
        self.expect_current()?;
        Ok(Event(NonNull::dangling()))
    }

    fn record(&self, _event: Event, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn is_past(&self, _event: Event) -> Result<bool> {
        self.catch_up();
        Ok(true)
    }

    fn wait_for(&self, _stream: Stream, _event: Event) -> Result<()> {
        Ok(())
    }

    fn between(&self, _start: Event, _stop: Event) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        self.catch_up();
        Ok(())
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
        match self.recording.0.borrow_mut().replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(self.fault("a recording is being made already")),
        }
    }

    fn end(&self) -> Result<CapturedGraph> {
        let recording = self.recording.0.borrow_mut().take().ok_or_else(|| self.fault("no recording is being made"))?;
        Ok(CapturedGraph(NonNull::from(Box::leak(Box::new(recording))).cast()))
    }

    unsafe fn replay(&self, captured: CapturedGraph) -> Result<()> {
        // SAFETY: recordings are made only by `end` and live until `release`.
        let recording = unsafe { captured.0.cast::<Vec<RecordedCommand>>().as_ref() };
        for one in recording {
            match one {
                RecordedCommand::Launch(function, launch, arguments) => {
                    let mut arguments = (**arguments).clone();
                    // SAFETY: the caller guarantees the recorded addresses.
                    unsafe { self.launch(*function, launch, &mut arguments, Stream::Compute)? };
                }
                // SAFETY: as above.
                RecordedCommand::Copy { target, source, bytes } => unsafe {
                    self.upload(*target, *source, *bytes, Stream::Compute)?;
                },
                RecordedCommand::Fill { target, byte, bytes } => self.fill(*target, *byte, *bytes, Stream::Compute)?,
                RecordedCommand::Call(call) => {
                    self.catch_up();
                    call();
                }
            }
        }
        Ok(())
    }

    fn release(&self, captured: CapturedGraph) {
        // SAFETY: made by `end` with this type, and released once.
        drop(unsafe { Box::from_raw(captured.0.cast::<Vec<RecordedCommand>>().as_ptr()) });
    }
}

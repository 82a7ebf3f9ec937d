//! One emulated device: its memory is the host's, its streams do everything at once.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
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
use crate::driver::{Address, Captured, Captures, ContextHandle, Driver, Event, Function, Launch, Properties, Stream};
use crate::library::Convolutions;

/// Memory that the emulated device has.
const MEMORY_BYTES: u64 = 4 << 30;
const ALIGN_BYTES: usize = 256;
/// Bytes after every allocation that no kernel may touch.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xab;

/// How long a launch of a kernel of the caller's own may take.
pub const LAUNCH_TIME_MAX: Duration = Duration::from_secs(30);

/// Names of drivers, so that each thread knows which one is current on it.
static OPENED: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// One kernel at a time is enough for tests, and leaves the handlers of signals to one of them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Arguments, grid, block, bytes of block memory; what may be reached, how many, and for how many nanoseconds. Returns what
/// went wrong, or nothing.
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
    /// Each in a place of its own, which the functions that were handed out point to.
    #[allow(clippy::vec_box)]
    functions: RefCell<Vec<Box<Loaded>>>,
    recording: Recording,
    /// Convolutions in loops, where tests want a library.
    loops: Option<Loops>,
}

/// What was queued since a recording began, while one is made.
pub(super) type Recording = Rc<RecordingCell>;

/// The same, in one place for the device and its library.
#[derive(Default)]
pub(super) struct RecordingCell(RefCell<Option<Vec<Recorded>>>);

impl RecordingCell {
    /// Does what a library does, or records it.
    pub(super) fn call(&self, call: Rc<dyn Fn()>) {
        match &mut *self.0.borrow_mut() {
            Some(recording) => recording.push(Recorded::Call(call)),
            None => call(),
        }
    }
}

/// The device's memory; it is freed as a whole, when nobody reads it any more.
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
            // SAFETY: allocated with this layout, and taken out of the table that knew it.
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

struct Loaded {
    launch: LaunchFunction,
    name: String,
    #[allow(dead_code)] // Held so that `launch` stays loaded.
    library: Library,
}

/// One thing that was recorded instead of done.
enum Recorded {
    Launch(Function, Launch, Box<Arguments>),
    Copy { target: Address, source: *const u8, bytes: usize },
    Fill { target: Address, byte: u8, bytes: usize },
    Call(Rc<dyn Fn()>),
}

impl EmulatedDriver {
    /// Records this, where a recording is made.
    fn records(&self, one: impl FnOnce() -> Recorded) -> bool {
        match &mut *self.recording.0.borrow_mut() {
            Some(recording) => {
                recording.push(one());
                true
            }
            None => false,
        }
    }

    /// A device whose kernels this program compiles, with warps of so many lanes; current on the calling thread.
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
        }
    }

    /// With groups of warps that multiply together, and the block memory of devices that have them.
    pub fn with_warp_groups(mut self) -> EmulatedDriver {
        self.properties.warp_groups = true;
        self.properties.shared_bytes_max = 227 << 10;
        self
    }

    /// With convolutions by a library of plain loops.
    pub fn with_convolutions(mut self) -> EmulatedDriver {
        self.loops = Some(Loops::new(Rc::clone(&self.recording)));
        self
    }

    /// With another limit for one launch of a kernel of the caller's own.
    pub fn launch_time_max(mut self, limit: Duration) -> EmulatedDriver {
        self.launch_time_max = limit;
        self
    }

    fn fault(&self, reason: impl Into<String>) -> Error {
        Error::DeviceFault { device: self.device, reason: reason.into() }
    }

    /// As strict as CUDA, whose calls are about the device that is current on the thread.
    fn expect_current(&self) -> Result<()> {
        if CURRENT.get() == self.number { Ok(()) } else { Err(self.fault("another device is current on this thread")) }
    }

    /// A kernel that wrote past the end of an allocation is found here.
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
        // SAFETY: the allocation has this size. The garbage shows what no kernel has written.
        unsafe { start.as_ptr().write_bytes(0xcd, bytes) };
        // SAFETY: the guard is the allocation's end.
        unsafe { start.as_ptr().add(bytes).write_bytes(GUARD, GUARD_BYTES) };
        self.memory.used_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let address = Address(start.as_ptr() as u64);
        self.memory.blocks().insert(address, layout);
        Ok(address)
    }

    fn free(&self, address: Address) {
        self.memory.free(address);
    }

    unsafe fn pin(&self, _start: NonNull<u8>, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn unpin(&self, _start: NonNull<u8>) {}

    fn is_pinned(&self, _start: *const u8) -> bool {
        false
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
        // Each load has a file of its own, and so its own copy of the emulator's state.
        let file = fresh_file("loaded");
        let written = std::fs::File::options().write(true).create_new(true).open(&file);
        written.and_then(|mut opened| opened.write_all(image)).map_err(|error| self.fault(error.to_string()))?;
        // SAFETY: the file was made by the compiler from our own text; loading it runs no code but its empty
        // initialisers.
        let library = unsafe { Library::new(&file) }.map_err(|error| self.fault(error.to_string()));
        // What is loaded needs its name no more.
        let _ = std::fs::remove_file(&file);
        let library = library?;
        // SAFETY: every emulated kernel exports this function with this signature.
        let launch = unsafe { library.get::<LaunchFunction>(b"panoply_launch\0") }
            .map(|symbol| *symbol)
            .map_err(|error| self.fault(error.to_string()))?;
        let loaded = Box::new(Loaded { launch, name: name.to_owned(), library });
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
        if self.records(|| Recorded::Launch(function, *launch, Box::new(arguments.clone()))) {
            return Ok(());
        }
        // SAFETY: functions are made by `load` alone and live until `unload`.
        let loaded = unsafe { function.0.cast::<Loaded>().as_ref() };
        let bounds = arguments.bounds().to_vec();
        // A kernel that is checked raises no signals, and its state is its own; one that does not end must not keep the others.
        let _one = bounds.is_empty().then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
        let time_max_ns = u64::try_from(self.launch_time_max.as_nanos()).unwrap_or(u64::MAX / 2);
        // SAFETY: the caller vouches for the arguments; grid and block have three numbers each, and the bounds are a slice.
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
            // SAFETY: a failure is a string in the library's own memory, which the next launch overwrites.
            let reason = unsafe { CStr::from_ptr(failure) }.to_string_lossy().into_owned();
            let kernel = loaded.name.split('/').next().unwrap_or_default().to_owned();
            return Err(Error::KernelFault { kernel, reason });
        }
        self.check_guards(&loaded.name)
    }

    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, _stream: Stream) -> Result<()> {
        self.expect_current()?;
        if self.records(|| Recorded::Copy { target, source, bytes }) {
            return Ok(());
        }
        // SAFETY: the caller vouches for both ranges; the device's memory is the host's.
        unsafe { std::ptr::copy(source, target.0 as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, _stream: Stream) -> Result<()> {
        self.expect_current()?;
        // SAFETY: as above.
        unsafe { std::ptr::copy(source.0 as *const u8, target, bytes) };
        Ok(())
    }

    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: both addresses are allocations of this device, which is the host's memory.
        unsafe { self.upload(target, source.0 as *const u8, bytes, stream) }
    }

    fn fill(&self, target: Address, byte: u8, bytes: usize, _stream: Stream) -> Result<()> {
        self.expect_current()?;
        if self.records(|| Recorded::Fill { target, byte, bytes }) {
            return Ok(());
        }
        // SAFETY: the range lies in an allocation of this device.
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
        Ok(true)
    }

    fn wait_for(&self, _stream: Stream, _event: Event) -> Result<()> {
        Ok(())
    }

    fn between(&self, _start: Event, _stop: Event) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
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

    fn end(&self) -> Result<Captured> {
        let recording = self.recording.0.borrow_mut().take().ok_or_else(|| self.fault("no recording is being made"))?;
        Ok(Captured(NonNull::from(Box::leak(Box::new(recording))).cast()))
    }

    unsafe fn replay(&self, captured: Captured) -> Result<()> {
        // SAFETY: recordings are made by `end` alone and live until `release`.
        let recording = unsafe { captured.0.cast::<Vec<Recorded>>().as_ref() };
        for one in recording {
            match one {
                Recorded::Launch(function, launch, arguments) => {
                    let mut arguments = (**arguments).clone();
                    // SAFETY: the caller vouches for what was recorded.
                    unsafe { self.launch(*function, launch, &mut arguments, Stream::Compute)? };
                }
                // SAFETY: as above.
                Recorded::Copy { target, source, bytes } => unsafe {
                    self.upload(*target, *source, *bytes, Stream::Compute)?;
                },
                Recorded::Fill { target, byte, bytes } => self.fill(*target, *byte, *bytes, Stream::Compute)?,
                Recorded::Call(call) => call(),
            }
        }
        Ok(())
    }

    fn release(&self, captured: Captured) {
        // SAFETY: made by `end` with this type, and given back once.
        drop(unsafe { Box::from_raw(captured.0.cast::<Vec<Recorded>>().as_ptr()) });
    }
}

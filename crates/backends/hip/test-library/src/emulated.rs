//! The emulated device. Its memory is the host's, and its streams run everything immediately. The
//! system's C++ compiler compiles its kernels, with HIP's built-ins over threads that are fibres.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;
use panoply_c_gpu::compile::Compiler;
use panoply_c_gpu::emulated::{HostCompiler, find_compiler};
use panoply_kernels::c::EMULATION;

use crate::device::{
    ATTRIBUTE_CAN_MAP_HOST_MEMORY, ATTRIBUTE_INTEGRATED, ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
    ATTRIBUTE_MAX_THREADS_PER_BLOCK, ATTRIBUTE_MULTIPROCESSOR_COUNT, ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    ATTRIBUTE_PCI_BUS_ID, ATTRIBUTE_PCI_DEVICE_ID, ATTRIBUTE_PCI_DOMAIN_ID, ATTRIBUTE_WARP_SIZE, CopyDirection, Device,
    Handle, HipResult, INVALID_DEVICE, INVALID_IMAGE, INVALID_VALUE, LAUNCH_FAILURE, NOT_FOUND, OUT_OF_MEMORY, Size,
    StreamWork,
};
use crate::trouble;

const WORDS: &str = include_str!("emulated_words.h");
const MEMORY_BYTES: usize = 4 << 30;
const SHARED_BYTES: c_int = 64 << 10;
const ALIGN_BYTES: usize = 256;
/// Guard bytes after every allocation, which no kernel may write.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xab;
/// The first bytes of an image. Its length follows, since HIP does not pass the length.
const MAGIC: &[u8; 8] = b"emulated";
/// Maximum number of a kernel's arguments.
const ARGUMENTS_MAX: usize = 128;
/// A kernel's declaration after preprocessing, up to its name.
const ENTRY: &str = "extern \"C\" __attribute__((visibility(\"default\"))) void ";

static FILES: AtomicU64 = AtomicU64::new(0);

type LaunchFunction = unsafe extern "C" fn(*mut Handle, *const u32, *const u32, u64) -> *const c_char;
type SizesFunction = unsafe extern "C" fn(*mut u32) -> u32;

/// All emulated devices of the process.
#[derive(Default)]
pub struct EmulatedDevices {
    blocks: Mutex<BTreeMap<usize, Layout>>,
    pinned: Mutex<BTreeMap<usize, usize>>,
    /// Only one kernel runs at a time, because kernels install signal handlers.
    running: Mutex<()>,
    compiler: OnceLock<Result<(HostCompiler, String), String>>,
}

/// A stream runs its work immediately, or records it during a capture.
#[derive(Default)]
struct Stream {
    recording: Option<Vec<RecordedCommand>>,
}

#[derive(Clone)]
enum RecordedCommand {
    Launch { function: Handle, size: Size, arguments: Vec<Vec<u64>> },
    Copy { target: Handle, source: Handle, bytes: usize },
    Fill { target: Handle, byte: u8, bytes: usize },
    Work(StreamWork),
}

thread_local! {
    /// Number of kernels that this thread has run.
    static KERNELS: Cell<u32> = const { Cell::new(0) };
}

/// The time at which an event was recorded. The clock counts kernels: each takes one millisecond
/// and everything else nothing. So the comparison of a library's functions with our own kernels
/// gives the same result every time. The real duration of loops and emulated kernels says nothing
/// about a device.
#[derive(Clone, Copy)]
struct Moment(u32);

impl Moment {
    fn now() -> Moment {
        Moment(KERNELS.get())
    }
}

struct Module {
    library: Library,
    /// Functions that were handed out. Each is boxed so that its address stays fixed.
    #[allow(clippy::vec_box)]
    functions: Vec<Box<Function>>,
}

struct Function {
    launch: LaunchFunction,
    sizes: Vec<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object behind a handle.
unsafe fn of<'a, T>(handle: Handle) -> HipResult<&'a mut T> {
    // SAFETY: this module created the handle with type `T`. One thread at a time uses it until it
    // is destroyed.
    unsafe { handle.cast::<T>().as_mut() }.ok_or(INVALID_VALUE)
}

fn handle_to<T>(value: T) -> Handle {
    Box::into_raw(Box::new(value)).cast()
}

unsafe fn destroy<T>(handle: Handle) -> HipResult {
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: `handle_to` created the handle with this type, and it is destroyed once.
    drop(unsafe { Box::from_raw(handle.cast::<T>()) });
    Ok(())
}

impl EmulatedDevices {
    fn known(&self, device: c_int) -> HipResult {
        if (0..trouble::devices()).contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
    }

    fn used_bytes(&self) -> usize {
        lock(&self.blocks).values().map(|layout| layout.size() - GUARD_BYTES).sum()
    }

    /// Records an operation if the stream is being captured. Returns whether it did.
    unsafe fn records(&self, stream: Handle, one: impl FnOnce() -> RecordedCommand) -> HipResult<bool> {
        // SAFETY: the caller passes a stream.
        let stream = unsafe { of::<Stream>(stream) }?;
        match &mut stream.recording {
            Some(recording) => recording.push(one()),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Detects kernels that wrote past the end of an allocation.
    fn check_guards(&self) -> HipResult {
        for (address, layout) in &*lock(&self.blocks) {
            let guard = (address + layout.size() - GUARD_BYTES) as *const u8;
            // SAFETY: the guard is the end of a live allocation with this layout.
            let bytes = unsafe { std::slice::from_raw_parts(guard, GUARD_BYTES) };
            if bytes.iter().any(|byte| *byte != GUARD) {
                eprintln!("a kernel wrote past the end of an allocation");
                return Err(LAUNCH_FAILURE);
            }
        }
        Ok(())
    }

    unsafe fn run(&self, function: &Function, size: Size, arguments: *mut Handle) -> HipResult {
        if size.grid.contains(&0) || size.block.contains(&0) || size.shared_bytes > SHARED_BYTES as u32 {
            return Err(INVALID_VALUE);
        }
        let running = lock(&self.running);
        KERNELS.set(KERNELS.get().wrapping_add(1));
        // SAFETY: the caller vouches for the arguments. Grid and block have three numbers each.
        let failure = unsafe {
            (function.launch)(arguments, size.grid.as_ptr(), size.block.as_ptr(), u64::from(size.shared_bytes))
        };
        if !failure.is_null() {
            // SAFETY: a failure is a text owned by the kernel's library.
            eprintln!("{}", unsafe { CStr::from_ptr(failure) }.to_string_lossy());
            return Err(LAUNCH_FAILURE);
        }
        drop(running);
        self.check_guards()
    }

    /// The C++ compiler and its file name.
    fn host(&self) -> Result<&(HostCompiler, String), String> {
        let found = self.compiler.get_or_init(|| {
            let program = find_compiler().map_err(|absence| absence.to_string())?;
            let name = program.to_string_lossy().into_owned();
            Ok((HostCompiler::new(program, 0), name))
        });
        found.as_ref().map_err(Clone::clone)
    }
}

impl Device for EmulatedDevices {
    fn count(&self) -> HipResult<c_int> {
        Ok(trouble::devices())
    }

    fn select(&self, device: c_int) -> HipResult {
        self.known(device)
    }

    fn name(&self, device: c_int) -> HipResult<String> {
        self.known(device)?;
        Ok("simulated AMD GPU (kernels compiled for the host)".to_owned())
    }

    fn architecture(&self, device: c_int) -> HipResult<String> {
        self.known(device)?;
        Ok(trouble::architecture())
    }

    fn total_bytes(&self, device: c_int) -> HipResult<usize> {
        self.known(device)?;
        Ok(MEMORY_BYTES)
    }

    fn attribute(&self, device: c_int, which: c_int) -> HipResult<c_int> {
        self.known(device)?;
        // From gfx10 on warps have 32 lanes.
        let is_wide = trouble::architecture().starts_with("gfx9");
        Ok(match which {
            ATTRIBUTE_INTEGRATED => c_int::from(trouble::is_integrated()),
            ATTRIBUTE_CAN_MAP_HOST_MEMORY => 1,
            ATTRIBUTE_PAGEABLE_MEMORY_ACCESS | ATTRIBUTE_PCI_DOMAIN_ID | ATTRIBUTE_PCI_DEVICE_ID => 0,
            ATTRIBUTE_PCI_BUS_ID => 3 + device,
            ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            ATTRIBUTE_MULTIPROCESSOR_COUNT => 4,
            ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => SHARED_BYTES,
            ATTRIBUTE_WARP_SIZE => {
                if is_wide {
                    64
                } else {
                    32
                }
            }
            _ => return Err(INVALID_VALUE),
        })
    }

    fn revision(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        (WORDS, EMULATION).hash(&mut hasher);
        if let Ok((compiler, _)) = self.host() {
            compiler.identity().hash(&mut hasher);
        }
        hasher.finish() as u32
    }

    fn can_reach(&self, device: c_int, peer: c_int) -> HipResult<bool> {
        self.known(device)?;
        self.known(peer)?;
        Ok(device != peer)
    }

    fn reach(&self, peer: c_int) -> HipResult {
        self.known(peer)
    }

    fn allocate(&self, bytes: usize) -> HipResult<Handle> {
        if bytes == 0 || bytes > MEMORY_BYTES - self.used_bytes().min(MEMORY_BYTES) {
            return Err(OUT_OF_MEMORY);
        }
        let layout = Layout::from_size_align(bytes + GUARD_BYTES, ALIGN_BYTES).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the layout's size is above zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the allocation has this size. The garbage makes reads of unwritten memory
        // visible.
        unsafe {
            start.write_bytes(0xcd, bytes);
            start.add(bytes).write_bytes(GUARD, GUARD_BYTES);
        }
        lock(&self.blocks).insert(start as usize, layout);
        Ok(start.cast())
    }

    fn free(&self, address: Handle) -> HipResult {
        let layout = lock(&self.blocks).remove(&(address as usize)).ok_or(INVALID_VALUE)?;
        // SAFETY: allocated with this layout, and just removed from the table.
        unsafe { dealloc(address.cast(), layout) };
        Ok(())
    }

    fn memory(&self) -> HipResult<(usize, usize)> {
        Ok((MEMORY_BYTES - self.used_bytes(), MEMORY_BYTES))
    }

    fn pin(&self, start: Handle, bytes: usize) -> HipResult {
        lock(&self.pinned).insert(start as usize, bytes);
        Ok(())
    }

    fn unpin(&self, start: Handle) -> HipResult {
        lock(&self.pinned).remove(&(start as usize)).map(drop).ok_or(INVALID_VALUE)
    }

    fn pinned_address(&self, host: Handle) -> HipResult<Handle> {
        let pinned = lock(&self.pinned);
        let before = pinned.range(..=host as usize).next_back();
        let is_in = before.is_some_and(|(start, bytes)| (host as usize) < start + bytes);
        if is_in { Ok(host) } else { Err(INVALID_VALUE) }
    }

    unsafe fn copy(
        &self,
        _way: CopyDirection,
        target: Handle,
        source: Handle,
        bytes: usize,
        stream: Handle,
    ) -> HipResult {
        // SAFETY: the caller passes a stream, and vouches for both ranges. The device's memory is
        // the host's.
        unsafe {
            if !self.records(stream, || RecordedCommand::Copy { target, source, bytes })? {
                std::ptr::copy(source.cast::<u8>(), target.cast::<u8>(), bytes);
            }
        }
        Ok(())
    }

    unsafe fn fill(&self, target: Handle, byte: u8, bytes: usize, stream: Handle) -> HipResult {
        // SAFETY: as above.
        unsafe {
            if !self.records(stream, || RecordedCommand::Fill { target, byte, bytes })? {
                target.cast::<u8>().write_bytes(byte, bytes);
            }
        }
        Ok(())
    }

    fn stream(&self) -> HipResult<Handle> {
        Ok(handle_to(Stream::default()))
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> HipResult {
        // SAFETY: the caller passes a stream and does not use it again.
        unsafe { destroy::<Stream>(stream) }
    }

    unsafe fn synchronize(&self, stream: Handle) -> HipResult {
        // SAFETY: the caller passes a stream.
        unsafe { of::<Stream>(stream) }.map(drop)
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> HipResult {
        // SAFETY: the caller passes a stream and an event.
        unsafe { of::<Stream>(stream).and(of::<Option<Moment>>(event)) }.map(drop)
    }

    unsafe fn begin_capture(&self, stream: Handle) -> HipResult {
        // SAFETY: the caller passes a stream.
        let stream = unsafe { of::<Stream>(stream) }?;
        if stream.recording.replace(Vec::new()).is_none() { Ok(()) } else { Err(INVALID_VALUE) }
    }

    unsafe fn end_capture(&self, stream: Handle) -> HipResult<Handle> {
        // SAFETY: the caller passes a stream.
        let stream = unsafe { of::<Stream>(stream) }?;
        stream.recording.take().map(handle_to).ok_or(INVALID_VALUE)
    }

    unsafe fn instantiate(&self, graph: Handle) -> HipResult<Handle> {
        // SAFETY: the caller passes a graph.
        Ok(handle_to(unsafe { of::<Vec<RecordedCommand>>(graph) }?.clone()))
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> HipResult {
        // SAFETY: the caller passes a graph and does not use it again.
        unsafe { destroy::<Vec<RecordedCommand>>(graph) }
    }

    unsafe fn replay(&self, made: Handle, stream: Handle) -> HipResult {
        // SAFETY: the caller passes an instantiated graph.
        for one in unsafe { of::<Vec<RecordedCommand>>(made) }? {
            // SAFETY: the caller vouches for the recorded work.
            unsafe {
                match one {
                    RecordedCommand::Launch { function, size, arguments } => {
                        let mut places: Vec<Handle> =
                            arguments.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
                        self.launch(*function, *size, places.as_mut_ptr(), stream)?;
                    }
                    RecordedCommand::Copy { target, source, bytes } => {
                        self.copy(CopyDirection::Within, *target, *source, *bytes, stream)?;
                    }
                    RecordedCommand::Fill { target, byte, bytes } => self.fill(*target, *byte, *bytes, stream)?,
                    RecordedCommand::Work(work) => self.queue(stream, StreamWork::clone(work))?,
                }
            }
        }
        Ok(())
    }

    unsafe fn release(&self, made: Handle) -> HipResult {
        // SAFETY: the caller passes an instantiated graph and does not use it again.
        unsafe { destroy::<Vec<RecordedCommand>>(made) }
    }

    fn event(&self) -> HipResult<Handle> {
        Ok(handle_to(None::<Moment>))
    }

    unsafe fn destroy_event(&self, event: Handle) -> HipResult {
        // SAFETY: the caller passes an event and does not use it again.
        unsafe { destroy::<Option<Moment>>(event) }
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> HipResult {
        // SAFETY: the caller passes an event and a stream.
        unsafe {
            of::<Stream>(stream)?;
            *of::<Option<Moment>>(event)? = Some(Moment::now());
        }
        Ok(())
    }

    unsafe fn query(&self, event: Handle) -> HipResult {
        // SAFETY: the caller passes an event.
        unsafe { of::<Option<Moment>>(event) }.map(drop)
    }

    unsafe fn elapsed_ms(&self, start: Handle, stop: Handle) -> HipResult<f32> {
        // SAFETY: the caller passes two events.
        let times = unsafe { (*of::<Option<Moment>>(start)?, *of::<Option<Moment>>(stop)?) };
        let (Some(start), Some(stop)) = times else { return Err(INVALID_VALUE) };
        Ok(stop.0.wrapping_sub(start.0) as f32 + 1e-3)
    }

    unsafe fn load(&self, image: *const c_void) -> HipResult<Handle> {
        let image = image.cast::<u8>();
        // SAFETY: every image has at least these sixteen bytes: its magic number and its length.
        let (magic, length) = unsafe { (*image.cast::<[u8; 8]>(), image.add(8).cast::<u64>().read_unaligned()) };
        if &magic != MAGIC {
            return Err(INVALID_IMAGE);
        }
        // SAFETY: `length` bytes follow.
        let bytes = unsafe { std::slice::from_raw_parts(image.add(16), length as usize) };
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("panoply-hip-{}-{number}.so", std::process::id()));
        let opened = std::fs::File::options().write(true).create_new(true).open(&file);
        opened.and_then(|mut opened| opened.write_all(bytes)).map_err(|_| INVALID_IMAGE)?;
        // SAFETY: the compiler made the file from a kernel's source. Loading it runs no code but
        // empty initialisers.
        let library = unsafe { Library::new(&file) };
        // A loaded library does not need its file name.
        let _ = std::fs::remove_file(&file);
        Ok(handle_to(Module { library: library.map_err(|_| INVALID_IMAGE)?, functions: Vec::new() }))
    }

    unsafe fn unload(&self, module: Handle) -> HipResult {
        // SAFETY: the caller passes a module and does not use it again.
        unsafe { destroy::<Module>(module) }
    }

    unsafe fn function(&self, module: Handle, name: &str) -> HipResult<Handle> {
        // SAFETY: the caller passes a module. Its entries export these functions.
        unsafe {
            let module = of::<Module>(module)?;
            let launch = module.library.get::<LaunchFunction>(format!("panoply_launch_{name}"));
            let launch = *launch.map_err(|_| NOT_FOUND)?;
            let ask = module.library.get::<SizesFunction>(format!("panoply_sizes_{name}")).map_err(|_| NOT_FOUND)?;
            let mut sizes = vec![0; ARGUMENTS_MAX];
            let count = ask(sizes.as_mut_ptr());
            sizes.truncate(count as usize);
            let mut function = Box::new(Function { launch, sizes });
            let handle = (&raw mut *function).cast();
            module.functions.push(function);
            Ok(handle)
        }
    }

    unsafe fn launch(&self, function: Handle, size: Size, arguments: *mut Handle, stream: Handle) -> HipResult {
        // SAFETY: the caller passes a function with its number of arguments, and a stream.
        unsafe {
            let known = of::<Function>(function)?;
            let copied = || {
                let copy = |(index, bytes): (usize, &u32)| {
                    let mut words = vec![0_u64; (*bytes as usize).div_ceil(8)];
                    let source = (*arguments.add(index)).cast::<u8>();
                    words.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(source, *bytes as usize);
                    words
                };
                let arguments = known.sizes.iter().enumerate().map(copy).collect();
                RecordedCommand::Launch { function, size, arguments }
            };
            if self.records(stream, copied)? { Ok(()) } else { self.run(known, size, arguments) }
        }
    }

    fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        if let Some(folder) = std::env::var_os("PANOPLY_HIP_KERNELS_OUT") {
            return write_out(Path::new(&folder), source, architecture).map_err(|error| error.to_string());
        }
        if let Ok(clang) = std::env::var("PANOPLY_HIP_CLANG") {
            check_by_clang(&clang, source, architecture)?;
        }
        let (compiler, program) = self.host()?;
        let warp = source.lines().find(|line| line.starts_with("#define WARP ")).unwrap_or("#define WARP 64");
        let mut text = format!("{warp}\n{EMULATION}{WORDS}\n#line 1 \"kernel\"\n{source}\n");
        for entry in entries(program, &text)? {
            text.push_str(&format!("\nPANOPLY_HIP_ENTRY({entry})\n"));
        }
        let library = compiler.compile(&text)?;
        Ok([&MAGIC[..], &(library.len() as u64).to_le_bytes(), &library].concat())
    }

    fn is_host(&self) -> bool {
        true
    }

    unsafe fn queue(&self, stream: Handle, work: StreamWork) -> HipResult {
        // SAFETY: the caller passes a stream.
        if !unsafe { self.records(stream, || RecordedCommand::Work(StreamWork::clone(&work))) }? {
            work();
        }
        Ok(())
    }
}

/// The names of all kernels in the preprocessed source.
fn entries(program: &str, text: &str) -> Result<Vec<String>, String> {
    let told = piped(Command::new(program).args(["-E", "-P", "-w", "-x", "c++", "-"]), text)?;
    let plain = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = |rest: &str| rest.split('(').next().unwrap_or_default().trim().to_owned();
    Ok(plain.split(ENTRY).skip(1).map(name).collect())
}

/// Writes the source to a folder named after the architecture, for other compilers. The returned
/// image is empty and must not be loaded.
fn write_out(folder: &Path, source: &str, architecture: &str) -> std::io::Result<Vec<u8>> {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let folder = folder.join(architecture.split(':').next().unwrap_or_default());
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("{:016x}.hip", hasher.finish())), source)?;
    Ok([&MAGIC[..], &0_u64.to_le_bytes()].concat())
}

/// Compiles the source also with a clang for AMD GPUs and HIP's own headers. This is the only check
/// for architectures that this machine's hiprtc does not support.
fn check_by_clang(program: &str, source: &str, architecture: &str) -> Result<(), String> {
    let name = architecture.split(':').next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(["-x", "hip", "--cuda-device-only", "-D__HIP_PLATFORM_AMD__", "-nogpulib", "-std=c++17", "-O2", "-w"]);
    command.args([
        "--rocm-path=/usr",
        "--hip-path=/usr",
        &format!("--offload-arch={name}"),
        "-S",
        "-",
        "-o",
        "/dev/null",
    ]);
    piped(&mut command, &format!("#include <hip/hip_runtime.h>\n{source}")).map(drop)
}

/// Runs a program with `text` as its input and returns its output.
fn piped(command: &mut Command, text: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let input = child.stdin.take();
    let told = std::thread::scope(|scope| {
        // The text is written on another thread while the output is read, because either may be
        // longer than a pipe's buffer.
        scope.spawn(move || input.map(|mut input| input.write_all(text.as_bytes())));
        child.wait_with_output()
    });
    let told = told.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if told.status.success() { Ok(text(&told.stdout)) } else { Err(text(&told.stderr)) }
}

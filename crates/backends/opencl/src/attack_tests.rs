//! Tests with drivers that fail in any call: each function fails in turn, once or always, and
//! some return nonsense. In every case an op returns a typed error or its right result, nothing
//! hangs or panics, and a device that is not lost continues to work.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use panoply_c_gpu::GpuBackend;
use panoply_conformance::run_one;
use panoply_core::op::compute::{Map, Reduce, Softmax};
use panoply_core::{Backend, Engine, Error, OpenOptions, Operation, Result, Tensor};

use crate::OpenClBackend;
use crate::calls::{LOADERS, Library};
use crate::sys::{self, Functions, Handle, NoCallback, Status, each_function};

/// A call that fails: its name, how many calls succeed first, what it returns, and whether it then
/// fails always.
#[derive(Clone, Copy, Debug)]
struct InjectedFailure {
    function: &'static str,
    after: u32,
    says: FailureAnswer,
    for_good: bool,
}

/// The answer of a failing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureAnswer {
    Error(Status),
    /// Success without having done anything; lists and sizes are reported as the largest number.
    Nonsense,
}

/// The current trouble, and the number of calls of its function. Kernels are compiled on other
/// threads, so this is not thread-local.
static TROUBLE: Mutex<Option<(InjectedFailure, u32)>> = Mutex::new(None);
/// Makes these tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());
static OWN: OnceLock<Functions> = OnceLock::new();
/// The addresses of the command queues that exist.
static QUEUES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn make(trouble: Option<InjectedFailure>) {
    *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) = trouble.map(|trouble| (trouble, 0));
}

/// The answer of a call instead of its execution, if any.
fn told(function: &str) -> Option<FailureAnswer> {
    let mut kept = TROUBLE.lock().unwrap_or_else(PoisonError::into_inner);
    let (trouble, calls) = kept.as_mut().filter(|(trouble, _)| trouble.function == function)?;
    *calls += 1;
    let says = (*calls == trouble.after + 1 || trouble.for_good && *calls > trouble.after + 1).then_some(trouble.says);
    if says == Some(FailureAnswer::Error(sys::DEVICE_NOT_AVAILABLE)) {
        come_to_rest();
    }
    says
}

/// Waits until the device is idle. A really lost device does nothing any more and its memory may be
/// freed; a device that only claims to be lost must finish its work first.
fn come_to_rest() {
    let (Some(own), queues) = (OWN.get(), QUEUES.lock().unwrap_or_else(PoisonError::into_inner)) else { return };
    for queue in queues.iter() {
        // SAFETY: the queue exists: its release removes it from the list.
        let status = unsafe { (own.clFinish)(*queue as Handle) };
        assert_eq!(status, sys::SUCCESS);
    }
}

/// Makes a queue, and notes it.
unsafe extern "system" fn queue_made(context: Handle, device: Handle, properties: u64, status: *mut Status) -> Handle {
    // SAFETY: the arguments are the caller's own.
    let queue = unsafe { clCreateCommandQueue(context, device, properties, status) };
    if !queue.is_null() {
        QUEUES.lock().unwrap_or_else(PoisonError::into_inner).push(queue as usize);
    }
    queue
}

/// Releases a queue. Its unfinished work is left to the driver.
unsafe extern "system" fn queue_released(queue: Handle) -> Status {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| *kept != queue as usize);
    // SAFETY: the arguments are the caller's own.
    unsafe { clReleaseCommandQueue(queue) }
}

/// The return value of a function that failed.
trait Refusal {
    fn of(says: FailureAnswer) -> Self;
}

impl Refusal for Status {
    fn of(says: FailureAnswer) -> Status {
        match says {
            FailureAnswer::Error(code) => code,
            FailureAnswer::Nonsense => sys::SUCCESS,
        }
    }
}

/// A null handle without an error code.
impl Refusal for Handle {
    fn of(_: FailureAnswer) -> Handle {
        std::ptr::null_mut()
    }
}

/// Fills an output argument with nonsense, if it receives a count or a size.
trait OutArgument: Copy {
    unsafe fn fill(self) {}
}

impl OutArgument for *mut usize {
    unsafe fn fill(self) {
        if !self.is_null() {
            // SAFETY: the caller gives a valid pointer, or null.
            unsafe { self.write(usize::MAX) };
        }
    }
}

impl OutArgument for *mut u32 {
    unsafe fn fill(self) {
        if !self.is_null() {
            // SAFETY: as above.
            unsafe { self.write(u32::MAX) };
        }
    }
}

impl OutArgument for u32 {}
impl OutArgument for u64 {}
impl OutArgument for usize {}
impl OutArgument for *mut c_void {}
impl OutArgument for *mut Handle {}
impl OutArgument for *mut Status {}
impl OutArgument for *const c_void {}
impl OutArgument for *const c_char {}
impl OutArgument for *const isize {}
impl OutArgument for *const usize {}
impl OutArgument for *const Handle {}
impl OutArgument for *const *const c_char {}
impl OutArgument for *const *const u8 {}
impl OutArgument for NoCallback {}

macro_rules! wrappers {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        $(
            #[allow(non_snake_case, clippy::too_many_arguments)] // OpenCL's own.
            unsafe extern "system" fn $name($($argument: $type),*) -> $result {
                match told(stringify!($name)) {
                    Some(says) => {
                        if says == FailureAnswer::Nonsense {
                            // SAFETY: the pointers are the caller's own.
                            unsafe { $($argument.fill();)* }
                        }
                        <$result>::of(says)
                    }
                    // SAFETY: the arguments are the caller's own.
                    None => unsafe { (OWN.get().unwrap().$name)($($argument),*) },
                }
            }
        )*

        /// Makes every function fail as `TROUBLE` says.
        fn fragile(functions: &mut Functions) {
            OWN.get_or_init(|| *functions);
            $(functions.$name = $name;)*
            (functions.clCreateCommandQueue, functions.clReleaseCommandQueue) = (queue_made, queue_released);
        }
    };
}

each_function!(wrappers);

/// Runs a few kernels, with uploads and downloads.
fn work(engine: &mut dyn Engine) -> Result<Vec<f32>> {
    let numbers = Tensor::from_vec((0..4096).map(|number| (number % 7) as f32).collect(), [4, 1024])?;
    let shares = run_one(engine, Softmax::new(&numbers).into_op()?)?.into_tensor()?;
    let doubled = run_one(engine, Map::add(&shares, &shares).into_op()?)?.into_tensor()?;
    run_one(engine, Reduce::sum(&doubled).axes(&[1]).into_op()?)?.into_tensor()?.to_vec()
}

fn is_right(sums: &[f32]) -> bool {
    sums.len() == 4 && sums.iter().all(|sum| (sum - 2.0).abs() < 1e-4)
}

/// Runs everything from discovery on with one trouble, and checks the promises in the head of this
/// file.
fn survive(trouble: InjectedFailure) {
    make(Some(trouble));
    let Ok(library) = Library::load(LOADERS).map(|library| library.altered(fragile)) else { return };
    let Ok(backend) = OpenClBackend::new().with_library(&library) else { return };
    let Some(device) = backend.discover().ok().and_then(|devices| devices.into_iter().next()) else { return };
    let mut engine = match backend.open_engine(&device, &OpenOptions::default()) {
        Ok(engine) => engine,
        Err(
            Error::DeviceUnavailable { .. }
            | Error::DeviceFault { .. }
            | Error::OutOfMemory { .. }
            | Error::DeviceLost { .. },
        ) => return,
        Err(other) => panic!("{trouble:?}: {other}"),
    };
    match work(&mut engine) {
        Ok(sums) => assert!(is_right(&sums), "{trouble:?}: wrong without a word: {sums:?}"),
        Err(Error::DeviceLost { .. } | Error::OutOfMemory { .. } | Error::DeviceFault { .. }) => {}
        Err(other) => panic!("{trouble:?}: {other}"),
    }
    make(None);
    match work(&mut engine) {
        Ok(sums) => assert!(is_right(&sums), "{trouble:?}: wrong afterwards: {sums:?}"),
        Err(Error::DeviceLost { .. }) => {}
        // An answer that a driver once gave about a kernel is believed.
        Err(Error::DeviceFault { .. }) if trouble.says == FailureAnswer::Nonsense => {}
        Err(other) => panic!("{trouble:?}: afterwards: {other}"),
    }
}

/// Tests every suitable function with the ways in which it fails.
fn every(suits: impl Fn(&str) -> bool, says: FailureAnswer, afters: &[u32], for_good: bool) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(absence) = OpenClBackend::new().discover() {
        return println!("skipped: {absence}");
    }
    for function in FUNCTIONS.iter().filter(|name| suits(name)) {
        afters.iter().for_each(|after| survive(InjectedFailure { function, after: *after, says, for_good }));
    }
    make(None);
}

#[test]
fn memory_may_be_short_in_any_call() {
    every(|_| true, FailureAnswer::Error(sys::OUT_OF_HOST_MEMORY), &[0, 3], false);
}

#[test]
fn a_device_may_be_gone_in_any_call() {
    every(|_| true, FailureAnswer::Error(sys::DEVICE_NOT_AVAILABLE), &[0, 3], true);
}

#[test]
fn a_driver_may_fail_in_ways_of_its_own() {
    every(|_| true, FailureAnswer::Error(-9999), &[1], false);
}

/// Tests functions that report counts and sizes, and report nonsense. Functions that run kernels or
/// copies are left out: a driver that falsely claims that it did the work cannot be detected.
#[test]
fn answers_may_be_of_any_length() {
    let asks = |name: &str| name.starts_with("clGet") && !name.starts_with("clGetEvent");
    every(asks, FailureAnswer::Nonsense, &[0, 2], false);
}

//! Drivers that fail in any call: each function does so in turn, once or for good, and some answer nonsense. Whatever happens, an op has a typed
//! error or its right result, nothing hangs or panics, and a device that is not lost goes on.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use panoply_c_gpu::GpuBackend;
use panoply_conformance::run_one;
use panoply_core::op::compute::{Map, Reduce, Softmax};
use panoply_core::{Backend, Engine, Error, OpenOptions, Operation, Result, Tensor};

use crate::OpenClBackend;
use crate::calls::{LOADERS, Library};
use crate::sys::{self, Functions, Handle, NoCallback, Status, each_function};

/// A call that fails: its name, how many of its calls succeed first, what it says, and whether it then fails for good.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    function: &'static str,
    after: u32,
    says: Says,
    for_good: bool,
}

/// What a call says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Error(Status),
    /// That all went well, without having done anything: of a list or a size, that it is the largest there is.
    Nonsense,
}

/// The trouble that is made, and how often its function was called. Kernels are compiled on threads of their own, so this is everybody's.
static TROUBLE: Mutex<Option<(Trouble, u32)>> = Mutex::new(None);
/// One of these tests at a time.
static ALONE: Mutex<()> = Mutex::new(());
static OWN: OnceLock<Functions> = OnceLock::new();
/// The command queues that live, as addresses.
static QUEUES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn make(trouble: Option<Trouble>) {
    *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) = trouble.map(|trouble| (trouble, 0));
}

/// What a call says instead of being made.
fn told(function: &str) -> Option<Says> {
    let mut kept = TROUBLE.lock().unwrap_or_else(PoisonError::into_inner);
    let (trouble, calls) = kept.as_mut().filter(|(trouble, _)| trouble.function == function)?;
    *calls += 1;
    let says = (*calls == trouble.after + 1 || trouble.for_good && *calls > trouble.after + 1).then_some(trouble.says);
    if says == Some(Says::Error(sys::DEVICE_NOT_AVAILABLE)) {
        come_to_rest();
    }
    says
}

/// A device that is gone does nothing any more, and its memory may be freed; the one that only says so must have ended what it was given first.
fn come_to_rest() {
    let (Some(own), queues) = (OWN.get(), QUEUES.lock().unwrap_or_else(PoisonError::into_inner)) else { return };
    for queue in queues.iter() {
        // SAFETY: the queue lives: its release takes it from the list.
        let status = unsafe { (own.clFinish)(*queue as Handle) };
        assert_eq!(status, sys::SUCCESS);
    }
}

/// Makes a queue, and notes it.
unsafe extern "system" fn queue_made(context: Handle, device: Handle, properties: u64, status: *mut Status) -> Handle {
    // SAFETY: what the caller gave.
    let queue = unsafe { clCreateCommandQueue(context, device, properties, status) };
    if !queue.is_null() {
        QUEUES.lock().unwrap_or_else(PoisonError::into_inner).push(queue as usize);
    }
    queue
}

/// Lets a queue go. What it was given is its own business then, as drivers have it.
unsafe extern "system" fn queue_released(queue: Handle) -> Status {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| *kept != queue as usize);
    // SAFETY: what the caller gave.
    unsafe { clReleaseCommandQueue(queue) }
}

/// What a function gives back that did not do what it should.
trait Refusal {
    fn of(says: Says) -> Self;
}

impl Refusal for Status {
    fn of(says: Says) -> Status {
        match says {
            Says::Error(code) => code,
            Says::Nonsense => sys::SUCCESS,
        }
    }
}

/// Nothing, and no word about it.
impl Refusal for Handle {
    fn of(_: Says) -> Handle {
        std::ptr::null_mut()
    }
}

/// Where a function writes how much there is, nonsense goes.
trait Place: Copy {
    unsafe fn fill(self) {}
}

impl Place for *mut usize {
    unsafe fn fill(self) {
        if !self.is_null() {
            // SAFETY: the caller gives a place, or none.
            unsafe { self.write(usize::MAX) };
        }
    }
}

impl Place for *mut u32 {
    unsafe fn fill(self) {
        if !self.is_null() {
            // SAFETY: as above.
            unsafe { self.write(u32::MAX) };
        }
    }
}

impl Place for u32 {}
impl Place for u64 {}
impl Place for usize {}
impl Place for *mut c_void {}
impl Place for *mut Handle {}
impl Place for *mut Status {}
impl Place for *const c_void {}
impl Place for *const c_char {}
impl Place for *const isize {}
impl Place for *const usize {}
impl Place for *const Handle {}
impl Place for *const *const c_char {}
impl Place for *const *const u8 {}
impl Place for NoCallback {}

macro_rules! wrappers {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        $(
            #[allow(non_snake_case, clippy::too_many_arguments)] // OpenCL's own.
            unsafe extern "system" fn $name($($argument: $type),*) -> $result {
                match told(stringify!($name)) {
                    Some(says) => {
                        if says == Says::Nonsense {
                            // SAFETY: the caller's own places.
                            unsafe { $($argument.fill();)* }
                        }
                        <$result>::of(says)
                    }
                    // SAFETY: what the caller gave.
                    None => unsafe { (OWN.get().unwrap().$name)($($argument),*) },
                }
            }
        )*

        /// Has every function fail as `TROUBLE` says.
        fn fragile(functions: &mut Functions) {
            OWN.get_or_init(|| *functions);
            $(functions.$name = $name;)*
            (functions.clCreateCommandQueue, functions.clReleaseCommandQueue) = (queue_made, queue_released);
        }
    };
}

each_function!(wrappers);

/// A few kernels, with uploads and downloads.
fn work(engine: &mut dyn Engine) -> Result<Vec<f32>> {
    let numbers = Tensor::from_vec((0..4096).map(|number| (number % 7) as f32).collect(), [4, 1024])?;
    let shares = run_one(engine, Softmax::new(&numbers).into_op()?)?.into_tensor()?;
    let doubled = run_one(engine, Map::add(&shares, &shares).into_op()?)?.into_tensor()?;
    run_one(engine, Reduce::sum(&doubled).axes(&[1]).into_op()?)?.into_tensor()?.to_vec()
}

fn is_right(sums: &[f32]) -> bool {
    sums.len() == 4 && sums.iter().all(|sum| (sum - 2.0).abs() < 1e-4)
}

/// One trouble from the first look at the machine on. What must hold is in the head of this file.
fn survive(trouble: Trouble) {
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
        // What a driver once said of a kernel is believed.
        Err(Error::DeviceFault { .. }) if trouble.says == Says::Nonsense => {}
        Err(other) => panic!("{trouble:?}: afterwards: {other}"),
    }
}

/// Every function that suits, and the ways in which it fails.
fn every(suits: impl Fn(&str) -> bool, says: Says, afters: &[u32], for_good: bool) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(absence) = OpenClBackend::new().discover() {
        return println!("skipped: {absence}");
    }
    for function in FUNCTIONS.iter().filter(|name| suits(name)) {
        afters.iter().for_each(|after| survive(Trouble { function, after: *after, says, for_good }));
    }
    make(None);
}

#[test]
fn memory_may_be_short_in_any_call() {
    every(|_| true, Says::Error(sys::OUT_OF_HOST_MEMORY), &[0, 3], false);
}

#[test]
fn a_device_may_be_gone_in_any_call() {
    every(|_| true, Says::Error(sys::DEVICE_NOT_AVAILABLE), &[0, 3], true);
}

#[test]
fn a_driver_may_fail_in_ways_of_its_own() {
    every(|_| true, Says::Error(-9999), &[1], false);
}

/// Functions that say how much there is, and say nonsense. What runs kernels or copies is not among them: a driver that says that it did, and
/// did not, cannot be found out.
#[test]
fn answers_may_be_of_any_length() {
    let asks = |name: &str| name.starts_with("clGet") && !name.starts_with("clGetEvent");
    every(asks, Says::Nonsense, &[0, 2], false);
}

//! qatlib's functions with the real C ABI, computed on the host: two devices with three instances
//! each, whose rings have sixteen slots. QATzip's functions are included. Requests run when their
//! instance is polled, the last one first, so that answers arrive out of order.
//!
//! Each test loads its own copy of this library, and injects faults with `panoply_test_fault`.
#![allow(unsafe_code)] // Its functions are called from C's side of the ABI.
#![allow(missing_docs)] // The functions are those of qatlib's headers.
#![allow(clippy::missing_safety_doc)] // As above: pointers are what the headers say.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod numbers;
mod pack;
mod symmetric;
#[path = "../../src/sys.rs"]
mod sys;
mod zip;
#[path = "../../src/zip_sys.rs"]
mod zip_sys;

use sys::*;

/// The numbers of the faults, which the tests share.
pub(crate) const NO_START: i32 = 1;
pub(crate) const SILENT: i32 = 2;
pub(crate) const REQUEST_FAILS: i32 = 3;
pub(crate) const NO_SESSION: i32 = 4;
pub(crate) const NO_MEMORY: i32 = 5;
pub(crate) const RING_FULL: i32 = 6;
pub(crate) const WRONG_RSA: i32 = 7;
pub(crate) const DOWN: i32 = 8;
pub(crate) const FATAL_SUBMIT: i32 = 9;
pub(crate) const INTERRUPTS: i32 = 10;
pub(crate) const ZIP_NO_HARDWARE: i32 = 11;
pub(crate) const ZIP_FAILS: i32 = 12;
pub(crate) const ZIP_TIMES_OUT: i32 = 13;
pub(crate) const ZIP_HANGS: i32 = 14;
pub(crate) const ZIP_READS_LESS: i32 = 15;
pub(crate) const ZIP_WRITES_MORE: i32 = 16;
pub(crate) const ZIP_SOFTWARE: i32 = 17;

const INSTANCES: usize = 6;
const RING_PLACES: usize = 16;

/// A request that runs its work and then its callback.
type QueuedRequest = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    rings: [Vec<QueuedRequest>; INSTANCES],
    notify: [Option<(Notify, usize)>; INSTANCES],
    event: Option<u32>,
    blocks: HashMap<usize, usize>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static FAULT: AtomicI32 = AtomicI32::new(0);
static NO_COMPRESSION: AtomicBool = AtomicBool::new(false);
static STARTS: AtomicI32 = AtomicI32::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);
static DIRTY: AtomicI64 = AtomicI64::new(0);
/// Sessions that were begun, and those that have not ended.
static SESSIONS: [AtomicI64; 2] = [const { AtomicI64::new(0) }; 2];
static SERVED: [AtomicU32; INSTANCES] = [const { AtomicU32::new(0) }; INSTANCES];

fn with<R>(work: impl FnOnce(&mut State) -> R) -> R {
    let mut state: MutexGuard<'_, Option<State>> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    work(state.get_or_insert_default())
}

pub(crate) fn has_fault(number: i32) -> bool {
    FAULT.load(Ordering::Relaxed) == number
}

/// Sets the current fault.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_fault(number: c_int) {
    FAULT.store(number, Ordering::Relaxed);
}

/// Removes the instances for compression.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_no_compression() {
    NO_COMPRESSION.store(true, Ordering::Relaxed);
}

/// Sets an event that the next poll for events reports.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_event(event: u32) {
    with(|state| state.event = Some(event));
}

/// Number of memory blocks, sessions, instances and starts that were not released.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_live() -> i64 {
    LIVE.load(Ordering::Relaxed) + i64::from(STARTS.load(Ordering::Relaxed))
}

/// Number of sessions that were begun so far (0), or that have not ended (1).
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_sessions(which: usize) -> i64 {
    SESSIONS[which].load(Ordering::Relaxed)
}

/// Number of blocks that were freed with non-zero contents.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_dirty() -> i64 {
    DIRTY.load(Ordering::Relaxed)
}

/// Number of requests that an instance has answered.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_served(instance: u32) -> u32 {
    SERVED.get(instance as usize).map_or(0, |served| served.load(Ordering::Relaxed))
}

/// Handles are the numbers of instances, from 1. Instances 1, 2, 4 and 5 are for crypto, 3 and 6
/// for compression. The first three belong to the first device.
fn number(instance: Instance) -> Option<usize> {
    (instance as usize).checked_sub(1).filter(|number| *number < INSTANCES)
}

pub(crate) fn enqueue(instance: Instance, work: QueuedRequest) -> Status {
    let Some(number) = number(instance) else { return INVALID_PARAM };
    if has_fault(RING_FULL) {
        return RETRY;
    }
    if has_fault(FATAL_SUBMIT) {
        return FATAL;
    }
    with(|state| match state.rings[number].len() < RING_PLACES {
        true => {
            state.rings[number].push(work);
            SUCCESS
        }
        false => RETRY,
    })
}

fn poll(instance: Instance) -> Status {
    let Some(number) = number(instance) else { return INVALID_PARAM };
    if has_fault(SILENT) {
        return RETRY;
    }
    let waiting = with(|state| std::mem::take(&mut state.rings[number]));
    if waiting.is_empty() {
        return RETRY;
    }
    for work in waiting.into_iter().rev() {
        SERVED[number].fetch_add(1, Ordering::Relaxed);
        work();
    }
    SUCCESS
}

/// An address that may be sent to other threads.
#[derive(Clone, Copy)]
pub(crate) struct SharedAddress<T>(pub(crate) *mut T);

// SAFETY: the address belongs to a request in flight, which the caller does not access.
unsafe impl<T> Send for SharedAddress<T> {}

impl<T> SharedAddress<T> {
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

/// The bytes of a buffer.
pub(crate) unsafe fn bytes<'a>(buffer: &FlatBuffer) -> &'a mut [u8] {
    if buffer.len == 0 {
        return &mut [];
    }
    // SAFETY: the library's caller guarantees `len` bytes.
    unsafe { std::slice::from_raw_parts_mut(buffer.data, buffer.len as usize) }
}

/// Whether a buffer lies in memory allocated here, as a real device requires.
pub(crate) fn is_reached(buffer: &FlatBuffer) -> bool {
    let (start, end) = (buffer.data as usize, buffer.data as usize + buffer.len as usize);
    with(|state| state.blocks.iter().any(|(place, len)| *place <= start && end <= place + len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn icp_sal_userStart(_: *const c_char) -> Status {
    if has_fault(NO_START) {
        return FAIL;
    }
    STARTS.fetch_add(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn icp_sal_userStop() -> Status {
    STARTS.fetch_sub(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn icp_sal_poll_device_events() -> Status {
    let told = with(|state| state.event.take().map(|event| (event, state.notify)));
    if let Some((event, notify)) = told {
        for (number, (callback, tag)) in notify.iter().enumerate().filter_map(|(number, it)| Some((number, (*it)?))) {
            // SAFETY: callback and tag were registered together.
            unsafe { callback((number + 1) as Instance, tag as *mut c_void, event) };
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn icp_sal_CyPollInstance(instance: Instance, _: u32) -> Status {
    poll(instance)
}

#[unsafe(no_mangle)]
pub extern "C" fn icp_sal_DcPollInstance(instance: Instance, _: u32) -> Status {
    poll(instance)
}

unsafe fn list(wanted: &[usize], count: u16, handles: *mut Instance) -> Status {
    for (at, number) in wanted.iter().take(usize::from(count)).enumerate() {
        // SAFETY: the caller's buffer has space for `count` handles.
        unsafe { handles.add(at).write(*number as Instance) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyGetNumInstances(count: *mut u16) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { count.write(4) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyGetInstances(count: u16, handles: *mut Instance) -> Status {
    // SAFETY: the caller guarantees the arguments.
    unsafe { list(&[1, 2, 4, 5], count, handles) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcGetNumInstances(count: *mut u16) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { count.write(if NO_COMPRESSION.load(Ordering::Relaxed) { 0 } else { 2 }) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcGetInstances(count: u16, handles: *mut Instance) -> Status {
    // SAFETY: the caller guarantees the arguments.
    unsafe { list(&[3, 6], count, handles) }
}

/// The first device is 6b:00.0. The second device's instances are on virtual functions of 70:00.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyInstanceGetInfo2(instance: Instance, info: *mut InstanceInfo) -> Status {
    let Some(number) = number(instance) else { return INVALID_PARAM };
    let mut told = InstanceInfo { package: (number / 3) as u16, node: 0, is_polled: TRUE, ..InstanceInfo::zeroed() };
    told.bus_address = if number < 3 { 0x6b00 } else { 0x7000 + number as u16 - 2 };
    told.state = if has_fault(DOWN) { 0 } else { OPERATIONAL_UP };
    told.is_polled = if has_fault(INTERRUPTS) { FALSE } else { TRUE };
    told.name[..4].copy_from_slice(b"test");
    told.version[..4].copy_from_slice(b"26.8");
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { info.write(told) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcInstanceGetInfo2(instance: Instance, info: *mut InstanceInfo) -> Status {
    // SAFETY: the caller guarantees the arguments.
    unsafe { cpaCyInstanceGetInfo2(instance, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyQueryCapabilities(_: Instance, can: *mut CyCapabilities) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { (*can).sym = TRUE };
    // SAFETY: as above.
    unsafe { ((*can).rsa, (*can).ecdsa) = (TRUE, TRUE) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCySymQueryCapabilities(_: Instance, can: *mut SymCapabilities) -> Status {
    let ciphers = 1 << CIPHER_AES_CBC | 1 << CIPHER_AES_CTR | 1 << CIPHER_AES_GCM;
    let hashes = 1 << HASH_SHA256 | 1 << HASH_SHA384 | 1 << HASH_SHA512 | 1 << HASH_AES_GCM;
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { ((*can).ciphers, (*can).hashes) = (ciphers, hashes) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaCyStartInstance(_: Instance) -> Status {
    LIVE.fetch_add(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaCyStopInstance(_: Instance) -> Status {
    LIVE.fetch_sub(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaDcStartInstance(_: Instance, _: u16, _: *mut *mut BufferList) -> Status {
    LIVE.fetch_add(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaDcStopInstance(_: Instance) -> Status {
    LIVE.fetch_sub(1, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaCySetAddressTranslation(_: Instance, _: Translate) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaDcSetAddressTranslation(_: Instance, _: Translate) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaCyInstanceSetNotificationCb(
    instance: Instance,
    callback: Option<Notify>,
    tag: *mut c_void,
) -> Status {
    let Some(number) = number(instance) else { return INVALID_PARAM };
    with(|state| state.notify[number] = callback.map(|callback| (callback, tag as usize)));
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cpaDcInstanceSetNotificationCb(
    instance: Instance,
    callback: Option<Notify>,
    tag: *mut c_void,
) -> Status {
    cpaCyInstanceSetNotificationCb(instance, callback, tag)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaCyBufferListGetMetaSize(_: Instance, count: u32, bytes: *mut u32) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { bytes.write(32 + 16 * count) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpaDcBufferListGetMetaSize(_: Instance, count: u32, bytes: *mut u32) -> Status {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { bytes.write(32 + 16 * count) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn qaeMemAllocNUMA(size: usize, node: c_int, align: usize) -> *mut c_void {
    let Some(layout) = std::alloc::Layout::from_size_align(size.max(1), align.max(1)).ok() else {
        return std::ptr::null_mut();
    };
    if has_fault(NO_MEMORY) || node != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the size is not zero.
    let place = unsafe { std::alloc::alloc(layout) };
    // The memory is filled with garbage, like memory that was used before.
    // SAFETY: the allocation has `size` bytes.
    unsafe { place.write_bytes(0xa5, size) };
    LIVE.fetch_add(1, Ordering::Relaxed);
    with(|state| state.blocks.insert(place as usize, size.max(1)));
    place.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn qaeMemFreeNUMA(place: *mut *mut c_void) {
    // SAFETY: the caller passes the address of a pointer that this library returned.
    let block = unsafe { place.replace(std::ptr::null_mut()) };
    let Some(size) = with(|state| state.blocks.remove(&(block as usize))) else { return };
    // SAFETY: the allocation has `size` bytes and is still alive.
    let is_clean = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), size) }.iter().all(|byte| *byte == 0);
    DIRTY.fetch_add(i64::from(!is_clean), Ordering::Relaxed);
    LIVE.fetch_sub(1, Ordering::Relaxed);
    // The block is leaked, so that late writes of a device do not harm the test.
}

#[unsafe(no_mangle)]
pub extern "C" fn qaeVirtToPhysNUMA(place: *mut c_void) -> u64 {
    place as u64
}

pub(crate) fn session_begins() {
    SESSIONS.iter().for_each(|count| _ = count.fetch_add(1, Ordering::Relaxed));
    LIVE.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn session_ends() -> Status {
    SESSIONS[1].fetch_sub(1, Ordering::Relaxed);
    LIVE.fetch_sub(1, Ordering::Relaxed);
    SUCCESS
}

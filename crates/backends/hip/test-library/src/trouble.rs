//! Settings for tests: calls that fail, another architecture, more devices. All settings but the
//! number of devices belong to the calling thread, so that parallel tests do not affect each other.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

/// An injected failure: the function's name, the status that it returns, and how often.
struct InjectedFailure {
    name: String,
    status: c_int,
    times: u32,
}

thread_local! {
    static TROUBLES: RefCell<Vec<InjectedFailure>> = const { RefCell::new(Vec::new()) };
    static ARCHITECTURE: RefCell<Option<String>> = const { RefCell::new(None) };
    static INTEGRATED: Cell<bool> = const { Cell::new(false) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

static DEVICES: AtomicI32 = AtomicI32::new(1);

/// Makes the next `times` calls of a function on this thread return `status`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn panoply_test_fail(name: *const c_char, status: c_int, times: u32) {
    // SAFETY: the text ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    TROUBLES.with_borrow_mut(|troubles| troubles.push(InjectedFailure { name, status, times }));
}

/// Sets the architecture of the emulated device for this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn panoply_test_architecture(name: *const c_char) {
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    ARCHITECTURE.set(Some(name));
}

/// Sets whether the emulated device shares the host's memory, for this thread.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_integrated(is_integrated: bool) {
    INTEGRATED.set(is_integrated);
}

/// Sets the number of emulated devices.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_devices(count: c_int) {
    DEVICES.store(count, Ordering::Relaxed);
}

/// Number of streams, events, modules, graphs and allocations that this thread has created and not
/// destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_live() -> i64 {
    LIVE.get()
}

pub(crate) fn devices() -> c_int {
    DEVICES.load(Ordering::Relaxed)
}

pub(crate) fn is_integrated() -> bool {
    INTEGRATED.get()
}

pub(crate) fn architecture() -> String {
    ARCHITECTURE.with_borrow(|chosen| chosen.clone()).unwrap_or_else(|| "gfx90a:sramecc+:xnack-".to_owned())
}

/// Counts objects that are created (+1) or destroyed (−1).
pub(crate) fn count(change: i64) {
    LIVE.set(LIVE.get() + change);
}

/// The status that a test injected for this call, if any.
pub(crate) fn asked_for(name: &str) -> Option<c_int> {
    TROUBLES.with_borrow_mut(|troubles| {
        let trouble = troubles.iter_mut().find(|trouble| trouble.name == name && trouble.times > 0)?;
        trouble.times -= 1;
        Some(trouble.status)
    })
}

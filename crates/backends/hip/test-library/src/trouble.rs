//! What tests ask for: calls that fail, another architecture, more devices. All but the number of devices is the calling thread's own, so
//! that tests that run side by side do not meet.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

/// A call that is to fail: its name, what it answers, and how often.
struct Trouble {
    name: String,
    status: c_int,
    times: u32,
}

thread_local! {
    static TROUBLES: RefCell<Vec<Trouble>> = const { RefCell::new(Vec::new()) };
    static ARCHITECTURE: RefCell<Option<String>> = const { RefCell::new(None) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

static DEVICES: AtomicI32 = AtomicI32::new(1);

/// Has the next calls of a function on this thread answer with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn panoply_test_fail(name: *const c_char, status: c_int, times: u32) {
    // SAFETY: tests pass a text with its closing zero.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    TROUBLES.with_borrow_mut(|troubles| troubles.push(Trouble { name, status, times }));
}

/// The architecture of the emulated device, for this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn panoply_test_architecture(name: *const c_char) {
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    ARCHITECTURE.set(Some(name));
}

/// How many emulated devices there are.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_devices(count: c_int) {
    DEVICES.store(count, Ordering::Relaxed);
}

/// Streams, events, modules, graphs and allocations that this thread has made and not given back.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_live() -> i64 {
    LIVE.get()
}

pub(crate) fn devices() -> c_int {
    DEVICES.load(Ordering::Relaxed)
}

pub(crate) fn architecture() -> String {
    ARCHITECTURE.with_borrow(|chosen| chosen.clone()).unwrap_or_else(|| "gfx90a:sramecc+:xnack-".to_owned())
}

/// Notes that something was made, or given back.
pub(crate) fn count(change: i64) {
    LIVE.set(LIVE.get() + change);
}

/// What this call shall answer, where a test says so.
pub(crate) fn asked_for(name: &str) -> Option<c_int> {
    TROUBLES.with_borrow_mut(|troubles| {
        let trouble = troubles.iter_mut().find(|trouble| trouble.name == name && trouble.times > 0)?;
        trouble.times -= 1;
        Some(trouble.status)
    })
}

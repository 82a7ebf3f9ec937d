//! Counts entries into the lanes' code, so that tests can prove which code ran: one for each key
//! that lanes were made for, and one for each batch of hashes. Code without lanes for its key
//! cannot enter them.

use std::cell::Cell;

thread_local! {
    static ENTRIES: Cell<u64> = const { Cell::new(0) };
}

/// Counts an entry of this thread.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // There are no lanes.
pub(in crate::lanes) fn enter() {
    ENTRIES.with(|entries| entries.set(entries.get() + 1));
}

/// Number of times that this thread has made lanes for a key, or hashed in lanes.
pub fn entries() -> u64 {
    ENTRIES.with(Cell::get)
}

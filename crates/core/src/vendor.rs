//! Counts the loading of vendors' libraries, so that a forked process knows whether it can use
//! them.
//!
//! A fork copies memory but one thread only. If another thread was inside the dynamic loader, or
//! inside a driver, the copy has half-made tables, and initialisers that never end: a child that
//! loads a library there crashes or waits for ever. A driver that was loaded to its end is no
//! better off: its threads are gone, and its connection to the device belongs to the parent. The
//! rules:
//!
//! 1. Backends load libraries, and call libraries that may be loaded already, inside [`load`] or
//!    while they hold a [`Loading`]. It is counted before the first call into the loader, and
//!    before any lock that is held during such a call.
//! 2. Once a library was loaded, this stays noted. A search that found no library leaves no
//!    trace.
//! 3. A child that was forked while either holds is refused with [`Absence::Forked`], and so are
//!    its own children. It takes no lock and calls nothing to find out. A child of a process that
//!    has loaded nothing may load everything.
//!
//! The note is one atomic number that includes the process that wrote it, so a fork at any moment
//! copies a note of one moment. Libraries that the program loads past this crate are not counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Absence;
use crate::process::Process;

/// The number of searches that go on now: the low bits of a note.
const COUNT: u64 = LOADED - 1;
/// Set once this process has loaded a library.
const LOADED: u64 = 1 << 30;
/// Set if this process was forked from one that had loaded a library, or was loading one.
const FORKED: u64 = 1 << 31;
/// Where the tag of the process that wrote the note begins.
const TAG_SHIFT: u32 = 32;

/// The note of this process.
static NOTE: Note = Note(AtomicU64::new(0));

/// The loads of libraries in one process. See the module's rules.
struct Note(AtomicU64);

/// Runs `load`, which may load a vendor's library or call one. Fails without calling it in a
/// process that cannot use such libraries. [`Absence::LibraryMissing`] means that nothing was
/// loaded.
pub fn load<T>(load: impl FnOnce() -> Result<T, Absence>) -> Result<T, Absence> {
    let loading = Loading::begin()?;
    let loaded = load();
    if let Err(Absence::LibraryMissing { .. }) = loaded {
        loading.found_nothing();
    }
    loaded
}

/// Fails in a process that cannot use vendors' libraries.
pub fn check() -> Result<(), Absence> {
    Loading::begin().map(Loading::found_nothing)
}

/// Held while a library is searched for and loaded, or called although it may not be loaded yet.
/// Dropping it notes that a library was loaded.
#[must_use = "dropping it ends the search"]
pub struct Loading {
    note: &'static Note,
    process: Process,
    found_nothing: bool,
}

impl Loading {
    /// Begins a search. Fails in a process that was forked from one that had loaded a library, or
    /// was loading one.
    pub fn begin() -> Result<Loading, Absence> {
        Loading::noted_in(&NOTE)
    }

    fn noted_in(note: &'static Note) -> Result<Loading, Absence> {
        let process = Process::current();
        let begun = |note: u64| {
            let note = seen_by(process, note);
            (note & FORKED == 0).then_some(note + 1)
        };
        note.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, begun).map_err(|_| Absence::Forked)?;
        // A signal handler may have forked meanwhile. The child's note still names the parent, so
        // the child is refused from now on.
        if process.is_current() { Ok(Loading { note, process, found_nothing: false }) } else { Err(Absence::Forked) }
    }

    /// Ends a search that has loaded no library.
    pub fn found_nothing(mut self) {
        self.found_nothing = true;
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let found = if self.found_nothing { 0 } else { LOADED };
        if !self.process.is_current() {
            // In a fork the note stays the parent's, and refuses.
            return;
        }
        let ended = |note: u64| (note & COUNT > 0).then(|| (note - 1) | found);
        let _ = self.note.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, ended);
    }
}

/// The note as a process sees it, which may be the first to see its parent's.
fn seen_by(process: Process, note: u64) -> u64 {
    let own = tag(process) << TAG_SHIFT;
    match note >> TAG_SHIFT == tag(process) {
        true => note,
        false if note & (FORKED | LOADED | COUNT) != 0 => own | FORKED,
        false => own,
    }
}

/// A tag of 32 bits that differs between a process and its ancestors.
fn tag(process: Process) -> u64 {
    u64::from(process.tag())
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    fn missing() -> Absence {
        Absence::LibraryMissing { tried: vec!["libnone.so".to_owned()] }
    }

    #[test]
    fn a_search_that_finds_nothing_leaves_no_trace() {
        static NONE: Note = Note(AtomicU64::new(0));
        let (first, second) = (Loading::noted_in(&NONE).unwrap(), Loading::noted_in(&NONE).unwrap());
        assert_eq!(NONE.0.load(Ordering::SeqCst) & (COUNT | LOADED), 2);
        first.found_nothing();
        second.found_nothing();
        assert_eq!(NONE.0.load(Ordering::SeqCst) & (COUNT | LOADED | FORKED), 0);
        assert_eq!(load(|| Err::<(), _>(missing())), Err(missing()));
    }

    #[test]
    fn a_panic_while_a_library_is_loaded_counts_as_loaded() {
        static ONE: Note = Note(AtomicU64::new(0));
        let panicked = std::panic::catch_unwind(|| {
            let _loading = Loading::noted_in(&ONE).unwrap();
            std::panic::resume_unwind(Box::new("an initialiser"));
        });
        assert!(panicked.is_err());
        assert_eq!(ONE.0.load(Ordering::SeqCst) & (COUNT | LOADED | FORKED), LOADED);
        assert!(Loading::noted_in(&ONE).is_ok(), "the process itself may load more");
    }

    /// Runs `body` in a fork, and returns whether it returned true.
    #[cfg(unix)]
    fn in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child reads and writes atomic numbers, may fork, and ends without
        // destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = body();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process forked above, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    }

    #[cfg(unix)]
    fn is_refused(note: &'static Note) -> bool {
        matches!(Loading::noted_in(note), Err(Absence::Forked))
    }

    #[cfg(unix)]
    #[test]
    fn a_child_of_a_process_that_loads_or_has_loaded_is_refused_with_its_children() {
        static BUSY: Note = Note(AtomicU64::new(0));
        let loading = Loading::noted_in(&BUSY).unwrap();
        assert!(in_child(|| is_refused(&BUSY) && is_refused(&BUSY) && in_child(|| is_refused(&BUSY))));
        drop(loading);
        assert!(in_child(|| is_refused(&BUSY)) && !is_refused(&BUSY));
    }

    #[cfg(unix)]
    #[test]
    fn a_child_of_a_process_that_has_loaded_nothing_may_load() {
        static CLEAN: Note = Note(AtomicU64::new(0));
        Loading::noted_in(&CLEAN).unwrap().found_nothing();
        assert!(in_child(|| {
            let grandchild = in_child(|| !is_refused(&CLEAN));
            grandchild && Loading::noted_in(&CLEAN).is_ok() && in_child(|| is_refused(&CLEAN))
        }));
    }

    /// A search that a fork interrupts goes on in the child, and ends there.
    #[cfg(unix)]
    #[test]
    fn a_search_that_was_forked_ends_as_the_parents() {
        static SPLIT: Note = Note(AtomicU64::new(0));
        let mut loading = Some(Loading::noted_in(&SPLIT).unwrap());
        assert!(in_child(|| {
            loading.take().unwrap().found_nothing();
            is_refused(&SPLIT)
        }));
        loading.take().unwrap().found_nothing();
        assert!(in_child(|| !is_refused(&SPLIT)));
    }
}

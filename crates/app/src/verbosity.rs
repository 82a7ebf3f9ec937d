//! How much the command prints beside its results: set once from `--quiet` and `--verbose`, read
//! wherever progress or a note is about to be shown.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU8, Ordering};

static LEVEL: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

/// How much the command prints beside its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Neither progress nor notes.
    Quiet,
    Normal,
    /// Also notes on what the command found and uses.
    Verbose,
}

/// Sets the level of the process.
pub fn set(verbosity: Verbosity) {
    LEVEL.store(verbosity as u8, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    LEVEL.load(Ordering::Relaxed) == Verbosity::Quiet as u8
}

pub fn is_verbose() -> bool {
    LEVEL.load(Ordering::Relaxed) == Verbosity::Verbose as u8
}

/// Whether progress is shown: on a terminal, unless the user wants quiet.
pub fn shows_progress() -> bool {
    !is_quiet() && io::stderr().is_terminal()
}

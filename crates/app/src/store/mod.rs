//! `panoply store`: encrypted stores. One module per command; each prints a few lines for people,
//! or one JSON object.
//!
//! Before a key is read the process is closed to debuggers and core dumps ([`private`]). A signal
//! may end it at any moment: a store is crash-safe, no unfinished file stays behind, and the final
//! message states the outcome ([`commit`]).

mod append;
mod bench;
pub mod commit;
mod get;
mod init;
pub mod keys;
mod ls;
pub mod names;
mod opening;
mod places;
pub mod private;
mod progress;
pub mod protected;
mod put;
mod repair;
mod rm;
mod rotate;
mod sources;
mod verify;

use crate::configuration::store::StoreOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use opening::{
    at, expect_anchor_apart, open, open_to_read, open_to_read_with, rate_text, start, start_with, uses_json, uses_text,
    warn_of_anchor,
};
use places::{is_same_file, is_within, state_path};

/// Runs a command.
pub fn run(options: &StoreOptions, screen: &mut Screen) -> Result<(), Failure> {
    private::close_process();
    match options {
        StoreOptions::Init(options) => init::run(options, screen),
        StoreOptions::Put(options) => put::run(options, screen),
        StoreOptions::Get(options) => get::run(options, screen),
        StoreOptions::Ls(options) => ls::run(options, screen),
        StoreOptions::Cat(options) => get::cat(options),
        StoreOptions::Verify(options) => verify::run(options, screen),
        StoreOptions::Repair(options) => repair::run(options, screen),
        StoreOptions::Rotate(options) => rotate::run(options, screen),
        StoreOptions::Rm(options) => rm::run(options, screen),
        StoreOptions::Bench(options) => bench::run(options, screen),
    }
}

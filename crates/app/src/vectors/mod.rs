//! `panoply vectors`: collections in folders. Each command has a module, which prints a few lines
//! for people or one JSON object.

mod compact;
mod count;
mod create;
mod delete;
mod export;
mod get;
mod ids;
mod import;
mod info;
mod opening;
mod repair;
mod residency;
mod search;
mod snapshot;
mod text;
mod tune;
mod update;

use crate::configuration::vectors::{VectorsOption, VectorsOptions};
use crate::failure::Failure;
use crate::screen::Screen;
use opening::{check_filter, expect_dimension, key_of, open, open_to_read, queries_from, queries_of};
pub use opening::{device_of, start};
pub use residency::residency_on;
pub use text::{counted, grouped, path_text};

/// Runs the chosen command.
pub fn run(options: &VectorsOptions, screen: &mut Screen) -> Result<(), Failure> {
    let key = options.key.as_ref();
    match &options.command {
        VectorsOption::Create(options) => create::run(options, key, screen),
        VectorsOption::Import(options) => import::run(options, key, screen),
        VectorsOption::Search(options) => search::run(options, key, screen),
        VectorsOption::Info(options) => info::run(options, key, screen),
        VectorsOption::Tune(options) => tune::run(options, key, screen),
        VectorsOption::Export(options) => export::run(options, key, screen),
        VectorsOption::Delete(options) => delete::run(options, key, screen),
        VectorsOption::Get(options) => get::run(options, key, screen),
        VectorsOption::Count(options) => count::run(options, key, screen),
        VectorsOption::Ids(options) => ids::run(options, key, screen),
        VectorsOption::Update(options) => update::run(options, key, screen),
        VectorsOption::Snapshot(options) => snapshot::run(options, key, screen),
        VectorsOption::Compact(options) => compact::run(options, key, screen),
        VectorsOption::Repair(options) => repair::run(options, key, screen),
    }
}

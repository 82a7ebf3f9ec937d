//! `panoply vectors snapshot`.

use serde_json::json;

use super::{counted, open_to_read, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::SnapshotOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::store::commit::Step;

/// Writes a copy into a new folder, even while another process writes to the collection.
pub fn run(options: &SnapshotOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open_to_read(&options.path, key, &runtime)?;
    let target = options.target.display().to_string();
    let before = format!("if {target} is not complete, it does not open, and another snapshot can be written there");
    let copying = Step::announced(before, format!("{target} is complete"));
    collection.snapshot(&options.target)?;
    copying.end();
    let records = collection.len();
    match options.format {
        Format::Json => screen
            .json(&json!({"path": path_text(&options.path), "target": path_text(&options.target), "records": records})),
        Format::Table => {
            screen.prose(&format!("{} in {}.", counted(records as u64, "record"), options.target.display()))
        }
    }
}

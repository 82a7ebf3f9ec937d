//! `panoply vectors compact`.

use serde_json::json;

use super::{counted, open, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::CompactOptions;
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, spinner};
use crate::store::commit::Step;

/// Gives back the space of deleted records, and joins small segments.
pub fn run(options: &CompactOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open(&options.path, key, &runtime)?;
    let before = collection.stats();
    let unchanged =
        "no record is changed; the space of deleted ones may not be free yet, and the same command frees it";
    let compaction = Step::announced(unchanged, "no record is changed, and the space of deleted ones is free");
    let waiting = spinner("compacting");
    let done = collection.compact()?;
    compaction.end();
    waiting.finish_and_clear();
    let after = collection.stats();
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.path),
            "segments_replaced": done.segments,
            "rows_reclaimed": done.rows_reclaimed,
            "stored_bytes_before": before.stored_bytes,
            "stored_bytes": after.stored_bytes,
        })),
        Format::Table => screen.prose(&format!(
            "The space of {} is free again: {} before, {} now.",
            counted(done.rows_reclaimed, "deleted record"),
            bytes_text(before.stored_bytes),
            bytes_text(after.stored_bytes)
        )),
    }
}

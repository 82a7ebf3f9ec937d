//! `panoply vectors count`.

use serde_json::json;

use super::{check_filter, counted, open_to_read, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::CountOptions;
use crate::failure::Failure;
use crate::screen::Screen;

/// Counts records.
pub fn run(options: &CountOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open_to_read(&options.path, key, &runtime)?;
    check_filter(options.filter.as_ref(), &collection)?;
    let records = match &options.filter {
        Some(filter) => collection.count_where(filter)?,
        None => collection.len(),
    };
    match options.format {
        Format::Json => screen.json(&json!({"path": path_text(&options.path), "records": records})),
        Format::Table => screen.line(counted(records as u64, "record")),
    }
}

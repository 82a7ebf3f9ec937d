//! `panoply vectors get`.

use serde_json::json;

use super::{open_to_read, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::GetOptions;
use crate::failure::Failure;
use crate::screen::{Screen, shortened};

/// Shows records. If some ids do not exist, the other records are shown and the command fails.
pub fn run(options: &GetOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open_to_read(&options.path, key, &runtime)?;
    let (mut entries, mut missing) = (Vec::new(), Vec::new());
    for id in &options.ids {
        match collection.get(id)? {
            Some(entry) => entries.push(entry),
            None => missing.push(id.as_str()),
        }
    }
    if options.format == Format::Json {
        let record = |entry: &panoply::vector::StoredRecord| json!({"id": entry.id, "vector": entry.vector, "metadata": entry.metadata});
        let records: Vec<_> = entries.iter().map(record).collect();
        return screen.json(&json!({"records": records, "missing": missing}));
    }
    for entry in &entries {
        let width = screen.width();
        let vector: Vec<String> = entry.vector.iter().take(width).map(ToString::to_string).collect();
        screen.line(screen.strong(&shortened(&entry.id, width)))?;
        screen.line(shortened(&format!("  [{}]", vector.join(", ")), width))?;
        if !entry.metadata.is_null() {
            screen.line(shortened(&format!("  {}", entry.metadata), width))?;
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => {
            screen.flush()?;
            let (missing, path) = (missing.join(", "), options.path.display());
            Err(Failure::Run(anyhow::anyhow!(
                "there is no record {missing}; `panoply vectors ids {path}` lists all ids"
            )))
        }
    }
}

//! `panoply store verify`.

use std::time::Instant;

use anyhow::anyhow;
use serde_json::json;

use super::progress::bar;
use super::{open_to_read, rate_text, start};
use crate::configuration::Format;
use crate::configuration::store::VerifyOptions;
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, visible};
use crate::vectors::{counted, path_text};

/// Reads everything. Damaged objects are reported, and make the command fail.
pub fn run(options: &VerifyOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let store = open_to_read(&options.place, &options.key, &runtime)?;
    let (progress, begun) = (bar(Some(store.entries().map(|entry| entry.len).sum()), "verifying"), Instant::now());
    let found = store.verify(&mut |_, bytes| progress.inc(bytes));
    progress.finish_and_clear();
    let found = found?;
    let seconds = begun.elapsed().as_secs_f64();
    if options.format == Format::Json {
        let damaged = found.damaged.iter().map(|(name, error)| json!({ "name": name, "reason": error.to_string() }));
        screen.json(&json!({
            "path": path_text(&options.place.path),
            "intact": found.intact,
            "bytes": found.bytes,
            "damaged": damaged.collect::<Vec<_>>(),
            "seconds": seconds,
            "generation": store.generation(),
        }))?;
    } else {
        for (name, error) in &found.damaged {
            screen.line(format!("{}: {}", screen.alarming(&visible(name)), visible(&error.to_string())))?;
        }
        let intact = counted(found.intact, "object");
        screen.line(format!("{intact} intact: {}, {}.", bytes_text(found.bytes), rate_text(found.bytes, seconds)))?;
    }
    match found.damaged.len() as u64 {
        0 => Ok(()),
        damaged => {
            screen.flush()?;
            Err(anyhow!("{} of {} damaged", damaged, counted(damaged + found.intact, "object")).into())
        }
    }
}

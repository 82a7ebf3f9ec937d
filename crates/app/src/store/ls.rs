//! `panoply store ls`.

use panoply::store::Entry;
use serde_json::{Value, json};

use super::{open_to_read, start};
use crate::configuration::Format;
use crate::configuration::store::LsOptions;
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, padded, visible};
use crate::vectors::{counted, path_text};

/// Lists objects.
pub fn run(options: &LsOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let store = open_to_read(&options.place, &options.key, &runtime)?;
    let entries: Vec<Entry> = store.entries().filter(|entry| entry.name.starts_with(&options.prefix)).collect();
    let (bytes, stored) =
        entries.iter().fold((0, 0), |(bytes, stored), entry| (bytes + entry.len, stored + entry.stored));
    if options.format == Format::Json {
        let objects: Vec<Value> = entries.iter().map(entry_json).collect();
        return screen.json(&json!({
            "path": path_text(&options.place.path),
            "id": store.id(),
            "generation": store.generation(),
            "root_keys": store.epochs(),
            "bytes": bytes,
            "stored": stored,
            "objects": objects,
        }));
    }
    for entry in &entries {
        let (len, stored) = (bytes_text(entry.len), bytes_text(entry.stored));
        let when = screen.faint(&time_text(entry.modified_s));
        screen.line(format!("{} {} {when}  {}", padded(&len, 9), padded(&stored, 9), visible(&entry.name)))?;
    }
    let count = counted(entries.len() as u64, "object");
    screen.line(format!("{count}: {} in {}; generation {}.", bytes_text(bytes), bytes_text(stored), store.generation()))
}

/// An object as JSON.
pub fn entry_json(entry: &Entry) -> Value {
    let root: String = entry.root.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": entry.name,
        "bytes": entry.len,
        "stored": entry.stored,
        "modified": time_text(entry.modified_s),
        "files": entry.extents,
        "root": root,
    })
}

/// A time in UTC (RFC 3339).
fn time_text(seconds: u64) -> String {
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last day of its year (proleptic
    // calendar, from days since 1970).
    let day = days + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (date, month) = (of_year - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time_text(seconds), text);
        }
    }
}

//! `panoply store repair`.

use anyhow::anyhow;
use panoply::store::{Options, Repair, RepairOptions, Store};
use serde_json::{Value, json};

use super::commit::{Commit, Words};
use super::{at, expect_anchor_apart, keys, start};
use crate::configuration::Format;
use crate::configuration::store::StoreRepairOptions;
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, visible};
use crate::vectors::{counted, path_text};

const WORDS: Words = Words {
    before: "nothing was repaired",
    after: "the store is repaired",
    unknown: "it is unknown how far the repair came, and nothing was deleted; `panoply store repair` tells",
};

/// Maximal number of lost objects that the error names; all are in the report.
const NAMES_SHOWN: usize = 5;

/// Reports the damage and what can be recovered; repairs the store if requested. Fails if something
/// is lost.
pub fn run(options: &StoreRepairOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    expect_anchor_apart(&options.place, &options.key)?;
    let (key, place) = (keys::read(&options.key)?, at(&options.place, Options::default()));
    let wanted = RepairOptions { apply: options.apply, new_anchor: options.new_anchor };
    let repair = || Store::repair(&runtime, &options.place.path, &key, &place, wanted);
    let repair = match options.apply {
        // If it fails, the outcome is unclear.
        true => {
            Commit::announced(WORDS).make(|| repair().map_err(|error| (error, true))).map_err(|(error, _)| error)?
        }
        false => repair()?,
    };
    if repair.applied {
        screen.note_done(WORDS.after);
    }
    match options.format {
        Format::Json => screen.json(&document(&repair, options))?,
        Format::Table => print(&repair, options, screen)?,
    }
    match losses(&repair) {
        None => Ok(()),
        Some(losses) => {
            screen.flush()?;
            Err(anyhow!(losses).into())
        }
    }
}

/// The losses as an error's text; `None` if nothing is known to be lost.
fn losses(repair: &Repair) -> Option<String> {
    let mut losses = Vec::new();
    if !repair.lost.is_empty() {
        let names: Vec<String> = repair.lost.iter().take(NAMES_SHOWN).map(|(name, _)| format!("`{name}`")).collect();
        let more = match repair.lost.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let verb = if repair.applied { "not saved whole" } else { "cannot be saved whole" };
        losses.push(format!("{verb}: {}{more}", names.join(", ")));
    }
    if repair.files_unreadable > 0 {
        let files = counted(repair.files_unreadable, "data file");
        losses.push(format!("{files} cannot be read, and with them objects may be lost whose names nobody knows"));
    }
    if repair.is_anchored == Some(false) {
        match (repair.is_proved, repair.applied) {
            (true, _) => losses.push("the anchor remembers changes that the store does not contain".to_owned()),
            (false, true) => losses.push("the anchor still refuses the store".to_owned()),
            // The log is not whole, so nothing tells whether the anchored state is part of it.
            (false, false) => {}
        }
    }
    (!losses.is_empty()).then(|| losses.join("; "))
}

fn document(repair: &Repair, options: &StoreRepairOptions) -> Value {
    let lost = repair.lost.iter().map(|(name, reason)| json!({"name": name, "reason": reason}));
    json!({
        "path": path_text(&options.place.path),
        "damaged": !repair.findings.is_empty(),
        "findings": repair.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "objects": repair.objects,
        "bytes": repair.bytes,
        "found": repair.found,
        "lost": lost.collect::<Vec<_>>(),
        "files_unreadable": repair.files_unreadable,
        "files_aside": repair.files_aside,
        "proved": repair.is_proved,
        "anchored": repair.is_anchored,
        "applied": repair.applied,
    })
}

fn print(repair: &Repair, options: &StoreRepairOptions, screen: &mut Screen) -> Result<(), Failure> {
    let (objects, path) = (counted(repair.objects, "object"), options.place.path.display());
    for finding in &repair.findings {
        screen.prose(&format!("{}.", visible(&finding.to_string())))?;
    }
    for (name, reason) in &repair.lost {
        screen.prose(&format!("{}: {reason}.", screen.alarming(&visible(name))))?;
    }
    match repair.findings.is_empty() {
        true => screen.prose(&format!("Head, log and root keys are in order; they name {objects}."))?,
        false => {
            let tense = match (repair.applied, repair.objects) {
                (false, _) => "can be",
                (true, 1) => "is",
                (true, _) => "are",
            };
            screen.prose(&format!("{objects} {tense} saved: {}.", bytes_text(repair.bytes)))?;
        }
    }
    if !repair.is_proved {
        screen.prose(
            "Nobody can tell whether this is the newest state: the last changes may be missing, changes that were under way may be \
             there, and removed objects may come back. Whoever had an earlier key may have written objects of its time.",
        )?;
    }
    if repair.is_anchored == Some(false) {
        screen.prose(&format!(
            "The anchor remembers a state that this cannot be shown to contain, and will not let the store be opened. If you trust the \
             store as it is, `panoply store repair {path} --apply --new-anchor` has the anchor remember it."
        ))?;
    }
    match (repair.applied, repair.findings.is_empty()) {
        (true, _) => screen.prose("Damaged files are kept, with .damaged behind their names."),
        (false, true) => screen.prose(&format!("`panoply store verify {path}` reads all data as well.")),
        (false, false) => screen.prose(&format!("Nothing was changed; `panoply store repair {path} --apply` does it.")),
    }
}

//! `panoply vectors repair`.

use anyhow::anyhow;
use panoply::vector::repair::Finding;
use panoply::vector::{Collection, Repair};
use serde_json::{Value, json};

use super::{counted, grouped, key_of, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::RepairOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::store::commit::{Commit, Words};

const WORDS: Words = Words {
    before: "nothing was repaired",
    after: "the collection is repaired",
    unknown: "it is unknown how far the repair came, and nothing was deleted; `panoply vectors repair` tells",
};

/// Reports the damage and what a repair would lose. Repairs only with `--apply`. Fails if something
/// is lost that cannot be made again.
pub fn run(options: &RepairOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let key = key_of(&options.path, key)?;
    let runtime = if key.is_some() { Some(start()?) } else { None };
    let repair = || match (&key, &runtime) {
        (Some(key), Some(runtime)) => Collection::repair_encrypted(runtime, &options.path, key, options.apply),
        _ => Collection::repair(&options.path, options.apply),
    };
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

/// The losses as an error's text; `None` if nothing is lost. An index can be built again.
fn losses(repair: &Repair) -> Option<String> {
    let (rows, applied) = (counted(repair.rows_lost, "row"), repair.applied);
    let rows = match (repair.rows_lost, applied) {
        (0, _) => None,
        (1, true) => Some(format!("{rows} is lost")),
        (_, true) => Some(format!("{rows} are lost")),
        (_, false) => Some(format!("{rows} cannot be saved")),
    };
    let removals = repair.removals_lost.then(|| "removals may be lost".to_owned());
    let losses: Vec<String> = rows.into_iter().chain(removals).collect();
    (!losses.is_empty()).then(|| losses.join("; "))
}

fn document(repair: &Repair, options: &RepairOptions) -> Value {
    let finding = |finding: &Finding| json!({"path": path_text(&finding.path), "offset": finding.offset, "reason": finding.reason});
    json!({
        "path": path_text(&options.path),
        "damaged": !repair.findings.is_empty(),
        "findings": repair.findings.iter().map(finding).collect::<Vec<_>>(),
        "records": repair.records,
        "rows_lost": repair.rows_lost,
        "removals_lost": repair.removals_lost,
        "index_lost": repair.index_lost,
        "applied": repair.applied,
    })
}

fn print(repair: &Repair, options: &RepairOptions, screen: &mut Screen) -> Result<(), Failure> {
    if repair.findings.is_empty() {
        let are = if repair.records == 1 { "is" } else { "are" };
        return screen.prose(&format!("Nothing is damaged; {} {are} there.", counted(repair.records, "record")));
    }
    for Finding { path, offset, reason } in &repair.findings {
        screen.prose(&format!("{}, byte {}: {reason}.", path.display(), grouped(*offset)))?;
    }
    screen.line("")?;
    let (lost, stays) = (counted(repair.rows_lost, "row"), counted(repair.records, "record"));
    let tense = if repair.applied { ("were", "is") } else { ("would be", "would be") };
    let mut text = format!("{stays} {} kept, and {lost} lost.", tense.0);
    if repair.removals_lost {
        text += " Removals may be lost as well: records that were deleted may come back.";
    }
    if repair.index_lost {
        text += &format!(" The index {} lost; `panoply vectors tune` builds it again.", tense.1);
    }
    screen.prose(&text)?;
    match repair.applied {
        true => screen.prose("The damaged files are kept, with .damaged behind their names."),
        false => {
            let path = options.path.display();
            screen.prose(&format!("Nothing was changed; `panoply vectors repair {path} --apply` does it."))
        }
    }
}

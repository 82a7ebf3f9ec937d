//! `panoply vectors delete`.

use panoply::vector::Collection;
use serde_json::json;

use super::{counted, open, start};
use crate::configuration::Format;
use crate::configuration::vectors::DeleteOptions;
use crate::failure::Failure;
use crate::screen::Screen;

/// Deletes records, or the whole collection.
pub fn run(options: &DeleteOptions, screen: &mut Screen) -> Result<(), Failure> {
    if options.ids.is_empty() { delete_collection(options, screen) } else { delete_records(options, screen) }
}

fn delete_collection(options: &DeleteOptions, screen: &mut Screen) -> Result<(), Failure> {
    if !options.confirmed {
        let path = options.path.display();
        return Err(Failure::Usage(format!("this deletes {path} and every record in it; say --yes to go on")));
    }
    Collection::destroy(&options.path)?;
    match options.format {
        Format::Json => screen.json(&json!({"path": options.path, "deleted": "collection"})),
        Format::Table => screen.line(format!("{} is deleted.", options.path.display())),
    }
}

fn delete_records(options: &DeleteOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open(&options.path, &runtime)?;
    let removed = collection.remove_many(&options.ids)?;
    let left = collection.len() as u64;
    match options.format {
        Format::Json => screen.json(&json!({"path": options.path, "removed": removed, "records": left})),
        Format::Table => {
            let (removed, left) = (counted(removed as u64, "record"), counted(left, "record"));
            screen.line(format!("{removed} deleted; {left} left."))
        }
    }
}

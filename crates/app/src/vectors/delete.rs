//! `panoply vectors delete`.

use panoply::vector::Collection;
use serde_json::json;

use super::{check_filter, counted, open, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::{DeleteOptions, DeleteSelection};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::store::commit::{Commit, Words};

const WORDS: Words = Words {
    before: "nothing was deleted",
    after: "what was to be deleted is deleted",
    unknown: "it is unknown whether it is deleted; `panoply vectors info` tells",
};

/// Deletes records, or the whole collection.
pub fn run(options: &DeleteOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    match &options.what {
        DeleteSelection::Collection { confirmed } => delete_collection(options, *confirmed, screen),
        DeleteSelection::Records(ids) => delete_records(options, key, |collection| collection.remove_many(ids), screen),
        DeleteSelection::Passing(filter) => {
            delete_records(options, key, |collection| collection.remove_where(filter), screen)
        }
    }
}

fn delete_collection(options: &DeleteOptions, confirmed: bool, screen: &mut Screen) -> Result<(), Failure> {
    if !confirmed {
        let path = options.path.display();
        return Err(Failure::Usage(format!("this deletes {path} and every record in it; say --yes to go on")));
    }
    let destroy = || Collection::destroy(&options.path).map_err(|error| (error, true));
    Commit::announced(WORDS).make(destroy).map_err(|(error, _)| error)?;
    let (path, folder_stays) = (options.path.display(), options.path.exists());
    match options.format {
        Format::Json => screen
            .json(&json!({"path": path_text(&options.path), "deleted": "collection", "folder_stays": folder_stays})),
        Format::Table if folder_stays => {
            screen.line(format!("The collection is deleted; the folder {path} stays, since it holds other files."))
        }
        Format::Table => screen.line(format!("{path} is deleted.")),
    }
}

fn delete_records(
    options: &DeleteOptions,
    key: Option<&KeySource>,
    remove: impl FnOnce(&Collection) -> panoply::vector::Result<usize>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open(&options.path, key, &runtime)?;
    if let DeleteSelection::Passing(filter) = &options.what {
        check_filter(Some(filter), &collection)?;
    }
    let remove = || remove(&collection).map_err(|error| (error, true));
    let removed = Commit::announced(WORDS).make(remove).map_err(|(error, _)| error)?;
    let left = collection.len() as u64;
    match options.format {
        Format::Json => screen.json(&json!({"path": path_text(&options.path), "removed": removed, "records": left})),
        Format::Table => {
            let (removed, left) = (counted(removed as u64, "record"), counted(left, "record"));
            screen.line(format!("{removed} deleted; {left} left."))
        }
    }
}

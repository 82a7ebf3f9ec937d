//! `panoply vectors ids`.

use serde_json::json;

use super::{check_filter, open_to_read, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::IdsOptions;
use crate::failure::Failure;
use crate::screen::{Screen, visible};

/// Lists ids, one on each line.
pub fn run(options: &IdsOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open_to_read(&options.path, key, &runtime)?;
    check_filter(options.filter.as_ref(), &collection)?;
    let ids = collection.ids(options.after.as_deref(), options.limit, options.filter.as_ref())?;
    match options.format {
        Format::Json => {
            let next = ids.last().filter(|_| ids.len() == options.limit);
            screen.json(&json!({"ids": ids, "next": next}))
        }
        // Trailing blanks are part of an id.
        Format::Table => ids.iter().try_for_each(|id| screen.text(format!("{}\n", visible(id)).as_bytes())),
    }
}

//! The anchor: a small file outside of the store that knows its newest generation.
//!
//! A store that is put back as a whole, as it was some time ago, is in order: nothing in it can tell. So whoever wants to know keeps an
//! anchor where the store's thief cannot write. It has no secrets. It is written after each commit: a crash between the two leaves a store
//! that is newer than its anchor, which is no sign of anything. Where there is no anchor yet nothing can be told of the time before; whoever
//! opens a store is told that ([`crate::Store::had_no_anchor`]), since it may have been expected there.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::encode::{from_hex, hex};
use crate::error::{Error, Result};
use crate::folder::{Access, open_file, read_file, sync_folder};
use crate::head::State;

const FIRST_LINE: &str = "panoply store anchor 1";
const ANCHOR_BYTES_MAX: u64 = 4096;

/// What the anchor of a store that may be opened knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: there is none.
    Nothing,
    /// An earlier state.
    Earlier,
    /// This state.
    This,
}

/// Compares a store with its anchor. Where there is none there is nothing to compare with.
pub(crate) fn check(anchor: &Path, folder: &Path, store: &[u8; 16], state: &State) -> Result<Known> {
    if anchor.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(Known::Nothing);
    }
    let text = read_file(anchor, ANCHOR_BYTES_MAX)?;
    let known = parse(&text).ok_or_else(|| Error::damaged(anchor, "it is no anchor of a store"))?;
    if known.store != *store {
        return Err(Error::damaged(anchor, "it is the anchor of another store"));
    }
    let is_same = known.generation == state.generation && known.last_tag == state.last_tag;
    if is_same {
        return Ok(Known::This);
    }
    if known.generation < state.generation {
        return Ok(Known::Earlier);
    }
    let (path, anchor) = (folder.to_owned(), anchor.to_owned());
    Err(Error::RolledBack { path, anchor, expected: known.generation, got: state.generation })
}

/// Remembers a state.
pub(crate) fn write(anchor: &Path, store: &[u8; 16], state: &State) -> Result<()> {
    let text = format!("{FIRST_LINE}\n{} {} {}\n", hex(store), state.generation, hex(&state.last_tag));
    let mut new = anchor.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let new = Path::new(&new);
    let refused = |error| Error::io("write", anchor, error);
    let _ = fs::remove_file(new);
    let mut file = open_file(new, Access::New)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(new, anchor)).map_err(refused)?;
    let above = anchor.parent().filter(|above| !above.as_os_str().is_empty());
    sync_folder(above.unwrap_or(Path::new(".")))
}

struct Line {
    store: [u8; 16],
    generation: u64,
    last_tag: [u8; 16],
}

fn parse(text: &[u8]) -> Option<Line> {
    let mut lines = str::from_utf8(text).ok()?.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let mut words = lines.next()?.split(' ');
    let store = *from_hex(words.next()?.as_bytes())?;
    let generation = words.next()?.parse().ok()?;
    let last_tag = *from_hex(words.next()?.as_bytes())?;
    words.next().is_none().then_some(Line { store, generation, last_tag })
}

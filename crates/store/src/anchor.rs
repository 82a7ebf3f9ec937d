//! The anchor: a small file outside the store that remembers one point of the store's history.
//!
//! 1. A rollback of a whole store to an earlier copy leaves a store that is in order: nothing
//!    inside it shows the rollback. To detect it, an owner keeps an anchor where a thief of the
//!    store cannot write. The anchor contains no secrets.
//! 2. The anchor holds a generation and the tag of that generation's last record. A store passes
//!    if its log's chain contains exactly this point. So a store that was rolled back and then
//!    continued, to any generation, is detected as well.
//! 3. The anchor is written after each commit. A crash between the two leaves a store that is
//!    newer than its anchor, which is not an error.
//! 4. An anchor may be named after the store's path, which detects another store in its place, and
//!    after the store's id, which finds the anchor by any path that leads to the store. Every
//!    anchor that exists must pass.
//! 5. Without an anchor nothing is known about the past. [`crate::Store::had_no_anchor`] reports
//!    this to the caller, who may have expected an anchor.
//! 6. A new anchor is written under a temporary name and renamed over the old one. The next store
//!    that uses the anchor removes what killed writers have left (`temporary`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::catalog::Point;
use crate::encode::{from_hex, hex};
use crate::error::{Error, Result};
use crate::files::read_file;
use crate::options::Options;
use crate::temporary;

const FIRST_LINE: &str = "panoply store anchor 1";
const ANCHOR_BYTES_MAX: u64 = 4096;

/// The relation of a store to its anchor, for a store that may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnchorRelation {
    /// There is no anchor.
    Nothing,
    /// The anchor remembers an earlier point.
    Earlier,
    /// The anchor remembers the last point.
    This,
}

/// Paths of the anchors of the store with this id.
pub(crate) fn files(options: &Options, store: &[u8; 16]) -> Vec<PathBuf> {
    let by_id = options.anchor_folder.as_ref().map(|folder| folder.join(hex(store)));
    options.anchor.iter().cloned().chain(by_id).collect()
}

/// Compares a store with one of its anchors: the store's history must contain the anchor's point.
pub(crate) fn check(anchor: &Path, folder: &Path, store: &[u8; 16], history: &[Point]) -> Result<AnchorRelation> {
    let senseless = |reason| Error::DamagedAnchor { path: folder.to_owned(), anchor: anchor.to_owned(), reason };
    let known = match read(anchor) {
        Ok(None) => return Ok(AnchorRelation::Nothing),
        Ok(Some(known)) => known,
        Err(Error::Damaged { reason, .. }) => return Err(senseless(reason)),
        Err(error) => return Err(error),
    };
    if known.store != *store {
        return Err(senseless("it is the anchor of another store"));
    }
    if history.last() == Some(&known.point) {
        return Ok(AnchorRelation::This);
    }
    if history.contains(&known.point) {
        return Ok(AnchorRelation::Earlier);
    }
    let (path, anchor) = (folder.to_owned(), anchor.to_owned());
    let (first, last) =
        (history.first().map_or(0, |point| point.generation), history.last().map_or(0, |point| point.generation));
    match known.point.generation {
        got if got < first => Err(Error::AnchorTooOld { path, anchor, expected: first, got }),
        expected => Err(Error::RolledBack { path, anchor, expected, got: last }),
    }
}

/// The generation that an anchor of this store remembers.
pub(crate) fn generation(anchor: &Path, store: &[u8; 16]) -> Option<u64> {
    read(anchor).ok().flatten().filter(|known| known.store == *store).map(|known| known.point.generation)
}

/// Refuses to replace a file that is neither missing nor empty, and does not begin as an anchor
/// does: it may be the store's only key.
pub(crate) fn expect_replaceable(anchor: &Path) -> Result<()> {
    if anchor.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    let is_anchor = |text: Vec<u8>| text.is_empty() || text.starts_with(FIRST_LINE.as_bytes());
    match read_file(anchor, ANCHOR_BYTES_MAX).map(is_anchor) {
        Ok(true) => Ok(()),
        Ok(false) | Err(Error::Damaged { .. }) => Err(Error::NotAnAnchor { anchor: anchor.to_owned() }),
        Err(error) => Err(error),
    }
}

/// Writes a point into the anchor.
pub(crate) fn write(anchor: &Path, store: &[u8; 16], point: &Point) -> Result<()> {
    let text = format!("{FIRST_LINE}\n{} {} {}\n", hex(store), point.generation, hex(&point.tag));
    temporary::write(anchor, text.as_bytes(), |new, anchor| fs::rename(new, anchor))
}

/// Reads the anchor; `None` if the file does not exist.
fn read(anchor: &Path) -> Result<Option<AnchorLine>> {
    if anchor.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = read_file(anchor, ANCHOR_BYTES_MAX)?;
    parse(&text).map(Some).ok_or_else(|| Error::damaged(anchor, "it is no anchor of a store"))
}

struct AnchorLine {
    store: [u8; 16],
    point: Point,
}

fn parse(text: &[u8]) -> Option<AnchorLine> {
    let mut lines = str::from_utf8(text).ok()?.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let mut words = lines.next()?.split(' ');
    let store = *from_hex(words.next()?.as_bytes())?;
    let generation = words.next()?.parse().ok()?;
    let tag = *from_hex(words.next()?.as_bytes())?;
    words.next().is_none().then_some(AnchorLine { store, point: Point { generation, tag } })
}

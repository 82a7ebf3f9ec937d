//! The newest state of a store: that of its head, or a later one that its log has.
//!
//! 1. The log may go on behind the commit in the head: a writer ended before it replaced the head,
//!    or an older head was put back. The commits in the log count.
//! 2. The log may go on in other files, because it was rewritten after the time of the head. Then a
//!    repair must decide: a writer would delete those files as left over.

use panoply_core::op::crypto::Key;
use panoply_runtime::Runtime;

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::head::{HeadSource, Identity, State};
use crate::log;

/// The newest state of a store that authenticates.
pub(crate) struct Newest {
    pub(crate) catalog: Catalog,
    pub(crate) state: State,
    pub(crate) damaged_copies: Vec<Error>,
    /// Whether HEAD names this state.
    pub(crate) is_head_newest: bool,
}

impl Newest {
    /// Reads the log that a head names, and the commits behind the one that the head names.
    pub(crate) fn read(
        runtime: &Runtime,
        folder: &Folder,
        identity: &Identity,
        state: State,
        head: &[u8],
    ) -> Result<Newest> {
        let (_, root) = identity.keyring.newest()?;
        let path = folder.head_path();
        let older = |expected, got| Error::OlderHead { path: path.clone(), expected, got };
        let (store, got) = (identity.store, state.generation);
        let log::LogCatalog { catalog, damaged } = match log::read(runtime, folder, store, root, &state.place()) {
            Err(error) if error.is_damage() => {
                let successor = log::successor(runtime, folder, store, root, &state)?;
                return Err(successor.map_or(error, |found| older(found.complete, got)));
            }
            read => read?,
        };
        let mut newest = Newest { catalog, state, damaged_copies: damaged, is_head_newest: true };
        let beyond = log::beyond(runtime, folder, store, root, &newest.state, &newest.catalog)?;
        // Without a lock a writer may be about to replace the head.
        let is_still = |is_older_head| match folder.is_locked() {
            true => Ok(true),
            false => folder.expect_head(Some(head)).map(|()| is_older_head).or_else(|error| match error {
                Error::Overtaken { .. } => Ok(false),
                error => Err(error),
            }),
        };
        if let Some(beyond) = beyond
            && is_still(beyond.is_older_head)?
        {
            if beyond.is_older_head {
                // The copies of the log are compared again, up to the new end. Those of a single
                // commit may differ: its writer may have ended between them.
                newest.damaged_copies = log::read(runtime, folder, store, root, &beyond.state.place())?.damaged;
                newest.damaged_copies.push(older(beyond.state.generation, got));
            }
            (newest.catalog, newest.state, newest.is_head_newest) = (beyond.catalog, beyond.state, false);
        }
        if folder.is_writer() {
            refuse_successor(runtime, folder, store, root, &newest.state)?;
        }
        Ok(newest)
    }
}

/// Refuses to write to a store whose log goes on from this state in other files, which would be
/// deleted as left over. One commit may be a log that was being rewritten, with the same content.
fn refuse_successor(runtime: &Runtime, folder: &Folder, store: [u8; 16], root: &Key, state: &State) -> Result<()> {
    let successor = log::successor(runtime, folder, store, root, state)?;
    match successor.filter(|found| found.complete > state.generation + 1) {
        Some(found) => {
            Err(Error::OlderHead { path: folder.head_path(), expected: found.complete, got: state.generation })
        }
        None => Ok(()),
    }
}

/// The same with the root keys of `data/KEYS`, if they can be read: the log may have been rewritten
/// by a rotation of keys.
pub(crate) fn refuse_successor_of_keys(
    runtime: &Runtime,
    folder: &Folder,
    from: &HeadSource<'_>,
    keys: &[u8],
    store: [u8; 16],
    state: &State,
) -> Result<()> {
    match Identity::decode_front(runtime, from, keys) {
        Ok(newer) if newer.store == store => {
            let (_, root) = newer.keyring.newest()?;
            refuse_successor(runtime, folder, store, root, state)
        }
        _ => Ok(()),
    }
}

//! The lock on the growing log. It also holds on file systems where a folder's lock holds on one
//! host alone.

use std::fs;
use std::sync::{MutexGuard, PoisonError};

use panoply_store::lock::Alone;

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::region::{Access, open_file};

/// The growing log, locked; `None` if it could not be opened.
pub(crate) struct HeldLog {
    segment: u32,
    pub(crate) log: Option<Alone>,
}

impl Folder {
    /// Locks the log of a segment exclusively. `None` if it cannot be opened: reading it reports
    /// the reason.
    pub(crate) fn lock_log(&self, segment: u32) -> Result<Option<Alone>> {
        let path = self.log_path(segment);
        let Ok(file) = open_file(&path, Access::Write) else { return Ok(None) };
        match Alone::lock(file, path) {
            // Reported as the collection being in use, whichever file is locked.
            Err(panoply_store::Error::InUse { .. }) => Err(Error::InUse { path: self.path().to_owned() }),
            locked => Ok(Some(locked?)),
        }
    }

    /// Fails if a log is locked by another process.
    pub(crate) fn expect_logs_free(&self) -> Result<()> {
        let entries = fs::read_dir(self.path()).map_err(|error| Error::io("list", self.path(), error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let segment = |name: String| name.strip_prefix("segment-")?.strip_suffix(".log")?.parse().ok();
        names.filter_map(segment).try_for_each(|segment: u32| self.lock_log(segment).map(drop))
    }

    /// Locks the log of the segment that will grow, unless it is already locked. [`Folder::keep`]
    /// releases the previous one.
    pub(crate) fn lock_next(&self, segment: u32) -> Result<Option<HeldLog>> {
        let is_held = self.held().as_ref().is_some_and(|held| held.segment == segment);
        if is_held || self.is_read_only() {
            return Ok(None);
        }
        Ok(Some(HeldLog { segment, log: self.lock_log(segment)? }))
    }

    /// Holds this lock from now on. Nothing is changed if the path no longer leads to this log.
    pub(crate) fn keep(&self, next: Option<HeldLog>) {
        if let Some(next) = next {
            *self.held() = Some(next);
        }
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Option<HeldLog>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

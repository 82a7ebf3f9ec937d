//! The description of an object.

use crate::catalog::Object;

/// Description of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Length of the object.
    pub len: u64,
    /// Bytes of its files.
    pub stored: u64,
    /// Time of the last write, in seconds since 1970.
    pub modified_s: u64,
    /// Number of its files.
    pub extents: usize,
    /// Its Merkle root.
    pub root: [u8; 32],
}

impl Entry {
    pub(crate) fn of(name: &str, object: &Object) -> Entry {
        Entry {
            name: name.to_owned(),
            len: object.len(),
            stored: object.extents.iter().map(|extent| extent.file_bytes).sum(),
            modified_s: object.modified_s,
            extents: object.extents.len(),
            root: object.root,
        }
    }
}

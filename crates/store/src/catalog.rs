//! The catalog: which objects there are, and of which extents each consists.
//!
//! It is in memory while a store is open. On disk it is a log of changes ([`crate::log`]). Each
//! change is applied to the result of the changes before it; a log begins with changes that
//! recreate the whole catalog of that time.

use std::collections::BTreeMap;

use panoply_core::op::crypto::TAG_BYTES;

use crate::encode::{Fields, put_counted};
use crate::error::{Error, Result};

/// Maximal length of an object name.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximal number of extents of one object: 256 TiB put at once, or 65,536 appends.
pub const EXTENTS_MAX: usize = 1 << 16;
/// The permitted chunk sizes.
pub(crate) const CHUNK_BYTES: std::ops::RangeInclusive<usize> = 64..=1 << 24;
/// Maximal number of chunks of an extent, so that their index fits memory.
pub(crate) const CHUNKS_MAX: u64 = 1 << 16;

/// Maximal number of points of the log's chain that a rewritten log takes over from the log before
/// it.
pub(crate) const HISTORY_MAX: usize = 4096;

/// Bytes of an extent's file beside its chunks: per chunk its tag and its index entry with a
/// digest, and a fixed part.
const CHUNK_FILE_BYTES_MAX: u64 = 16 + 4 + 32;
const EXTENT_FILE_BYTES_MAX: u64 = 4096;

/// Bytes of an object, an extent and a point in the log.
const PUT_BYTES: usize = 1 + 4 + 16 + 8 + 32 + 4;
const EXTENT_BYTES: usize = 32 + 4 + 4 + 8 + 8 + 32;
const POINT_BYTES: usize = 8 + TAG_BYTES;

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// A point of the log's chain. It identifies the state of a store after one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) generation: u64,
    /// The tag of the commit's last record, which authenticates all records before it.
    pub(crate) tag: [u8; TAG_BYTES],
}

/// One data file: chunks that were written at once, under a key of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Random. The extent's key is derived from it, and its file is named after it.
    pub(crate) id: [u8; 32],
    /// Epoch of the root key that the extent's key is derived from.
    pub(crate) epoch: u32,
    /// Bytes of each chunk but the last.
    pub(crate) chunk_bytes: u32,
    /// Bytes of the object in this extent; zero only if the object is empty.
    pub(crate) len: u64,
    /// Bytes of its file.
    pub(crate) file_bytes: u64,
    pub(crate) root: Digest,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Random. The keys of its extents are derived from it as well.
    pub(crate) id: [u8; 16],
    /// When it was last written to, in seconds since 1970.
    pub(crate) modified_s: u64,
    pub(crate) extents: Vec<Extent>,
    pub(crate) root: Digest,
}

/// A change to the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Puts an object; an object of this name is replaced.
    Put { name: String, object: Object },
    /// Appends an extent to an object.
    Append { name: String, extent: Extent, modified_s: u64, root: Digest },
    /// Removes an object.
    Remove { name: String },
    /// The log continues from these points of the log before it. Each log begins with this change.
    History { points: Vec<Point> },
}

/// The objects by name, and the points of the log's chain so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Catalog {
    pub(crate) objects: BTreeMap<String, Object>,
    /// In the order of generations.
    pub(crate) history: Vec<Point>,
}

impl Catalog {
    /// Applies a change. `None` if it does not fit the catalog.
    pub(crate) fn apply(&mut self, change: Change) -> Option<()> {
        match change {
            Change::Put { name, object } => drop(self.objects.insert(name, object)),
            Change::Append { name, extent, modified_s, root } => {
                let object = self.objects.get_mut(&name)?;
                object.extents.push(extent);
                (object.modified_s, object.root) = (modified_s, root);
            }
            Change::Remove { name } => drop(self.objects.remove(&name)?),
            Change::History { points } => self.history = points,
        }
        Some(())
    }

    /// Records the tag of a record that belongs to the commit of a generation.
    pub(crate) fn note(&mut self, generation: u64, tag: [u8; TAG_BYTES]) {
        match self.history.last_mut().filter(|point| point.generation == generation) {
            Some(point) => point.tag = tag,
            None => self.history.push(Point { generation, tag }),
        }
    }

    /// Changes that recreate this catalog from an empty one.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change> {
        let points = self.history[self.history.len().saturating_sub(HISTORY_MAX)..].to_vec();
        let objects =
            self.objects.iter().map(|(name, object)| Change::Put { name: name.clone(), object: object.clone() });
        [Change::History { points }].into_iter().chain(objects)
    }

    /// Encoded length of these changes.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        let each = |(name, object): (&String, &Object)| name.len() + PUT_BYTES + object.extents.len() * EXTENT_BYTES;
        let history = self.history.len().min(HISTORY_MAX) * POINT_BYTES;
        (self.objects.iter().map(each).sum::<usize>() + history) as u64
    }

    /// All extents.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.objects.values().flat_map(|object| &object.extents)
    }
}

impl Object {
    pub(crate) fn len(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

impl Extent {
    pub(crate) fn chunks(&self) -> u64 {
        self.len.div_ceil(u64::from(self.chunk_bytes))
    }

    /// Number of bytes of the object in a chunk.
    pub(crate) fn chunk_len(&self, chunk: u64) -> usize {
        chunk_len(self.len, self.chunk_bytes, chunk)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.id);
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.chunk_bytes.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.file_bytes.to_le_bytes());
        out.extend(self.root);
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Extent> {
        let extent = Extent {
            id: fields.array()?,
            epoch: fields.u32()?,
            chunk_bytes: fields.u32()?,
            len: fields.u64()?,
            file_bytes: fields.u64()?,
            root: fields.array()?,
        };
        let sensible = CHUNK_BYTES.contains(&(extent.chunk_bytes as usize));
        // This is checked although the record is authentic: lengths that are added up later must be
        // those of real files.
        let file_bytes_max = |chunks: u64| extent.len + chunks * CHUNK_FILE_BYTES_MAX + EXTENT_FILE_BYTES_MAX;
        let fits = |chunks: u64| chunks <= CHUNKS_MAX && extent.file_bytes <= file_bytes_max(chunks);
        (sensible && fits(extent.chunks())).then_some(extent)
    }
}

impl Change {
    /// The extents that the change names.
    pub(crate) fn extents(&self) -> &[Extent] {
        match self {
            Change::Put { object, .. } => &object.extents,
            Change::Append { extent, .. } => std::slice::from_ref(extent),
            Change::Remove { .. } | Change::History { .. } => &[],
        }
    }

    /// The name of the object that is changed.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Change::Put { name, .. } | Change::Append { name, .. } | Change::Remove { name } => Some(name),
            Change::History { .. } => None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Change::Put { name, object } => {
                out.push(1);
                put_counted(out, name.as_bytes());
                out.extend(object.id);
                out.extend(object.modified_s.to_le_bytes());
                out.extend(object.root);
                out.extend((object.extents.len() as u32).to_le_bytes());
                object.extents.iter().for_each(|extent| extent.encode(out));
            }
            Change::Append { name, extent, modified_s, root } => {
                out.push(2);
                put_counted(out, name.as_bytes());
                out.extend(modified_s.to_le_bytes());
                out.extend(root);
                extent.encode(out);
            }
            Change::Remove { name } => {
                out.push(3);
                put_counted(out, name.as_bytes());
            }
            Change::History { points } => {
                out.push(4);
                out.extend((points.len() as u32).to_le_bytes());
                for point in points {
                    out.extend(point.generation.to_le_bytes());
                    out.extend(point.tag);
                }
            }
        }
    }

    /// Decodes all changes of a record's content.
    pub(crate) fn decode_all(bytes: &[u8]) -> Option<Vec<Change>> {
        let mut fields = Fields::new(bytes);
        let count = fields.u32()?;
        let changes = (0..count).map(|_| Change::decode(&mut fields)).collect::<Option<_>>()?;
        fields.end().map(|()| changes)
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Change> {
        let kind = fields.u8()?;
        if kind == 4 {
            let count = fields.u32().filter(|count| *count as usize <= HISTORY_MAX)?;
            let point = |fields: &mut Fields<'_>| Some(Point { generation: fields.u64()?, tag: fields.array()? });
            return Some(Change::History { points: (0..count).map(|_| point(fields)).collect::<Option<_>>()? });
        }
        let name = String::from_utf8(fields.counted(NAME_BYTES_MAX)?.to_vec()).ok()?;
        // Checked here too: someone who once had the key may have sealed a catalog with names that
        // lead out of the folder that objects are extracted to.
        check_name(&name).ok()?;
        Some(match kind {
            1 => {
                let (id, modified_s, root) = (fields.array()?, fields.u64()?, fields.array()?);
                let count = fields.u32().filter(|count| *count as usize <= EXTENTS_MAX)?;
                let extents = (0..count).map(|_| Extent::decode(fields)).collect::<Option<_>>()?;
                Change::Put { name, object: Object { id, modified_s, extents, root } }
            }
            2 => {
                let (modified_s, root) = (fields.u64()?, fields.array()?);
                Change::Append { name, extent: Extent::decode(fields)?, modified_s, root }
            }
            3 => Change::Remove { name },
            _ => return None,
        })
    }
}

/// Number of bytes in a chunk of an object of `len` bytes.
pub(crate) fn chunk_len(len: u64, chunk_bytes: u32, chunk: u64) -> usize {
    let start = chunk * u64::from(chunk_bytes);
    len.saturating_sub(start).min(u64::from(chunk_bytes)) as usize
}

/// Refuses a name that leads out of a folder it is extracted to, or that cannot be shown in one
/// line.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let expected = || {
        format!(
            "1 to {NAME_BYTES_MAX} bytes, without control characters, and parts between slashes that are neither empty nor `.` nor `..`"
        )
    };
    let bad_part = |part: &str| matches!(part, "" | "." | "..");
    let bad = name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) || name.split('/').any(bad_part);
    if bad { Err(Error::invalid("name of an object", expected(), format!("{name:?}"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(number: u8) -> Extent {
        Extent { id: [number; 32], epoch: 3, chunk_bytes: 100, len: 250, file_bytes: 400, root: [number + 1; 32] }
    }

    #[test]
    fn changes_come_back_and_everything_cut_or_changed_is_refused_or_another_change() {
        let object = Object { id: [5; 16], modified_s: 77, extents: vec![extent(1), extent(2)], root: [9; 32] };
        let changes = [
            Change::Put { name: "a/b".to_owned(), object },
            Change::Append { name: "a/b".to_owned(), extent: extent(3), modified_s: 78, root: [8; 32] },
            Change::Remove { name: "a/b".to_owned() },
            Change::History { points: Vec::new() },
        ];
        let mut bytes = Vec::new();
        changes[0].encode(&mut bytes);
        assert_eq!(bytes.len(), 3 + PUT_BYTES + 2 * EXTENT_BYTES);
        let mut bytes = 4_u32.to_le_bytes().to_vec();
        changes.iter().for_each(|change| change.encode(&mut bytes));
        assert_eq!(Change::decode_all(&bytes).unwrap(), changes);
        for len in 0..bytes.len() {
            assert_eq!(Change::decode_all(&bytes[..len]), None);
        }
        for place in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[place] ^= 1;
            assert_ne!(Change::decode_all(&altered).as_deref(), Some(&changes[..]));
        }
        let mut catalog = Catalog::default();
        changes.clone().into_iter().for_each(|change| catalog.apply(change).unwrap());
        assert_eq!(catalog, Catalog::default());
        assert!(catalog.apply(changes[1].clone()).is_none() && catalog.apply(changes[2].clone()).is_none());
    }

    #[test]
    fn files_of_impossible_lengths_are_refused() {
        for (file_bytes, is_possible) in [(250 + 3 * 52 + 4096, true), (250 + 3 * 52 + 4097, false), (u64::MAX, false)]
        {
            let mut bytes = 1_u32.to_le_bytes().to_vec();
            let extent = Extent { file_bytes, ..extent(1) };
            Change::Append { name: "a".to_owned(), extent, modified_s: 0, root: [0; 32] }.encode(&mut bytes);
            assert_eq!(Change::decode_all(&bytes).is_some(), is_possible, "{file_bytes}");
        }
    }

    #[test]
    fn the_last_chunk_is_shorter() {
        let lens: Vec<usize> = (0..4).map(|chunk| extent(0).chunk_len(chunk)).collect();
        assert_eq!((extent(0).chunks(), lens), (3, vec![100, 100, 50, 0]));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["a", "a/b.c", "…", "a b"] {
            check_name(name).unwrap();
        }
        for name in ["", "/a", "a/", "a//b", "../a", "a/./b", "a\nb", "a\0", &"x".repeat(1025)] {
            assert!(check_name(name).is_err(), "{name:?}");
            // A catalog with such a name is invalid, even if its seal is authentic.
            let mut bytes = 1_u32.to_le_bytes().to_vec();
            Change::Remove { name: name.to_owned() }.encode(&mut bytes);
            assert_eq!(Change::decode_all(&bytes), None, "{name:?}");
        }
    }
}

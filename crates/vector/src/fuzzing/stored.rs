//! The files of a collection: the manifest, the log of a segment, the index's centroids and lists,
//! and a whole folder.
//!
//! Every file has a checksum, which a mutation hardly ever leaves intact. Each input is therefore
//! read twice: as it is, and with a correct checksum. A whole folder is packed into one byte
//! string, section after section: `kind u8 · number u8 · length u32 · content`. [`SECTIONS`] lists
//! the kinds; sections that are sealed get their checksums when they are written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::collection::open::FolderContents;
use crate::error::Result;
use crate::folder::{Folder, Manifest};
use crate::ivf::{self, CENTROIDS_MAGIC, Centroids, LISTS_MAGIC, Lists};
use crate::record;
use crate::writer::recover;

/// The nonce of the logs written here.
const NONCE: u64 = 7;
/// The kinds of sections, indexed by their numbers.
const SECTIONS: [Section; 9] = [
    Section::Raw("MANIFEST"),
    Section::Manifest,
    Section::Raw("log"),
    Section::Log,
    Section::Raw("rows"),
    Section::Raw("lists"),
    Section::Numbers("lists", LISTS_MAGIC),
    Section::Raw("centroids"),
    Section::Numbers("centroids", CENTROIDS_MAGIC),
];

/// The kind of a section of a packed folder.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    /// A file, unchanged.
    Raw(&'static str),
    /// The manifest's JSON.
    Manifest,
    /// The bodies of a log's records, each preceded by its length.
    Log,
    /// A file of numbers without its magic and checksum.
    Numbers(&'static str, [u8; 8]),
}

/// The manifest of a collection.
pub fn manifest(bytes: &[u8]) {
    let path = Path::new("MANIFEST");
    let mut texts = vec![bytes.to_vec()];
    texts.extend(str::from_utf8(bytes).ok().map(|body| Manifest::text(body).into_bytes()));
    for text in texts {
        let Ok(manifest) = Manifest::parse(path, &text) else { continue };
        let _ = manifest.schema();
        if let Ok(body) = serde_json::to_string(&manifest) {
            assert_eq!(Manifest::parse(path, Manifest::text(&body).as_bytes()).ok(), Some(manifest));
        }
    }
}

/// The log of a segment.
pub fn log(bytes: &[u8]) {
    const LAYOUT: record::RecordLayout = record::RecordLayout { row_bytes: 8, norms: true, scales: true };
    let path = Path::new("log");
    let read = |log: &[u8], nonce| {
        let (mut at, mut number) = (record::LOG_HEAD_BYTES, 0);
        while let Ok(Some(record)) = record::read_record(path, log, at, nonce, number, LAYOUT) {
            let _ = record::for_each_entry(log, &record, |at, _| {
                let _ = record::entry(log, at);
            });
            (at, number) = (record.end, number + 1);
        }
        let _ = record::proof_behind(log, at, nonce, number);
        let _ = record::any_record_behind(log, at, nonce);
    };
    if let Ok(nonce) = record::read_log_head(path, bytes, 1) {
        read(bytes, nonce);
    }
    let mut sealed = record::log_head(1, NONCE).to_vec();
    record::seal(&mut sealed, NONCE, bytes);
    read(&sealed, NONCE);
}

/// The centroids of an index.
pub fn centroids(bytes: &[u8]) {
    for_both(bytes, CENTROIDS_MAGIC, |file, _, dimension| {
        let Ok(centroids) = Centroids::parse(Path::new("centroids"), file, 0, dimension as usize) else { return };
        assert_eq!(centroids.count() * dimension as usize * 4, file.len() - ivf::HEAD_BYTES);
    });
}

/// The offsets of the lists of a segment.
pub fn lists(bytes: &[u8]) {
    for_both(bytes, LISTS_MAGIC, |file, places, rows| {
        let Some(lists) = (places as usize).checked_sub(1) else { return };
        let Ok(read) = Lists::parse(Path::new("lists"), file, lists, rows) else { return };
        assert!(read.offsets.len() == lists + 1 && read.offsets.iter().all(|offset| *offset <= rows));
        assert!(read.rows_by_age().is_none_or(|by_age| by_age.len() == rows as usize));
    });
}

/// A whole folder. A folder that opens must be consistent, and must give the same content when it
/// is opened again.
pub fn store(bytes: &[u8]) {
    let scratch = Scratch::new();
    if unpack(bytes, &scratch.0).is_err() {
        return;
    }
    if let Ok(ids) = read_store(&scratch.0) {
        assert_eq!(read_store(&scratch.0).ok(), Some(ids), "what was opened cannot be opened again as it was");
    }
}

/// A whole folder, repaired. A dry run changes nothing and reports what the repair then does; a
/// repaired folder can be opened.
pub fn repair(bytes: &[u8]) {
    let scratch = Scratch::new();
    if unpack(bytes, &scratch.0).is_err() {
        return;
    }
    let Ok(found) = crate::repair::repair(&scratch.0, None, false) else { return };
    let Ok(done) = crate::repair::repair(&scratch.0, None, true) else {
        panic!("what was found cannot be mended: {found:?}")
    };
    assert_eq!((&done.findings, done.records, done.rows_lost), (&found.findings, found.records, found.rows_lost));
    if done.applied {
        let ids = read_store(&scratch.0).unwrap_or_else(|error| panic!("{done:?}: {error}"));
        assert_eq!(ids.iter().filter(|(_, lives)| *lives).count() as u64, done.records, "{done:?}");
    }
}

/// Every id of a folder, and whether its row is live.
fn read_store(path: &Path) -> Result<Vec<(String, bool)>> {
    let (folder, mut manifest) = Folder::open(path, None)?;
    let schema = Arc::new(manifest.schema()?);
    let mut stored = FolderContents::read(&folder, &manifest, &schema, true)?;
    stored.take_over()?;
    let mut ids = Vec::new();
    for segment in &mut stored.segments {
        let view = segment.view()?;
        assert_eq!(view.rows.len_bytes(), view.count as usize * schema.row_bytes());
        assert_eq!(view.live_rows().count(), view.len() as usize);
        assert!(view.lists.as_ref().is_none_or(|lists| lists.offsets.last() == Some(&view.count)));
        for row in 0..view.count {
            let (id, _) = view.entry(row).unwrap_or_else(|| panic!("row {row} has no entry"));
            assert_eq!(view.vector(row).len(), schema.dimension);
            assert!(view.scale_of(row).is_finite() && view.norm_of(row) > 0.0);
            let _ = view.metadata(row);
            ids.push((id.to_owned(), view.is_live(row)));
        }
        // Rows that are not read on opening may be damaged; `verify` reports that.
        let _ = recover::verify(&folder, &schema, view.id, (view.log.bytes(), view.stored.bytes()), |_| true);
        segment.trim();
    }
    // Write the manifest of a clean close.
    for (listed, segment) in manifest.segments.iter_mut().zip(&stored.segments) {
        listed.extent = Some(segment.extent());
    }
    manifest.old = false;
    folder.write_manifest(&manifest).map_err(|failure| failure.error)?;
    Ok(ids)
}

/// Packs a collection's folder into one byte string. Sections that can be sealed are stored without
/// their checksums.
pub fn packed(folder: &Path) -> io::Result<Vec<u8>> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    let mut out = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (stem, end) = name.split_once('.').unwrap_or((name, name));
        let number: u8 = stem.rsplit_once('-').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
        let bytes = fs::read(&path)?;
        let (kind, content) = match end {
            "MANIFEST" => (1, bytes.split(|byte| *byte == b'\n').nth(1).unwrap_or_default().to_vec()),
            "log" => (3, bodies(&bytes)),
            "rows" => (4, bytes),
            "lists" => (6, without_seal(&bytes)),
            "centroids" => (8, without_seal(&bytes)),
            _ => continue,
        };
        out.extend([kind, number]);
        out.extend((content.len() as u32).to_le_bytes());
        out.extend(content);
    }
    Ok(out)
}

/// Writes a packed folder.
pub fn unpack(bytes: &[u8], folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut rest = bytes;
    while let Some(([kind, number, length @ ..], after)) = rest.split_first_chunk::<6>() {
        let length = (u32::from_le_bytes(*length) as usize).min(after.len());
        let (content, after) = after.split_at(length);
        let section = SECTIONS[*kind as usize % SECTIONS.len()];
        let file = match section {
            Section::Raw(_) => content.to_vec(),
            Section::Manifest => Manifest::text(&String::from_utf8_lossy(content)).into_bytes(),
            Section::Log => sealed_log(u32::from(*number), content),
            Section::Numbers(_, magic) => sealed_numbers(magic, content),
        };
        fs::write(folder.join(section.file_name(*number)), file)?;
        rest = after;
    }
    Ok(())
}

impl Section {
    fn file_name(self, number: u8) -> String {
        match self {
            Section::Manifest | Section::Raw("MANIFEST") => "MANIFEST".to_owned(),
            Section::Log => format!("segment-{number:06}.log"),
            Section::Raw("centroids") | Section::Numbers("centroids", _) => format!("index-{number:06}.centroids"),
            Section::Raw(end) | Section::Numbers(end, _) => format!("segment-{number:06}.{end}"),
        }
    }
}

/// Calls `read` with the file as it is and with a file of correct checksum, each with the two
/// numbers in its head.
fn for_both(bytes: &[u8], magic: [u8; 8], read: impl Fn(&[u8], u32, u32)) {
    for file in [bytes.to_vec(), sealed_numbers(magic, bytes)] {
        read(&file, number_at(&file, 8), number_at(&file, 12));
    }
}

/// A file of numbers: the two numbers of its head, and its body.
fn sealed_numbers(magic: [u8; 8], content: &[u8]) -> Vec<u8> {
    let body = content.get(8..).unwrap_or_default();
    [&ivf::head(magic, number_at(content, 0), number_at(content, 4), body)[..], body].concat()
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

fn without_seal(file: &[u8]) -> Vec<u8> {
    [file.get(8..16).unwrap_or_default(), file.get(ivf::HEAD_BYTES..).unwrap_or_default()].concat()
}

fn sealed_log(segment: u32, mut content: &[u8]) -> Vec<u8> {
    let mut log = record::log_head(segment, NONCE).to_vec();
    while let Some((length, after)) = content.split_first_chunk::<4>() {
        let (body, after) = after.split_at((u32::from_le_bytes(*length) as usize).min(after.len()));
        record::seal(&mut log, NONCE, body);
        content = after;
    }
    log
}

/// The bodies of a log's records, each preceded by its length.
fn bodies(log: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), log.get(record::LOG_HEAD_BYTES..).unwrap_or_default());
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        // After the length come a checksum and a mark.
        let Some(body) = after.get(8..).and_then(|after| after.get(..length)) else { break };
        out.extend((length as u32).to_le_bytes());
        out.extend(body);
        rest = &after[8 + length..];
    }
    out
}

/// A folder that is deleted on drop; in memory if the system has `/dev/shm`.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Scratch(base.join(format!("panoply-fuzz-{}-{number}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

//! The sources of `panoply store put`: files, all files below folders, or standard input. Skipped
//! entries are counted and named.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::is_within;
use super::progress::CountedStream;
use crate::configuration::store::PutSource;
use crate::failure::{Failure, warn};
use crate::standard;
use crate::vectors::{counted, path_text};

/// Maximal nesting depth of folders.
const DEPTH_MAX: usize = 256;
/// Number of names in a warning, and maximal number recorded for `--json`.
const NAMES_SHOWN: usize = 5;
const NAMES_MAX: usize = 1000;

/// One object to store.
pub struct ObjectSource {
    pub name: String,
    /// `None` for standard input.
    pub file: Option<PathBuf>,
    /// `None` if the length is unknown.
    pub bytes: Option<u64>,
}

impl ObjectSource {
    fn of_file(name: String, file: &Path) -> Result<ObjectSource, Failure> {
        let metadata = fs::metadata(file).with_context(|| format!("{} cannot be read", file.display()))?;
        if metadata.is_dir() {
            return Err(anyhow!("{} is a folder; --name is for a file", file.display()).into());
        }
        let bytes = metadata.is_file().then_some(metadata.len());
        Ok(ObjectSource { name, file: Some(file.to_owned()), bytes })
    }

    /// The counted content. The file is opened when it is first read, so that few files are open at
    /// a time.
    pub fn reader<'a>(&'a self, progress: &'a ProgressBar) -> CountedStream<'a, Opening<'a>> {
        CountedStream { inner: Opening { file: self.file.as_deref(), opened: None }, bar: progress }
    }
}

/// A file that is opened when it is first read.
pub struct Opening<'a> {
    file: Option<&'a Path>,
    opened: Option<Box<dyn Read + Send>>,
}

impl Read for Opening<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let opened = match (&mut self.opened, self.file) {
            (Some(opened), _) => opened,
            (none, None) => none.insert(Box::new(standard::input()?)),
            (none, Some(file)) => {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
                none.insert(Box::new(File::open(file).map_err(named)?))
            }
        };
        opened.read(bytes)
    }
}

/// The objects to store, and the skipped entries of the given folders.
pub fn sources(source: &PutSource, store: &Path) -> Result<(Vec<ObjectSource>, LeftOut), Failure> {
    let mut left_out = LeftOut::default();
    match source {
        PutSource::Input(name) => Ok((vec![ObjectSource { name: name.clone(), file: None, bytes: None }], left_out)),
        PutSource::Named(file, name) => {
            check_outside(file, store)?;
            Ok((vec![ObjectSource::of_file(name.clone(), file)?], left_out))
        }
        PutSource::Paths(paths) => {
            let mut found = Vec::new();
            for path in paths {
                check_outside(path, store)?;
                let name = path.file_name().and_then(|name| name.to_str()).map(ToOwned::to_owned);
                let name = name.with_context(|| format!("{} has no name; --name gives one", path.display()))?;
                match path.is_dir() {
                    true => collect(path, &name, 0, store, &mut found, &mut left_out)?,
                    false => found.push(ObjectSource::of_file(name, path)?),
                }
            }
            Ok((found, left_out))
        }
    }
}

/// Refuses paths inside the store: its files change while they are read.
fn check_outside(path: &Path, store: &Path) -> Result<(), Failure> {
    match is_within(store, path) {
        true => Err(Failure::Usage(format!("{} is in the store itself: expected files outside of it", path.display()))),
        false => Ok(()),
    }
}

/// Collects every regular file below a folder. Links are not followed, since they could lead back.
/// The store itself is skipped.
fn collect(
    folder: &Path,
    name: &str,
    depth: usize,
    store: &Path,
    found: &mut Vec<ObjectSource>,
    left_out: &mut LeftOut,
) -> Result<(), Failure> {
    if depth > DEPTH_MAX {
        return Err(anyhow!("{} is nested deeper than {DEPTH_MAX} folders", folder.display()).into());
    }
    let unreadable = || format!("{} cannot be read", folder.display());
    let mut entries =
        fs::read_dir(folder).with_context(unreadable)?.collect::<Result<Vec<_>, _>>().with_context(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    if entries.is_empty() {
        left_out.add(Kind::EmptyFolder, folder);
    }
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("{} cannot be read", path.display()))?;
        let own = entry.file_name().into_string();
        let own = own.map_err(|_| anyhow!("{} is no text; --name gives a file another name", path.display()))?;
        let name = format!("{name}/{own}");
        if kind.is_dir() {
            match is_within(store, &path) {
                true => warn(format!("{} is the store itself, and is left out", path.display())),
                false => collect(&path, &name, depth + 1, store, found, left_out)?,
            }
        } else if kind.is_file() {
            found.push(ObjectSource::of_file(name, &path)?);
        } else {
            left_out.add(if kind.is_symlink() { Kind::Link } else { Kind::Special }, &path);
        }
    }
    Ok(())
}

/// Kinds of entries that are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Link,
    EmptyFolder,
    /// A pipe, a socket or a device.
    Special,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Link, Kind::EmptyFolder, Kind::Special];

    fn name(self) -> &'static str {
        match self {
            Kind::Link => "link",
            Kind::EmptyFolder => "empty folder",
            Kind::Special => "special file",
        }
    }
}

/// Skipped entries below folders.
#[derive(Debug, Default)]
pub struct LeftOut {
    counts: [u64; Kind::ALL.len()],
    /// The first skipped entries.
    names: Vec<(Kind, PathBuf)>,
}

impl LeftOut {
    fn add(&mut self, kind: Kind, path: &Path) {
        self.counts[kind as usize] += 1;
        if self.names.len() < NAMES_MAX {
            self.names.push((kind, path.to_owned()));
        }
    }

    /// Warns if entries were skipped, with the number of each kind and the first names.
    pub fn tell(&self) {
        let total: u64 = self.counts.iter().sum();
        if total == 0 {
            return;
        }
        let some = Kind::ALL.iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let counts: Vec<String> = some.map(|(kind, count)| counted(count, kind.name())).collect();
        let shown = self.names.iter().take(NAMES_SHOWN).map(|(_, path)| path.display().to_string());
        let shown: Vec<String> = shown.collect();
        let more = total - shown.len() as u64;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let verb = if total == 1 { "is" } else { "are" };
        warn(format!("{} {verb} left out, only files are stored: {}{more}", counts.join(" and "), shown.join(", ")));
    }

    /// The same as JSON, with up to 1000 names.
    pub fn json(&self) -> Value {
        let names: Vec<Value> =
            self.names.iter().map(|(kind, path)| json!({ "kind": kind.name(), "path": path_text(path) })).collect();
        let [links, empty_folders, special_files] = self.counts;
        json!({ "links": links, "empty_folders": empty_folders, "special_files": special_files, "names": names })
    }
}

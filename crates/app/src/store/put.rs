//! `panoply store put`.
//!
//! Files are committed in groups, so that many small ones share one wait for the disk. What is named as stored was committed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use panoply::store::{Batch, Entry, Error, Options, Store};
use serde_json::json;

use super::progress::{Counted, bar};
use super::{is_within, open, rate_text, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{PutMode, PutOptions, PutSource};
use crate::failure::{self, Failure, warn};
use crate::screen::{Screen, bytes_text};
use crate::vectors::{counted, path_text};

/// A group is committed when it has so many objects, or so many bytes.
const GROUP_OBJECTS: usize = 256;
const GROUP_BYTES: u64 = 256 << 20;
/// How deep folders may be nested.
const DEPTH_MAX: usize = 256;

/// Stores what was named.
pub fn run(options: &PutOptions, screen: &mut Screen) -> Result<(), Failure> {
    let sources = sources(&options.source, &options.place.path)?;
    let runtime = start()?;
    let level = options.level;
    let mut store = open(&options.place, &options.key, Options { level, ..Options::default() }, &runtime)?;
    let stored = Arc::new(AtomicU64::new(0));
    announce(&stored);
    let bytes = sources.iter().map(|source| source.bytes).sum::<Option<u64>>();
    let (progress, start) = (bar(bytes, "storing"), Instant::now());
    let outcome = put_all(&mut store, &sources, options.mode, &progress, &stored);
    progress.finish_and_clear();
    let entries = outcome.map_err(|failure| with_progress(failure, stored.load(Ordering::Relaxed)))?;
    warn_of_anchor(&store);
    report(&store, &entries, start.elapsed().as_secs_f64(), options.format, screen)
}

/// One thing to be stored.
struct Source {
    name: String,
    /// `None`: the standard input.
    file: Option<PathBuf>,
    /// `None`: nobody knows.
    bytes: Option<u64>,
}

impl Source {
    fn of_file(name: String, file: &Path) -> Result<Source, Failure> {
        let metadata = fs::metadata(file).with_context(|| format!("{} cannot be read", file.display()))?;
        if metadata.is_dir() {
            return Err(anyhow!("{} is a folder; --name is for a file", file.display()).into());
        }
        let bytes = metadata.is_file().then_some(metadata.len());
        Ok(Source { name, file: Some(file.to_owned()), bytes })
    }

    /// Its content, counted. It is opened when it is read: of many files, few are open at a time.
    fn reader<'a>(&'a self, progress: &'a ProgressBar) -> Counted<'a, Opening<'a>> {
        Counted { inner: Opening { file: self.file.as_deref(), opened: None }, bar: progress }
    }
}

/// A file that is opened when it is first read.
struct Opening<'a> {
    file: Option<&'a Path>,
    opened: Option<Box<dyn Read + Send>>,
}

impl Read for Opening<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let opened = match (&mut self.opened, self.file) {
            (Some(opened), _) => opened,
            (none, None) => none.insert(Box::new(io::stdin())),
            (none, Some(file)) => {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
                none.insert(Box::new(File::open(file).map_err(named)?))
            }
        };
        opened.read(bytes)
    }
}

fn sources(source: &PutSource, store: &Path) -> Result<Vec<Source>, Failure> {
    match source {
        PutSource::Input(name) => Ok(vec![Source { name: name.clone(), file: None, bytes: None }]),
        PutSource::Named(file, name) => {
            check_outside(file, store)?;
            Ok(vec![Source::of_file(name.clone(), file)?])
        }
        PutSource::Paths(paths) => {
            let mut found = Vec::new();
            for path in paths {
                check_outside(path, store)?;
                let name = path.file_name().and_then(|name| name.to_str()).map(ToOwned::to_owned);
                let name = name.with_context(|| format!("{} has no name; --name gives one", path.display()))?;
                match path.is_dir() {
                    true => collect(path, &name, 0, store, &mut found)?,
                    false => found.push(Source::of_file(name, path)?),
                }
            }
            Ok(found)
        }
    }
}

/// A store does not hold itself, nor its files: they change while they are read.
fn check_outside(path: &Path, store: &Path) -> Result<(), Failure> {
    match is_within(store, path) {
        true => Err(Failure::Usage(format!("{} is in the store itself: expected files outside of it", path.display()))),
        false => Ok(()),
    }
}

/// Every regular file below a folder. Links are not followed: they could lead back. The store itself is left out.
fn collect(folder: &Path, name: &str, depth: usize, store: &Path, found: &mut Vec<Source>) -> Result<(), Failure> {
    if depth > DEPTH_MAX {
        return Err(anyhow!("{} is nested deeper than {DEPTH_MAX} folders", folder.display()).into());
    }
    let unreadable = || format!("{} cannot be read", folder.display());
    let mut entries =
        fs::read_dir(folder).with_context(unreadable)?.collect::<Result<Vec<_>, _>>().with_context(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("{} cannot be read", path.display()))?;
        let own = entry.file_name().into_string();
        let own = own.map_err(|_| anyhow!("{} is no text; --name gives a file another name", path.display()))?;
        let name = format!("{name}/{own}");
        if kind.is_dir() {
            match is_within(store, &path) {
                true => warn(format!("{} is the store itself, and is left out", path.display())),
                false => collect(&path, &name, depth + 1, store, found)?,
            }
        } else if kind.is_file() {
            found.push(Source::of_file(name, &path)?);
        }
    }
    Ok(())
}

fn put_all(
    store: &mut Store,
    sources: &[Source],
    mode: PutMode,
    progress: &ProgressBar,
    stored: &AtomicU64,
) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::with_capacity(sources.len());
    let mut left = sources;
    while !left.is_empty() {
        let (group, rest) = left.split_at(group_len(left));
        let mut batch = store.batch()?;
        let (put, outcome) = put_group(&mut batch, group, mode, progress);
        // What came before a failure is committed all the same.
        batch.commit()?;
        stored.fetch_add(put.len() as u64, Ordering::Relaxed);
        let failed = group.get(put.len()).map_or("", |source| &source.name);
        outcome.with_context(|| format!("`{failed}` was not stored"))?;
        entries.extend(put);
        left = rest;
    }
    Ok(entries)
}

/// How many of the first sources are committed together.
fn group_len(sources: &[Source]) -> usize {
    let mut bytes = 0;
    let fits = |source: &&Source| {
        let before = bytes;
        bytes += source.bytes.unwrap_or(0);
        before < GROUP_BYTES
    };
    sources.iter().take(GROUP_OBJECTS).take_while(fits).count()
}

/// Puts sources, in order; those before a failure are in the batch.
fn put_group(
    batch: &mut Batch<'_>,
    group: &[Source],
    mode: PutMode,
    progress: &ProgressBar,
) -> (Vec<Entry>, Result<(), Error>) {
    if mode != PutMode::Append {
        let sources = group.iter().map(|source| (source.name.clone(), source.reader(progress)));
        return batch.put_many(sources, mode == PutMode::Replace);
    }
    let mut entries = Vec::new();
    for source in group {
        match batch.append(&source.name, &mut source.reader(progress)) {
            Ok(entry) => entries.push(entry),
            Err(error) => return (entries, Err(error)),
        }
    }
    (entries, Ok(()))
}

fn with_progress(failure: Failure, stored: u64) -> Failure {
    match failure {
        Failure::Run(error) if stored > 0 => {
            Failure::Run(error.context(format!("after {}", counted(stored, "object"))))
        }
        failure => failure,
    }
}

/// Says on Ctrl-C how far it has come.
fn announce(stored: &Arc<AtomicU64>) {
    let stored = Arc::clone(stored);
    failure::say_on_interrupt(move || {
        let objects = counted(stored.load(Ordering::Relaxed), "object");
        format!("interrupted; {objects} stored; nothing else has changed")
    });
}

fn report(store: &Store, entries: &[Entry], seconds: f64, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let (bytes, files) = (entries.iter().map(|entry| entry.len).sum(), entries.iter().map(|entry| entry.stored).sum());
    if format == Format::Json {
        let objects: Vec<_> = entries.iter().map(super::ls::entry_json).collect();
        return screen.json(&json!({
            "path": path_text(store.path()),
            "objects": objects,
            "bytes": bytes,
            "stored": files,
            "seconds": seconds,
            "generation": store.generation(),
        }));
    }
    screen.line(format!(
        "{} stored: {} in {}, {}.",
        counted(entries.len() as u64, "object"),
        bytes_text(bytes),
        bytes_text(files),
        rate_text(bytes, seconds)
    ))
}

//! `panoply store put`.
//!
//! Files are committed in groups, so that many small ones share one wait for the disk. A file that
//! is reported as stored has been committed. A signal during a commit waits for its end, or reports
//! that its outcome is unknown ([`crate::gate`]).

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use panoply::store::{Batch, Entry, Error, Options, Store};
use serde_json::json;

use super::progress::bar;
use super::sources::{LeftOut, ObjectSource, sources};
use super::{append, commit, open, rate_text, start_with, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{PutMode, PutOptions};
use crate::failure::{Failure, say_on_interrupt};
use crate::gate::Gate;
use crate::screen::{Screen, bytes_text, visible};
use crate::vectors::{counted, path_text};

/// A group is committed when it has this many objects or bytes.
const GROUP_OBJECTS: usize = 256;
const GROUP_BYTES: u64 = 256 << 20;

/// The commits so far.
#[derive(Debug, Default)]
struct CommittedObjects {
    objects: u64,
    /// Name and length of the last object.
    last: Option<(String, u64)>,
    /// Whether the outcome of the last commit is unclear.
    is_unclear: bool,
}

impl CommittedObjects {
    fn text(&self) -> String {
        let last = self.last.as_ref();
        let last = last.map_or(String::new(), |(name, len)| format!(", the last one `{name}` of now {len} bytes"));
        format!("{} stored{last}", counted(self.objects, "object"))
    }
}

/// Stores the named files.
pub fn run(options: &PutOptions, screen: &mut Screen) -> Result<(), Failure> {
    let (sources, left_out) = sources(&options.source, &options.place.path)?;
    left_out.tell();
    if let (PutMode::AppendAt(_), [_, _, ..] | []) = (options.mode, &sources[..]) {
        let got = counted(sources.len() as u64, "file");
        return Err(Failure::Usage(format!("--at: expected one file, got {got}")));
    }
    let (runtime, compress_with) = start_with(options.device)?;
    let (level, compression) = (options.level, options.compression);
    let how = Options { level, compression, compress_with, ..Options::default() };
    let mut store = open(&options.place, &options.key, how, &runtime)?;
    let stored: Arc<Gate<CommittedObjects>> = Arc::default();
    announce(&stored);
    let bytes = sources.iter().map(|source| source.bytes).sum::<Option<u64>>();
    let (progress, start) = (bar(bytes, "storing"), Instant::now());
    let mode = match is_there_already(&store, &sources, options.mode, &progress) {
        Ok(None) => options.mode,
        Ok(Some(entry)) => {
            progress.finish_and_clear();
            screen.note_done(format!("`{}` had these bytes before", entry.name));
            return report(
                &store,
                &Put { already_there: vec![entry], ..Put::new(left_out, start) },
                options.format,
                screen,
            );
        }
        Err(failure) => {
            progress.finish_and_clear();
            return Err(failure);
        }
    };
    let outcome = put_all(&mut store, &sources, mode, &progress, &stored);
    progress.finish_and_clear();
    let entries = outcome.map_err(|failure| with_progress(failure, stored.pass().objects))?;
    screen.note_done(stored.pass().text());
    warn_of_anchor(&store);
    let is_device_named = options.device.is_some();
    report(&store, &Put { entries, is_device_named, ..Put::new(left_out, start) }, options.format, screen)
}

/// The object that already has the source at its end, for an append at a given position.
fn is_there_already(
    store: &Store,
    sources: &[ObjectSource],
    mode: PutMode,
    progress: &ProgressBar,
) -> Result<Option<Entry>, Failure> {
    let (PutMode::AppendAt(at), [source]) = (mode, sources) else { return Ok(None) };
    let entry = store.get(&source.name).ok_or_else(|| Error::NoObject { name: source.name.clone() })?;
    let is_missing = append::is_missing(store, &entry, at, &mut source.reader(progress))?;
    Ok((!is_missing).then_some(entry))
}

fn put_all(
    store: &mut Store,
    sources: &[ObjectSource],
    mode: PutMode,
    progress: &ProgressBar,
    stored: &Gate<CommittedObjects>,
) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::with_capacity(sources.len());
    let mut left = sources;
    while !left.is_empty() {
        let (group, rest) = left.split_at(group_len(left));
        let mut batch = store.batch()?;
        let (put, outcome) = put_group(&mut batch, group, mode, progress);
        // The files before a failure are committed nevertheless.
        let mut known = stored.pass();
        if let Err(error) = batch.commit() {
            known.is_unclear = commit::is_unclear(&error, store);
            let failure = refused(error, known.is_unclear, &put);
            drop(known);
            return Err(failure);
        }
        known.objects += put.len() as u64;
        known.last = put.last().map(|entry| (entry.name.clone(), entry.len)).or(known.last.take());
        drop(known);
        let failed = group.get(put.len()).map_or("", |source| &source.name);
        let advice = match outcome {
            Err(Error::NoObject { .. }) => "; `put` without --append makes a new object",
            _ => "",
        };
        outcome.with_context(|| format!("`{failed}` was not stored{advice}"))?;
        entries.extend(put);
        left = rest;
    }
    Ok(entries)
}

/// The failure of a commit, with the known state of its objects.
fn refused(error: Error, is_unclear: bool, put: &[Entry]) -> Failure {
    let (Some(first), true) = (put.first(), is_unclear) else { return error.into() };
    let others = if put.len() == 1 { String::new() } else { format!(" and {} more", put.len() - 1) };
    let error = anyhow::Error::new(error);
    error.context(format!("it is unknown whether `{}`{others} is stored; `panoply store ls` tells", first.name)).into()
}

/// Number of sources at the front that are committed together.
fn group_len(sources: &[ObjectSource]) -> usize {
    let mut bytes = 0;
    let fits = |source: &&ObjectSource| {
        let before = bytes;
        bytes += source.bytes.unwrap_or(0);
        before < GROUP_BYTES
    };
    sources.iter().take(GROUP_OBJECTS).take_while(fits).count()
}

/// Puts sources, in order; those before a failure are in the batch.
fn put_group(
    batch: &mut Batch<'_>,
    group: &[ObjectSource],
    mode: PutMode,
    progress: &ProgressBar,
) -> (Vec<Entry>, Result<(), Error>) {
    if !matches!(mode, PutMode::Append | PutMode::AppendAt(_)) {
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

/// Prints the progress if a signal ends the command.
fn announce(stored: &Arc<Gate<CommittedObjects>>) {
    const UNKNOWN: &str = "interrupted in the middle of a commit: it is unknown whether its objects are stored; \
                           `panoply store ls` tells, and --append --at BYTES appends nothing twice";
    let stored = Arc::clone(stored);
    say_on_interrupt(move |_| {
        let told = stored.close(|stored| {
            if stored.is_unclear {
                return UNKNOWN.to_owned();
            }
            format!("interrupted; {}; nothing else has changed", stored.text())
        });
        told.unwrap_or_else(|| UNKNOWN.to_owned())
    });
}

/// The result of the command.
struct Put {
    entries: Vec<Entry>,
    already_there: Vec<Entry>,
    left_out: LeftOut,
    seconds: f64,
    /// Whether the user named the device that compresses.
    is_device_named: bool,
}

impl Put {
    fn new(left_out: LeftOut, start: Instant) -> Put {
        let seconds = start.elapsed().as_secs_f64();
        Put { entries: Vec::new(), already_there: Vec::new(), left_out, seconds, is_device_named: false }
    }
}

fn report(store: &Store, put: &Put, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let Put { entries, already_there, left_out, seconds, .. } = put;
    let (bytes, files) = (entries.iter().map(|entry| entry.len).sum(), entries.iter().map(|entry| entry.stored).sum());
    if format == Format::Json {
        let listed = |entries: &[Entry]| entries.iter().map(super::ls::entry_json).collect::<Vec<_>>();
        return screen.json(&json!({
            "path": path_text(store.path()),
            "objects": listed(entries),
            "already_there": listed(already_there),
            "left_out": left_out.json(),
            "bytes": bytes,
            "stored": files,
            "seconds": seconds,
            "generation": store.generation(),
            "compressed_by": super::uses_json(store),
        }));
    }
    if let [entry] = &already_there[..] {
        return screen.line(format!("Already there: {} has {}.", visible(&entry.name), bytes_text(entry.len)));
    }
    if put.is_device_named {
        screen.line(screen.faint(&format!("compressed by {}", super::uses_text(store))))?;
    }
    screen.line(format!(
        "{} stored: {} in {}, {}.",
        counted(entries.len() as u64, "object"),
        bytes_text(bytes),
        bytes_text(files),
        rate_text(bytes, *seconds)
    ))
}

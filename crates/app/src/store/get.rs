//! `panoply store get` and `panoply store cat`. Files appear when they are complete, and are their owner's alone: what was sealed is not
//! shown to others by being read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use panoply::store::{Entry, Error, Store};
use serde_json::json;

use super::progress::{Counted, bar};
use super::{is_within, open_to_read, rate_text, start};
use crate::configuration::Format;
use crate::configuration::store::{ByteRange, CatOptions, GetOptions, Wanted};
use crate::failure::{Failure, say_on_interrupt};
use crate::partial::{self, Partial};
use crate::screen::{Screen, bytes_text};
use crate::vectors::{counted, path_text};

/// Files that are written at the same time.
const FILES_AT_ONCE: usize = 3;
/// Files that wait for the disk at the same time, and those that wait for one of these. A file system writes the notes of several at once.
const SYNCED_AT_ONCE: usize = 8;
const UNSYNCED_MAX: usize = 64;

/// Writes objects to files.
pub fn run(options: &GetOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let store = open_to_read(&options.place, &options.key, &runtime)?;
    let jobs = match &options.what {
        Wanted::ToOutput { name, range } => return to_output(&store, std::slice::from_ref(name), *range),
        Wanted::ToFile { name, range, file } => vec![Job::new(&store, name, *range, file.clone())?],
        Wanted::All(folder) => {
            expect_apart(&store, folder)?;
            let job = |entry: Entry| Job::new(&store, &entry.name, ByteRange::default(), folder.join(&entry.name));
            store.entries().map(job).collect::<Result<_, _>>()?
        }
    };
    if jobs.iter().any(|job| is_within(&options.place.path, &job.file)) {
        return Err(Failure::Usage("--to: expected a place outside of the store itself".to_owned()));
    }
    say_on_interrupt(|| match partial::remove_all() {
        true => "interrupted; the file that was being written is removed".to_owned(),
        false => "interrupted".to_owned(),
    });
    let (bytes, begun) = (jobs.iter().map(|job| job.end - job.start).sum(), Instant::now());
    let progress = bar(Some(bytes), "reading");
    let (folders, done) = run_all(&jobs, &store, options.overwrite, &progress);
    let synced = folders.iter().try_for_each(|folder| partial::sync_folder(folder));
    progress.finish_and_clear();
    done?;
    synced?;
    report(options, &jobs, bytes, begun.elapsed().as_secs_f64(), screen)
}

/// Writes several files at the same time; others wait for the disk meanwhile. After a failure no other is begun. Says in which folders names
/// have changed, each of which is synced once.
fn run_all(
    jobs: &[Job],
    store: &Store,
    overwrite: bool,
    progress: &ProgressBar,
) -> (BTreeSet<PathBuf>, Result<(), Failure>) {
    let (next, folders, failed) = (AtomicUsize::new(0), Mutex::default(), Mutex::new(None));
    let (sender, receiver) = sync_channel::<Partial>(UNSYNCED_MAX);
    let receiver = Mutex::new(receiver);
    let judge = |outcome: Result<(), Failure>| {
        if let Err(error) = outcome {
            locked(&failed).get_or_insert(error);
        }
    };
    let land = || {
        let next = || locked(&receiver).recv();
        while let Ok(written) = next() {
            judge(written.complete_unsynced());
        }
    };
    let work = |sender: Option<SyncSender<Partial>>| {
        let mut changed = BTreeSet::new();
        while locked(&failed).is_none()
            && let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let outcome = job.run(store, overwrite, progress, &mut changed).and_then(|written| match &sender {
                Some(sender) => sender.send(written).or_else(|unsent| unsent.0.complete_unsynced()),
                None => written.complete_unsynced(),
            });
            judge(outcome);
        }
        locked::<BTreeSet<PathBuf>>(&folders).append(&mut changed);
    };
    std::thread::scope(|scope| {
        let others = jobs.len().saturating_sub(1);
        let landing = || std::thread::Builder::new().spawn_scoped(scope, land).is_ok();
        let lands = (0..others.min(SYNCED_AT_ONCE)).filter(|_| landing()).count() > 0;
        let sender = lands.then_some(sender);
        for _ in 0..others.min(FILES_AT_ONCE - 1) {
            let sender = sender.clone();
            // Where no thread can be had this one writes all of them.
            drop(std::thread::Builder::new().spawn_scoped(scope, || work(sender)));
        }
        work(sender);
    });
    let folders = folders.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    (folders, failed.map_or(Ok(()), Err))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes objects to the standard output, one after the other.
pub fn cat(options: &CatOptions) -> Result<(), Failure> {
    let runtime = start()?;
    let store = open_to_read(&options.place, &options.key, &runtime)?;
    to_output(&store, &options.names, options.range)
}

/// An object, or a part of it, and the file it goes to.
struct Job {
    name: String,
    start: u64,
    end: u64,
    file: PathBuf,
}

impl Job {
    fn new(store: &Store, name: &str, range: ByteRange, file: PathBuf) -> Result<Job, Failure> {
        let (start, end) = resolved(store, name, range)?;
        Ok(Job { name: name.to_owned(), start, end, file })
    }

    /// Writes the file, which has neither its name nor reached the disk then.
    fn run(
        &self,
        store: &Store,
        overwrite: bool,
        progress: &ProgressBar,
        folders: &mut BTreeSet<PathBuf>,
    ) -> Result<Partial, Failure> {
        make_folder(partial::folder_of(&self.file), folders)?;
        let partial = Partial::create_private(&self.file, overwrite)?;
        let file = partial.file().with_context(|| format!("{} cannot be written", self.file.display()))?;
        let mut out = Counted { inner: file, bar: progress };
        store
            .read_range(&self.name, self.start..self.end, &mut out)
            .with_context(|| format!("{} was not written", self.file.display()))?;
        folders.insert(partial::folder_of(&self.file).to_owned());
        Ok(partial)
    }
}

/// Makes a folder and those above it that are missing, their owner's alone, and notes in which folders names have changed.
fn make_folder(folder: &Path, changed: &mut BTreeSet<PathBuf>) -> Result<(), Failure> {
    let missing = folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    changed.extend(missing.map(|folder| partial::folder_of(folder).to_owned()));
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    Ok(builder.create(folder).with_context(|| format!("{} cannot be made", folder.display()))?)
}

/// Refuses, before anything is written, to write objects to one folder that have no room beside each other there.
fn expect_apart(store: &Store, folder: &Path) -> Result<(), Failure> {
    let names: Vec<String> = store.entries().map(|entry| entry.name).collect();
    let mut clash = clash(&names, false);
    if clash.is_none()
        && let Some(folded) = self::clash(&names, true)
    {
        make_folder(folder, &mut BTreeSet::new())?;
        clash =
            folds_case(folder).with_context(|| format!("{} cannot be written to", folder.display()))?.then_some(folded);
    }
    match clash {
        Some((first, second)) => Err(anyhow!(
            "`{first}` and `{second}` cannot both be files below {}; nothing was written: get objects one by one, each with a --to of its own",
            folder.display()
        )
        .into()),
        None => Ok(()),
    }
}

/// Two names of which one is a folder of the other's path, or which are the same where `A` is `a`.
fn clash(names: &[String], folds: bool) -> Option<(String, String)> {
    let form = |name: &str| if folds { name.to_lowercase() } else { name.to_owned() };
    let mut forms: BTreeMap<String, &String> = BTreeMap::new();
    for name in names {
        if let Some(same) = forms.insert(form(name), name) {
            return Some((same.clone(), name.clone()));
        }
    }
    let folder_of = |(form, name): (&String, &&String)| {
        let above = form.match_indices('/').find_map(|(at, _)| forms.get(&form[..at]));
        above.map(|above| ((*above).clone(), (*name).clone()))
    };
    forms.iter().find_map(folder_of)
}

/// Whether a folder takes `A` for `a`.
fn folds_case(folder: &Path) -> io::Result<bool> {
    let probe = folder.join(format!(".panoply-{}-case.partial", std::process::id()));
    File::options().write(true).create_new(true).open(&probe)?;
    let folds = folder.join(format!(".PANOPLY-{}-CASE.PARTIAL", std::process::id())).exists();
    fs::remove_file(&probe).map(|()| folds)
}

/// The bytes that are meant; those of an object that is not there, or beyond its end, are refused.
fn resolved(store: &Store, name: &str, range: ByteRange) -> Result<(u64, u64), Failure> {
    let entry = store.get(name).ok_or_else(|| Error::NoObject { name: name.to_owned() })?;
    let end = range.end.unwrap_or(entry.len);
    if range.start > end || end > entry.len {
        let range = format!("{}..{end}", range.start);
        return Err(Failure::Usage(format!(
            "--range: expected one within the {} bytes of `{name}`, got {range}",
            entry.len
        )));
    }
    Ok((range.start, end))
}

fn to_output(store: &Store, names: &[String], range: ByteRange) -> Result<(), Failure> {
    // All of them are looked up before anything is written.
    let ranges = names.iter().map(|name| resolved(store, name, range)).collect::<Result<Vec<_>, _>>()?;
    let mut out = io::stdout().lock();
    for (name, (start, end)) in names.iter().zip(ranges) {
        store.read_range(name, start..end, &mut out)?;
    }
    Ok(out.flush()?)
}

fn report(options: &GetOptions, jobs: &[Job], bytes: u64, seconds: f64, screen: &mut Screen) -> Result<(), Failure> {
    if options.format == Format::Json {
        let files: Vec<_> = jobs
            .iter()
            .map(|job| json!({ "name": job.name, "file": path_text(&job.file), "bytes": job.end - job.start }))
            .collect();
        return screen.json(&json!({ "files": files, "bytes": bytes, "seconds": seconds }));
    }
    match jobs {
        [job] => screen.line(format!("{}: {}.", job.file.display(), bytes_text(bytes))),
        jobs => screen.line(format!(
            "{}: {}, {}.",
            counted(jobs.len() as u64, "file"),
            bytes_text(bytes),
            rate_text(bytes, seconds)
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;

    #[test]
    fn names_without_room_beside_each_other_are_found() {
        let found = |names: &[&str], folds| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            clash(&names, folds)
        };
        let pair = |first: &str, second: &str| Some((first.to_owned(), second.to_owned()));
        assert_eq!(found(&["a", "a.b", "ab/c", "b/a", "b/c/d"], true), None);
        assert_eq!(found(&["a", "a-b", "a/b"], false), pair("a", "a/b"));
        assert_eq!(found(&["x/y", "x/y/z/w"], false), pair("x/y", "x/y/z/w"));
        assert_eq!(found(&["A", "a"], false), None);
        assert_eq!(found(&["A", "a"], true), pair("A", "a"));
        assert_eq!((found(&["É", "é/b"], false), found(&["É", "é/b"], true)), (None, pair("É", "é/b")));
        assert!(!folds_case(&std::env::temp_dir()).unwrap() || cfg!(not(target_os = "linux")));
    }
}

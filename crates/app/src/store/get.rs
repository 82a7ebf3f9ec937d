//! `panoply store get` and `panoply store cat`. Files appear when they are complete, and are
//! private to their owner: reading sealed data must not expose it to other users.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use panoply::store::{Entry, Error, Options, Store};
use serde_json::json;

use super::progress::{CountedStream, bar};
use super::protected::ProtectedPlaces;
use super::{names, open_to_read, open_to_read_with, rate_text, start, start_with};
use crate::configuration::Format;
use crate::configuration::store::{ByteRange, CatOptions, GetOptions, ReadSelection};
use crate::failure::{Failure, say_on_interrupt};
use crate::folder::Folder;
use crate::leftovers;
use crate::partial::{self, GivenUp, Partial};
use crate::screen::{Screen, bytes_text};
use crate::vectors::{counted, path_text};

/// Maximal number of files that are written at the same time.
const FILES_AT_ONCE: usize = 3;
/// Maximal number of files that are synced at the same time, and of files that wait for that. A
/// file system journals several files together.
const SYNCED_AT_ONCE: usize = 8;
const UNSYNCED_MAX: usize = 64;

/// Writes objects to files.
pub fn run(options: &GetOptions, screen: &mut Screen) -> Result<(), Failure> {
    let (runtime, compress_with) = start_with(options.device)?;
    let how = Options { compress_with, ..Options::default() };
    let store = open_to_read_with(&options.place, &options.key, how, &runtime)?;
    let protected = ProtectedPlaces::of(&options.place, &options.key);
    let mut made = BTreeSet::new();
    let jobs = match &options.what {
        ReadSelection::ToOutput { name, range } => return to_output(&store, std::slice::from_ref(name), *range),
        ReadSelection::ToFile { name, range, file } => {
            vec![ObjectJob::new(&store, name, *range, ObjectTarget::File(file.clone()))?]
        }
        ReadSelection::All(folder) => jobs_of_all(&store, folder, &protected, &mut made)?,
    };
    // Checked before anything is made. Paths typed by the user are checked again once their folder
    // exists, since `new/../store` leads nowhere until then.
    protected.expect_outside("--to", jobs.iter().map(|job| job.target.path()))?;
    say_on_interrupt(GivenUp::told);
    let (bytes, begun) = (jobs.iter().map(|job| job.end - job.start).sum(), Instant::now());
    let progress = bar(Some(bytes), "reading");
    let writing = Writing { store: &store, protected: &protected, overwrite: options.overwrite, progress: &progress };
    let (folders, done) = run_all(&jobs, &writing);
    let synced = folders.union(&made).try_for_each(|folder| partial::sync_folder(folder));
    progress.finish_and_clear();
    done?;
    synced?;
    let is = if jobs.len() == 1 { "is" } else { "are" };
    screen.note_done(format!("{} {is} written", counted(jobs.len() as u64, "file")));
    report(options, &store, &jobs, bytes, begun.elapsed().as_secs_f64(), screen)
}

/// A job for every object, each written below a folder.
fn jobs_of_all(
    store: &Store,
    folder: &Path,
    protected: &ProtectedPlaces,
    made: &mut BTreeSet<PathBuf>,
) -> Result<Vec<ObjectJob>, Failure> {
    expect_names(store, folder)?;
    protected.expect_outside("--to", [folder.join("object")])?;
    expect_apart(store, folder)?;
    make_folder(folder, made)?;
    let opened = Folder::open(folder).with_context(|| format!("{} cannot be opened", folder.display()))?;
    let opened = Arc::new(opened);
    let job = |entry: Entry| {
        let target = ObjectTarget::Below(Arc::clone(&opened), entry.name.clone());
        ObjectJob::new(store, &entry.name, ByteRange::default(), target)
    };
    store.entries().map(job).collect()
}

/// The data shared by all jobs.
struct Writing<'a> {
    store: &'a Store,
    protected: &'a ProtectedPlaces,
    overwrite: bool,
    progress: &'a ProgressBar,
}

/// Writes several files at the same time; others wait for the disk meanwhile. After a failure no
/// further file is begun. Returns the folders in which names have changed; each is synced once.
fn run_all(jobs: &[ObjectJob], writing: &Writing<'_>) -> (BTreeSet<PathBuf>, Result<(), Failure>) {
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
            let outcome = job.run(writing, &mut changed).and_then(|written| match &sender {
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
            // If no thread can be started, this one writes all files.
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

/// Writes objects to standard output, one after the other.
pub fn cat(options: &CatOptions) -> Result<(), Failure> {
    let runtime = start()?;
    let store = open_to_read(&options.place, &options.key, &runtime)?;
    to_output(&store, &options.names, options.range)
}

/// An object, or a part of it, and its target file.
struct ObjectJob {
    name: String,
    start: u64,
    end: u64,
    target: ObjectTarget,
}

/// The target of an object.
enum ObjectTarget {
    /// A path typed by the user. Links in it are followed, except in the last part.
    File(PathBuf),
    /// The parts of an object's name below a folder. No link is followed.
    Below(Arc<Folder>, String),
}

impl ObjectTarget {
    fn path(&self) -> PathBuf {
        match self {
            ObjectTarget::File(path) => path.clone(),
            ObjectTarget::Below(folder, name) => folder.path().join(name),
        }
    }

    /// The folder of the file (made if missing), and the file's name in it.
    fn folder(&self, folders: &mut BTreeSet<PathBuf>) -> Result<(Arc<Folder>, OsString), Failure> {
        match self {
            ObjectTarget::File(path) => {
                let above = partial::folder_of(path);
                make_folder(above, folders)?;
                let cannot = || format!("{} cannot be written", path.display());
                let name = path.file_name().with_context(cannot)?;
                Ok((Arc::new(Folder::open(above).with_context(cannot)?), name.to_owned()))
            }
            ObjectTarget::Below(folder, name) => {
                let cannot = || format!("`{name}` cannot be written below {}", folder.path().display());
                let (above, last) =
                    name.rsplit_once('/').map_or((None, name.as_str()), |(above, last)| (Some(above), last));
                let mut folder = Arc::clone(folder);
                for part in above.into_iter().flat_map(|above| above.split('/')) {
                    let (below, is_made) = folder.below(OsStr::new(part)).with_context(cannot)?;
                    if is_made {
                        folders.insert(folder.path().to_owned());
                    }
                    folder = Arc::new(below);
                }
                Ok((folder, last.into()))
            }
        }
    }
}

impl ObjectJob {
    fn new(store: &Store, name: &str, range: ByteRange, target: ObjectTarget) -> Result<ObjectJob, Failure> {
        let (start, end) = resolved(store, name, range)?;
        Ok(ObjectJob { name: name.to_owned(), start, end, target })
    }

    /// Writes the file. It is not yet durable, and does not have its final name.
    fn run(&self, writing: &Writing<'_>, folders: &mut BTreeSet<PathBuf>) -> Result<Partial, Failure> {
        let path = self.target.path();
        let partial = match &self.target {
            ObjectTarget::File(path) if partial::is_special(path) => Partial::create(path, writing.overwrite)?,
            target => {
                let (folder, name) = target.folder(folders)?;
                if matches!(target, ObjectTarget::File(_)) {
                    writing.protected.expect_outside("--to", [path.clone()])?;
                }
                folders.insert(folder.path().to_owned());
                Partial::create_in(&folder, &name, &path, writing.overwrite, true)?
            }
        };
        let cannot = || format!("{} was not written", path.display());
        let mut out = CountedStream { inner: partial.file().with_context(cannot)?, bar: writing.progress };
        writing.store.read_range(&self.name, self.start..self.end, &mut out).with_context(cannot)?;
        Ok(partial)
    }
}

/// Makes a folder and its missing parents, private to their owner, and records the folders in which
/// names have changed.
fn make_folder(folder: &Path, changed: &mut BTreeSet<PathBuf>) -> Result<(), Failure> {
    let missing = folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    changed.extend(missing.map(|folder| partial::folder_of(folder).to_owned()));
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    Ok(builder.create(folder).with_context(|| format!("{} cannot be made", folder.display()))?)
}

/// Refuses, before anything is written, names that are not valid paths on this system.
fn expect_names(store: &Store, folder: &Path) -> Result<(), Failure> {
    let bad = store.entries().find_map(|entry| Some((names::parts(&entry.name, cfg!(windows)).err()?, entry.name)));
    match bad {
        Some((reason, name)) => Err(anyhow!(
            "`{name}` cannot be a file below {}: {reason}; nothing was written: get objects one by one, each with a --to of its own",
            folder.display()
        )
        .into()),
        None => Ok(()),
    }
}

/// Refuses, before anything is written, objects whose paths in one folder would collide.
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

/// Two names that collide: one is a folder of the other's path, or they are equal (ignoring case if
/// `folds`).
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

/// Whether a folder ignores case in names.
fn folds_case(folder: &Path) -> io::Result<bool> {
    // A temporary name, which the next command removes if this process is killed.
    let name = format!("case{}", leftovers::ending(0));
    let probe = folder.join(&name);
    File::options().write(true).create_new(true).open(&probe)?;
    let folds = folder.join(name.to_uppercase()).exists();
    fs::remove_file(&probe).map(|()| folds)
}

/// The requested byte range; fails if the object does not exist or is shorter.
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
    // All objects are looked up before anything is written.
    let ranges = names.iter().map(|name| resolved(store, name, range)).collect::<Result<Vec<_>, _>>()?;
    let mut out = io::stdout().lock();
    for (name, (start, end)) in names.iter().zip(ranges) {
        store.read_range(name, start..end, &mut out)?;
    }
    Ok(out.flush()?)
}

fn report(
    options: &GetOptions,
    store: &Store,
    jobs: &[ObjectJob],
    bytes: u64,
    seconds: f64,
    screen: &mut Screen,
) -> Result<(), Failure> {
    if options.format == Format::Json {
        let files: Vec<_> = jobs
            .iter()
            .map(|job| json!({ "name": job.name, "file": path_text(&job.target.path()), "bytes": job.end - job.start }))
            .collect();
        let decompressed_by = super::uses_json(store);
        return screen
            .json(&json!({ "files": files, "bytes": bytes, "seconds": seconds, "decompressed_by": decompressed_by }));
    }
    if options.device.is_some() {
        screen.line(screen.faint(&format!("decompressed by {}", super::uses_text(store))))?;
    }
    match jobs {
        [job] => screen.line(format!("{}: {}.", job.target.path().display(), bytes_text(bytes))),
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

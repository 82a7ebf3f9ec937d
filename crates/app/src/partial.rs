//! Files that appear whole or not at all.
//!
//! 1. A file has no name until it is complete (`O_TMPFILE`), so that nothing of it stays behind
//!    however its process ends. If the file system does not support unnamed files, the file is
//!    written next to its target under a temporary name.
//! 2. A file that must not replace another is named by a call that fails if the name exists by
//!    then.
//! 3. Temporary names are removed, also when a signal ends the process ([`give_up`]), and after
//!    `kill -9` by the next command that writes to the same folder ([`crate::leftovers`]).
//! 4. When a file is complete, its content and its name are durable.
//!
//! Files are named, and counted as complete, while the gate [`UNFINISHED`] is held; a signal closes
//! it. So the final message of a process states which files are complete, and no further file
//! becomes complete afterwards. Temporary folders ([`Scratch`]) are removed in the same way.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::Gate;
use crate::leftovers;

/// The files and folders in progress. They are static because destructors do not run when a signal
/// ends the process.
static UNFINISHED: Gate<PartialFiles> = Gate::new(PartialFiles { next: 0, items: Vec::new(), files: 0, completed: 0 });

/// Maximal number of attempts to find a temporary name that no other process takes or removes.
const NAMES_MAX: usize = 100;
/// Maximal number of attempts to delete a folder that another process is still writing to.
const REMOVALS_MAX: usize = 20;

#[derive(Debug)]
struct PartialFiles {
    next: u64,
    /// Names to remove.
    items: Vec<(u64, Item)>,
    /// Number of files that are neither complete nor given up.
    files: usize,
    completed: usize,
}

#[derive(Debug)]
enum Item {
    File(Arc<Folder>, OsString),
    Folder(PathBuf),
}

/// The state that a process leaves when a signal ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Number of files with their final names.
    pub completed: usize,
    /// Number of files that were in progress and have been removed.
    pub unfinished: usize,
}

impl GivenUp {
    /// The final message about the files of a command. `None` means that their state is unknown.
    pub fn told(given_up: Option<GivenUp>) -> String {
        let files = |count: usize| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
        match given_up {
            Some(GivenUp { completed: 0, .. }) => "interrupted; no file was written".to_owned(),
            Some(GivenUp { completed, unfinished: 0 }) => format!("interrupted; {} complete", files(completed)),
            Some(GivenUp { completed, unfinished }) => {
                format!("interrupted; {} complete, {} given up", files(completed), files(unfinished))
            }
            None => "interrupted while a file was given its name: it is there and whole, or not there".to_owned(),
        }
    }
}

/// A file in progress. It is removed unless it is completed.
#[derive(Debug)]
pub struct Partial {
    target: PathBuf,
    file: File,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A device or a pipe, which is written to directly.
    InPlace,
    /// A new file, to be named in a folder.
    New(New),
}

#[derive(Debug)]
struct New {
    folder: Arc<Folder>,
    name: OsString,
    overwrite: bool,
    /// The temporary name, and its number among the unfinished items.
    meanwhile: Option<(OsString, u64)>,
}

impl Partial {
    /// Begins a file. An existing one is refused, unless `overwrite` is set.
    pub fn create(target: &Path, overwrite: bool) -> Result<Partial, Failure> {
        let cannot = || format!("{} cannot be written", target.display());
        if is_special(target) {
            if !overwrite {
                return Err(exists(target).into());
            }
            let file = File::options().write(true).open(target).with_context(cannot)?;
            return Ok(Partial { target: target.to_owned(), file, state: State::InPlace });
        }
        let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename).map_err(io::Error::from);
        let name = name.with_context(cannot)?;
        let folder = Folder::open(folder_of(target)).with_context(cannot)?;
        Partial::create_in(&Arc::new(folder), name, target, overwrite, false)
    }

    /// Begins a file in a folder. With `is_private` only its owner may read it. `target` names it
    /// in errors.
    pub fn create_in(
        folder: &Arc<Folder>,
        name: &OsStr,
        target: &Path,
        overwrite: bool,
        is_private: bool,
    ) -> Result<Partial, Failure> {
        if !overwrite && folder.has(name) {
            return Err(exists(target).into());
        }
        leftovers::remove_from(folder);
        let (file, meanwhile) = match folder.create_unnamed(is_private) {
            Some(file) => (file, None),
            None => named(folder, name, is_private)
                .map(|(file, name, number)| (file, Some((name, number))))
                .with_context(|| format!("{} cannot be written", target.display()))?,
        };
        UNFINISHED.pass().files += 1;
        let state = New { folder: Arc::clone(folder), name: name.to_owned(), overwrite, meanwhile };
        Ok(Partial { target: target.to_owned(), file, state: State::New(state) })
    }

    /// Another handle to the file, with a shared position.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the file its name.
    pub fn complete(self) -> Result<(), Failure> {
        let (folder, target) = match &self.state {
            State::InPlace => return Ok(()),
            State::New(new) => (Arc::clone(&new.folder), self.target.clone()),
        };
        self.complete_unsynced()?;
        Ok(folder.sync().with_context(|| format!("the folder of {} could not be synced", target.display()))?)
    }

    /// Gives the file its name, which becomes durable once its folder is synced: for many files in
    /// few folders.
    pub fn complete_unsynced(mut self) -> Result<(), Failure> {
        let State::New(new) = &mut self.state else { return Ok(()) };
        let synced = self.file.sync_all().and_then(|()| {
            let mut unfinished = UNFINISHED.pass();
            new.give_name(&self.file, &mut unfinished)?;
            unfinished.files -= 1;
            unfinished.completed += 1;
            unfinished.forget(new.meanwhile.take());
            Ok(())
        });
        match synced {
            Ok(()) => {
                self.state = State::InPlace;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !new.overwrite => {
                Err(exists(&self.target).context("a file of this name has appeared meanwhile").into())
            }
            Err(error) => {
                Err(anyhow::Error::new(error).context(format!("{} could not be written", self.target.display())).into())
            }
        }
    }

    /// Writes all contents, and gives the file its name.
    pub fn finish_with(self, contents: &[u8]) -> Result<(), Failure> {
        let written = self.file().and_then(|mut file| file.write_all(contents));
        written.with_context(|| format!("{} could not be written", self.target.display()))?;
        self.complete()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let State::New(new) = &mut self.state {
            // If removing fails, the name shows that the file is not whole, and the next command
            // tries again.
            let meanwhile = new.meanwhile.take();
            meanwhile.iter().for_each(|(name, _)| drop(new.folder.remove(name)));
            let mut unfinished = UNFINISHED.pass();
            unfinished.files -= 1;
            unfinished.forget(meanwhile);
        }
    }
}

impl New {
    /// Names a file whose content is durable.
    fn give_name(&mut self, file: &File, unfinished: &mut PartialFiles) -> io::Result<()> {
        if self.meanwhile.is_none() {
            match self.folder.name_unnamed(file, &self.name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.overwrite => {}
                named => return named,
            }
            // Only a named file can replace another. The lock shows that the temporary file is
            // still in use.
            let _ = file.try_lock();
            let meanwhile = beside(&self.name, unfinished.next);
            self.folder.name_unnamed(file, &meanwhile)?;
            self.meanwhile = Some((meanwhile.clone(), unfinished.add(Item::File(Arc::clone(&self.folder), meanwhile))));
        }
        let Some((meanwhile, _)) = &self.meanwhile else { return Ok(()) };
        match self.overwrite {
            true => self.folder.rename(meanwhile, &self.folder, &self.name),
            false => self.folder.rename_new(meanwhile, &self.folder, &self.name),
        }
    }
}

impl PartialFiles {
    fn add(&mut self, item: Item) -> u64 {
        let number = self.next;
        self.next += 1;
        self.items.push((number, item));
        number
    }

    fn forget(&mut self, meanwhile: Option<(OsString, u64)>) {
        self.items.retain(|(number, _)| meanwhile.as_ref().is_none_or(|(_, own)| own != number));
    }
}

/// A temporary folder that is deleted at the end, with its content.
#[derive(Debug)]
pub struct Scratch {
    pub path: PathBuf,
    number: u64,
    /// Held as long as the folder is needed: a folder without a lock is left over.
    _lock: Option<File>,
}

impl Scratch {
    /// Creates a temporary folder below another folder.
    pub fn new(below: &Path, name: &str) -> Result<Scratch, Failure> {
        let folder = Folder::open(below).with_context(|| format!("{} cannot be written to", below.display()))?;
        leftovers::remove_from(&folder);
        let mut unfinished = UNFINISHED.pass();
        let path = below.join(beside(OsStr::new(name), unfinished.next));
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        let number = unfinished.add(Item::Folder(path.clone()));
        drop(unfinished);
        let lock = File::open(&path).ok().filter(|folder| folder.try_lock().is_ok());
        Ok(Scratch { path, number, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        UNFINISHED.pass().items.retain(|(number, _)| *number != self.number);
    }
}

/// Removes unfinished items, for a process that is about to end; nothing can be completed
/// afterwards. `None` if a file is being named and that does not finish in time.
pub fn give_up() -> Option<GivenUp> {
    UNFINISHED.close(|unfinished| {
        unfinished.items.drain(..).for_each(|(_, item)| match item {
            Item::File(folder, name) => drop(folder.remove(&name)),
            Item::Folder(path) => drop((0..REMOVALS_MAX).any(|_| fs::remove_dir_all(&path).is_ok())),
        });
        GivenUp { completed: unfinished.completed, unfinished: unfinished.files }
    })
}

/// Moves files out of a scratch folder to their targets, in this order: all of them, or none if one
/// is refused.
pub fn move_all(files: &[(PathBuf, PathBuf)], overwrite: bool) -> anyhow::Result<()> {
    let mut moved: Vec<&PathBuf> = Vec::new();
    for (from, to) in files {
        let done = move_one(from, to, overwrite);
        if let Err(error) = done {
            // Without `overwrite` these are new names; the previous content of a replaced file is
            // lost.
            moved.iter().filter(|_| !overwrite).for_each(|path| drop(fs::remove_file(path)));
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists if !overwrite => exists(to),
                _ => anyhow::Error::new(error).context(format!("{} cannot be written", to.display())),
            });
        }
        moved.push(to);
    }
    Ok(())
}

fn move_one(from: &Path, to: &Path, overwrite: bool) -> io::Result<()> {
    let nameless = || io::Error::from(io::ErrorKind::InvalidFilename);
    let (name, target) = (from.file_name().ok_or_else(nameless)?, to.file_name().ok_or_else(nameless)?);
    let (folder, into) = (Folder::open(folder_of(from))?, Folder::open(folder_of(to))?);
    File::open(from)?.sync_all()?;
    let mut unfinished = UNFINISHED.pass();
    match overwrite {
        true => folder.rename(name, &into, target)?,
        false => folder.rename_new(name, &into, target)?,
    }
    unfinished.completed += 1;
    drop(unfinished);
    into.sync()
}

/// Whether two paths are the same entry of the same folder, however they are spelled. Links count
/// as entries of their own: completing a file replaces the link, not its target.
pub fn is_same_place(a: &Path, b: &Path) -> bool {
    place(a).is_some_and(|a| Some(a) == place(b))
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> anyhow::Result<()> {
    let synced = Folder::open(folder).and_then(|folder| folder.sync());
    synced.with_context(|| format!("{} could not be synced", folder.display()))
}

/// The folder that a file is in.
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn place(path: &Path) -> Option<(PathBuf, OsString)> {
    Some((fs::canonicalize(folder_of(path)).ok()?, path.file_name()?.to_owned()))
}

fn exists(target: &Path) -> anyhow::Error {
    anyhow!("{} exists already; --overwrite replaces it", target.display())
}

/// Whether the target exists and is not a regular file, such as a terminal or a pipe. A folder is
/// refused when it is opened. Entries of `/dev` and `/proc` are never replaced, even if they lead
/// to a file (`/dev/stdout`).
pub fn is_special(target: &Path) -> bool {
    let is_of_system = ["/dev", "/proc"].iter().any(|folder| target.starts_with(folder));
    fs::metadata(target).is_ok_and(|metadata| !metadata.is_file() || cfg!(unix) && is_of_system)
}

/// A file under a temporary name, locked so that other processes know that it is in use.
fn named(folder: &Arc<Folder>, name: &OsStr, is_private: bool) -> io::Result<(File, OsString, u64)> {
    let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..NAMES_MAX {
        let mut unfinished = UNFINISHED.pass();
        let meanwhile = beside(name, unfinished.next);
        let number = unfinished.add(Item::File(Arc::clone(folder), meanwhile.clone()));
        drop(unfinished);
        refused = match folder.create_new(&meanwhile, is_private) {
            // Another command may have deleted it as left over before it was locked.
            Ok(file) if file.try_lock().is_err() || leftovers::has_name(&file) => return Ok((file, meanwhile, number)),
            Ok(_) => io::ErrorKind::AlreadyExists.into(),
            Err(error) => error,
        };
        UNFINISHED.pass().items.retain(|(own, _)| *own != number);
        if refused.kind() != io::ErrorKind::AlreadyExists {
            break;
        }
    }
    Err(refused)
}

/// A temporary name that no other file of this process uses, even in folders that ignore case. It
/// contains at most the beginning of a long name: names may have 255 bytes.
fn beside(name: &OsStr, number: u64) -> OsString {
    const KEPT_BYTES_MAX: usize = 200;
    let mut name = name.to_owned();
    if name.len() > KEPT_BYTES_MAX {
        let text = name.to_string_lossy();
        name = text[..text.floor_char_boundary(KEPT_BYTES_MAX)].into();
    }
    name.push(leftovers::ending(number));
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;

    #[test]
    fn one_place_is_known_however_it_is_spelled() {
        let folder = std::env::temp_dir();
        let (plain, dotted) = (folder.join("p.npy"), folder.join(".").join("p.npy"));
        assert!(is_same_place(&plain, &plain) && is_same_place(&plain, &dotted));
        assert!(is_same_place(Path::new("p.npy"), Path::new("./p.npy")));
        assert!(!is_same_place(&plain, &folder.join("q.npy")));
        assert!(!is_same_place(&folder.join("nowhere/p.npy"), &plain));
    }

    /// Regression: names of 244 bytes and more left no room for the suffix of the temporary name.
    #[test]
    fn files_with_the_longest_names_are_written() {
        for name in ["n".repeat(255), "n".repeat(244), "é".repeat(127)] {
            let target = std::env::temp_dir().join(name);
            for _ in 0..2 {
                Partial::create(&target, true).unwrap().finish_with(b"whole").unwrap();
            }
            assert_eq!(fs::read(&target).unwrap(), b"whole");
            fs::remove_file(&target).unwrap();
        }
    }

    /// Begins a file with a temporary name, as on a file system without unnamed files.
    fn begin_named(target: &Path, overwrite: bool) -> Partial {
        let folder = Arc::new(Folder::open(folder_of(target)).unwrap());
        let name = target.file_name().unwrap().to_owned();
        let (file, meanwhile, number) = named(&folder, &name, true).unwrap();
        UNFINISHED.pass().files += 1;
        let new = New { folder, name, overwrite, meanwhile: Some((meanwhile, number)) };
        Partial { target: target.to_owned(), file, state: State::New(new) }
    }

    fn begin(target: &Path, overwrite: bool, is_named: bool) -> Partial {
        if is_named { begin_named(target, overwrite) } else { Partial::create(target, overwrite).unwrap() }
    }

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_file_keeps_its_content_until_the_new_one_is_whole() {
        for is_named in [false, true] {
            let folder = Scratch::new(&std::env::temp_dir(), "panoply-partial-whole").unwrap();
            let target = folder.path.join("file.txt");
            fs::write(&target, "old").unwrap();
            assert!(Partial::create(&target, false).is_err());
            let (first, second) = (begin(&target, true, is_named), begin(&target, true, is_named));
            second.file().unwrap().write_all(b"half").unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"old");
            drop(second);
            first.finish_with(b"new").unwrap();
            assert_eq!((fs::read(&target).unwrap(), names(&folder.path)), (b"new".to_vec(), 1));
        }
    }

    /// Regression: whether the name exists was checked when the file was begun, but not when it was
    /// named.
    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        for is_named in [false, true] {
            let folder = Scratch::new(&std::env::temp_dir(), "panoply-partial-meanwhile").unwrap();
            let target = folder.path.join("file.txt");
            let partial = begin(&target, false, is_named);
            fs::write(&target, "theirs").unwrap();
            let Err(Failure::Run(refused)) = partial.finish_with(b"ours") else { panic!("it was replaced") };
            assert!(format!("{refused:#}").contains("exists already"), "{refused:#}");
            assert_eq!((fs::read(&target).unwrap(), names(&folder.path)), (b"theirs".to_vec(), 1));
            fs::remove_file(&target).unwrap();
            begin(&target, false, is_named).finish_with(b"ours").unwrap();
            assert_eq!((fs::read(&target).unwrap(), names(&folder.path)), (b"ours".to_vec(), 1));
        }
    }
}

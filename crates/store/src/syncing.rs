//! Makes complete files durable.
//!
//! The first file waits for its commit, so a store that gets one small object starts no thread.
//! From the second file on, a few threads wait for the disk while the next objects are compressed
//! and sealed. A file system journals several files together, so parallel waits take little longer
//! than one.
//!
//! A failure is remembered until the commit, which fails with it, no matter which object the file
//! belongs to or which thread waited for it: the system reports such a failure only once.

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};

/// Maximal number of files that are open until they are durable.
const WAITING_MAX: usize = 64;
/// Maximal number of threads that wait for the disk.
const THREADS_MAX: usize = 4;

type Waiting = (File, PathBuf);
type SyncFailure = (PathBuf, Error);

/// Makes files durable. May be used from any thread.
pub(crate) struct Syncer {
    state: Mutex<State>,
    threads_max: usize,
}

impl Default for Syncer {
    fn default() -> Syncer {
        Syncer { state: Mutex::default(), threads_max: THREADS_MAX }
    }
}

#[derive(Default)]
struct State {
    last: Option<Waiting>,
    threads: Option<Threads>,
    /// Files that could not be made durable, as far as known.
    failed: Vec<SyncFailure>,
    /// Files that were given up: whether they become durable does not matter.
    given_up: HashSet<PathBuf>,
}

struct Threads {
    sender: SyncSender<Waiting>,
    handles: Vec<JoinHandle<Vec<SyncFailure>>>,
}

impl Syncer {
    /// Takes a file. Waits if too many are queued.
    pub(crate) fn push(&self, file: File, path: PathBuf) {
        let (before, sender) = {
            let mut state = self.lock();
            let Some(before) = state.last.replace((file, path)) else { return };
            if state.threads.is_none() {
                state.threads = Threads::start(self.threads_max);
            }
            (before, state.threads.as_ref().map(|threads| threads.sender.clone()))
        };
        let unsent = match sender {
            Some(sender) => sender.send(before).err().map(|unsent| unsent.0),
            None => Some(before),
        };
        // If no thread can be started, or all have ended, this thread waits for the disk.
        let failed = unsent.and_then(sync);
        self.lock().failed.extend(failed);
    }

    /// Ignores the outcome of a file that is deleted.
    pub(crate) fn give_up(&self, path: PathBuf) {
        self.lock().given_up.insert(path);
    }

    /// Waits until every file is durable.
    pub(crate) fn finish(&self) -> Result<()> {
        let State { last, threads, mut failed, given_up } = std::mem::take(&mut *self.lock());
        failed.extend(last.and_then(sync));
        if let Some(Threads { sender, handles }) = threads {
            drop(sender);
            for handle in handles {
                let ended =
                    |_| vec![(PathBuf::new(), Error::WritesStopped { reason: "a thread has ended".to_owned() })];
                failed.extend(handle.join().unwrap_or_else(ended));
            }
        }
        match failed.into_iter().find(|(path, _)| !given_up.contains(path)) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Threads {
    fn start(threads_max: usize) -> Option<Threads> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |_| {
            let receiver = Arc::clone(&receiver);
            let builder = std::thread::Builder::new().name("panoply-store-sync".to_owned());
            builder.spawn(move || sync_all(&receiver)).ok()
        };
        let handles: Vec<_> = (0..threads_max).filter_map(start).collect();
        (!handles.is_empty()).then_some(Threads { sender, handles })
    }
}

/// Waits for the disk, file by file, until the sender is closed; returns the failures.
fn sync_all(receiver: &Mutex<Receiver<Waiting>>) -> Vec<SyncFailure> {
    let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
    std::iter::from_fn(|| next().ok()).filter_map(sync).collect()
}

/// Waits until a file is durable; returns its path and the error if that fails.
fn sync((file, path): Waiting) -> Option<SyncFailure> {
    let error = file.sync_all().err()?;
    Some((path.clone(), Error::io("sync", &path, error)))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A file that cannot be synced: a pipe.
    fn unsyncable() -> std::io::Result<File> {
        std::io::pipe().map(|(_, writer)| File::from(std::os::fd::OwnedFd::from(writer)))
    }

    /// Regression: a file that failed while another object was being written was forgotten, and
    /// committed.
    #[test]
    fn a_file_that_did_not_arrive_fails_the_commit_whoever_waited_for_it() {
        for threads_max in [0, 2] {
            let syncer = Syncer { state: Mutex::default(), threads_max };
            syncer.push(unsyncable().unwrap(), PathBuf::from("first"));
            syncer.push(File::open("/").unwrap(), PathBuf::from("second"));
            syncer.push(File::open("/").unwrap(), PathBuf::from("third"));
            assert!(matches!(syncer.finish(), Err(Error::Io { path, .. }) if path.ends_with("first")));
        }
    }

    #[test]
    fn what_was_given_up_need_not_arrive() {
        for threads_max in [0, 2] {
            let syncer = Syncer { state: Mutex::default(), threads_max };
            syncer.push(unsyncable().unwrap(), PathBuf::from("first"));
            syncer.push(File::open("/").unwrap(), PathBuf::from("second"));
            syncer.give_up(PathBuf::from("first"));
            syncer.finish().unwrap();
        }
    }
}

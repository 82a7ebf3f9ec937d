//! The one thread that changes a collection.
//!
//! Changes come through a bounded queue. Changes that wait while one is committed are committed
//! together as one group: each is a separate record, and one disk sync serves all of them. A group
//! holds changes to different ids only, so each is checked against the state before the group.
//!
//! A fork does not have the writer thread: every change is refused with that reason.
//!
//! * `commit`: checking, recording and applying a group.
//! * `recover`: reading a stored segment.
//! * `replace`: replacing segments: sealing the newest, clearing, compacting.

mod commit;
pub(crate) mod recover;
mod replace;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

pub(crate) use commit::{Change, MetadataChange, PutMode};
pub(crate) use replace::{NOWHERE, Replacement};

use crate::embedding_model::EmbeddingModel;
use crate::error::{Error, Failure, Result};
use crate::folder::{Folder, ListedSegment, Manifest};
use crate::ivf::Centroids;
use crate::segment::Segment;
use crate::state::{CollectionState, Snapshot};
use crate::task::{Task, task};

/// Maximum number of changes in the writer's queue.
const WRITES_WAITING_MAX: usize = 4096;
/// Bytes of unanswered changes above which non-blocking changes are refused. A single change may
/// exceed it if no other is waiting.
const WAITING_BYTES_MAX: usize = if cfg!(test) { 1 << 21 } else { 1 << 30 };

/// The handle through which every change is sent to the writer.
pub(crate) struct WriterHandle {
    sender: SyncSender<Command>,
    thread: Option<JoinHandle<()>>,
    /// Bytes of the unanswered changes.
    waiting_bytes: Arc<AtomicUsize>,
    shared: Arc<CollectionState>,
}

/// A request to the writer.
pub(crate) enum Command {
    /// A change; the answer is the number of records affected.
    Write(Box<Change>, OnDone),
    /// Any other operation.
    Run(Box<dyn FnOnce(&mut Writer) + Send>),
    Stop,
}

/// Receives the outcome of a change.
pub(crate) type OnDone = Box<dyn FnOnce(Result<usize>) + Send>;

/// The writer's own state.
pub(crate) struct Writer {
    pub(crate) shared: Arc<CollectionState>,
    pub(crate) manifest: Manifest,
    /// Oldest first; the last segment grows.
    pub(crate) segments: Vec<Segment>,
    pub(crate) centroids: Option<Arc<Centroids>>,
    /// Whether the manifest on disk gives the length of the newest log, or is of version 1. In both
    /// cases the manifest must be written before the log grows.
    pub(crate) closed: bool,
    /// The reason why writes have stopped.
    stopped: Option<String>,
}

impl WriterHandle {
    /// Starts the writer thread.
    pub(crate) fn start(writer: Writer) -> Result<WriterHandle> {
        let (sender, receiver) = sync_channel(WRITES_WAITING_MAX);
        let shared = Arc::clone(&writer.shared);
        let thread = std::thread::Builder::new().name("panoply-vectors-writer".to_owned());
        let thread = thread.spawn(move || writer.run(&receiver));
        let started = thread.map_err(|error| Error::io("start", std::path::Path::new("the writer's thread"), error))?;
        Ok(WriterHandle { sender, thread: Some(started), waiting_bytes: Arc::default(), shared })
    }

    /// Another sender, for threads that the writer does not wait for.
    pub(crate) fn sender(&self) -> SyncSender<Command> {
        self.sender.clone()
    }

    /// Sends a change; `convert` maps the number of affected records to the result. Waits for room
    /// in the queue if `may_wait`.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        change: Change,
        may_wait: bool,
        convert: impl FnOnce(usize) -> T + Send + 'static,
    ) -> Task<T> {
        if let Err(forked) = self.shared.check_process() {
            return Task::done(Err(forked));
        }
        let (answer, task) = task();
        let load = Load::new(&self.waiting_bytes, change.bytes());
        if !may_wait && load.others > 0 && load.others.saturating_add(load.bytes) > WAITING_BYTES_MAX {
            answer.send(Err(Error::Busy { waiting_max: WAITING_BYTES_MAX, unit: "bytes of writes" }));
            return task;
        }
        let done: OnDone = Box::new(move |result| {
            drop(load);
            answer.send(result.map(convert));
        });
        let command = Command::Write(Box::new(change), done);
        if may_wait {
            // A closed queue drops the answer, which then reports that.
            let _ = self.sender.send(command);
        } else if let Err(TrySendError::Full(Command::Write(_, done))) = self.sender.try_send(command) {
            done(Err(Error::Busy { waiting_max: WRITES_WAITING_MAX, unit: "writes" }));
        }
        task
    }

    /// Runs work on the writer's thread, as soon as its queue has room.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Task<T> {
        match self.shared.check_process() {
            Ok(()) => run_on(&self.sender, work),
            Err(forked) => Task::done(Err(forked)),
        }
    }

    /// Runs work on the writer's thread, if its queue has room.
    pub(crate) fn try_run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Task<T> {
        if let Err(forked) = self.shared.check_process() {
            return Task::done(Err(forked));
        }
        let (command, task) = run_command(work);
        match self.sender.try_send(command) {
            Err(TrySendError::Full(_)) => {
                Task::done(Err(Error::Busy { waiting_max: WRITES_WAITING_MAX, unit: "writes" }))
            }
            // A closed queue drops the answer, which then reports that.
            Ok(()) | Err(TrySendError::Disconnected(_)) => task,
        }
    }
}

/// The bytes of a change, counted while this exists.
struct Load {
    all: Arc<AtomicUsize>,
    bytes: usize,
    /// Bytes of the other changes when this one came.
    others: usize,
}

impl Load {
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Load {
        Load { all: Arc::clone(all), bytes, others: all.fetch_add(bytes, Ordering::Relaxed) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        let _ = self.sender.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs work on the writer's thread.
pub(crate) fn run_on<T: Send + 'static>(
    sender: &SyncSender<Command>,
    work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
) -> Task<T> {
    let (command, task) = run_command(work);
    let _ = sender.send(command);
    task
}

fn run_command<T: Send + 'static>(work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static) -> (Command, Task<T>) {
    let (answer, task) = task();
    (Command::Run(Box::new(move |writer| answer.send(work(writer)))), task)
}

impl Writer {
    /// A writer without segments. Set the segments before it starts.
    pub(crate) fn new(shared: Arc<CollectionState>, manifest: Manifest) -> Writer {
        Writer { shared, manifest, segments: Vec::new(), centroids: None, closed: false, stopped: None }
    }

    fn run(mut self, receiver: &Receiver<Command>) {
        let mut next = None;
        loop {
            let Some(command) = next.take().or_else(|| receiver.recv().ok()) else { break };
            match command {
                Command::Write(change, done) => next = self.commit_group((change, done), receiver),
                Command::Run(work) => work(&mut self),
                Command::Stop => break,
            }
        }
        if !self.is_read_only() {
            // If the flush failed, the log still holds the rest. Its length must stay as it is, or
            // the log would look cut.
            if self.flush().and_then(|()| self.close()).is_ok() {
                self.segments.iter_mut().for_each(Segment::trim);
            }
        }
    }

    /// Records the length of every log, so that the next open can detect missing data.
    fn close(&mut self) -> Result<()> {
        if self.closed || self.folder().is_none() {
            return Ok(());
        }
        let (manifest, folder) = (self.closed_manifest(), self.shared.folder.clone());
        let written = folder.map_or(Ok(()), |folder| folder.write_manifest(&manifest));
        self.judge(written)
    }

    /// The manifest of a collection that is closed in its present state.
    pub(crate) fn closed_manifest(&self) -> Manifest {
        let mut manifest = self.manifest.clone();
        (manifest.segments, manifest.old) = (self.segments.iter().map(listed).collect(), false);
        manifest
    }

    /// Ensures that the manifest does not give the length of the newest log, which is about to
    /// grow.
    fn begin_writing(&mut self) -> Result<()> {
        if !self.closed {
            return Ok(());
        }
        let all = self.segments.iter().map(listed).collect();
        self.write_manifest(all, self.manifest.centroids)
    }

    /// Stores the model that computes the vectors. Fails if the records come from another model.
    pub(crate) fn set_model(&mut self, model: EmbeddingModel) -> Result<()> {
        self.flush()?;
        if self.is_read_only() {
            return self.check_running();
        }
        match &self.manifest.model {
            Some(known) if *known == model => return Ok(()),
            Some(known) if known.sha256 != model.sha256 && self.shared.snapshot().len() > 0 => {
                return Err(Error::OtherModel { expected: Box::new(known.clone()), got: Box::new(model) });
            }
            _ => {}
        }
        let before = self.manifest.model.replace(model);
        let all = self.segments.iter().map(listed).collect();
        let written = self.write_manifest(all, self.manifest.centroids);
        if written.is_err() {
            self.manifest.model = before;
        }
        written
    }

    /// Waits until everything has reached the disk.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.check_running()?;
        if self.segments.iter().any(Segment::needs_flush) {
            self.begin_writing()?;
        }
        let flushed = self.segments.iter_mut().try_for_each(Segment::flush);
        self.judge(flushed)
    }

    /// Handles the result of a change to files. After a failure that leaves the disk in an
    /// uncertain state, writes stop.
    fn judge<T>(&mut self, outcome: Result<T, Failure>) -> Result<T> {
        outcome.map_err(|failure| {
            if failure.unclear {
                self.stopped = Some(failure.error.to_string());
            }
            failure.error
        })
    }

    /// The segments at this moment.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot> {
        let segments = self.segments.iter_mut().map(Segment::view).collect::<Result<_>>()?;
        Ok(Snapshot { segments, centroids: self.centroids.clone() })
    }

    fn is_read_only(&self) -> bool {
        self.folder().is_some_and(Folder::is_read_only)
    }

    /// Refuses changes to a read-only collection, and after a failure that stopped writes.
    pub(crate) fn check_running(&self) -> Result<()> {
        if let Some(folder) = self.folder().filter(|folder| folder.is_read_only()) {
            return Err(Error::ReadOnly { path: folder.path().to_owned() });
        }
        self.stopped.clone().map_or(Ok(()), |reason| Err(Error::WritesStopped { reason }))
    }

    fn folder(&self) -> Option<&Folder> {
        self.shared.folder.as_deref()
    }

    /// Writes the manifest durably with these segments. The last segment may grow.
    fn write_manifest(&mut self, mut segments: Vec<ListedSegment>, centroids: Option<u32>) -> Result<()> {
        let mut manifest = self.manifest.clone();
        segments.last_mut().into_iter().for_each(|newest| newest.extent = None);
        (manifest.segments, manifest.centroids, manifest.old) = (segments, centroids, false);
        // Before others may come to know it; until then the log before is locked.
        let next = match (self.folder(), manifest.segments.last()) {
            (Some(folder), Some(newest)) => folder.lock_next(newest.id)?,
            _ => None,
        };
        let written = self.folder().map_or(Ok(()), |folder| folder.write_manifest(&manifest));
        self.judge(written)?;
        (self.manifest, self.closed) = (manifest, false);
        if let Some(folder) = self.folder() {
            folder.keep(next);
        }
        Ok(())
    }
}

fn listed(segment: &Segment) -> ListedSegment {
    ListedSegment { id: segment.id, lists: segment.lists.is_some(), extent: Some(segment.extent()) }
}

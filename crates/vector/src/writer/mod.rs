//! The one thread that changes a collection.
//!
//! Changes come through a bounded queue. Those that wait when one is committed are committed with it, as one group: each
//! is a record of its own, and one wait for the disk serves all of them. A group holds changes to different ids only, so
//! each is judged by what was committed before.
//!
//! * `commit`: judging, recording and applying a group.
//! * `recover`: reading a stored segment back.
//! * `replace`: new segments for old ones: sealing the newest, clearing, compacting.

mod commit;
pub(crate) mod recover;
mod replace;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

pub(crate) use commit::{Change, PutMode};
pub(crate) use replace::{NOWHERE, Replacement};

use crate::error::{Error, Failure, Result};
use crate::folder::{Folder, ListedSegment, Manifest};
use crate::ivf::Centroids;
use crate::segment::Segment;
use crate::state::{Shared, Snapshot};
use crate::task::{Task, task};

/// Changes that wait for the writer at most.
const WRITES_WAITING_MAX: usize = 4096;
/// What awaited changes may take while they wait, in bytes. One alone may take more.
const WAITING_BYTES_MAX: usize = if cfg!(test) { 1 << 21 } else { 1 << 30 };

/// Every change goes through here.
pub(crate) struct WriterHandle {
    sender: SyncSender<Command>,
    thread: Option<JoinHandle<()>>,
    /// Bytes of the changes that have no answer yet.
    waiting_bytes: Arc<AtomicUsize>,
}

/// What the writer is asked to do.
pub(crate) enum Command {
    /// A change; the answer is how many records it concerned.
    Write(Box<Change>, Done),
    /// Anything else.
    Run(Box<dyn FnOnce(&mut Writer) + Send>),
    Stop,
}

/// Takes a change's outcome.
pub(crate) type Done = Box<dyn FnOnce(Result<usize>) + Send>;

/// The writer's own state.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) manifest: Manifest,
    /// Oldest first; the last one grows.
    pub(crate) segments: Vec<Segment>,
    pub(crate) centroids: Option<Arc<Centroids>>,
    /// Whether the manifest on the disk says how long the newest log is, or is of version 1, so that it must be written before
    /// the log grows.
    pub(crate) closed: bool,
    /// Why it takes no more writes.
    stopped: Option<String>,
}

impl WriterHandle {
    /// Starts the thread.
    pub(crate) fn start(writer: Writer) -> Result<WriterHandle> {
        let (sender, receiver) = sync_channel(WRITES_WAITING_MAX);
        let thread = std::thread::Builder::new().name("panoply-vectors-writer".to_owned());
        let thread = thread.spawn(move || writer.run(&receiver));
        let started = thread.map_err(|error| Error::io("start", std::path::Path::new("the writer's thread"), error))?;
        Ok(WriterHandle { sender, thread: Some(started), waiting_bytes: Arc::default() })
    }

    /// Another handle, for threads that the writer does not wait for.
    pub(crate) fn sender(&self) -> SyncSender<Command> {
        self.sender.clone()
    }

    /// Hands over a change and makes `convert` of the number of records it concerned. Waits for room where `may_wait`.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        change: Change,
        may_wait: bool,
        convert: impl FnOnce(usize) -> T + Send + 'static,
    ) -> Task<T> {
        let (answer, task) = task();
        let load = Load::new(&self.waiting_bytes, change.bytes());
        if !may_wait && load.others > 0 && load.others.saturating_add(load.bytes) > WAITING_BYTES_MAX {
            answer.send(Err(Error::Busy { waiting_max: WAITING_BYTES_MAX, unit: "bytes of writes" }));
            return task;
        }
        let done: Done = Box::new(move |result| {
            drop(load);
            answer.send(result.map(convert));
        });
        let command = Command::Write(Box::new(change), done);
        if may_wait {
            // A closed queue drops the answer, which then says so.
            let _ = self.sender.send(command);
        } else if let Err(TrySendError::Full(Command::Write(_, done))) = self.sender.try_send(command) {
            done(Err(Error::Busy { waiting_max: WRITES_WAITING_MAX, unit: "writes" }));
        }
        task
    }

    /// Runs something on the writer's thread, once there is room in its queue.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Task<T> {
        run_on(&self.sender, work)
    }

    /// Runs something on the writer's thread, if there is room in its queue.
    pub(crate) fn try_run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Task<T> {
        let (command, task) = run_command(work);
        match self.sender.try_send(command) {
            Err(TrySendError::Full(_)) => {
                Task::done(Err(Error::Busy { waiting_max: WRITES_WAITING_MAX, unit: "writes" }))
            }
            // A closed queue drops the answer, which then says so.
            Ok(()) | Err(TrySendError::Disconnected(_)) => task,
        }
    }
}

/// The bytes of a change, counted while it lives.
struct Load {
    all: Arc<AtomicUsize>,
    bytes: usize,
    /// What the others took when it came.
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

/// Runs something on the writer's thread.
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
    /// A writer of a collection without segments; give it some before it starts.
    pub(crate) fn new(shared: Arc<Shared>, manifest: Manifest) -> Writer {
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
            // Whatever could not be flushed is still in the log, whose length then stays as it is: it would look cut.
            if self.flush().and_then(|()| self.close()).is_ok() {
                self.segments.iter_mut().for_each(Segment::trim);
            }
        }
    }

    /// Notes how long every log is, so that whoever opens the collection can tell whether anything is missing.
    fn close(&mut self) -> Result<()> {
        if self.closed || self.folder().is_none() {
            return Ok(());
        }
        let (manifest, folder) = (self.closed_manifest(), self.shared.folder.clone());
        let written = folder.map_or(Ok(()), |folder| folder.write_manifest(&manifest));
        self.judge(written)
    }

    /// The manifest of a collection that ends where this one is now.
    pub(crate) fn closed_manifest(&self) -> Manifest {
        let mut manifest = self.manifest.clone();
        (manifest.segments, manifest.old) = (self.segments.iter().map(listed).collect(), false);
        manifest
    }

    /// Sees to it that the manifest does not say how long the newest log is, which is about to grow.
    fn begin_writing(&mut self) -> Result<()> {
        if !self.closed {
            return Ok(());
        }
        let all = self.segments.iter().map(listed).collect();
        self.write_manifest(all, self.manifest.centroids)
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

    /// What became of a change to files. After a failure that leaves it unclear what the disk holds, there are no more.
    fn judge<T>(&mut self, outcome: Result<T, Failure>) -> Result<T> {
        outcome.map_err(|failure| {
            if failure.unclear {
                self.stopped = Some(failure.error.to_string());
            }
            failure.error
        })
    }

    /// The segments as they are now.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot> {
        let segments = self.segments.iter_mut().map(Segment::view).collect::<Result<_>>()?;
        Ok(Snapshot { segments, centroids: self.centroids.clone() })
    }

    fn is_read_only(&self) -> bool {
        self.folder().is_some_and(Folder::is_read_only)
    }

    /// Refuses changes to what is only read, and after a failure.
    pub(crate) fn check_running(&self) -> Result<()> {
        if let Some(folder) = self.folder().filter(|folder| folder.is_read_only()) {
            return Err(Error::ReadOnly { path: folder.path().to_owned() });
        }
        self.stopped.clone().map_or(Ok(()), |reason| Err(Error::WritesStopped { reason }))
    }

    fn folder(&self) -> Option<&Folder> {
        self.shared.folder.as_deref()
    }

    /// Makes these the segments that count, durably. The last of them may grow.
    fn write_manifest(&mut self, mut segments: Vec<ListedSegment>, centroids: Option<u32>) -> Result<()> {
        let mut manifest = self.manifest.clone();
        segments.last_mut().into_iter().for_each(|newest| newest.extent = None);
        (manifest.segments, manifest.centroids, manifest.old) = (segments, centroids, false);
        let written = self.folder().map_or(Ok(()), |folder| folder.write_manifest(&manifest));
        self.judge(written)?;
        (self.manifest, self.closed) = (manifest, false);
        Ok(())
    }
}

fn listed(segment: &Segment) -> ListedSegment {
    ListedSegment { id: segment.id, lists: segment.lists.is_some(), extent: Some(segment.extent()) }
}

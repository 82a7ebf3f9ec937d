//! The thread that compacts and uploads while the collection is used. It sleeps until a change asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::compact::{Compactor, wants_compaction};
use crate::search::residency::{self, Effort};
use crate::state::Shared;
use crate::writer::Command;

/// How long nothing must have changed before uploads are joined.
const QUIET: Duration = Duration::from_millis(500);
/// How long a compaction that failed is not tried again: a disk that is full would be filled with it at every write.
const COMPACTION_REST: Duration = Duration::from_secs(30);

/// Ends with the collection.
pub(super) struct Background {
    closing: Arc<AtomicBool>,
    nudge: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works with.
struct Work {
    shared: Arc<Shared>,
    writer: SyncSender<Command>,
    rebuilding: Arc<Mutex<()>>,
    closing: Arc<AtomicBool>,
}

impl Background {
    /// Starts the thread. Without one the collection works as well; compaction then waits for a call.
    pub(super) fn start(
        shared: &Arc<Shared>,
        writer: SyncSender<Command>,
        rebuilding: &Arc<Mutex<()>>,
        closing: &Arc<AtomicBool>,
    ) -> Background {
        let (nudge, nudged) = sync_channel(1);
        shared.set_nudge(nudge.clone());
        let (shared, rebuilding) = (Arc::clone(shared), Arc::clone(rebuilding));
        let work = Work { shared, writer, rebuilding, closing: Arc::clone(closing) };
        let thread = std::thread::Builder::new().name("panoply-vectors-background".to_owned());
        let thread = thread.spawn(move || work.run(&nudged)).ok();
        Background { closing: Arc::clone(closing), nudge, thread }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        let _ = self.nudge.try_send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(&self, nudged: &Receiver<()>) {
        let (mut waits, mut compacts_from) = (false, Instant::now());
        loop {
            let nudge = match waits {
                true => nudged.recv_timeout(QUIET),
                false => nudged.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if nudge == Err(RecvTimeoutError::Disconnected) || self.closing.load(Ordering::Relaxed) {
                return;
            }
            if nudge.is_err() {
                // Nothing has changed for a while.
                let _ = residency::upload(&self.shared, &self.shared.snapshot(), Effort::Quiet);
                waits = false;
                continue;
            }
            if Instant::now() >= compacts_from && wants_compaction(&self.shared, &self.shared.snapshot()) {
                let _turn = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
                let compactor = Compactor { shared: &self.shared, writer: self.writer.clone(), closing: &self.closing };
                // What fails here (a full disk, say) is tried again after a later change; nothing was lost.
                if compactor.compact(false).is_err() {
                    compacts_from = Instant::now() + COMPACTION_REST;
                }
            }
            let snapshot = self.shared.snapshot();
            if residency::wants_upload(&self.shared, &snapshot, Effort::Growing) {
                let _ = residency::upload(&self.shared, &snapshot, Effort::Growing);
            }
            waits = residency::wants_upload(&self.shared, &snapshot, Effort::Quiet);
        }
    }
}

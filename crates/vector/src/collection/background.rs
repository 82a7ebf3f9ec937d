//! Background threads. One compacts and uploads while the collection is in use, and sleeps until a
//! change wakes it. The other checks, once, the rows that were not checked on opening.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::compact::{Compactor, wants_compaction};
use crate::search::residency;
use crate::search::resident::UploadExtent;
use crate::state::CollectionState;
use crate::writer::Command;
use crate::writer::recover::{self, CHECKED_BYTES_MAX};

/// Time without a change after which small device blocks are uploaded and joined.
const QUIET: Duration = Duration::from_millis(500);
/// Bytes checked between two pauses. The pauses leave memory and disk to searches.
const CHECK_BYTES_PER_PAUSE: usize = 16 << 20;
const CHECK_PAUSE: Duration = Duration::from_millis(40);
/// Time after which devices that were not ready are looked at again.
const DEVICES_AGAIN: Duration = Duration::from_secs(2);
/// Time before a failed compaction is tried again. Without it, every write would fill a full disk
/// again.
const COMPACTION_REST: Duration = Duration::from_secs(30);

/// The background threads. They end when the collection is dropped.
pub(super) struct Background {
    closing: Arc<AtomicBool>,
    nudge: SyncSender<()>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that the compaction thread works with.
struct CompactionState {
    shared: Arc<CollectionState>,
    writer: SyncSender<Command>,
    rebuilding: Arc<Mutex<()>>,
    closing: Arc<AtomicBool>,
}

impl Background {
    /// Starts the threads. If none can be started, the collection still works; compaction then runs
    /// only when called.
    pub(super) fn start(
        shared: &Arc<CollectionState>,
        writer: SyncSender<Command>,
        rebuilding: &Arc<Mutex<()>>,
        closing: &Arc<AtomicBool>,
    ) -> Background {
        let (nudge, nudged) = sync_channel(1);
        shared.set_nudge(nudge.clone());
        let rebuilding = Arc::clone(rebuilding);
        let work = CompactionState { shared: Arc::clone(shared), writer, rebuilding, closing: Arc::clone(closing) };
        let thread = std::thread::Builder::new().name("panoply-vectors-background".to_owned());
        let mut threads: Vec<JoinHandle<()>> = thread.spawn(move || work.run(&nudged)).into_iter().collect();
        if !wants_check(shared) {
            shared.note_checked();
        } else if shared.options.check_in_background {
            let (shared, closing) = (Arc::clone(shared), Arc::clone(closing));
            let thread = std::thread::Builder::new().name("panoply-vectors-check".to_owned());
            threads.extend(thread.spawn(move || check_rows(&shared, &closing)));
        }
        Background { closing: Arc::clone(closing), nudge, threads }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        let _ = self.nudge.try_send(());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether some rows were not checked when the collection was opened.
fn wants_check(shared: &CollectionState) -> bool {
    // Encrypted (sealed) files were checked when they were opened.
    shared.folder.as_ref().is_some_and(|folder| !folder.is_sealed())
        && shared.snapshot().segments.iter().any(|segment| segment.rows.len_bytes() > CHECKED_BYTES_MAX)
}

/// Compares every row with its checksum, a little at a time.
fn check_rows(shared: &CollectionState, closing: &AtomicBool) {
    let Some(folder) = &shared.folder else { return };
    let (snapshot, mut since_pause) = (shared.snapshot(), 0);
    for segment in &snapshot.segments {
        let stored = (segment.log.bytes(), segment.stored.bytes());
        let checked = recover::verify(folder, &shared.schema, segment.id, stored, |bytes| {
            since_pause += bytes;
            if since_pause >= CHECK_BYTES_PER_PAUSE {
                since_pause = 0;
                std::thread::sleep(CHECK_PAUSE);
            }
            !closing.load(Ordering::Relaxed)
        });
        if let Err(error) = checked {
            shared.note_damage(&error);
            return;
        }
    }
    if !closing.load(Ordering::Relaxed) {
        shared.note_checked();
    }
}

impl CompactionState {
    fn run(&self, nudged: &Receiver<()>) {
        let (mut wait, mut compacts_from) = (None, Instant::now());
        loop {
            let nudge = match wait {
                Some(wait) => nudged.recv_timeout(wait),
                None => nudged.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if nudge == Err(RecvTimeoutError::Disconnected) || self.closing.load(Ordering::Relaxed) {
                return;
            }
            if nudge.is_err() {
                // Nothing has changed for a while.
                let _ = residency::upload(&self.shared, &self.shared.snapshot(), UploadExtent::Quiet);
                wait = self.time_to_next_look();
                continue;
            }
            let may_compact = !self.shared.is_read_only() && Instant::now() >= compacts_from;
            if may_compact && wants_compaction(&self.shared, &self.shared.snapshot()) {
                let _turn = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
                let compactor = Compactor { shared: &self.shared, writer: self.writer.clone(), closing: &self.closing };
                // A failed compaction (on a full disk, for example) is tried again after a later
                // change; no data is lost.
                if compactor.compact(false).is_err() {
                    compacts_from = Instant::now() + COMPACTION_REST;
                }
            }
            let snapshot = self.shared.snapshot();
            if residency::wants_upload(&self.shared, &snapshot, UploadExtent::Growing) {
                let _ = residency::upload(&self.shared, &snapshot, UploadExtent::Growing);
            }
            let is_incomplete = residency::wants_upload(&self.shared, &snapshot, UploadExtent::Quiet);
            wait = if is_incomplete { Some(QUIET) } else { self.time_to_next_look() };
        }
    }

    /// The time after which devices are looked at again: those that may hold rows later, and those
    /// that have failed to take them.
    fn time_to_next_look(&self) -> Option<Duration> {
        let is_incomplete = || residency::wants_upload(&self.shared, &self.shared.snapshot(), UploadExtent::Quiet);
        (self.shared.placement.awaits_devices(&self.shared) || is_incomplete()).then_some(DEVICES_AGAIN)
    }
}

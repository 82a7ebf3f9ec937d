//! Callers' requests for the memory of a device. The worker owns the engine, so it answers them,
//! between batches.

use std::sync::atomic::{Ordering, fence};

use panoply_core::{Error, HostBufferMut, Result};
use panoply_lockfree::queue::{PushError, Queue};
use panoply_lockfree::slot::{Receiver, Ticket, slot};

use super::Lane;

/// How many requests may wait for a worker.
const REQUESTS_MAX: usize = 16;

/// A request to the worker of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryRequest {
    /// Host memory that the device's transfers reach directly.
    Pinned { len_bytes: usize },
    /// Frees cached memory, until at most this much is cached in each pool.
    Trim { keep_bytes: usize },
}

/// The answer to a request.
pub(crate) enum MemoryAnswer {
    /// Memory with arbitrary contents.
    Pinned(HostBufferMut),
    /// How many bytes of cached memory are gone.
    Trimmed(u64),
}

pub(crate) type MemoryTicket = Ticket<MemoryRequest, Result<MemoryAnswer>>;
pub(crate) type MemoryReceiver = Receiver<MemoryRequest, Result<MemoryAnswer>>;

/// The requests that wait. See the module.
pub(super) struct MemoryRequests(Queue<MemoryTicket>);

impl MemoryRequests {
    pub(super) fn new() -> MemoryRequests {
        MemoryRequests(Queue::new(REQUESTS_MAX))
    }

    pub(super) fn has_news(&self) -> bool {
        self.0.has_news()
    }
}

impl Lane {
    /// Sends a request to the worker, if the lane is open and has room for it.
    pub(crate) fn ask_for_memory(&self, request: MemoryRequest) -> Result<MemoryReceiver> {
        if !self.is_open() {
            return Err(self.refusal());
        }
        let (ticket, receiver) = slot(request);
        let busy = Error::Busy { device: self.info.id, queue_depth_max: REQUESTS_MAX };
        match self.memory_requests.0.push(ticket) {
            Ok(()) => {
                // Either the lane's end sees the request, or this sees the end.
                fence(Ordering::SeqCst);
                if self.is_open() {
                    self.sleeper.wake();
                } else {
                    self.refuse_memory_requests();
                }
                Ok(receiver)
            }
            Err(PushError::Full(ticket) | PushError::Closed(ticket)) => {
                ticket.answer(Err(Error::Cancelled));
                Err(busy)
            }
        }
    }

    /// Answers the requests that no engine will see.
    pub(crate) fn refuse_memory_requests(&self) {
        fence(Ordering::SeqCst);
        while let Some(ticket) = self.memory_requests.0.pop() {
            ticket.answer(Err(self.refusal()));
        }
    }

    /// The next request, for the worker.
    pub(crate) fn next_memory_request(&self) -> Option<MemoryTicket> {
        if self.memory_requests.has_news() { self.memory_requests.0.pop() } else { None }
    }
}

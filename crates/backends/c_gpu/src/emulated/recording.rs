//! Recorded work of an emulated device, and work that its streams run later.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use super::streams::ShuffledStreams;
use crate::arguments::Arguments;
use crate::driver::{Address, Function, Launch, Stream};

/// The work queued since a recording began; `None` while nothing is recorded.
pub(super) type Recording = Rc<RecordingCell>;

/// The same, shared by the device and its library.
#[derive(Default)]
pub(super) struct RecordingCell {
    pub(super) commands: RefCell<Option<Vec<RecordedCommand>>>,
    /// Shuffled streams, and the lane in use.
    pub(super) shuffled: OnceCell<(Rc<ShuffledStreams>, Rc<Cell<usize>>)>,
}

impl RecordingCell {
    /// Performs a library's work, queues it, or records it.
    pub(super) fn call(&self, call: Rc<dyn Fn()>) {
        match (&mut *self.commands.borrow_mut(), self.shuffled.get()) {
            (Some(recording), _) => recording.push(RecordedCommand::Call(call)),
            (None, Some((streams, lane))) => streams.push(Stream::Compute, lane.get(), RecordedCommand::Call(call)),
            (None, None) => call(),
        }
    }
}

/// A recorded or queued operation.
#[derive(Clone)]
pub(super) enum RecordedCommand {
    Launch(Function, Launch, Box<Arguments>),
    Copy { target: Address, source: *const u8, bytes: usize },
    Download { target: *mut u8, source: Address, bytes: usize },
    Fill { target: Address, byte: u8, bytes: usize },
    Call(Rc<dyn Fn()>),
}

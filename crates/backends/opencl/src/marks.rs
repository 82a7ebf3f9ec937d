//! Marks: reusable points in queues, used as the engine's events.
//!
//! A marker command of OpenCL costs more than a launch. Commands have events of their own, and
//! queues are in order, so a mark is defined by the commands around it: it has been passed when the
//! last command before it has ended, and time is counted from the start of the first command after
//! it.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::rc::Rc;

use panoply_c_gpu::driver::Event;

use crate::calls::{self, ClResult, Queue};

/// The marks of one driver. They live as long as this list.
#[derive(Default)]
pub(crate) struct Marks {
    #[allow(clippy::vec_box)] // A mark's address is its name.
    all: RefCell<Vec<Box<Mark>>>,
}

/// One mark: the commands around the point where it was last set.
#[derive(Default)]
pub(crate) struct Mark {
    /// The last command before the mark, the number of commands queued by then, and the number of
    /// the queue.
    pub(crate) before: RefCell<Option<Rc<calls::Event>>>,
    place: Cell<u64>,
    pub(crate) line: Cell<usize>,
    /// The first command after the mark, once there is one.
    after: RefCell<Option<Rc<calls::Event>>>,
}

impl Mark {
    /// The start of the first command after the mark, in nanoseconds of the device's clock; `None`
    /// if there is none.
    pub(crate) fn began_at(&self) -> Option<ClResult<u64>> {
        self.after.borrow().as_ref().map(|event| event.began_at())
    }

    /// The end of the last command before the mark; `None` if there is none.
    pub(crate) fn ended_at(&self) -> Option<ClResult<u64>> {
        self.before.borrow().as_ref().map(|event| event.ended_at())
    }
}

impl Marks {
    /// A mark that is not set yet.
    pub(crate) fn add(&self) -> Event {
        let mark = Box::<Mark>::default();
        let name = NonNull::from(&*mark).cast::<c_void>();
        self.all.borrow_mut().push(mark);
        Event(name)
    }

    /// The mark of a name that `add` returned.
    pub(crate) fn get(&self, event: Event) -> &Mark {
        // SAFETY: the name is the address of a box in this list, from which nothing is ever
        // removed.
        unsafe { event.0.cast::<Mark>().as_ref() }
    }
}

/// A queue with the state that its marks need.
pub(crate) struct MarkedQueue {
    queue: Queue,
    number: usize,
    last: RefCell<Option<Rc<calls::Event>>>,
    /// Number of commands that were queued, and that are known to have ended.
    queued: Cell<u64>,
    over: Cell<u64>,
    /// Marks that were set since the last command.
    set: RefCell<Vec<Event>>,
    /// Whether all commands were submitted to the device.
    is_flushed: Cell<bool>,
}

impl MarkedQueue {
    pub(crate) fn new(queue: Queue, number: usize) -> MarkedQueue {
        let (last, set, queued, over) = (RefCell::default(), RefCell::default(), Cell::new(0), Cell::new(0));
        MarkedQueue { queue, number, last, queued, over, set, is_flushed: Cell::new(true) }
    }

    /// Queues a command.
    pub(crate) fn push(
        &self,
        marks: &Marks,
        command: impl FnOnce(&Queue) -> ClResult<calls::Event>,
    ) -> ClResult<Rc<calls::Event>> {
        let event = Rc::new(command(&self.queue)?);
        self.is_flushed.set(false);
        self.queued.set(self.queued.get() + 1);
        for name in self.set.borrow_mut().drain(..) {
            let mark = marks.get(name);
            // The mark may have been set in another queue since.
            if mark.line.get() == self.number {
                *mark.after.borrow_mut() = Some(Rc::clone(&event));
            }
        }
        *self.last.borrow_mut() = Some(Rc::clone(&event));
        Ok(event)
    }

    /// Sets a mark at the current end of the queue.
    pub(crate) fn set(&self, marks: &Marks, name: Event) {
        let mark = marks.get(name);
        mark.before.borrow_mut().clone_from(&self.last.borrow());
        *mark.after.borrow_mut() = None;
        mark.place.set(self.queued.get());
        mark.line.set(self.number);
        let mut set = self.set.borrow_mut();
        if !set.contains(&name) {
            set.push(name);
        }
    }

    /// Whether a mark of this queue has been passed. If the newest command has ended, all before it
    /// have, so one question answers for all of them.
    pub(crate) fn is_past(&self, mark: &Mark) -> ClResult<bool> {
        if mark.place.get() <= self.over.get() {
            return Ok(true);
        }
        if self.last.borrow().as_ref().is_some_and(|last| last.is_past().unwrap_or(false)) {
            self.over.set(self.queued.get());
            return Ok(true);
        }
        let is_past = mark.before.borrow().as_ref().map_or(Ok(true), |before| before.is_past())?;
        if is_past {
            self.over.set(mark.place.get());
        }
        Ok(is_past)
    }

    /// Submits the queued commands, so that they begin. If the driver fails, for example for lack
    /// of memory, waits for the queue instead: some commands may be in flight, and their memory
    /// must not be reused.
    pub(crate) fn flush(&self) -> ClResult<()> {
        if !self.is_flushed.get() {
            self.queue.flush().or_else(|_| self.queue.finish())?;
            self.is_flushed.set(true);
        }
        Ok(())
    }

    /// Waits for all queued commands.
    pub(crate) fn finish(&self) -> ClResult<()> {
        self.is_flushed.set(true);
        self.queue.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_keep_their_names() {
        let marks = Marks::default();
        let names: Vec<Event> = (0..100).map(|_| marks.add()).collect();
        assert!(names.iter().all(|name| marks.get(*name).before.borrow().is_none()));
        assert_ne!(names[0], names[1]);
    }
}

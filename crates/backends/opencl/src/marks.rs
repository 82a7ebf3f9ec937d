//! Points in queues that are marked again and again, as the engine uses its events.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;

use panoply_c_gpu::driver::Event;

use crate::calls;

/// The marks of one driver. A mark lives as long as they do.
#[derive(Default)]
pub(crate) struct Marks {
    #[allow(clippy::vec_box)] // A mark's address is its name.
    all: RefCell<Vec<Box<Mark>>>,
}

/// One mark: where it was last set.
#[derive(Default)]
pub(crate) struct Mark {
    pub(crate) event: RefCell<Option<calls::Event>>,
}

impl Marks {
    /// A mark that was not set yet.
    pub(crate) fn add(&self) -> Event {
        let mark = Box::<Mark>::default();
        let name = NonNull::from(&*mark).cast::<c_void>();
        self.all.borrow_mut().push(mark);
        Event(name)
    }

    /// The mark behind a name that `add` gave.
    pub(crate) fn get(&self, event: Event) -> &Mark {
        // SAFETY: the name is the address of a box in this list, from which nothing is ever taken.
        unsafe { event.0.cast::<Mark>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_keep_their_names() {
        let marks = Marks::default();
        let names: Vec<Event> = (0..100).map(|_| marks.add()).collect();
        assert!(names.iter().all(|name| marks.get(*name).event.borrow().is_none()));
        assert_ne!(names[0], names[1]);
    }
}

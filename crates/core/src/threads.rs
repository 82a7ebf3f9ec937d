//! Threads that share the work of one op. A backend brings them; the crates of domains work with whatever it brings.

/// Threads that share the work of one op.
pub trait Threads {
    /// How many there are.
    fn count(&self) -> usize;

    /// Calls `task` with each number below `tasks`, on any of the threads, and returns when all calls have.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneThread;

impl Threads for OneThread {
    fn count(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }
}

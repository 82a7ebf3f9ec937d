//! Threads that share the work of one op. The backend provides them, and the domain crates run on
//! the threads that they get.

/// Threads that share the work of one op.
pub trait Threads {
    /// Number of threads.
    fn count(&self) -> usize;

    /// Calls `task` with each number below `tasks`, on any of the threads, and returns when all
    /// calls have returned.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// Runs all tasks on the calling thread.
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

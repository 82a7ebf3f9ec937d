//! Counts the pipeline threads of this process.

use std::sync::{Mutex, MutexGuard};

use crate::support::eventually;

/// Threads are counted in the whole process, so only one test runs at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Number of pipeline threads; 0 if the system does not report it.
pub fn pipeline_threads() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.starts_with("pipeline-")).count()
}

pub fn expect_no_threads() {
    eventually("every thread has ended", || pipeline_threads() == 0);
}

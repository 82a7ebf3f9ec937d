//! How many threads of pipelines a process has.

use std::sync::{Mutex, MutexGuard};

use super::eventually;

/// Threads are counted in the whole process: one test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// How many threads of pipelines there are, where the system tells.
pub fn pipeline_threads() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.starts_with("pipeline-")).count()
}

pub fn expect_no_threads() {
    eventually("every thread has ended", || pipeline_threads() == 0);
}

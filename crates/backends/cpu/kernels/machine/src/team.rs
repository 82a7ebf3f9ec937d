//! A fork-join team of threads for one op at a time.
//!
//! The engine's worker thread owns the team and takes part in every job. The rules:
//!
//! 1. A job is a closure and a number of tasks. An idle thread claims the next task index from one
//!    counter, so a slow or pre-empted thread costs at most one task's time.
//! 2. `gate` holds the job's number, an OPEN bit and the count of helpers inside. A helper enters
//!    by adding one while OPEN is set; the owner clears OPEN when no task is left and then waits
//!    only for the helpers that are inside. A helper that wakes too late finds the gate closed and
//!    does nothing: small jobs never wait for a sleeping thread.
//! 3. The closure is borrowed from the owner's stack. It is reachable only between opening the gate
//!    and the moment the count inside returns to zero, and `run` does not return before that.
//! 4. Helpers spin briefly for the next job, then park. `sleeping` is set before the last look at
//!    the gate, and the owner looks at it after opening the gate (both sequentially consistent), so
//!    a wake-up is never lost.
//! 5. A panic in a task is caught where it happens and resumed on the owner once all helpers have
//!    left.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle helper spins before it parks. Back-to-back ops arrive within this time.
const SPIN_US_MAX: u64 = 60;

/// After this time an idle helper yields its CPU: the caller that brings the next op may need it.
const YIELD_AFTER_US: u64 = 5;

/// Maximal number of threads of a team.
pub const THREADS_MAX: usize = 1024;

const OPEN: u64 = 1 << 31;
const INSIDE_MASK: u64 = OPEN - 1;
const STOP: u64 = u64::MAX;

/// Threads that share the work of one op. Not `Sync`: one thread owns it and gives it one job at a
/// time.
pub struct Team {
    shared: Arc<SharedTeam>,
    helpers: Vec<JoinHandle<()>>,
    job_number: Cell<u32>,
    not_sync: PhantomData<Cell<()>>,
}

type TaskFn<'a> = &'a (dyn Fn(usize) + Sync + 'a);

struct SharedTeam {
    gate: AtomicU64,
    next: AtomicUsize,
    tasks: AtomicUsize,
    job: UnsafeCell<Option<TaskFn<'static>>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleeping: Vec<AtomicBool>,
}

// SAFETY: `job` is written by the owner only while the gate is closed and no helper is inside
// (rules 2 and 3), and read by helpers only while they are inside; every other field is
// synchronised by itself.
unsafe impl Sync for SharedTeam {}
// SAFETY: the task pointer refers to a `Sync` closure, so it may be used from any thread.
unsafe impl Send for SharedTeam {}

impl Team {
    /// A team of `threads` threads, including the caller: at least 1 and at most [`THREADS_MAX`].
    /// Helpers inherit the CPU affinity of the calling thread. If the system refuses more threads,
    /// the team is smaller.
    pub fn new(threads: usize) -> Team {
        let helpers_wanted = threads.clamp(1, THREADS_MAX) - 1;
        let shared = Arc::new(SharedTeam {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            sleeping: (0..helpers_wanted).map(|_| AtomicBool::new(false)).collect(),
        });
        let helpers = (0..helpers_wanted)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("panoply-cpu-{}", index + 1);
                std::thread::Builder::new().name(name).spawn(move || shared.help(index)).ok()
            })
            .collect();
        Team { shared, helpers, job_number: Cell::new(0), not_sync: PhantomData }
    }

    /// A team of the calling thread alone.
    pub fn single() -> Team {
        Team::new(1)
    }

    /// Number of threads that work on a job.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `task(0)`, …, `task(tasks - 1)`, each exactly once, on any thread of the team, and
    /// returns when all have returned. Tasks start in this order, so a task may wait for earlier
    /// ones; they may finish in any order. A panic in a task is resumed here after the others are
    /// done.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        self.open(tasks, task);
        self.shared.work(task);
        self.close();
        let panic = self.shared.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Splits `0..len` into runs of whole multiples of `grain` (the last may be shorter), about
    /// four for each thread, and calls `body` with each. A `len` of at most `grain` runs on the
    /// calling thread alone.
    pub fn run_ranges(&self, len: usize, grain: usize, body: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let grain = grain.max(1);
        let grains = len.div_ceil(grain);
        let pieces = grains.min(if self.helpers.is_empty() { 1 } else { self.threads() * 4 });
        if pieces <= 1 {
            if len > 0 {
                body(0..len);
            }
            return;
        }
        let piece = grains.div_ceil(pieces) * grain;
        self.run(len.div_ceil(piece), &|index| {
            let start = index * piece;
            body(start..len.min(start + piece));
        });
    }

    fn open(&self, tasks: usize, task: TaskFn<'_>) {
        let number = self.job_number.get().wrapping_add(1);
        self.job_number.set(number);
        // SAFETY: the gate is closed and empty (the previous `close` ensured it), so no helper
        // reads the cell. The lifetime is extended only until `close` returns, within the life of
        // the borrow (rule 3).
        unsafe { *self.shared.job.get() = Some(std::mem::transmute::<TaskFn<'_>, TaskFn<'static>>(task)) };
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.tasks.store(tasks, Ordering::Relaxed);
        self.shared.gate.store((u64::from(number) << 32) | OPEN, Ordering::Release);
        fence(Ordering::SeqCst);
        for (helper, sleeping) in self.helpers.iter().zip(&self.shared.sleeping).take(tasks - 1) {
            if sleeping.load(Ordering::Relaxed) {
                helper.thread().unpark();
            }
        }
    }

    fn close(&self) {
        self.shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.shared.gate.load(Ordering::Acquire) & INSIDE_MASK != 0 {
            spins += 1;
            if spins < 20_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl panoply_core::Threads for Team {
    fn count(&self) -> usize {
        self.threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        Team::run(self, tasks, task);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.gate.store(STOP, Ordering::SeqCst);
        self.helpers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        for helper in self.helpers.drain(..) {
            // A helper's panics are caught inside it; there is nothing more to learn from joining.
            let _ = helper.join();
        }
    }
}

impl SharedTeam {
    /// Claims and runs tasks until none is left. Panics are stored for the owner.
    fn work(&self, task: TaskFn<'_>) {
        let tasks = self.tasks.load(Ordering::Relaxed);
        let run = AssertUnwindSafe(|| {
            loop {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                if index >= tasks {
                    break;
                }
                task(index);
            }
        });
        if let Err(panic) = catch_unwind(run) {
            self.next.store(tasks, Ordering::Relaxed);
            *self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(panic);
        }
    }

    fn help(&self, index: usize) {
        let mut seen = 0_u32;
        while let Some(number) = self.wait_for_job(index, seen) {
            seen = number;
            // SAFETY: this helper is inside, so the owner keeps the closure alive and the cell
            // unchanged (rule 3).
            let job = unsafe { *self.job.get() };
            if let Some(task) = job {
                self.work(task);
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a job newer than `seen` and enters it. `None` means that the team is being
    /// dropped.
    fn wait_for_job(&self, index: usize, seen: u32) -> Option<u32> {
        let mut idle_since = Instant::now();
        let mut spins = 0_u32;
        loop {
            let gate = self.gate.load(Ordering::Acquire);
            if gate == STOP {
                return None;
            }
            let number = (gate >> 32) as u32;
            if number != seen && gate & OPEN != 0 {
                if self.gate.compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Some(number);
                }
                continue;
            }
            spins += 1;
            if !spins.is_multiple_of(64) {
                std::hint::spin_loop();
                continue;
            }
            let idle = idle_since.elapsed();
            if idle < Duration::from_micros(SPIN_US_MAX) {
                if idle > Duration::from_micros(YIELD_AFTER_US) {
                    std::thread::yield_now();
                }
                continue;
            }
            self.sleeping[index].store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.gate.load(Ordering::Relaxed) == gate {
                std::thread::park();
            }
            self.sleeping[index].store(false, Ordering::Relaxed);
            idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        let team = Team::new(4);
        for tasks in [0, 1, 2, 3, 7, 100] {
            for _ in 0..200 {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parked_helpers_wake_for_the_next_job() {
        let team = Team::new(2);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(2));
            let sum = AtomicUsize::new(0);
            team.run(64, &|index| {
                sum.fetch_add(index, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 63 * 64 / 2);
        }
    }

    #[test]
    fn ranges_cover_everything_once() {
        let team = Team::new(3);
        for len in [0, 1, 15, 16, 17, 1000] {
            let counts: Vec<AtomicUsize> = (0..len).map(|_| AtomicUsize::new(0)).collect();
            team.run_ranges(len, 16, &|range| {
                assert_eq!(range.start % 16, 0);
                for count in &counts[range] {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_owner_and_the_team_lives_on() {
        let team = Team::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| team.run(8, &|index| assert_ne!(index, 5, "task five"))));
        assert!(caught.is_err());
        let ran = AtomicUsize::new(0);
        team.run(8, &|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.load(Ordering::Relaxed), 8);
    }
}

//! Threads with deadlines: how they are scheduled before all others, and a clock that counts the
//! deadlines they missed all the same.
//!
//! A thread requests a scheduling `Policy` ([`Policy::enter`]) and receives a [`Standing`]:
//! requests that the system does not permit become notes, and the thread goes on without them. A
//! [`Ticker`] wakes the thread at every period and counts late work, without hiding skipped
//! periods.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use panoply_core::cpu_set::CpuSet;

use super::affinity::{self, RealtimePriority};
use super::error::PlacementError;
use super::histogram::Histogram;

/// The scheduling that a thread with deadlines requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Run before every normal thread (`SCHED_FIFO`).
    pub priority: Option<RealtimePriority>,
    /// Run on these CPUs alone. CPUs that are kept free of other threads (`isolcpus`) are best.
    pub cpus: Option<CpuSet>,
    /// Lock all present and future memory of the process in RAM.
    pub lock_memory: bool,
}

/// The granted and refused parts of a `Policy`. `None` if a part was not requested.
#[derive(Debug, Default)]
pub struct Standing {
    /// The priority.
    pub priority: Option<Result<RealtimePriority, PlacementError>>,
    /// The CPUs.
    pub cpus: Option<Result<CpuSet, PlacementError>>,
    /// Whether memory is locked.
    pub memory: Option<Result<(), PlacementError>>,
}

impl Policy {
    /// Requests everything, at the priority for signal workers, on any CPU.
    pub fn signal() -> Policy {
        Policy { priority: Some(RealtimePriority::SIGNAL), cpus: None, lock_memory: true }
    }

    /// Restricts the policy to these CPUs.
    pub fn on(mut self, cpus: CpuSet) -> Policy {
        self.cpus = Some(cpus);
        self
    }

    /// Applies as much of the policy to the calling thread as the system permits. A worker calls it
    /// in its `init`.
    pub fn enter(&self) -> Standing {
        // A normal thread would otherwise sleep longer than requested.
        let _ = affinity::sleep_precisely();
        Standing {
            cpus: self.cpus.as_ref().map(affinity::pin_current),
            memory: self.lock_memory.then(affinity::lock_memory),
            priority: self.priority.map(|priority| affinity::set_realtime(priority).map(|()| priority)),
        }
    }
}

impl Standing {
    /// Whether everything was permitted.
    pub fn is_whole(&self) -> bool {
        self.notes().is_empty()
    }

    /// The refused parts, and how to get them permitted.
    pub fn notes(&self) -> Vec<String> {
        let errors = [
            self.priority.as_ref().and_then(|got| got.as_ref().err()),
            self.cpus.as_ref().and_then(|got| got.as_ref().err()),
            self.memory.as_ref().and_then(|got| got.as_ref().err()),
        ];
        errors.into_iter().flatten().map(ToString::to_string).collect()
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.priority {
            Some(Ok(priority)) => write!(out, "SCHED_FIFO {}", priority.get())?,
            _ => write!(out, "the usual priority")?,
        }
        if let Some(Ok(cpus)) = &self.cpus {
            write!(out, ", CPUs {cpus}")?;
        }
        if let Some(Ok(())) = self.memory {
            write!(out, ", memory locked")?;
        }
        self.notes().iter().try_for_each(|note| write!(out, "; {note}"))
    }
}

/// Statistics of a thread's deadlines.
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// Periods whose work was done in time.
    pub met: u64,
    /// Periods whose work was done too late.
    pub missed: u64,
    /// Periods that passed while the work of an earlier one was still going on, so that they were
    /// never begun.
    pub overruns: u64,
    /// How late the thread woke, in nanoseconds.
    pub jitter_ns: Histogram,
    /// How many of the missed and skipped periods were not the thread's own fault: its work took no
    /// more CPU time than a period has, but another thread, an interrupt, or the host of a virtual
    /// machine had the CPU meanwhile. 0 if the system does not report a thread's CPU time.
    pub kept_off: u64,
    /// How long the work took, in nanoseconds.
    pub work_ns: Histogram,
    /// How much CPU time the work took, in nanoseconds. Empty if the system does not report it.
    pub own_ns: Histogram,
}

impl Deadlines {
    /// The fraction of all periods whose work was done in time. 1 if there were none.
    pub fn share_met(&self) -> f64 {
        let all = self.met + self.missed + self.overruns;
        if all == 0 { 1.0 } else { self.met as f64 / all as f64 }
    }
}

/// Wakes its thread at every period. The work of a period is due when the next one begins.
#[derive(Clone, Debug)]
pub struct Ticker {
    period: Duration,
    due: Instant,
    woken: Instant,
    /// The thread's CPU time when it woke.
    own: Option<Duration>,
    /// Whether the thread is late because its own work took too long, in this period or in those
    /// right before it.
    to_blame: bool,
    deadlines: Deadlines,
}

/// The shortest period.
pub const PERIOD_MIN: Duration = Duration::from_micros(10);

impl Ticker {
    /// A ticker whose first period begins one period from now. Periods are clamped to
    /// [`PERIOD_MIN`] and one hour.
    pub fn new(period: Duration) -> Ticker {
        let period = period.clamp(PERIOD_MIN, Duration::from_secs(3600));
        let now = Instant::now();
        let deadlines = Deadlines {
            met: 0,
            missed: 0,
            overruns: 0,
            kept_off: 0,
            jitter_ns: Histogram::default(),
            work_ns: Histogram::default(),
            own_ns: Histogram::default(),
        };
        Ticker { period, due: now + period, woken: now, own: None, to_blame: false, deadlines }
    }

    /// Sleeps until the next period begins. Returns how late it woke.
    pub fn wait(&mut self) -> Duration {
        let mut now = Instant::now();
        self.to_blame &= now >= self.due;
        while now < self.due {
            thread::sleep(self.due - now);
            now = Instant::now();
        }
        let late = now - self.due;
        self.deadlines.jitter_ns.add(nanoseconds(late));
        self.woken = now;
        self.own = affinity::own_time();
        late
    }

    /// Ends the work of the period. Returns whether it was in time. Periods that have passed
    /// meanwhile are counted as overruns.
    pub fn done(&mut self) -> bool {
        let now = Instant::now();
        let took = now - self.woken;
        let own = self.own.zip(affinity::own_time()).map(|(before, now)| now.saturating_sub(before));
        self.deadlines.work_ns.add(nanoseconds(took));
        if let Some(own) = own {
            self.deadlines.own_ns.add(nanoseconds(own));
        }
        self.to_blame |= own.unwrap_or(took) > self.period;
        self.due += self.period;
        let in_time = now <= self.due;
        match in_time {
            true => self.deadlines.met += 1,
            false => self.deadlines.missed += 1,
        }
        let passed = now.saturating_duration_since(self.due).as_nanos() / self.period.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.deadlines.overruns += u64::from(passed);
        if !in_time && own.is_some() && !self.to_blame {
            self.deadlines.kept_off += 1 + u64::from(passed);
        }
        self.due += self.period * passed;
        in_time
    }

    /// The statistics so far.
    pub fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_permitted_is_a_note() {
        let standing = std::thread::spawn(|| {
            let nowhere = CpuSet::from_cpus([panoply_core::cpu_set::CPU_MAX]).unwrap();
            Policy { priority: None, cpus: Some(nowhere), lock_memory: false }.enter()
        });
        let standing = standing.join().unwrap();
        assert!(!standing.is_whole() && standing.notes().len() == 1, "{standing}");
        assert!(Policy::default().enter().is_whole());
        // Locking memory would affect every other test as well.
        let fast = Policy { lock_memory: false, ..Policy::signal() };
        let all = std::thread::spawn(move || fast.enter()).join().unwrap();
        // Either it is granted, or the note names the missing permission.
        assert!(all.is_whole() || all.notes().iter().all(|note| !note.is_empty()), "{all}");
    }

    #[test]
    fn work_that_takes_too_long_is_the_threads_own_fault() {
        let Some(begin) = affinity::own_time() else { return };
        let mut ticker = Ticker::new(Duration::from_millis(2));
        ticker.wait();
        while affinity::own_time().is_some_and(|now| now - begin < Duration::from_millis(9)) {
            std::hint::spin_loop();
        }
        assert!(!ticker.done());
        let deadlines = ticker.deadlines();
        assert!(deadlines.overruns >= 3, "{deadlines:?}");
        assert_eq!(deadlines.kept_off, 0, "{deadlines:?}");
        assert!(deadlines.own_ns.max() > 7_000_000, "{deadlines:?}");
    }

    #[test]
    fn late_work_and_periods_that_passed_are_counted() {
        let mut ticker = Ticker::new(Duration::from_millis(200));
        ticker.wait();
        assert!(ticker.done());
        ticker.wait();
        thread::sleep(Duration::from_millis(900));
        assert!(!ticker.done());
        let deadlines = ticker.deadlines();
        assert_eq!((deadlines.met, deadlines.missed), (1, 1));
        assert!(deadlines.overruns >= 3, "{deadlines:?}");
        assert!(deadlines.share_met() < 0.5 && deadlines.work_ns.max() >= 900_000_000);
        assert_eq!(deadlines.jitter_ns.count(), 2);
        // The thread slept, so its own work would have been in time.
        if affinity::own_time().is_some() {
            assert_eq!(deadlines.kept_off, 1 + deadlines.overruns);
            assert!(deadlines.own_ns.max() < 200_000_000, "{deadlines:?}");
        }
        // The next period begins in the future.
        let begin = Instant::now();
        ticker.wait();
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}

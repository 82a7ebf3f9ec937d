//! Pins and schedules the calling thread as planned.
//!
//! Every function acts on the calling thread alone, except `lock_memory`. On systems other than
//! Linux they compile and return [`PlacementError::Unsupported`]; a worker then runs wherever the
//! system puts it, which is slower but correct.

use std::time::Duration;

use panoply_core::cpu_set::CpuSet;

use super::error::PlacementError;

#[cfg(target_os = "linux")]
use super::sys_linux as sys;
#[cfg(not(target_os = "linux"))]
use super::sys_other as sys;

/// The CPUs that the calling thread may run on.
pub fn current() -> Result<CpuSet, PlacementError> {
    sys::affinity()
}

/// Lets the calling thread run on these CPUs only, and returns the CPUs that the system really
/// granted. The system leaves out CPUs that are offline or outside the process's cpuset, and
/// refuses when none is left.
pub fn pin_current(cpus: &CpuSet) -> Result<CpuSet, PlacementError> {
    if cpus.is_empty() {
        return Err(PlacementError::EmptyCpuSet);
    }
    sys::set_affinity(cpus)?;
    sys::affinity()
}

/// Lets the calling thread run wherever the process's first thread may run. For helper threads of a
/// worker with a core of its own, since a thread inherits the CPUs of the one that starts it.
pub fn leave_core() -> Result<CpuSet, PlacementError> {
    pin_current(&sys::affinity_of_process()?)
}

/// Makes short sleeps of the calling thread end when they are due. Otherwise the system extends
/// them by some 50 µs, so that other timers can expire together with them.
pub fn sleep_precisely() -> Result<(), PlacementError> {
    sys::set_timer_slack_min()
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduling {
    /// Shares its CPU with all other threads.
    Normal,
    /// `SCHED_FIFO`: runs until it blocks, before every normal thread.
    Realtime(RealtimePriority),
    /// Some other policy, set from outside.
    Other,
}

/// A real-time priority: 1 is the lowest, 99 the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RealtimePriority(u8);

impl RealtimePriority {
    /// The lowest priority.
    pub const MIN: RealtimePriority = RealtimePriority(1);
    /// The highest priority. The kernel's own housekeeping runs at this priority, so workers should
    /// stay below.
    pub const MAX: RealtimePriority = RealtimePriority(99);
    /// For signal workers: above normal threads, at the level of the kernel's interrupt threads.
    pub const SIGNAL: RealtimePriority = RealtimePriority(50);

    /// A priority from 1 to 99.
    pub fn new(priority: u8) -> Result<RealtimePriority, PlacementError> {
        let (min, max) = (RealtimePriority::MIN.0, RealtimePriority::MAX.0);
        if (min..=max).contains(&priority) {
            Ok(RealtimePriority(priority))
        } else {
            Err(PlacementError::PriorityOutOfRange { min, max, got: priority })
        }
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// Runs the calling thread at a real-time priority from now on. A worker that spins at such a
/// priority starves every normal thread on its CPU, so it must block when it has nothing to do.
pub fn set_realtime(priority: RealtimePriority) -> Result<(), PlacementError> {
    sys::set_realtime(priority)
}

/// Makes the calling thread, and threads that it starts later, give way to normal threads: those
/// get the CPU first, and several times as much of it.
pub fn give_way() -> Result<(), PlacementError> {
    sys::give_way()
}

/// Lets the calling thread, and threads that it starts later, interrupt threads that compute as
/// soon as they are woken: they ask for short slices of a CPU instead of more of it. Linux heeds
/// this from version 6.12 on. A thread that is not scheduled normally is left as it is.
pub fn take_short_slices() -> Result<(), PlacementError> {
    if scheduling()? != Scheduling::Normal {
        return Ok(());
    }
    sys::set_slice_min()
}

/// Runs the calling thread as a normal thread again.
pub fn set_normal() -> Result<(), PlacementError> {
    sys::set_normal()
}

/// Locks all present and future memory of the process in RAM, so that no access waits for a disk.
pub fn lock_memory() -> Result<(), PlacementError> {
    sys::lock_memory()
}

/// How long the calling thread has run on any CPU. Time that a host has taken from a virtual
/// machine is left out if the system knows of it.
pub fn own_time() -> Option<Duration> {
    sys::own_time()
}

/// How long the calling thread was ready to run while other threads of this machine ran. `None` if
/// the system does not report it.
pub fn waited_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// The stolen time since boot, with a resolution of 1/100 s: how long a thread of this machine, or
/// of one of its CPUs, was ready to run while the host of the virtual machine ran something else. 0
/// if there is no host, `None` if the system does not report it.
pub fn stolen_time(cpu: Option<usize>) -> Option<Duration> {
    let table = std::fs::read_to_string("/proc/stat").ok()?;
    stolen_of(&table, cpu, sys::ticks_per_second()?)
}

/// Parses the stolen time, which is the eighth number of a line, in ticks.
fn stolen_of(table: &str, cpu: Option<usize>, ticks_per_second: u64) -> Option<Duration> {
    let name = cpu.map_or_else(|| "cpu".to_owned(), |cpu| format!("cpu{cpu}"));
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(&name))?;
    let ticks: u64 = line.split_whitespace().nth(8)?.parse().ok()?;
    (ticks_per_second > 0).then(|| Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

/// How the calling thread is scheduled.
pub fn scheduling() -> Result<Scheduling, PlacementError> {
    sys::scheduling()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_and_says_so() {
        let allowed = current().unwrap();
        let pinned = std::thread::spawn(|| {
            let allowed = current().unwrap();
            for cpu in &allowed {
                let one = CpuSet::from_cpus([cpu]).unwrap();
                assert_eq!(pin_current(&one).unwrap(), one);
                assert_eq!(current().unwrap(), one);
                assert_eq!(rustix::thread::sched_getcpu(), cpu);
            }
            pin_current(&allowed).unwrap()
        });
        assert_eq!(pinned.join().unwrap(), allowed);
        assert_eq!(current().unwrap(), allowed, "other threads stay where they were");
    }

    #[test]
    fn a_helper_leaves_the_core_of_the_thread_that_started_it() {
        let allowed = current().unwrap();
        std::thread::spawn(move || {
            let one = CpuSet::from_cpus([allowed.first().unwrap()]).unwrap();
            pin_current(&one).unwrap();
            let helper = std::thread::spawn(|| (current().unwrap(), leave_core().unwrap()));
            assert_eq!(helper.join().unwrap(), (one.clone(), allowed));
            assert_eq!(current().unwrap(), one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinning_to_nothing_or_to_cpus_that_do_not_exist_is_refused() {
        assert!(matches!(pin_current(&CpuSet::new()), Err(PlacementError::EmptyCpuSet)));
        let before = current().unwrap();
        let beyond = CpuSet::from_cpus([8191]).unwrap();
        if !before.contains(8191) {
            let error = pin_current(&beyond).unwrap_err();
            assert!(matches!(&error, PlacementError::PinRefused { expected, .. } if *expected == beyond), "{error}");
            assert_eq!(current().unwrap(), before);
        }
    }

    #[test]
    fn threads_that_give_way_or_take_short_slices_are_set_up_alone() {
        let nice = || rustix::process::nice(0).unwrap();
        let before = nice();
        let short = std::thread::spawn(move || {
            take_short_slices().unwrap();
            (scheduling().unwrap(), nice())
        });
        assert_eq!(short.join().unwrap(), (Scheduling::Normal, before));
        let patient = std::thread::spawn(move || {
            give_way().unwrap();
            take_short_slices().unwrap();
            (scheduling().unwrap(), nice())
        });
        assert_eq!(patient.join().unwrap(), (Scheduling::Other, before.max(10)));
        assert_eq!((scheduling().unwrap(), nice()), (Scheduling::Normal, before));
    }

    #[test]
    fn sleeps_become_precise_on_this_thread_alone() {
        let before = rustix::thread::current_timer_slack().unwrap();
        let there = std::thread::spawn(|| {
            sleep_precisely().unwrap();
            rustix::thread::current_timer_slack().unwrap()
        });
        assert_eq!(there.join().unwrap(), 1);
        assert_eq!(rustix::thread::current_timer_slack().unwrap(), before);
    }

    #[test]
    fn stolen_time_is_read_of_the_machine_and_of_a_cpu() {
        let table = "cpu  1 2 3 4 5 6 7 850 9 0\ncpu0 1 1 1 1 1 1 1 800 0 0\ncpu1 1 1 1 1 1 1 1 50\ncpu2 1 1\nintr 5\n";
        assert_eq!(stolen_of(table, None, 100), Some(Duration::from_millis(8500)));
        assert_eq!(stolen_of(table, Some(1), 100), Some(Duration::from_millis(500)));
        for (table, cpu) in [(table, Some(2)), (table, Some(3)), ("", None), ("cpu 1 2 3 4 5 6 7 x", None)] {
            assert_eq!(stolen_of(table, cpu, 100), None);
        }
        assert_eq!(stolen_of(table, None, 0), None);
        let (before, after) = (stolen_time(None), stolen_time(None));
        assert!(before <= after, "{before:?} {after:?}");
    }

    #[test]
    fn a_threads_own_time_leaves_out_its_sleep() {
        let before = own_time().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(own_time().unwrap() - before < Duration::from_millis(50));
        let waited = waited_time();
        assert!(waited <= waited_time(), "{waited:?}");
    }

    #[test]
    fn realtime_works_or_says_what_is_missing() {
        assert!(matches!(
            RealtimePriority::new(0),
            Err(PlacementError::PriorityOutOfRange { min: 1, max: 99, got: 0 })
        ));
        assert!(RealtimePriority::new(100).is_err());
        std::thread::spawn(|| {
            let priority = RealtimePriority::MIN;
            match set_realtime(priority) {
                Ok(()) => {
                    assert_eq!(scheduling().unwrap(), Scheduling::Realtime(priority));
                    set_normal().unwrap();
                    assert_eq!(scheduling().unwrap(), Scheduling::Normal);
                }
                Err(error @ PlacementError::RealtimeDenied { .. }) => {
                    eprintln!("real-time priorities are not permitted here: {error}");
                    assert_eq!(scheduling().unwrap(), Scheduling::Normal);
                }
                Err(error) => panic!("{error}"),
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_without_the_capability_is_refused_at_a_limit_of_zero() {
        use rustix::process::{Resource, getrlimit};
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        if getrlimit(Resource::Rtprio).current != Some(0) {
            eprintln!("skipped: RLIMIT_RTPRIO permits real-time priorities to everybody here");
            return;
        }
        std::thread::spawn(|| {
            // Capabilities belong to the thread: the other tests keep theirs.
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::SYS_NICE;
            set_capabilities(None, sets).unwrap();
            let error = set_realtime(RealtimePriority::SIGNAL).unwrap_err();
            assert!(
                matches!(
                    error,
                    PlacementError::RealtimeDenied { priority: 50, rtprio_limit: Some(0), has_cap_sys_nice: false }
                ),
                "{error:?}"
            );
            assert_eq!(scheduling().unwrap(), Scheduling::Normal);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_refusal_names_capability_and_limit() {
        let denied = |rtprio_limit, has_cap_sys_nice| {
            PlacementError::RealtimeDenied { priority: 50, rtprio_limit, has_cap_sys_nice }.to_string()
        };
        for word in ["CAP_SYS_NICE", "RLIMIT_RTPRIO is 0", "ulimit -r 50"] {
            assert!(denied(Some(0), false).contains(word), "{}", denied(Some(0), false));
        }
        assert!(denied(Some(0), true).contains("rt_runtime_us"));
        assert!(denied(None, false).contains("rt_runtime_us"));
    }
}

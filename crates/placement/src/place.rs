//! Where one worker's thread runs, as planned, and what the system has granted of it.
//!
//! A thread asks for its place at two moments. [`WorkerPlace::begin`] comes before the worker opens
//! its device: a worker with a core of its own may then run on all CPUs near the device, because
//! the driver starts threads that inherit the CPUs and the priority. [`WorkerPlace::settle`] comes
//! after that, and moves the worker to its core. A worker without a core of its own, such as one
//! that computes with a team of threads, is placed at once, and its team inherits the place.

use panoply_core::cpu_set::CpuSet;

use super::affinity::{self, RealtimePriority};
use super::realtime::Policy;

/// The planned place of one worker's thread. The default restricts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerPlace {
    /// The CPUs; `None` means every CPU that the process may use.
    pub cpus: Option<CpuSet>,
    /// The CPUs near the device, for the time in which the device is opened.
    pub near: Option<CpuSet>,
    /// The NUMA node; `None` means any.
    pub node: Option<u32>,
    /// Whether no other worker uses the core.
    pub own_core: bool,
    /// Whether the CPU is isolated.
    pub isolated: bool,
    /// The real-time priority of the thread.
    pub realtime: Option<RealtimePriority>,
    /// Wishes that the plan could not meet.
    pub notes: Vec<String>,
}

/// The place that a worker's thread got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPUs that the thread may run on; `None` if it was not restricted.
    pub cpus: Option<CpuSet>,
    /// The NUMA node of the CPUs; `None` means any.
    pub node: Option<u32>,
    /// Whether no other worker uses the core.
    pub own_core: bool,
    /// Whether the CPU is isolated.
    pub isolated: bool,
    /// The real-time priority, if the thread has one.
    pub realtime: Option<RealtimePriority>,
    /// Wishes that the plan or the system has not granted, and what would grant them.
    pub notes: Vec<String>,
}

impl WorkerPlace {
    /// Prepares the calling thread for opening its device.
    pub fn begin(&self) -> Placement {
        if !self.own_core {
            return self.enter();
        }
        if self.realtime.is_some() {
            // Only a device that is opened again finds a priority here. A system that refuses the
            // normal one has refused the other as well.
            let _ = affinity::set_normal();
        }
        if let Some(near) = &self.near {
            // A refusal is noted when the thread goes to its core.
            let _ = affinity::pin_current(near);
        }
        Placement::default()
    }

    /// Moves the calling thread to its place once its device is open. `begun` is the answer of
    /// [`begin`](WorkerPlace::begin).
    pub fn settle(&self, begun: Placement) -> Placement {
        if self.own_core { self.enter() } else { begun }
    }

    /// Applies as much of the place to the calling thread as the system permits.
    fn enter(&self) -> Placement {
        let mut notes = self.notes.clone();
        if self.cpus.is_none() && self.realtime.is_none() {
            return Placement { node: self.node, notes, ..Placement::default() };
        }
        let policy = Policy { priority: self.realtime, cpus: self.cpus.clone(), lock_memory: false };
        let standing = policy.enter();
        notes.extend(standing.notes());
        let cpus = standing.cpus.and_then(Result::ok);
        let is_there = cpus.is_some();
        Placement {
            cpus,
            node: self.node,
            own_core: self.own_core && is_there,
            isolated: self.isolated && is_there,
            realtime: standing.priority.and_then(Result::ok),
            notes,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::affinity::{Scheduling, scheduling};

    #[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
    fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(run).join().unwrap()
    }

    #[test]
    fn a_worker_with_its_own_core_goes_there_after_its_device_is_open() {
        let (near, first) = on_a_thread(|| {
            let near = affinity::current().unwrap();
            let first = CpuSet::from_cpus([near.first().unwrap()]).unwrap();
            (near, first)
        });
        let place = WorkerPlace { cpus: Some(first.clone()), near: Some(near.clone()), ..WorkerPlace::default() };
        let place = WorkerPlace { own_core: true, notes: vec!["planned".to_owned()], ..place };
        on_a_thread(move || {
            for _ in 0..2 {
                let begun = place.begin();
                assert_eq!(affinity::current().unwrap(), near, "the driver's threads may run near the device");
                let placement = place.settle(begun);
                assert_eq!((affinity::current().unwrap(), &placement.cpus), (first.clone(), &Some(first.clone())));
                assert!(placement.own_core && placement.notes == ["planned"], "{placement:?}");
            }
        });
    }

    #[test]
    fn a_shared_place_counts_from_the_beginning_and_the_default_changes_nothing() {
        on_a_thread(|| {
            let before = affinity::current().unwrap();
            assert_eq!(WorkerPlace::default().begin(), Placement::default());
            assert_eq!(affinity::current().unwrap(), before);
            let first = CpuSet::from_cpus([before.first().unwrap()]).unwrap();
            let place = WorkerPlace { cpus: Some(first.clone()), ..WorkerPlace::default() };
            let begun = place.begin();
            assert_eq!(affinity::current().unwrap(), first);
            assert_eq!(place.settle(begun.clone()), begun);
        });
    }

    #[test]
    fn a_refused_wish_is_a_note_and_a_granted_priority_shows() {
        let place = WorkerPlace { realtime: Some(RealtimePriority::MIN), ..WorkerPlace::default() };
        let (placement, scheduled) = on_a_thread(move || (place.begin(), scheduling().unwrap()));
        match placement.realtime {
            Some(priority) => assert_eq!(scheduled, Scheduling::Realtime(priority)),
            None => assert!(placement.notes[0].contains("SCHED_FIFO"), "{placement:?}"),
        }
        let nowhere = CpuSet::from_cpus([panoply_core::cpu_set::CPU_MAX]).unwrap();
        let place = WorkerPlace { cpus: Some(nowhere), own_core: true, ..WorkerPlace::default() };
        let placement = on_a_thread(move || place.settle(place.begin()));
        assert!(!placement.own_core && placement.notes[0].contains("cannot pin"), "{placement:?}");
    }
}

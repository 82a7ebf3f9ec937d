//! The errors of placing workers. A gap in the topology is not an error but a note.

use std::io;

use panoply_core::cpu_set::CpuSet;
use panoply_core::device::PciAddress;

use super::request::Role;

/// Why a plan cannot be made or a thread cannot be placed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// A worker is pinned to a CPU that is not running.
    #[error("{role} worker pinned to CPU {got}: expected one of the online CPUs {expected}")]
    PinnedOffline {
        /// The worker's role.
        role: Role,
        /// The CPUs that are online.
        expected: CpuSet,
        /// The CPU asked for.
        got: usize,
    },
    /// A worker is pinned to a CPU that this process may not use.
    #[error("{role} worker pinned to CPU {got}: expected one of the CPUs allowed to this process, {expected}")]
    PinnedNotAllowed {
        /// The worker's role.
        role: Role,
        /// The CPUs that the affinity mask and the control group leave to the process.
        expected: CpuSet,
        /// The CPU asked for.
        got: usize,
    },
    /// Two demands are pinned to the same CPU.
    #[error("CPU {cpu}: expected one pinned worker, got one for {first} and one for {second}")]
    PinnedTwice {
        /// The CPU that both ask for.
        cpu: usize,
        /// The earlier demand's role.
        first: Role,
        /// The later demand's role.
        second: Role,
    },
    /// A pinned demand asks for several workers, which would take turns on one CPU.
    #[error("{role} pinned to CPU {cpu}: expected 1 worker, got {got}")]
    PinnedWorkers {
        /// The workers' role.
        role: Role,
        /// The CPU asked for.
        cpu: usize,
        /// Workers asked for.
        got: usize,
    },
    /// A demand for no workers at all. Leave the demand out instead.
    #[error("{role} demand{}: expected at least 1 worker, got 0", at(.device))]
    ZeroWorkers {
        /// The workers' role.
        role: Role,
        /// The device that they would serve.
        device: Option<PciAddress>,
    },
    /// More workers in all than a plan holds.
    #[error("expected at most {max} workers in a plan, got {got}")]
    TooManyWorkers {
        /// Workers asked for; the largest number when the sum overflows.
        got: usize,
        /// The bound, [`WORKERS_MAX`](super::request::WORKERS_MAX).
        max: usize,
    },
    /// More demands than a request holds.
    #[error("expected at most {max} demands in a request, got {got}")]
    TooManyDemands {
        /// Demands given.
        got: usize,
        /// The bound, [`DEMANDS_MAX`](super::request::DEMANDS_MAX).
        max: usize,
    },
    /// A demand names a NUMA node that the machine does not have.
    #[error("{role} demand on NUMA node {got}: expected one of {expected:?}")]
    UnknownNode {
        /// The workers' role.
        role: Role,
        /// The nodes of the machine.
        expected: Vec<u32>,
        /// The node asked for.
        got: u32,
    },
    /// A thread was to be pinned to an empty CPU set.
    #[error("expected at least one CPU to pin the thread to, got none")]
    EmptyCpuSet,
    /// The system refused to pin the thread.
    #[error("cannot pin the thread to CPUs {expected}: {source} (they may be offline or outside the cpuset)")]
    PinRefused {
        /// The CPUs asked for.
        expected: CpuSet,
        /// The system's error.
        source: io::Error,
    },
    /// The thread may not run at a real-time priority.
    #[error(
        "SCHED_FIFO priority {priority} is not permitted: {}",
        realtime_advice(*.priority, *.rtprio_limit, *.has_cap_sys_nice)
    )]
    RealtimeDenied {
        /// The priority asked for.
        priority: u8,
        /// The highest priority that `RLIMIT_RTPRIO` lets the process ask for; `None` means no
        /// limit.
        rtprio_limit: Option<u64>,
        /// Whether the thread holds `CAP_SYS_NICE`, which lifts the limit.
        has_cap_sys_nice: bool,
    },
    /// The process may not lock its memory.
    #[error("memory cannot be locked: {source}; RLIMIT_MEMLOCK is {} (ulimit -l unlimited, or LimitMEMLOCK=infinity in the service)",
        .memlock_limit_bytes.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes")))]
    LockDenied {
        /// The most bytes that may be locked; `None` means no limit.
        memlock_limit_bytes: Option<u64>,
        /// The system's error.
        source: io::Error,
    },
    /// A real-time priority outside the range of the scheduler.
    #[error("expected a real-time priority from {min} to {max}, got {got}")]
    PriorityOutOfRange {
        /// The lowest priority.
        min: u8,
        /// The highest priority.
        max: u8,
        /// The priority asked for.
        got: u8,
    },
    /// This operating system has no such call.
    #[error("{what} is not supported on {os}")]
    Unsupported {
        /// The requested feature.
        what: &'static str,
        /// The operating system.
        os: &'static str,
    },
    /// Another failure of a system call.
    #[error("{call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn at(device: &Option<PciAddress>) -> String {
    device.map(|address| format!(" for device {address}")).unwrap_or_default()
}

/// Names the missing permission, and how to grant it.
fn realtime_advice(priority: u8, rtprio_limit: Option<u64>, has_cap_sys_nice: bool) -> String {
    let limit_suffices = rtprio_limit.is_none_or(|limit| limit >= u64::from(priority));
    if has_cap_sys_nice || limit_suffices {
        return "capability and limit suffice, so the control group gives no real-time time; raise cpu.rt_runtime_us of \
                the group or move the process to the root group"
            .to_owned();
    }
    let limit = rtprio_limit.unwrap_or_default();
    format!(
        "the thread lacks CAP_SYS_NICE and RLIMIT_RTPRIO is {limit}; grant the capability (setcap cap_sys_nice+ep on \
         the binary) or raise the limit (ulimit -r {priority}, or LimitRTPRIO={priority} in the service)"
    )
}

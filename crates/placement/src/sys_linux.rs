//! The scheduler calls of Linux.
//!
//! They go through libc for what rustix lacks: its CPU masks end at 1024 CPUs, and it has no
//! scheduling policies. The policy is set through the pthread calls, because musl refuses the
//! `sched_` ones.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use panoply_core::cpu_set::{CPU_MAX, CpuSet};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_current_timer_slack};

use super::affinity::{RealtimePriority, Scheduling};
use super::error::PlacementError;

type Word = libc::c_ulong;
const WORD_BITS: usize = Word::BITS as usize;
const MASK_WORDS: usize = (CPU_MAX + 1) / WORD_BITS;

/// A kernel CPU mask: an array of longs, least significant bit first, wide enough for every kernel.
type Mask = [Word; MASK_WORDS];

/// The CPUs of the calling thread.
pub(super) fn affinity() -> Result<CpuSet, PlacementError> {
    affinity_of(0)
}

/// The CPUs of the process's first thread, whose number is the process's.
pub(super) fn affinity_of_process() -> Result<CpuSet, PlacementError> {
    affinity_of(rustix::process::getpid().as_raw_nonzero().get())
}

fn affinity_of(thread: libc::pid_t) -> Result<CpuSet, PlacementError> {
    let mut mask: Mask = [0; MASK_WORDS];
    // SAFETY: the pointer refers to `size_of::<Mask>()` writable bytes, the length passed, and to
    // longs, which have the alignment of the kernel's mask. Zero stands for the calling thread, and
    // a thread that does not exist is an error.
    let status = unsafe { libc::sched_getaffinity(thread, size_of::<Mask>(), mask.as_mut_ptr().cast()) };
    if status != 0 {
        return Err(PlacementError::System { call: "sched_getaffinity", source: io::Error::last_os_error() });
    }
    let cpus = (0..=CPU_MAX).filter(|cpu| mask[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 == 1);
    // The mask is exactly as wide as a set, so every number fits.
    Ok(CpuSet::from_cpus(cpus).unwrap_or_default())
}

pub(super) fn set_affinity(cpus: &CpuSet) -> Result<(), PlacementError> {
    let mut mask: Mask = [0; MASK_WORDS];
    for cpu in cpus {
        mask[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
    }
    // SAFETY: the pointer refers to `size_of::<Mask>()` readable bytes, the length passed, and to
    // longs, which have the alignment of the kernel's mask. Zero stands for the calling thread.
    let status = unsafe { libc::sched_setaffinity(0, size_of::<Mask>(), mask.as_ptr().cast()) };
    if status == 0 {
        return Ok(());
    }
    Err(PlacementError::PinRefused { expected: cpus.clone(), source: io::Error::last_os_error() })
}

pub(super) fn set_timer_slack_min() -> Result<(), PlacementError> {
    let set = set_current_timer_slack(Some(NonZeroU64::MIN));
    set.map_err(|source| PlacementError::System { call: "prctl(PR_SET_TIMERSLACK)", source: source.into() })
}

pub(super) fn set_realtime(priority: RealtimePriority) -> Result<(), PlacementError> {
    match set_policy(libc::SCHED_FIFO, priority.get().into()) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(denied(priority)),
        other => other.map_err(|source| PlacementError::System { call: "pthread_setschedparam", source }),
    }
}

/// The nice value of threads that give way: a thread with the value 0 gets nine times as much of a
/// CPU.
const PATIENT_NICE: i32 = 10;

pub(super) fn give_way() -> Result<(), PlacementError> {
    set_policy(libc::SCHED_BATCH, 0)
        .map_err(|source| PlacementError::System { call: "pthread_setschedparam", source })?;
    // On Linux the nice value belongs to the thread.
    // SAFETY: neither call takes a pointer. Zero stands for the calling thread.
    let status = unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0).max(PATIENT_NICE);
        libc::setpriority(libc::PRIO_PROCESS, 0, nice)
    };
    if status == 0 {
        return Ok(());
    }
    Err(PlacementError::System { call: "setpriority", source: io::Error::last_os_error() })
}

/// The shortest slice that Linux grants.
const SLICE_NS_MIN: u64 = 100_000;

pub(super) fn set_slice_min() -> Result<(), PlacementError> {
    // SAFETY: the call takes no pointer. Zero stands for the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SLICE_NS_MIN,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the pointer refers to a complete value, whose size is its first field. Zero stands
    // for the calling thread, and for no flags.
    let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if status == 0 {
        return Ok(());
    }
    Err(PlacementError::System { call: "sched_setattr", source: io::Error::last_os_error() })
}

pub(super) fn set_normal() -> Result<(), PlacementError> {
    set_policy(libc::SCHED_OTHER, 0).map_err(|source| PlacementError::System { call: "pthread_setschedparam", source })
}

pub(super) fn lock_memory() -> Result<(), PlacementError> {
    let memlock_limit_bytes = getrlimit(Resource::Memlock).current;
    let has_cap = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if memlock_limit_bytes.is_some() && !has_cap {
        // Locking could succeed now, but every allocation beyond the limit would fail later.
        let source = io::Error::from_raw_os_error(libc::EPERM);
        return Err(PlacementError::LockDenied { memlock_limit_bytes, source });
    }
    // SAFETY: the call takes no pointer; it changes where pages lie, never their contents.
    let status = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    if status == 0 {
        return Ok(());
    }
    Err(PlacementError::LockDenied { memlock_limit_bytes, source: io::Error::last_os_error() })
}

pub(super) fn own_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

pub(super) fn ticks_per_second() -> Option<u64> {
    Some(rustix::param::clock_ticks_per_second())
}

pub(super) fn scheduling() -> Result<Scheduling, PlacementError> {
    let mut policy = 0;
    let mut parameters = empty_parameters();
    // SAFETY: `pthread_self` is the calling thread, which is alive; both pointers refer to writable
    // values of the types that the call fills in.
    let status = unsafe { libc::pthread_getschedparam(libc::pthread_self(), &mut policy, &mut parameters) };
    if status != 0 {
        let source = io::Error::from_raw_os_error(status);
        return Err(PlacementError::System { call: "pthread_getschedparam", source });
    }
    let priority = u8::try_from(parameters.sched_priority).unwrap_or(0);
    Ok(match policy {
        libc::SCHED_OTHER => Scheduling::Normal,
        libc::SCHED_FIFO => RealtimePriority::new(priority).map_or(Scheduling::Other, Scheduling::Realtime),
        _ => Scheduling::Other,
    })
}

fn set_policy(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let mut parameters = empty_parameters();
    parameters.sched_priority = priority;
    // SAFETY: `pthread_self` is the calling thread, which is alive; the pointer refers to a fully
    // set-up value.
    let status = unsafe { libc::pthread_setschedparam(libc::pthread_self(), policy, &parameters) };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}

fn empty_parameters() -> libc::sched_param {
    // SAFETY: the type holds integers only (musl adds reserved ones), for which all-zero bits are
    // valid.
    unsafe { std::mem::zeroed() }
}

fn denied(priority: RealtimePriority) -> PlacementError {
    PlacementError::RealtimeDenied {
        priority: priority.get(),
        rtprio_limit: getrlimit(Resource::Rtprio).current,
        has_cap_sys_nice: capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE)),
    }
}

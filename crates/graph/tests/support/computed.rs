//! The time that a thread computes. Other programs on the machine hardly change it.

use std::time::Duration;

/// The time that the calling thread has computed so far.
#[cfg(target_os = "linux")]
pub fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The time since the first call.
#[cfg(not(target_os = "linux"))]
pub fn computed() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

//! Closes this process to other processes of the same user, so that keys stay in its memory.

/// Disables core dumps and debuggers. If the system refuses, the keys are as safe as in any other
/// program.
pub fn close_process() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}

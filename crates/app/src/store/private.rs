//! Closes this process to others of the same user, so that keys in its memory stay there.

/// No core dumps, and no debugger. Where the system does not take it, the keys are as safe as those of any other program.
pub fn close_process() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}

//! Handles the signals that ask the process to end: Ctrl-C (INT), TERM and HUP.
//!
//! A signal handler may do very little, so it only writes the signal's number into a pipe. A thread
//! reads the number, does the final work, and ends the process. If the process was started with HUP
//! ignored (`nohup`), HUP stays ignored.

/// Calls `end` with the number of the first signal, on its own thread. If no handler can be set, a
/// signal ends the process in the system's default way.
pub fn on_end(end: impl FnOnce(i32) + Send + 'static) {
    imp::on_end(end);
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error of the file. By default the
/// system ends the process.
pub fn survive_large_files() {
    imp::survive_large_files();
}

/// Ends the process at once, without the destructors and exit handlers of libraries: other threads
/// may still be inside these libraries, which then crash.
pub fn end_now(code: i32) -> ! {
    imp::end_now(code)
}

#[cfg(unix)]
mod imp {
    use std::io::{self, Read};
    use std::os::fd::IntoRawFd;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    /// The pipe end that the handler writes to. It stays open while the process lives.
    static PIPE: AtomicI32 = AtomicI32::new(-1);
    /// Set by the first signal. Later signals are ignored, because the process ends anyway.
    static IS_TOLD: AtomicBool = AtomicBool::new(false);

    pub fn on_end(end: impl FnOnce(i32) + Send + 'static) {
        let Ok((mut reader, writer)) = io::pipe() else { return };
        PIPE.store(writer.into_raw_fd(), Ordering::Release);
        let wait = move || {
            let mut number = [0];
            if reader.read_exact(&mut number).is_ok() {
                end(i32::from(number[0]));
            }
        };
        if std::thread::Builder::new().name("panoply-signals".to_owned()).spawn(wait).is_ok() {
            [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().for_each(take);
        }
    }

    #[allow(unsafe_code)] // Signal handlers need the system's C interface.
    pub fn survive_large_files() {
        // SAFETY: the signal is ignored, so no code runs as its handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }

    #[allow(unsafe_code)] // The standard library has no exit without handlers.
    pub fn end_now(code: i32) -> ! {
        // SAFETY: `_exit` ends the process, and nothing of it runs afterwards.
        unsafe { libc::_exit(code) }
    }

    #[allow(unsafe_code)] // Signal handlers need the system's C interface.
    fn take(signal: libc::c_int) {
        // SAFETY: `sigaction` is a plain structure, and all zeroes are valid for it: no flags and
        // an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut before = action;
        action.sa_sigaction = tell as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the null pointer means that nothing is set, and `before` is a valid structure to
        // fill.
        let is_known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) } == 0;
        if signal == libc::SIGHUP && is_known && before.sa_sigaction == libc::SIG_IGN {
            return;
        }
        // SAFETY: `action` is valid, and `tell` does only what a signal handler may do.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }

    /// The handler. It takes no lock and allocates nothing. It writes one byte into an empty pipe,
    /// which succeeds at once and therefore leaves `errno` unchanged.
    extern "C" fn tell(signal: libc::c_int) {
        if IS_TOLD.swap(true, Ordering::AcqRel) {
            return;
        }
        let number = signal as u8;
        // SAFETY: `write` may be called in a signal handler, and reads one byte of the live
        // variable `number`.
        #[allow(unsafe_code)]
        let _ = unsafe { libc::write(PIPE.load(Ordering::Acquire), (&raw const number).cast(), 1) };
    }
}

#[cfg(not(unix))]
mod imp {
    use std::sync::Mutex;

    /// The number of Ctrl-C on Unix, used on other systems too.
    const INTERRUPT: i32 = 2;

    pub fn on_end(end: impl FnOnce(i32) + Send + 'static) {
        let end = Mutex::new(Some(end));
        let _ = ctrlc::set_handler(move || {
            if let Some(end) = end.lock().ok().and_then(|mut end| end.take()) {
                end(INTERRUPT);
            }
        });
    }

    pub fn survive_large_files() {}

    pub fn end_now(code: i32) -> ! {
        std::process::exit(code)
    }
}

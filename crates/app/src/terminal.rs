//! Reads a passphrase from the terminal without echo.
//!
//! 1. The line is read from the terminal itself, into memory that is wiped, without a buffer that
//!    outlives the read.
//! 2. The echo is restored after the read, however the read ends: [`show_again`] is also called
//!    when Ctrl-C ends the process.

use std::io;

use zeroize::Zeroizing;

/// Prints `prompt` and reads a line without echo. At most `bytes_max` + 1 bytes are kept.
pub fn hidden_line(prompt: &str, bytes_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    imp::hidden_line(prompt, bytes_max)
}

/// Restores the echo if it is switched off.
pub fn show_again() {
    imp::show_again();
}

#[cfg(unix)]
mod imp {
    use std::fs::File;
    use std::io::{self, IsTerminal, Read, Write};
    use std::os::fd::AsFd;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use zeroize::Zeroizing;

    /// The terminal whose echo is off, and its previous settings.
    static HIDDEN: Mutex<Option<(File, Termios)>> = Mutex::new(None);

    pub fn hidden_line(prompt: &str, bytes_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut terminal = terminal()?;
        hide(&terminal)?;
        let line = io::stderr().write_all(prompt.as_bytes()).and_then(|()| read_line(&mut terminal, bytes_max));
        show_again();
        line
    }

    pub fn show_again() {
        if let Some((terminal, before)) = hidden().take() {
            let _ = tcsetattr(&terminal, OptionalActions::Now, &before);
            // The newline was typed but not shown.
            let _ = io::stderr().write_all(b"\n");
        }
    }

    /// Returns the standard input if it is a terminal, else the controlling terminal.
    fn terminal() -> io::Result<File> {
        match io::stdin().is_terminal() {
            true => Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?)),
            false => File::options().read(true).write(true).open("/dev/tty"),
        }
    }

    fn hide(terminal: &File) -> io::Result<()> {
        // The lock is held until the terminal is changed, so that `show_again` restores it only
        // afterwards.
        let mut hidden = hidden();
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        silent.local_modes.insert(LocalModes::ICANON | LocalModes::ISIG);
        *hidden = Some((terminal.try_clone()?, before));
        Ok(tcsetattr(terminal, OptionalActions::Flush, &silent)?)
    }

    /// Reads up to the end of the line. Of a line that is too long, one byte above the limit is
    /// kept to show it; the rest is discarded.
    fn read_line(terminal: &mut File, bytes_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
        // Allocated at full length: a growing vector would leave copies of the passphrase in
        // memory.
        let mut line = Zeroizing::new(Vec::with_capacity(bytes_max + 1));
        let mut byte = Zeroizing::new([0_u8]);
        loop {
            match terminal.read(&mut byte[..]) {
                Ok(0) if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(line),
                Ok(_) if byte[0] == b'\n' => return Ok(line),
                Ok(_) if line.len() <= bytes_max => line.push(byte[0]),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn hidden() -> MutexGuard<'static, Option<(File, Termios)>> {
        HIDDEN.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(unix))]
mod imp {
    use std::io;

    use zeroize::Zeroizing;

    pub fn hidden_line(prompt: &str, _: usize) -> io::Result<Zeroizing<Vec<u8>>> {
        let term = console::Term::stderr();
        term.write_str(prompt)?;
        Ok(Zeroizing::new(term.read_secure_line()?.into_bytes()))
    }

    pub fn show_again() {}
}

//! A line that is not shown while it is typed: a passphrase.
//!
//! 1. It is read from the terminal itself, without a buffer that outlives the reading, into memory that is wiped.
//! 2. The terminal shows what is typed again however the reading ends: [`show_again`] is also called where Ctrl-C ends the process.

use std::io;

use zeroize::Zeroizing;

/// Asks for a line, of which no more than so many bytes are kept.
pub fn hidden_line(prompt: &str, bytes_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    imp::hidden_line(prompt, bytes_max)
}

/// Shows again what is typed, where it is hidden now.
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

    /// The terminal while nothing is shown on it, and how it was before.
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
            // The end of the line was typed, and not shown.
            let _ = io::stderr().write_all(b"\n");
        }
    }

    /// The standard input where that is a terminal; else the one that the process belongs to.
    fn terminal() -> io::Result<File> {
        match io::stdin().is_terminal() {
            true => Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?)),
            false => File::options().read(true).write(true).open("/dev/tty"),
        }
    }

    fn hide(terminal: &File) -> io::Result<()> {
        // Held until the terminal is changed, so that whoever changes it back does so afterwards.
        let mut hidden = hidden();
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        silent.local_modes.insert(LocalModes::ICANON | LocalModes::ISIG);
        *hidden = Some((terminal.try_clone()?, before));
        Ok(tcsetattr(terminal, OptionalActions::Flush, &silent)?)
    }

    /// Reads up to the end of the line. What is longer than it may be is read, and one byte of it kept to tell.
    fn read_line(terminal: &mut File, bytes_max: usize) -> io::Result<Zeroizing<Vec<u8>>> {
        // Its whole length at once: what grows leaves copies behind.
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

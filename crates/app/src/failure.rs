//! The ways a command can end, and their exit codes.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use crate::advice;
use crate::gate::Gate;
use crate::partial::{self, GivenUp};
use crate::screen::visible;
use crate::signals;
use crate::verbosity;

/// Exit code of a command that did not do all of its work.
const FAILED: u8 = 1;
/// Exit code of an invalid command line. The parser of arguments uses the same code.
const USAGE: u8 = 2;
/// Base of the exit codes of commands that a signal ended: 128 + the signal's number.
const SIGNALLED: i32 = 128;

/// How long a process that a signal ends waits until its final message is written. A full pipe that
/// is not read must not keep it alive.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(1);
/// How long it waits for its output.
const FLUSH_TIME_MAX: Duration = Duration::from_millis(100);

type Say = dyn Fn(Option<GivenUp>) -> String + Send;

static LAST_WORDS: LastWords = LastWords(Gate::new(None));

/// The final message of a command. A command announces its own before it changes anything but files
/// of [`partial`]; a signal that comes earlier keeps it from doing so.
struct LastWords(Gate<Option<Box<Say>>>);

impl LastWords {
    /// Sets the message. Only the first call counts. Never returns once [`LastWords::close`] was
    /// called.
    fn announce(&self, say: impl Fn(Option<GivenUp>) -> String + Send + 'static) {
        self.0.pass().get_or_insert_with(|| Box::new(say));
    }

    /// The message. From now on no command can announce one.
    fn close(&self, given_up: Option<GivenUp>) -> String {
        let said = self.0.close(|say| say.as_ref().map_or_else(|| unannounced(given_up), |say| say(given_up)));
        said.unwrap_or_else(|| "interrupted".to_owned())
    }
}

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The reader of our output has closed the pipe. This is not an error: the reader has all it
    /// wanted.
    ReaderGone,
    /// The command line is invalid.
    Usage(String),
    /// The command line is invalid, and the parser has printed the reason already.
    UsageTold,
    /// An error occurred while the command ran.
    Run(anyhow::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Run(anyhow::Error::new(error).context("the output could not be written")),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::from(io::Error::from(error))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Run(error)
    }
}

impl From<panoply::vector::Error> for Failure {
    fn from(error: panoply::vector::Error) -> Failure {
        Failure::Run(anyhow::Error::new(error))
    }
}

impl From<panoply::store::Error> for Failure {
    fn from(error: panoply::store::Error) -> Failure {
        match &error {
            panoply::store::Error::Stream { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
                Failure::ReaderGone
            }
            _ => Failure::Run(anyhow::Error::new(error)),
        }
    }
}

impl From<panoply::BuildError> for Failure {
    fn from(error: panoply::BuildError) -> Failure {
        Failure::Run(anyhow::Error::new(error).context("no runtime could be started"))
    }
}

/// Prints the error, if there is one, and returns the exit code.
pub fn exit_code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            complain(message);
            ExitCode::from(USAGE)
        }
        Err(Failure::UsageTold) => ExitCode::from(USAGE),
        Err(Failure::Run(error)) => {
            complain(described(&error));
            if let Some(advice) = advice::about(&error) {
                say("help", advice);
            }
            ExitCode::from(FAILED)
        }
    }
}

/// The final message of a command that has announced none.
fn unannounced(given_up: Option<GivenUp>) -> String {
    match given_up {
        Some(GivenUp { completed: 0, .. }) => "interrupted; nothing was changed".to_owned(),
        given_up => GivenUp::told(given_up),
    }
}

/// Joins an error and its causes in one line. A cause whose text already ends the line is left out.
fn described(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text
}

/// Ends the process at once on Ctrl-C, and when the system asks it to end. Incomplete files are
/// removed, printed output stays. Collections and stores keep all acknowledged writes, no matter
/// how the process ends.
pub fn end_on_interrupt() {
    signals::on_end(|signal| {
        crate::terminal::show_again();
        let given_up = partial::give_up();
        let words = LAST_WORDS.close(given_up);
        within(MESSAGE_TIME_MAX, move || complain(&words));
        within(FLUSH_TIME_MAX, || drop(io::Write::flush(&mut io::stdout())));
        signals::end_now(SIGNALLED + signal)
    });
}

/// Writes to a standard stream, but waits no longer than this: the stream may be a full pipe, and a
/// thread that is blocked by it may hold its lock.
fn within(time_max: Duration, write: impl FnOnce() + Send + 'static) {
    let (written, hears) = std::sync::mpsc::channel();
    let write = move || {
        write();
        let _ = written.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = hears.recv_timeout(time_max);
    }
}

/// Sets the final message that is printed when a signal ends the process. The message is made from
/// the fate of the partial files. Only the first call counts. Until it is called, the message says
/// that nothing was changed. After a signal this blocks until the process has ended, so a command
/// that calls it before its first change makes none unannounced.
pub fn say_on_interrupt(last_words: impl Fn(Option<GivenUp>) -> String + Send + 'static) {
    LAST_WORDS.announce(last_words);
}

/// Prints a warning on the error output.
pub fn warn(message: impl Display) {
    say("warning", message);
}

/// Prints a note on the error output, unless the user wants quiet.
pub fn note(message: impl Display) {
    if !verbosity::is_quiet() {
        say("note", message);
    }
}

/// Prints a note that only a user who asked for more wants.
pub fn detail(message: impl Display) {
    if verbosity::is_verbose() {
        say("note", message);
    }
}

/// Prints an error on the error output.
pub fn complain(message: impl Display) {
    say("error", message);
}

/// Writes a line to the error output. A closed error output is ignored: no other output is left.
fn say(kind: &str, message: impl Display) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "{kind}: {}", visible(&message.to_string()));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Regression: a signal between the start of a command and its announcement found no message,
    /// and the command could still make its change before the process ended.
    #[test]
    fn a_command_that_a_signal_has_ended_announces_nothing_more() {
        let words = Arc::new(LastWords(Gate::new(None)));
        let nothing = Some(GivenUp { completed: 0, unfinished: 1 });
        assert_eq!(words.close(nothing), "interrupted; nothing was changed");
        let (other, went_on) = (Arc::clone(&words), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&went_on);
        std::thread::spawn(move || {
            other.announce(|_| "too late".to_owned());
            told.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!went_on.load(Ordering::Acquire));
        let words = LastWords(Gate::new(None));
        words.announce(|_| "first".to_owned());
        words.announce(|_| "second".to_owned());
        assert_eq!(words.close(None), "first");
    }

    #[test]
    fn files_that_are_complete_are_told() {
        let words = LastWords(Gate::new(None));
        assert_eq!(words.close(Some(GivenUp { completed: 1, unfinished: 0 })), "interrupted; 1 file complete");
    }
}

//! How a command can end, and with which exit code.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::advice;
use crate::screen::visible;

/// The command did not do all it was asked for.
const FAILED: u8 = 1;
/// The command line made no sense. The parser of arguments uses the same code.
const USAGE: u8 = 2;
/// Ended by Ctrl-C: 128 and the number of the signal.
const INTERRUPTED: i32 = 130;

static LAST_WORDS: OnceLock<Box<dyn Fn() -> String + Send + Sync>> = OnceLock::new();

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The reader of our output has closed the pipe. Not an error: it has what it wanted.
    ReaderGone,
    /// The command line made no sense.
    Usage(String),
    /// The command line made no sense, and its parser has said why.
    UsageTold,
    /// Something went wrong on the way.
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

/// Says what went wrong, if anything, and gives the exit code.
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

/// An error and its causes in one line, without what the one before has said already.
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

/// Ends the process at once on Ctrl-C, and where the system asks for its end. Files that are not whole are removed; what was printed before stays; collections and stores keep what they have acknowledged, however
/// the process ends.
pub fn end_on_interrupt() {
    // Where no handler can be set the system's own one ends the process just as well.
    let _ = ctrlc::set_handler(|| {
        crate::terminal::show_again();
        if let Some(last_words) = LAST_WORDS.get() {
            complain(last_words());
        }
        crate::partial::remove_all();
        std::process::exit(INTERRUPTED)
    });
}

/// Sets what is printed when Ctrl-C ends the process. Only the first call counts.
pub fn say_on_interrupt(last_words: impl Fn() -> String + Send + Sync + 'static) {
    let _ = LAST_WORDS.set(Box::new(last_words));
}

/// Says on the error output what its user should know though it is no error.
pub fn warn(message: impl Display) {
    say("warning", message);
}

/// Says on the error output what went wrong.
pub fn complain(message: impl Display) {
    say("error", message);
}

/// A closed error output is ignored: there is nowhere left to write to.
fn say(kind: &str, message: impl Display) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "{kind}: {}", visible(&message.to_string()));
}

//! Output generated from the definitions of the arguments: help and errors, shell completions, and
//! the manual page.

use std::error::Error;
use std::io::{self, Write};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::standard;

/// Prints the parser's answer: the requested help or version, else the error in the command line.
pub fn show(answer: &clap::Error) -> Result<(), Failure> {
    if let Some(refusal) = number_refusal(answer) {
        return Err(Failure::Usage(refusal));
    }
    if !answer.use_stderr() {
        standard::expect_output()?;
    }
    let printed = answer.print().and_then(|()| io::stdout().flush());
    if answer.use_stderr() {
        return Err(Failure::UsageTold);
    }
    Ok(printed?)
}

/// Says in the words of this command why a number was refused. `None` if the error is another one.
fn number_refusal(answer: &clap::Error) -> Option<String> {
    let cause = answer.source()?;
    let expected = match cause.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "a smaller number",
        Some(_) => "a whole number, not negative",
        None if cause.is::<ParseFloatError>() => "a number",
        None => return None,
    };
    let text = |kind| match answer.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg)?.split_whitespace().next()?;
    Some(format!("{argument}: expected {expected}, got {}", text(ContextKind::InvalidValue)?))
}

/// Prints the completions of a shell.
pub fn completions(shell: Shell, screen: &mut Screen) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "panoply", &mut script);
    screen.text(&script)
}

/// Prints the manual page of the command with these words, or of the whole program if `words` is
/// empty.
pub fn page(words: &[String], screen: &mut Screen) -> Result<(), Failure> {
    let mut program = Arguments::command();
    program.build();
    let mut command = &program;
    for word in words {
        let unknown = || Failure::Usage(format!("COMMAND: `{}` is no command of panoply", words.join(" ")));
        command = command.find_subcommand(word).ok_or_else(unknown)?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    screen.text(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_of_the_arguments_agree() {
        Arguments::command().debug_assert();
    }
}

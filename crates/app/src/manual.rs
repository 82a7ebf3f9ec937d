//! Output generated from the definitions of the arguments: help and errors, shell completions, and
//! the manual page.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::standard;

/// Prints the parser's answer: the requested help or version, else the error in the command line.
pub fn show(answer: &clap::Error) -> Result<(), Failure> {
    if !answer.use_stderr() {
        standard::expect_output()?;
    }
    let printed = answer.print().and_then(|()| io::stdout().flush());
    if answer.use_stderr() {
        return Err(Failure::UsageTold);
    }
    Ok(printed?)
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

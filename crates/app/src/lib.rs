//! The `panoply` command: it shows this machine's devices, where work would run, and how fast it
//! is.
//!
//! Modules in reading order: [`arguments`] parses the command line and [`configuration`] validates
//! it. One module per command does the work ([`devices`], [`plan`], [`bench`], [`explain`],
//! [`graph`], [`vectors`], [`store`], [`signal`], [`demo`], [`train`], [`models`], [`manual`]).
//! Output goes to [`screen`], or through [`partial`] to a file (with [`folder`] and [`leftovers`]).
//! [`op_kind`] knows ops by name and size; [`terminal`] and [`secrets`] read passphrases and keys.
//! [`failure`] has the ways a command can end, with [`advice`] on what to do about an error, such
//! as a [`missing_model`]. [`verbosity`] says how much is printed beside results. [`signals`] end a
//! command early; a [`gate`] makes sure that its final message stays true. [`standard`] notices
//! streams that are closed.
//!
//! The command is a library, so that a program with its own backend can offer the command too:
//! [`panoply::register`] the backend, then call [`main`].

mod advice;
mod arguments;
mod bench;
mod configuration;
mod demo;
mod devices;
mod explain;
mod failure;
mod folder;
mod gate;
mod graph;
mod leftovers;
mod manual;
mod missing_model;
mod models;
mod op_kind;
mod partial;
mod plan;
mod screen;
mod secrets;
mod signal;
mod signals;
mod standard;
mod store;
mod terminal;
mod train;
mod vectors;
mod verbosity;

use std::process::ExitCode;

use clap::Parser;

use panoply::Settings;

use arguments::{Arguments, ColorArgument, OutputArguments};
use configuration::Configuration;
use failure::Failure;
use screen::Screen;
use verbosity::Verbosity;

/// Runs the whole command: reads this process's arguments, does the work, and returns the exit
/// code.
pub fn main() -> ExitCode {
    quiet_layers();
    // Must run while the process has a single thread.
    secrets::take(std::env::args_os());
    failure::end_on_interrupt();
    signals::survive_large_files();
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => {
            let color = arguments.output.color;
            verbosity::set(verbosity_of(&arguments.output));
            Configuration::resolve(arguments).and_then(|configuration| run(configuration, color))
        }
        Err(answer) => manual::show(&answer),
    };
    failure::exit_code(outcome)
}

/// Switches Mesa's device-selection layer off, unless the user has set its variable. The layer
/// connects to the display server and prints errors if there is none. Panoply chooses devices
/// itself.
#[allow(unsafe_code)] // Changes the environment.
fn quiet_layers() {
    const LAYER_OFF: &str = "NODEVICE_SELECT";
    if std::env::var_os(LAYER_OFF).is_none() {
        // SAFETY: `main` calls this function first, so no other thread exists that could read the
        // environment.
        unsafe { std::env::set_var(LAYER_OFF, "1") };
    }
}

fn verbosity_of(arguments: &OutputArguments) -> Verbosity {
    match arguments {
        OutputArguments { quiet: true, .. } => Verbosity::Quiet,
        OutputArguments { verbose: true, .. } => Verbosity::Verbose,
        _ => Verbosity::Normal,
    }
}

/// Mentions a settings file that another user may have put into the current folder.
fn mention_settings() {
    match Settings::file_in_use() {
        Some(file) if file.changes_something && !file.is_named => {
            failure::note(format!("settings are taken from {} in this folder", file.path.display()));
        }
        Some(file) => failure::detail(format!("settings are read from {}", file.path.display())),
        None => failure::detail("no settings file is read"),
    }
}

fn run(configuration: Configuration, color: ColorArgument) -> Result<(), Failure> {
    if !matches!(configuration, Configuration::Completions(_) | Configuration::Man(_)) {
        mention_settings();
    }
    // A collection tells when it is opened whether it needs a key, see `vectors`.
    if !matches!(configuration, Configuration::Vectors(_)) {
        secrets::wipe_unannounced();
    }
    standard::expect_output()?;
    let mut screen = Screen::of_this_process(color);
    match configuration {
        Configuration::Devices(options) => devices::show(&options, &mut screen)?,
        Configuration::Plan(options) => plan::show(&options, &mut screen)?,
        Configuration::Bench(options) => bench::run(&options, &mut screen)?,
        Configuration::Explain(options) => explain::show(&options, &mut screen)?,
        Configuration::Graph(options) => graph::show(&options, &mut screen)?,
        Configuration::Vectors(options) => vectors::run(&options, &mut screen)?,
        Configuration::Store(options) => store::run(&options, &mut screen)?,
        Configuration::Signal(options) => signal::run(&options, &mut screen)?,
        Configuration::Demo(options) => demo::run(&options, &mut screen)?,
        Configuration::Train(options) => train::run(&options, &mut screen)?,
        Configuration::Infer(options) => models::infer::run(&options, &mut screen)?,
        Configuration::Embed(options) => models::embed::run(&options, &mut screen)?,
        Configuration::Completions(shell) => manual::completions(shell, &mut screen)?,
        Configuration::Man(command) => manual::page(&command, &mut screen)?,
    }
    screen.finish()
}

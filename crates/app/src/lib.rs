//! The `panoply` command: what is in this machine, where work would run, and how fast it is.
//!
//! Modules in reading order: [`arguments`] is what was typed, [`configuration`] is what it means, one module per command
//! does it ([`devices`], [`plan`], [`bench`], [`explain`], [`graph`], [`vectors`], [`store`], [`signal`], [`demo`], [`train`], [`models`],
//! [`manual`]), [`screen`] is where it goes,
//! or [`partial`] where that is a file, and [`failure`] is how it can end, with [`advice`] on what to do about it.
//!
//! The command is a library, so that a program with a backend of its own has it too: [`panoply::register`] the backend, then
//! call [`main`].

mod advice;
mod arguments;
mod bench;
mod configuration;
mod demo;
mod devices;
mod explain;
mod failure;
mod graph;
mod manual;
mod models;
mod op_kind;
mod partial;
mod plan;
mod screen;
mod signal;
mod store;
mod terminal;
mod train;
mod vectors;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;
use configuration::Configuration;
use failure::Failure;
use screen::Screen;

/// The whole command: reads this process's arguments, does what they say, and returns how the process shall end.
pub fn main() -> ExitCode {
    quiet_layers();
    failure::end_on_interrupt();
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => Configuration::resolve(arguments).and_then(run),
        Err(answer) => manual::show(&answer),
    };
    failure::exit_code(outcome)
}

/// Switches Mesa's device-selection layer off, unless the user has set it: it connects to the display server and prints errors
/// where there is none. Panoply chooses devices itself.
#[allow(unsafe_code)] // The environment is changed.
fn quiet_layers() {
    const LAYER_OFF: &str = "NODEVICE_SELECT";
    if std::env::var_os(LAYER_OFF).is_none() {
        // SAFETY: `main` calls this first, so that there is no other thread that could read the environment.
        unsafe { std::env::set_var(LAYER_OFF, "1") };
    }
}

fn run(configuration: Configuration) -> Result<(), Failure> {
    let mut screen = Screen::of_this_process();
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

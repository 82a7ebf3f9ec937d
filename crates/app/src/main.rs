//! The `panoply` command: what is in this machine, where work would run, and how fast it is.
//!
//! Modules in reading order: [`arguments`] is what was typed, [`configuration`] is what it means, one module per command
//! does it ([`devices`], [`plan`], [`bench`], [`explain`], [`vectors`], [`demo`]), [`screen`] is where it goes, and
//! [`failure`] is how it can end, with [`advice`] for whoever has to mend it.

mod advice;
mod arguments;
mod bench;
mod configuration;
mod demo;
mod devices;
mod explain;
mod failure;
mod op_kind;
mod plan;
mod screen;
mod vectors;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;
use configuration::Configuration;
use failure::Failure;
use screen::Screen;

fn main() -> ExitCode {
    failure::end_on_interrupt();
    let arguments = Arguments::parse();
    let outcome = Configuration::resolve(arguments).and_then(run);
    failure::exit_code(outcome)
}

fn run(configuration: Configuration) -> Result<(), Failure> {
    let mut screen = Screen::of_this_process();
    match configuration {
        Configuration::Devices(options) => devices::show(&options, &mut screen)?,
        Configuration::Plan(options) => plan::show(&options, &mut screen)?,
        Configuration::Bench(options) => bench::run(&options, &mut screen)?,
        Configuration::Explain(options) => explain::show(&options, &mut screen)?,
        Configuration::Vectors(options) => vectors::run(&options, &mut screen)?,
        Configuration::Demo(options) => demo::run(&options, &mut screen)?,
    }
    screen.finish()
}

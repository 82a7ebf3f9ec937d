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
    quiet_layers();
    failure::end_on_interrupt();
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => Configuration::resolve(arguments).and_then(run),
        Err(wrong) if wrong.use_stderr() => wrong.exit(),
        Err(help) => screen::show_help(&help),
    };
    failure::exit_code(outcome)
}

/// Mesa's Vulkan layer that orders devices speaks to the display server, and complains on stderr where there is none. Devices
/// are chosen here, so it is asked to stay away, unless the user has said what it shall do.
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
        Configuration::Vectors(options) => vectors::run(&options, &mut screen)?,
        Configuration::Demo(options) => demo::run(&options, &mut screen)?,
    }
    screen.finish()
}

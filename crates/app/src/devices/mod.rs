//! `panoply devices`: lists this machine's devices, and for every absent one the reason.
//!
//! `inventory` collects what the backends found, `hardware` looks at the GPUs as the kernel shows
//! them, and `table` prints both for people.

mod hardware;
mod inventory;
mod table;

use panoply::{BuildError, Settings};

use crate::configuration::{DevicesOptions, Format};
use crate::failure::Failure;
use crate::screen::Screen;
use hardware::Hardware;
use inventory::Inventory;

/// Finds every device and prints its properties. A machine without any of the wanted devices is an
/// answer, not a failure.
pub fn show(options: &DevicesOptions, screen: &mut Screen) -> Result<(), Failure> {
    let mut settings = Settings::load().map_err(anyhow::Error::new)?;
    let by_settings = options.apis.is_none() && settings.only.is_some();
    settings.only = options.apis.clone().or(settings.only);
    let hardware = Hardware::of_this_machine();
    let inventory = match settings.builder().build() {
        Ok(runtime) => {
            runtime.warnings().iter().for_each(crate::failure::warn);
            Inventory::of_runtime(&runtime, hardware)
        }
        Err(BuildError::NoDevice { reports }) => Inventory::of_reports(&reports, &[], hardware),
        Err(error) => return Err(error.into()),
    };
    let detail = table::Detail { is_restricted: settings.only.is_some(), by_settings, all: options.all };
    match options.format {
        Format::Json => screen.json(&inventory),
        Format::Table => table::print(&inventory, detail, screen),
    }
}

//! `panoply devices`: lists this machine's devices, and for every absent one the reason.

mod inventory;
mod table;

use panoply::Settings;

use crate::configuration::{DevicesOptions, Format};
use crate::failure::Failure;
use crate::screen::Screen;

/// Finds every device and prints its properties.
pub fn show(options: &DevicesOptions, screen: &mut Screen) -> Result<(), Failure> {
    let mut settings = Settings::load().map_err(anyhow::Error::new)?;
    settings.only = options.apis.clone().or(settings.only);
    let inventory = inventory::take(&settings.builder().build()?);
    match options.format {
        Format::Json => screen.json(&inventory),
        Format::Table => table::print(&inventory, screen),
    }
}

//! `panoply devices`: what is in this machine, and for what is not there the reason.

mod inventory;
mod table;

use panoply::Runtime;

use crate::configuration::{DevicesOptions, Format};
use crate::failure::Failure;
use crate::screen::Screen;

/// Finds every device and prints what is known of it.
pub fn show(options: &DevicesOptions, screen: &mut Screen) -> Result<(), Failure> {
    let builder = Runtime::builder();
    let builder = match &options.apis {
        Some(apis) => builder.only(apis),
        None => builder,
    };
    let inventory = inventory::take(&builder.build()?);
    match options.format {
        Format::Json => screen.json(&inventory),
        Format::Table => table::print(&inventory, screen),
    }
}

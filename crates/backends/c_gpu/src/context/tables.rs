//! Small tables that ops need repeatedly: they are uploaded once, and stay on the device.

use std::collections::HashMap;

use panoply_core::Result;

use super::Context;
use crate::driver::Address;
use crate::memory::LeasedBlock;

/// Maximal size of all tables. No table is ever dropped, since queued work may be queued again:
/// beyond this limit, tables are uploaded each time.
const TABLES_BYTES_MAX: usize = 1 << 20;

/// The tables on the device, by their bytes.
#[derive(Default)]
pub(crate) struct Tables {
    known: HashMap<Box<[u8]>, LeasedBlock>,
    bytes: usize,
}

impl Context {
    /// The address of these bytes on the device.
    pub(crate) fn table(&mut self, bytes: &[u8]) -> Result<Address> {
        if let Some(block) = self.tables.known.get(bytes) {
            return Ok(block.block.0);
        }
        if self.tables.bytes + bytes.len() > TABLES_BYTES_MAX {
            let address = self.scratch(bytes.len())?;
            self.place_filled(address, bytes.len(), |target| target.copy_from_slice(bytes))?;
            return Ok(address);
        }
        let block = self.memory.scratch(bytes.len())?;
        let address = block.block.0;
        self.lasting(|context| context.place_filled(address, bytes.len(), |target| target.copy_from_slice(bytes)))?;
        self.tables.bytes += bytes.len();
        self.tables.known.insert(bytes.into(), block);
        Ok(address)
    }
}

//! A right operand that is packed once for many products, such as the weights of a network.

use std::any::TypeId;

use super::workspace::{AlignedBuffer, OutOfMemory};

/// Maximum rows of A for which a product reads its right operand from here. With more rows, packing
/// again is a small part of the work.
pub(super) const ROWS_MAX: usize = 512;

/// A right operand in the order in which the kernels read it, after the first product has packed
/// it.
#[derive(Default)]
pub struct PackedRight {
    words: AlignedBuffer,
    holds: Option<PackedLayout>,
}

/// The format and size of the packed words.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PackedLayout {
    format: TypeId,
    panels: usize,
    panel_words: usize,
}

impl PackedRight {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.words.held_bytes()
    }

    /// Memory for `panels` panels, and whether it holds them packed already.
    pub(super) fn room<F: 'static, W: bytemuck::Pod>(
        &mut self,
        panels: usize,
        panel_words: usize,
    ) -> Result<(&mut [W], bool), OutOfMemory> {
        let layout = PackedLayout { format: TypeId::of::<F>(), panels, panel_words };
        let is_packed = self.holds == Some(layout);
        // The panels are incomplete until the product is done.
        self.holds = None;
        Ok((self.words.get_kept(panels * panel_words)?, is_packed))
    }

    /// Marks the panels as packed.
    pub(super) fn settle<F: 'static>(&mut self, panels: usize, panel_words: usize) {
        self.holds = Some(PackedLayout { format: TypeId::of::<F>(), panels, panel_words });
    }
}

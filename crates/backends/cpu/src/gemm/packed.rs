//! A right operand that is packed once for many products: the weights of a network.

use std::any::TypeId;

use super::workspace::{AlignedBuffer, OutOfMemory};

/// Rows of A up to which a product takes its right operand from here. With more, packing anew is a small part of the work.
pub(super) const ROWS_MAX: usize = 512;

/// A right operand as the kernels read it, once a product has packed it.
#[derive(Default)]
pub struct PackedRight {
    words: AlignedBuffer,
    holds: Option<Layout>,
}

/// What the words are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Layout {
    format: TypeId,
    panels: usize,
    panel_words: usize,
}

impl PackedRight {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.words.held_bytes()
    }

    /// Room for so many panels, and whether they are packed already.
    pub(super) fn room<F: 'static, W: bytemuck::Pod>(
        &mut self,
        panels: usize,
        panel_words: usize,
    ) -> Result<(&mut [W], bool), OutOfMemory> {
        let layout = Layout { format: TypeId::of::<F>(), panels, panel_words };
        let is_packed = self.holds == Some(layout);
        // Until the product is over they are not all there.
        self.holds = None;
        Ok((self.words.get_kept(panels * panel_words)?, is_packed))
    }

    /// The panels that there was room for are packed.
    pub(super) fn settle<F: 'static>(&mut self, panels: usize, panel_words: usize) {
        self.holds = Some(Layout { format: TypeId::of::<F>(), panels, panel_words });
    }
}

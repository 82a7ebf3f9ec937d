//! Moves, in `move.wgsl`, `gather.wgsl` and `narrow.wgsl`: bitwise copies of elements. An
//! invocation writes one word, or one element of eight bytes.
//!
//! Parameters of [`MoveKernel`]: elements, offset, then `rank` dimensions of the output and `rank`
//! strides of the input; with a window, the index of the first element to write and the number of
//! elements in the input's window. Parameters of [`GatherKernel`]: elements, the input's offset,
//! the indices' offset, the axis' length, the number of indices, the elements after the axis
//! (`inner`), and 1 if every element has its own index. For an index out of range, the first word
//! of the second written buffer becomes one more than the position of that index.

use panoply_core::DType;

use super::prelude::elements_per_word;
use super::template::Template;

/// Copies a strided view to contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoveKernel {
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element_bytes: u8,
    /// Number of dimensions of the view.
    pub rank: u8,
    /// Whether only a window of the input is visible, and only a part of the output is written,
    /// starting at an element given by the parameters. Elements outside the window are left
    /// unchanged.
    pub windowed: bool,
}

/// Selects elements along one axis by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherKernel {
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element_bytes: u8,
    /// Whether indices may be negative, and then count from the end.
    pub signed: bool,
    /// Whether only some rows are visible: two more parameters give the first and their number.
    /// Elements of other rows are left unchanged.
    pub windowed: bool,
}

impl MoveKernel {
    pub(super) fn source(&self) -> String {
        let template = words(Template::new(include_str!("move.wgsl")), self.element_bytes);
        let template = template.set("RANK", self.rank).flag("WINDOWED", self.windowed);
        template.set("FIRST", "p.first").set("SEEN", "p.seen").text()
    }
}

impl GatherKernel {
    pub(super) fn source(&self) -> String {
        let template = words(Template::new(include_str!("gather.wgsl")), self.element_bytes);
        let template = template.flag("SIGNED", self.signed).flag("WINDOWED", self.windowed);
        template.set("FIRST", "0u").set("SEEN", "0xffffffffu").text()
    }
}

/// Packs carriers into elements of 8 or 16 bits. Parameters: the number of elements.
pub(super) fn narrow(dtype: DType) -> String {
    let lanes = elements_per_word(dtype);
    let template = Template::new(include_str!("narrow.wgsl")).dtype("TYPE", dtype);
    template.set("LANES", lanes).set("BITS", 32 / lanes).text()
}

/// Sets the template values for elements of this many bytes in words.
fn words(template: Template, element_bytes: u8) -> Template {
    let lanes = (4 / u32::from(element_bytes)).max(1);
    let bits = 32 / lanes;
    let mask = ((1_u64 << bits) - 1) as u32;
    let element = if element_bytes == 8 { "vec2<u32>" } else { "u32" };
    template.set("ELEMENT", element).set("LANES", lanes).set("BITS", bits).set("MASK", mask)
}

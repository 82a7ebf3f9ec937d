//! Sorting lines, in the files `sort_*.wgsl`: short ones in workgroup memory, long ones by radix, four bits at a time. Everything is stable.
//!
//! | step | writes | reads | parameters |
//! | --- | --- | --- | --- |
//! | `Line` | positions | elements | lines, axis, inner, offset |
//! | `Keys` | keys, line by line | elements | lines, axis, inner, offset |
//! | `Count` | for each line, digit and block, how many | keys | lines, axis, blocks, shift |
//! | `Scatter` | keys, positions | keys, counts (scanned), positions unless `first` | lines, axis, blocks, shift |
//! | `Values` | carriers | keys | lines, axis, inner |
//! | `Positions` | positions in the tensor's layout | positions, line by line | lines, axis, inner |
//! | `Rank` | for each key of a piece, how many keys come before it | the piece's keys, another's | keys of both, 1 the first time |
//! | `Place` | positions in a window of a line | places, positions in a piece | keys, start and size of the window, start of the piece |

use panoply_core::DType;

use super::prelude::carrier;
use super::template::Template;

/// The longest line that is sorted in workgroup memory.
pub const SORT_LINE_MAX: usize = 2048;

/// Keys that one workgroup counts and scatters.
pub const SORT_BLOCK: usize = 2048;

/// One step of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortKernel {
    /// Whole lines of at most `size` elements, a power of two.
    Line {
        /// The type of the elements.
        dtype: DType,
        /// The largest first.
        falls: bool,
        /// Places in workgroup memory.
        size: u16,
    },
    /// Keys whose rising order is the wanted one.
    Keys {
        /// The type of the elements.
        dtype: DType,
        /// The largest first.
        falls: bool,
        /// Zeros of both signs have two keys, so that elements can be made of keys again.
        exact: bool,
    },
    /// How often each digit occurs.
    Count,
    /// Keys to their places, with their positions where `positions`.
    Scatter {
        /// Positions are moved along.
        positions: bool,
        /// Positions are those of the keys themselves: nothing was moved before.
        first: bool,
    },
    /// Elements made of exact keys.
    Values {
        /// The type of the elements, of four bytes.
        dtype: DType,
        /// The largest first.
        falls: bool,
    },
    /// Positions from line by line to the tensor's layout.
    Positions,
    /// Keys counted that come before those of a sorted piece, in another sorted piece of the same line.
    Rank {
        /// The other piece lies before this one, so that equals in it come first.
        before: bool,
    },
    /// Positions to their places among all of a line.
    Place,
}

impl SortKernel {
    /// Bits of this type's keys: a multiple of four.
    pub fn key_bits(dtype: DType) -> u32 {
        8 * dtype.size_bytes() as u32
    }

    pub(super) fn source(&self) -> String {
        match *self {
            SortKernel::Line { dtype, falls, size } => {
                let template = Template::new(include_str!("sort_line.wgsl")).dtype("TYPE", dtype);
                template.flag("FALLS", falls).set("SIZE", size).set("HALF", size / 2).text()
            }
            SortKernel::Keys { dtype, falls, exact } => {
                let mask = (u64::MAX >> (64 - SortKernel::key_bits(dtype))) as u32;
                let template = Template::new(include_str!("sort_keys.wgsl")).dtype("TYPE", dtype);
                template.flag("FALLS", falls).flag("EXACT", exact).set("MASK", mask).text()
            }
            SortKernel::Count => Template::new(include_str!("sort_count.wgsl")).text(),
            SortKernel::Scatter { positions, first } => {
                let template = Template::new(include_str!("sort_scatter.wgsl")).set("KEYS", 8);
                template.flag("POSITIONS", positions).flag("FIRST", first).text()
            }
            SortKernel::Values { dtype, falls } => {
                let template = Template::new(include_str!("sort_values.wgsl")).set("OUT", carrier(dtype));
                template.flag("FALLS", falls).text()
            }
            SortKernel::Positions => {
                Template::new(include_str!("sort_values.wgsl")).set("OUT", "u32").flag("POSITIONS", true).text()
            }
            SortKernel::Rank { before } => Template::new(include_str!("sort_rank.wgsl")).flag("BEFORE", before).text(),
            SortKernel::Place => Template::new(include_str!("sort_place.wgsl")).text(),
        }
    }
}

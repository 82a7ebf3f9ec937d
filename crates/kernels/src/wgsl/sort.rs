//! Sorts lines, in the files `sort_*.wgsl`: short ones in workgroup memory, long ones by radix sort
//! with four bits per pass. Every sort is stable.
//!
//! Buffers and parameters of each step:
//!
//! * `Line` writes positions. Reads elements. Parameters: lines, axis, inner, offset.
//! * `Keys` writes keys, line by line. Reads elements. Parameters: lines, axis, inner, offset.
//! * `Count` writes the number of occurrences for each line, digit and block. Reads keys.
//!   Parameters: lines, axis, blocks, shift.
//! * `Scatter` writes keys and positions. Reads keys, counts (scanned) and, unless `first`,
//!   positions. Parameters: lines, axis, blocks, shift.
//! * `Values` writes carriers. Reads keys. Parameters: lines, axis, inner.
//! * `Positions` writes positions in the tensor's layout. Reads positions, line by line.
//!   Parameters: lines, axis, inner.
//! * `Rank` writes, for each key of a piece, the number of keys before it. Reads the piece's keys
//!   and another piece's. Parameters: the number of keys of both, 1 the first time.
//! * `Place` writes positions in a window of a line. Reads places and positions in a piece.
//!   Parameters: keys, start and size of the window, start of the piece.

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
    /// Sorts whole lines of at most `size` elements, a power of two.
    Line {
        /// The type of the elements.
        dtype: DType,
        /// Whether the order is descending.
        descending: bool,
        /// Entries in workgroup memory.
        size: u16,
    },
    /// Converts elements to keys whose ascending order is the wanted one.
    Keys {
        /// The type of the elements.
        dtype: DType,
        /// Whether the order is descending.
        descending: bool,
        /// Whether positive and negative zero have different keys, so that keys can be converted
        /// back to elements.
        exact: bool,
    },
    /// Counts the occurrences of each digit.
    Count,
    /// Moves keys to their sorted positions.
    Scatter {
        /// Whether positions are moved with the keys.
        positions: bool,
        /// Whether this is the first pass, in which positions are the keys' own indices.
        first: bool,
    },
    /// Converts exact keys to elements.
    Values {
        /// The type of the elements, of four bytes.
        dtype: DType,
        /// Whether the order is descending.
        descending: bool,
    },
    /// Copies positions from line by line to the tensor's layout.
    Positions,
    /// For each key of a sorted piece, counts the keys before it in another sorted piece of the
    /// same line.
    Rank {
        /// Whether the other piece precedes this one, so that its equal keys come first.
        before: bool,
    },
    /// Writes positions of a piece to their places in the whole line.
    Place,
}

impl SortKernel {
    /// Bits of this type's keys: a multiple of four.
    pub fn key_bits(dtype: DType) -> u32 {
        8 * dtype.size_bytes() as u32
    }

    pub(super) fn source(&self) -> String {
        match *self {
            SortKernel::Line { dtype, descending, size } => {
                let template = Template::new(include_str!("sort_line.wgsl")).dtype("TYPE", dtype);
                template.flag("DESCENDING", descending).set("SIZE", size).set("HALF", size / 2).text()
            }
            SortKernel::Keys { dtype, descending, exact } => {
                let mask = (u64::MAX >> (64 - SortKernel::key_bits(dtype))) as u32;
                let template = Template::new(include_str!("sort_keys.wgsl")).dtype("TYPE", dtype);
                template.flag("DESCENDING", descending).flag("EXACT", exact).set("MASK", mask).text()
            }
            SortKernel::Count => Template::new(include_str!("sort_count.wgsl")).text(),
            SortKernel::Scatter { positions, first } => {
                let template = Template::new(include_str!("sort_scatter.wgsl")).set("KEYS", 8);
                template.flag("POSITIONS", positions).flag("FIRST", first).text()
            }
            SortKernel::Values { dtype, descending } => {
                let template = Template::new(include_str!("sort_values.wgsl")).set("OUT", carrier(dtype));
                template.flag("DESCENDING", descending).text()
            }
            SortKernel::Positions => {
                Template::new(include_str!("sort_values.wgsl")).set("OUT", "u32").flag("POSITIONS", true).text()
            }
            SortKernel::Rank { before } => Template::new(include_str!("sort_rank.wgsl")).flag("BEFORE", before).text(),
            SortKernel::Place => Template::new(include_str!("sort_place.wgsl")).text(),
        }
    }
}

//! Resizing of images: nearest, bilinear and area.
//!
//! An image here is `[planes, height, width, channels]`: NCHW is `planes = n·c, channels = 1`, NHWC
//! is `planes = n`. With `scale = in / out` for each axis, output pixel `i` is
//!
//! * **nearest**: input pixel `floor(i · scale)`, in exact integers;
//! * **bilinear**: the two input pixels around `max(0, (i + 0.5) · scale - 0.5)` (half-pixel
//!   centres, edges repeated), weighted by distance, rows after columns; there is no antialiasing;
//! * **area**: the mean of input pixels `floor(i · scale) .. ceil((i + 1) · scale)`.
//!
//! Sums are `f32`; over `u8` the area mode is exact nevertheless. `u8` results are rounded to
//! nearest, ties to even. NaN propagates to every output pixel that weighs it, even by zero, as in
//! IEEE arithmetic.

mod area;
mod bilinear;
mod nearest;

pub use area::area;
pub use bilinear::bilinear;
pub use nearest::nearest;

/// Minimum output bytes for which another thread is worth waking.
const TASK_BYTES_MIN: usize = 64 * 1024;

/// The sizes of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of independent images.
    pub planes: usize,
    /// Interleaved values of one pixel.
    pub channels: usize,
    /// Input height and width.
    pub input: (usize, usize),
    /// Output height and width.
    pub output: (usize, usize),
}

impl Sizes {
    /// Elements of an input row.
    pub fn row_in(&self) -> usize {
        self.input.1 * self.channels
    }

    /// Elements of an output row.
    pub fn row_out(&self) -> usize {
        self.output.1 * self.channels
    }

    /// Input rows in all planes.
    pub fn rows_in(&self) -> usize {
        self.planes * self.input.0
    }

    /// Output rows in all planes.
    pub fn rows_out(&self) -> usize {
        self.planes * self.output.0
    }

    /// Checks the slices. False if there is nothing to do.
    fn check(&self, input: usize, output: usize) -> bool {
        assert_eq!(input, self.rows_in() * self.row_in(), "the input must have the stated size");
        assert_eq!(output, self.rows_out() * self.row_out(), "the output must have the stated size");
        assert!(output == 0 || input > 0, "an empty image cannot be enlarged");
        output > 0
    }

    /// Minimum output rows of one task.
    fn grain(&self, element_bytes: usize) -> usize {
        (TASK_BYTES_MIN / (self.row_out() * element_bytes)).max(1)
    }
}

/// The input pixels `start..end` that output pixel `index` of an axis covers.
fn cover(index: usize, input: usize, output: usize) -> std::ops::Range<usize> {
    let (start, _) = divide(index, input, 0, output);
    let (end, rest) = divide(index + 1, input, 0, output);
    start..end + usize::from(rest > 0)
}

/// Quotient and remainder of `max(0, a · b - c)` by `d`, in 64 bits if they suffice.
fn divide(a: usize, b: usize, c: usize, d: usize) -> (usize, usize) {
    match a.checked_mul(b) {
        Some(product) => {
            let left = product.saturating_sub(c);
            (left / d, left % d)
        }
        None => {
            let left = (a as u128 * b as u128).saturating_sub(c as u128);
            ((left / d as u128) as usize, (left % d as u128) as usize)
        }
    }
}

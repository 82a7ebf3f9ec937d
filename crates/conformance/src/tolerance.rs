//! The tolerance of an element.

/// Tolerance of an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The same number (zeros of either sign are equal; NaN equals NaN).
    Exact,
    /// `|expected - got| ≤ absolute + relative · |expected|`.
    Close {
        /// The relative part.
        relative: f64,
        /// The absolute part.
        absolute: f64,
    },
}

impl Tolerance {
    /// Whether `got` is close enough to `expected`.
    pub fn accepts(self, expected: f64, got: f64) -> bool {
        if expected.is_nan() || got.is_nan() {
            return expected.is_nan() && got.is_nan();
        }
        if expected.is_infinite() || got.is_infinite() {
            return expected == got;
        }
        match self {
            Tolerance::Exact => expected == got,
            Tolerance::Close { relative, absolute } => (expected - got).abs() <= absolute + relative * expected.abs(),
        }
    }
}

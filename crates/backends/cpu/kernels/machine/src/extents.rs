//! A contiguous tensor viewed along one axis: `outer` slabs of `axis` rows of `inner` contiguous
//! elements.

/// The three extents of a row-major tensor around the axis of an op. The axes before it are joined
/// into `outer`, the axes after it into `inner`; `inner == 1` means that the axis itself is
/// contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// The product of the extents before the axis.
    pub outer: usize,
    /// The extent of the axis.
    pub axis: usize,
    /// The product of the extents after the axis.
    pub inner: usize,
}

impl Extents {
    /// One contiguous row of `len` elements.
    pub fn row(len: usize) -> Extents {
        Extents { outer: 1, axis: len, inner: 1 }
    }

    /// `rows` contiguous rows of `len` elements.
    pub fn rows(rows: usize, len: usize) -> Extents {
        Extents { outer: rows, axis: len, inner: 1 }
    }

    /// The extents of a shape around one of its axes, which must exist.
    pub fn around(dims: &[usize], axis: usize) -> Extents {
        let product = |range: &[usize]| range.iter().product();
        Extents { outer: product(&dims[..axis]), axis: dims[axis], inner: product(&dims[axis + 1..]) }
    }

    /// Number of elements of the tensor.
    pub fn elements(&self) -> usize {
        self.outer * self.axis * self.inner
    }

    /// Number of lines along the axis.
    pub fn lines(&self) -> usize {
        self.outer * self.inner
    }
}

//! Cases of ops along vectors and along the rows of matrices.

use panoply::prelude::{LayerNorm, Reduce, Scan, Softmax, Sort, TopK, Transpose};

use crate::bench::cases::case::{Amount, Case, Scale, count_name, f32s, scale_of};
use crate::bench::place::{BenchDevice, Runner};

/// The sum of a vector.
pub struct SumCase {
    pub elements: usize,
}

impl Case for SumCase {
    fn name(&self) -> String {
        format!("reduce/sum/f32/{}", count_name(self.elements))
    }

    fn amount(&self) -> Amount {
        f32s(self.elements)
    }

    fn scale(&self) -> Scale {
        scale_of(self.elements)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Reduce::sum(&place.normals().tensor([self.elements])?))
    }
}

/// The prefix sums of a vector.
pub struct ScanCase {
    pub elements: usize,
}

impl Case for ScanCase {
    fn name(&self) -> String {
        format!("scan/sum/f32/{}", count_name(self.elements))
    }

    fn amount(&self) -> Amount {
        f32s(2 * self.elements)
    }

    fn scale(&self) -> Scale {
        scale_of(self.elements)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Scan::sum(&place.normals().tensor([self.elements])?))
    }
}

/// A vector, sorted in ascending order.
pub struct SortCase {
    pub elements: usize,
}

impl Case for SortCase {
    fn name(&self) -> String {
        format!("sort/f32/{}", count_name(self.elements))
    }

    fn amount(&self) -> Amount {
        Amount::TimeOnly
    }

    fn scale(&self) -> Scale {
        scale_of(self.elements)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Sort::new(&place.normals().tensor([self.elements])?))
    }
}

/// The softmax of each row.
pub struct SoftmaxCase {
    pub rows: usize,
    pub columns: usize,
}

impl Case for SoftmaxCase {
    fn name(&self) -> String {
        format!("softmax/f32/{}x{}", self.rows, self.columns)
    }

    fn amount(&self) -> Amount {
        f32s(2 * self.rows * self.columns)
    }

    fn scale(&self) -> Scale {
        scale_of(self.rows * self.columns)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Softmax::new(&place.normals().tensor([self.rows, self.columns])?))
    }
}

/// Each row, shifted and scaled to mean 0 and variance 1.
pub struct LayerNormCase {
    pub rows: usize,
    pub columns: usize,
}

impl Case for LayerNormCase {
    fn name(&self) -> String {
        format!("layernorm/f32/{}x{}", self.rows, self.columns)
    }

    fn amount(&self) -> Amount {
        f32s(2 * self.rows * self.columns)
    }

    fn scale(&self) -> Scale {
        scale_of(self.rows * self.columns)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(LayerNorm::new(&place.normals().tensor([self.rows, self.columns])?))
    }
}

/// A matrix, transposed in memory.
pub struct TransposeCase {
    pub rows: usize,
    pub columns: usize,
}

impl Case for TransposeCase {
    fn name(&self) -> String {
        format!("transpose/f32/{}x{}", self.rows, self.columns)
    }

    fn amount(&self) -> Amount {
        f32s(2 * self.rows * self.columns)
    }

    fn scale(&self) -> Scale {
        scale_of(self.rows * self.columns)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(Transpose::new(&place.normals().tensor([self.rows, self.columns])?))
    }
}

/// The `k` largest elements of each row, with their indices.
pub struct TopKCase {
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
}

impl Case for TopKCase {
    fn name(&self) -> String {
        format!("topk/f32/{}x{}/k{}", self.rows, self.columns, self.k)
    }

    fn amount(&self) -> Amount {
        f32s(self.rows * self.columns)
    }

    fn scale(&self) -> Scale {
        scale_of(self.rows * self.columns)
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        place.repeat(TopK::new(&place.normals().tensor([self.rows, self.columns])?, self.k))
    }
}

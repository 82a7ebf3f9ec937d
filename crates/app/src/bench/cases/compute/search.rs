//! Cases of the exact search for the nearest rows.

use panoply::DType;
use panoply::prelude::{Metric, Search};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// The `k` rows with the largest dot products, by exact search.
#[derive(Clone, Copy)]
pub struct SearchCase {
    pub dtype: DType,
    pub rows: usize,
    pub dims: usize,
    pub queries: usize,
    pub k: usize,
}

impl Case for SearchCase {
    fn name(&self) -> String {
        let SearchCase { dtype, rows, dims, queries, k } = self;
        format!("search/dot/{dtype}/{rows}x{dims}/q{queries}k{k}")
    }

    fn amount(&self) -> Amount {
        Amount::Queries(self.queries as f64)
    }

    fn scale(&self) -> Scale {
        match self.rows {
            0..=100_000 => Scale::Medium,
            100_001..=1_000_000 => Scale::Large,
            _ => Scale::Huge,
        }
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let (SearchCase { dtype, rows, dims, queries, k }, mut normals) = (*self, place.normals());
        let (rows, queries) = (normals.tensor_of(dtype, [rows, dims])?, normals.tensor_of(dtype, [queries, dims])?);
        place.repeat(Search::new(&rows, &queries, Metric::Dot, k))
    }
}

//! The division of rows of floats among the registers of threads; shared by the ops that read each
//! row once.

use panoply_core::DType;
use panoply_kernels::c::{Kernel, Unit};

use crate::driver::{Address, Launch, Properties};

/// Threads of a block with one row per warp, and the minimum threads of a block with a single row.
const BLOCK_THREADS: usize = 256;
const VECTOR_BYTES: usize = 16;
/// Maximum 32-bit registers per thread for row elements.
const VALUE_REGISTERS_MAX: usize = 32;
/// Maximum number of threads per row.
const GROUP_MAX: usize = 512;

/// The division of a row among threads; see `rows.h` of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSplit {
    /// Threads per row: a warp, or a block.
    pub(crate) group: usize,
    /// Vectors per thread.
    pub(crate) items: usize,
    /// Elements per vector.
    pub(crate) vector: usize,
    /// Lanes per warp.
    pub(crate) warp: usize,
}

impl RowSplit {
    /// For contiguous rows of this length at these addresses. `None` if the rows are too long.
    pub(crate) fn new(dtype: DType, len: usize, device: &Properties, addresses: &[Address]) -> Option<RowSplit> {
        RowSplit::with_vector(dtype, len, device, vector(dtype, len, addresses))
    }

    /// For rows of this length, in vectors of `vector` elements. `None` if the rows are too long.
    pub(crate) fn with_vector(dtype: DType, len: usize, device: &Properties, vector: usize) -> Option<RowSplit> {
        let warp = device.warp_lanes as usize;
        let vectors = len.div_ceil(vector).max(1);
        let values_max = VALUE_REGISTERS_MAX / dtype.size_bytes().div_ceil(4);
        let items_max = values_max / vector;
        let mut group = warp;
        while group * items_max < vectors {
            group = if group == warp { BLOCK_THREADS } else { group * 2 };
        }
        let items = vectors.div_ceil(group).next_power_of_two();
        (group <= GROUP_MAX.min(device.block_threads_max as usize)).then_some(RowSplit { group, items, vector, warp })
    }

    /// For rows that are read several times by blocks of 256 threads.
    pub(crate) fn streamed(dtype: DType, len: usize, warp: usize, addresses: &[Address]) -> RowSplit {
        RowSplit { group: BLOCK_THREADS, items: 1, vector: vector(dtype, len, addresses), warp }
    }

    /// A kernel with these parameters; `mode` is its section of the unit.
    pub(crate) fn kernel(&self, unit: Unit, entry: &'static str, mode: &'static str, dtype: DType) -> Kernel {
        Kernel::new(unit, entry)
            .dtype("T", dtype)
            .integer("GROUP", self.group as i64)
            .integer("ITEMS", self.items as i64)
            .integer("VECTOR", self.vector as i64)
            .integer("VECTOR_BYTES", (self.vector * dtype.size_bytes()) as i64)
            .flag(mode, true)
    }

    /// A launch for `rows` rows.
    pub(crate) fn launch(&self, rows: usize) -> Launch {
        if self.group > self.warp {
            return Launch::new(rows, self.group);
        }
        Launch::new(rows.div_ceil(BLOCK_THREADS / self.warp), BLOCK_THREADS)
    }
}

/// Elements per vector: as many as 16 bytes hold if every row is aligned to 16 bytes, else one.
fn vector(dtype: DType, len: usize, addresses: &[Address]) -> usize {
    let width = VECTOR_BYTES / dtype.size_bytes();
    let aligned = addresses.iter().all(|address| address.is_multiple_of(VECTOR_BYTES as u64));
    if aligned && len.is_multiple_of(width) { width } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_their_threads() {
        let of = |dtype, len, warp_lanes, address| {
            let device = Properties { warp_lanes, ..Properties::plain() };
            let rows = RowSplit::new(dtype, len, &device, &[Address(address)]);
            rows.map(|rows| (rows.group, rows.items, rows.vector))
        };
        assert_eq!(of(DType::F32, 1024, 32, 256), Some((32, 8, 4)));
        assert_eq!(of(DType::F32, 1024, 32, 4), Some((32, 32, 1)));
        assert_eq!(of(DType::F32, 16384, 32, 0), Some((512, 8, 4)));
        assert_eq!(of(DType::F32, 16388, 32, 0), None);
        assert_eq!(of(DType::F16, 1, 32, 0), Some((32, 1, 1)));
        assert_eq!(of(DType::F32, 1024, 64, 256), Some((64, 4, 4)));
        assert_eq!(of(DType::F32, 4096, 64, 256), Some((256, 4, 4)));
    }
}

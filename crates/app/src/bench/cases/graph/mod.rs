//! Cases of the graph domain: chains that must fuse into one kernel, and a small network.

mod chains;
mod mlp;

use crate::bench::cases::case::{Case, MI};
use chains::{Chain, ChainCase, RowsCase};
use mlp::MlpCase;
use panoply::DType;

/// Every case of the domain.
pub const CASES: &[&dyn Case] = &[
    &ChainCase { dtype: DType::F32, elements: MI },
    &ChainCase { dtype: DType::F32, elements: 16 * MI },
    &ChainCase { dtype: DType::F32, elements: 64 * MI },
    &ChainCase { dtype: DType::F16, elements: 64 * MI },
    &RowsCase { chain: Chain::AddLayerNormGelu, rows: 1024, columns: 1024 },
    &RowsCase { chain: Chain::SoftmaxMask, rows: 1024, columns: 1024 },
    &RowsCase { chain: Chain::NormRows, rows: 1024, columns: 1024 },
    &RowsCase { chain: Chain::AddLayerNormGelu, rows: 65_536, columns: 1024 },
    &RowsCase { chain: Chain::SoftmaxMask, rows: 65_536, columns: 1024 },
    &RowsCase { chain: Chain::NormRows, rows: 65_536, columns: 1024 },
    &MlpCase { dtype: DType::F32, batch: 1 },
    &MlpCase { dtype: DType::F32, batch: 64 },
    &MlpCase { dtype: DType::F32, batch: 4096 },
    &MlpCase { dtype: DType::F16, batch: 1 },
    &MlpCase { dtype: DType::F16, batch: 64 },
    &MlpCase { dtype: DType::F16, batch: 4096 },
];

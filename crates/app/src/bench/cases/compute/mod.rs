//! Cases of the compute domain.

mod attention;
mod elementwise;
mod image;
mod matmul;
mod rows;
mod search;

use panoply::DType;

use crate::bench::cases::case::{Case, MI};
use attention::AttentionCase;
pub use elementwise::ScaleAddReluCase;
use elementwise::{AddCase, AddsCase};
use image::{Conv2dCase, ResizeCase};
use matmul::{LinearReluCase, MatMulCase, Numbers};
use rows::{LayerNormCase, ScanCase, SoftmaxCase, SortCase, SumCase, TopKCase, TransposeCase};
use search::SearchCase;

/// Every case of the domain.
pub const CASES: &[&dyn Case] = &[
    &MatMulCase { numbers: Numbers::F32, size: 256 },
    &MatMulCase { numbers: Numbers::F32, size: 1024 },
    &MatMulCase { numbers: Numbers::Tf32, size: 1024 },
    &MatMulCase { numbers: Numbers::F32, size: 2048 },
    &MatMulCase { numbers: Numbers::BF16, size: 1024 },
    &MatMulCase { numbers: Numbers::F16, size: 1024 },
    &MatMulCase { numbers: Numbers::F32, size: 4096 },
    &MatMulCase { numbers: Numbers::Tf32, size: 4096 },
    &MatMulCase { numbers: Numbers::F16, size: 4096 },
    &MatMulCase { numbers: Numbers::BF16, size: 4096 },
    &MatMulCase { numbers: Numbers::F32, size: 8192 },
    &MatMulCase { numbers: Numbers::Tf32, size: 8192 },
    &MatMulCase { numbers: Numbers::F16, size: 8192 },
    &MatMulCase { numbers: Numbers::BF16, size: 8192 },
    &LinearReluCase { dtype: DType::F32, size: 4096 },
    &LinearReluCase { dtype: DType::F16, size: 4096 },
    &LinearReluCase { dtype: DType::BF16, size: 4096 },
    &AddCase { elements: 64 },
    &AddsCase { elements: 64, count: 10_000 },
    &AddCase { elements: MI },
    &ScaleAddReluCase { elements: 16 * MI },
    &SumCase { elements: 16 * MI },
    &ScanCase { elements: 16 * MI },
    &SortCase { elements: 16 * MI },
    &SoftmaxCase { rows: 8192, columns: 1024 },
    &LayerNormCase { rows: 8192, columns: 1024 },
    &TransposeCase { rows: 4096, columns: 4096 },
    &TopKCase { rows: 64, columns: 65_536, k: 10 },
    &ScaleAddReluCase { elements: 256 * MI },
    &SumCase { elements: 256 * MI },
    &ScanCase { elements: 256 * MI },
    &SortCase { elements: 64 * MI },
    &SoftmaxCase { rows: 65_536, columns: 1024 },
    &attention(DType::F16, [16, 16, 2048, 64], false),
    &attention(DType::BF16, [16, 16, 2048, 64], false),
    &attention(DType::F32, [16, 16, 2048, 64], false),
    &attention(DType::F16, [16, 16, 2048, 64], true),
    &attention(DType::BF16, [16, 16, 2048, 64], true),
    &attention(DType::F32, [16, 16, 2048, 64], true),
    &attention(DType::F16, [1, 32, 8192, 128], false),
    &attention(DType::BF16, [1, 32, 8192, 128], false),
    &attention(DType::F32, [1, 32, 8192, 128], false),
    &attention(DType::F16, [1, 32, 8192, 128], true),
    &attention(DType::BF16, [1, 32, 8192, 128], true),
    &attention(DType::F32, [1, 32, 8192, 128], true),
    &attention(DType::F16, [64, 12, 128, 64], false),
    &attention(DType::BF16, [64, 12, 128, 64], false),
    &attention(DType::F32, [64, 12, 128, 64], false),
    &attention(DType::F16, [1, 12, 128, 64], false),
    &attention(DType::BF16, [1, 12, 128, 64], false),
    &attention(DType::F32, [1, 12, 128, 64], false),
    &Conv2dCase { dtype: DType::F32, batch: 8, channels: 64, side: 56, kernel: 3 },
    &Conv2dCase { dtype: DType::F16, batch: 64, channels: 256, side: 56, kernel: 3 },
    &ResizeCase { batch: 8, channels: 3, height: 1080, width: 1920, side: 224 },
    &ResizeCase { batch: 64, channels: 3, height: 1080, width: 1920, side: 224 },
    &SearchCase { dtype: DType::F32, rows: 100_000, dims: 128, queries: 1, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 100_000, dims: 128, queries: 64, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 100_000, dims: 768, queries: 1, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 100_000, dims: 768, queries: 64, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 16, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 256, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1024, k: 10 },
    &SearchCase { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 1, k: 10 },
    &SearchCase { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 16, k: 10 },
    &SearchCase { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 256, k: 10 },
    &SearchCase { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 1024, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 1_000_000, dims: 768, queries: 1, k: 10 },
    &SearchCase { dtype: DType::F32, rows: 1_000_000, dims: 768, queries: 1024, k: 10 },
    &SearchCase { dtype: DType::F16, rows: 10_000_000, dims: 128, queries: 1, k: 10 },
];

const fn attention(dtype: DType, [batch, heads, length, width]: [usize; 4], is_causal: bool) -> AttentionCase {
    AttentionCase { dtype, batch, heads, length, width, is_causal }
}

//! What can be measured, as data: which op, which element type, which sizes.
//!
//! Names are stable, so that figures of different versions, machines and libraries can be joined on them.

use panoply::DType;

/// 1024 · 1024 elements.
const MI: usize = 1 << 20;

/// Every case, in the order in which they are measured.
pub const CASES: &[Work] = &[
    Work::MatMul { dtype: DType::F32, size: 256 },
    Work::MatMul { dtype: DType::F32, size: 1024 },
    Work::MatMul { dtype: DType::F32, size: 2048 },
    Work::MatMul { dtype: DType::BF16, size: 1024 },
    Work::MatMul { dtype: DType::F16, size: 1024 },
    Work::Add { elements: 64 },
    Work::Add { elements: MI },
    Work::ScaleAddRelu { elements: 16 * MI },
    Work::Sum { elements: 16 * MI },
    Work::RunningSum { elements: 16 * MI },
    Work::Sort { elements: 16 * MI },
    Work::Softmax { rows: 8192, columns: 1024 },
    Work::LayerNorm { rows: 8192, columns: 1024 },
    Work::Transpose { rows: 4096, columns: 4096 },
    Work::TopK { rows: 64, columns: 65_536, k: 10 },
    Work::Conv2d { batch: 8, channels: 64, side: 56, kernel: 3 },
    Work::Resize { batch: 8, channels: 3, height: 1080, width: 1920, side: 224 },
    Work::Search { rows: 100_000, dims: 128, queries: 1, k: 10 },
    Work::Search { rows: 100_000, dims: 128, queries: 64, k: 10 },
    Work::Search { rows: 100_000, dims: 768, queries: 1, k: 10 },
    Work::Search { rows: 100_000, dims: 768, queries: 64, k: 10 },
];

/// One op with its sizes. Elements are f32 unless it says otherwise; inputs are seeded random normals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// The product of two square matrices.
    MatMul { dtype: DType, size: usize },
    /// The sum of two vectors.
    Add { elements: usize },
    /// relu(2x + y) of two vectors, fused.
    ScaleAddRelu { elements: usize },
    /// The sum of a vector.
    Sum { elements: usize },
    /// The sums of a vector's beginnings.
    RunningSum { elements: usize },
    /// A vector in ascending order.
    Sort { elements: usize },
    /// The softmax of each row.
    Softmax { rows: usize, columns: usize },
    /// Each row shifted and scaled to mean 0 and variance 1.
    LayerNorm { rows: usize, columns: usize },
    /// A matrix written out with its axes exchanged.
    Transpose { rows: usize, columns: usize },
    /// The largest elements of each row, with their positions.
    TopK { rows: usize, columns: usize, k: usize },
    /// As many filters as channels, over square images that keep their size.
    Conv2d { batch: usize, channels: usize, side: usize, kernel: usize },
    /// Images to squares, bilinear.
    Resize { batch: usize, channels: usize, height: usize, width: usize, side: usize },
    /// The rows with the largest dot products, exactly.
    Search { rows: usize, dims: usize, queries: usize, k: usize },
}

/// How much work one run is, in the unit that the case is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Additions and multiplications.
    Flops(f64),
    /// Bytes that must be read and written at the least.
    Bytes(f64),
    /// Queries answered.
    Queries(f64),
    /// Nothing to divide the time by that would mean something.
    TimeOnly,
}

impl Work {
    /// The case's name.
    pub fn name(&self) -> String {
        match *self {
            Work::MatMul { dtype, size } => format!("matmul/{dtype}/{size}"),
            Work::Add { elements } => format!("add/f32/{}", count_name(elements)),
            Work::ScaleAddRelu { elements } => format!("map/relu(2x+y)/f32/{}", count_name(elements)),
            Work::Sum { elements } => format!("reduce/sum/f32/{}", count_name(elements)),
            Work::RunningSum { elements } => format!("scan/sum/f32/{}", count_name(elements)),
            Work::Sort { elements } => format!("sort/f32/{}", count_name(elements)),
            Work::Softmax { rows, columns } => format!("softmax/f32/{rows}x{columns}"),
            Work::LayerNorm { rows, columns } => format!("layernorm/f32/{rows}x{columns}"),
            Work::Transpose { rows, columns } => format!("transpose/f32/{rows}x{columns}"),
            Work::TopK { rows, columns, k } => format!("topk/f32/{rows}x{columns}/k{k}"),
            Work::Conv2d { batch, channels, side, kernel } => {
                format!("conv2d/f32/{batch}x{channels}x{side}x{side}k{kernel}")
            }
            Work::Resize { batch, channels, height, width, side } => {
                format!("resize/f32/{batch}x{channels}x{height}x{width}to{side}")
            }
            Work::Search { rows, dims, queries, k } => format!("search/dot/f32/{rows}x{dims}/q{queries}k{k}"),
        }
    }

    /// How much work one run is.
    pub fn amount(&self) -> Amount {
        match *self {
            Work::MatMul { size, .. } => Amount::Flops(2.0 * (size * size * size) as f64),
            // What the smallest vectors show is the time of one op, not the speed of memory.
            Work::Add { elements } if elements < MI => Amount::TimeOnly,
            Work::Add { elements } | Work::ScaleAddRelu { elements } => f32s(3 * elements),
            Work::Sum { elements } => f32s(elements),
            Work::RunningSum { elements } => f32s(2 * elements),
            Work::Sort { .. } => Amount::TimeOnly,
            Work::Softmax { rows, columns } | Work::LayerNorm { rows, columns } | Work::Transpose { rows, columns } => {
                f32s(2 * rows * columns)
            }
            Work::TopK { rows, columns, .. } => f32s(rows * columns),
            Work::Conv2d { batch, channels, side, kernel } => {
                Amount::Flops(2.0 * (batch * side * side * channels * channels * kernel * kernel) as f64)
            }
            Work::Resize { .. } => Amount::TimeOnly,
            Work::Search { queries, .. } => Amount::Queries(queries as f64),
        }
    }
}

fn f32s(elements: usize) -> Amount {
    Amount::Bytes(4.0 * elements as f64)
}

/// A number of elements, in multiples of 1024 · 1024 where it is one.
fn count_name(elements: usize) -> String {
    if elements > 0 && elements.is_multiple_of(MI) { format!("{}Mi", elements / MI) } else { elements.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = CASES.iter().map(Work::name).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn names_stay_what_others_join_on() {
        let names: Vec<String> = CASES.iter().map(Work::name).collect();
        let joined = [
            "matmul/f32/1024",
            "matmul/bf16/1024",
            "add/f32/1Mi",
            "map/relu(2x+y)/f32/16Mi",
            "reduce/sum/f32/16Mi",
            "scan/sum/f32/16Mi",
            "sort/f32/16Mi",
            "conv2d/f32/8x64x56x56k3",
            "search/dot/f32/100000x128/q1k10",
            "search/dot/f32/100000x768/q64k10",
        ];
        for name in joined {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }
}

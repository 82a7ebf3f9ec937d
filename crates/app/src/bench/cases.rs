//! What can be measured, as data: which op, which element type, which sizes.
//!
//! Names are stable, so that figures of different versions, machines and libraries can be joined on them.

use panoply::DType;

/// 1024 · 1024 elements.
const MI: usize = 1 << 20;

/// Searches of each caller in one run.
pub const SEARCHES_PER_CALLER: usize = 50;

/// What keeps a GPU busy until it is measured.
pub const LOAD: Work = Work::ScaleAddRelu { elements: 16 * MI };

/// Every case, in the order in which they are measured. Those that [`Work::is_large`] are for devices with memory of their
/// own, unless they are asked for by name.
pub const CASES: &[Work] = &[
    Work::MatMul { product: Product::F32, size: 256 },
    Work::MatMul { product: Product::F32, size: 1024 },
    Work::MatMul { product: Product::Tf32, size: 1024 },
    Work::MatMul { product: Product::F32, size: 2048 },
    Work::MatMul { product: Product::BF16, size: 1024 },
    Work::MatMul { product: Product::F16, size: 1024 },
    Work::MatMul { product: Product::F32, size: 4096 },
    Work::MatMul { product: Product::Tf32, size: 4096 },
    Work::MatMul { product: Product::F16, size: 4096 },
    Work::MatMul { product: Product::BF16, size: 4096 },
    Work::MatMul { product: Product::F32, size: 8192 },
    Work::MatMul { product: Product::Tf32, size: 8192 },
    Work::MatMul { product: Product::F16, size: 8192 },
    Work::MatMul { product: Product::BF16, size: 8192 },
    Work::LinearRelu { dtype: DType::F32, size: 4096 },
    Work::LinearRelu { dtype: DType::F16, size: 4096 },
    Work::LinearRelu { dtype: DType::BF16, size: 4096 },
    Work::Add { elements: 64 },
    Work::Adds { elements: 64, count: 10_000 },
    Work::Add { elements: MI },
    Work::ScaleAddRelu { elements: 16 * MI },
    Work::Sum { elements: 16 * MI },
    Work::RunningSum { elements: 16 * MI },
    Work::Sort { elements: 16 * MI },
    Work::Softmax { rows: 8192, columns: 1024 },
    Work::LayerNorm { rows: 8192, columns: 1024 },
    Work::Transpose { rows: 4096, columns: 4096 },
    Work::TopK { rows: 64, columns: 65_536, k: 10 },
    Work::ScaleAddRelu { elements: 256 * MI },
    Work::Sum { elements: 256 * MI },
    Work::RunningSum { elements: 256 * MI },
    Work::Sort { elements: 64 * MI },
    Work::Softmax { rows: 65_536, columns: 1024 },
    Work::Conv2d { dtype: DType::F32, batch: 8, channels: 64, side: 56, kernel: 3 },
    Work::Conv2d { dtype: DType::F16, batch: 64, channels: 256, side: 56, kernel: 3 },
    Work::Resize { batch: 8, channels: 3, height: 1080, width: 1920, side: 224 },
    Work::Resize { batch: 64, channels: 3, height: 1080, width: 1920, side: 224 },
    Work::Search { dtype: DType::F32, rows: 100_000, dims: 128, queries: 1, k: 10 },
    Work::Search { dtype: DType::F32, rows: 100_000, dims: 128, queries: 64, k: 10 },
    Work::Search { dtype: DType::F32, rows: 100_000, dims: 768, queries: 1, k: 10 },
    Work::Search { dtype: DType::F32, rows: 100_000, dims: 768, queries: 64, k: 10 },
    Work::Search { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1, k: 10 },
    Work::Search { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 16, k: 10 },
    Work::Search { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 256, k: 10 },
    Work::Search { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1024, k: 10 },
    Work::Search { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 1, k: 10 },
    Work::Search { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 16, k: 10 },
    Work::Search { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 256, k: 10 },
    Work::Search { dtype: DType::F16, rows: 1_000_000, dims: 128, queries: 1024, k: 10 },
    Work::Search { dtype: DType::F32, rows: 1_000_000, dims: 768, queries: 1, k: 10 },
    Work::Search { dtype: DType::F32, rows: 1_000_000, dims: 768, queries: 1024, k: 10 },
    Work::Search { dtype: DType::F16, rows: 10_000_000, dims: 128, queries: 1, k: 10 },
    Work::Fft { lines: 1024, len: 1024 },
    Work::Fft { lines: 4096, len: 1024 },
    Work::Fft { lines: 1, len: MI },
    Work::Fft { lines: 65_536, len: 1024 },
    Work::Fft { lines: 16_384, len: 4096 },
    Work::Fft { lines: 64, len: MI },
    Work::Collection { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1, k: 10 },
    Work::Collection { dtype: DType::F32, rows: 1_000_000, dims: 128, queries: 1024, k: 10 },
    Work::Callers { rows: 1_000_000, dims: 128, callers: 1, k: 10 },
    Work::Callers { rows: 1_000_000, dims: 128, callers: 64, k: 10 },
    Work::Collection { dtype: DType::F16, rows: 10_000_000, dims: 128, queries: 1, k: 10 },
    Work::Upload { pinned: true, bytes: 1 << 30 },
    Work::Upload { pinned: false, bytes: 1 << 30 },
    Work::Download { bytes: 1 << 30 },
    Work::Stream { overlapped: false, batches: 64, bytes: 64 << 20 },
    Work::Stream { overlapped: true, batches: 64, bytes: 64 << 20 },
];

/// What a matrix product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    F32,
    /// f32 numbers, of which the device may round the products' operands to ten bits.
    Tf32,
    F16,
    BF16,
}

impl Product {
    /// The operands' element type.
    pub fn dtype(self) -> DType {
        match self {
            Product::F32 | Product::Tf32 => DType::F32,
            Product::F16 => DType::F16,
            Product::BF16 => DType::BF16,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Product::Tf32 => "tf32",
            other => other.dtype().name(),
        }
    }
}

/// One op with its sizes. Elements are f32 unless it says otherwise; inputs are seeded random normals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// The product of two square matrices.
    MatMul { product: Product, size: usize },
    /// relu(A·Bᵀ + bias) of square matrices, fused.
    LinearRelu { dtype: DType, size: usize },
    /// The sum of two vectors.
    Add { elements: usize },
    /// The sum of two vectors, many times, without waiting for one before the next is asked for.
    Adds { elements: usize, count: usize },
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
    Conv2d { dtype: DType, batch: usize, channels: usize, side: usize, kernel: usize },
    /// Images to squares, bilinear.
    Resize { batch: usize, channels: usize, height: usize, width: usize, side: usize },
    /// The rows with the largest dot products, exactly.
    Search { dtype: DType, rows: usize, dims: usize, queries: usize, k: usize },
    /// The spectra of lines of complex numbers.
    Fft { lines: usize, len: usize },
    /// The same through a collection in memory: vectors in, hits with their ids out.
    Collection { dtype: DType, rows: usize, dims: usize, queries: usize, k: usize },
    /// Threads that each search a collection for one query again and again; a run is as many searches for each.
    Callers { rows: usize, dims: usize, callers: usize, k: usize },
    /// Host memory to the device.
    Upload { pinned: bool, bytes: usize },
    /// The device's memory to the host.
    Download { bytes: usize },
    /// Batches from the host through one kernel and back: one after the other, or overlapped.
    Stream { overlapped: bool, batches: usize, bytes: usize },
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
            Work::MatMul { product, size } => format!("matmul/{}/{size}", product.name()),
            Work::LinearRelu { dtype, size } => format!("linear_relu/{dtype}/{size}"),
            Work::Add { elements } => format!("add/f32/{}", count_name(elements)),
            Work::Adds { elements, count } => format!("adds/f32/{}x{count}", count_name(elements)),
            Work::ScaleAddRelu { elements } => format!("map/relu(2x+y)/f32/{}", count_name(elements)),
            Work::Sum { elements } => format!("reduce/sum/f32/{}", count_name(elements)),
            Work::RunningSum { elements } => format!("scan/sum/f32/{}", count_name(elements)),
            Work::Sort { elements } => format!("sort/f32/{}", count_name(elements)),
            Work::Softmax { rows, columns } => format!("softmax/f32/{rows}x{columns}"),
            Work::LayerNorm { rows, columns } => format!("layernorm/f32/{rows}x{columns}"),
            Work::Transpose { rows, columns } => format!("transpose/f32/{rows}x{columns}"),
            Work::TopK { rows, columns, k } => format!("topk/f32/{rows}x{columns}/k{k}"),
            Work::Conv2d { dtype, batch, channels, side, kernel } => {
                format!("conv2d/{dtype}/{batch}x{channels}x{side}x{side}k{kernel}")
            }
            Work::Resize { batch, channels, height, width, side } => {
                format!("resize/f32/{batch}x{channels}x{height}x{width}to{side}")
            }
            Work::Search { dtype, rows, dims, queries, k } => {
                format!("search/dot/{dtype}/{rows}x{dims}/q{queries}k{k}")
            }
            Work::Fft { lines, len } => format!("fft/c64/{lines}x{len}"),
            Work::Collection { dtype, rows, dims, queries, k } => {
                format!("collection/dot/{dtype}/{rows}x{dims}/q{queries}k{k}")
            }
            Work::Callers { rows, dims, callers, k } => format!("collection/callers/{rows}x{dims}/c{callers}k{k}"),
            Work::Upload { pinned, bytes } => {
                format!("upload/{}/{}", if pinned { "pinned" } else { "ordinary" }, bytes_name(bytes))
            }
            Work::Download { bytes } => format!("download/pinned/{}", bytes_name(bytes)),
            Work::Stream { overlapped, batches, bytes } => {
                let how = if overlapped { "overlapped" } else { "serial" };
                format!("stream/{how}/{batches}x{}", bytes_name(bytes))
            }
        }
    }

    /// How much work one run is.
    pub fn amount(&self) -> Amount {
        match *self {
            Work::MatMul { size, .. } | Work::LinearRelu { size, .. } => {
                Amount::Flops(2.0 * (size * size * size) as f64)
            }
            // What the smallest vectors show is the time of one op, not the speed of memory.
            Work::Adds { .. } => Amount::TimeOnly,
            Work::Add { elements } if elements < MI => Amount::TimeOnly,
            Work::Add { elements } | Work::ScaleAddRelu { elements } => f32s(3 * elements),
            Work::Sum { elements } => f32s(elements),
            Work::RunningSum { elements } => f32s(2 * elements),
            Work::Sort { .. } => Amount::TimeOnly,
            Work::Softmax { rows, columns } | Work::LayerNorm { rows, columns } | Work::Transpose { rows, columns } => {
                f32s(2 * rows * columns)
            }
            Work::TopK { rows, columns, .. } => f32s(rows * columns),
            Work::Conv2d { batch, channels, side, kernel, .. } => {
                Amount::Flops(2.0 * (batch * side * side * channels * channels * kernel * kernel) as f64)
            }
            Work::Resize { .. } => Amount::TimeOnly,
            Work::Search { queries, .. } | Work::Collection { queries, .. } => Amount::Queries(queries as f64),
            Work::Callers { callers, .. } => Amount::Queries((callers * SEARCHES_PER_CALLER) as f64),
            // The spectrum is as large as the signal, and a complex number is two f32.
            Work::Fft { lines, len } => f32s(4 * lines * len),
            Work::Upload { bytes, .. } | Work::Download { bytes } => Amount::Bytes(bytes as f64),
            Work::Stream { batches, bytes, .. } => Amount::Bytes(2.0 * (batches * bytes) as f64),
        }
    }

    /// Whether the case is so large that it says something only of a device with memory of its own.
    pub fn is_large(&self) -> bool {
        match *self {
            Work::MatMul { product, size } => size > 2048 || product == Product::Tf32,
            Work::ScaleAddRelu { elements } | Work::Sum { elements } | Work::RunningSum { elements } => {
                elements > 16 * MI
            }
            Work::Sort { elements } => elements > 16 * MI,
            Work::Softmax { rows, .. } => rows > 8192,
            Work::Conv2d { batch, .. } | Work::Resize { batch, .. } => batch > 8,
            Work::Search { rows, .. } => rows > 100_000,
            Work::Collection { .. } | Work::Callers { .. } => true,
            Work::Fft { lines, len } => lines * len > 16 * MI,
            Work::LinearRelu { .. } | Work::Upload { .. } | Work::Download { .. } | Work::Stream { .. } => true,
            _ => false,
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

fn bytes_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{}GiB", bytes >> 30) } else { format!("{}MiB", bytes >> 20) }
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

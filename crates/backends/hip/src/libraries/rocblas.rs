//! rocBLAS: products of matrices. The library chooses its kernels and allocates its scratch memory.
//!
//! The library expects column-major matrices. Row-major D = A·B is column-major Dᵀ = Bᵀ·Aᵀ in the
//! same memory, so our B is its first operand and our A its second.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use libloading::Library;
use panoply_c_gpu::driver::Address;
use panoply_c_gpu::library::{Epilogue, Matrix, Order, ProductPlan, ProductProblem, Products};
use panoply_core::{DType, DeviceId, Error, Result};

use crate::runtime::first_whole;
use crate::sys::{Handle, functions};

const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;
const F16: c_int = 150;
const F32: c_int = 151;
const F64: c_int = 152;
const COMPLEX64: c_int = 154;
const BF16: c_int = 168;
/// The library chooses the algorithm.
const ALGORITHM_STANDARD: c_int = 0;

/// The constants above under their names in the library's headers.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[
    ("rocblas_operation_none", PLAIN),
    ("rocblas_operation_transpose", TRANSPOSED),
    ("rocblas_datatype_f16_r", F16),
    ("rocblas_datatype_f32_r", F32),
    ("rocblas_datatype_f64_r", F64),
    ("rocblas_datatype_f32_c", COMPLEX64),
    ("rocblas_datatype_bf16_r", BF16),
    ("rocblas_gemm_algo_standard", ALGORITHM_STANDARD),
];

functions! {
    /// The functions of rocBLAS that this crate calls.
    Functions {
        rocblas_create_handle(handle: *mut Handle) -> c_int;
        rocblas_destroy_handle(handle: Handle) -> c_int;
        rocblas_set_stream(handle: Handle, stream: Handle) -> c_int;
        rocblas_gemm_strided_batched_ex(handle: Handle, first: c_int, second: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void, a: *const c_void, a_type: c_int, a_step: c_int, a_batch: i64, b: *const c_void, b_type: c_int, b_step: c_int, b_batch: i64, beta: *const c_void, c: *const c_void, c_type: c_int, c_step: c_int, c_batch: i64, d: *mut c_void, d_type: c_int, d_step: c_int, d_batch: i64, batches: c_int, compute_type: c_int, algorithm: c_int, solution: i32, flags: u32) -> c_int;
    }
}

/// The library's handle on the engine's stream.
struct LibraryHandle {
    device: DeviceId,
    handle: Handle,
    functions: Functions,
    /// Held so that the functions stay loaded.
    _library: Library,
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: `open` created the handle, and it is not used again.
        let _ = unsafe { (self.functions.rocblas_destroy_handle)(self.handle) };
    }
}

/// The library on the engine's stream.
pub(crate) struct RocBlas {
    opened: Rc<LibraryHandle>,
}

/// A product that the library supports, described by its own constants.
struct BlasPlan {
    opened: Rc<LibraryHandle>,
    dtype: DType,
    /// Data types of the operands, of C and D, and of the computation.
    types: [c_int; 3],
    /// Our n, m and k, which are the library's m, n and k, and the number of products.
    sizes: [c_int; 4],
    /// For our B and our A: the operation (plain or transposed), the leading dimension and the
    /// batch stride.
    operands: [(c_int, c_int, i64); 2],
}

impl RocBlas {
    /// Opens the library, or returns why it is not available.
    pub(crate) fn open(names: &[String], device: DeviceId, stream: Handle) -> Result<RocBlas, String> {
        let found = first_whole(names, "rocBLAS", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        let mut handle = null_mut();
        // SAFETY: the call writes one handle.
        checked(unsafe { (functions.rocblas_create_handle)(&raw mut handle) })?;
        let opened = Rc::new(LibraryHandle { device, handle, functions, _library: library });
        // SAFETY: the handle was just created. The stream belongs to the driver, which drops this
        // handle first.
        checked(unsafe { (functions.rocblas_set_stream)(handle, stream) })?;
        Ok(RocBlas { opened })
    }
}

impl Products for RocBlas {
    /// The library can add C and nothing else. Any other epilogue is left to our own kernel.
    fn plan(&self, problem: &ProductProblem, epilogue: Epilogue, _has_c: bool) -> Option<Rc<dyn ProductPlan>> {
        let types = types(problem.dtype, problem.output).filter(|_| epilogue == Epilogue::None)?;
        let small = |size: usize| c_int::try_from(size).ok();
        let ProductProblem { m, n, k, batches, a, b, dtype, .. } = *problem;
        let sizes = [small(n)?, small(m)?, small(k)?, small(batches)?];
        let operands = [operand(&b, [k, n])?, operand(&a, [m, k])?];
        Some(Rc::new(BlasPlan { opened: Rc::clone(&self.opened), dtype, types, sizes, operands }))
    }
}

/// The library's numbers for the data types of the operands, the output and the computation. `None`
/// if the library has no such product.
fn types(dtype: DType, output: DType) -> Option<[c_int; 3]> {
    match (dtype, output) {
        (DType::F32, DType::F32) => Some([F32; 3]),
        (DType::F64, DType::F64) => Some([F64; 3]),
        (DType::Complex64, DType::Complex64) => Some([COMPLEX64; 3]),
        (DType::F16, DType::F16) => Some([F16, F16, F32]),
        (DType::F16, DType::F32) => Some([F16, F32, F32]),
        (DType::BF16, DType::BF16) => Some([BF16, BF16, F32]),
        (DType::BF16, DType::F32) => Some([BF16, F32, F32]),
        _ => None,
    }
}

/// Describes a matrix of `rows` × `columns` to the library. `None` if the library would refuse it.
fn operand(matrix: &Matrix, [rows, columns]: [usize; 2]) -> Option<(c_int, c_int, i64)> {
    let (way, contiguous) = match matrix.order {
        Order::Rows => (PLAIN, columns),
        Order::Columns => (TRANSPOSED, rows),
    };
    let step = c_int::try_from(matrix.step).ok()?;
    (usize::try_from(step).ok()? >= contiguous.max(1)).then_some((way, step, matrix.batch_step))
}

impl ProductPlan for BlasPlan {
    fn workspace_bytes(&self) -> usize {
        0
    }

    fn multiply(
        &self,
        factors: [f32; 2],
        addresses: [Address; 4],
        _bias: Option<Address>,
        _workspace: Address,
    ) -> Result<()> {
        let done = checked(self.queue(factors, addresses));
        done.map_err(|reason| Error::DeviceFault { device: self.opened.device, reason })
    }
}

impl BlasPlan {
    fn queue(&self, factors: [f32; 2], addresses: [Address; 4]) -> c_int {
        let [n, m, k, batches] = self.sizes;
        let [(first, b_step, b_batch), (second, a_step, a_batch)] = self.operands;
        let [a, b, c, d] = addresses.map(|address| address.0 as *mut c_void);
        let [alpha, beta] = factors.map(|factor| self.factor(factor));
        let [alpha, beta] = [(&raw const alpha).cast(), (&raw const beta).cast()];
        let (opened, [number, output, compute]) = (&self.opened, self.types);
        let batch = i64::from(m) * i64::from(n);
        // SAFETY: the memory at these addresses has the problem's layouts, and the op keeps it
        // until it has finished. The factors are read before the call returns, because the handle's
        // pointer mode is the host's.
        unsafe {
            (opened.functions.rocblas_gemm_strided_batched_ex)(
                opened.handle,
                first,
                second,
                n,
                m,
                k,
                alpha,
                b,
                number,
                b_step,
                b_batch,
                a,
                number,
                a_step,
                a_batch,
                beta,
                c,
                output,
                n,
                batch,
                d,
                output,
                n,
                batch,
                batches,
                compute,
                ALGORITHM_STANDARD,
                0,
                0,
            )
        }
    }

    /// Encodes alpha or beta in the computation's type: one f64, one f32, or two f32 whose second
    /// is a zero imaginary part.
    fn factor(&self, factor: f32) -> [f64; 2] {
        match self.dtype {
            DType::F64 => [f64::from(factor), 0.0],
            _ => [f64::from_bits(u64::from(factor.to_bits())), 0.0],
        }
    }
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("rocBLAS answers {status}")) }
}

//! cuBLASLt: products of matrices with the library's own choice of algorithm, kept for each
//! problem.
//!
//! The library is column-major. Row-major D = A·B is column-major Dᵀ = Bᵀ·Aᵀ in the same memory, so
//! our B is its first operand and our A its second.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::rc::Rc;

use cudarc::cublaslt::{result, sys};
use panoply_core::{DType, DeviceId, Error, Result};

use panoply_c_gpu::driver::Address;
use panoply_c_gpu::kept_plans::KeptPlans;
use panoply_c_gpu::library::{Epilogue, Matrix, Order, ProductPlan, ProductProblem, Products};

use super::CurrentStream;

/// The most workspace that the library may use.
const WORKSPACE_BYTES: usize = 64 << 20;
/// The most algorithms to ask for, and the fewest multiplications for which they are timed.
const WAYS_MAX: usize = 8;
const TIMED_PRODUCTS_MIN: usize = 1 << 24;
/// The most plans that are kept.
const PLANS_MAX: usize = 4096;

/// A problem, its epilogue, and whether C is added.
type PlanKey = (ProductProblem, Epilogue, bool);

/// The library's handle.
pub(crate) struct Cublas {
    device: DeviceId,
    handle: sys::cublasLtHandle_t,
    stream: CurrentStream,
    plans: KeptPlans<PlanKey, BlasLtPlan>,
}

/// The algorithms for a problem, with their descriptors.
pub(crate) struct BlasLtPlan {
    device: DeviceId,
    handle: sys::cublasLtHandle_t,
    stream: CurrentStream,
    dtype: DType,
    operation: sys::cublasLtMatmulDesc_t,
    /// The layouts of the library's first operand, its second, C and D.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    /// The algorithms that the heuristics suggest, the most promising first, each with its
    /// workspace. `taken` is the index of the one in use, final once `is_settled`.
    algorithms: Vec<(sys::cublasLtMatmulAlgo_t, usize)>,
    taken: Cell<usize>,
    is_settled: Cell<bool>,
}

impl Cublas {
    /// Opens the library, or returns why it is missing.
    pub(crate) fn open(device: DeviceId, stream: CurrentStream) -> Result<Cublas, String> {
        // SAFETY: looks for the library by name, which only runs its initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt was not found".to_owned());
        }
        let handle = result::create_handle().map_err(|error| format!("cublasLtCreate: {error}"))?;
        Ok(Cublas { device, handle, stream, plans: KeptPlans::new(PLANS_MAX) })
    }
}

impl Products for Cublas {
    fn plan(&self, problem: &ProductProblem, epilogue: Epilogue, has_c: bool) -> Option<Rc<dyn ProductPlan>> {
        let key = (*problem, epilogue, has_c);
        let plan = self.plans.get(key, || BlasLtPlan::new(self, problem, epilogue).ok());
        plan.map(|plan| plan as Rc<dyn ProductPlan>)
    }
}

impl ProductPlan for BlasLtPlan {
    fn workspace_bytes(&self) -> usize {
        match self.is_settled.get() {
            true => self.algorithms.get(self.taken.get()).map_or(0, |(_, bytes)| *bytes),
            false => self.algorithms.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
        }
    }

    fn ways(&self) -> usize {
        if self.is_settled.get() { 1 } else { self.algorithms.len() }
    }

    fn take(&self, way: usize, for_good: bool) {
        self.taken.set(way.min(self.algorithms.len().saturating_sub(1)));
        self.is_settled.set(for_good);
    }

    fn multiply(
        &self,
        factors: [f32; 2],
        addresses: [Address; 4],
        bias: Option<Address>,
        workspace: Address,
    ) -> Result<()> {
        let done = self.try_multiply(factors, addresses, bias, workspace);
        done.map_err(|error| Error::DeviceFault { device: self.device, reason: format!("cublasLtMatmul: {error}") })
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: `open` created the handle, which is not used again.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Alpha and beta in the type that the library computes in.
struct Scalars {
    words: [[f64; 2]; 2],
}

impl Scalars {
    fn new(dtype: DType, alpha: f32, beta: f32) -> Scalars {
        let word = |factor: f32| match dtype {
            DType::F64 => [f64::from(factor), 0.0],
            // The other types take one or two f32; the second is an imaginary part of zero.
            _ => [f64::from_bits(u64::from(factor.to_bits())), 0.0],
        };
        Scalars { words: [word(alpha), word(beta)] }
    }

    fn alpha(&self) -> *const c_void {
        (&raw const self.words[0]).cast()
    }

    fn beta(&self) -> *const c_void {
        (&raw const self.words[1]).cast()
    }
}

impl BlasLtPlan {
    fn new(library: &Cublas, problem: &ProductProblem, epilogue: Epilogue) -> Result<BlasLtPlan, result::CublasError> {
        let (compute, scale) = compute_type(problem);
        let mut plan = BlasLtPlan {
            device: library.device,
            handle: library.handle,
            stream: Rc::clone(&library.stream),
            dtype: problem.dtype,
            operation: result::create_matmul_desc(compute, scale)?,
            layouts: [std::ptr::null_mut(); 4],
            algorithms: Vec::new(),
            taken: Cell::new(0),
            is_settled: Cell::new(true),
        };
        use sys::cublasLtMatmulDescAttributes_t as A;
        plan.set(A::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(problem.b.order == Order::Columns))?;
        plan.set(A::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(problem.a.order == Order::Columns))?;
        use sys::cublasLtEpilogue_t as E;
        let wanted = match epilogue {
            Epilogue::None => E::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => E::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::Relu => E::CUBLASLT_EPILOGUE_RELU,
            Epilogue::ReluBias => E::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        plan.set(A::CUBLASLT_MATMUL_DESC_EPILOGUE, wanted as i32)?;
        let ProductProblem { m, n, k, batches, .. } = *problem;
        let plain = Matrix { order: Order::Rows, step: n as i64, batch_step: (m * n) as i64 };
        plan.layouts[0] = layout(problem.dtype, &problem.b, [k, n], batches)?;
        plan.layouts[1] = layout(problem.dtype, &problem.a, [m, k], batches)?;
        plan.layouts[2] = layout(problem.output, &plain, [m, n], batches)?;
        plan.layouts[3] = layout(problem.output, &plain, [m, n], batches)?;
        plan.choose(library.handle, problem)?;
        Ok(plan)
    }

    fn try_multiply(
        &self,
        [alpha, beta]: [f32; 2],
        [a, b, c, d]: [Address; 4],
        bias: Option<Address>,
        workspace: Address,
    ) -> Result<(), result::CublasError> {
        if let Some(Address(bias)) = bias {
            let which = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            // SAFETY: the descriptor belongs to the plan; the attribute is one pointer.
            unsafe { result::set_matmul_desc_attribute(self.operation, which, (&raw const bias).cast(), 8)? };
        }
        let scalars = Scalars::new(self.dtype, alpha, beta);
        let refused = result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        let (algorithm, workspace_bytes) = self.algorithms.get(self.taken.get()).ok_or(refused)?;
        let [first, second, third, fourth] = self.layouts;
        let pointer = |address: Address| address.0 as *mut c_void;
        // SAFETY: the descriptors belong to the plan, and the library outlives it; the addresses
        // point to memory with the plan's layouts, kept by the op until it has finished.
        unsafe {
            result::matmul(
                self.handle,
                self.operation,
                scalars.alpha(),
                scalars.beta(),
                pointer(b),
                first,
                pointer(a),
                second,
                pointer(c),
                third,
                pointer(d),
                fourth,
                algorithm,
                pointer(workspace),
                *workspace_bytes,
                self.stream.get().cast(),
            )
        }
    }

    fn set(&self, which: sys::cublasLtMatmulDescAttributes_t, value: i32) -> Result<(), result::CublasError> {
        // SAFETY: the descriptor belongs to the plan; these attributes are one 32-bit number each.
        unsafe { result::set_matmul_desc_attribute(self.operation, which, (&raw const value).cast(), 4) }
    }

    /// Asks the library for algorithms.
    fn choose(&mut self, handle: sys::cublasLtHandle_t, problem: &ProductProblem) -> Result<(), result::CublasError> {
        let preference = result::create_matmul_pref()?;
        let chosen = self.ask(handle, preference, problem);
        // SAFETY: the preference is not used again.
        let _ = unsafe { result::destroy_matmul_pref(preference) };
        self.algorithms = chosen?;
        // Small products are not worth the time of a trial.
        let ProductProblem { m, n, k, batches, dtype, .. } = *problem;
        let products = m.saturating_mul(n).saturating_mul(k).saturating_mul(batches);
        let is_worth_it = matches!(dtype, DType::F16 | DType::BF16) && products >= TIMED_PRODUCTS_MIN;
        self.is_settled.set(!is_worth_it || self.algorithms.len() < 2);
        Ok(())
    }

    fn ask(
        &self,
        handle: sys::cublasLtHandle_t,
        preference: sys::cublasLtMatmulPreference_t,
        problem: &ProductProblem,
    ) -> Result<Vec<(sys::cublasLtMatmulAlgo_t, usize)>, result::CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the preference is alive; the attribute is one size.
        unsafe {
            let which = P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(preference, which, (&raw const bytes).cast(), size_of::<usize>())?;
        }
        let mut wishes = vec![
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.align_bytes),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.align_bytes),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.align_bytes),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.align_bytes),
        ];
        if matches!(problem.output, DType::F16 | DType::BF16) {
            // Partial sums must be joined before they are rounded.
            let joined = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
            wishes.push((P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, joined));
        }
        for (which, wish) in wishes {
            // SAFETY: as above; the attribute is one 32-bit number.
            unsafe { result::set_matmul_pref_attribute(preference, which, (&raw const wish).cast(), 4)? };
        }
        let [first, second, third, fourth] = self.layouts;
        let mut results: [MaybeUninit<sys::cublasLtMatmulHeuristicResult_t>; WAYS_MAX] =
            [const { MaybeUninit::uninit() }; WAYS_MAX];
        let mut count = 0;
        // SAFETY: every descriptor is alive, and there is room for `WAYS_MAX` results.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.operation,
                first,
                second,
                third,
                fourth,
                preference,
                WAYS_MAX as i32,
                results.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        status.result()?;
        let filled = results.iter().take(usize::try_from(count).unwrap_or(0));
        // SAFETY: the library has filled `count` results.
        let named = filled.map(|result| unsafe { result.assume_init_ref() });
        let usable = named.filter(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let ways: Vec<_> = usable.map(|result| (result.algo, result.workspaceSize)).collect();
        match ways.is_empty() {
            true => Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)),
            false => Ok(ways),
        }
    }
}

impl Drop for BlasLtPlan {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: each layout was created for this plan and is destroyed once.
            let _ = unsafe { result::destroy_matrix_layout(layout) };
        }
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_desc(self.operation) };
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        DType::Complex64 => sys::cudaDataType::CUDA_C_32F,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}

/// The type that the library computes in, and the type of alpha and beta. f32 is rounded to TF32
/// only if the caller allows it.
fn compute_type(problem: &ProductProblem) -> (sys::cublasComputeType_t, sys::cudaDataType) {
    match problem.dtype {
        DType::F64 => (sys::cublasComputeType_t::CUBLAS_COMPUTE_64F, sys::cudaDataType::CUDA_R_64F),
        DType::Complex64 => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_C_32F),
        _ if problem.tf32 => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType::CUDA_R_32F),
        _ => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F),
    }
}

/// The layout of a matrix for the library: our contiguous rows are its columns.
fn layout(
    dtype: DType,
    matrix: &Matrix,
    [rows, cols]: [usize; 2],
    batches: usize,
) -> Result<sys::cublasLtMatrixLayout_t, result::CublasError> {
    let (height, width) = match matrix.order {
        Order::Rows => (cols, rows),
        Order::Columns => (rows, cols),
    };
    let layout = result::create_matrix_layout(data_type(dtype), height as u64, width as u64, matrix.step)?;
    let (count, step) = (batches as i32, matrix.batch_step);
    use sys::cublasLtMatrixLayoutAttribute_t as A;
    // SAFETY: the layout was just created; the attributes are a 32-bit and a 64-bit number.
    unsafe {
        let counted = (&raw const count).cast();
        result::set_matrix_layout_attribute(layout, A::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, counted, 4)?;
        let stepped = (&raw const step).cast();
        result::set_matrix_layout_attribute(layout, A::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stepped, 8)?;
    }
    Ok(layout)
}

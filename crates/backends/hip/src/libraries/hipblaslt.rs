//! hipBLASLt: products of f16, bf16 and f32. The library chooses an algorithm, which is cached for
//! each problem. rocBLAS computes all other products.
//!
//! The library expects column-major matrices. Row-major D = A·B is column-major Dᵀ = Bᵀ·Aᵀ in the
//! same memory, so our B is its first operand and our A its second.

#![allow(non_snake_case)] // The functions keep their libraries' names.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use libloading::Library;
use panoply_c_gpu::driver::Address;
use panoply_c_gpu::kept_plans::KeptPlans;
use panoply_c_gpu::library::{Epilogue, Matrix, Order, ProductPlan, ProductProblem, Products};
use panoply_core::{DType, DeviceId, Error, Result};

use crate::runtime::first_whole;
use crate::sys::{Handle, functions};

/// Maximum size of the library's workspace.
const WORKSPACE_BYTES: u64 = 64 << 20;
/// Maximum number of cached plans.
const PLANS_MAX: usize = 4096;
/// The first version whose data types have the numbers below: 0.6.0, of ROCm 6.0.
const VERSION_MIN: c_int = 600;

const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;
const F32: c_int = 0;
const F16: c_int = 2;
const BF16: c_int = 14;
const COMPUTE_F32: c_int = 2;
const COMPUTE_TF32: c_int = 6;
const EPILOGUE_NONE: c_int = 1;
const EPILOGUE_BIAS: c_int = 4;
const LAYOUT_BATCHES: c_int = 0;
const LAYOUT_BATCH_STEP: c_int = 1;
const PRODUCT_FIRST: c_int = 0;
const PRODUCT_SECOND: c_int = 1;
const PRODUCT_EPILOGUE: c_int = 2;
const PRODUCT_BIAS: c_int = 3;
const PRODUCT_BIAS_TYPE: c_int = 4;
const PREFERENCE_WORKSPACE_BYTES: c_int = 1;

/// The constants above under their names in the library's headers.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[
    ("HIPBLAS_OP_N", PLAIN),
    ("HIPBLAS_OP_T", TRANSPOSED),
    ("HIP_R_32F", F32),
    ("HIP_R_16F", F16),
    ("HIP_R_16BF", BF16),
    ("HIPBLAS_COMPUTE_32F", COMPUTE_F32),
    ("HIPBLAS_COMPUTE_32F_FAST_TF32", COMPUTE_TF32),
    ("HIPBLASLT_EPILOGUE_DEFAULT", EPILOGUE_NONE),
    ("HIPBLASLT_EPILOGUE_BIAS", EPILOGUE_BIAS),
    ("HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT", LAYOUT_BATCHES),
    ("HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", LAYOUT_BATCH_STEP),
    ("HIPBLASLT_MATMUL_DESC_TRANSA", PRODUCT_FIRST),
    ("HIPBLASLT_MATMUL_DESC_TRANSB", PRODUCT_SECOND),
    ("HIPBLASLT_MATMUL_DESC_EPILOGUE", PRODUCT_EPILOGUE),
    ("HIPBLASLT_MATMUL_DESC_BIAS_POINTER", PRODUCT_BIAS),
    ("HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE", PRODUCT_BIAS_TYPE),
    ("HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES", PREFERENCE_WORKSPACE_BYTES),
];

/// An algorithm, laid out as in the library.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Algorithm {
    data: [u8; 16],
    workspace_bytes_max: usize,
}

/// A recommended algorithm, with space for fields that newer versions may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RecommendedAlgorithm {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
    room: [u64; 32],
}

functions! {
    /// The functions of hipBLASLt that this crate calls.
    Functions {
        hipblasLtCreate(handle: *mut Handle) -> c_int;
        hipblasLtDestroy(handle: Handle) -> c_int;
        hipblasLtGetVersion(handle: Handle, version: *mut c_int) -> c_int;
        hipblasLtMatrixLayoutCreate(layout: *mut Handle, dtype: c_int, rows: u64, columns: u64, step: i64) -> c_int;
        hipblasLtMatrixLayoutDestroy(layout: Handle) -> c_int;
        hipblasLtMatrixLayoutSetAttribute(layout: Handle, which: c_int, value: *const c_void, bytes: usize) -> c_int;
        hipblasLtMatmulDescCreate(product: *mut Handle, compute: c_int, factors: c_int) -> c_int;
        hipblasLtMatmulDescDestroy(product: Handle) -> c_int;
        hipblasLtMatmulDescSetAttribute(product: Handle, which: c_int, value: *const c_void, bytes: usize) -> c_int;
        hipblasLtMatmulPreferenceCreate(preference: *mut Handle) -> c_int;
        hipblasLtMatmulPreferenceDestroy(preference: Handle) -> c_int;
        hipblasLtMatmulPreferenceSetAttribute(preference: Handle, which: c_int, value: *const c_void, bytes: usize) -> c_int;
        hipblasLtMatmulAlgoGetHeuristic(handle: Handle, product: Handle, a: Handle, b: Handle, c: Handle, d: Handle, preference: Handle, wanted: c_int, found: *mut RecommendedAlgorithm, count: *mut c_int) -> c_int;
        hipblasLtMatmul(handle: Handle, product: Handle, alpha: *const c_void, a: *const c_void, a_layout: Handle, b: *const c_void, b_layout: Handle, beta: *const c_void, c: *const c_void, c_layout: Handle, d: *mut c_void, d_layout: Handle, algorithm: *const Algorithm, workspace: *mut c_void, workspace_bytes: usize, stream: Handle) -> c_int;
    }
}

/// A problem, its epilogue, and whether C is added.
type PlanKey = (ProductProblem, Epilogue, bool);

/// The library on the engine's stream.
pub(crate) struct HipBlasLt {
    opened: Rc<LibraryHandle>,
    plans: KeptPlans<PlanKey, BlasLtPlan>,
}

/// The library's handle, shared by all plans.
struct LibraryHandle {
    device: DeviceId,
    stream: Handle,
    handle: Handle,
    functions: Functions,
    /// Held so that the functions stay loaded.
    _library: Library,
}

/// An algorithm for a problem, with its descriptors.
struct BlasLtPlan {
    opened: Rc<LibraryHandle>,
    product: Handle,
    /// Layouts of the library's first and second operands, and of C and D, which share one.
    layouts: [Handle; 3],
    algorithm: Algorithm,
    workspace_bytes: usize,
}

impl HipBlasLt {
    /// Opens the library, or returns why it is not available.
    pub(crate) fn open(names: &[String], device: DeviceId, stream: Handle) -> Result<HipBlasLt, String> {
        let found = first_whole(names, "hipBLASLt", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        let mut handle = null_mut();
        // SAFETY: the call writes one handle.
        checked(unsafe { (functions.hipblasLtCreate)(&raw mut handle) })?;
        let opened = LibraryHandle { device, stream, handle, functions, _library: library };
        let mut version = 0;
        // SAFETY: the handle was just created. The call writes one number.
        checked(unsafe { (functions.hipblasLtGetVersion)(handle, &raw mut version) })?;
        if version < VERSION_MIN {
            return Err(format!("hipBLASLt {version} is older than {VERSION_MIN}, and numbers its types otherwise"));
        }
        Ok(HipBlasLt { opened: Rc::new(opened), plans: KeptPlans::new(PLANS_MAX) })
    }
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: `open` created the handle. It is destroyed once, after the last plan.
        let _ = unsafe { (self.functions.hipblasLtDestroy)(self.handle) };
    }
}

impl Products for HipBlasLt {
    fn plan(&self, problem: &ProductProblem, epilogue: Epilogue, has_c: bool) -> Option<Rc<dyn ProductPlan>> {
        let key = (*problem, epilogue, has_c);
        let plan = self.plans.get(key, || BlasLtPlan::new(&self.opened, problem, epilogue));
        plan.map(|plan| plan as Rc<dyn ProductPlan>)
    }
}

impl ProductPlan for BlasLtPlan {
    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    fn multiply(
        &self,
        factors: [f32; 2],
        addresses: [Address; 4],
        bias: Option<Address>,
        workspace: Address,
    ) -> Result<()> {
        let done = self.queue(factors, addresses, bias, workspace);
        done.map_err(|reason| Error::DeviceFault { device: self.opened.device, reason })
    }
}

impl BlasLtPlan {
    /// Returns `None` if the library has no such product, or might compute it differently: how its
    /// relu treats NaN is unknown.
    fn new(opened: &Rc<LibraryHandle>, problem: &ProductProblem, epilogue: Epilogue) -> Option<BlasLtPlan> {
        let (dtype, output) = (data_type(problem.dtype)?, data_type(problem.output)?);
        let follows = match epilogue {
            Epilogue::None => EPILOGUE_NONE,
            Epilogue::Bias => EPILOGUE_BIAS,
            Epilogue::Relu | Epilogue::ReluBias => return None,
        };
        let none = null_mut();
        let mut plan = BlasLtPlan {
            opened: Rc::clone(opened),
            product: none,
            layouts: [none; 3],
            algorithm: Algorithm::default(),
            workspace_bytes: 0,
        };
        plan.describe(problem, [dtype, output], follows).and_then(|()| plan.choose()).ok()?;
        Some(plan)
    }

    fn describe(
        &mut self,
        problem: &ProductProblem,
        [dtype, output]: [c_int; 2],
        follows: c_int,
    ) -> Result<(), String> {
        let ProductProblem { m, n, k, batches, a, b, tf32, .. } = *problem;
        let compute = if tf32 { COMPUTE_TF32 } else { COMPUTE_F32 };
        // SAFETY: the call writes one handle. The factors are f32.
        checked(unsafe { (self.opened.functions.hipblasLtMatmulDescCreate)(&raw mut self.product, compute, F32) })?;
        let way = |matrix: &Matrix| if matrix.order == Order::Columns { TRANSPOSED } else { PLAIN };
        let told = [
            (PRODUCT_FIRST, way(&b)),
            (PRODUCT_SECOND, way(&a)),
            (PRODUCT_EPILOGUE, follows),
            (PRODUCT_BIAS_TYPE, output),
        ];
        told.iter().try_for_each(|(which, value)| self.set(*which, value))?;
        let plain = Matrix { order: Order::Rows, step: n as i64, batch_step: (m * n) as i64 };
        self.layouts[0] = layout(&self.opened, dtype, &b, [k, n], batches)?;
        self.layouts[1] = layout(&self.opened, dtype, &a, [m, k], batches)?;
        self.layouts[2] = layout(&self.opened, output, &plain, [m, n], batches)?;
        Ok(())
    }

    /// Selects the algorithm that the library recommends first.
    fn choose(&mut self) -> Result<(), String> {
        let (functions, mut preference) = (self.opened.functions, null_mut());
        // SAFETY: the call writes one handle.
        checked(unsafe { (functions.hipblasLtMatmulPreferenceCreate)(&raw mut preference) })?;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the preference was just created. The attribute is one 64-bit number.
        let set = checked(unsafe {
            let set = functions.hipblasLtMatmulPreferenceSetAttribute;
            set(preference, PREFERENCE_WORKSPACE_BYTES, (&raw const bytes).cast(), size_of::<u64>())
        });
        let (mut found, mut count) = (RecommendedAlgorithm::default(), 0);
        let [first, second, output] = self.layouts;
        let asked = set.and_then(|()| {
            // SAFETY: every descriptor is alive. `found` has space for the one requested
            // recommendation, and `count` for their number.
            checked(unsafe {
                (functions.hipblasLtMatmulAlgoGetHeuristic)(
                    self.opened.handle,
                    self.product,
                    first,
                    second,
                    output,
                    output,
                    preference,
                    1,
                    &raw mut found,
                    &raw mut count,
                )
            })
        });
        // SAFETY: created above, and not used again.
        let _ = unsafe { (functions.hipblasLtMatmulPreferenceDestroy)(preference) };
        asked?;
        if count < 1 || found.state != 0 || found.workspace_bytes as u64 > WORKSPACE_BYTES {
            return Err("hipBLASLt has no algorithm".to_owned());
        }
        (self.algorithm, self.workspace_bytes) = (found.algorithm, found.workspace_bytes);
        Ok(())
    }

    fn queue(
        &self,
        [alpha, beta]: [f32; 2],
        addresses: [Address; 4],
        bias: Option<Address>,
        workspace: Address,
    ) -> Result<(), String> {
        if let Some(Address(bias)) = bias {
            self.set(PRODUCT_BIAS, &bias)?;
        }
        let [a, b, c, d] = addresses.map(|address| address.0 as *mut c_void);
        let ([first, second, output], opened) = (self.layouts, &self.opened);
        // SAFETY: the plan owns the descriptors. The addresses have the plan's layouts, and the op
        // keeps their memory until it has finished. The factors are read before the call returns,
        // because the descriptor's pointer mode is the host's.
        checked(unsafe {
            (opened.functions.hipblasLtMatmul)(
                opened.handle,
                self.product,
                (&raw const alpha).cast(),
                b,
                first,
                a,
                second,
                (&raw const beta).cast(),
                c,
                output,
                d,
                output,
                &raw const self.algorithm,
                workspace.0 as *mut c_void,
                self.workspace_bytes,
                opened.stream,
            )
        })
    }

    /// Sets one attribute of the product's descriptor.
    fn set<T: Copy>(&self, which: c_int, value: &T) -> Result<(), String> {
        let set = self.opened.functions.hipblasLtMatmulDescSetAttribute;
        // SAFETY: the plan owns the descriptor. `T` has the attribute's size: 64 bits for an
        // address, 32 for the others.
        checked(unsafe { set(self.product, which, (&raw const *value).cast(), size_of::<T>()) })
    }
}

impl Drop for BlasLtPlan {
    fn drop(&mut self) {
        let functions = &self.opened.functions;
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: each layout was created for this plan and is destroyed once.
            let _ = unsafe { (functions.hipblasLtMatrixLayoutDestroy)(layout) };
        }
        if !self.product.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (functions.hipblasLtMatmulDescDestroy)(self.product) };
        }
    }
}

/// The library's number of a data type. `None` for the types left to rocBLAS.
fn data_type(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::F16 => Some(F16),
        DType::BF16 => Some(BF16),
        DType::F32 => Some(F32),
        _ => None,
    }
}

/// Describes our matrix in column-major terms: our contiguous rows are the library's columns.
fn layout(
    opened: &LibraryHandle,
    dtype: c_int,
    matrix: &Matrix,
    [rows, columns]: [usize; 2],
    batches: usize,
) -> Result<Handle, String> {
    let (height, width) = match matrix.order {
        Order::Rows => (columns, rows),
        Order::Columns => (rows, columns),
    };
    let count = c_int::try_from(batches).map_err(|_| "hipBLASLt counts products in 32 bits".to_owned())?;
    let (functions, mut made) = (&opened.functions, null_mut());
    // SAFETY: the call writes one handle.
    checked(unsafe {
        (functions.hipblasLtMatrixLayoutCreate)(&raw mut made, dtype, height as u64, width as u64, matrix.step)
    })?;
    let set = functions.hipblasLtMatrixLayoutSetAttribute;
    let (counted, stepped) = ((&raw const count).cast(), (&raw const matrix.batch_step).cast());
    // SAFETY: the layout was just created. The attributes are a 32-bit and a 64-bit number.
    let told = unsafe {
        checked(set(made, LAYOUT_BATCHES, counted, size_of::<c_int>()))
            .and_then(|()| checked(set(made, LAYOUT_BATCH_STEP, stepped, size_of::<i64>())))
    };
    told.map(|()| made).inspect_err(|_| {
        // SAFETY: created above, and not handed out.
        let _ = unsafe { (functions.hipblasLtMatrixLayoutDestroy)(made) };
    })
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("hipBLASLt answers {status}")) }
}

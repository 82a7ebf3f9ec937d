//! hipBLASLt for the emulated device, whose memory is the host's: plain loops. Over CUDA every call
//! fails.

use std::ffi::{c_int, c_void};

use crate::device::Handle;
use crate::libraries::{Product, answer, queue, read};

/// hipBLASLt's numbers of data types, each with rocBLAS's number of the same type.
const DTYPES: [(c_int, c_int); 3] = [(0, 151), (2, 150), (14, 168)];
const INVALID: c_int = 3;
const TRANSPOSED: c_int = 112;
const BIAS: c_int = 4;
/// The workspace that the library requires, to test that callers provide it.
const WORKSPACE_BYTES: usize = 96;
/// The first byte of every algorithm.
const ALGORITHM: u8 = 7;
/// The version of ROCm 6.4.
const VERSION: c_int = 1200;

#[derive(Clone, Copy, Default)]
struct MatrixLayout {
    dtype: c_int,
    step: i64,
    rows: i64,
    columns: i64,
    batches: i64,
    batch_step: i64,
}

#[derive(Clone, Copy)]
struct Description {
    turned: [c_int; 2],
    epilogue: c_int,
    bias: *const c_void,
    bias_type: c_int,
}

#[repr(C)]
pub struct Algorithm {
    data: [u8; 16],
    workspace_bytes_max: usize,
}

#[repr(C)]
pub struct RecommendedAlgorithm {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

unsafe fn make<T>(name: &str, place: *mut *mut c_void, value: T) -> c_int {
    let status = answer(name);
    if status == 0 {
        // SAFETY: the caller passes a valid pointer for the result.
        unsafe { place.write(Box::into_raw(Box::new(value)).cast()) };
    }
    status
}

unsafe fn give_back<T>(made: *mut c_void) -> c_int {
    // SAFETY: created above as this type, and destroyed once.
    drop(unsafe { Box::from_raw(made.cast::<T>()) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtCreate(handle: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { make("hipblasLtCreate", handle, 0_u64) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtDestroy(handle: *mut c_void) -> c_int {
    // SAFETY: the caller passes the object that the function's name says, here and below, and does
    // not use it again.
    unsafe { give_back::<u64>(handle) }
}

/// Reports an old version if a test injected a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtGetVersion(_handle: *mut c_void, version: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { version.write(if answer("hipblasLtGetVersion") == 0 { VERSION } else { 300 }) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatrixLayoutCreate(
    layout: *mut *mut c_void,
    dtype: c_int,
    rows: u64,
    columns: u64,
    step: i64,
) -> c_int {
    let Some((_, dtype)) = DTYPES.iter().find(|(own, _)| *own == dtype) else { return INVALID };
    let made =
        MatrixLayout { dtype: *dtype, step, rows: rows as i64, columns: columns as i64, batches: 1, batch_step: 0 };
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { make("hipblasLtMatrixLayoutCreate", layout, made) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatrixLayoutDestroy(layout: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { give_back::<MatrixLayout>(layout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatrixLayoutSetAttribute(
    layout: *mut c_void,
    which: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller passes a layout, and a number of `bytes` bytes.
    let layout = unsafe { &mut *layout.cast::<MatrixLayout>() };
    match (which, bytes) {
        // SAFETY: as above.
        (0, 4) => layout.batches = i64::from(unsafe { value.cast::<c_int>().read() }),
        // SAFETY: as above.
        (1, 8) => layout.batch_step = unsafe { value.cast::<i64>().read() },
        _ => return INVALID,
    }
    answer("hipblasLtMatrixLayoutSetAttribute")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulDescCreate(product: *mut *mut c_void, compute: c_int, factors: c_int) -> c_int {
    // Computation in f32, or in f32 rounded to tf32, with factors of f32.
    if ![2, 6].contains(&compute) || factors != 0 {
        return INVALID;
    }
    let made = Description { turned: [111; 2], epilogue: 1, bias: std::ptr::null(), bias_type: -1 };
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { make("hipblasLtMatmulDescCreate", product, made) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulDescDestroy(product: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { give_back::<Description>(product) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulDescSetAttribute(
    product: *mut c_void,
    which: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller passes a description, and a number of `bytes` bytes.
    let product = unsafe { &mut *product.cast::<Description>() };
    if which == 3 && bytes == 8 {
        // SAFETY: as above.
        product.bias = unsafe { value.cast::<*const c_void>().read() };
        return answer("hipblasLtMatmulDescSetAttribute");
    }
    if bytes != 4 {
        return INVALID;
    }
    // SAFETY: as above.
    let number = unsafe { value.cast::<c_int>().read() };
    match which {
        0 => product.turned[0] = number,
        1 => product.turned[1] = number,
        2 => product.epilogue = number,
        4 => product.bias_type = number,
        _ => return INVALID,
    }
    answer("hipblasLtMatmulDescSetAttribute")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceCreate(preference: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { make("hipblasLtMatmulPreferenceCreate", preference, 0_u64) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceDestroy(preference: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { give_back::<u64>(preference) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceSetAttribute(
    preference: *mut c_void,
    which: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    if (which, bytes) != (1, 8) {
        return INVALID;
    }
    // SAFETY: the caller passes a preference and a 64-bit number.
    unsafe { *preference.cast::<u64>() = value.cast::<u64>().read() };
    0
}

/// Recommends nothing if the layouts do not match or the allowed workspace is too small, like the
/// real library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulAlgoGetHeuristic(
    _handle: *mut c_void,
    product: *mut c_void,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
    d: *mut c_void,
    preference: *mut c_void,
    wanted: c_int,
    found: *mut RecommendedAlgorithm,
    count: *mut c_int,
) -> c_int {
    // SAFETY: the caller passes a description, four layouts, a preference, and valid pointers for
    // the results.
    unsafe {
        let product = &*product.cast::<Description>();
        let layouts = [a, b, c, d].map(|layout| *layout.cast::<MatrixLayout>());
        let fits = sizes(product, &layouts).is_some() && *preference.cast::<u64>() >= WORKSPACE_BYTES as u64;
        count.write(c_int::from(fits && wanted >= 1));
        if fits {
            let mut data = [0; 16];
            data[0] = ALGORITHM;
            let algorithm = Algorithm { data, workspace_bytes_max: WORKSPACE_BYTES };
            let state = answer("hipblasLtMatmulAlgoGetHeuristic");
            found.write(RecommendedAlgorithm {
                algorithm,
                workspace_bytes: WORKSPACE_BYTES,
                state,
                waves: 1.0,
                reserved: [0; 4],
            });
        }
    }
    0
}

/// Rows and columns of D and the inner dimension, if all layouts match.
fn sizes(product: &Description, [a, b, c, d]: &[MatrixLayout; 4]) -> Option<[i64; 3]> {
    let seen = |layout: &MatrixLayout, way: c_int| match way {
        TRANSPOSED => [layout.columns, layout.rows],
        _ => [layout.rows, layout.columns],
    };
    let ([m, k], [inner, n]) = (seen(a, product.turned[0]), seen(b, product.turned[1]));
    let alike = [a, b, c].iter().all(|layout| layout.batches == d.batches);
    let dense = [a, b, c, d].iter().all(|layout| layout.step >= layout.rows.max(1));
    let fits = k == inner && [d.rows, d.columns] == [m, n] && [c.rows, c.columns] == [m, n] && a.dtype == b.dtype;
    (alike && dense && fits).then_some([m, n, k])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmul(
    _handle: *mut c_void,
    product: *mut c_void,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: *mut c_void,
    b: *const c_void,
    b_layout: *mut c_void,
    beta: *const c_void,
    c: *const c_void,
    c_layout: *mut c_void,
    d: *mut c_void,
    d_layout: *mut c_void,
    algorithm: *const Algorithm,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: Handle,
) -> c_int {
    // SAFETY: the caller passes objects that the functions above created.
    let (described, layouts, chosen) = unsafe {
        let layouts = [a_layout, b_layout, c_layout, d_layout].map(|layout| *layout.cast::<MatrixLayout>());
        (*product.cast::<Description>(), layouts, &*algorithm)
    };
    let Some(sizes) = sizes(&described, &layouts) else { return INVALID };
    let lacks_bias = described.epilogue == BIAS && described.bias.is_null();
    let lacks_room = workspace.is_null() || workspace_bytes < WORKSPACE_BYTES;
    if chosen.data[0] != ALGORITHM || lacks_bias || lacks_room || c.is_null() {
        return INVALID;
    }
    let bias_type = DTYPES.iter().find(|(own, _)| *own == described.bias_type).map(|(_, dtype)| *dtype);
    if described.epilogue == BIAS && bias_type != Some(layouts[3].dtype) {
        return INVALID;
    }
    let bases = [a.cast_mut(), b.cast_mut(), c.cast_mut(), d];
    let product = Product {
        turned: described.turned.map(|way| way == TRANSPOSED),
        sizes,
        batches: layouts[3].batches,
        // SAFETY: the factors are f32, and are read immediately.
        factors: unsafe { [read(151, alpha, 0), read(151, beta, 0)] },
        places: std::array::from_fn(|which| (bases[which], layouts[which].step, layouts[which].batch_step)),
        dtypes: [layouts[0].dtype, layouts[3].dtype],
        bias: if described.epilogue == BIAS { described.bias } else { std::ptr::null() },
    };
    // SAFETY: the caller passes a stream.
    unsafe { queue("hipblasLtMatmul", stream, move || product.run()) }
}

//! rocBLAS and hipFFT for the emulated device, whose memory is the host's: plain loops. Over CUDA
//! every call fails.

use std::f64::consts::TAU;
use std::ffi::{c_int, c_longlong, c_void};
use std::sync::Arc;

use half::{bf16, f16};

use crate::device::{Handle, StreamWork, device};
use crate::trouble::asked_for;

const REFUSED: c_int = 1;
const TRANSPOSED: c_int = 112;

/// The status of a call: success on the emulated device, unless a test injected a failure.
pub(crate) fn answer(name: &str) -> c_int {
    asked_for(name).unwrap_or(if device().is_host() { 0 } else { REFUSED })
}

/// Queues a loop on a stream.
pub(crate) unsafe fn queue(name: &str, stream: Handle, work: impl Fn() + 'static) -> c_int {
    let work: StreamWork = Arc::new(work);
    match asked_for(name) {
        Some(status) => status,
        // SAFETY: the caller passes a stream.
        None => unsafe { device().queue(stream, work) }.err().unwrap_or(0),
    }
}

/// A handle points to its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rocblas_create_handle(handle: *mut *mut Handle) -> c_int {
    let status = answer("rocblas_create_handle");
    if status == 0 {
        // SAFETY: the caller passes a valid pointer for the result.
        unsafe { handle.write(Box::into_raw(Box::new(std::ptr::null_mut()))) };
    }
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rocblas_destroy_handle(handle: *mut Handle) -> c_int {
    // SAFETY: created above, and destroyed once.
    drop(unsafe { Box::from_raw(handle) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rocblas_set_stream(handle: *mut Handle, stream: Handle) -> c_int {
    // SAFETY: `rocblas_create_handle` created the handle.
    unsafe { *handle = stream };
    answer("rocblas_set_stream")
}

/// Reads one element as a complex number. `dtype` is rocBLAS's number of its type.
pub(crate) unsafe fn read(dtype: c_int, base: *const c_void, at: i64) -> (f64, f64) {
    let at = at as usize;
    // SAFETY: the caller vouches for the element.
    unsafe {
        match dtype {
            150 => (base.cast::<f16>().add(at).read().to_f64(), 0.0),
            168 => (base.cast::<bf16>().add(at).read().to_f64(), 0.0),
            152 => (base.cast::<f64>().add(at).read(), 0.0),
            154 => {
                let [re, im] = base.cast::<[f32; 2]>().add(at).read();
                (f64::from(re), f64::from(im))
            }
            _ => (f64::from(base.cast::<f32>().add(at).read()), 0.0),
        }
    }
}

pub(crate) unsafe fn write(dtype: c_int, base: *mut c_void, at: i64, (re, im): (f64, f64)) {
    let at = at as usize;
    // SAFETY: as above.
    unsafe {
        match dtype {
            150 => base.cast::<f16>().add(at).write(f16::from_f64(re)),
            168 => base.cast::<bf16>().add(at).write(bf16::from_f64(re)),
            152 => base.cast::<f64>().add(at).write(re),
            154 => base.cast::<[f32; 2]>().add(at).write([re as f32, im as f32]),
            _ => base.cast::<f32>().add(at).write(re as f32),
        }
    }
}

fn plus((a, b): (f64, f64), (c, d): (f64, f64)) -> (f64, f64) {
    (a + c, b + d)
}

fn times((a, b): (f64, f64), (c, d): (f64, f64)) -> (f64, f64) {
    (a * c - b * d, a * d + b * c)
}

/// A column-major product as in BLAS, with rocBLAS's numbers of data types.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    /// Whether A and B are transposed.
    pub(crate) turned: [bool; 2],
    /// Rows and columns of D, and the inner dimension.
    pub(crate) sizes: [i64; 3],
    pub(crate) batches: i64,
    pub(crate) factors: [(f64, f64); 2],
    /// Address, leading dimension and batch stride of A, B, C and D.
    pub(crate) places: [(*mut c_void, i64, i64); 4],
    /// Data types of the operands, and of C and D.
    pub(crate) dtypes: [c_int; 2],
    /// One element for each row of D, of D's type, or null.
    pub(crate) bias: *const c_void,
}

impl Product {
    /// Computes D = alpha · A·B + beta · C + bias.
    pub(crate) fn run(&self) {
        let [rows, columns, _] = self.sizes;
        for (batch, column) in (0..self.batches).flat_map(|batch| (0..columns).map(move |column| (batch, column))) {
            (0..rows).for_each(|row| self.element(batch, row, column));
        }
    }

    fn element(&self, batch: i64, row: i64, column: i64) {
        let ([dtype, output], [alpha, beta]) = (self.dtypes, self.factors);
        let at = |which: usize, row: i64, column: i64| {
            let (_, step, batch_step) = self.places[which];
            let [row, column] = if self.turned.get(which) == Some(&true) { [column, row] } else { [row, column] };
            batch * batch_step + row + column * step
        };
        let [a, b, c, d] = self.places.map(|(base, ..)| base);
        // SAFETY: the matrices have these sizes.
        unsafe {
            let sum = (0..self.sizes[2]).fold((0.0, 0.0), |sum, inner| {
                plus(sum, times(read(dtype, a, at(0, row, inner)), read(dtype, b, at(1, inner, column))))
            });
            let mut total = times(alpha, sum);
            if beta != (0.0, 0.0) {
                total = plus(total, times(beta, read(output, c, at(2, row, column))));
            }
            if !self.bias.is_null() {
                total = plus(total, read(output, self.bias, row));
            }
            write(output, d, at(3, row, column), total);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rocblas_gemm_strided_batched_ex(
    handle: *mut Handle,
    first: c_int,
    second: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    dtype: c_int,
    a_step: c_int,
    a_batch: i64,
    b: *const c_void,
    _b_type: c_int,
    b_step: c_int,
    b_batch: i64,
    beta: *const c_void,
    c: *const c_void,
    _c_type: c_int,
    c_step: c_int,
    c_batch: i64,
    d: *mut c_void,
    output: c_int,
    d_step: c_int,
    d_batch: i64,
    batches: c_int,
    compute: c_int,
    _algorithm: c_int,
    _solution: i32,
    _flags: u32,
) -> c_int {
    let place = |base: *const c_void, step: c_int, batch: i64| (base.cast_mut(), i64::from(step), batch);
    let product = Product {
        turned: [first == TRANSPOSED, second == TRANSPOSED],
        sizes: [m, n, k].map(i64::from),
        batches: i64::from(batches),
        // SAFETY: the factors have the computation's type, and are read immediately.
        factors: unsafe { [read(compute, alpha, 0), read(compute, beta, 0)] },
        places: [
            place(a, a_step, a_batch),
            place(b, b_step, b_batch),
            place(c, c_step, c_batch),
            place(d, d_step, d_batch),
        ],
        dtypes: [dtype, output],
        bias: std::ptr::null(),
    };
    // SAFETY: `rocblas_create_handle` created the handle.
    unsafe { queue("rocblas_gemm_strided_batched_ex", *handle, move || product.run()) }
}

/// A batch of lines and the stream that transforms them.
#[derive(Clone, Copy)]
struct FftBatch {
    len: usize,
    lines: usize,
    stream: Handle,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftCreate(plan: *mut *mut c_void) -> c_int {
    let status = answer("hipfftCreate");
    if status == 0 {
        let lines = FftBatch { len: 0, lines: 0, stream: std::ptr::null_mut() };
        // SAFETY: the caller passes a valid pointer for the result.
        unsafe { plan.write(Box::into_raw(Box::new(lines)).cast()) };
    }
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftDestroy(plan: Handle) -> c_int {
    // SAFETY: created above, and destroyed once.
    drop(unsafe { Box::from_raw(plan.cast::<FftBatch>()) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn hipfftSetAutoAllocation(_plan: Handle, _wanted: c_int) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftSetStream(plan: Handle, stream: Handle) -> c_int {
    // SAFETY: `hipfftCreate` created the plan.
    unsafe { (*plan.cast::<FftBatch>()).stream = stream };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn hipfftSetWorkArea(_plan: Handle, _workspace: Handle) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftMakePlanMany64(
    plan: Handle,
    rank: c_int,
    sizes: *mut c_longlong,
    _from: *mut c_longlong,
    _from_step: c_longlong,
    _from_line: c_longlong,
    _to: *mut c_longlong,
    _to_step: c_longlong,
    _to_line: c_longlong,
    _kind: c_int,
    lines: c_longlong,
    workspace_bytes: *mut usize,
) -> c_int {
    if rank != 1 {
        return REFUSED;
    }
    // SAFETY: `hipfftCreate` created the plan. There is one size, and a valid pointer for a number.
    unsafe {
        let made = &mut *plan.cast::<FftBatch>();
        (made.len, made.lines) = (*sizes as usize, lines as usize);
        workspace_bytes.write(64);
    }
    answer("hipfftMakePlanMany64")
}

/// One output element of a discrete Fourier transform: the sum of all inputs, each rotated by its
/// angle.
fn turned(len: usize, at: usize, sign: f64, element: impl Fn(usize) -> (f64, f64)) -> (f64, f64) {
    (0..len).fold((0.0, 0.0), |sum, from| {
        let angle = sign * TAU * ((at * from) % len) as f64 / len as f64;
        let (re, im) = times(element(from), (angle.cos(), angle.sin()));
        (sum.0 + re, sum.1 + im)
    })
}

/// The real or imaginary part of a complex number.
trait ComplexPart: Copy + Into<f64> + 'static {
    fn of(number: f64) -> Self;
}

impl ComplexPart for f32 {
    fn of(number: f64) -> f32 {
        number as f32
    }
}

impl ComplexPart for f64 {
    fn of(number: f64) -> f64 {
        number
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftExecC2C(
    plan: Handle,
    source: *const [f32; 2],
    target: *mut [f32; 2],
    direction: c_int,
) -> c_int {
    // SAFETY: the caller vouches for the plan and its lines, here and below.
    unsafe { complex("hipfftExecC2C", plan, source, target, direction) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftExecZ2Z(
    plan: Handle,
    source: *const [f64; 2],
    target: *mut [f64; 2],
    direction: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { complex("hipfftExecZ2Z", plan, source, target, direction) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftExecR2C(plan: Handle, source: *const f32, target: *mut [f32; 2]) -> c_int {
    // SAFETY: as above.
    unsafe { from_real("hipfftExecR2C", plan, source, target) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftExecD2Z(plan: Handle, source: *const f64, target: *mut [f64; 2]) -> c_int {
    // SAFETY: as above.
    unsafe { from_real("hipfftExecD2Z", plan, source, target) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftExecC2R(plan: Handle, source: *const [f32; 2], target: *mut f32) -> c_int {
    // SAFETY: as above.
    unsafe { to_real("hipfftExecC2R", plan, source, target) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipfftExecZ2D(plan: Handle, source: *const [f64; 2], target: *mut f64) -> c_int {
    // SAFETY: as above.
    unsafe { to_real("hipfftExecZ2D", plan, source, target) }
}

unsafe fn complex<T: ComplexPart>(
    name: &str,
    plan: Handle,
    source: *const [T; 2],
    target: *mut [T; 2],
    direction: c_int,
) -> c_int {
    let work = move |FftBatch { len, lines, .. }: FftBatch| {
        for line in 0..lines {
            // SAFETY: the caller vouches for the plan's lines, here and below.
            let from = unsafe { std::slice::from_raw_parts(source.add(line * len), len) }.to_vec();
            for at in 0..len {
                let element = |index: usize| (from[index][0].into(), from[index][1].into());
                let (re, im) = turned(len, at, f64::from(direction), element);
                // SAFETY: as above.
                unsafe { target.add(line * len + at).write([T::of(re), T::of(im)]) };
            }
        }
    };
    // SAFETY: `hipfftCreate` created the plan.
    unsafe { transform(name, plan, work) }
}

unsafe fn from_real<T: ComplexPart>(name: &str, plan: Handle, source: *const T, target: *mut [T; 2]) -> c_int {
    let work = move |FftBatch { len, lines, .. }: FftBatch| {
        let half = len / 2 + 1;
        for line in 0..lines {
            // SAFETY: as above.
            let from = unsafe { std::slice::from_raw_parts(source.add(line * len), len) };
            for at in 0..half {
                let (re, im) = turned(len, at, -1.0, |index| (from[index].into(), 0.0));
                // SAFETY: as above.
                unsafe { target.add(line * half + at).write([T::of(re), T::of(im)]) };
            }
        }
    };
    // SAFETY: as above.
    unsafe { transform(name, plan, work) }
}

unsafe fn to_real<T: ComplexPart>(name: &str, plan: Handle, source: *const [T; 2], target: *mut T) -> c_int {
    let work = move |FftBatch { len, lines, .. }: FftBatch| {
        let half = len / 2 + 1;
        for line in 0..lines {
            // SAFETY: as above.
            let from = unsafe { std::slice::from_raw_parts(source.add(line * half), half) }.to_vec();
            let element = |index: usize| {
                let [re, im] = from[index.min(len - index)];
                let is_plain = index == 0 || 2 * index == len;
                let sign = if is_plain {
                    0.0
                } else if index < half {
                    1.0
                } else {
                    -1.0
                };
                (re.into(), sign * im.into())
            };
            for at in 0..len {
                // SAFETY: as above.
                unsafe { target.add(line * len + at).write(T::of(turned(len, at, 1.0, element).0)) };
            }
        }
    };
    // SAFETY: as above.
    unsafe { transform(name, plan, work) }
}

/// Queues a transform of a plan's lines.
unsafe fn transform(name: &str, plan: Handle, work: impl Fn(FftBatch) + 'static) -> c_int {
    // SAFETY: the caller passes a plan.
    let lines = unsafe { *plan.cast::<FftBatch>() };
    // SAFETY: the plan's stream is alive.
    unsafe { queue(name, lines.stream, move || work(lines)) }
}

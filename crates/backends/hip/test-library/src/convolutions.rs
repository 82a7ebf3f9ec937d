//! MIOpen for the emulated device, whose memory is the host's: plain loops. Over CUDA every call
//! fails.

use std::ffi::{c_int, c_void};

use panoply_core::op::compute::ConvShape;

use crate::device::Handle;
use crate::libraries::{answer, queue, read, write};

/// MIOpen's numbers of data types, each with rocBLAS's number of the same type.
const DTYPES: [(c_int, c_int); 3] = [(0, 150), (1, 151), (5, 168)];
const UNKNOWN: c_int = 3;

#[derive(Clone, Copy, Default)]
struct Tensor {
    dtype: c_int,
    sizes: [i64; 4],
    steps: [i64; 4],
}

#[derive(Clone, Copy, Default)]
struct Convolution {
    padding: [i64; 2],
    stride: [i64; 2],
    dilation: [i64; 2],
    groups: i64,
}

/// A solution, laid out as in MIOpen.
#[repr(C)]
pub struct Solution {
    milliseconds: f32,
    workspace_bytes: usize,
    number: u64,
    algorithm: c_int,
}

/// The two solutions: one computes the right result, the other a wrong one and must not be chosen.
const RIGHT: u64 = 11;
const WRONG: u64 = 12;

unsafe fn make<T: Default>(name: &str, place: *mut *mut T) -> c_int {
    let status = answer(name);
    if status == 0 {
        // SAFETY: the caller passes a valid pointer for the result.
        unsafe { place.write(Box::into_raw(Box::<T>::default())) };
    }
    status
}

unsafe fn give_back<T>(made: *mut T) -> c_int {
    // SAFETY: created above, and destroyed once.
    drop(unsafe { Box::from_raw(made) });
    0
}

/// A handle points to its stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenCreateWithStream(handle: *mut *mut Handle, stream: Handle) -> c_int {
    let status = answer("miopenCreateWithStream");
    if status == 0 {
        // SAFETY: the caller passes a valid pointer for the result.
        unsafe { handle.write(Box::into_raw(Box::new(stream))) };
    }
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenDestroy(handle: *mut Handle) -> c_int {
    // SAFETY: the caller passes a handle and does not use it again.
    unsafe { give_back(handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenCreateTensorDescriptor(tensor: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { make::<Tensor>("miopenCreateTensorDescriptor", tensor.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenDestroyTensorDescriptor(tensor: *mut c_void) -> c_int {
    // SAFETY: the caller passes a descriptor and does not use it again.
    unsafe { give_back(tensor.cast::<Tensor>()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenSetTensorDescriptor(
    tensor: *mut c_void,
    dtype: c_int,
    rank: c_int,
    sizes: *const c_int,
    steps: *const c_int,
) -> c_int {
    let Some((_, dtype)) = DTYPES.iter().find(|(own, _)| *own == dtype).filter(|_| rank == 4) else { return UNKNOWN };
    // SAFETY: the caller passes a descriptor, four sizes and four strides.
    unsafe {
        let number = |from: *const c_int| std::array::from_fn(|axis| i64::from(from.add(axis).read()));
        *tensor.cast::<Tensor>() = Tensor { dtype: *dtype, sizes: number(sizes), steps: number(steps) };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenCreateConvolutionDescriptor(convolution: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { make::<Convolution>("miopenCreateConvolutionDescriptor", convolution.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenDestroyConvolutionDescriptor(convolution: *mut c_void) -> c_int {
    // SAFETY: the caller passes a descriptor and does not use it again.
    unsafe { give_back(convolution.cast::<Convolution>()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenInitConvolutionNdDescriptor(
    convolution: *mut c_void,
    rank: c_int,
    padding: *const c_int,
    stride: *const c_int,
    dilation: *const c_int,
    mode: c_int,
) -> c_int {
    if rank != 2 || mode != 0 {
        return UNKNOWN;
    }
    // SAFETY: the caller passes a descriptor, and arrays of two numbers.
    unsafe {
        let two = |from: *const c_int| [i64::from(from.read()), i64::from(from.add(1).read())];
        let (padding, stride, dilation) = (two(padding), two(stride), two(dilation));
        *convolution.cast::<Convolution>() = Convolution { padding, stride, dilation, groups: 1 };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenSetConvolutionGroupCount(convolution: *mut c_void, groups: c_int) -> c_int {
    // SAFETY: the caller passes a descriptor.
    unsafe { (*convolution.cast::<Convolution>()).groups = i64::from(groups) };
    0
}

/// Lists both solutions, the wrong one first.
unsafe fn solutions(name: &str, most: usize, count: *mut usize, list: *mut Solution) -> c_int {
    let status = answer(name);
    if status == 0 {
        let numbers = [WRONG, RIGHT];
        // SAFETY: the caller has space for `most` solutions and for their number.
        unsafe {
            for (place, number) in numbers.into_iter().take(most).enumerate() {
                list.add(place).write(Solution { milliseconds: 1.0, workspace_bytes: 64, number, algorithm: 1 });
            }
            count.write(numbers.len().min(most));
        }
    }
    status
}

impl Convolution {
    /// The sizes of a convolution of these images and weights.
    fn shape(&self, x: &Tensor, w: &Tensor) -> ConvShape {
        let [batch, channels, input @ ..] = x.sizes.map(|size| size as usize);
        let [filters, _, kernel @ ..] = w.sizes.map(|size| size as usize);
        let [top, left] = self.padding.map(|zeros| zeros as usize);
        ConvShape {
            batch,
            channels,
            filters,
            groups: self.groups.max(1) as usize,
            input,
            kernel,
            stride: self.stride.map(|step| step as usize),
            dilation: self.dilation.map(|step| step as usize),
            padding: [top, left, top, left],
        }
    }
}

impl Tensor {
    /// The place of an element.
    fn place(&self, at: [usize; 4]) -> i64 {
        at.iter().zip(self.steps).map(|(at, step)| *at as i64 * step).sum()
    }
}

/// Number of elements of a tensor.
fn room(tensor: &Tensor) -> usize {
    tensor.sizes.iter().product::<i64>() as usize
}

/// The two factors and the sum, as indices into input, weights and output.
#[derive(Clone, Copy)]
struct Roles {
    factors: [usize; 2],
    sums: usize,
}

/// Queues a convolution or a gradient. All tensors are contiguous.
unsafe fn convolve(
    name: &str,
    handle: *mut Handle,
    convolution: *const c_void,
    tensors: [(*const c_void, usize); 3],
    roles: Roles,
    number: u64,
) -> c_int {
    // SAFETY: the caller passes descriptors.
    let (convolution, described) =
        unsafe { (*convolution.cast::<Convolution>(), tensors.map(|(tensor, _)| *tensor.cast::<Tensor>())) };
    let places = tensors.map(|(_, place)| place);
    let work = move || {
        let [x, w, y] = &described;
        let mut sums = vec![0.0_f64; room(&described[roles.sums])];
        convolution.shape(x, w).for_each_product(|at| {
            let at = [x.place(at.input), w.place(at.weight), y.place(at.output)];
            let factor = |which: usize| {
                // SAFETY: the caller vouches for tensors of these sizes.
                unsafe { read(described[which].dtype, places[which] as *const c_void, at[which]) }.0
            };
            sums[at[roles.sums] as usize] += factor(roles.factors[0]) * factor(roles.factors[1]);
        });
        let offset = if number == WRONG { 1.0 } else { 0.0 };
        for (at, sum) in sums.iter().enumerate() {
            let (dtype, place) = (described[roles.sums].dtype, places[roles.sums]);
            // SAFETY: as above.
            unsafe { write(dtype, place as *mut c_void, at as i64, (sum + offset, 0.0)) };
        }
    };
    // SAFETY: the handle points to its stream.
    unsafe { queue(name, *handle, work) }
}

macro_rules! direction {
    ($solutions:ident, $compile:ident, $immediate:ident, $order:expr, $roles:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $solutions(
            _handle: *mut Handle,
            _first: *const c_void,
            _second: *const c_void,
            _convolution: *const c_void,
            _third: *const c_void,
            most: usize,
            count: *mut usize,
            list: *mut Solution,
        ) -> c_int {
            // SAFETY: the caller vouches for `list` and `count`.
            unsafe { solutions(stringify!($solutions), most, count, list) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $compile(
            _handle: *mut Handle,
            _first: *const c_void,
            _second: *const c_void,
            _convolution: *const c_void,
            _third: *const c_void,
            _number: u64,
        ) -> c_int {
            answer(stringify!($compile))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $immediate(
            handle: *mut Handle,
            first: *const c_void,
            first_at: usize,
            second: *const c_void,
            second_at: usize,
            convolution: *const c_void,
            third: *const c_void,
            third_at: usize,
            _workspace: *mut c_void,
            workspace_bytes: usize,
            number: u64,
        ) -> c_int {
            if workspace_bytes < 64 {
                return UNKNOWN;
            }
            let sides = [(first, first_at), (second, second_at), (third, third_at)];
            // Reorders the arguments to input, weights and output.
            let tensors = $order.map(|side: usize| sides[side]);
            // SAFETY: the caller vouches for handle, descriptors and memory.
            unsafe { convolve(stringify!($immediate), handle, convolution, tensors, $roles, number) }
        }
    };
}

direction!(
    miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardCompileSolution,
    miopenConvolutionForwardImmediate,
    [1, 0, 2],
    Roles { factors: [0, 1], sums: 2 }
);
direction!(
    miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate,
    [2, 1, 0],
    Roles { factors: [2, 1], sums: 0 }
);
direction!(
    miopenConvolutionBackwardWeightsGetSolution,
    miopenConvolutionBackwardWeightsCompileSolution,
    miopenConvolutionBackwardWeightsImmediate,
    [1, 2, 0],
    Roles { factors: [2, 0], sums: 1 }
);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn miopenConvolutionForwardBias(
    handle: *mut Handle,
    one: *const f32,
    _bias: *const c_void,
    numbers: usize,
    zero: *const f32,
    output: *const c_void,
    place: usize,
) -> c_int {
    // SAFETY: the caller passes two factors and a descriptor.
    let (factors, output) = unsafe { ((*one, *zero), *output.cast::<Tensor>()) };
    if factors != (1.0, 0.0) {
        return UNKNOWN;
    }
    let work = move || {
        for at in 0..output.sizes.iter().product::<i64>() {
            let (plane, row) = (output.sizes[2] * output.sizes[3], output.sizes[3]);
            let spot =
                [at / (output.sizes[1] * plane), at / plane % output.sizes[1], at / row % output.sizes[2], at % row];
            let to: i64 = spot.iter().zip(output.steps).map(|(at, step)| at * step).sum();
            // SAFETY: the caller vouches for an output of this size, and for one bias element per
            // channel.
            unsafe {
                let (sum, bias) = (
                    read(output.dtype, place as *const c_void, to).0,
                    read(output.dtype, numbers as *const c_void, spot[1]).0,
                );
                write(output.dtype, place as *mut c_void, to, (sum + bias, 0.0));
            }
        }
    };
    // SAFETY: the handle points to its stream.
    unsafe { queue("miopenConvolutionForwardBias", *handle, work) }
}

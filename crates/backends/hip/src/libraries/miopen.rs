//! MIOpen: convolutions and their gradients, through its immediate mode, which lists solutions
//! without running them. The op that requests the plans measures them, checks their results and
//! chooses one.

#![allow(non_snake_case)] // The functions keep their libraries' names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use libloading::Library;
use panoply_c_gpu::driver::Address;
use panoply_c_gpu::library::{ConvolutionKind, ConvolutionPlan, ConvolutionProblem, ConvolutionTensors, Convolutions};
use panoply_core::DType;

use crate::runtime::first_whole;
use crate::sys::{Handle, functions};

/// Maximum number of cached choices. The table is cleared when it is full.
const CHOICES_MAX: usize = 256;
/// Maximum number of solutions that are tried for one problem.
const SOLUTIONS_MAX: usize = 8;

const HALF: c_int = 0;
const FLOAT: c_int = 1;
const BFLOAT16: c_int = 5;
/// The convolution of neural networks: filters are not flipped.
const CROSS_CORRELATION: c_int = 0;

/// The constants above under their names in the library's headers.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[
    ("miopenHalf", HALF),
    ("miopenFloat", FLOAT),
    ("miopenBFloat16", BFLOAT16),
    ("miopenConvolution", CROSS_CORRELATION),
];

/// One algorithm for a convolution, laid out as in the library.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Solution {
    milliseconds: f32,
    workspace_bytes: usize,
    number: u64,
    algorithm: c_int,
}

functions! {
    /// The functions of MIOpen that this crate calls.
    Functions {
        miopenCreateWithStream(handle: *mut Handle, stream: Handle) -> c_int;
        miopenDestroy(handle: Handle) -> c_int;
        miopenCreateTensorDescriptor(tensor: *mut Handle) -> c_int;
        miopenDestroyTensorDescriptor(tensor: Handle) -> c_int;
        miopenSetTensorDescriptor(tensor: Handle, dtype: c_int, rank: c_int, sizes: *const c_int, steps: *const c_int) -> c_int;
        miopenCreateConvolutionDescriptor(convolution: *mut Handle) -> c_int;
        miopenDestroyConvolutionDescriptor(convolution: Handle) -> c_int;
        miopenInitConvolutionNdDescriptor(convolution: Handle, rank: c_int, padding: *const c_int, stride: *const c_int, dilation: *const c_int, mode: c_int) -> c_int;
        miopenSetConvolutionGroupCount(convolution: Handle, groups: c_int) -> c_int;
        miopenConvolutionForwardGetSolution(handle: Handle, weights: Handle, input: Handle, convolution: Handle, output: Handle, most: usize, count: *mut usize, solutions: *mut Solution) -> c_int;
        miopenConvolutionForwardCompileSolution(handle: Handle, weights: Handle, input: Handle, convolution: Handle, output: Handle, number: u64) -> c_int;
        miopenConvolutionForwardImmediate(handle: Handle, weights: Handle, w: *const c_void, input: Handle, x: *const c_void, convolution: Handle, output: Handle, y: *mut c_void, workspace: *mut c_void, workspace_bytes: usize, number: u64) -> c_int;
        miopenConvolutionForwardBias(handle: Handle, one: *const c_void, bias: Handle, b: *const c_void, zero: *const c_void, output: Handle, y: *mut c_void) -> c_int;
        miopenConvolutionBackwardDataGetSolution(handle: Handle, output: Handle, weights: Handle, convolution: Handle, input: Handle, most: usize, count: *mut usize, solutions: *mut Solution) -> c_int;
        miopenConvolutionBackwardDataCompileSolution(handle: Handle, output: Handle, weights: Handle, convolution: Handle, input: Handle, number: u64) -> c_int;
        miopenConvolutionBackwardDataImmediate(handle: Handle, output: Handle, dy: *const c_void, weights: Handle, w: *const c_void, convolution: Handle, input: Handle, dx: *mut c_void, workspace: *mut c_void, workspace_bytes: usize, number: u64) -> c_int;
        miopenConvolutionBackwardWeightsGetSolution(handle: Handle, output: Handle, input: Handle, convolution: Handle, weights: Handle, most: usize, count: *mut usize, solutions: *mut Solution) -> c_int;
        miopenConvolutionBackwardWeightsCompileSolution(handle: Handle, output: Handle, input: Handle, convolution: Handle, weights: Handle, number: u64) -> c_int;
        miopenConvolutionBackwardWeightsImmediate(handle: Handle, output: Handle, dy: *const c_void, input: Handle, x: *const c_void, convolution: Handle, weights: Handle, dw: *mut c_void, workspace: *mut c_void, workspace_bytes: usize, number: u64) -> c_int;
    }
}

/// The library on the engine's stream.
pub(crate) struct MiOpen {
    opened: Rc<LibraryHandle>,
    choices: RefCell<HashMap<ConvolutionProblem, Option<Rc<dyn ConvolutionPlan>>>>,
}

/// The library's handle, shared by all plans.
struct LibraryHandle {
    functions: Functions,
    handle: Handle,
    /// Held so that the functions stay loaded.
    _library: Library,
}

impl MiOpen {
    /// Opens the library, or returns why it is not available.
    pub(crate) fn open(names: &[String], stream: Handle) -> Result<MiOpen, String> {
        let found = first_whole(names, "MIOpen", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        let mut handle = null_mut();
        // SAFETY: the call writes one handle. The stream is the engine's, which outlives the
        // library's handle.
        checked(unsafe { (functions.miopenCreateWithStream)(&raw mut handle, stream) })?;
        let opened = Rc::new(LibraryHandle { functions, handle, _library: library });
        Ok(MiOpen { opened, choices: RefCell::default() })
    }
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: `open` created the handle. It is destroyed once, after the last plan.
        let _ = unsafe { (self.functions.miopenDestroy)(self.handle) };
    }
}

impl Convolutions for MiOpen {
    fn plans(&self, problem: &ConvolutionProblem) -> Result<Vec<Rc<dyn ConvolutionPlan>>, String> {
        let described = Rc::new(ProblemDescriptors::new(&self.opened, problem)?);
        let solutions = described.solutions()?;
        let plan =
            |solution| Rc::new(SolutionPlan { described: Rc::clone(&described), solution }) as Rc<dyn ConvolutionPlan>;
        // A solution that does not compile is skipped.
        let plans = solutions.into_iter().filter(|solution| described.compile(solution.number).is_ok()).map(plan);
        Ok(plans.collect())
    }

    fn choice(&self, problem: &ConvolutionProblem) -> Option<Option<Rc<dyn ConvolutionPlan>>> {
        self.choices.borrow().get(problem).cloned()
    }

    fn choose(&self, problem: ConvolutionProblem, plan: Option<Rc<dyn ConvolutionPlan>>) {
        let mut choices = self.choices.borrow_mut();
        if choices.len() >= CHOICES_MAX {
            choices.clear();
        }
        choices.insert(problem, plan);
    }
}

/// One solution of one problem.
struct SolutionPlan {
    described: Rc<ProblemDescriptors>,
    solution: Solution,
}

impl ConvolutionPlan for SolutionPlan {
    fn problem(&self) -> &ConvolutionProblem {
        &self.described.problem
    }

    fn workspace_bytes(&self) -> usize {
        self.solution.workspace_bytes
    }

    fn name(&self) -> String {
        format!("solution {} of algorithm {}", self.solution.number, self.solution.algorithm)
    }

    fn run(&self, tensors: &ConvolutionTensors, workspace: Address) -> Result<(), String> {
        self.described.run(tensors, workspace, self.solution)
    }
}

/// A problem as descriptors of the library.
struct ProblemDescriptors {
    problem: ConvolutionProblem,
    input: Handle,
    weights: Handle,
    output: Handle,
    bias: Handle,
    convolution: Handle,
    opened: Rc<LibraryHandle>,
}

impl ProblemDescriptors {
    fn new(opened: &Rc<LibraryHandle>, problem: &ConvolutionProblem) -> Result<ProblemDescriptors, String> {
        let [before, after] = problem.padding;
        if before != after {
            return Err("MIOpen pads both sides alike".to_owned());
        }
        let dtype = match problem.dtype {
            DType::F16 => HALF,
            DType::F32 => FLOAT,
            DType::BF16 => BFLOAT16,
            other => return Err(format!("MIOpen does not convolve {other}")),
        };
        if problem.has_bias && problem.dtype == DType::BF16 {
            return Err("MIOpen adds no bias to bf16".to_owned());
        }
        let none = null_mut();
        let mut described = ProblemDescriptors {
            problem: *problem,
            input: none,
            weights: none,
            output: none,
            bias: none,
            convolution: none,
            opened: Rc::clone(opened),
        };
        let last = problem.channels_last;
        described.input = tensor(opened, dtype, problem.input, last)?;
        described.weights = tensor(opened, dtype, problem.weights, last)?;
        described.output = tensor(opened, dtype, problem.output, last)?;
        if problem.has_bias {
            described.bias = tensor(opened, dtype, [1, problem.output[1], 1, 1], last)?;
        }
        described.convolution = convolution(opened, problem)?;
        Ok(described)
    }

    /// The descriptors in the library's order of arguments: two factors, then the result.
    fn sides(&self) -> [Handle; 3] {
        match self.problem.kind {
            ConvolutionKind::Forward => [self.weights, self.input, self.output],
            ConvolutionKind::Input => [self.output, self.weights, self.input],
            ConvolutionKind::Weights => [self.output, self.input, self.weights],
        }
    }

    /// The library's solutions, in its order of preference.
    fn solutions(&self) -> Result<Vec<Solution>, String> {
        let (functions, [first, second, sums]) = (&self.opened.functions, self.sides());
        let ask = match self.problem.kind {
            ConvolutionKind::Forward => functions.miopenConvolutionForwardGetSolution,
            ConvolutionKind::Input => functions.miopenConvolutionBackwardDataGetSolution,
            ConvolutionKind::Weights => functions.miopenConvolutionBackwardWeightsGetSolution,
        };
        let (mut found, mut count) = ([Solution::default(); SOLUTIONS_MAX], 0);
        let (handle, list, counted) = (self.opened.handle, found.as_mut_ptr(), &raw mut count);
        // SAFETY: handle and descriptors are alive. `found` has space for `SOLUTIONS_MAX`
        // solutions, and `count` for their number.
        checked(unsafe { ask(handle, first, second, self.convolution, sums, SOLUTIONS_MAX, counted, list) })?;
        Ok(found[..count.min(SOLUTIONS_MAX)].to_vec())
    }

    /// Compiles a solution. The first time takes a while.
    fn compile(&self, number: u64) -> Result<(), String> {
        let (functions, [first, second, sums]) = (&self.opened.functions, self.sides());
        let compile = match self.problem.kind {
            ConvolutionKind::Forward => functions.miopenConvolutionForwardCompileSolution,
            ConvolutionKind::Input => functions.miopenConvolutionBackwardDataCompileSolution,
            ConvolutionKind::Weights => functions.miopenConvolutionBackwardWeightsCompileSolution,
        };
        // SAFETY: handle and descriptors are alive, and the library returned this number for them.
        checked(unsafe { compile(self.opened.handle, first, second, self.convolution, sums, number) })
    }

    fn run(&self, tensors: &ConvolutionTensors, workspace: Address, solution: Solution) -> Result<(), String> {
        let (functions, [first, second, sums]) = (&self.opened.functions, self.sides());
        let [x, w, y, room] = [tensors.input, tensors.weights, tensors.output, workspace].map(|at| at.0 as *mut c_void);
        let (run, [one, two, to]) = match self.problem.kind {
            ConvolutionKind::Forward => (functions.miopenConvolutionForwardImmediate, [w, x, y]),
            ConvolutionKind::Input => (functions.miopenConvolutionBackwardDataImmediate, [y, w, x]),
            ConvolutionKind::Weights => (functions.miopenConvolutionBackwardWeightsImmediate, [y, x, w]),
        };
        let (handle, bytes, number) = (self.opened.handle, solution.workspace_bytes, solution.number);
        // A solution without a workspace expects a null address.
        let room = if bytes == 0 { null_mut() } else { room };
        // SAFETY: handle and descriptors are alive. The addresses are tensors with the problem's
        // dimensions and a workspace of the solution's size, and the op keeps them until it has
        // finished.
        checked(unsafe { run(handle, first, one, second, two, self.convolution, sums, to, room, bytes, number) })?;
        match tensors.bias.filter(|_| !self.bias.is_null()) {
            Some(bias) => self.add_bias(bias, y),
            None => Ok(()),
        }
    }

    /// Adds the bias to each channel of the output. The library accepts only the factors 1 and 0
    /// here, and they mean the sum.
    fn add_bias(&self, bias: Address, y: *mut c_void) -> Result<(), String> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (one, zero) = ((&raw const one).cast(), (&raw const zero).cast());
        let (functions, handle) = (&self.opened.functions, self.opened.handle);
        // SAFETY: as in `run`. The bias has one element for each channel.
        checked(unsafe {
            let add = functions.miopenConvolutionForwardBias;
            add(handle, one, self.bias, bias.0 as *const c_void, zero, self.output, y)
        })
    }
}

impl Drop for ProblemDescriptors {
    fn drop(&mut self) {
        let functions = &self.opened.functions;
        for tensor in [self.input, self.weights, self.output, self.bias].into_iter().filter(|one| !one.is_null()) {
            // SAFETY: created for this problem, and destroyed once.
            let _ = unsafe { (functions.miopenDestroyTensorDescriptor)(tensor) };
        }
        if !self.convolution.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (functions.miopenDestroyConvolutionDescriptor)(self.convolution) };
        }
    }
}

/// Creates the descriptor of a contiguous tensor, channels-first (NCHW) or channels-last (NHWC).
fn tensor(opened: &LibraryHandle, dtype: c_int, sizes: [i64; 4], channels_last: bool) -> Result<Handle, String> {
    let [batch, channels, height, width] = narrow(sizes)?;
    let whole = i64::from(channels) * i64::from(height) * i64::from(width);
    let whole = c_int::try_from(whole).map_err(|_| too_large())?;
    let steps = match channels_last {
        true => [whole, 1, width * channels, channels],
        false => [whole, height * width, width, 1],
    };
    let (sizes, functions, mut made) = ([batch, channels, height, width], &opened.functions, null_mut());
    // SAFETY: the call writes one handle.
    checked(unsafe { (functions.miopenCreateTensorDescriptor)(&raw mut made) })?;
    // SAFETY: the descriptor was just created. `sizes` and `steps` have four elements, as passed.
    let set = unsafe { (functions.miopenSetTensorDescriptor)(made, dtype, 4, sizes.as_ptr(), steps.as_ptr()) };
    checked(set).map(|()| made).inspect_err(|_| {
        // SAFETY: created above, and not handed out.
        let _ = unsafe { (functions.miopenDestroyTensorDescriptor)(made) };
    })
}

fn convolution(opened: &LibraryHandle, problem: &ConvolutionProblem) -> Result<Handle, String> {
    let ConvolutionProblem { input, weights, stride, dilation, padding, .. } = *problem;
    let [padding, stride, dilation] = [narrow(padding[0])?, narrow(stride)?, narrow(dilation)?];
    let [groups] = narrow([input[1].checked_div(weights[1]).unwrap_or(0)])?;
    let (functions, mut made) = (&opened.functions, null_mut());
    // SAFETY: the call writes one handle.
    checked(unsafe { (functions.miopenCreateConvolutionDescriptor)(&raw mut made) })?;
    // SAFETY: the descriptor was just created. Each array has two elements, as passed.
    let set = checked(unsafe {
        let init = functions.miopenInitConvolutionNdDescriptor;
        init(made, 2, padding.as_ptr(), stride.as_ptr(), dilation.as_ptr(), CROSS_CORRELATION)
    })
    // SAFETY: as above.
    .and_then(|()| checked(unsafe { (functions.miopenSetConvolutionGroupCount)(made, groups) }));
    set.map(|()| made).inspect_err(|_| {
        // SAFETY: created above, and not handed out.
        let _ = unsafe { (functions.miopenDestroyConvolutionDescriptor)(made) };
    })
}

/// Converts numbers to the library's 32 bits.
fn narrow<const COUNT: usize>(numbers: [i64; COUNT]) -> Result<[c_int; COUNT], String> {
    let mut narrowed = [0; COUNT];
    for (to, from) in narrowed.iter_mut().zip(numbers) {
        *to = c_int::try_from(from).map_err(|_| too_large())?;
    }
    Ok(narrowed)
}

fn too_large() -> String {
    "MIOpen counts in 32 bits".to_owned()
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("MIOpen answers {status}")) }
}

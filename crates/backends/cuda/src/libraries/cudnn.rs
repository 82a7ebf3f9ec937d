//! cuDNN: convolutions and their gradients through the library's graphs.
//!
//! A [`ConvolutionProblem`] becomes a graph of one convolution with its epilogue, which is computed
//! in f32 before the result is rounded: the sums with a residual and with a bias, and an
//! activation. The library's heuristics suggest engines for the graph. Engines that break our
//! promises are left out: those that round f32 down for tensor cores, that accumulate in less than
//! f32, that give different bits from run to run, or that spread one NaN over its neighbours
//! (Winograd and FFT). The others become [`CudnnPlan`]s, which the caller times once for each
//! problem.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cudnn::{result, sys};
use cudarc::driver::sys::CUstream;
use panoply_core::DType;
use panoply_core::op::compute::Activation;

use panoply_c_gpu::driver::Address;
use panoply_c_gpu::library::{
    CONVOLUTION_ALIGN_BYTES, ConvolutionKind, ConvolutionPlan, ConvolutionProblem, ConvolutionTensors, Convolutions,
};

use super::CurrentStream;

use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendAttributeType_t as Kind;
use sys::cudnnBackendDescriptorType_t as Type;
use sys::cudnnBackendNumericalNote_t as Note;

/// The most plans for one problem.
const PLANS_MAX: usize = 12;
/// The same with an activation or a residual: the library compiles a kernel for each of those
/// plans.
const FUSED_PLANS_MAX: usize = 5;
/// The most engines to ask for.
const CONFIGS_MAX: usize = 64;
/// The most choices that are kept; when the table is full it is emptied.
const CHOICES_MAX: usize = 4096;

/// Names of tensors in a graph.
const X: i64 = 1;
const W: i64 = 2;
const Y: i64 = 3;
const BIAS: i64 = 4;
const RESIDUAL: i64 = 5;
/// The name of the first tensor between convolution and result; the next ones follow it.
const SUMS: i64 = 6;

/// The library's handle, and the best plan of each problem.
pub(crate) struct Cudnn {
    choices: RefCell<HashMap<ConvolutionProblem, Option<Rc<dyn ConvolutionPlan>>>>,
    handle: Rc<CudnnHandle>,
}

/// A handle, which queues its work on the stream that it was last told.
struct CudnnHandle {
    raw: sys::cudnnHandle_t,
    stream: CurrentStream,
    told: Cell<CUstream>,
}

impl CudnnHandle {
    /// The handle on the current stream.
    fn on_stream(&self) -> Result<sys::cudnnHandle_t, String> {
        let stream = self.stream.get();
        if self.told.get() != stream {
            // SAFETY: the handle exists; the stream lives as long as the driver, which owns this
            // library.
            let set = unsafe { result::set_stream(self.raw, stream.cast()) };
            set.map_err(|error| format!("cudnnSetStream: {error}"))?;
            self.told.set(stream);
        }
        Ok(self.raw)
    }
}

impl Drop for CudnnHandle {
    fn drop(&mut self) {
        // SAFETY: `open` created the handle, which is not used again.
        let _ = unsafe { result::destroy_handle(self.raw) };
    }
}

/// An engine for a problem, ready to run.
pub(crate) struct CudnnPlan {
    problem: ConvolutionProblem,
    workspace_bytes: usize,
    plan: Descriptor,
    #[allow(dead_code)] // Held because the plan refers to them.
    parts: (Descriptor, Rc<Graph>),
    handle: Rc<CudnnHandle>,
}

impl Cudnn {
    /// Opens the library, or returns why it is missing.
    pub(crate) fn open(stream: CurrentStream) -> Result<Cudnn, String> {
        // SAFETY: looks for the library by name, which only runs its initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcudnn was not found".to_owned());
        }
        let raw = result::create_handle().map_err(|error| format!("cudnnCreate: {error}"))?;
        let handle = CudnnHandle { raw, stream, told: Cell::new(std::ptr::null_mut()) };
        handle.on_stream()?;
        Ok(Cudnn { choices: RefCell::default(), handle: Rc::new(handle) })
    }
}

impl Convolutions for Cudnn {
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

    fn fuses(&self) -> bool {
        true
    }

    fn plans(&self, problem: &ConvolutionProblem) -> Result<Vec<Rc<dyn ConvolutionPlan>>, String> {
        let graph = Rc::new(Graph::new(self.handle.raw, problem)?);
        let mut plans: Vec<Rc<dyn ConvolutionPlan>> = Vec::new();
        let is_fused = problem.has_residual || problem.activation != Activation::None;
        let plans_max = if is_fused { FUSED_PLANS_MAX } else { PLANS_MAX };
        let mut refusal = "the heuristics name no engine".to_owned();
        use sys::cudnnBackendHeurMode_t as Mode;
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            let configs = graph.configs(mode).unwrap_or_else(|error| {
                refusal = error;
                Vec::new()
            });
            for config in configs {
                if plans.len() >= plans_max || !keeps_promises(&config, problem.dtype) {
                    continue;
                }
                match CudnnPlan::new(&self.handle, problem, &graph, config) {
                    Ok(plan) => plans.push(Rc::new(plan)),
                    // An engine may still refuse the problem; another one may take it.
                    Err(error) => refusal = error,
                }
            }
            // Few engines for the weights' gradient accumulate in a fixed order, and the heuristics
            // suggest the slowest of them first, so both modes are asked.
            if !plans.is_empty() && problem.kind != ConvolutionKind::Weights {
                break;
            }
        }
        if plans.is_empty() { Err(refusal) } else { Ok(plans) }
    }
}

impl ConvolutionPlan for CudnnPlan {
    fn problem(&self) -> &ConvolutionProblem {
        &self.problem
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    fn name(&self) -> String {
        format!("engine and numerical notes {:?}", self.engine())
    }

    fn run(&self, tensors: &ConvolutionTensors, workspace: Address) -> Result<(), String> {
        let mut names = vec![X, W, Y];
        let mut addresses = vec![tensors.input.0, tensors.weights.0, tensors.output.0];
        if let Some(bias) = tensors.bias {
            names.push(BIAS);
            addresses.push(bias.0);
        }
        if let Some(residual) = tensors.residual {
            names.push(RESIDUAL);
            addresses.push(residual.0);
        }
        let pack = Descriptor::new(Type::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Kind::CUDNN_TYPE_INT64, &names)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Kind::CUDNN_TYPE_VOID_PTR, &addresses)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Kind::CUDNN_TYPE_VOID_PTR, &[workspace.0])?;
        let (pack, handle) = (pack.finished()?, self.handle.on_stream()?);
        // SAFETY: the plan and the pack are finished; the addresses point to tensors with the
        // problem's dimensions, kept by the op until it has finished.
        let status = unsafe { sys::cudnnBackendExecute(handle, self.plan.0, pack.0) };
        check("cudnnBackendExecute", status)
    }
}

impl CudnnPlan {
    fn new(
        handle: &Rc<CudnnHandle>,
        problem: &ConvolutionProblem,
        graph: &Rc<Graph>,
        config: Descriptor,
    ) -> Result<CudnnPlan, String> {
        let plan = Descriptor::new(Type::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Kind::CUDNN_TYPE_HANDLE, &[handle.raw])?;
        plan.set_descriptors(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&config])?;
        let plan = plan.finished()?;
        let mut bytes = [0_i64];
        plan.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Kind::CUDNN_TYPE_INT64, &mut bytes)?;
        let workspace_bytes = usize::try_from(bytes[0]).map_err(|_| "a workspace of negative size".to_owned())?;
        let (parts, handle) = ((config, Rc::clone(graph)), Rc::clone(handle));
        Ok(CudnnPlan { problem: *problem, workspace_bytes, plan, parts, handle })
    }
}

impl CudnnPlan {
    /// The number of the engine, and its numerical notes.
    fn engine(&self) -> Result<(i64, Vec<u32>), String> {
        let engine = Descriptor::new(Type::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        self.parts.0.get(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut [engine.0])?;
        let mut number = [0_i64];
        engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Kind::CUDNN_TYPE_INT64, &mut number)?;
        Ok((number[0], notes(&self.parts.0)?))
    }
}

/// Whether an engine keeps the promises of the ops, by its numerical notes. An engine whose notes
/// cannot be read is refused.
fn keeps_promises(config: &Descriptor, dtype: DType) -> bool {
    let mut refused = vec![
        Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
        Note::CUDNN_NUMERICAL_NOTE_FFT,
        Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
    ];
    if dtype == DType::F32 {
        refused.extend([Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE, Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS]);
    }
    match notes(config) {
        Ok(notes) => notes.iter().all(|note| refused.iter().all(|refused| *refused as u32 != *note)),
        Err(_) => false,
    }
}

/// The numerical notes of a configuration's engine, as numbers: a newer library may have more of
/// them.
fn notes(config: &Descriptor) -> Result<Vec<u32>, String> {
    let engine = Descriptor::new(Type::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    config.get(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut [engine.0])?;
    let mut notes = [u32::MAX; Note::CUDNN_NUMERICAL_NOTE_TYPE_COUNT as usize];
    let count = engine.get(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Kind::CUDNN_TYPE_NUMERICAL_NOTE, &mut notes)?;
    Ok(notes[..count.min(notes.len())].to_vec())
}

/// A finished graph with everything that it refers to.
struct Graph {
    graph: Descriptor,
    #[allow(dead_code)] // Held because the graph refers to them.
    parts: Vec<Descriptor>,
}

impl Graph {
    fn new(handle: sys::cudnnHandle_t, problem: &ConvolutionProblem) -> Result<Graph, String> {
        let x = tensor(problem, X, problem.input, problem.dtype, false)?;
        let w = tensor(problem, W, problem.weights, problem.dtype, false)?;
        let y = tensor(problem, Y, problem.output, problem.dtype, false)?;
        let way = convolution(problem)?;
        let follows = follows(problem)?;
        // The intermediate tensors: the sums, and the result of each operation after them except
        // the last.
        let between: Vec<Descriptor> = (0..follows.len() as i64)
            .map(|place| tensor(problem, SUMS + place, problem.output, DType::F32, true))
            .collect::<Result<_, _>>()?;
        let mut operations = vec![operation(problem.kind, &way, [&x, &w, between.first().unwrap_or(&y)])?];
        for (place, (mode, other)) in follows.iter().enumerate() {
            let to = between.get(place + 1).unwrap_or(&y);
            operations.push(pointwise(mode, &between[place], other.as_ref(), to)?);
        }
        let mut parts = between;
        parts.extend(follows.into_iter().flat_map(|(mode, other)| [Some(mode), other]).flatten());
        let graph = Descriptor::new(Type::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        let all: Vec<&Descriptor> = operations.iter().collect();
        graph.set_descriptors(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &all)?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Kind::CUDNN_TYPE_HANDLE, &[handle])?;
        parts.extend([x, w, y, way]);
        parts.extend(operations);
        Ok(Graph { graph: graph.finished()?, parts })
    }

    /// The engines that the heuristics suggest, with their settings.
    fn configs(&self, mode: sys::cudnnBackendHeurMode_t) -> Result<Vec<Descriptor>, String> {
        let heuristics = Descriptor::new(Type::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristics.set_descriptors(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&self.graph])?;
        heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Kind::CUDNN_TYPE_HEUR_MODE, &[mode])?;
        let heuristics = heuristics.finished()?;
        let mut none: [*mut c_void; 0] = [];
        let results = Name::CUDNN_ATTR_ENGINEHEUR_RESULTS;
        let count = heuristics.get(results, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut none)?.min(CONFIGS_MAX);
        let configs: Vec<Descriptor> =
            (0..count).map(|_| Descriptor::new(Type::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect::<Result<_, _>>()?;
        if configs.is_empty() {
            return Ok(configs);
        }
        let mut raw: Vec<*mut c_void> = configs.iter().map(|config| config.0).collect();
        let filled = heuristics.get(results, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw)?;
        Ok(configs.into_iter().take(filled).collect())
    }
}

fn tensor(
    problem: &ConvolutionProblem,
    name: i64,
    dims: [i64; 4],
    dtype: DType,
    is_virtual: bool,
) -> Result<Descriptor, String> {
    let [_, channels, height, width] = dims;
    let strides = if problem.channels_last {
        [channels * height * width, 1, channels * width, channels]
    } else {
        [channels * height * width, height * width, width, 1]
    };
    let tensor = Descriptor::new(Type::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, &[data_type(dtype)])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Kind::CUDNN_TYPE_INT64, &dims)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, Kind::CUDNN_TYPE_INT64, &strides)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Kind::CUDNN_TYPE_INT64, &[name])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Kind::CUDNN_TYPE_INT64, &[CONVOLUTION_ALIGN_BYTES as i64])?;
    if is_virtual {
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Kind::CUDNN_TYPE_BOOLEAN, &[true])?;
    }
    tensor.finished()
}

/// The movement of the filter over the image: padding, stride and dilation.
fn convolution(problem: &ConvolutionProblem) -> Result<Descriptor, String> {
    let way = Descriptor::new(Type::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Kind::CUDNN_TYPE_INT64, &[2_i64])?;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Kind::CUDNN_TYPE_DATA_TYPE, &[data_type(DType::F32)])?;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Kind::CUDNN_TYPE_CONVOLUTION_MODE, &[mode])?;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Kind::CUDNN_TYPE_INT64, &problem.padding[0])?;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Kind::CUDNN_TYPE_INT64, &problem.padding[1])?;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, Kind::CUDNN_TYPE_INT64, &problem.dilation)?;
    way.set(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Kind::CUDNN_TYPE_INT64, &problem.stride)?;
    way.finished()
}

/// The convolution operation. `names` are the attributes for input, weights and output.
fn operation(kind: ConvolutionKind, way: &Descriptor, [x, w, y]: [&Descriptor; 3]) -> Result<Descriptor, String> {
    use Name as N;
    let (descriptor, alpha, beta, convolution, names) = match kind {
        ConvolutionKind::Forward => (
            Type::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            [
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            ],
        ),
        ConvolutionKind::Input => (
            Type::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            [
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            ],
        ),
        ConvolutionKind::Weights => (
            Type::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
            [
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                N::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
            ],
        ),
    };
    let operation = Descriptor::new(descriptor)?;
    for (name, tensor) in names.into_iter().zip([x, w, y]) {
        operation.set_descriptors(name, &[tensor])?;
    }
    operation.set_descriptors(convolution, &[way])?;
    operation.set(alpha, Kind::CUDNN_TYPE_FLOAT, &[1.0_f32])?;
    operation.set(beta, Kind::CUDNN_TYPE_FLOAT, &[0.0_f32])?;
    operation.finished()
}

/// The operations after the convolution, in order, each with the tensor that it adds, if any.
fn follows(problem: &ConvolutionProblem) -> Result<Vec<(Descriptor, Option<Descriptor>)>, String> {
    use sys::cudnnPointwiseMode_t as Mode;
    let mut follows = Vec::new();
    if problem.has_residual {
        let residual = tensor(problem, RESIDUAL, problem.output, problem.dtype, false)?;
        follows.push((mode(Mode::CUDNN_POINTWISE_ADD)?, Some(residual)));
    }
    if problem.has_bias {
        let bias = tensor(problem, BIAS, [1, problem.output[1], 1, 1], problem.dtype, false)?;
        follows.push((mode(Mode::CUDNN_POINTWISE_ADD)?, Some(bias)));
    }
    match problem.activation {
        Activation::None => {}
        Activation::Relu => follows.push((mode(Mode::CUDNN_POINTWISE_RELU_FWD)?, None)),
        Activation::Gelu => follows.push((mode(Mode::CUDNN_POINTWISE_GELU_FWD)?, None)),
        other => return Err(format!("the library is not asked for {other:?}")),
    }
    Ok(follows)
}

/// A pointwise operation in f32, which propagates NaN.
fn mode(which: sys::cudnnPointwiseMode_t) -> Result<Descriptor, String> {
    let mode = Descriptor::new(Type::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
    mode.set(Name::CUDNN_ATTR_POINTWISE_MODE, Kind::CUDNN_TYPE_POINTWISE_MODE, &[which])?;
    mode.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Kind::CUDNN_TYPE_DATA_TYPE, &[data_type(DType::F32)])?;
    if which == sys::cudnnPointwiseMode_t::CUDNN_POINTWISE_RELU_FWD {
        let stays = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
        mode.set(Name::CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, Kind::CUDNN_TYPE_NAN_PROPOGATION, &[stays])?;
    }
    mode.finished()
}

/// Applies a pointwise operation to `x` and, if there is one, to `b`.
fn pointwise(mode: &Descriptor, x: &Descriptor, b: Option<&Descriptor>, y: &Descriptor) -> Result<Descriptor, String> {
    let operation = Descriptor::new(Type::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
    operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[mode])?;
    operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[x])?;
    if let Some(b) = b {
        operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[b])?;
    }
    operation.set_descriptors(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[y])?;
    operation.finished()
}

fn data_type(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

/// A descriptor of the library, owned.
struct Descriptor(sys::cudnnBackendDescriptor_t);

impl Descriptor {
    fn new(kind: Type) -> Result<Descriptor, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &raw mut raw) };
        check("cudnnBackendCreateDescriptor", status)?;
        Ok(Descriptor(raw))
    }

    /// Sets an attribute. The values must have the attribute's kind: plain numbers, handles or
    /// addresses.
    fn set<V: Copy>(&self, name: Name, kind: Kind, values: &[V]) -> Result<(), String> {
        // SAFETY: the descriptor is alive; the library copies `values.len()` values.
        let status =
            unsafe { sys::cudnnBackendSetAttribute(self.0, name, kind, values.len() as i64, values.as_ptr().cast()) };
        check("cudnnBackendSetAttribute", status).map_err(|error| format!("{error} ({name:?})"))
    }

    fn set_descriptors(&self, name: Name, values: &[&Descriptor]) -> Result<(), String> {
        let raw: Vec<*mut c_void> = values.iter().map(|value| value.0).collect();
        self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    /// Reads an attribute into `values`; returns how many values the attribute has. Descriptors in
    /// `values` must exist already; the library fills them.
    fn get<V: Copy>(&self, name: Name, kind: Kind, values: &mut [V]) -> Result<usize, String> {
        let mut count = 0;
        let target = if values.is_empty() { std::ptr::null_mut() } else { values.as_mut_ptr().cast() };
        // SAFETY: the descriptor is alive; the library writes at most `values.len()` values.
        let status =
            unsafe { sys::cudnnBackendGetAttribute(self.0, name, kind, values.len() as i64, &raw mut count, target) };
        check("cudnnBackendGetAttribute", status).map_err(|error| format!("{error} ({name:?})"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn finished(self) -> Result<Descriptor, String> {
        // SAFETY: the descriptor is alive.
        check("cudnnBackendFinalize", unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

fn check(what: &str, status: sys::cudnnStatus_t) -> Result<(), String> {
    status.result().map_err(|error| format!("{what}: {error}"))
}

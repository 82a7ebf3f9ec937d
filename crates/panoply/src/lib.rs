//! One runtime over every accelerator in a machine.
//!
//! A program says *what* it wants done. Panoply finds the hardware in the machine, runs the work on
//! it, and reports where it ran. Nothing has to be installed: a library or device that is missing
//! at run time is a value with the reason.
//!
//! ```
//! use panoply::prelude::*;
//!
//! let runtime = Runtime::new()?;
//! let matrix = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
//!
//! // `run` gives a future that needs no particular executor; `wait` blocks instead. A GPU's answer
//! // stays in the GPU's memory until it is read.
//! let transposed = runtime.run(Transpose::new(&matrix)).wait()?;
//! assert_eq!(transposed.as_slice::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
//!
//! // Every op comes with a receipt, for those who ask for it.
//! let Outcome { report, .. } = runtime.run(Transpose::new(&matrix)).with_report().wait()?;
//! println!("ran on {} in {:?} after {:?} in the queue", report.device, report.ran, report.queued);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where to go from here, in reading order:
//!
//! * [`Runtime`] and [`Builder`]: which backends, which bounds.
//! * [`settings`]: the same from `panoply.toml` and the environment. [`learned`]: the router's
//!   profile, kept between runs.
//! * [`prelude`]: what a program that runs ops needs. [`op`] has every op, by domain.
//! * [`graph`]: many ops recorded as one.
//! * [`crypto`]: seal, hash, sign and compress, one message or thousands at once.
//! * [`signal`]: filters, modems and codes, whole signals or streams in pieces.
//! * [`store`]: encrypted, crash-safe stores of files, readable from any byte.
//! * [`vector`]: collections of vectors: exact and approximate search, durable, on every device.
//! * [`nn`]: neural networks, their training, and a compute backend for other libraries.
//! * [`models`]: models from ONNX files, on every device.
//! * [`inputs`]: pictures and texts as a model's inputs; classes, boxes and vectors of its outputs.
//! * [`serve`]: models for many callers: batches, folders of models, ensembles; common tasks.
//! * [`whole_models`]: models on ONNX Runtime and OpenVINO, if their libraries are named.
//! * [`worker`]: a program's own workers in pools; each has its own thread, state and queue.
//! * [`pipeline`]: chains of stages, on the CPU and on devices, that run overlapped.
//! * [`placement`]: which CPUs workers run on, near which devices.
//! * [`testing`]: virtual devices that fail on command.
//! * [`spelling`]: the name that a misspelt one stands for.
//! * [`backend`]: the two traits behind every device, for authors of a backend.
//!
//! # Features
//!
//! All features but `wgpu` are on by default. None needs anything but `cargo` and a C compiler to
//! build. The smallest useful build has `cpu` alone, and a quarter of the dependencies.
//!
//! | feature | backend |
//! | --- | --- |
//! | `cpu` | the processor's own cores |
//! | `cuda` | NVIDIA GPUs; the driver and its libraries are found at run time |
//! | `hip` | AMD GPUs; ROCm and its libraries are found at run time |
//! | `vulkan` | GPUs with a driver for Vulkan 1.2 or later, which is found at run time |
//! | `wgpu` | GPUs through Vulkan, Metal or DX12, off by default, because on Linux `vulkan` reaches the same devices; the command has it on macOS and Windows |
//! | `opencl` | any device with an OpenCL driver, which is found at run time |
//! | `qat` | Intel QuickAssist through qatlib, which is found at run time |
//! | `af_alg` | ciphers and hashes of the Linux kernel, if `PANOPLY_AF_ALG=1` is set |
//! | `pjrt` | TPUs and other devices with a PJRT plugin, which is found at run time |
//! | `fpga` | FPGA cards behind XDMA or XRT, which are found at run time; `PANOPLY_FPGA_SIMULATION` simulates one |
//! | `onnxruntime` | ONNX Runtime, if `PANOPLY_ONNXRUNTIME` names its library: models that Panoply refuses, and a second opinion on others; its execution providers ([`Builder::onnxruntime_providers`]) |
//! | `openvino` | OpenVINO, if `PANOPLY_OPENVINO` names its library: whole models on Intel's processors, GPUs and NPUs |
//!
//! | feature | part |
//! | --- | --- |
//! | `signal` | filter design, recordings, datagrams, packets; with `cpu` also the signal domain on the CPU |
//! | `store` | encrypted stores |
//! | `vector` | collections of vectors, and files in five families of formats |
//! | `nn` | neural networks and their training |
//! | `ml` | `models` from ONNX files, their `inputs` (pictures and texts), and `serve` for many callers |
//! | `arrays` | `nn::backend`: typed arrays for other libraries, with conversions from and to `ndarray` |

mod builder;
mod compiled;
pub mod crypto;
pub mod learned;
pub mod prelude;
mod provider;
mod runtime;
mod selection;
pub mod settings;
pub mod signal;
mod small_file;
pub mod spelling;
pub mod testing;
#[cfg(all(feature = "ml", any(feature = "onnxruntime", feature = "openvino")))]
pub mod whole_models;
pub mod worker;

pub use builder::Builder;
pub use compiled::{api_named, apis, register};
pub use runtime::{Runtime, runtime};
pub use selection::{Pick, Power, Selection};
pub use settings::{Settings, SettingsError};

pub use panoply_core::{
    Absence, Alternative, AnswerTypes, Api, Bytes, Capabilities, Complex64, CryptoProvider, DType, Describe, DeviceId,
    DeviceInfo, DeviceKind, Domain, Element, Error, ErrorKind, Fallback, Location, MemoryLimits, MemoryUse, Object,
    OpenOptions, Operation, Outcome, Part, PartMut, PartRef, PciAddress, Prediction, Report, Result, Shape, Strides,
    Tensor, Verdict, Verification, bf16, buffer, expr, f16, for_each_domain, op, sink,
};
pub use panoply_placement as placement;
pub use panoply_placement::PlacementOptions;
pub use panoply_runtime::{
    BackendReport, Batching, BuildError, Circuit, DeviceChange, DevicePool, Exploration, FallbackPolicy, Goal,
    HealthReport, HealthRules, Pending, PendingMany, PendingManyOutcomes, PendingOutcome, PendingTask,
    PendingTaskOutcome, PoolName, PoolPriority, PoolWorkerReport, Pools, Priority, Profile, ProfileError, Rediscovery,
    RunOptions, Shutdown, SystemCapacity, TaskError, TaskOutcome, TaskReport, TaskStep, Verify, WorkerCounters,
    WorkerLimits, WorkerReport, WorkerState, telemetry,
};

/// Graphs: many ops recorded as one, compiled and fused for the device that runs them.
///
/// ```
/// use panoply::graph::Graph;
/// use panoply::prelude::*;
///
/// let mut g = Graph::builder("layer");
/// let batch = g.symbol("batch")?;
/// let x = g.input("x", DType::F32, &[batch, 3.into()])?;
/// let w = g.constant("w", &Tensor::from_vec(vec![1.0_f32; 6], [3, 2])?)?;
/// let y = g.matmul(x, w)?;
/// let y = g.relu(y)?;
/// g.output("y", y)?;
/// let graph = g.finish()?;
///
/// let runtime = Runtime::new()?;
/// let x = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0], [1, 3])?;
/// let outputs = runtime.run(RunGraph::new(&graph, &[&x])).wait()?;
/// assert_eq!(outputs[0].shape().dims(), [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod graph {
    pub use crate::compiled::{gpu_target, processor_target, target_of};
    pub use panoply_core::graph::*;
    pub use panoply_graph::{DeviceTarget, Facts, Peak, Plan, compile, cost, listing, svg, text};
}

/// FPGA cards: the op of the smallest core, custom cards, and the interface that a custom core
/// needs.
#[cfg(feature = "fpga")]
pub use panoply_fpga as fpga;

/// Encrypted stores: named objects, compressed, sealed and crash-safe.
///
/// ```
/// use panoply::store::{MasterKey, Options, Store};
///
/// let runtime = panoply::Runtime::new()?;
/// let folder = std::env::temp_dir().join(format!("panoply-doc-store-{}", std::process::id()));
/// let key = MasterKey::generate()?;
/// let mut store = Store::create(&runtime, &folder, &key, Options::default())?;
/// store.put("letters/first.txt", &mut &b"meet me at noon"[..], false)?;
/// store.append("letters/first.txt", &mut &b", or later"[..])?;
///
/// let mut part = Vec::new();
/// store.read_range("letters/first.txt", 11..18, &mut part)?;
/// assert_eq!(part, b"noon, o");
/// assert!(store.verify(&mut |_, _| ())?.damaged.is_empty());
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "store")]
pub mod store {
    pub use panoply_store::*;
}

/// Collections of vectors: exact and approximate nearest neighbours, durable, on every device.
///
/// ```
/// use panoply::vector::{Collection, Metric, Options, Schema, SearchOptions};
///
/// let runtime = panoply::Runtime::new()?;
/// let words = Collection::in_memory(&runtime, Schema::new("words", 2, Metric::Cosine), Options::default())?;
/// words.insert("up", &[0.0, 1.0], Default::default())?;
/// words.insert("right", &[1.0, 0.0], Default::default())?;
/// assert_eq!(words.search(&[0.1, 0.9], &SearchOptions::new(1))?.hits[0].id, "up");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "vector")]
pub mod vector {
    pub use panoply_vector::*;
}

/// Neural networks: layers, gradients as graphs, training, and (feature `arrays`) a compute backend
/// for other libraries.
///
/// ```
/// use panoply::nn::layers::{Linear, Relu};
/// use panoply::nn::train::{Session, SessionOptions};
/// use panoply::nn::{Layer, Mode, Net, Optimiser, Sequential, loss};
/// use panoply::prelude::*;
///
/// let layers = Sequential::new("").with(Linear::new("fc1", 2, 16)).with(Relu).with(Linear::new("fc2", 16, 2));
/// let mut net = Net::new("xor", Mode::Train);
/// let batch = net.symbol("batch")?;
/// let x = net.data("x", DType::F32, &[batch, 2.into()])?;
/// let labels = net.data("labels", DType::U32, &[batch])?;
/// let logits = layers.forward(&mut net, x)?;
/// let loss = loss::cross_entropy(&mut net, logits, labels, 0.0)?;
/// let recording = net.finish(&[("loss", loss)])?;
///
/// let runtime = Runtime::new()?;
/// let mut session = Session::new(&runtime, recording, Optimiser::adam(0.05), None, SessionOptions::default())?;
/// let x = Tensor::from_vec(vec![0.0_f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [4, 2])?;
/// let labels = Tensor::from_vec(vec![0_u32, 1, 1, 0], [4])?;
/// let mut last = 0;
/// for _ in 0..200 {
///     // Forward, backward and the optimiser's step: one op.
///     last = session.step(&[x.clone(), labels.clone()])?.step;
/// }
/// assert!(session.figures(last)?[0] < 0.05);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "nn")]
pub mod nn {
    pub use panoply_nn::*;

    #[cfg(feature = "arrays")]
    pub use panoply_arrays as backend;
}

/// Models: ONNX files, run on any available device.
///
/// ```
/// use panoply::models::{Array, Model};
///
/// # // A graph of one node, as an ONNX file has it: y = Relu(x), x being two numbers.
/// # let relu = b"\x08\x09\x3a0\x0a\x0c\x0a\x01x\x12\x01y\x22\x04ReluZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\
/// # \x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x02\x10\x12";
/// # let file = std::env::temp_dir().join(format!("panoply-doc-model-{}.onnx", std::process::id()));
/// # std::fs::write(&file, relu)?;
/// let runtime = panoply::Runtime::new()?;
/// let model = Model::load(&runtime, &file)?;
/// let outputs = model.infer(&[("x", Array::from_slice(&[-1.0_f32, 2.0], [2])?)])?;
/// assert_eq!(outputs.get("y")?.as_slice::<f32>()?, [0.0, 2.0]);
/// # std::fs::remove_file(&file)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "ml")]
pub mod models {
    pub use panoply_models::*;
}

/// Inputs and answers of models: pictures, texts, classes, boxes and vectors.
///
/// ```
/// use panoply::inputs::text::Tokenizer;
///
/// let tokenizer = Tokenizer::from_lines("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld")?;
/// let tokens = tokenizer.encode(&["Hello world", "hello"], 8)?;
/// assert_eq!((tokens.rows, tokens.len), (2, 4));
/// assert_eq!(tokens.ids, [2, 4, 5, 3, 2, 4, 3, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "ml")]
pub mod inputs {
    pub use panoply_inputs::*;
}

/// Models for many callers: servers that batch, folders of models, ensembles, and common tasks.
#[cfg(feature = "ml")]
pub mod serve {
    pub use panoply_serve::*;
}

/// Pipelines: chains of stages, on the CPU and on devices, that run overlapped.
///
/// ```
/// use panoply::pipeline::Pipeline;
/// use panoply::prelude::*;
///
/// let runtime = Runtime::new()?;
/// let (sums, report) = Pipeline::builder()
///     .source(1..=100)
///     .map("make", |number| Tensor::from_vec(vec![number as f32; 64], [64]))
///     .parallel(2)
///     .try_op("double", &runtime, |row: &Result<Tensor, Error>| row.clone().map(|row| Map::add(&row, &row)))
///     .op("sum", &runtime, |row: &Tensor| Reduce::sum(row))
///     .try_map("read", |sum: &Tensor| sum.as_slice::<f32>().map(|sum| sum[0]))
///     .collect()
///     .run()?;
/// assert_eq!((sums.len(), sums[9]), (100, 1280.0));
/// println!("{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod pipeline {
    pub use panoply_pipeline::*;
}

/// For authors of a backend: the traits [`Backend`](backend::Backend) and
/// [`Engine`](backend::Engine), with their contract and all types that they exchange.
pub mod backend {
    pub use panoply_core::backend::*;
    pub use panoply_core::op::{BatchKey, CostClass, Extension, Op};
    pub use panoply_core::{Buffer, DeviceBuffer, HostBuffer, HostBufferMut};
    pub use panoply_core::{Object, ObjectTable, Part, PartMut, PartRef, Parts, Value, parts};
    pub use panoply_core::{lease, object, pool};
}

/// The examples of the README and of the pages in `docs/`, compiled and run with the doctests.
/// `cargo xtask tidy` fails if a page with Rust examples is missing. The files lie outside of the
/// packaged crate, which is built without doctests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/getting-started.md")]
    struct GettingStarted;

    #[doc = include_str!("../../../docs/runtime.md")]
    struct Runtime;

    #[doc = include_str!("../../../docs/compute.md")]
    struct Compute;

    #[doc = include_str!("../../../docs/crypto.md")]
    struct Crypto;

    #[doc = include_str!("../../../docs/signals.md")]
    struct Signals;

    #[doc = include_str!("../../../docs/vectors.md")]
    struct Vectors;

    #[doc = include_str!("../../../docs/models.md")]
    struct Models;

    #[doc = include_str!("../../../docs/store.md")]
    struct Store;

    #[doc = include_str!("../../../docs/pipelines.md")]
    struct Pipelines;

    #[doc = include_str!("../../../docs/kernels.md")]
    struct Kernels;

    #[doc = include_str!("../../../docs/workers.md")]
    struct Workers;

    #[doc = include_str!("../../../docs/errors.md")]
    struct Errors;
}

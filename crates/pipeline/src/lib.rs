//! Pipelines: chains of overlapping stages, on the CPU and on devices.
//!
//! A pipeline has a source, stages, and an end. Stages are closures, ops, requests to a program's
//! own workers or futures, branches, batches and windows. A bounded ring connects each two of them,
//! so a slow stage holds up those before it (back-pressure) and memory use stays bounded. Items
//! leave each stage in the order in which they came, unless the stage is set to be unordered, and
//! each item comes out exactly once or is counted as left out.
//!
//! ```
//! # use panoply_pipeline::{ErrorPolicy, Pipeline};
//! # use panoply_runtime::Runtime;
//! # use panoply_core::{Tensor, op::compute::{Map, Reduce}};
//! # use std::sync::Arc;
//! # let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
//! let runtime = Arc::new(runtime);
//! let (sums, report) = Pipeline::builder()
//!     .source(["1 2 3", "4 5", "six", "7"])
//!     // Closures: up to two threads, and lines that are no numbers are left out.
//!     .try_map("parse", |line: &&str| {
//!         let numbers: Vec<f32> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
//!         let count = numbers.len();
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Tensor::from_vec(numbers, [count])?)
//!     })
//!     .parallel(2)
//!     .on_error(ErrorPolicy::skip())
//!     // Ops: several run at once. The output of the first stays on its device for the second.
//!     .op("double", Arc::clone(&runtime), |numbers| Map::add(numbers, numbers))
//!     .op("sum", Arc::clone(&runtime), |numbers| Reduce::sum(numbers))
//!     .try_map("read", |sum| sum.as_slice::<f32>().map(|sum| sum[0]))
//!     .collect()
//!     .run()?;
//! assert_eq!(sums, [12.0, 18.0, 14.0]);
//! assert_eq!(report.stage("parse").map(|stage| stage.skipped), Some(1));
//! println!("{}", report.sentence());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules in reading order:
//!
//! * `ends`, `builder`, `options`: how a pipeline is written. `plan`: the builder's state until the
//!   run.
//! * `machine`: the stages of a run, one step at a time, and its threads.
//! * `stage`: the interface of every stage to the machine. `watch`: calls into a program's code.
//! * `parallel`: closures. `chain`, `link`: ops and requests. `serial`: stages that run on one
//!   thread at a time, with their bodies `source`, `transduce`, `fork`, `sink`, `file`.
//! * `control`: the shared state of a run. `running`: how a program steers it. `channel`: ways in
//!   and out.
//! * `meter`, `report`, `trace`: how the time was spent.
//!
//! The ring between two stages and the bell of the threads are parts of `panoply_lockfree`, because
//! loom checks them. Of `panoply_runtime` the crate uses what programs use, and the hidden modules
//! `threads` and `time`. Its simulation steps the workers of a `stepped` runtime between its
//! stages.

mod builder;
mod chain;
mod channel;
mod control;
mod ends;
mod error;
mod file;
mod fork;
mod link;
mod machine;
mod meter;
mod options;
mod parallel;
mod plan;
mod report;
mod running;
mod serial;
mod sink;
mod source;
mod stage;
mod trace;
mod transduce;
mod watch;

#[cfg(test)]
mod simulation;

pub use builder::Builder;
pub use channel::{Receiver, SendError, Sender, TrySendError};
pub use ends::{Pipeline, Start};
pub use error::{Cause, DeadLetter, PipelineError};
pub use file::{CHUNK_BYTES_MAX, LINE_BYTES_MAX};
pub use options::{
    BATCH_MAX, ErrorPolicy, Finally, IN_FLIGHT_DEFAULT, LANES_MAX, Parallelism, RING_DEPTH_DEFAULT, THREADS_MAX,
    TRACE_SPANS_MAX,
};
pub use panoply_lockfree::ring::RING_DEPTH_MAX;
pub use report::{Progress, Report, StageReport};
pub use running::{Handle, RunOutcome, Running};
pub use trace::Trace;

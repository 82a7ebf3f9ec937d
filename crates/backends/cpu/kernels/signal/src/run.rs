//! Runs ops of the signal domain: filters, codes, and the streams that ops create.
//!
//! [`space`] and [`output`] are memory; [`whole`] runs ops over whole signals, and [`streams`]
//! keeps what filters and codes remember between the pieces of a signal.

use panoply_core::op::signal::{SignalOp, StartFilter, StreamFilter};
use panoply_core::{DeviceId, Error, ObjectTable, Op, Result, Threads, Value};

use crate::level::Level;

mod codes;
mod coding;
mod filtering;
mod framed;
mod loops;
mod modems;
mod output;
mod planes;
mod session;
mod sessions;
mod space;
mod spectra;
mod streams;
mod waves;
mod whole;

pub use output::TakeMemory;
use space::Space;
pub use streams::Stream;
use whole::run_whole;

/// The memory that an engine keeps between ops.
pub struct Workspace {
    space: Space,
    /// The streams. `None` until there is a device that owns them.
    streams: Option<ObjectTable<Stream>>,
}

impl Workspace {
    /// An empty workspace.
    pub fn new(level: Level) -> Workspace {
        Workspace { space: Space::new(level), streams: None }
    }

    /// From now on keeps streams here, as objects of this device.
    pub fn keep_streams(&mut self, device: DeviceId) {
        self.streams = Some(ObjectTable::new(device));
    }

    /// Drops streams whose last handle is gone.
    pub fn collect(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.collect();
        }
    }

    /// Number of bytes that are kept between ops, without streams.
    pub fn bytes(&self) -> usize {
        self.space.bytes()
    }
}

/// Runs an op to its end. `None` for Fourier transforms and for ops of other domains, which are not
/// done here.
pub fn run(op: &Op, workspace: &mut Workspace, threads: &dyn Threads, take: TakeMemory<'_>) -> Option<Result<Value>> {
    let Op::Signal(op) = op else { return None };
    run_op(op, workspace, threads, take)
}

/// Runs an op of the domain to its end. `None` for Fourier transforms.
pub fn run_op(
    op: &SignalOp,
    workspace: &mut Workspace,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Option<Result<Value>> {
    match op {
        SignalOp::StartFilter(op) => Some(start(op, workspace)),
        SignalOp::StreamFilter(op) => Some(stream(op, workspace, threads, take)),
        op => run_whole(op, &mut workspace.space, threads, take),
    }
}

fn start(op: &StartFilter, workspace: &mut Workspace) -> Result<Value> {
    if workspace.streams.is_none() {
        return Err(homeless());
    }
    let stream = Stream::new(workspace.space.level, &mut workspace.space.plans, op)?;
    let streams = workspace.streams.as_mut().ok_or_else(homeless)?;
    streams.insert(StreamFilter::KIND, stream, None).map(Value::Object)
}

fn stream(op: &StreamFilter, workspace: &mut Workspace, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let streams = workspace.streams.as_mut().ok_or_else(homeless)?;
    streams.get_mut(&op.stream)?.next(op, threads, take)
}

fn homeless() -> Error {
    Error::invalid("filter stream", "an engine that keeps streams", "one thread's part of it")
}

//! Runs ops of the signal domain: filters, codes, and the streams that ops create.

use std::sync::{Arc, Mutex, MutexGuard};

use num_complex::Complex32;
use panoply_core::op::signal::{Convolutional, Ldpc, ReedSolomon, SignalOp, StartFilter, StreamFilter};
use panoply_core::{DType, DeviceId, Error, HostBufferMut, ObjectTable, Op, Result, Shape, Tensor, Threads, Value};

use crate::ldpc::Graph;
use crate::level::Level;
use crate::reed_solomon::Code;
use crate::spectral::Plans;
use crate::viterbi::{Trellis, Work};

mod codes;
mod coding;
mod filtering;
mod framed;
mod loops;
mod modems;
mod planes;
mod sessions;
mod spectra;
mod streams;
mod waves;

pub use streams::Stream;

/// Allocates memory for an output: initialised, with arbitrary contents.
pub type TakeMemory<'a> = &'a mut dyn FnMut(usize) -> Result<HostBufferMut>;

/// The memory that an engine keeps between ops.
pub struct Workspace {
    level: Level,
    plans: Plans,
    /// The tables of the last codes.
    code: Option<Arc<Code>>,
    trellis: Option<(Convolutional, Arc<Trellis>)>,
    graph: Option<Arc<Graph>>,
    /// The memory of decoders, one for each thread.
    decoders: Vec<Mutex<Work>>,
    /// The streams. `None` until there is a device that owns them.
    streams: Option<ObjectTable<Stream>>,
}

impl Workspace {
    /// An empty workspace.
    pub fn new(level: Level) -> Workspace {
        Workspace {
            level,
            plans: Plans::default(),
            code: None,
            trellis: None,
            graph: None,
            decoders: Vec::new(),
            streams: None,
        }
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
        let own = |work: &Mutex<Work>| work.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).bytes();
        let graph = self.graph.as_ref().map_or(0, |graph| graph.bytes());
        self.decoders.iter().map(own).sum::<usize>() + self.plans.bytes() + graph
    }

    fn code(&mut self, shape: ReedSolomon) -> Result<Arc<Code>> {
        if let Some(code) = self.code.as_ref().filter(|code| *code.shape() == shape) {
            return Ok(Arc::clone(code));
        }
        shape.check()?;
        let made = Code::new(self.level, shape);
        let code = Arc::new(made.ok_or_else(|| Error::invalid("reed-solomon", "a code", format!("{shape:?}")))?);
        self.code = Some(Arc::clone(&code));
        Ok(code)
    }

    fn graph(&mut self, code: Ldpc) -> Result<Arc<Graph>> {
        if let Some(graph) = self.graph.as_ref().filter(|graph| graph.code() == code) {
            return Ok(Arc::clone(graph));
        }
        code.check()?;
        let made = Graph::new(self.level, code);
        let graph =
            Arc::new(made.ok_or_else(|| Error::invalid("ldpc", "a code with an encoder", format!("{code:?}")))?);
        self.graph = Some(Arc::clone(&graph));
        Ok(graph)
    }

    fn trellis(&mut self, code: Convolutional) -> Arc<Trellis> {
        if let Some((_, trellis)) = self.trellis.as_ref().filter(|(known, _)| *known == code) {
            return Arc::clone(trellis);
        }
        let trellis = Arc::new(Trellis::new(self.level, code));
        self.trellis = Some((code, Arc::clone(&trellis)));
        trellis
    }

    /// The decoders' memory, with at least one entry for each thread.
    fn decoders(&mut self, threads: usize) -> &[Mutex<Work>] {
        while self.decoders.len() < threads.max(1) {
            self.decoders.push(Mutex::default());
        }
        &self.decoders
    }
}

/// Runs an op to its end. `None` for Fourier transforms and for ops of other domains, which are not
/// done here.
pub fn run(op: &Op, space: &mut Workspace, threads: &dyn Threads, take: TakeMemory<'_>) -> Option<Result<Value>> {
    let Op::Signal(op) = op else { return None };
    run_op(op, space, threads, take)
}

/// Runs an op of the domain to its end. `None` for Fourier transforms.
pub fn run_op(
    op: &SignalOp,
    space: &mut Workspace,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Option<Result<Value>> {
    Some(match op {
        SignalOp::Fft(_) | SignalOp::Ifft(_) => return None,
        SignalOp::Fir(op) => filtering::fir(op, space, threads, take),
        SignalOp::Iir(op) => filtering::iir(op, space, threads, take),
        SignalOp::Convolve(op) => filtering::convolve(op, space, threads, take),
        SignalOp::Convolve2(op) => planes::convolve2(op, space, threads, take),
        SignalOp::FindPeaks(op) => planes::find_peaks(op, threads, take),
        SignalOp::StartFilter(op) => start(op, space),
        SignalOp::StreamFilter(op) => stream(op, space, threads, take),
        SignalOp::Adapt(op) => loops::adapt(op, threads, take),
        SignalOp::Channelize(op) => loops::channelize(op, space, threads, take),
        SignalOp::Mix(op) => loops::mix(op, threads, take),
        SignalOp::Track(op) => loops::track(op, threads, take),
        SignalOp::Dct(op) => spectra::dct(op, space, threads, take),
        SignalOp::Fft2(op) => spectra::fft2(op, space, threads, take),
        SignalOp::Hilbert(op) => spectra::hilbert(op, space, threads, take),
        SignalOp::Stft(op) => spectra::stft(op, space, threads, take),
        SignalOp::Istft(op) => spectra::istft(op, space, threads, take),
        SignalOp::Psd(op) => spectra::psd(op, space, threads, take),
        SignalOp::ModulateWave(op) => waves::modulate(op, space, threads, take),
        SignalOp::DemodulateWave(op) => waves::demodulate(op, space, threads, take),
        SignalOp::ReadSamples(op) => waves::read_samples(op, threads, take),
        SignalOp::LdpcEncode(op) => coding::ldpc_encode(op, space, threads, take),
        SignalOp::LdpcDecode(op) => coding::ldpc_decode(op, space, threads, take),
        SignalOp::Interleave(op) => coding::interleave(op, threads, take),
        SignalOp::Scramble(op) => coding::scramble(op, threads, take),
        SignalOp::Crc(op) => codes::crc(op, threads, take),
        SignalOp::RsEncode(op) => codes::rs_encode(op, space, threads, take),
        SignalOp::RsDecode(op) => codes::rs_decode(op, space, threads, take),
        SignalOp::ErasureEncode(op) => codes::erasure_encode(op, space, threads, take),
        SignalOp::ErasureRebuild(op) => codes::erasure_rebuild(op, space, threads, take),
        SignalOp::ConvolutionalEncode(op) => codes::convolutional_encode(op, space, threads, take),
        SignalOp::Viterbi(op) => codes::viterbi(op, space, threads, take),
        SignalOp::Modulate(op) => modems::modulate(op, space, threads, take),
        SignalOp::Demodulate(op) => modems::demodulate(op, space, threads, take),
    })
}

fn start(op: &StartFilter, space: &mut Workspace) -> Result<Value> {
    if space.streams.is_none() {
        return Err(homeless());
    }
    let stream = Stream::new(space.level, &mut space.plans, op)?;
    let streams = space.streams.as_mut().ok_or_else(homeless)?;
    streams.insert(StreamFilter::KIND, stream, None).map(Value::Object)
}

fn stream(op: &StreamFilter, space: &mut Workspace, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let streams = space.streams.as_mut().ok_or_else(homeless)?;
    streams.get_mut(&op.stream)?.next(op, threads, take)
}

fn homeless() -> Error {
    Error::invalid("filter stream", "an engine that keeps streams", "one thread's part of it")
}

/// An output of this type and shape, before it is written.
struct Output {
    buffer: HostBufferMut,
    dtype: DType,
    shape: Shape,
}

impl Output {
    fn take(dtype: DType, shape: Shape, take: TakeMemory<'_>) -> Result<Output> {
        Ok(Output { buffer: take(shape.elements() * dtype.size_bytes())?, dtype, shape })
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// The elements as f32 numbers, two for each complex element.
    fn numbers(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }

    fn complex(&mut self) -> &mut [Complex32] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }

    fn integers(&mut self) -> &mut [i32] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }

    fn tensor(self) -> Result<Tensor> {
        Tensor::from_host(self.dtype, self.shape, self.buffer.freeze())
    }

    fn value(self) -> Result<Value> {
        self.tensor().map(Value::Tensor)
    }
}

/// The elements of a contiguous tensor of f32 or c64 as numbers, two for each complex element.
fn numbers(tensor: &Tensor) -> Result<&[f32]> {
    match tensor.dtype() {
        DType::Complex64 => Ok(bytemuck::cast_slice(tensor.as_slice::<Complex32>()?)),
        _ => tensor.as_slice::<f32>(),
    }
}

/// Locks an entry that no other thread uses. There is one entry for each thread, so one is free.
fn free(decoders: &[Mutex<Work>], first: usize) -> MutexGuard<'_, Work> {
    let from = first % decoders.len();
    let free = decoders[from..].iter().chain(&decoders[..from]).find_map(|work| work.try_lock().ok());
    free.unwrap_or_else(|| decoders[from].lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

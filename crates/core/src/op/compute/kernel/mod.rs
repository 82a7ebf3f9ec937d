//! Kernel: the caller's own source as an op. `program` holds the parts that are written once
//! (sources, parameters, a closure), this file one call of it, and `call` the closure's view of a
//! call.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::buffer::HostBufferMut;
use crate::dtype::DType;
use crate::error::{Error, Result, panic_message};
use crate::op::{AnswerTypes, CostClass, Describe, TensorTypes};
use crate::part::{Part, Value};
use crate::shape::Shape;
use crate::tensor::Tensor;

mod call;
mod program;

pub use call::KernelCall;
use call::row_pitch;
pub use program::{
    KERNEL_NAME_BYTES_MAX, KERNEL_PARAMETERS_MAX, KERNEL_SOURCE_BYTES_MAX, KernelBuilder, KernelOutput, KernelProgram,
    KernelSource, Scalar, ScalarType,
};

/// The most threads of a block, in total and along its first two axes.
pub const KERNEL_BLOCK_THREADS_MAX: u32 = 1024;
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// The most blocks along each axis of a grid. A device may allow fewer, and then reports an error.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// The most bytes of block memory that a launch may request. A device may allow less, and then
/// reports an error.
pub const KERNEL_BLOCK_BYTES_MAX: u32 = 227 << 10;

/// One call of a [`KernelProgram`]: its inputs, its scalars, the shapes of its outputs, and the
/// number of threads.
///
/// 1. Inputs reach the kernel contiguous in row-major order, or in rows if the program reads rows.
///    Outputs are zero at the start, unless all forms of the program write all of them
///    ([`KernelBuilder::writes_all`]).
/// 2. The op must be a function of its arguments: a fallback may run it again on another device.
/// 3. The source is trusted like the program's own code; there is no sandbox. The emulated device
///    of the C dialect checks bounds, alignment, barriers and time, and answers with
///    [`Error::KernelFault`]. So does a closure that panics. WGSL is compiled with bounds checks.
///    On a GPU that runs C, an address out of bounds may lose the device, which is then opened
///    again.
/// 4. A source that does not compile gives [`Error::KernelSource`] with the compiler's message.
///    Line numbers refer to the caller's text.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The program to run.
    pub program: Arc<KernelProgram>,
    /// The input tensors, in the order of the program's inputs.
    pub inputs: Vec<Tensor>,
    /// The scalars, in the order of the program's scalars.
    pub scalars: Vec<Scalar>,
    /// The shapes of the outputs, in the order of the program's outputs.
    pub outputs: Vec<Shape>,
    /// The number of threads.
    pub launch: LaunchSize,
}

impl Kernel {
    /// Begins a program with a form in C, in the dialect of `panoply_kernels::c`. The arguments of
    /// `KERNEL entry(…)` are pointers to the inputs, pointers to the outputs, then the scalars.
    pub fn c(source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        KernelBuilder::new(entry).c(source, entry)
    }

    /// Begins a program with a form in WGSL. Declarations are generated for the buffers, under the
    /// names of their parameters, for `scalars` with a field for each scalar, and for `BLOCK_X`,
    /// `BLOCK_Y` and `BLOCK_Z`, for use in `@workgroup_size`.
    pub fn wgsl(source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        KernelBuilder::new(entry).wgsl(source, entry)
    }

    /// Begins a program with a closure for the CPU.
    pub fn on_cpu(
        name: &str,
        body: impl Fn(&mut KernelCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> KernelBuilder {
        KernelBuilder::new(name).on_cpu(body)
    }

    /// A call without arguments, launched as one block of one thread.
    pub fn new(program: &Arc<KernelProgram>) -> Kernel {
        let (inputs, scalars, outputs) = (Vec::new(), Vec::new(), Vec::new());
        let launch = LaunchSize::new([1, 1, 1], [1, 1, 1]);
        Kernel { program: Arc::clone(program), inputs, scalars, outputs, launch }
    }

    /// Adds the next input.
    pub fn input(mut self, tensor: &Tensor) -> Kernel {
        self.inputs.push(tensor.clone());
        self
    }

    /// Adds the next scalar.
    pub fn scalar(mut self, value: impl Into<Scalar>) -> Kernel {
        self.scalars.push(value.into());
        self
    }

    /// Adds the shape of the next output.
    pub fn output(mut self, shape: Shape) -> Kernel {
        self.outputs.push(shape);
        self
    }

    /// Sets the number of threads.
    pub fn launch(mut self, launch: LaunchSize) -> Kernel {
        self.launch = launch;
        self
    }

    /// The same call with the axes of its images permuted, if its program supports that: axis `i`
    /// of each image that the new call reads, and of the image that it writes, is axis `order[i]`
    /// of this call's. The new call may have forms for the CPU only.
    pub fn permuted(&self, order: &[usize]) -> Option<Kernel> {
        self.program.turn()?(self, order)
    }

    /// Whether the closure can read an input in place: in row-major order, or in rows if the
    /// program reads rows.
    pub fn reads_in_place(&self, input: usize) -> bool {
        let is_rows = |tensor: &Tensor| self.program.row_len(input).is_some_and(|len| row_pitch(tensor, len).is_some());
        self.inputs.get(input).is_some_and(|tensor| tensor.is_contiguous() || is_rows(tensor))
    }

    /// The element type and shape of each output.
    pub fn output_types(&self) -> impl Iterator<Item = (DType, Shape)> + '_ {
        self.program.outputs().iter().zip(&self.outputs).map(|(parameter, shape)| (parameter.dtype, *shape))
    }

    /// Runs the closure. The inputs must be this op's, on the host, and contiguous (or readable as
    /// [`Kernel::reads_in_place`] specifies). The outputs must have the lengths of
    /// [`Kernel::output_types`], be aligned for their elements, and be zero unless the program
    /// writes all of them. A panic becomes [`Error::KernelFault`].
    pub fn call(&self, inputs: &[Tensor], outputs: Vec<&mut [u8]>) -> Result<()> {
        self.call_for(inputs, outputs, 0..self.program.pieces().unwrap_or(1))
    }

    /// Runs the closure for some pieces of a program in pieces. `output` holds exactly these pieces
    /// and must be zero.
    pub fn call_pieces(&self, inputs: &[Tensor], pieces: Range<usize>, output: &mut [u8]) -> Result<()> {
        let bytes = self.output_types().next().map_or(0, |(dtype, shape)| shape.elements() * dtype.size_bytes());
        let count = self.program.pieces().unwrap_or(1);
        let is_whole = bytes.is_multiple_of(count) && output.len() == pieces.len() * (bytes / count);
        if !is_whole || pieces.end > count {
            let expected = format!("some of {count} pieces of {bytes} bytes");
            return Err(Error::invalid("kernel: pieces", expected, format!("{pieces:?} of {} bytes", output.len())));
        }
        self.call_for(inputs, vec![output], pieces)
    }

    fn call_for(&self, inputs: &[Tensor], outputs: Vec<&mut [u8]>, pieces: Range<usize>) -> Result<()> {
        let Some(body) = self.program.body() else { return Err(self.missing("closure", "on_cpu(closure)")) };
        let mut call = KernelCall::new(self, inputs, outputs, pieces);
        catch_unwind(AssertUnwindSafe(|| body(&mut call))).unwrap_or_else(|panic| {
            let reason = format!("its closure panicked: {}", panic_message(panic.as_ref()));
            Err(Error::KernelFault { kernel: self.program.name().to_owned(), reason })
        })
    }

    /// Computes the outputs with the closure on the calling thread. The other forms are tested
    /// against this result.
    pub fn compute(&self) -> Result<Vec<Tensor>> {
        self.validate()?;
        let inputs = self.inputs.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
        let bytes = |(dtype, shape): (DType, Shape)| HostBufferMut::zeroed(shape.elements() * dtype.size_bytes());
        let mut buffers = self.output_types().map(bytes).collect::<Result<Vec<_>>>()?;
        self.call(&inputs, buffers.iter_mut().map(HostBufferMut::bytes_mut).collect())?;
        let tensor = |((dtype, shape), buffer): (_, HostBufferMut)| Tensor::from_host(dtype, shape, buffer.freeze());
        self.output_types().zip(buffers).map(tensor).collect()
    }

    /// The error of an engine for whose language the program has no form.
    pub fn missing(&self, form: &str, method: &str) -> Error {
        Error::Unsupported { op: "kernel", reason: self.lacks(form, method) }
    }

    /// A message that the program lacks a form, and how to add the form.
    pub fn lacks(&self, form: &str, method: &str) -> String {
        format!("the kernel {} has no {form}; add one with `{method}`", self.program.name())
    }

    /// An engine's answer made of these outputs.
    pub fn value(tensors: impl IntoIterator<Item = Tensor>) -> Value {
        Value::List(tensors.into_iter().map(Part::Tensor).collect())
    }

    /// Takes the outputs out of an engine's answer.
    pub(crate) fn tensors(value: Value) -> Result<Vec<Tensor>> {
        let tensor = |part| match part {
            Part::Tensor(tensor) => Ok(tensor),
            other => Err(Error::invalid("kernel: output", "a tensor", format!("{other:?}"))),
        };
        value.into_list()?.into_iter().map(tensor).collect()
    }

    fn check_arguments(&self) -> Result<()> {
        let program = &self.program;
        let names = |names: Vec<&str>| format!("{} ({})", names.len(), names.join(", "));
        if self.inputs.len() != program.inputs().len() {
            let expected = names(program.inputs().iter().map(|(name, _)| name.as_ref()).collect());
            return Err(Error::invalid("kernel: inputs", expected, self.inputs.len()));
        }
        for (tensor, (name, dtype)) in self.inputs.iter().zip(program.inputs()) {
            if tensor.dtype() != *dtype {
                return Err(Error::invalid("kernel: input", format!("{dtype} for {name}"), tensor.dtype()));
            }
        }
        if self.scalars.len() != program.scalars().len() {
            let expected = names(program.scalars().iter().map(|(name, _)| name.as_ref()).collect());
            return Err(Error::invalid("kernel: scalars", expected, self.scalars.len()));
        }
        for (scalar, (name, kind)) in self.scalars.iter().zip(program.scalars()) {
            if scalar.kind() != *kind {
                let expected = format!("{} for {name}", kind.name());
                return Err(Error::invalid("kernel: scalar", expected, scalar.kind().name()));
            }
        }
        if self.outputs.len() != program.outputs().len() {
            let expected = names(program.outputs().iter().map(|output| output.name.as_ref()).collect());
            return Err(Error::invalid("kernel: shapes of outputs", expected, self.outputs.len()));
        }
        if let (Some(count), Some(shape)) = (program.pieces(), self.outputs.first())
            && !shape.elements().is_multiple_of(count)
        {
            let expected = format!("{count} pieces of one length");
            return Err(Error::invalid("kernel: elements of the output", expected, shape.elements()));
        }
        Ok(())
    }
}

impl TensorTypes for Kernel {
    fn type_at(&self, index: usize) -> Option<(DType, Shape)> {
        Some((self.program.outputs().get(index)?.dtype, *self.outputs.get(index)?))
    }
}

impl Describe for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn validate(&self) -> Result<()> {
        self.check_arguments()?;
        self.launch.check()
    }

    crate::parts!(inputs);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::ListOf(self))
    }

    /// The closure may do more than fill its outputs.
    fn may_be_empty(&self) -> bool {
        false
    }

    /// Elements read and written, plus threads: a slow kernel may have few of either.
    fn work(&self) -> u64 {
        let read: usize = self.inputs.iter().map(Tensor::elements).fold(0, usize::saturating_add);
        let written: usize = self.outputs.iter().map(|shape| shape.elements()).fold(0, usize::saturating_add);
        (read as u64).saturating_add(written as u64).saturating_add(self.launch.threads())
    }

    /// Each program has its own curve of time over work.
    fn cost_class(&self) -> CostClass {
        CostClass::numbered(self.program.hash())
    }

    fn kernel_signature(&self) -> u64 {
        self.program.hash() ^ self.launch.block.iter().fold(0, |hash, size| hash * 1031 + u64::from(*size))
    }
}

/// The threads that run a kernel: blocks of a grid, threads of a block. WGSL calls them workgroups
/// and invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSize {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis. WGSL text can use them as `BLOCK_X`, `BLOCK_Y` and
    /// `BLOCK_Z`.
    pub block: [u32; 3],
    /// Bytes of block memory beyond those that the text declares: `DYNAMIC_SHARED` of the C
    /// dialect.
    pub block_bytes: u32,
}

impl LaunchSize {
    /// A grid of this many blocks, each with this many threads.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> LaunchSize {
        LaunchSize { grid, block, block_bytes: 0 }
    }

    /// At least one thread for each element, in blocks of `block_threads` along the first axis.
    pub fn over(elements: usize, block_threads: u32) -> LaunchSize {
        let blocks = elements.div_ceil(block_threads.max(1) as usize).max(1);
        LaunchSize::new([u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1], [block_threads, 1, 1])
    }

    /// Sets the size of the dynamic block memory.
    pub fn block_bytes(mut self, bytes: u32) -> LaunchSize {
        self.block_bytes = bytes;
        self
    }

    /// Total number of threads.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).fold(1, |threads, size| threads.saturating_mul(u64::from(*size)))
    }

    fn check(&self) -> Result<()> {
        within("kernel: blocks of the grid", &self.grid, &GRID_MAX)?;
        within("kernel: threads of a block", &self.block, &BLOCK_MAX)?;
        let threads: u64 = self.block.iter().map(|size| u64::from(*size)).product();
        if threads > u64::from(KERNEL_BLOCK_THREADS_MAX) {
            let expected = format!("at most {KERNEL_BLOCK_THREADS_MAX} in all");
            return Err(Error::invalid("kernel: threads of a block", expected, threads));
        }
        if self.block_bytes > KERNEL_BLOCK_BYTES_MAX {
            let (limit, got) = (KERNEL_BLOCK_BYTES_MAX as usize, self.block_bytes as usize);
            return Err(Error::OutOfBounds { what: "kernel: bytes of block memory", limit, got });
        }
        Ok(())
    }
}

fn within(what: &'static str, got: &[u32; 3], most: &[u32; 3]) -> Result<()> {
    if got.iter().zip(most).all(|(got, most)| (1..=*most).contains(got)) {
        return Ok(());
    }
    Err(Error::invalid(what, format!("1 to {most:?}"), format!("{got:?}")))
}

#[cfg(test)]
mod tests;

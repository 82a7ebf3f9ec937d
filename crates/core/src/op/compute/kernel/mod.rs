//! Kernel: the caller's own source as an op. `program` is what is written once (sources, parameters, a closure), this file
//! is one call of it, and `call` is what the closure sees of a call.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::buffer::HostBufferMut;
use crate::dtype::DType;
use crate::error::{Error, Result, panic_message};
use crate::op::{CostClass, Describe};
use crate::part::{Part, PartMut, PartRef, Value};
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

/// The most threads of a block, and along each of its axes.
pub const KERNEL_BLOCK_THREADS_MAX: u32 = 1024;
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// The most blocks along each axis of a grid. A device may have less, and says so.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// The most bytes of block memory that a launch may ask for. A device may have less, and says so.
pub const KERNEL_BLOCK_BYTES_MAX: u32 = 227 << 10;

/// One call of a [`KernelProgram`]: its inputs, scalars, the shapes of its outputs, and how many threads run it.
///
/// 1. Inputs reach the kernel contiguous, in row-major order, or in rows where it reads those. Outputs are zeros when it begins, unless all of
///    its forms write all of them ([`KernelBuilder::writes_all`]).
/// 2. The op must be a function of its arguments: a fallback may run it again, elsewhere.
/// 3. The source is code of the program's own, and as trusted: nothing is a sandbox. The emulated device of the C dialect
///    checks bounds, alignment, barriers and time, and answers with [`Error::KernelFault`]; so does a closure that
///    panics. WGSL is compiled with checks of bounds. On a GPU that runs C, an address out of bounds may lose the
///    device, which is opened again.
/// 4. What does not compile is [`Error::KernelSource`], with the compiler's message; lines count in the caller's text.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What to run.
    pub program: Arc<KernelProgram>,
    /// The tensors that it reads, in the order of the program's inputs.
    pub inputs: Vec<Tensor>,
    /// Numbers, in the order of the program's scalars.
    pub scalars: Vec<Scalar>,
    /// The shapes of what it writes, in the order of the program's outputs.
    pub outputs: Vec<Shape>,
    /// How many threads run it.
    pub launch: LaunchSize,
}

impl Kernel {
    /// A program whose first form is C, in the dialect of `panoply_kernels::c`: pointers to the inputs, pointers to the
    /// outputs, then the scalars are the arguments of `KERNEL entry(…)`.
    pub fn c(source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        KernelBuilder::new(entry).c(source, entry)
    }

    /// A program whose first form is WGSL. The buffers, by their parameters' names, `scalars` with a field for each
    /// scalar, and `BLOCK_X`, `BLOCK_Y`, `BLOCK_Z` for `@workgroup_size` are declared for it.
    pub fn wgsl(source: impl Into<Arc<str>>, entry: &str) -> KernelBuilder {
        KernelBuilder::new(entry).wgsl(source, entry)
    }

    /// A program whose first form is a closure on the CPU.
    pub fn on_cpu(
        name: &str,
        body: impl Fn(&mut KernelCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> KernelBuilder {
        KernelBuilder::new(name).on_cpu(body)
    }

    /// A call without arguments yet, by one block of one thread.
    pub fn new(program: &Arc<KernelProgram>) -> Kernel {
        let (inputs, scalars, outputs) = (Vec::new(), Vec::new(), Vec::new());
        let launch = LaunchSize::new([1, 1, 1], [1, 1, 1]);
        Kernel { program: Arc::clone(program), inputs, scalars, outputs, launch }
    }

    /// With the next input.
    pub fn input(mut self, tensor: &Tensor) -> Kernel {
        self.inputs.push(tensor.clone());
        self
    }

    /// With the next scalar.
    pub fn scalar(mut self, value: impl Into<Scalar>) -> Kernel {
        self.scalars.push(value.into());
        self
    }

    /// With the shape of the next output.
    pub fn output(mut self, shape: Shape) -> Kernel {
        self.outputs.push(shape);
        self
    }

    /// By so many threads.
    pub fn launch(mut self, launch: LaunchSize) -> Kernel {
        self.launch = launch;
        self
    }

    /// A call that does the same with the axes of its images in another order, where its program says how: axis `i` of each image that it
    /// reads and of the one that it writes is axis `order[i]` of this call's. It may have forms for the CPU alone.
    pub fn turned(&self, order: &[usize]) -> Option<Kernel> {
        self.program.turn()?(self, order)
    }

    /// Whether the closure can read an input where it lies: in row-major order, or in rows where the program reads those.
    pub fn reads_in_place(&self, input: usize) -> bool {
        let is_rows = |tensor: &Tensor| self.program.row_len(input).is_some_and(|len| row_pitch(tensor, len).is_some());
        self.inputs.get(input).is_some_and(|tensor| tensor.is_contiguous() || is_rows(tensor))
    }

    /// The element type and shape of each output.
    pub fn output_types(&self) -> impl Iterator<Item = (DType, Shape)> + '_ {
        self.program.outputs().iter().zip(&self.outputs).map(|(parameter, shape)| (parameter.dtype, *shape))
    }

    /// Runs the closure. The inputs must be this op's, contiguous (or as [`Kernel::reads_in_place`] says) and on the host; the outputs must
    /// be zeros unless the program writes all of them, as long as [`Kernel::output_types`] says and aligned for their elements. A panic becomes [`Error::KernelFault`].
    pub fn call(&self, inputs: &[Tensor], outputs: Vec<&mut [u8]>) -> Result<()> {
        self.call_for(inputs, outputs, 0..self.program.pieces().unwrap_or(1))
    }

    /// Runs the closure for some pieces of a program in pieces, which are all of this output. It must be zeros.
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

    /// The outputs as the closure computes them on the calling thread: what the other forms are tested against.
    pub fn compute(&self) -> Result<Vec<Tensor>> {
        self.validate()?;
        let inputs = self.inputs.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
        let bytes = |(dtype, shape): (DType, Shape)| HostBufferMut::zeroed(shape.elements() * dtype.size_bytes());
        let mut buffers = self.output_types().map(bytes).collect::<Result<Vec<_>>>()?;
        self.call(&inputs, buffers.iter_mut().map(HostBufferMut::bytes_mut).collect())?;
        let tensor = |((dtype, shape), buffer): (_, HostBufferMut)| Tensor::from_host(dtype, shape, buffer.freeze());
        self.output_types().zip(buffers).map(tensor).collect()
    }

    /// What an engine answers whose form the program lacks.
    pub fn missing(&self, form: &str, method: &str) -> Error {
        Error::Unsupported { op: "kernel", reason: self.lacks(form, method) }
    }

    /// Says that the program lacks a form, and how to add it.
    pub fn lacks(&self, form: &str, method: &str) -> String {
        format!("the kernel {} has no {form}; add one with `{method}`", self.program.name())
    }

    /// What an engine returns for these outputs.
    pub fn value(tensors: impl IntoIterator<Item = Tensor>) -> Value {
        Value::List(tensors.into_iter().map(Part::Tensor).collect())
    }

    /// The outputs from what an engine returned.
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

impl Describe for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn validate(&self) -> Result<()> {
        self.check_arguments()?;
        self.launch.check()
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.inputs.iter().for_each(|tensor| visit(tensor.into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.inputs.iter_mut().for_each(|tensor| visit(tensor.into()));
    }

    /// Elements read and written, and threads: a kernel may have few of either for its time.
    fn work(&self) -> u64 {
        let read: usize = self.inputs.iter().map(Tensor::elements).fold(0, usize::saturating_add);
        let written: usize = self.outputs.iter().map(|shape| shape.elements()).fold(0, usize::saturating_add);
        (read as u64).saturating_add(written as u64).saturating_add(self.launch.threads())
    }

    /// Each program has a curve of its own.
    fn cost_class(&self) -> CostClass {
        CostClass::numbered(self.program.hash())
    }

    fn kernel_signature(&self) -> u64 {
        self.program.hash() ^ self.launch.block.iter().fold(0, |hash, size| hash * 1031 + u64::from(*size))
    }
}

/// How many threads run a kernel: blocks of a grid, threads of a block. WGSL says workgroups and invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSize {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis. WGSL text has them as `BLOCK_X`, `BLOCK_Y` and `BLOCK_Z`.
    pub block: [u32; 3],
    /// Bytes of block memory beyond what the text declares: `DYNAMIC_SHARED` of the C dialect.
    pub block_bytes: u32,
}

impl LaunchSize {
    /// So many blocks of so many threads.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> LaunchSize {
        LaunchSize { grid, block, block_bytes: 0 }
    }

    /// At least a thread for each of so many elements, in blocks of so many threads along the first axis.
    pub fn over(elements: usize, block_threads: u32) -> LaunchSize {
        let blocks = elements.div_ceil(block_threads.max(1) as usize).max(1);
        LaunchSize::new([u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1], [block_threads, 1, 1])
    }

    /// With block memory whose size the launch gives.
    pub fn block_bytes(mut self, bytes: u32) -> LaunchSize {
        self.block_bytes = bytes;
        self
    }

    /// All threads.
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

//! MatMul. Thin products and small f32 products run on our own kernels. Other products run through
//! the vendor's library if it supports the element type and the layout, with the library's epilogue
//! if that gives the same result. All others run on our general kernel, which supports every
//! element type and every view.

use std::rc::Rc;
use std::time::Duration;

use panoply_core::op::compute::{Activation, MatMul, MatMulShape, Precision};
use panoply_core::{DType, Result, Shape, Tensor, Value};
use panoply_kernels::c::{Kernel, MATMUL, Unit, activation_number};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Driver, GRID_YZ_MAX, Launch, Stream};
use crate::layout::Layout;
use crate::library::{Epilogue, Matrix, Order, ProductPlan, ProductProblem, Products, alignment};

mod fused;
mod thin;
mod tiles;
pub(crate) mod units;

use thin::ThinSplit;
use tiles::Tiling;
use units::Units;

/// Products with misaligned rows, up to this many multiplications, are computed by our own kernel.
const MISALIGNED_PRODUCTS_MAX: usize = 1 << 24;
/// Bytes per wide load. The library requires a bias aligned to this.
pub(super) const WIDE_BYTES: u32 = 16;
/// The tile of the kernel, and its number of threads.
pub(crate) const TILE: usize = 64;
pub(crate) const THREADS: usize = 256;
/// Elements per thread of the relu pass: two loads of sixteen bytes.
const RELU_PER_THREAD: usize = 16;
/// Timed runs of each of a library's algorithms; the fastest counts.
const TIMED_RUNS: usize = 3;

pub(crate) fn run(op: &MatMul, context: &mut Context) -> Result<Value> {
    let shape = op.matmul_shape()?;
    let output_shape = op.output_shape()?;
    let (a, b) = op.operands()?;
    let a = Operand::new(&a, &shape.batch, context)?;
    let b = Operand::new(&b, &shape.batch, context)?;
    let c = match &op.c {
        Some(c) => Some(Operand::new(c, &shape.batch, context)?),
        None => None,
    };
    let bias = match &op.bias {
        Some(bias) => Some(context.input(bias)?),
        None => None,
    };
    let output = context.output(op.output_dtype(), output_shape)?;
    let product = Product { op, shape, a, b, c, bias, output: output.address };
    if output_shape.elements() > 0 {
        product.queue(context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// A product whose operands are all on the device.
pub(super) struct Product<'a> {
    pub(super) op: &'a MatMul,
    pub(super) shape: MatMulShape,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) c: Option<Operand>,
    pub(super) bias: Option<Address>,
    pub(super) output: Address,
}

impl Product<'_> {
    fn queue(&self, context: &mut Context) -> Result<()> {
        if let Some(thin) = ThinSplit::of(self, context.multiprocessors(), context.warp_lanes()) {
            return thin.run(self, context);
        }
        let tiling = Tiling::of(self, context.multiprocessors());
        let wants_tf32 = self.op.precision == Precision::Tf32;
        if let Some(tiling) = tiling.filter(|tiling| tiling.is_quick && !wants_tf32) {
            return tiling.run(self, context);
        }
        if self.by_convolution(context)? || self.by_library(context)? {
            return Ok(());
        }
        let has_units = context.driver.properties().tiles_of_16;
        match (has_units.then(|| Units::of(self, context.multiprocessors())).flatten(), tiling) {
            (Some(units), _) => units.run(self, context),
            (None, Some(tiling)) => tiling.run(self, context),
            (None, None) => self.by_kernel(context),
        }
    }

    fn bias_kind(&self) -> usize {
        self.op.bias.as_ref().map_or(0, |bias| bias.shape().rank())
    }

    /// Runs the product through the library; false if the library does not support it.
    fn by_library(&self, context: &mut Context) -> Result<bool> {
        let dtype = self.op.a.dtype();
        if matches!(dtype, DType::I32 | DType::U32 | DType::I8 | DType::U8) || self.shape.k == 0 {
            return Ok(false);
        }
        let driver = Rc::clone(&context.driver);
        let Some(library) = driver.products() else { return Ok(false) };
        let Some(problem) = self.problem() else { return Ok(false) };
        let is_misaligned = self.is_misaligned(&problem);
        if is_misaligned && self.shape.m * self.shape.n * self.shape.k <= MISALIGNED_PRODUCTS_MAX {
            return Ok(false);
        }
        let fused = if is_misaligned { None } else { self.fused_epilogue() };
        // If the library cannot fuse the epilogue, our own kernel applies it.
        let follows = fused.is_some_and(|fused| fused != Epilogue::None);
        Ok(self.by_library_with(library, problem, fused, context)?
            || follows && self.by_library_with(library, problem, None, context)?)
    }

    /// Runs the product through the library with this epilogue, or with our own epilogue after it
    /// if `None`. False if the library does not support that.
    fn by_library_with(
        &self,
        library: &dyn Products,
        mut problem: ProductProblem,
        fused: Option<Epilogue>,
        context: &mut Context,
    ) -> Result<bool> {
        let dtype = self.op.a.dtype();
        if fused.is_none() {
            // Our epilogue reads sums that are not rounded yet.
            problem.output = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        }
        let own_c = if fused.is_some() { self.addend_in_place() } else { None };
        // For f16 the library's relu turns NaN into zero. Our own relu runs afterwards; relu after
        // rounding gives the same result as before.
        let relu_follows = dtype == DType::F16 && matches!(fused, Some(Epilogue::Relu | Epilogue::ReluBias));
        let wanted = match fused {
            Some(Epilogue::Relu) if relu_follows => Epilogue::None,
            Some(Epilogue::ReluBias) if relu_follows => Epilogue::Bias,
            other => other.unwrap_or(Epilogue::None),
        };
        let Some(plan) = library.plan(&problem, wanted, own_c.is_some()) else { return Ok(false) };
        let workspace = context.workspace(plan.workspace_bytes())?;
        let target = match fused {
            Some(_) => self.output,
            None => context.workspace(problem.m * problem.n * problem.batches * problem.output.size_bytes())?,
        };
        let beta = if own_c.is_some() { self.op.beta } else { 0.0 };
        let addresses = [self.a.address, self.b.address, own_c.unwrap_or(target), target];
        if !context.is_rehearsal() {
            let bias = self.bias.filter(|_| fused.is_some());
            let multiply = || plan.multiply([self.op.alpha, beta], addresses, bias, workspace);
            if plan.ways() > 1 && !context.is_recording {
                // Other lanes would disturb the times.
                context.follow_all()?;
                choose_way(&*plan, &*context.driver, &multiply)?;
            }
            multiply()?;
        }
        if relu_follows {
            self.relu(context)?;
        }
        if fused.is_none() {
            self.epilogue(context, target, problem.output)?;
        }
        Ok(true)
    }

    /// Whether this is a product of 16-bit numbers whose rows do not begin at multiples of 16
    /// bytes. For some of those the library rounds the sums before it adds the bias, so it leaves
    /// the sums in f32, and small products run on our own kernels.
    fn is_misaligned(&self, problem: &ProductProblem) -> bool {
        let sixteen_bits = matches!(problem.dtype, DType::F16 | DType::BF16);
        let sizes = [self.shape.n, self.shape.k, self.shape.m].map(|size| size as i64);
        let steps = [problem.a, problem.b].map(|matrix| matrix.step | matrix.batch_step);
        sixteen_bits && (problem.align_bytes < WIDE_BYTES || sizes.iter().chain(&steps).any(|step| step % 8 != 0))
    }

    /// The product in the library's terms; `None` if the library does not support the operands'
    /// layout.
    fn problem(&self) -> Option<ProductProblem> {
        let MatMulShape { batch, m, n, k } = self.shape;
        let dtype = self.op.a.dtype();
        let (mut m, mut batches) = (m, batch.elements());
        let (mut a, b) = (self.a.matrix([m, k])?, self.b.matrix([k, n])?);
        // A batch with a common right operand is one product with more rows.
        let folds = batches > 1 && b.batch_step == 0 && a.order == Order::Rows && a.batch_step == m as i64 * a.step;
        if folds && (self.c.is_none() || self.addend_in_place().is_some()) && self.bias_kind() < 2 {
            m *= batches;
            batches = 1;
            a.batch_step = 0;
        }
        let tf32 = dtype == DType::F32 && self.op.precision == Precision::Tf32;
        let c = self.c.as_ref().map_or(self.output, |c| c.address);
        let align_bytes = alignment([self.a.address, self.b.address, c, self.output]);
        Some(ProductProblem { dtype, tf32, output: dtype, m, n, k, batches, a, b, align_bytes })
    }

    /// The library's own epilogue if it gives the same result as ours. `None`: our epilogue must
    /// run afterwards.
    fn fused_epilogue(&self) -> Option<Epilogue> {
        let c_fits = self.c.is_none() || self.addend_in_place().is_some();
        let bias_fits = self.bias.is_none_or(|bias| bias.is_multiple_of(u64::from(WIDE_BYTES)));
        let real = self.op.a.dtype() != DType::Complex64 && self.op.a.dtype() != DType::F64;
        // With C added, the library rounds before the bias and the activation.
        let rounds_early = matches!(self.op.a.dtype(), DType::F16 | DType::BF16) && self.c.is_some();
        match (self.op.activation, self.bias_kind()) {
            _ if !c_fits || !bias_fits => None,
            (activation, bias) if rounds_early && (activation, bias) != (Activation::None, 0) => None,
            (Activation::None, 0) => Some(Epilogue::None),
            (Activation::None, 1) if real => Some(Epilogue::Bias),
            (Activation::Relu, 0) if real => Some(Epilogue::Relu),
            (Activation::Relu, 1) if real => Some(Epilogue::ReluBias),
            _ => None,
        }
    }

    /// C, if it has the output's layout.
    fn addend_in_place(&self) -> Option<Address> {
        let c = self.c.as_ref()?;
        let MatMulShape { m, n, .. } = self.shape;
        let matrix = c.matrix([m, n])?;
        let lies = matrix.order == Order::Rows
            && matrix.step == n as i64
            && (self.shape.batch.elements() == 1 || matrix.batch_step == (m * n) as i64);
        lies.then_some(c.address)
    }

    pub(super) fn kernel(&self, unit: Unit, entry: &'static str, has_c: bool) -> Kernel {
        Kernel::new(unit, entry)
            .dtype("T", self.op.a.dtype())
            .dtype("R", self.op.output_dtype())
            .integer("BIAS", self.bias_kind() as i64)
            .integer("ACTIVATION", activation_number(self.op.activation))
            .flag("HAS_C", has_c)
    }

    fn sizes(&self) -> [[usize; 2]; 3] {
        sizes(&self.shape, self.shape.batch.elements(), self.op.alpha, self.op.beta)
    }

    /// The arguments of our kernels for whole products.
    pub(super) fn arguments(&self) -> Arguments {
        let none = Operand::default();
        let c = self.c.as_ref().unwrap_or(&none);
        Arguments::new()
            .address(self.output)
            .address(self.a.address)
            .address(self.b.address)
            .address(c.address)
            .address(self.bias.unwrap_or_default())
            .sizes(&self.sizes())
            .structure(&self.a.steps())
            .structure(&self.b.steps())
            .structure(&c.steps())
            .layout(&self.a.batch_layout())
            .layout(&self.b.batch_layout())
            .layout(&c.batch_layout())
    }

    fn by_kernel(&self, context: &mut Context) -> Result<()> {
        let MatMulShape { batch, m, n, .. } = self.shape;
        let kernel = self.kernel(MATMUL, "matmul", self.c.is_some()).dtype("S", self.op.output_dtype());
        let most = |count: usize| count.min(GRID_YZ_MAX);
        let grid = [n.div_ceil(TILE), most(m.div_ceil(TILE)), most(batch.elements())];
        context.launch(&kernel, Launch::grid(grid, THREADS), &mut self.arguments())
    }

    /// Applies `max(x, 0)` to an f16 output in place; NaN stays.
    fn relu(&self, context: &mut Context) -> Result<()> {
        let MatMulShape { batch, m, n, .. } = self.shape;
        let (count, dtype) = (batch.elements() * m * n, self.op.output_dtype());
        let kernel = self.kernel(MATMUL, "relu_f16", false).dtype("S", dtype);
        let mut arguments = Arguments::new().address(self.output).u64(count as u64);
        let launch = context.blocks(count, THREADS, RELU_PER_THREAD);
        context.launch(&kernel, launch, &mut arguments)
    }

    /// Applies our epilogue to the library's sums, which are already scaled by alpha.
    fn epilogue(&self, context: &mut Context, sums: Address, sums_dtype: DType) -> Result<()> {
        let MatMulShape { batch, m, n, .. } = self.shape;
        let none = Operand::default();
        let c = self.c.as_ref().unwrap_or(&none);
        let kernel = self.kernel(MATMUL, "epilogue", self.c.is_some()).dtype("S", sums_dtype);
        let mut arguments = Arguments::new()
            .address(self.output)
            .address(sums)
            .address(c.address)
            .address(self.bias.unwrap_or_default())
            .sizes(&self.sizes())
            .structure(&c.steps())
            .layout(&c.batch_layout());
        let launch = context.blocks(batch.elements() * m * n, THREADS, 4);
        context.launch(&kernel, launch, &mut arguments)
    }
}

/// Selects the fastest of a plan's algorithms permanently. Waits for the device, once per problem.
fn choose_way(plan: &dyn ProductPlan, driver: &dyn Driver, multiply: &dyn Fn() -> Result<()>) -> Result<()> {
    let (start, stop) = (driver.event()?, driver.event()?);
    let mut best = (Duration::MAX, 0);
    for way in 0..plan.ways() {
        plan.take(way, false);
        // The first run loads what the algorithm needs. An algorithm that fails to run is skipped.
        if multiply().is_err() {
            continue;
        }
        for _ in 0..TIMED_RUNS {
            driver.record(start, Stream::Compute)?;
            multiply()?;
            driver.record(stop, Stream::Compute)?;
            driver.synchronize(Stream::Compute)?;
            best = best.min((driver.between(start, stop)?, way));
        }
    }
    plan.take(best.1, true);
    Ok(())
}

/// The kernels' `sizes`: pairs of 32-bit numbers; the last pair holds the bits of the two factors.
pub(crate) fn sizes(shape: &MatMulShape, batches: usize, alpha: f32, beta: f32) -> [[usize; 2]; 3] {
    [[shape.m, shape.n], [shape.k, batches], [alpha.to_bits() as usize, beta.to_bits() as usize]]
}

/// A batch of matrices on the device. Strides are in elements; the last two axes are rows and
/// columns.
#[derive(Debug, Default)]
pub(super) struct Operand {
    pub(super) address: Address,
    pub(super) batch: Vec<(usize, i64)>,
    pub(super) row: i64,
    pub(super) col: i64,
}

impl Operand {
    /// The tensor broadcast to `batch` matrices.
    fn new(tensor: &Tensor, batch: &Shape, context: &mut Context) -> Result<Operand> {
        let view = context.view(tensor)?;
        // From the last axis to the first. Axes that the tensor lacks have stride 0.
        let mut steps = view.layout.axes().map(|(size, step)| if size == 1 { 0 } else { step });
        let (col, row) = (steps.next().unwrap_or(0), steps.next().unwrap_or(0));
        let mut batch: Vec<_> = batch.iter().rev().map(|size| (*size, steps.next().unwrap_or(0))).collect();
        batch.reverse();
        Ok(Operand { address: view.address, batch, row, col })
    }

    fn steps(&self) -> [u64; 2] {
        [self.row as u64, self.col as u64]
    }

    fn batch_layout(&self) -> Layout {
        let sizes: Vec<usize> = self.batch.iter().map(|(size, _)| *size).collect();
        let steps: Vec<isize> = self.batch.iter().map(|(_, step)| *step as isize).collect();
        Layout::new(&sizes, &steps)
    }

    /// The batch as matrices at a fixed distance, with contiguous rows or columns; `None` for other
    /// layouts.
    fn matrix(&self, [rows, cols]: [usize; 2]) -> Option<Matrix> {
        let mut batch_step = None;
        let mut inner = 1;
        for (size, step) in self.batch.iter().rev().filter(|(size, _)| *size != 1) {
            match batch_step {
                None => batch_step = Some(*step),
                Some(unit) if *step == unit * inner => {}
                Some(_) => return None,
            }
            inner *= *size as i64;
        }
        let (order, step) = if self.col == 1 || cols == 1 {
            (Order::Rows, if rows == 1 { cols as i64 } else { self.row })
        } else if self.row == 1 || rows == 1 {
            (Order::Columns, if cols == 1 { rows as i64 } else { self.col })
        } else {
            return None;
        };
        let long_enough = step >= if order == Order::Rows { cols as i64 } else { rows as i64 };
        long_enough.then(|| Matrix { order, step, batch_step: batch_step.unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::compute::Transfer;
    use panoply_core::{Backend, HostBuffer, OpenOptions, Operation};

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    fn matrix(address: u64, [rows, cols]: [usize; 2]) -> Operand {
        let row = if rows == 1 { 0 } else { cols as i64 };
        Operand { address: Address(address), batch: Vec::new(), row, col: 1 }
    }

    /// An op with its bias at this address and its left operand at that one.
    fn product(op: &MatMul, left: u64, bias: u64) -> Product<'_> {
        let (shape, sizes) = (op.matmul_shape().unwrap(), [16, 16]);
        Product {
            op,
            shape,
            a: matrix(left, sizes),
            b: matrix(512, sizes),
            c: None,
            bias: Some(Address(bias)),
            output: Address(1024),
        }
    }

    #[test]
    fn the_library_hears_how_the_operands_are_aligned() {
        let (values, bias) = (Tensor::zeros(DType::F16, [16, 16]).unwrap(), Tensor::zeros(DType::F16, [16]).unwrap());
        let op = MatMul::new(&values, &values).bias(&bias);
        let even = product(&op, 256, 768);
        assert_eq!(even.problem().map(|problem| problem.align_bytes), Some(256));
        assert!(!even.is_misaligned(&even.problem().unwrap()) && even.fused_epilogue() == Some(Epilogue::Bias));
        let odd = product(&op, 256 + 6, 768);
        assert_eq!(odd.problem().map(|problem| problem.align_bytes), Some(2));
        assert!(odd.is_misaligned(&odd.problem().unwrap()));
        assert!(product(&op, 256, 768 + 6).fused_epilogue().is_none());
        let mut apart = product(&op, 256, 768);
        apart.a.row = 17;
        assert!(apart.is_misaligned(&apart.problem().unwrap()));
    }

    /// Every f16 number but the last, so that the count is not a multiple of eight.
    #[test]
    fn relu_of_every_number_keeps_what_is_none() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
        let (rows, cols) = (255, 257);
        let values: Vec<u16> = (0..rows * cols).map(|bits| bits as u16).collect();
        let host = HostBuffer::from_owner(bytemuck::cast_slice::<u16, u8>(&values).to_vec());
        let values_tensor = Tensor::from_host(DType::F16, Shape::new([rows, cols]).unwrap(), host).unwrap();
        let zeros = |sizes| Tensor::zeros(DType::F16, sizes).unwrap();
        let op = MatMul::new(&zeros([rows, 1]), &zeros([1, cols]));
        let context = engine.context_mut();
        let output = context.output(DType::F16, *values_tensor.shape()).unwrap();
        context.place(output.address, &values_tensor).unwrap();
        let product = Product { output: output.address, shape: op.matmul_shape().unwrap(), ..product(&op, 256, 768) };
        product.relu(context).unwrap();
        let result = Transfer::to_host(&output.into_tensor()).into_op().unwrap();
        let result = run_one(&mut engine, result).unwrap().into_tensor().unwrap();
        let (found, _) = result.as_bytes().unwrap().as_chunks::<2>();
        for (bits, found) in values.iter().zip(found) {
            let is_none = bits & 0x7fff > 0x7c00;
            let expected = if bits >> 15 == 1 && !is_none { 0 } else { *bits };
            assert_eq!(u16::from_le_bytes(*found), expected, "of {bits:#06x}");
        }
    }
}

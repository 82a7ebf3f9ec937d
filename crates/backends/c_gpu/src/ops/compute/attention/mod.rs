//! Attention. 16-bit numbers, and f32 numbers in two parts, run on groups of four warps if the
//! device has them. Other sizes that fit block memory run on tiles that single warps multiply, and
//! the rest in plain arithmetic. No memory is needed besides the output.

use panoply_core::op::compute::{Attention, AttentionShape};
use panoply_core::{DType, Result, Tensor, Value};
use panoply_graph::Order;
use panoply_graph::fuse::heads::HEADS_INSIDE;
use panoply_kernels::c::{ATTENTION, Kernel, Unit};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::layout::{Layout, View};
use crate::strides::Axes;

mod forms;

use forms::{AttentionTiling, Sizes};

/// Queries and value columns of a block in plain arithmetic.
const PLAIN_ROWS: usize = 32;
const PLAIN_COLUMNS: usize = 64;
/// Threads of such a block that share a query, if threads can see each other's values.
const PLAIN_SHARERS: usize = 8;
/// Bytes per wide copy.
const WIDE_BYTES: usize = 16;

pub(crate) fn run(op: &Attention, context: &mut Context) -> Result<Value> {
    let order = context.output_order();
    let output = context.output(op.q.dtype(), op.output_shape()?)?;
    if let Some(order) = order {
        run_ordered(op, order, output.address, context)?;
    } else {
        run_into(op, output.address, false, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Attention with an output of permuted axes: directly by the kernel if the heads of a row are
/// adjacent, else with a copy.
fn run_ordered(op: &Attention, order: Order, output: Address, context: &mut Context) -> Result<()> {
    if order == HEADS_INSIDE && op.q.shape().rank() == order.len() && op.folded()?.is_none() {
        return run_into(op, output, true, context);
    }
    let (shape, dtype) = (op.output_shape()?, op.q.dtype());
    let first = context.scratch(shape.elements() * dtype.size_bytes())?;
    run_into(op, first, false, context)?;
    let (sizes, steps) = (order.map(|axis| shape[axis]), shape.contiguous_strides());
    let view = View { address: first, layout: Layout::new(&sizes, &order.map(|axis| steps[axis])) };
    context.copy_view(output, &view, dtype, shape.elements())
}

fn run_into(op: &Attention, output: Address, heads_inside: bool, context: &mut Context) -> Result<()> {
    let folded = op.folded()?;
    let op = folded.as_ref().unwrap_or(op);
    let shape = op.attention_shape()?;
    if output_is_empty(&shape) {
        return Ok(());
    }
    let mask = op.whole_mask()?;
    let task = AttentionTask {
        dtype: op.q.dtype(),
        shape,
        q: Operand::rows(&op.q, 1, context)?,
        k: Operand::rows(&op.k, shape.group(), context)?,
        v: Operand::rows(&op.v, shape.group(), context)?,
        mask: match (&op.mask, &mask) {
            (Some(own), Some(whole)) => Some((own.dtype(), Operand::mask(own, whole, context)?)),
            _ => None,
        },
        scale: op.scale_or_default(),
        is_causal: op.is_causal,
        beside: if heads_inside { shape.heads } else { 1 },
        output,
    };
    task.queue(context)
}

fn output_is_empty(shape: &AttentionShape) -> bool {
    shape.lines() * shape.n_q * shape.d_v == 0
}

/// An attention whose operands are all on the device.
struct AttentionTask {
    dtype: DType,
    shape: AttentionShape,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Option<(DType, Operand)>,
    scale: f32,
    is_causal: bool,
    /// Number of heads whose rows are adjacent in the output.
    beside: usize,
    output: Address,
}

impl AttentionTask {
    fn queue(&self, context: &mut Context) -> Result<()> {
        match AttentionTiling::choose(&self.sizes(), context.driver.properties()) {
            Some(form) => {
                let (unit, entry) = form.kernel();
                let kernel = form.parameters(self.kernel(unit, entry));
                let kernel = if form.is_grouped() { kernel } else { kernel.flag("WIDE", self.is_wide()) };
                let tiles = self.shape.n_q.div_ceil(form.rows());
                let launch = Launch::new(self.shape.lines() * tiles, form.threads()).shared(form.shared_bytes());
                context.launch(&kernel, launch, &mut self.arguments(tiles))
            }
            None => {
                let tiles = self.shape.n_q.div_ceil(PLAIN_ROWS);
                let parts = self.shape.d_v.div_ceil(PLAIN_COLUMNS);
                let threads = PLAIN_ROWS * PLAIN_SHARERS.min(context.warp_lanes());
                let launch = Launch::grid([self.shape.lines() * tiles, parts, 1], threads);
                context.launch(&self.kernel(ATTENTION, "attention"), launch, &mut self.arguments(tiles))
            }
        }
    }

    fn sizes(&self) -> Sizes {
        let AttentionShape { n_q, n_k, d, d_v, .. } = self.shape;
        Sizes { dtype: self.dtype, n_q, n_k, heads: self.shape.lines(), d, d_v, is_wide: self.is_wide() }
    }

    fn kernel(&self, unit: Unit, entry: &'static str) -> Kernel {
        let mask_dtype = self.mask.as_ref().map_or(DType::F32, |(dtype, _)| *dtype);
        Kernel::new(unit, entry)
            .dtype("T", self.dtype)
            .dtype("M", mask_dtype)
            .flag("MASKED", self.mask.is_some())
            .flag("MASK_ROWS", self.mask.as_ref().is_some_and(|(_, mask)| mask.row != 0 && self.shape.n_q > 1))
            // The largest product has the largest score only if the scale is positive.
            .flag("SCALED_FIRST", self.mask.is_some() || self.scale <= 0.0)
    }

    /// Whether every row of queries, keys and values can be copied in words of 16 bytes, and output
    /// rows can be written so.
    fn is_wide(&self) -> bool {
        let size = self.dtype.size_bytes();
        let whole = |elements: usize| (elements * size).is_multiple_of(WIDE_BYTES);
        whole(self.shape.d) && whole(self.shape.d_v) && [&self.q, &self.k, &self.v].iter().all(|it| it.is_wide(size))
    }

    /// The arguments of every attention kernel.
    fn arguments(&self, tiles: usize) -> Arguments {
        let AttentionShape { n_q, n_k, d, d_v, .. } = self.shape;
        let none = Operand::default();
        let mask = self.mask.as_ref().map_or(&none, |(_, mask)| mask);
        let steps = [self.q.row, self.k.row, self.v.row, mask.row, mask.column].map(|step| step as u64);
        let last = [self.scale.to_bits() as usize, self.beside];
        Arguments::new()
            .address(self.output)
            .address(self.q.address)
            .address(self.k.address)
            .address(self.v.address)
            .address(mask.address)
            .sizes(&[[n_q, n_k], [d, d_v], [tiles, usize::from(self.is_causal)], last])
            .structure(&steps)
            .layout(&self.q.heads)
            .layout(&self.k.heads)
            .layout(&self.v.heads)
            .layout(&mask.heads)
    }
}

/// One matrix per query head. Strides are in elements.
#[derive(Debug, Default)]
struct Operand {
    address: Address,
    heads: Layout,
    row: i64,
    column: i64,
}

impl Operand {
    /// Rows with contiguous columns; each matrix serves `group` query heads.
    fn rows(tensor: &Tensor, group: usize, context: &mut Context) -> Result<Operand> {
        let rank = tensor.shape().rank();
        let lies = tensor.strides()[rank - 1] == 1 || tensor.shape()[rank - 1] <= 1;
        let (address, strides) = match lies && context.owns(tensor) {
            true => (context.view(tensor)?.address, *tensor.strides()),
            // A tensor that is not on this device is contiguous after the upload.
            false => (context.input(tensor)?, tensor.shape().contiguous_strides()),
        };
        let dims = [&tensor.shape()[..rank - 2], &[group]].concat();
        let steps = [&strides[..rank - 2], &[0]].concat();
        Ok(Operand { address, heads: joined(&dims, &steps), row: strides[rank - 2] as i64, column: 1 })
    }

    /// A mask in any layout; `whole` is the mask broadcast to the shape of all scores.
    fn mask(own: &Tensor, whole: &Tensor, context: &mut Context) -> Result<Operand> {
        let view = context.view(own)?;
        // From the last axis to the first. Axes that the mask lacks have stride 0.
        let mut steps: Vec<isize> =
            view.layout.axes().map(|(size, step)| if size == 1 { 0 } else { step as isize }).collect();
        steps.resize(whole.shape().rank(), 0);
        steps.reverse();
        let rank = steps.len();
        let heads = joined(&whole.shape()[..rank - 2], &steps[..rank - 2]);
        Ok(Operand { address: view.address, heads, row: steps[rank - 2] as i64, column: steps[rank - 1] as i64 })
    }

    fn is_wide(&self, size: usize) -> bool {
        let whole = |step: i64| (step * size as i64) % WIDE_BYTES as i64 == 0;
        let heads = self.heads.axes().all(|(count, step)| count <= 1 || whole(step));
        self.address.is_multiple_of(WIDE_BYTES as u64) && whole(self.row) && heads
    }
}

/// The layout of the heads with as few axes as possible: most are contiguous.
fn joined(dims: &[usize], steps: &[isize]) -> Layout {
    let mut axes = Axes::<1>::of_sizes(dims.iter().copied());
    for (place, step) in axes.strides[0].iter_mut().zip(steps.iter().rev()) {
        *place = *step as i64;
    }
    axes.collapse(1);
    Layout::of_axes(&axes, 0)
}

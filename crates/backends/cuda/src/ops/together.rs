//! Several ops as one launch: equal small products, and searches of the same rows. Callers that send such ops at the same
//! time pay for one.

use panoply_core::op::compute::{ComputeOp, MatMul, Search};
use panoply_core::{Buffer, Describe, HostBufferMut, Item, Op, Result, Shape, Tensor, Value};
use panoply_kernels::c::{Kernel, MATMUL};

use super::{matmul, search};
use crate::context::{Arguments, Context, Output};
use crate::driver::Launch;

/// Products of more multiplications than this keep the device busy by themselves.
const PRODUCT_FLOPS_MAX: usize = 2 * 256 * 256 * 256;
/// The most queries that searches of the same rows are joined to.
const QUERIES_MAX: usize = 4096;
/// The most ops in one launch.
pub(crate) const OPS_MAX: usize = 1024;

/// How many items at the front of the batch can be one launch; 1 where they cannot.
pub(crate) fn joinable(items: &[Item]) -> usize {
    let Some(first) = items.first() else { return 0 };
    let Some(key) = first.op.batch_key() else { return 1 };
    let like_first = |item: &&Item| item.op.batch_key() == Some(key) && same(&first.op, &item.op);
    let alike = items.iter().take(OPS_MAX).take_while(like_first).count();
    match &first.op {
        Op::Compute(ComputeOp::MatMul(op)) if is_small(op) => alike.max(1),
        Op::Compute(ComputeOp::Search(op)) if matches!(op.queries.buffer(), Buffer::Host(_)) => {
            let each = op.queries.shape()[0].max(1);
            alike.min(QUERIES_MAX / each).max(1)
        }
        _ => 1,
    }
}

/// Queues all of them as one.
pub(crate) fn run(items: &[Item], context: &mut Context) -> Result<Vec<Value>> {
    match &items[0].op {
        Op::Compute(ComputeOp::MatMul(_)) => products(items, context),
        _ => searches(items, context),
    }
}

/// A batch key is a hash; this is the proof.
fn same(first: &Op, other: &Op) -> bool {
    match (first, other) {
        (Op::Compute(ComputeOp::MatMul(a)), Op::Compute(ComputeOp::MatMul(b))) => {
            let shapes = |op: &MatMul| (*op.a.shape(), *op.b.shape(), op.transpose_a, op.transpose_b, op.a.dtype());
            let rest = |op: &MatMul| (op.alpha.to_bits(), op.activation, op.precision);
            shapes(a) == shapes(b) && rest(a) == rest(b) && is_small(b)
        }
        (Op::Compute(ComputeOp::Search(a)), Op::Compute(ComputeOp::Search(b))) => {
            let plain = |op: &Search| op.filter.is_none() && matches!(op.queries.buffer(), Buffer::Host(_));
            let rows = (a.rows.offset(), a.rows.shape(), a.rows.strides());
            plain(a)
                && plain(b)
                && same_buffer(a.rows.buffer(), b.rows.buffer())
                && rows == (b.rows.offset(), b.rows.shape(), b.rows.strides())
                && (a.metric, a.k, a.queries.dtype(), a.queries.shape()[1])
                    == (b.metric, b.k, b.queries.dtype(), b.queries.shape()[1])
                && a.row_norms.is_some() == b.row_norms.is_some()
        }
        _ => false,
    }
}

fn same_buffer(a: &Buffer, b: &Buffer) -> bool {
    match (a, b) {
        (Buffer::Device(a), Buffer::Device(b)) => a.device() == b.device() && a.token() == b.token(),
        _ => false,
    }
}

/// Whether a product is one that the joined kernel takes: two small plain matrices.
fn is_small(op: &MatMul) -> bool {
    let matrix = |tensor: &Tensor| tensor.shape().rank() == 2 && tensor.is_contiguous();
    let plain = op.c.is_none() && op.bias.is_none() && matrix(&op.a) && matrix(&op.b);
    plain
        && op.matmul_shape().is_ok_and(|shape| {
            let flops = 2 * shape.m * shape.n * shape.k;
            flops > 0 && flops <= PRODUCT_FLOPS_MAX
        })
}

fn products(items: &[Item], context: &mut Context) -> Result<Vec<Value>> {
    let mut table: Vec<u64> = Vec::with_capacity(3 * items.len());
    let mut outputs: Vec<Output> = Vec::with_capacity(items.len());
    let mut first = None;
    for item in items {
        let Op::Compute(ComputeOp::MatMul(op)) = &item.op else { continue };
        let output = context.output(op.output_dtype(), op.output_shape()?)?;
        table.extend([output.address, context.input(&op.a)?, context.input(&op.b)?]);
        outputs.push(output);
        first = first.or(Some(op));
    }
    let Some(op) = first else { return Ok(Vec::new()) };
    let table = Tensor::from_slice(bytemuck::cast_slice::<u64, u32>(&table), [2 * table.len()])?;
    let table = context.input(&table)?;
    let shape = op.matmul_shape()?;
    let steps = |tensor: &Tensor, turned: bool| {
        let cols = tensor.shape()[1] as u64;
        if turned { [1, cols] } else { [cols, 1] }
    };
    let kernel = Kernel::new(MATMUL, "matmul_many")
        .dtype("T", op.a.dtype())
        .dtype("R", op.output_dtype())
        .dtype("S", op.output_dtype())
        .integer("BIAS", 0)
        .integer("ACTIVATION", matmul::activation_number(op.activation))
        .flag("HAS_C", false);
    let mut arguments = Arguments::new()
        .address(table)
        .structure(&matmul::sizes(&shape, outputs.len(), op.alpha, 0.0))
        .structure(&steps(&op.a, op.transpose_a))
        .structure(&steps(&op.b, op.transpose_b));
    let tiles = |count: usize| count.div_ceil(matmul::TILE) as u32;
    let grid = [tiles(shape.n), tiles(shape.m), outputs.len() as u32];
    context.launch(&kernel, Launch::grid(grid, 256), &mut arguments)?;
    Ok(outputs.into_iter().map(|output| Value::Tensor(output.into_tensor())).collect())
}

fn searches(items: &[Item], context: &mut Context) -> Result<Vec<Value>> {
    let ops: Vec<&Search> = items
        .iter()
        .filter_map(|item| match &item.op {
            Op::Compute(ComputeOp::Search(op)) => Some(op),
            _ => None,
        })
        .collect();
    let Some(first) = ops.first() else { return Ok(Vec::new()) };
    let mut joined = Search::clone(first);
    joined.queries = concatenated(&ops)?;
    let (ids, scores) = search::run(&joined, context)?.into_pair()?;
    let mut begin = 0;
    let mut values = Vec::with_capacity(ops.len());
    for op in ops {
        let end = begin + op.queries.shape()[0];
        values.push(Value::Pair(ids.slice(0, begin, end)?, scores.slice(0, begin, end)?));
        begin = end;
    }
    Ok(values)
}

/// The queries of all searches, one after the other.
fn concatenated(ops: &[&Search]) -> Result<Tensor> {
    let rows: usize = ops.iter().map(|op| op.queries.shape()[0]).sum();
    let (dims, dtype) = (ops[0].queries.shape()[1], ops[0].queries.dtype());
    let mut joined = HostBufferMut::zeroed(rows * dims * dtype.size_bytes())?;
    let mut place = 0;
    for op in ops {
        let queries = op.queries.contiguous()?;
        let bytes = queries.as_bytes()?;
        joined.bytes_mut()[place..place + bytes.len()].copy_from_slice(bytes);
        place += bytes.len();
    }
    Tensor::from_host(dtype, Shape::new([rows, dims])?, joined.freeze())
}

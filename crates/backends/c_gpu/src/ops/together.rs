//! Batches several ops into one launch: equal small products and maps, and searches of the same
//! rows. Callers that submit such ops at the same time share the cost of one launch.

use panoply_core::op::compute::{ComputeOp, Map, MatMul, Search};
use panoply_core::op::graph::{GraphOp, RunGraph};
use panoply_core::{Buffer, Item, Location, Op, Operation, Result, Tensor, Value};
use panoply_kernels::c::{Kernel, MATMUL, activation_number};

use super::compute::{map, matmul, search};
use crate::address_table::{DeviceTable, Table};
use crate::arguments::Arguments;
use crate::context::{Context, Output};
use crate::driver::Launch;

/// Maximum cost of a small product. Larger products occupy the device alone.
const PRODUCT_FLOPS_MAX: usize = 2 * 256 * 256 * 256;
/// Maximum number of queries in joined searches of the same rows.
const QUERIES_MAX: usize = 4096;
/// Maximum number of rows in joined runs of one graph.
const GRAPH_ROWS_MAX: usize = 4096;
/// Maximum number of ops in one launch, and of the elements that they read and write.
const OPS_MAX: usize = 1024;
const ELEMENTS_MAX: usize = 1 << 22;

/// The kinds of ops that can be joined.
#[derive(Clone, Copy)]
enum Kind {
    Maps,
    Products,
    Searches,
    Graphs,
}

/// Number of items at the front of the batch that can be one launch: 1 if the first cannot be
/// joined, 0 for an empty batch.
pub(crate) fn joinable(items: &[Item], context: &Context) -> usize {
    let Some((first, rest)) = items.split_first() else { return 0 };
    if rest.is_empty() || !has_tables(context) {
        return 1;
    }
    let most = match (kind(&first.op), &first.op) {
        (None, _) => return 1,
        (_, Op::Graph(GraphOp::RunGraph(op))) => GRAPH_ROWS_MAX / op.inputs()[0].shape()[0].max(1),
        (_, Op::Compute(ComputeOp::Search(op))) => QUERIES_MAX / op.queries.shape()[0].max(1),
        (_, op) => ELEMENTS_MAX / elements(op).max(1),
    };
    let others = most.clamp(1, OPS_MAX) - 1;
    1 + rest.iter().take(others).take_while(|item| same(&first.op, &item.op)).count()
}

/// Queues all items as one launch. Returns no values if that is not possible; each item must then
/// run separately.
pub(crate) fn run(items: &[Item], context: &mut Context) -> Result<Vec<Value>> {
    match items.first().and_then(|first| kind(&first.op)) {
        Some(Kind::Maps) => map::run_many(&ops(items, as_map), context),
        Some(Kind::Products) => products(&ops(items, as_product), context),
        Some(Kind::Searches) => searches(&ops(items, as_search), context),
        Some(Kind::Graphs) => graphs(items, context),
        None => Ok(Vec::new()),
    }
}

/// Loads the kernels for several ops like this one, if such ops can be joined.
pub(crate) fn rehearse(op: &Op, context: &mut Context) {
    if has_tables(context) && kind(op).is_some() {
        let item = |token| Item { token, op: op.clone() };
        // An error is ignored: the op itself reports it when it runs.
        drop(run(&[item(0), item(1)], context));
    }
}

/// Whether kernels can read the addresses of many ops' memory from a table.
fn has_tables(context: &Context) -> bool {
    context.driver.properties().pointers || context.driver.shared_buffer().is_some()
}

fn kind(op: &Op) -> Option<Kind> {
    match op {
        Op::Compute(ComputeOp::Map(op)) if map::is_small(op) => Some(Kind::Maps),
        Op::Compute(ComputeOp::MatMul(op)) if is_small(op) => Some(Kind::Products),
        Op::Compute(ComputeOp::Search(op)) if is_plain(op) => Some(Kind::Searches),
        Op::Graph(GraphOp::RunGraph(op)) if has_host_rows(op) => Some(Kind::Graphs),
        _ => None,
    }
}

/// Whether a graph's rows are independent, and can be joined on the host.
fn has_host_rows(op: &RunGraph) -> bool {
    op.graph().has_rows() && op.inputs().iter().all(|input| input.location() == Location::Host)
}

/// Joins runs of one graph into one run with all rows.
fn graphs(items: &[Item], context: &mut Context) -> Result<Vec<Value>> {
    let of = |item: &'_ Item| if let Op::Graph(GraphOp::RunGraph(op)) = &item.op { Some(op.clone()) } else { None };
    let ops: Vec<RunGraph> = items.iter().filter_map(of).collect();
    let Some((joined, rows)) = panoply_graph::join_rows(&ops.iter().collect::<Vec<_>>()) else { return Ok(Vec::new()) };
    let value = super::run(&joined.into_op()?, context)?;
    panoply_graph::split_rows(&value, &rows)
}

fn as_map(op: &ComputeOp) -> Option<&Map> {
    if let ComputeOp::Map(op) = op { Some(op) } else { None }
}

fn as_product(op: &ComputeOp) -> Option<&MatMul> {
    if let ComputeOp::MatMul(op) = op { Some(op) } else { None }
}

fn as_search(op: &ComputeOp) -> Option<&Search> {
    if let ComputeOp::Search(op) = op { Some(op) } else { None }
}

fn ops<'a, T>(items: &'a [Item], of: fn(&'a ComputeOp) -> Option<&'a T>) -> Vec<&'a T> {
    items.iter().filter_map(|item| if let Op::Compute(op) = &item.op { of(op) } else { None }).collect()
}

/// Number of elements of an op's inputs.
fn elements(op: &Op) -> usize {
    let mut elements = 0;
    op.for_each_tensor(&mut |tensor| elements += tensor.elements());
    elements
}

/// Whether `other` can be joined with `first`, which is joinable.
fn same(first: &Op, other: &Op) -> bool {
    match (first, other) {
        (Op::Compute(ComputeOp::Map(a)), Op::Compute(ComputeOp::Map(b))) => map::same(a, b),
        (Op::Compute(ComputeOp::MatMul(a)), Op::Compute(ComputeOp::MatMul(b))) => {
            let shapes = |op: &MatMul| (*op.a.shape(), *op.b.shape(), op.transpose_a, op.transpose_b, op.a.dtype());
            let rest = |op: &MatMul| (op.alpha.to_bits(), op.activation, op.precision);
            shapes(a) == shapes(b) && rest(a) == rest(b) && is_small(b)
        }
        (Op::Graph(GraphOp::RunGraph(a)), Op::Graph(GraphOp::RunGraph(b))) => {
            a.graph() == b.graph() && has_host_rows(b)
        }
        (Op::Compute(ComputeOp::Search(a)), Op::Compute(ComputeOp::Search(b))) => {
            let asked = |op: &Search| (op.metric, op.k, op.queries.dtype(), op.queries.shape()[1]);
            let same_norms = match (&a.row_norms, &b.row_norms) {
                (Some(a), Some(b)) => same_view(a, b),
                (None, None) => true,
                _ => false,
            };
            is_plain(b) && asked(a) == asked(b) && same_view(&a.rows, &b.rows) && same_norms
        }
        _ => false,
    }
}

/// Whether two tensors are the same elements of the same memory.
fn same_view(a: &Tensor, b: &Tensor) -> bool {
    let same_buffer = match (a.buffer(), b.buffer()) {
        (Buffer::Device(a), Buffer::Device(b)) => a.device() == b.device() && a.token() == b.token(),
        // Both buffers are alive, so the same address is the same buffer.
        (Buffer::Host(a), Buffer::Host(b)) => std::ptr::eq(a.bytes(), b.bytes()),
        _ => false,
    };
    let lies = |tensor: &Tensor| (tensor.dtype(), *tensor.shape(), *tensor.strides(), tensor.offset());
    same_buffer && lies(a) == lies(b)
}

/// Whether a search can be joined with others of the same rows.
fn is_plain(op: &Search) -> bool {
    op.filter.is_none() && matches!(op.queries.buffer(), Buffer::Host(_))
}

/// Whether the joined kernel supports the product: two small plain matrices.
fn is_small(op: &MatMul) -> bool {
    let matrix = |tensor: &Tensor| tensor.shape().rank() == 2 && tensor.is_contiguous();
    let plain = op.c.is_none() && op.bias.is_none() && matrix(&op.a) && matrix(&op.b);
    plain
        && op.a.elements() + op.b.elements() <= ELEMENTS_MAX / 16
        && op.matmul_shape().is_ok_and(|shape| {
            let flops = 2 * shape.m * shape.n * shape.k;
            flops > 0 && flops <= PRODUCT_FLOPS_MAX
        })
}

fn products(ops: &[&MatMul], context: &mut Context) -> Result<Vec<Value>> {
    let Some(op) = ops.first() else { return Ok(Vec::new()) };
    let mut table = Table::default();
    let mut outputs: Vec<Output> = Vec::with_capacity(ops.len());
    for op in ops {
        let output = context.output(op.output_dtype(), op.output_shape()?)?;
        table.push(output.address);
        table.push_input(&op.a, context)?;
        table.push_input(&op.b, context)?;
        outputs.push(output);
    }
    let Some(DeviceTable { base, table, .. }) = table.upload(context)? else { return Ok(Vec::new()) };
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
        .integer("ACTIVATION", activation_number(op.activation))
        .flag("HAS_C", false);
    let mut arguments = Arguments::new()
        .address(base)
        .address(table)
        .sizes(&matmul::sizes(&shape, outputs.len(), op.alpha, 0.0))
        .structure(&steps(&op.a, op.transpose_a))
        .structure(&steps(&op.b, op.transpose_b));
    let tiles = |count: usize| count.div_ceil(matmul::TILE);
    let grid = [tiles(shape.n), tiles(shape.m), outputs.len()];
    context.launch(&kernel, Launch::grid(grid, matmul::THREADS), &mut arguments)?;
    Ok(outputs.into_iter().map(|output| Value::Tensor(output.into_tensor())).collect())
}

fn searches(ops: &[&Search], context: &mut Context) -> Result<Vec<Value>> {
    let Some(first) = ops.first() else { return Ok(Vec::new()) };
    let joined = first.with_queries_of(ops)?;
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

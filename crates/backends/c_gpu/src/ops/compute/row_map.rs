//! RowMap: one generated kernel for each pair of expressions, row function and input layouts. A row
//! stays in registers between the expressions. Rows that do not fit run as three ops.

use std::collections::HashMap;

use panoply_core::expr::Program;
use panoply_core::op::compute::{RowFunction, RowMap};
use panoply_core::{DType, Op, Result, Shape, Support, Tensor, Value};
use panoply_kernels::c::generate::{Access, GENERATED_NODES_MAX};
use panoply_kernels::c::row_map::{RowForm, RowKernel, row_kernel};

use super::map::pass_constants;
use super::rows::RowSplit;
use crate::arguments::Arguments;
use crate::context::{Context, DeviceState};
use crate::driver::Address;
use crate::layout::LAYOUT_AXES_MAX;
use crate::strides::Axes;

/// Maximum number of inputs of one kernel, for both expressions together.
const INPUTS_MAX: usize = 16;
/// Bytes per vector read or write of a thread.
const VECTOR_BYTES: usize = 16;
/// Maximum number of cached kernels. A full table is emptied.
const GENERATED_MAX: usize = 1024;

pub(crate) fn run(op: &RowMap, context: &mut Context) -> Result<Value> {
    let (before, after) = (op.before_program()?, op.after_program()?);
    let nodes = before.nodes().len().max(after.nodes().len());
    let inputs = op.inputs().len() + op.more().len();
    let len = op.row_len()?;
    let rows = RowSplit::with_vector(op.row_dtype()?, len, context.driver.properties(), 1);
    if rows.is_none() || len == 0 || inputs > INPUTS_MAX || nodes > GENERATED_NODES_MAX {
        return apart(op, context);
    }
    let output = context.output(op.output_dtype()?, op.output_shape()?)?;
    if op.output_shape()?.elements() > 0 {
        launch(op, output.address, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Runs the op as its three separate ops.
fn apart(op: &RowMap, context: &mut Context) -> Result<Value> {
    let tensor = op.apart(&mut |op| {
        let Op::Compute(op) = &op else { return Err(Support::unknown(&op).refusal(&op)) };
        let tensor = super::run(op, context)?.into_tensor()?;
        context.keep(&tensor);
        Ok(tensor)
    });
    tensor.map(Value::Tensor)
}

fn launch(op: &RowMap, target: Address, context: &mut Context) -> Result<()> {
    let (rows_shape, row) = (op.rows_shape()?, op.row_dtype()?);
    let len = op.row_len()?;
    let mut inputs = RowInputs::new(&rows_shape);
    for tensor in op.inputs() {
        inputs.push(tensor, 0, context)?;
    }
    for tensor in op.more() {
        inputs.push(tensor, usize::from(op.function.is_reduction()), context)?;
    }
    let count = inputs.axes.elements();
    inputs.axes.collapse(inputs.count);
    let stored = if op.function.is_reduction() { None } else { Some(op.output_dtype()?) };
    let vector = inputs.vector(len, stored);
    // Rows fit with one element per vector, so they also fit with longer vectors.
    let Some(rows) = RowSplit::with_vector(row, len, context.driver.properties(), vector) else {
        return Err(panoply_core::Error::invalid("row_map", "a row that fits", len));
    };
    let form = RowForm {
        function: op.function.name(),
        dtypes: inputs.dtypes.clone(),
        accesses: inputs.accesses(len, vector),
        before: op.inputs().len(),
        row,
        output: op.output_dtype()?,
        rank: inputs.axes.rank.max(1),
        shares: [rows.group, rows.items, rows.vector],
        is_full: len == rows.group * rows.items * rows.vector,
    };
    let epsilon = if let RowFunction::Norm { epsilon, .. } = op.function { epsilon } else { 0.0 };
    context.with_state(|row_maps: &mut RowMaps, context| {
        let RowKernel { kernel, constants } = row_maps.find(op, &form)?;
        let addresses = inputs.addresses.iter().fold(Arguments::new().address(target), |all, one| all.address(*one));
        let arguments = inputs.layout_arguments(addresses, form.rank);
        let arguments = pass_constants(arguments, constants, context)?.u64(count as u64).size(len);
        context.launch(kernel, rows.launch(count), &mut arguments.f64(epsilon))
    })
}

/// The inputs of both expressions: their strides along a row, and along the outer axes.
struct RowInputs {
    axes: Axes<INPUTS_MAX>,
    steps: [i64; INPUTS_MAX],
    count: usize,
    addresses: Vec<Address>,
    dtypes: Vec<DType>,
}

impl RowInputs {
    fn new(rows: &Shape) -> RowInputs {
        let axes = Axes::of_sizes(rows[..rows.rank() - 1].iter().copied());
        RowInputs { axes, steps: [0; INPUTS_MAX], count: 0, addresses: Vec::new(), dtypes: Vec::new() }
    }

    /// Adds an input whose last axis is `lacks` axes before the row's.
    fn push(&mut self, tensor: &Tensor, lacks: usize, context: &mut Context) -> Result<()> {
        let view = context.view(tensor)?;
        for (axis, (size, stride)) in view.layout.axes().enumerate() {
            let stride = if size == 1 { 0 } else { stride };
            match (axis + lacks).checked_sub(1) {
                None => self.steps[self.count] = stride,
                Some(outer) => self.axes.strides[self.count][outer] = stride,
            }
        }
        self.addresses.push(view.address);
        self.dtypes.push(tensor.dtype());
        self.count += 1;
        Ok(())
    }

    /// Elements per vector: as many as 16 bytes hold of the widest type, if every row is aligned to
    /// that.
    fn vector(&self, len: usize, stored: Option<DType>) -> usize {
        let lies = (0..self.count).filter(|input| self.steps[*input] == 1);
        let widest = lies.map(|input| self.dtypes[input]).chain(stored).map(DType::size_bytes).max();
        let mut width = VECTOR_BYTES / widest.unwrap_or(VECTOR_BYTES);
        while width > 1 && !(len.is_multiple_of(width) && (0..self.count).all(|input| self.is_aligned(input, width))) {
            width /= 2;
        }
        width
    }

    fn is_aligned(&self, input: usize, width: usize) -> bool {
        let bytes = (width * self.dtypes[input].size_bytes()).min(VECTOR_BYTES) as u64;
        let strides = &self.axes.strides[input][..self.axes.rank];
        self.steps[input] != 1
            || self.addresses[input].is_multiple_of(bytes) && strides.iter().all(|stride| stride % width as i64 == 0)
    }

    fn accesses(&self, len: usize, vector: usize) -> Vec<Access> {
        let access = |input: usize| match self.steps[input] {
            _ if len == 1 => Access::Same,
            0 => Access::Same,
            1 if vector == 1 || self.is_aligned(input, vector) => Access::Vector,
            _ => Access::Single,
        };
        (0..self.count).map(access).collect()
    }

    /// Adds the kernel's `sizes` and `strides`.
    fn layout_arguments(&self, arguments: Arguments, rank: usize) -> Arguments {
        let mut sizes = [[1; 2]; LAYOUT_AXES_MAX / 2];
        for (axis, size) in self.axes.sizes[..self.axes.rank].iter().enumerate() {
            sizes[axis / 2][axis % 2] = *size;
        }
        let mut words = Vec::with_capacity(self.count * (rank + 1));
        for input in 0..self.count {
            words.push(self.steps[input] as u64);
            words.extend(
                self.axes.strides[input][..rank]
                    .iter()
                    .enumerate()
                    .map(|(axis, stride)| if axis < self.axes.rank { *stride as u64 } else { 0 }),
            );
        }
        arguments.sizes(&sizes[..rank.div_ceil(2)]).structure(&words)
    }
}

/// Cache of generated kernels, keyed by everything that determines them.
#[derive(Default)]
struct RowMaps {
    generated: HashMap<(u64, u64), Vec<GeneratedRowMap>>,
    count: usize,
}

struct GeneratedRowMap {
    before: Program,
    after: Program,
    form: RowForm,
    kernel: RowKernel,
}

impl DeviceState for RowMaps {}

impl RowMaps {
    fn find(&mut self, op: &RowMap, form: &RowForm) -> Result<&RowKernel> {
        if self.count >= GENERATED_MAX {
            self.generated.clear();
            self.count = 0;
        }
        let (before, after) = (op.before_program()?, op.after_program()?);
        let known = self.generated.entry((before.hash(), after.hash())).or_default();
        let is_it = |one: &GeneratedRowMap| one.form == *form && one.before == *before && one.after == *after;
        let place = match known.iter().position(is_it) {
            Some(place) => place,
            None => {
                let before_types = before.types(&form.dtypes[..form.before])?;
                let after_types = after.types(&op.after_dtypes()?)?;
                let kernel = row_kernel(op.function, (before, &before_types), (after, &after_types), form);
                known.push(GeneratedRowMap {
                    before: before.clone(),
                    after: after.clone(),
                    form: form.clone(),
                    kernel,
                });
                self.count += 1;
                known.len() - 1
            }
        };
        Ok(&known[place].kernel)
    }
}

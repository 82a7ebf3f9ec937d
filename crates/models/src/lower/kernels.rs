//! Nodes for which the compute domain has no op, as custom kernels inside the graph. `Concat`,
//! `Resize`, `Pad`, `Tile` and recurrent layers have device code (`forms`). The other kernels are
//! closures that run on the CPU: a graph on the CPU stays whole, and a graph on another device is
//! split around them.

use std::sync::Arc;

use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Kernel, KernelBuilder, KernelCall, KernelProgram};
use panoply_core::{DType, Element, Shape, Tensor, bf16, f16};

use super::{Arg, Lower, LoweredOutputs, carrier, forms};
use crate::array::{Array, count_of};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::call::{Call, axis_of};
use crate::ops::index::around;
use crate::ops::sizes;
use crate::program::{Node, OpKind};
use crate::value::Value;

/// The most operands of one concatenation; more are joined in groups. Operands and result together
/// reach the most tensors that a kernel of any device takes.
const CONCAT_MAX: usize = 7;

impl Lower<'_, '_> {
    pub(super) fn kernel(&mut self) -> LoweredOutputs {
        match self.node.op.as_str() {
            "Concat" => return self.concat(),
            "Resize" | "Upsample" => {
                if let Some(recorded) = self.resize()? {
                    return Ok(Some(recorded));
                }
            }
            "Pad" | "Tile" => {
                if let Some(recorded) = self.pad()? {
                    return Ok(Some(recorded));
                }
            }
            _ => {}
        }
        let dims: Vec<Option<Vec<usize>>> =
            (0..self.args.len()).map(|place| self.dims(place).ok().map(<[usize]>::to_vec)).collect();
        let kind = self.kind(0)?;
        let outputs = match sizes::outputs(&self.call, &dims)? {
            Some(outputs) if kind.dtype().is_some_and(DType::is_float) => outputs,
            _ => return Ok(None),
        };
        self.on_cpu(&outputs, kind)
    }

    /// The node's host function as a kernel. All outputs have one element type and share one
    /// tensor, one after the other.
    fn on_cpu(&mut self, outputs: &[Vec<usize>], kind: ElementType) -> LoweredOutputs {
        let (mut nodes, mut inputs, mut dtypes) = (Vec::new(), Vec::new(), Vec::new());
        for (place, arg) in self.args.iter().enumerate() {
            inputs.push(match arg {
                Arg::Missing => Input::Missing,
                Arg::Static(array) => Input::Static(array.clone().into()),
                Arg::Dynamic { kind, dims, .. } => {
                    dtypes.push(carrier(*kind)?);
                    nodes.push(place);
                    Input::Given(dtypes.len() - 1, *kind, dims.clone())
                }
            });
        }
        let nodes = nodes.into_iter().map(|place| self.id(place)).collect::<Result<Vec<NodeId>>>()?;
        let (node, lens) =
            (Arc::clone(self.node), outputs.iter().map(|dims| count_of(dims)).collect::<Result<Vec<usize>>>()?);
        let total: usize = lens.iter().sum();
        let dtype = carrier(kind)?;
        let body = move |call: &mut KernelCall<'_>| {
            evaluate(call, &node, &inputs, dtype, &lens).map_err(|cause| {
                let kernel = node.op.clone();
                panoply_core::Error::KernelFault { kernel, reason: node.error(cause).to_string() }
            })
        };
        let mut program = Kernel::on_cpu("host_op", body);
        for (place, dtype) in dtypes.iter().enumerate() {
            program = program.input(&format!("x{place}"), *dtype);
        }
        let program = program.output("y", dtype).build()?;
        let shape = Shape::new([total])?;
        let whole = self.graph().op(&nodes, |tensors| {
            tensors.iter().fold(Kernel::new(&program), |kernel, tensor| kernel.input(tensor)).output(shape)
        })?;
        let (mut start, mut parts) = (0, Vec::new());
        for dims in outputs {
            let len: usize = dims.iter().product();
            let part = if outputs.len() == 1 { whole } else { self.graph().slice(whole, 0, start, start + len, 1)? };
            parts.push((self.reshape(part, dims)?, kind));
            start += len;
        }
        Ok(Some(parts))
    }

    fn concat(&mut self) -> LoweredOutputs {
        let given: Vec<usize> = (0..self.args.len()).filter(|place| self.is_given(*place)).collect();
        let Some(front) = given.first().copied() else { return Ok(None) };
        let (kind, first) = (self.kind(front)?, self.dims(front)?.to_vec());
        let dtype = carrier(kind)?;
        let axis = axis_of(self.call.int("axis", 1)?, first.len())?;
        for place in &given {
            let dims = self.dims(*place)?;
            let same = dims.len() == first.len()
                && dims.iter().zip(&first).enumerate().all(|(at, (a, b))| at == axis || a == b);
            if !same || self.kind(*place)? != kind {
                return Ok(None);
            }
        }
        let mut nodes = given.iter().map(|place| self.id(*place)).collect::<Result<Vec<_>>>()?;
        while nodes.len() > 1 {
            let groups: Vec<Vec<NodeId>> = nodes.chunks(CONCAT_MAX).map(<[NodeId]>::to_vec).collect();
            nodes = groups.iter().map(|group| self.join(group, axis, dtype)).collect::<Result<_>>()?;
        }
        Ok(Some(vec![(nodes[0], kind)]))
    }

    /// Concatenates tensors along an axis.
    fn join(&mut self, nodes: &[NodeId], axis: usize, dtype: DType) -> Result<NodeId> {
        if let [one] = nodes {
            return Ok(*one);
        }
        let dims = nodes.iter().map(|node| self.node_dims(*node)).collect::<Result<Vec<_>>>()?;
        let joined = ConcatLayout::of(&dims, axis, dtype)?;
        let has_forms = forms::fits(&[joined.elements]);
        let program = match has_forms {
            true => forms::concat(joined.program(), nodes.len(), dtype, &joined.runs),
            false => joined.program(),
        };
        let (program, ConcatLayout { elements, shape, runs, .. }) = (program.build()?, joined);
        let make = |tensors: &[Tensor]| {
            let kernel = call_of(&program, tensors, shape);
            let kernel = match has_forms {
                true => kernel.scalar(elements as u32).scalar(runs.iter().sum::<usize>() as u32),
                false => return kernel,
            };
            runs.iter().fold(kernel, |kernel, run| kernel.scalar(*run as u32)).launch(forms::over(elements))
        };
        Ok(self.graph().op(nodes, make)?)
    }
}

/// The layout of a concatenation along an axis: each row consists of one run of each source.
struct ConcatLayout {
    dtype: DType,
    axis: usize,
    runs: Vec<usize>,
    elements: usize,
    shape: Shape,
}

impl ConcatLayout {
    fn of(sources: &[Vec<usize>], axis: usize, dtype: DType) -> Result<ConcatLayout> {
        let (mut runs, mut dims) = (Vec::new(), sources[0].clone());
        dims[axis] = 0;
        for own in sources {
            let (_, len, inner) = around(own, axis);
            runs.push(len * inner);
            dims[axis] += len;
        }
        Ok(ConcatLayout { dtype, axis, runs, elements: count_of(&dims)?, shape: Shape::new(&dims)? })
    }

    /// The program without device code.
    fn program(&self) -> KernelBuilder {
        let (runs, dtype, axis) = (self.runs.clone(), self.dtype, self.axis);
        let body = move |call: &mut KernelCall<'_>| match dtype {
            DType::F32 => copy_runs::<f32>(call, &runs),
            DType::F16 => copy_runs::<f16>(call, &runs),
            DType::BF16 => copy_runs::<bf16>(call, &runs),
            DType::F64 => copy_runs::<f64>(call, &runs),
            DType::I32 => copy_runs::<i32>(call, &runs),
            DType::U32 => copy_runs::<u32>(call, &runs),
            DType::I8 => copy_runs::<i8>(call, &runs),
            _ => copy_runs::<u8>(call, &runs),
        };
        let mut program = Kernel::on_cpu("concat", body);
        for place in 0..self.runs.len() {
            program = program.input(&format!("x{place}"), dtype);
        }
        if !self.runs.contains(&0) {
            program = program.reads_rows(&self.runs);
        }
        program.output("y", dtype).in_pieces(self.elements.max(1)).writes_all().permute_with(move |kernel, order| {
            let axis = order.iter().position(|from| *from == axis)?;
            let turn = |tensor: &Tensor| tensor.permute(order).ok();
            let tensors = kernel.inputs.iter().map(turn).collect::<Option<Vec<Tensor>>>()?;
            let dims: Vec<Vec<usize>> = tensors.iter().map(|tensor| tensor.shape().to_vec()).collect();
            let joined = ConcatLayout::of(&dims, axis, dtype).ok()?;
            Some(call_of(&joined.program().build().ok()?, &tensors, joined.shape))
        })
    }
}

fn call_of(program: &Arc<KernelProgram>, tensors: &[Tensor], shape: Shape) -> Kernel {
    tensors.iter().fold(Kernel::new(program), |kernel, tensor| kernel.input(tensor)).output(shape)
}

/// Copies the requested elements of the concatenation. Each row holds one run of each source.
fn copy_runs<T: Element>(call: &mut KernelCall<'_>, runs: &[usize]) -> panoply_core::Result<()> {
    let target = call.output::<T>(0)?;
    let width = runs.iter().sum::<usize>().max(1);
    let (first, skipped) = (call.pieces().start / width, call.pieces().start % width);
    let mut before = 0;
    for (place, run) in runs.iter().enumerate().filter(|(_, run)| **run > 0) {
        let (source, pitch) = match runs.contains(&0) {
            true => (call.input::<T>(place)?, *run),
            false => call.rows::<T>(place)?,
        };
        // The start of this source's run of the first row in the target. The requested range may
        // begin inside of the run.
        let (mut row, mut cut) = (first, skipped.saturating_sub(before));
        let mut at = before.saturating_sub(skipped);
        if cut >= *run {
            (row, cut, at) = (first + 1, 0, width + before - skipped);
        }
        while at < target.len() {
            let len = (run - cut).min(target.len() - at);
            target[at..at + len].copy_from_slice(&source[row * pitch + cut..][..len]);
            at += len + width - run;
            (row, cut) = (row + 1, 0);
        }
        before += run;
    }
    Ok(())
}

/// An operand of a kernel.
enum Input {
    Missing,
    Static(Value),
    /// The kernel's input with this index.
    Given(usize, ElementType, Vec<usize>),
}

fn evaluate(call: &mut KernelCall<'_>, node: &Node, inputs: &[Input], dtype: DType, lens: &[usize]) -> Result<()> {
    let value = |input: &Input| match input {
        Input::Missing => Ok(None),
        Input::Static(value) => Ok(Some(value.clone())),
        Input::Given(place, kind, dims) => read(call, *place, *kind, dims).map(|array| Some(array.into())),
    };
    let values = inputs.iter().map(value).collect::<Result<Vec<Option<Value>>>>()?;
    let OpKind::Plain { eval, .. } = node.kind else { return Err(Error::unsupported(node.op.clone())) };
    let made = eval(&Call { node, inputs: &values })?;
    let mut bytes = Vec::with_capacity(lens.iter().sum::<usize>() * dtype.size_bytes());
    for (value, len) in made.iter().zip(lens) {
        let array = value.array()?;
        if array.len() != *len || array.kind().carrier() != Some(dtype) {
            return Err(Error::invalid("an output", format!("{len} elements of {dtype}"), format!("{array:?}")));
        }
        bytes.extend_from_slice(array.bytes());
    }
    write(call, dtype, &bytes)
}

fn read(call: &KernelCall<'_>, place: usize, kind: ElementType, dims: &[usize]) -> Result<Array> {
    fn bytes<'a, T: Element>(call: &KernelCall<'a>, place: usize) -> Result<&'a [u8]> {
        Ok(bytemuck::cast_slice(call.input::<T>(place)?))
    }
    let bytes = match carrier(kind)? {
        DType::F32 => bytes::<f32>(call, place)?,
        DType::F16 => bytes::<f16>(call, place)?,
        DType::BF16 => bytes::<bf16>(call, place)?,
        DType::F64 => bytes::<f64>(call, place)?,
        DType::I32 => bytes::<i32>(call, place)?,
        DType::U32 => bytes::<u32>(call, place)?,
        DType::I8 => bytes::<i8>(call, place)?,
        _ => bytes::<u8>(call, place)?,
    };
    Array::from_bytes(kind, dims, bytes)
}

fn write(call: &mut KernelCall<'_>, dtype: DType, bytes: &[u8]) -> Result<()> {
    fn typed<T: Element>(call: &mut KernelCall<'_>, bytes: &[u8]) -> Result<()> {
        let target: &mut [u8] = bytemuck::cast_slice_mut(call.output::<T>(0)?);
        match target.len() == bytes.len() {
            true => target.copy_from_slice(bytes),
            false => return Err(Error::invalid("an output", format!("{} bytes", target.len()), bytes.len())),
        }
        Ok(())
    }
    match dtype {
        DType::F32 => typed::<f32>(call, bytes),
        DType::F16 => typed::<f16>(call, bytes),
        DType::BF16 => typed::<bf16>(call, bytes),
        DType::F64 => typed::<f64>(call, bytes),
        DType::I32 => typed::<i32>(call, bytes),
        DType::U32 => typed::<u32>(call, bytes),
        DType::I8 => typed::<i8>(call, bytes),
        _ => typed::<u8>(call, bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_do_the_same_in_any_order_of_axes_and_read_parts_in_place() {
        let image = |channels: usize, seed: f32| {
            let numbers = (0..2 * 3 * 4 * channels).map(|at| at as f32 + seed).collect();
            Tensor::from_vec(numbers, [2, 3, 4, channels]).unwrap().permute(&[0, 3, 1, 2]).unwrap()
        };
        let (a, b) = (image(5, 0.25), image(7, 1000.5));
        let tensors = [a.clone(), b.slice(1, 2, 5).unwrap(), b];
        for axis in 0..4 {
            let same = |tensor: &Tensor| tensor.slice(1, 0, 3).unwrap();
            let tensors: Vec<Tensor> = if axis == 1 { tensors.to_vec() } else { tensors.iter().map(same).collect() };
            let dims: Vec<Vec<usize>> = tensors.iter().map(|tensor| tensor.shape().to_vec()).collect();
            let joined = ConcatLayout::of(&dims, axis, DType::F32).unwrap();
            let kernel = call_of(&joined.program().build().unwrap(), &tensors, joined.shape);
            let expected = kernel.compute().unwrap()[0].permute(&[0, 2, 3, 1]).unwrap();
            let turned = kernel.permuted(&[0, 2, 3, 1]).unwrap();
            let got = turned.compute().unwrap();
            assert_eq!(got[0].to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap(), "along {axis}");
            if axis != 1 {
                continue;
            }
            // Rows of a part of the channels are separated by the other channels. Pieces begin and
            // end at any element.
            assert!((0..3).all(|input| turned.reads_in_place(input)));
            let all = got[0].to_vec::<f32>().unwrap();
            for (start, end) in [(0, 1), (3, 40), (14, 16), (7, all.len()), (15, 31)] {
                let mut part = vec![-1.0_f32; end - start];
                turned.call_pieces(&turned.inputs, start..end, bytemuck::cast_slice_mut(&mut part)).unwrap();
                assert_eq!(part, all[start..end]);
            }
        }
    }
}

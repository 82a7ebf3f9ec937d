//! Compute ops as ONNX nodes.

use panoply_core::graph::{Dim, Kind};
use panoply_core::op::compute::{
    Attention, ComputeOp, Conv2d, Conv2dBackwardInput, ConvOptions, Gather, ImageLayout, LayerNorm, MatMul, Pool2d,
    PoolKind, Reduce, Reduction, Resize, ResizeMode,
};
use panoply_core::{Op, Tensor};

use super::wire::{Attribute, INT64};
use super::{Exporter, element};
use crate::error::{Error, Result};

impl Exporter {
    /// Adds the nodes for an entry of the tape, and returns the name of the output.
    pub(super) fn entry(&mut self, entry: usize) -> Result<String> {
        let recorded = self.tape.entries[entry].clone();
        let names: Vec<String> = recorded.operands.iter().map(|operand| self.names[*operand].clone()).collect();
        let x = names.first().map_or("", String::as_str);
        let (_, dims) = self.tape.type_of(recorded.id)?;
        Ok(match &recorded.kind {
            Kind::Constant(tensor) => self.tensor(tensor)?,
            Kind::Reshape => {
                let shape = self.shape(&dims)?;
                self.node("Reshape", &[x, &shape], &[Attribute::Integer("allowzero", 1)])
            }
            Kind::Broadcast => {
                let shape = self.shape(&dims)?;
                self.node("Expand", &[x, &shape], &[])
            }
            Kind::Permute(order) => self.transposed(x, order),
            Kind::Slice { axis, start, end, step } => {
                let [start, end, axis, step] =
                    [start, end, axis, step].map(|number| self.integers(&[i64::try_from(*number).unwrap_or(i64::MAX)]));
                self.node("Slice", &[x, &start, &end, &axis, &step], &[])
            }
            Kind::Op(op) => match &*op.op() {
                Op::Compute(op) => self.op(entry, op, &names)?,
                _ => return Err(refused(recorded.kind.name())),
            },
            Kind::Input | Kind::Part(_) => return Err(refused(recorded.kind.name())),
        })
    }

    fn op(&mut self, entry: usize, op: &ComputeOp, names: &[String]) -> Result<String> {
        let x = names.first().map_or("", String::as_str);
        Ok(match op {
            ComputeOp::Map(op) => self.map(entry, op, names)?,
            ComputeOp::MatMul(op) => self.product(op, names),
            ComputeOp::Conv2d(op) => self.convolution(op, names),
            ComputeOp::Conv2dBackwardInput(op) => self.transposed_convolution(op, names)?,
            ComputeOp::Pool2d(op) => self.pool(op, x),
            ComputeOp::Reduce(op) => self.reduce(op, x)?,
            ComputeOp::Softmax(op) => {
                let name = if op.is_log { "LogSoftmax" } else { "Softmax" };
                self.node(name, &[x], &[Attribute::Integer("axis", op.axis as i64)])
            }
            ComputeOp::LayerNorm(op) => self.layer_norm(op, names)?,
            ComputeOp::Attention(op) => self.attention(entry, op, names)?,
            ComputeOp::Gather(op) => self.gather(op, names),
            ComputeOp::Transpose(op) => self.transposed(x, &op.order()),
            ComputeOp::Resize(op) => self.resize(entry, op, x)?,
            _ => return Err(refused(self.tape.entries[entry].kind.name())),
        })
    }

    fn transposed(&mut self, x: &str, order: &[usize]) -> String {
        let order = order.iter().map(|axis| *axis as i64).collect();
        self.node("Transpose", &[x], &[Attribute::Integers("perm", order)])
    }

    /// A product of two-dimensional matrices becomes a `Gemm`. For other products the transposed
    /// operands get a `Transpose` first. Epilogues are nodes of their own already.
    fn product(&mut self, op: &MatMul, names: &[String]) -> String {
        let (rank_a, rank_b) = (op.a.shape().rank(), op.b.shape().rank());
        if rank_a == 2 && rank_b == 2 {
            let attributes = [
                Attribute::Float("alpha", op.alpha),
                Attribute::Integer("transA", i64::from(op.transpose_a)),
                Attribute::Integer("transB", i64::from(op.transpose_b)),
            ];
            return self.node("Gemm", &[&names[0], &names[1]], &attributes);
        }
        let mut turned = |name: &String, rank: usize, turn: bool| match turn {
            true => {
                let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
                self.transposed(name, &order)
            }
            false => name.clone(),
        };
        let a = turned(&names[0], rank_a, op.transpose_a);
        let b = turned(&names[1], rank_b, op.transpose_b);
        let product = self.node("MatMul", &[&a, &b], &[]);
        self.times(product, op.alpha, op.a.dtype())
    }

    fn times(&mut self, x: String, factor: f32, dtype: panoply_core::DType) -> String {
        if factor == 1.0 {
            return x;
        }
        let factor = self.number(f64::from(factor), dtype);
        self.node("Mul", &[&x, &factor], &[])
    }

    fn convolution(&mut self, op: &Conv2d, names: &[String]) -> String {
        let attributes = window(op.options, &op.weights);
        self.node("Conv", &[&names[0], &names[1]], &attributes)
    }

    fn transposed_convolution(&mut self, op: &Conv2dBackwardInput, names: &[String]) -> Result<String> {
        let ConvOptions { stride, padding, dilation, .. } = op.options;
        let (input, kernel) = (&op.gradient.shape()[2..], &op.weights.shape()[2..]);
        let mut more = Vec::new();
        for axis in 0..2 {
            let reach = (input[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1;
            let own = reach as i64 - (padding[axis] + padding[axis + 2]) as i64;
            more.push(op.input_size[axis] as i64 - own);
        }
        if more.iter().any(|rows| *rows < 0) {
            return Err(refused("conv2d_backward_input whose output is cut"));
        }
        let mut attributes = window(op.options, &op.weights);
        attributes.push(Attribute::Integers("output_padding", more));
        Ok(self.node("ConvTranspose", &[&names[0], &names[1]], &attributes))
    }

    fn pool(&mut self, op: &Pool2d, x: &str) -> String {
        let whole = |numbers: &[usize]| numbers.iter().map(|number| *number as i64).collect::<Vec<_>>();
        let mut attributes = vec![
            Attribute::Integers("kernel_shape", whole(&op.kernel)),
            Attribute::Integers("strides", whole(&op.stride)),
            Attribute::Integers("pads", whole(&op.padding)),
        ];
        match op.kind {
            PoolKind::Max => self.node("MaxPool", &[x], &attributes),
            PoolKind::Average { count_padding } => {
                attributes.push(Attribute::Integer("count_include_pad", i64::from(count_padding)));
                self.node("AveragePool", &[x], &attributes)
            }
        }
    }

    fn reduce(&mut self, op: &Reduce, x: &str) -> Result<String> {
        let axes = op.reduced()?;
        let axes: Vec<i64> = (0..axes.len()).filter(|axis| axes[*axis]).map(|axis| axis as i64).collect();
        let keeps = Attribute::Integer("keepdims", i64::from(op.keeps_dims));
        if axes.is_empty() && !matches!(op.reduction, Reduction::ArgMax | Reduction::ArgMin) {
            // ONNX reads an empty list of axes as all axes.
            return Ok(self.node("Identity", &[x], &[]));
        }
        let name = match op.reduction {
            Reduction::Sum => "ReduceSum",
            Reduction::Mean => "ReduceMean",
            Reduction::Max => "ReduceMax",
            Reduction::Min => "ReduceMin",
            Reduction::ArgMax | Reduction::ArgMin => {
                let [axis] = axes[..] else { return Err(refused("a position among several axes")) };
                let name = if op.reduction == Reduction::ArgMax { "ArgMax" } else { "ArgMin" };
                let found = self.node(name, &[x], &[Attribute::Integer("axis", axis), keeps]);
                return Ok(self.cast(&found, element(panoply_core::DType::U32)?));
            }
        };
        let axes = self.integers(&axes);
        Ok(self.node(name, &[x, &axes], &[keeps]))
    }

    fn layer_norm(&mut self, op: &LayerNorm, names: &[String]) -> Result<String> {
        let dtype = op.input.dtype();
        let mut further = names[1..].iter();
        let weight = op.weight.as_ref().and_then(|_| further.next().cloned());
        let bias = op.bias.as_ref().and_then(|_| further.next().cloned());
        if op.is_rms {
            return self.rms_norm(op, &names[0], weight, bias);
        }
        let one = self.number(1.0, dtype);
        let weight = match weight {
            Some(weight) => weight,
            None => {
                let dims = &op.input.shape()[op.input.shape().rank().saturating_sub(op.axes)..];
                let shape = self.integers(&dims.iter().map(|size| *size as i64).collect::<Vec<_>>());
                self.node("Expand", &[&one, &shape], &[])
            }
        };
        let (axis, epsilon) =
            (Attribute::Integer("axis", -(op.axes as i64)), Attribute::Float("epsilon", op.epsilon as f32));
        let inputs: Vec<&str> = [names[0].as_str(), &weight].into_iter().chain(bias.as_deref()).collect();
        Ok(self.node("LayerNormalization", &inputs, &[axis, epsilon]))
    }

    fn rms_norm(&mut self, op: &LayerNorm, x: &str, weight: Option<String>, bias: Option<String>) -> Result<String> {
        let axes: Vec<i64> = (1..=op.axes as i64).map(|axis| -axis).collect();
        let (axes, epsilon) = (self.integers(&axes), self.number(op.epsilon, op.input.dtype()));
        let squares = self.node("Mul", &[x, x], &[]);
        let mean = self.node("ReduceMean", &[&squares, &axes], &[Attribute::Integer("keepdims", 1)]);
        let sum = self.node("Add", &[&mean, &epsilon], &[]);
        let root = self.node("Sqrt", &[&sum], &[]);
        let mut y = self.node("Div", &[x, &root], &[]);
        for (name, other) in [("Mul", weight), ("Add", bias)] {
            if let Some(other) = other {
                y = self.node(name, &[&y, &other], &[]);
            }
        }
        Ok(y)
    }

    /// Attention as its single steps. The causal mask is a constant.
    fn attention(&mut self, entry: usize, op: &Attention, names: &[String]) -> Result<String> {
        let operands = self.tape.entries[entry].operands.clone();
        let dims_of = |place: usize| Ok::<_, Error>(self.tape.type_of(self.tape.entries[operands[place]].id)?.1);
        let (q, k) = (dims_of(0)?, dims_of(1)?);
        let rank = q.len();
        if q[..rank - 2] != k[..rank - 2] {
            return Err(refused("attention of queries that share heads of keys"));
        }
        let turn: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        let keys = self.transposed(&names[1], &turn);
        let scores = self.node("MatMul", &[&names[0], &keys], &[]);
        let mut scores = self.times(scores, op.scale_or_default(), op.q.dtype());
        if op.mask.is_some() {
            scores = self.node("Add", &[&scores, &names[3]], &[]);
        }
        if op.is_causal {
            let sizes = (q[rank - 2].as_fixed(), k[rank - 2].as_fixed());
            let (Some(rows), Some(columns)) = sizes else { return Err(refused("causal attention of any length")) };
            let seen = |place: usize| place % columns + rows <= place / columns + columns;
            let mask = (0..rows * columns).map(|place| if seen(place) { 0.0 } else { f32::NEG_INFINITY }).collect();
            let mask = self.tensor(&Tensor::from_vec(mask, [rows, columns])?)?;
            let mask = self.cast(&mask, element(op.q.dtype())?);
            scores = self.node("Add", &[&scores, &mask], &[]);
        }
        let weights = self.node("Softmax", &[&scores], &[Attribute::Integer("axis", -1)]);
        Ok(self.node("MatMul", &[&weights, &names[2]], &[]))
    }

    fn gather(&mut self, op: &Gather, names: &[String]) -> String {
        let indices = self.cast(&names[1], INT64);
        let name = if op.elementwise { "GatherElements" } else { "Gather" };
        self.node(name, &[&names[0], &indices], &[Attribute::Integer("axis", op.axis as i64)])
    }

    fn resize(&mut self, entry: usize, op: &Resize, x: &str) -> Result<String> {
        if op.layout != ImageLayout::Nchw || op.mode == ResizeMode::Area {
            return Err(refused("resize of areas, or with channels last"));
        }
        let dims: Vec<Dim> = self.tape.type_of(self.tape.entries[entry].id)?.1;
        let sizes = self.shape(&dims)?;
        let attributes = match op.mode {
            ResizeMode::Bilinear => {
                vec![Attribute::Text("mode", "linear"), Attribute::Text("coordinate_transformation_mode", "half_pixel")]
            }
            _ => vec![
                Attribute::Text("mode", "nearest"),
                Attribute::Text("coordinate_transformation_mode", "asymmetric"),
                Attribute::Text("nearest_mode", "floor"),
            ],
        };
        Ok(self.node("Resize", &[x, "", "", &sizes], &attributes))
    }
}

/// The attributes of a convolution: kernel shape, strides, pads, dilations, groups.
fn window(options: ConvOptions, weights: &Tensor) -> Vec<Attribute<'static>> {
    let whole = |numbers: &[usize]| numbers.iter().map(|number| *number as i64).collect::<Vec<_>>();
    vec![
        Attribute::Integers("kernel_shape", whole(&weights.shape()[2..])),
        Attribute::Integers("strides", whole(&options.stride)),
        Attribute::Integers("pads", whole(&options.padding)),
        Attribute::Integers("dilations", whole(&options.dilation)),
        Attribute::Integer("group", options.groups as i64),
    ]
}

pub(super) fn refused(node: &str) -> Error {
    Error::invalid("onnx: a node", "one that ONNX has a form for", node)
}

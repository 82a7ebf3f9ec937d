//! Products of matrices, convolutions and pools.

use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Conv2d, ConvOptions, MatMul, Pool2d};

use super::{Lower, LoweredOutputs, one};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::conv::transposed;
use crate::ops::windows::Windows;

/// Makes a pool of a tensor.
type MakePool = Box<dyn FnOnce(&panoply_core::Tensor) -> Pool2d>;

impl Lower<'_, '_> {
    pub(super) fn product(&mut self) -> LoweredOutputs {
        if !self.is_float(0) {
            return Ok(None);
        }
        let kind = self.kind(0)?;
        if (1..self.args.len()).any(|place| self.is_given(place) && self.kind(place).is_ok_and(|other| other != kind)) {
            return Ok(None);
        }
        match self.node.op.as_str() {
            "MatMul" => match self.matmul_of_bytes()? {
                Some(recorded) => Ok(Some(recorded)),
                None => self.matmul(kind),
            },
            "Gemm" => self.gemm(kind),
            "Conv" => self.conv(kind),
            "ConvTranspose" => match self.conv_transpose(kind)? {
                Some(recorded) => Ok(Some(recorded)),
                None => self.kernel(),
            },
            _ => self.pool(kind),
        }
    }

    fn matmul(&mut self, kind: ElementType) -> LoweredOutputs {
        let (a_dims, b_dims) = (self.dims(0)?.to_vec(), self.dims(1)?.to_vec());
        let (mut a, mut b) = (self.id(0)?, self.id(1)?);
        let (a_rank, b_rank) = (a_dims.len(), b_dims.len());
        if a_rank == 0 || b_rank == 0 {
            return Ok(None);
        }
        let mut dims =
            crate::ops::index::broadcast([&a_dims[..a_rank.saturating_sub(2)], &b_dims[..b_rank.saturating_sub(2)]])?;
        if a_rank == 1 {
            a = self.reshape(a, &[1, a_dims[0]])?;
        } else {
            dims.push(a_dims[a_rank - 2]);
        }
        if b_rank == 1 {
            b = self.reshape(b, &[b_dims[0], 1])?;
        } else {
            dims.push(b_dims[b_rank - 1]);
        }
        // Rows of a batch that are multiplied by one shared matrix are rows of one product.
        if a_rank > 2 && b_rank <= 2 {
            let rows = a_dims[..a_rank - 1].iter().product();
            a = self.reshape(a, &[rows, a_dims[a_rank - 1]])?;
        }
        let node = self.graph().matmul(a, b)?;
        let is_matrix = self.node_dims(node)?.len() == 2 && b_rank == 2 && a_rank > 2;
        let node = if is_matrix { self.shaped(node, &dims)? } else { self.reshape(node, &dims)? };
        one(node, kind)
    }

    fn gemm(&mut self, kind: ElementType) -> LoweredOutputs {
        let (transpose_a, transpose_b) = (self.call.flag("transA", false)?, self.call.flag("transB", false)?);
        let (alpha, beta) = (self.call.float("alpha", 1.0)? as f32, self.call.float("beta", 1.0)? as f32);
        let (2, 2) = (self.dims(0)?.len(), self.dims(1)?.len()) else { return Ok(None) };
        let columns = self.dims(1)?[usize::from(!transpose_b)];
        let mut nodes = vec![self.id(0)?, self.id(1)?];
        let is_bias = self.is_given(2) && beta == 1.0 && self.dims(2)? == [columns];
        if self.is_given(2) {
            nodes.push(self.id(2)?);
        }
        let node = self.graph().op(&nodes, |tensors| {
            let mut op = MatMul::new(&tensors[0], &tensors[1]).alpha(alpha);
            (op.transpose_a, op.transpose_b) = (transpose_a, transpose_b);
            match tensors.get(2) {
                Some(bias) if is_bias => op.bias(bias),
                Some(c) => op.beta(beta, c),
                None => op,
            }
        })?;
        one(node, kind)
    }

    /// Reshapes one-dimensional images to two-dimensional images of one row.
    fn image(&mut self, place: usize) -> Result<Option<NodeId>> {
        let dims = self.dims(place)?.to_vec();
        let node = self.id(place)?;
        match *dims {
            [_, _, _, _] => Ok(Some(node)),
            [n, c, w] => self.reshape(node, &[n, c, 1, w]).map(Some),
            _ => Ok(None),
        }
    }

    fn conv(&mut self, kind: ElementType) -> LoweredOutputs {
        let (dims, weights) = (self.dims(0)?.to_vec(), self.dims(1)?.to_vec());
        if dims.len() < 3 || dims.len() > 4 || weights.len() != dims.len() {
            return Ok(None);
        }
        let windows = Windows::of_conv(&self.call, &dims[2..], &weights[2..])?;
        let groups = usize::try_from(self.call.int("group", 1)?).unwrap_or(0);
        let [before, after] = [&windows.before, &windows.after].map(|pads| pair(pads, 0));
        let options = ConvOptions {
            stride: pair(&windows.stride, 1),
            padding: [before[0], before[1], after[0], after[1]],
            dilation: pair(&windows.dilation, 1),
            groups,
        };
        let (Some(x), Some(w)) = (self.image(0)?, self.image(1)?) else { return Ok(None) };
        let mut nodes = vec![x, w];
        if self.is_given(2) {
            nodes.push(self.id(2)?);
        }
        let node = self.graph().op(&nodes, |tensors| {
            let op = Conv2d::new(&tensors[0], &tensors[1]).options(options);
            match tensors.get(2) {
                Some(bias) => op.bias(bias),
                None => op,
            }
        })?;
        let mut result = vec![dims[0], weights[0]];
        result.extend(&windows.output);
        let node = self.reshape(node, &result)?;
        one(node, kind)
    }

    /// A transposed convolution whose windows do not overlap is a product: each pixel becomes a
    /// block.
    fn conv_transpose(&mut self, kind: ElementType) -> LoweredOutputs {
        let (dims, weights) = (self.dims(0)?.to_vec(), self.dims(1)?.to_vec());
        let ([n, c, h, w], [_, f, kh, kw]) = (&*dims, &*weights) else { return Ok(None) };
        let sizes = transposed(&self.call, &dims[2..], &weights[2..])?;
        let side_by_side = sizes.stride == weights[2..] && sizes.cut == [0, 0] && sizes.dilation == [1, 1];
        if !side_by_side || sizes.output != [h * kh, w * kw] || self.call.int("group", 1)? != 1 {
            return Ok(None);
        }
        let (x, weight) = (self.id(0)?, self.id(1)?);
        let x = self.reshape(x, &[*n, *c, h * w])?;
        let weight = self.reshape(weight, &[*c, f * kh * kw])?;
        let weight = self.graph().permute(weight, &[1, 0])?;
        let product = self.graph().matmul(weight, x)?;
        let blocks = self.reshape(product, &[*n, *f, *kh, *kw, *h, *w])?;
        let turned = self.graph().permute(blocks, &[0, 1, 4, 2, 5, 3])?;
        let mut node = self.reshape(turned, &[*n, *f, h * kh, w * kw])?;
        if self.is_given(2) {
            let bias = self.id(2)?;
            let bias = self.reshape(bias, &[1, *f, 1, 1])?;
            node = self.graph().add(node, bias)?;
        }
        one(node, kind)
    }

    fn pool(&mut self, kind: ElementType) -> LoweredOutputs {
        let dims = self.dims(0)?.to_vec();
        let op = self.node.op.as_str();
        if dims.len() < 3 || dims.len() > 4 || self.call.wants(1) {
            return Ok(None);
        }
        let Some(x) = self.image(0)? else { return Ok(None) };
        let is_max = op.ends_with("MaxPool");
        let (pool, output): (MakePool, Vec<usize>) = if op.starts_with("Global") {
            let whole: fn(&panoply_core::Tensor) -> Pool2d =
                if is_max { Pool2d::global_max } else { Pool2d::global_average };
            (Box::new(whole), vec![1; dims.len() - 2])
        } else {
            let windows = Windows::of_pool(&self.call, &dims[2..])?;
            let counts = self.call.flag("count_include_pad", false)?;
            if windows.dilation.iter().any(|dilation| *dilation != 1)
                || (counts && self.call.flag("ceil_mode", false)?)
            {
                return Ok(None);
            }
            let reach: Vec<usize> = windows.reach();
            let [before, after] = [&windows.before, &reach].map(|pads| pair(pads, 0));
            let (kernel, stride) = (pair(&windows.kernel, 1), pair(&windows.stride, 1));
            let padding = [before[0], before[1], after[0], after[1]];
            let make = move |x: &panoply_core::Tensor| match is_max {
                true => Pool2d::max(x, kernel).stride(stride).padding(padding),
                false => Pool2d::average(x, kernel).stride(stride).padding(padding).count_padding(counts),
            };
            (Box::new(make), windows.output.clone())
        };
        let node = self.graph().op(&[x], |tensors| pool(&tensors[0]))?;
        let mut result = dims[..2].to_vec();
        result.extend(&output);
        if self.node_dims(node)?.iter().product::<usize>() != result.iter().product::<usize>() {
            return Err(Error::unsupported("windows beyond the image"));
        }
        let node = self.reshape(node, &result)?;
        one(node, kind)
    }
}

/// The sizes of two dimensions. One size is extended to a row's sizes with `one`.
fn pair(sizes: &[usize], one: usize) -> [usize; 2] {
    match *sizes {
        [height, width] => [height, width],
        [width] => [one, width],
        _ => [one, one],
    }
}

//! Rules of matrix products and convolutions.

use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, MatMul};

use super::{Backward, NodeVisit};
use crate::error::Result;

impl Backward {
    /// `A·B` passes `g·Bᵀ` on to A and `Aᵀ·g` to B. If an operand was given transposed, so is its
    /// gradient.
    pub(super) fn matmul_shares(&mut self, turn: NodeVisit, op: &MatMul) -> Result<Vec<Option<NodeId>>> {
        let (mut a, b, mut g) = (self.operand(turn, 0), self.operand(turn, 1), turn.g);
        let (a_dims, b_dims) = (self.operand_dims(turn, 0)?, self.operand_dims(turn, 1)?);
        // With one matrix B for a whole batch, the batch dimensions of A are further rows.
        if b_dims.len() == 2 && a_dims.len() > 2 && !op.transpose_a {
            a = self.as_matrix(a)?;
            g = self.as_matrix(g)?;
        }
        let (ta, tb) = (op.transpose_a, op.transpose_b);
        let like = |left: bool, right: bool| Factor { transpose_a: left, transpose_b: right, of: op };
        let mut shares = vec![None, None];
        if self.wants(turn, 0) {
            let share = match ta {
                false => self.product(g, b, like(false, !tb))?,
                true => self.product(b, g, like(tb, true))?,
            };
            let share = match a_dims.len() == self.tape.type_of(share)?.1.len() {
                true => share,
                false if b_dims.len() == 2 && a_dims.len() > 2 => self.tape.g.reshape(share, &a_dims)?,
                false => share,
            };
            shares[0] = Some(self.sum_to(share, &a_dims)?);
        }
        if self.wants(turn, 1) {
            let share = match tb {
                false => self.product(a, g, like(!ta, false))?,
                true => self.product(g, a, like(true, ta))?,
            };
            shares[1] = Some(self.sum_to(share, &b_dims)?);
        }
        Ok(shares)
    }

    /// Reshapes to a matrix: all dimensions but the last become rows.
    fn as_matrix(&mut self, x: NodeId) -> Result<NodeId> {
        let (_, dims) = self.tape.type_of(x)?;
        let (last, rest) = (dims[dims.len() - 1], &dims[..dims.len() - 1]);
        let rows = rest.iter().fold(Dim::fixed(1), |rows, dim| rows * *dim);
        Ok(self.tape.g.reshape(x, &[rows, last])?)
    }

    fn product(&mut self, a: NodeId, b: NodeId, factor: Factor<'_>) -> Result<NodeId> {
        let Factor { transpose_a, transpose_b, of } = factor;
        Ok(self.tape.g.op(&[a, b], |tensors| {
            let product = MatMul::new(&tensors[0], &tensors[1]).alpha(of.alpha).precision(of.precision);
            MatMul { transpose_a, transpose_b, ..product }
        })?)
    }

    pub(super) fn conv_shares(&mut self, turn: NodeVisit, op: &Conv2d) -> Result<Vec<Option<NodeId>>> {
        let (x, w, g, options) = (self.operand(turn, 0), self.operand(turn, 1), turn.g, op.options);
        let (x_dims, w_dims) = (self.operand_dims(turn, 0)?, self.operand_dims(turn, 1)?);
        let mut shares = vec![None, None];
        if self.wants(turn, 0) {
            let size = [self.fixed(turn, x_dims[2])?, self.fixed(turn, x_dims[3])?];
            shares[0] =
                Some(self.tape.g.op(&[g, w], |tensors| {
                    Conv2dBackwardInput::new(&tensors[0], &tensors[1], size).options(options)
                })?);
        }
        if self.wants(turn, 1) {
            let kernel = [self.fixed(turn, w_dims[2])?, self.fixed(turn, w_dims[3])?];
            shares[1] =
                Some(self.tape.g.op(&[x, g], |tensors| {
                    Conv2dBackwardWeight::new(&tensors[0], &tensors[1], kernel).options(options)
                })?);
        }
        Ok(shares)
    }

    /// The rule of a convolution's input gradient. It is linear in both operands, so its gradients
    /// are convolutions again.
    pub(super) fn conv_input_shares(
        &mut self,
        turn: NodeVisit,
        op: &Conv2dBackwardInput,
    ) -> Result<Vec<Option<NodeId>>> {
        let (y, w, g, options) = (self.operand(turn, 0), self.operand(turn, 1), turn.g, op.options);
        let w_dims = self.operand_dims(turn, 1)?;
        let mut shares = vec![None, None];
        if self.wants(turn, 0) {
            shares[0] =
                Some(self.tape.g.op(&[g, w], |tensors| Conv2d::new(&tensors[0], &tensors[1]).options(options))?);
        }
        if self.wants(turn, 1) {
            let kernel = [self.fixed(turn, w_dims[2])?, self.fixed(turn, w_dims[3])?];
            shares[1] =
                Some(self.tape.g.op(&[g, y], |tensors| {
                    Conv2dBackwardWeight::new(&tensors[0], &tensors[1], kernel).options(options)
                })?);
        }
        Ok(shares)
    }

    /// The rule of a convolution's weight gradient, by the same argument. Here `g` has the shape of
    /// the weights.
    pub(super) fn conv_weight_shares(
        &mut self,
        turn: NodeVisit,
        op: &Conv2dBackwardWeight,
    ) -> Result<Vec<Option<NodeId>>> {
        let (x, y, g, options) = (self.operand(turn, 0), self.operand(turn, 1), turn.g, op.options);
        let x_dims = self.operand_dims(turn, 0)?;
        let mut shares = vec![None, None];
        if self.wants(turn, 0) {
            let size = [self.fixed(turn, x_dims[2])?, self.fixed(turn, x_dims[3])?];
            shares[0] =
                Some(self.tape.g.op(&[y, g], |tensors| {
                    Conv2dBackwardInput::new(&tensors[0], &tensors[1], size).options(options)
                })?);
        }
        if self.wants(turn, 1) {
            shares[1] =
                Some(self.tape.g.op(&[x, g], |tensors| Conv2d::new(&tensors[0], &tensors[1]).options(options))?);
        }
        Ok(shares)
    }
}

/// Which operands of a product are transposed, and the product whose `alpha` and precision it takes
/// over.
struct Factor<'a> {
    transpose_a: bool,
    transpose_b: bool,
    of: &'a MatMul,
}

//! Lowers elementwise operations and reductions.

use burn_ir::{
    ActivationOperationIr, BinaryOpIr, BoolOperationIr, FloatOperationIr, IntOperationIr, NumericOperationIr,
    PadModeIr, PadOpIr, ReduceDimOpIr, ScalarOpIr, TensorIr, UnaryOpIr,
};
use panoply_core::DType;
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{ArgSort, Reduce, Reduction, Scan, ScanKind, Softmax, Sort, TopK};

use super::picks::bounded;
use super::{Lowering, NumberOperand, Result, unserved};
use crate::convert;

impl Lowering<'_> {
    pub(super) fn numeric(&mut self, op: &NumericOperationIr) -> Result<Vec<NodeId>> {
        use NumericOperationIr as Op;
        let made = match op {
            Op::Add(desc) => self.pair(desc, |a, b| a + b)?,
            Op::AddScalar(desc) => self.scalar(desc, |a, b| a + b)?,
            Op::Sub(desc) => self.pair(desc, |a, b| a - b)?,
            Op::SubScalar(desc) => self.scalar(desc, |a, b| a - b)?,
            Op::Div(desc) => self.pair(desc, |a, b| a / b)?,
            Op::DivScalar(desc) => self.scalar(desc, |a, b| a / b)?,
            Op::Mul(desc) => self.pair(desc, |a, b| a * b)?,
            Op::MulScalar(desc) => self.scalar(desc, |a, b| a * b)?,
            Op::Rem(desc) => self.pair(desc, remainder)?,
            Op::RemScalar(desc) => self.scalar(desc, remainder)?,
            Op::Abs(desc) => self.each(desc, Expr::abs)?,
            Op::Neg(desc) => self.each(desc, |x| -x)?,
            Op::Sign(desc) => self.each(desc, |x| x.clone().gt(0.0) - x.lt(0.0))?,
            Op::Full(desc) => self.full(&desc.out, &desc.value)?,
            Op::Greater(desc) => self.compared(desc, |a, b| a.gt(b))?,
            Op::GreaterElem(desc) => self.compared_with(desc, |a, b| a.gt(b))?,
            Op::GreaterEqual(desc) => self.compared(desc, |a, b| a.ge(b))?,
            Op::GreaterEqualElem(desc) => self.compared_with(desc, |a, b| a.ge(b))?,
            Op::Lower(desc) => self.compared(desc, |a, b| a.lt(b))?,
            Op::LowerElem(desc) => self.compared_with(desc, |a, b| a.lt(b))?,
            Op::LowerEqual(desc) => self.compared(desc, |a, b| a.le(b))?,
            Op::LowerEqualElem(desc) => self.compared_with(desc, |a, b| a.le(b))?,
            Op::Clamp(desc) => {
                let x = self.get(&desc.tensor)?;
                let low = self.with_number(&[x], &desc.min, |v, low| v[0].clone().max(low))?;
                self.with_number(&[low], &desc.max, |v, high| v[0].clone().min(high))?
            }
            Op::ClampMin(desc) => self.scalar(desc, |a, b| a.max(b))?,
            Op::ClampMax(desc) => self.scalar(desc, |a, b| a.min(b))?,
            Op::Powi(desc) => self.power(desc)?,
            Op::PowiScalar(desc) => self.scalar(desc, |a, b| a.pow(b))?,
            Op::Pad(desc) => self.padded(desc)?,
            Op::IntRandom(_) => return Err(unserved("random numbers in a graph")),
            _ => return self.reduced(op),
        };
        Ok(vec![made])
    }

    /// Lowers operations that combine several elements.
    fn reduced(&mut self, op: &NumericOperationIr) -> Result<Vec<NodeId>> {
        use NumericOperationIr as Op;
        let made = match op {
            Op::Mean(desc) => self.all(&desc.input, Reduction::Mean)?,
            Op::Sum(desc) => self.all(&desc.input, Reduction::Sum)?,
            Op::Max(desc) => self.all(&desc.input, Reduction::Max)?,
            Op::Min(desc) => self.all(&desc.input, Reduction::Min)?,
            Op::MeanDim(desc) => self.along(desc, Reduction::Mean)?,
            Op::SumDim(desc) => self.along(desc, Reduction::Sum)?,
            Op::MaxDim(desc) => self.along(desc, Reduction::Max)?,
            Op::MinDim(desc) => self.along(desc, Reduction::Min)?,
            Op::ArgMax(desc) => self.along(desc, Reduction::ArgMax)?,
            Op::ArgMin(desc) => self.along(desc, Reduction::ArgMin)?,
            Op::SumDims(desc) => {
                let x = self.get(&desc.input)?;
                let axes = desc.axes.clone();
                self.g.op(&[x], |t| Reduce::sum(&t[0]).axes(&axes).keep_dims())?
            }
            Op::MaxAbs(desc) => {
                let x = self.get(&desc.input)?;
                let x = self.map(&[x], |v| v[0].clone().abs())?;
                let one = self.g.op(&[x], |t| Reduce::max(&t[0]))?;
                self.reshape(one, &[1])?
            }
            Op::MaxAbsDim(desc) => {
                let x = self.get(&desc.input)?;
                let x = self.map(&[x], |v| v[0].clone().abs())?;
                let axis = desc.axis;
                self.g.op(&[x], |t| Reduce::max(&t[0]).axes(&[axis]).keep_dims())?
            }
            Op::MaxDimWithIndices(desc) => {
                return self.extreme(&desc.tensor, desc.dim, [Reduction::Max, Reduction::ArgMax], &desc.out_indices);
            }
            Op::MinDimWithIndices(desc) => {
                return self.extreme(&desc.tensor, desc.dim, [Reduction::Min, Reduction::ArgMin], &desc.out_indices);
            }
            Op::CumSum(desc) => self.scanned(&desc.input, desc.axis, ScanKind::Sum)?,
            Op::CumProd(desc) => self.scanned(&desc.input, desc.axis, ScanKind::Product)?,
            Op::CumMin(desc) => self.scanned(&desc.input, desc.axis, ScanKind::Min)?,
            Op::CumMax(desc) => self.scanned(&desc.input, desc.axis, ScanKind::Max)?,
            Op::Sort(desc) => {
                let x = self.get(&desc.input)?;
                let (axis, descending) = (desc.dim, desc.descending);
                self.g.op(&[x], |t| Sort { descending, ..Sort::new(&t[0]).axis(axis) })?
            }
            Op::ArgSort(desc) => {
                let x = self.get(&desc.input)?;
                let (axis, descending) = (desc.dim, desc.descending);
                let places = self.g.op(&[x], |t| ArgSort { descending, ..ArgSort::new(&t[0]).axis(axis) })?;
                self.cast(places, convert::dtype(desc.out.dtype)?)?
            }
            Op::TopKWithIndices(desc) => {
                let x = self.get(&desc.tensor)?;
                let (axis, k) = (desc.dim, desc.k);
                let (values, places) = self.g.op_pair(&[x], |t| TopK::new(&t[0], k).axis(axis))?;
                return Ok(vec![values, self.cast(places, convert::dtype(desc.out_indices.dtype)?)?]);
            }
            Op::Prod(_) | Op::ProdDim(_) => return Err(unserved("products of elements")),
            _ => return Err(unserved("this form of it")),
        };
        Ok(vec![made])
    }

    pub(super) fn float(&mut self, op: &FloatOperationIr) -> Result<NodeId> {
        use FloatOperationIr as Op;
        match op {
            Op::Exp(desc) => self.each(desc, Expr::exp),
            Op::Log(desc) => self.each(desc, Expr::log),
            // Kahan's formula, which is accurate even where 1 + x is rounded.
            Op::Log1p(desc) => self.each(desc, |x| {
                let sum = x.clone() + 1.0;
                let rest = sum.clone() - 1.0;
                let corrected = sum.clone().log() * (x.clone() / rest.clone());
                let is_infinite = sum.clone().eq(f64::INFINITY);
                is_infinite.select(sum, rest.eq(0.0).select(x, corrected))
            }),
            Op::Erf(desc) => self.each(desc, Expr::erf),
            Op::PowfScalar(desc) => self.scalar(desc, |a, b| a.pow(b)),
            Op::Powf(desc) => self.pair(desc, |a, b| a.pow(b)),
            Op::Sqrt(desc) => self.each(desc, Expr::sqrt),
            Op::Cos(desc) => self.each(desc, Expr::cos),
            Op::Sin(desc) => self.each(desc, Expr::sin),
            Op::Tan(desc) => self.each(desc, |x| x.clone().sin() / x.cos()),
            Op::Tanh(desc) => self.each(desc, Expr::tanh),
            Op::Cosh(desc) => self.each(desc, |x| (x.clone().exp() + (-x).exp()) * 0.5),
            Op::Sinh(desc) => self.each(desc, |x| (x.clone().exp() - (-x).exp()) * 0.5),
            Op::Round(desc) => self.each(desc, Expr::round),
            Op::Floor(desc) => self.each(desc, Expr::floor),
            Op::Ceil(desc) => self.each(desc, Expr::ceil),
            Op::Trunc(desc) => self.each(desc, |x| x.clone().lt(0.0).select(x.clone().ceil(), x.floor())),
            Op::Recip(desc) => self.each(desc, Expr::recip),
            Op::IsNan(desc) => self.truth_of(desc, |x| x.clone().ne(x)),
            Op::IsInf(desc) => self.truth_of(desc, |x| x.abs().eq(f64::INFINITY)),
            Op::Hypot(desc) => self.pair(desc, |a, b| (a.clone() * a + b.clone() * b).sqrt()),
            Op::IntoInt(desc) => {
                let x = self.get(&desc.input)?;
                self.cast(x, convert::dtype(desc.out.dtype)?)
            }
            Op::Matmul(desc) => self.product(&desc.lhs, &desc.rhs),
            _ => Err(unserved("this function")),
        }
    }

    pub(super) fn int(&mut self, op: &IntOperationIr) -> Result<NodeId> {
        match op {
            IntOperationIr::IntoFloat(desc) => {
                let x = self.get(&desc.input)?;
                self.cast(x, convert::dtype(desc.out.dtype)?)
            }
            IntOperationIr::Matmul(desc) => self.product(&desc.lhs, &desc.rhs),
            _ => Err(unserved("bits of integers")),
        }
    }

    pub(super) fn boolean(&mut self, op: &BoolOperationIr) -> Result<NodeId> {
        match op {
            BoolOperationIr::IntoFloat(desc) | BoolOperationIr::IntoInt(desc) => {
                let x = self.get(&desc.input)?;
                self.cast(x, convert::dtype(desc.out.dtype)?)
            }
            BoolOperationIr::Not(desc) => self.each(desc, Expr::logical_not),
            BoolOperationIr::And(desc) => self.pair(desc, |a, b| a.and(b)),
            BoolOperationIr::Or(desc) => self.pair(desc, |a, b| a.or(b)),
            BoolOperationIr::Xor(desc) => self.pair(desc, |a, b| a.ne(b)),
        }
    }

    pub(super) fn activation(&mut self, op: &ActivationOperationIr) -> Result<NodeId> {
        use ActivationOperationIr as Op;
        let sigmoid_of = |x: Expr| x.sigmoid();
        match op {
            Op::Relu(desc) => self.each(desc, Expr::relu),
            Op::ReluBackward(desc) => self.pair(desc, |y, g| y.gt(0.0).select(g, 0.0)),
            Op::LeakyRelu(desc) => self.scalar(desc, |x, slope| x.clone().lt(0.0).select(x.clone() * slope, x)),
            Op::PRelu(desc) => self.pair(desc, |x, slope| x.clone().lt(0.0).select(x.clone() * slope, x)),
            Op::Gelu(desc) => self.each(desc, Expr::gelu),
            Op::GeluBackward(desc) => self.pair(desc, gelu_share),
            Op::Sigmoid(desc) => self.each(desc, Expr::sigmoid),
            Op::SigmoidBackward(desc) => self.pair(desc, |y, g| y.clone() * (1.0 - y) * g),
            Op::HardSigmoid(desc) => {
                let x = self.get(&desc.tensor)?;
                let scaled = self.with_number(&[x], &desc.alpha, |v, alpha| v[0].clone() * alpha)?;
                self.with_number(&[scaled], &desc.beta, |v, beta| (v[0].clone() + beta).clamp(0.0, 1.0))
            }
            // log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|)).
            Op::LogSigmoid(desc) => self.each(desc, |x| x.clone().min(0.0) - ((-x.abs()).exp() + 1.0).log()),
            Op::LogSigmoidBackward(desc) => self.pair(desc, |x, g| g * sigmoid_of(-x)),
            Op::Softmax(desc) => self.softmax(&desc.input, desc.axis, false),
            Op::LogSoftmax(desc) => self.softmax(&desc.input, desc.axis, true),
            Op::Softmin(desc) => {
                let x = self.get(&desc.input)?;
                let x = self.map(&[x], |v| -v[0].clone())?;
                let axis = desc.axis;
                Ok(self.g.op(&[x], |t| Softmax::new(&t[0]).axis(axis))?)
            }
        }
    }

    fn softmax(&mut self, x: &TensorIr, axis: usize, is_log: bool) -> Result<NodeId> {
        let x = self.get(x)?;
        Ok(self.g.op(&[x], |t| Softmax { is_log, ..Softmax::new(&t[0]).axis(axis) })?)
    }

    /// Maps a function over each element.
    fn each(&mut self, desc: &UnaryOpIr, make: impl FnOnce(Expr) -> Expr) -> Result<NodeId> {
        let x = self.get(&desc.input)?;
        self.map(&[x], |v| make(v[0].clone()))
    }

    /// Maps a function over each pair of elements.
    fn pair(&mut self, desc: &BinaryOpIr, make: impl FnOnce(Expr, Expr) -> Expr) -> Result<NodeId> {
        let (a, b) = (self.get(&desc.lhs)?, self.get(&desc.rhs)?);
        self.map(&[a, b], |v| make(v[0].clone(), v[1].clone()))
    }

    /// Maps a function over each element and a number.
    fn scalar(&mut self, desc: &ScalarOpIr, make: impl FnOnce(Expr, Expr) -> Expr) -> Result<NodeId> {
        let x = self.get(&desc.lhs)?;
        self.with_number(&[x], &desc.rhs, |v, number| make(v[0].clone(), number))
    }

    /// Compares pairs of elements; the result is bytes.
    pub(super) fn compared(&mut self, desc: &BinaryOpIr, make: impl FnOnce(Expr, Expr) -> Expr) -> Result<NodeId> {
        self.pair(desc, |a, b| make(a, b).cast(DType::U8))
    }

    /// Compares elements with a number; the result is bytes.
    pub(super) fn compared_with(&mut self, desc: &ScalarOpIr, make: impl FnOnce(Expr, Expr) -> Expr) -> Result<NodeId> {
        self.scalar(desc, |a, b| make(a, b).cast(DType::U8))
    }

    fn truth_of(&mut self, desc: &UnaryOpIr, make: impl FnOnce(Expr) -> Expr) -> Result<NodeId> {
        self.each(desc, |x| make(x).cast(DType::U8))
    }

    fn power(&mut self, desc: &BinaryOpIr) -> Result<NodeId> {
        let (base, exponent) = (self.get(&desc.lhs)?, self.get(&desc.rhs)?);
        let dtype = self.dtype(base)?;
        let exponent = self.cast(exponent, dtype)?;
        self.map(&[base, exponent], |v| v[0].clone().pow(v[1].clone()))
    }

    fn full(&mut self, out: &TensorIr, value: &burn_ir::ScalarIr) -> Result<NodeId> {
        match self.number(value, convert::dtype(out.dtype)?)? {
            NumberOperand::Fixed(value) => self.filled(out, value),
            NumberOperand::Varying(node) => {
                let one = self.reshape(node, &[])?;
                self.broadcast(one, &out.shape)
            }
        }
    }

    /// Reduces all elements to one.
    fn all(&mut self, x: &TensorIr, reduction: Reduction) -> Result<NodeId> {
        let x = self.get(x)?;
        let one = self.g.op(&[x], |t| Reduce::new(&t[0], reduction))?;
        self.reshape(one, &[1])
    }

    /// Reduces the elements along an axis to one, or to the index of one.
    fn along(&mut self, desc: &ReduceDimOpIr, reduction: Reduction) -> Result<NodeId> {
        let x = self.get(&desc.input)?;
        let axis = desc.axis;
        let made = self.g.op(&[x], |t| Reduce::new(&t[0], reduction).axes(&[axis]).keep_dims())?;
        match reduction {
            Reduction::ArgMax | Reduction::ArgMin => self.cast(made, convert::dtype(desc.out.dtype)?),
            _ => Ok(made),
        }
    }

    fn extreme(&mut self, x: &TensorIr, axis: usize, kinds: [Reduction; 2], places: &TensorIr) -> Result<Vec<NodeId>> {
        let x = self.get(x)?;
        let [value, place] = kinds;
        let value = self.g.op(&[x], |t| Reduce::new(&t[0], value).axes(&[axis]).keep_dims())?;
        let place = self.g.op(&[x], |t| Reduce::new(&t[0], place).axes(&[axis]).keep_dims())?;
        Ok(vec![value, self.cast(place, convert::dtype(places.dtype)?)?])
    }

    fn scanned(&mut self, x: &TensorIr, axis: usize, kind: ScanKind) -> Result<NodeId> {
        let x = self.get(x)?;
        Ok(self.g.op(&[x], |t| Scan { kind, ..Scan::sum(&t[0]).axis(axis) })?)
    }

    fn product(&mut self, a: &TensorIr, b: &TensorIr) -> Result<NodeId> {
        let (a, b) = (self.get(a)?, self.get(b)?);
        Ok(self.g.matmul(a, b)?)
    }

    fn padded(&mut self, desc: &PadOpIr) -> Result<NodeId> {
        let mut x = self.get(&desc.input)?;
        let PadModeIr::Constant(fill) = &desc.mode else { return Err(unserved("padding by what is at the edge")) };
        let fill = self.fixed_number(fill)?;
        // The padding belongs to the last axes.
        let first = self.dims(x)?.len().checked_sub(desc.padding.len());
        let first = first.ok_or_else(|| unserved("padding of more axes than there are"))?;
        for (place, (before, after)) in desc.padding.iter().enumerate() {
            let size = self.size(x, first + place)?;
            let total = bounded(size.saturating_add(*before).saturating_add(*after))?;
            let from = |to: usize| to.checked_sub(*before).filter(|from| *from < size);
            let places: Vec<Option<usize>> = (0..total).map(from).collect();
            x = self.picked(x, first + place, &places, fill)?;
        }
        Ok(x)
    }
}

/// Computes the remainder with the sign of the divisor.
fn remainder(a: Expr, b: Expr) -> Expr {
    let rest = a % b.clone();
    let differs = rest.clone().ne(0.0).and(rest.clone().lt(0.0).ne(b.clone().lt(0.0)));
    differs.select(rest.clone() + b, rest)
}

/// Computes the derivative of `x · Φ(x)` (GELU), times a gradient.
fn gelu_share(x: Expr, g: Expr) -> Expr {
    let phi = ((x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
    let density = (x.clone() * x.clone() * -0.5).exp() * 0.398_942_280_401_432_7;
    g * (phi + x * density)
}

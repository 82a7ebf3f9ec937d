//! Reduce: maps a set of axes to one axis between the axes before and after it.

use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::{Complex64, DType, Element, Error, Result, Tensor, Value, bf16, f16};

use crate::context::Context;
use crate::extents::Extents;
use crate::ops::compute::search::contiguous;
use crate::reduce::{self, Mean, OrderedElement, Sum};
use crate::simd::Simd;
use crate::team::Team;

pub(crate) fn run(op: &Reduce, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => real::<f32>(op, context),
        DType::F16 => real::<f16>(op, context),
        DType::BF16 => real::<bf16>(op, context),
        DType::F64 => real::<f64>(op, context),
        DType::I32 => real::<i32>(op, context),
        DType::U32 => real::<u32>(op, context),
        DType::I8 => real::<i8>(op, context),
        DType::U8 => real::<u8>(op, context),
        DType::Complex64 => match op.reduction {
            Reduction::Sum => apply(op, context, Complex64::sum),
            Reduction::Mean => apply(op, context, Complex64::mean),
            _ => Err(Error::DTypeUnsupported {
                what: "reduce: an order",
                expected: "f32, f16, bf16, f64, i32, u32, i8 or u8",
                got: DType::Complex64,
            }),
        },
    }
}

fn real<T: Sum + Mean + OrderedElement>(op: &Reduce, context: &mut Context) -> Result<Value> {
    match op.reduction {
        Reduction::Sum => apply(op, context, T::sum),
        Reduction::Mean => apply(op, context, T::mean),
        Reduction::Max => apply(op, context, reduce::max::<T>),
        Reduction::Min => apply(op, context, reduce::min::<T>),
        Reduction::ArgMax => apply(op, context, reduce::arg_max::<T>),
        Reduction::ArgMin => apply(op, context, reduce::arg_min::<T>),
    }
}

fn apply<T: Element, U: Element>(
    op: &Reduce,
    context: &mut Context,
    kernel: fn(Simd, &Team, &[T], Extents, &mut [U]),
) -> Result<Value> {
    let reduced = op.reduced()?;
    let (view, extents) = match as_it_lies(&op.input, &reduced)? {
        Some((view, reduced)) => one_axis(&view, &reduced)?,
        None => one_axis(&op.input, &reduced)?,
    };
    let input = contiguous(&view, context)?;
    let mut output = context.output::<U>(op.output_shape()?)?;
    kernel(context.simd, &context.team, input.as_slice()?, extents, &mut output);
    output.into_tensor().map(Value::Tensor)
}

/// A view of the input with its axes in memory order, and which of them are reduced. `None` if the
/// input is contiguous already or has gaps, or if the order of the kept axes or that of the reduced
/// axes would change. So channels-last images are read in place.
fn as_it_lies(input: &Tensor, reduced: &[bool]) -> Result<Option<(Tensor, Vec<bool>)>> {
    let (dims, strides) = (input.shape().dims(), input.strides());
    if input.is_contiguous() {
        return Ok(None);
    }
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|axis| std::cmp::Reverse(if dims[*axis] == 1 { isize::MAX } else { strides[*axis] }));
    let keep_order =
        |wanted: bool| order.iter().filter(|axis| dims[**axis] != 1 && reduced[**axis] == wanted).is_sorted();
    let view = input.permute(&order)?;
    let fits = view.is_contiguous() && keep_order(true) && keep_order(false);
    Ok(fits.then(|| (view, order.iter().map(|axis| reduced[*axis]).collect())))
}

/// The input as a view whose reduced axes are adjacent, and its extents around them. Axes of one
/// element may be anywhere. If the reduced axes are not adjacent, they are moved to the end.
fn one_axis(input: &Tensor, reduced: &[bool]) -> Result<(Tensor, Extents)> {
    let dims = input.shape().dims();
    let wide = |axis: &usize| dims[*axis] != 1;
    let first = (0..dims.len()).filter(wide).find(|axis| reduced[*axis]);
    let last = (0..dims.len()).filter(wide).rfind(|axis| reduced[*axis]);
    let (Some(first), Some(last)) = (first, last) else {
        return Ok((input.clone(), Extents { outer: 1, axis: 1, inner: input.elements() }));
    };
    if (first..=last).filter(wide).all(|axis| reduced[axis]) {
        let product = |range: &[usize]| range.iter().product();
        let (outer, inner) = (product(&dims[..first]), product(&dims[last + 1..]));
        return Ok((input.clone(), Extents { outer, axis: product(&dims[first..=last]), inner }));
    }
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|axis| reduced[*axis]);
    let view = input.permute(&order)?;
    let product = |wanted: bool| dims.iter().zip(reduced).filter(|(_, r)| **r == wanted).map(|(dim, _)| dim).product();
    Ok((view, Extents::rows(product(false), product(true))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_become_one() {
        let input = Tensor::zeros(DType::U8, [2, 3, 1, 5]).unwrap();
        let extents = |reduced: [bool; 4]| {
            let Extents { outer, axis, inner } = one_axis(&input, &reduced).unwrap().1;
            (outer, axis, inner)
        };
        assert_eq!(extents([false, true, false, false]), (2, 3, 5));
        assert_eq!(extents([false, true, false, true]), (2, 15, 1));
        assert_eq!(extents([true, false, false, true]), (3, 10, 1));
        assert_eq!(extents([false, false, true, false]), (1, 1, 30));
        assert_eq!(extents([true; 4]), (1, 30, 1));
    }

    #[test]
    fn images_with_their_channels_last_are_read_in_place() {
        let image = Tensor::zeros(DType::F32, [2, 4, 5, 3]).unwrap().permute(&[0, 3, 1, 2]).unwrap();
        let lies = |reduced: [bool; 4]| {
            let (view, reduced) = as_it_lies(&image, &reduced).unwrap()?;
            let (view, Extents { outer, axis, inner }) = one_axis(&view, &reduced).unwrap();
            Some((view.is_contiguous(), outer, axis, inner))
        };
        assert_eq!(lies([false, false, true, true]), Some((true, 2, 20, 3)));
        assert_eq!(lies([false, true, false, false]), Some((true, 40, 3, 1)));
        // The kept axes would be reordered, which would change the order of the output or the
        // indices of arg reductions.
        assert_eq!(lies([true, false, false, true]), None);
        assert_eq!(lies([false, true, true, false]), None);
    }
}

//! Checks that the domain's ops share, and the visits of ops whose parts are tensors alone.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The two visits of an op whose parts are these tensors, in this order.
macro_rules! tensors {
    ($($field:ident),*) => {
        fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
            $(visit((&self.$field).into());)*
        }

        fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
            $(visit((&mut self.$field).into());)*
        }
    };
}
pub(super) use tensors;

/// The length of lines along the last axis, of a tensor that has one.
pub(super) fn line_len(tensor: &Tensor, what: &'static str) -> Result<usize> {
    let rank_of_none = || Error::RankMismatch { what, expected: "at least 1".into(), got: 0 };
    tensor.shape().last().copied().ok_or_else(rank_of_none)
}

pub(super) fn real_only(tensor: &Tensor, what: &'static str) -> Result<()> {
    of_type(tensor, DType::F32, what)
}

pub(super) fn complex_only(tensor: &Tensor, what: &'static str) -> Result<()> {
    of_type(tensor, DType::Complex64, what)
}

pub(super) fn of_type(tensor: &Tensor, expected: DType, what: &'static str) -> Result<()> {
    match tensor.dtype() {
        got if got == expected => Ok(()),
        got => Err(Error::DTypeMismatch { what, expected, got }),
    }
}

pub(super) fn real_or_complex(tensor: &Tensor, what: &'static str) -> Result<()> {
    match tensor.dtype() {
        DType::F32 | DType::Complex64 => Ok(()),
        got => Err(Error::DTypeUnsupported { what, expected: "f32 or c64", got }),
    }
}

/// Checks a number of something.
pub(super) fn within(got: usize, least: usize, most: usize, what: &'static str) -> Result<()> {
    match (least..=most).contains(&got) {
        true => Ok(()),
        false => Err(Error::invalid(what, format!("{least} to {most}"), got)),
    }
}

/// Checks a number that must be finite and positive.
pub(super) fn positive(got: f64, what: &'static str) -> Result<()> {
    match got > 0.0 && got.is_finite() {
        true => Ok(()),
        false => Err(Error::invalid(what, "a positive finite number", got)),
    }
}

pub(super) fn finite(got: f64, what: &'static str) -> Result<()> {
    match got.is_finite() {
        true => Ok(()),
        false => Err(Error::invalid(what, "a finite number", got)),
    }
}

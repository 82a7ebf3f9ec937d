//! Checks that the domain's ops share.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The length of lines along the last axis. Fails for tensors of rank zero.
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

/// Checks that weights are real, or complex if the samples are complex.
pub(super) fn weights_fit(weights: &Tensor, samples: DType, what: &'static str) -> Result<()> {
    match weights.dtype() {
        DType::F32 => Ok(()),
        DType::Complex64 if samples == DType::Complex64 => Ok(()),
        got => Err(Error::DTypeUnsupported { what, expected: "f32, or c64 where the input is", got }),
    }
}

/// Checks that a count is within its limits.
pub(super) fn within(got: usize, least: usize, most: usize, what: &'static str) -> Result<()> {
    match (least..=most).contains(&got) {
        true => Ok(()),
        false => Err(Error::invalid(what, format!("{least} to {most}"), got)),
    }
}

/// Checks that a number is finite and positive.
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

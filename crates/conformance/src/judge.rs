//! Judges: the criteria for an engine's result. Each case brings its own.

use panoply_core::{Op, PartRef, Tensor, Value};

use crate::reference::flushed_references;
pub use crate::tolerance::Tolerance;
use crate::values::{difference, elements_that_differ, to_f64};

/// Compares an engine's result with the reference's.
#[derive(Clone, Copy, Debug)]
pub enum Judge {
    /// Each element of each tensor is within the tolerance; bytes are equal.
    Within(Tolerance),
    /// Every bit of every tensor is the same, including signs of zero and NaN payloads; bytes are
    /// equal.
    Bits,
    /// All but a share of each tensor's elements are within the tolerance, as for soft decisions
    /// near a boundary; bytes are equal.
    Mostly {
        /// The tolerance of an element.
        tolerance: Tolerance,
        /// The share of elements that may be outside the tolerance, from 0 to 1.
        share_max: f64,
    },
    /// A check of the case's own, of the op, the reference's result and the engine's, which returns
    /// the fault: a signature verifies, a compressed block decompresses to its input.
    Own(fn(&Op, &Value, &Value) -> Option<String>),
}

impl Judge {
    /// The difference between `expected` and `got`, or `None`.
    pub fn difference(&self, op: &Op, expected: &Value, got: &Value) -> Option<String> {
        if let Judge::Own(check) = self {
            return check(op, expected, got);
        }
        let (parts, others): (Vec<PartRef<'_>>, Vec<PartRef<'_>>) = (expected.parts().collect(), got.parts().collect());
        if parts.len() != others.len() {
            return Some(format!("expected {} parts, got {}", parts.len(), others.len()));
        }
        parts.into_iter().zip(others).find_map(|(expected, got)| match (expected, got) {
            (PartRef::Tensor(expected), PartRef::Tensor(got)) => self.of_tensors(expected, got),
            (PartRef::Bytes(expected), PartRef::Bytes(got)) => match (expected.as_slice(), got.as_slice()) {
                (Ok(expected), Ok(got)) => differing_bytes(expected, got),
                (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
            },
            (PartRef::Object(expected), PartRef::Object(got)) if expected.kind() == got.kind() => None,
            (expected, got) => Some(format!("expected {expected:?}, got {got:?}")),
        })
    }

    /// Whether the result of a device that may flush subnormal numbers is right: each element of a
    /// map must equal that of arithmetic which keeps them, or which flushes operands, results or
    /// both.
    pub(crate) fn accepts_flushed(&self, op: &Op, expected: &Value, got: &Value) -> bool {
        let Judge::Within(tolerance) = *self else { return false };
        let elements = |value: &Value| value.tensors().next().and_then(|tensor| to_f64(tensor).ok());
        let (Some(own), Some(got)) = (elements(expected), elements(got)) else { return false };
        let Some(flushed) = flushed_references(op) else { return false };
        let others: Vec<Vec<f64>> = flushed.iter().filter_map(elements).collect();
        let is_right = |(place, got): (usize, &f64)| {
            let accepts = |values: &Vec<f64>| values.get(place).is_some_and(|value| tolerance.accepts(*value, *got));
            accepts(&own) || others.iter().any(accepts)
        };
        own.len() == got.len() && got.iter().enumerate().all(is_right)
    }

    fn of_tensors(&self, expected: &Tensor, got: &Tensor) -> Option<String> {
        match *self {
            Judge::Within(tolerance) => difference(expected, got, tolerance),
            Judge::Bits => difference(expected, got, Tolerance::Exact).or_else(|| {
                match (expected.contiguous(), got.contiguous()) {
                    (Ok(expected), Ok(got)) => differing_bytes(expected.as_bytes().ok()?, got.as_bytes().ok()?),
                    (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
                }
            }),
            Judge::Mostly { tolerance, share_max } => match elements_that_differ(expected, got, tolerance) {
                Err(what) => Some(what),
                Ok((count, of)) if count as f64 <= share_max * of as f64 => None,
                Ok((count, of)) => {
                    Some(format!("expected at most {share_max} of {of} elements to differ, got {count}"))
                }
            },
            Judge::Own(_) => None,
        }
    }
}

impl From<Tolerance> for Judge {
    fn from(tolerance: Tolerance) -> Judge {
        Judge::Within(tolerance)
    }
}

fn differing_bytes(expected: &[u8], got: &[u8]) -> Option<String> {
    if expected.len() != got.len() {
        return Some(format!("expected {} bytes, got {}", expected.len(), got.len()));
    }
    let at = expected.iter().zip(got).position(|(expected, got)| expected != got)?;
    Some(format!("byte {at}: expected {:#04x}, got {:#04x}", expected[at], got[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::op::compute::Transpose;
    use panoply_core::{Bytes, Operation};

    fn op() -> Op {
        Transpose::new(&tensor(&[1.0])).into_op().unwrap()
    }

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, [values.len()]).unwrap()
    }

    fn judged(judge: Judge, expected: &[f32], got: &[f32]) -> Option<String> {
        judge.difference(&op(), &Value::Tensor(tensor(expected)), &Value::Tensor(tensor(got)))
    }

    #[test]
    fn each_judge_refuses_what_it_shall() {
        let close = Tolerance::Close { relative: 0.0, absolute: 0.1 };
        assert_eq!(judged(close.into(), &[1.0, 2.0], &[1.05, 2.0]), None);
        assert!(judged(close.into(), &[1.0], &[1.2]).is_some());
        assert_eq!(judged(Tolerance::Exact.into(), &[0.0], &[-0.0]), None);
        assert!(judged(Judge::Bits, &[0.0], &[-0.0]).is_some());
        assert_eq!(judged(Judge::Bits, &[f32::NAN], &[f32::NAN]), None);
        let mostly = Judge::Mostly { tolerance: Tolerance::Exact, share_max: 0.25 };
        assert_eq!(judged(mostly, &[1.0; 4], &[1.0, 1.0, 9.0, 1.0]), None);
        assert!(judged(mostly, &[1.0; 4], &[1.0, 8.0, 9.0, 1.0]).is_some());
        assert!(judged(mostly, &[1.0; 4], &[1.0; 3]).is_some());
        assert!(judged(Judge::Own(|_, _, _| Some("never".to_owned())), &[1.0], &[1.0]).is_some());
    }

    #[test]
    fn parts_of_other_kinds_and_other_bytes_are_refused() {
        let bytes = |bytes: &[u8]| Value::Bytes(Bytes::from_vec(bytes.to_vec()));
        let judge = Judge::Bits;
        assert_eq!(judge.difference(&op(), &bytes(b"abc"), &bytes(b"abc")), None);
        assert!(judge.difference(&op(), &bytes(b"abc"), &bytes(b"abd")).unwrap().contains("byte 2"));
        assert!(judge.difference(&op(), &bytes(b"abc"), &bytes(b"ab")).is_some());
        assert!(judge.difference(&op(), &bytes(b"abc"), &Value::Tensor(tensor(&[1.0]))).is_some());
        assert!(judge.difference(&op(), &bytes(b"abc"), &Value::List(Vec::new())).is_some());
    }
}

//! The loss scale, for gradients that are 16-bit floats. It is halved when a gradient is not
//! finite, and doubled when all gradients were finite for many steps.

use crate::error::{Error, Result};

/// Number of finite steps after which the factor is doubled.
const GOOD_STEPS: u32 = 2_000;
/// The largest factor that doubling reaches.
const FACTOR_MAX: f32 = 16_777_216.0;
/// The smallest factor. Gradients that are not finite with this factor would not become finite with
/// a smaller one.
const FACTOR_MIN: f32 = 1.0 / 65_536.0;

/// The factor, and how well it worked so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossScale {
    pub(super) factor: f32,
    /// Number of successive steps whose gradients were finite.
    pub(super) good: u32,
    is_on: bool,
}

impl LossScale {
    /// Starts with this factor. With `None` the loss is not scaled.
    pub(super) fn new(first: Option<f32>) -> Result<LossScale> {
        let factor = first.unwrap_or(1.0);
        check(factor)?;
        Ok(LossScale { factor, good: 0, is_on: first.is_some() })
    }

    /// Whether the loss is scaled.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Continues from saved values.
    pub(super) fn restore(&mut self, factor: f32, good: u32) -> Result<()> {
        check(factor)?;
        (self.factor, self.good) = (factor, good.min(GOOD_STEPS));
        Ok(())
    }

    /// Adjusts the factor to the norm of a step's gradients. Returns whether the step changed the
    /// parameters.
    pub(super) fn learn(&mut self, norm: f32, step: u64) -> Result<bool> {
        if !norm.is_finite() {
            if self.factor <= FACTOR_MIN {
                return Err(Error::NotFinite { step, scale: self.factor });
            }
            (self.factor, self.good) = ((self.factor / 2.0).max(FACTOR_MIN), 0);
            return Ok(false);
        }
        self.good += 1;
        if self.good >= GOOD_STEPS {
            (self.factor, self.good) = ((self.factor * 2.0).min(FACTOR_MAX.max(self.factor)), 0);
        }
        Ok(true)
    }
}

fn check(factor: f32) -> Result<()> {
    match factor.is_finite() && factor > 0.0 {
        true => Ok(()),
        false => Err(Error::invalid("session: the factor of the loss", "a finite number above 0", factor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_falls_at_once_and_rises_slowly() {
        let mut scale = LossScale::new(Some(8.0)).unwrap();
        assert!(!scale.learn(f32::INFINITY, 0).unwrap() && scale.factor == 4.0);
        for step in 1..=u64::from(GOOD_STEPS) {
            assert!(scale.learn(1.0, step).unwrap());
        }
        assert_eq!((scale.factor, scale.good), (8.0, 0));
    }

    #[test]
    fn gradients_that_are_never_finite_end_training() {
        let mut scale = LossScale::new(Some(65_536.0)).unwrap();
        let learned = (0..100).map(|step| scale.learn(f32::NAN, step));
        let refused: Vec<_> = learned.filter_map(Result::err).collect();
        assert_eq!(refused.len(), 100 - 32);
        assert!(matches!(refused[0], Error::NotFinite { step: 32, .. }));
    }

    #[test]
    fn factors_that_are_no_numbers_are_refused() {
        for factor in [0.0, -1.0, f32::INFINITY, f32::NAN] {
            assert!(LossScale::new(Some(factor)).is_err());
            assert!(LossScale::new(Some(1.0)).unwrap().restore(factor, 0).is_err());
        }
    }
}

//! Stored element types, and the type in which each is computed.

use super::tile::Real;
use super::workspace::HasScratch;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A stored element: f32 and f64 are computed in their own type, f16 and bf16 in f32.
pub trait StoredElement: Copy + Default + Send + Sync + 'static {
    /// The type of weights, sums and panels.
    type Real: Real + HasScratch;

    /// The number in the type in which it is computed.
    fn real(self) -> Self::Real;
    /// As [`StoredElement::real`] for a weight, with subnormal numbers replaced by zero. Trained
    /// weights can decay to subnormal numbers, which contribute nothing to a sum and take a CPU a
    /// hundred times as long as others.
    fn weight(self) -> Self::Real;
    /// [`StoredElement::real`] for a run of numbers. Both slices have the same length.
    fn widen(from: &[Self], to: &mut [Self::Real]);
    /// Rounds sums to the stored type. Both slices have the same length.
    fn narrow(from: &[Self::Real], to: &mut [Self]);
    /// True if both types are the same, so that kernels write outputs in place.
    const IN_PLACE: bool;
}

macro_rules! stored_as_computed {
    ($($scalar:ty),*) => {$(
        impl StoredElement for $scalar {
            type Real = $scalar;
            const IN_PLACE: bool = true;

            fn real(self) -> $scalar {
                self
            }
            #[inline(always)]
            fn weight(self) -> $scalar {
                if self.abs() < <$scalar>::MIN_POSITIVE { 0.0 } else { self }
            }
            #[inline(always)]
            fn widen(from: &[$scalar], to: &mut [$scalar]) {
                copy_row(from, to);
            }
            fn narrow(from: &[$scalar], to: &mut [$scalar]) {
                to.copy_from_slice(from);
            }
        }
    )*};
}

stored_as_computed!(f32, f64);

macro_rules! stored_as_half {
    ($($scalar:ty),*) => {$(
        impl StoredElement for $scalar {
            type Real = f32;
            const IN_PLACE: bool = false;

            fn real(self) -> f32 {
                self.to_f32()
            }
            fn weight(self) -> f32 {
                self.to_f32().weight()
            }
            fn widen(from: &[$scalar], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [$scalar]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

stored_as_half!(f16, bf16);

/// Copies a run that is usually the width of an image: so short that calling a general copy costs
/// as much as the copy itself.
#[inline(always)]
fn copy_row<T: Copy>(from: &[T], to: &mut [T]) {
    const STEP: usize = 16;
    const INLINE_MAX: usize = 16 * STEP;
    const HALF: usize = STEP / 2;
    let len = from.len().min(to.len());
    if (HALF..STEP).contains(&len) {
        to[..HALF].copy_from_slice(&from[..HALF]);
        return to[len - HALF..len].copy_from_slice(&from[len - HALF..len]);
    }
    if !(STEP..=INLINE_MAX).contains(&len) {
        return to[..len].copy_from_slice(&from[..len]);
    }
    let last = len - STEP;
    for start in (0..last).step_by(STEP) {
        to[start..start + STEP].copy_from_slice(&from[start..start + STEP]);
    }
    to[last..len].copy_from_slice(&from[last..len]);
}

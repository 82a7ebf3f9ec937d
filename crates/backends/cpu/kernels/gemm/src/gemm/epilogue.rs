//! The fused epilogue of a product: `activation(alpha * sum + beta * c0 + bias)`.

use std::ops::Range;

use panoply_core::op::compute::Activation;

use super::Isa;
use super::element::{Accumulator, Output};
use super::sweep::Sink;
use super::view::{MatRef, SharedPtr};
use crate::simd::Simd;

/// A vector added to every row or to every column of a product.
#[derive(Clone, Copy)]
pub enum Bias<'a, T> {
    /// Element `j` is added to column `j`; as long as the product is wide.
    PerColumn(&'a [T]),
    /// Element `i` is added to row `i`; as long as the product is high.
    PerRow(&'a [T]),
}

/// The operations between a sum and the element that is written.
#[derive(Clone, Copy)]
pub struct Epilogue<'a, T: Output> {
    /// The factor of the product.
    pub alpha: <T::Acc as Accumulator>::Scale,
    /// A factor and the matrix that it scales, added to the product. `None` reads nothing.
    pub add: Option<(<T::Acc as Accumulator>::Scale, MatRef<'a, T>)>,
    /// A vector that is added afterwards.
    pub bias: Option<Bias<'a, T>>,
    /// The function applied last.
    pub activation: Activation,
}

impl<T: Output> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Epilogue { alpha: <T::Acc as Accumulator>::ONE, add: None, bias: None, activation: Activation::None }
    }
}

impl<T: Output> Epilogue<'_, T> {
    /// True if sums are written unchanged.
    pub(super) fn is_plain(&self) -> bool {
        self.alpha == <T::Acc as Accumulator>::ONE
            && self.add.is_none()
            && self.bias.is_none()
            && self.activation == Activation::None
    }
}

/// Writes finished sums into a row-major result.
pub(super) struct WriteBack<'a, T: Output> {
    pub(super) out: SharedPtr<T>,
    pub(super) ld: usize,
    pub(super) epilogue: Epilogue<'a, T>,
    pub(super) isa: Isa,
    /// Sums that are kept apart from the result, with their leading dimension.
    pub(super) sums: Option<(SharedPtr<T::Acc>, usize)>,
    /// The part of the inner dimension.
    pub(super) pass: DepthPass,
}

/// A pass over a part of a long inner dimension; all passes accumulate into the same sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DepthPass {
    pub(super) first: bool,
    pub(super) last: bool,
}

impl DepthPass {
    pub(super) const ONLY: DepthPass = DepthPass { first: true, last: true };
}

impl<T: Output> WriteBack<'_, T> {
    /// True if sums may be kept in the result itself, because the result has the accumulator's
    /// type.
    pub(super) fn sums_live_in_result() -> bool {
        std::any::TypeId::of::<T>() == std::any::TypeId::of::<T::Acc>()
    }

    /// Applies the epilogue to a tile of sums and writes it to the result.
    ///
    /// # Safety
    /// `acc` holds the tile with `acc_ld` elements from row to row, and no other task accesses this
    /// tile of the result.
    pub(super) unsafe fn put(&self, rows: Range<usize>, cols: Range<usize>, acc: *const T::Acc, acc_ld: usize) {
        // SAFETY: the caller's contract, and `isa` holds only what this CPU has.
        unsafe {
            match self.isa.simd {
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => finish_avx512(self, rows, cols, acc, acc_ld),
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => finish_avx2(self, rows, cols, acc, acc_ld),
                _ => finish(self, rows, cols, acc, acc_ld),
            }
        }
    }
}

impl<T: Output> Sink<T::Acc> for WriteBack<'_, T> {
    fn place(&self) -> Option<(SharedPtr<T::Acc>, usize)> {
        // The cast keeps the type: both types were just found to be the same.
        self.sums.or_else(|| Self::sums_live_in_result().then(|| (self.out.cast(), self.ld)))
    }

    fn resumes(&self) -> bool {
        !self.pass.first
    }

    unsafe fn tile(&self, rows: Range<usize>, cols: Range<usize>, acc: *const T::Acc, acc_ld: usize) {
        if !self.pass.last || (Self::sums_live_in_result() && self.epilogue.is_plain()) {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe { self.put(rows, cols, acc, acc_ld) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn finish_avx512<T: Output>(
    sink: &WriteBack<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    acc: *const T::Acc,
    acc_ld: usize,
) {
    // SAFETY: the caller's contract is that of `finish`.
    unsafe { finish(sink, rows, cols, acc, acc_ld) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn finish_avx2<T: Output>(
    sink: &WriteBack<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    acc: *const T::Acc,
    acc_ld: usize,
) {
    // SAFETY: the caller's contract is that of `finish`.
    unsafe { finish(sink, rows, cols, acc, acc_ld) }
}

/// Columns that are processed at a time, in registers and the first-level cache.
const STRIP: usize = 64;

/// Applies the epilogue to a tile of sums and writes it.
///
/// # Safety
/// `acc` holds the tile with `acc_ld` elements from row to row, and no other task accesses this
/// tile of the result. `acc` may be that tile itself.
#[inline(always)]
unsafe fn finish<T: Output>(
    sink: &WriteBack<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    acc: *const T::Acc,
    acc_ld: usize,
) {
    for (index, row) in rows.enumerate() {
        let mut done = 0;
        while done < cols.len() {
            let count = (cols.len() - done).min(STRIP);
            let start = cols.start + done;
            let mut strip = [bytemuck::Zeroable::zeroed(); STRIP];
            let strip = &mut strip[..count];
            // SAFETY: row `index` of the tile has `cols.len()` sums.
            unsafe { std::ptr::copy_nonoverlapping(acc.add(index * acc_ld + done), strip.as_mut_ptr(), count) };
            finish_strip(&sink.epilogue, row, start, strip);
            for (offset, value) in strip.iter().enumerate() {
                // SAFETY: the element is inside the tile of the result that belongs to the caller.
                unsafe { *sink.out.at(row * sink.ld + start + offset) = T::narrow(*value) };
            }
            done += count;
        }
    }
}

/// Applies the epilogue to the columns from `col` on of one row, in place.
#[inline(always)]
pub(super) fn finish_strip<T: Output>(epilogue: &Epilogue<'_, T>, row: usize, col: usize, strip: &mut [T::Acc]) {
    if epilogue.alpha != <T::Acc as Accumulator>::ONE {
        strip.iter_mut().for_each(|value| *value = value.scaled(epilogue.alpha));
    }
    if let Some((beta, add)) = &epilogue.add {
        if let Some(addend) = add.row_slice(row, col, strip.len()) {
            for (value, extra) in strip.iter_mut().zip(addend) {
                *value = value.plus(extra.widen().scaled(*beta));
            }
        } else {
            for (offset, value) in strip.iter_mut().enumerate() {
                *value = value.plus(add.get(row, col + offset).widen().scaled(*beta));
            }
        }
    }
    match epilogue.bias {
        Some(Bias::PerColumn(bias)) => {
            for (value, extra) in strip.iter_mut().zip(&bias[col..]) {
                *value = value.plus(extra.widen());
            }
        }
        Some(Bias::PerRow(bias)) => strip.iter_mut().for_each(|value| *value = value.plus(bias[row].widen())),
        None => {}
    }
    activate(strip, epilogue.activation);
}

/// One loop for each activation: a branch inside the loop would prevent vectorisation.
#[inline(always)]
fn activate<A: Accumulator>(strip: &mut [A], activation: Activation) {
    macro_rules! each {
        ($kind:ident) => {
            strip.iter_mut().for_each(|value| *value = value.activated(Activation::$kind))
        };
    }
    match activation {
        Activation::Relu => each!(Relu),
        Activation::Gelu => each!(Gelu),
        Activation::Silu => each!(Silu),
        Activation::Sigmoid => each!(Sigmoid),
        Activation::Tanh => each!(Tanh),
        // `None`; the op's checks reject unknown activations.
        _ => {}
    }
}

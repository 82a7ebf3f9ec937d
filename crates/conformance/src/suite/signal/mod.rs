//! The signal domain: sampled signals.

use crate::suite::Case;

mod fft;

/// Every case of the domain.
pub(super) fn cases() -> Vec<Case> {
    fft::cases()
}

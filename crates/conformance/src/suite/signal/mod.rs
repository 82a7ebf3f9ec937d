//! The signal domain: sampled signals, modems and codes.

use crate::suite::Case;

mod codes;
mod fft;
mod filters;
mod modem;

/// Every case of the domain.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = fft::cases();
    cases.extend(filters::cases());
    cases.extend(modem::cases());
    cases.extend(codes::cases());
    cases
}

//! The signal domain: sampled signals, modems and codes.

use crate::suite::case::Case;

mod codes;
mod coding;
mod fft;
mod filters;
mod loops;
mod modem;
mod planes;
mod spectra;
mod waves;

/// Every case of the domain.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = fft::cases();
    cases.extend(filters::cases());
    cases.extend(planes::cases());
    cases.extend(modem::cases());
    cases.extend(codes::cases());
    cases.extend(spectra::cases());
    cases.extend(loops::cases());
    cases.extend(waves::cases());
    cases.extend(coding::cases());
    cases
}

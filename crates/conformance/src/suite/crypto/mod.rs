//! The crypto domain: every algorithm, messages of awkward lengths at odd addresses, in every form,
//! and messages that must be refused.
//!
//! Signatures and zstd are checked only by vectors (`crate::vectors`).

use crate::suite::case::Case;

mod batches;
mod compress;
mod encrypt;
mod hash;
mod seal;

/// Every case of the domain.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(compress::cases());
    cases.extend(encrypt::cases());
    cases.extend(hash::cases());
    cases.extend(seal::cases());
    cases
}

//! Checks by the carry-less products of ARM CPUs.

use std::arch::aarch64::vmull_p64;
use std::arch::is_aarch64_feature_detected;

use super::folding::{Folding, Multiply};

/// The check of a message. `None` if the CPU has no carry-less products.
pub(super) fn check(folding: &Folding, message: &[u8]) -> Option<u64> {
    // SAFETY: the instructions were found just now.
    is_aarch64_feature_detected!("aes").then(|| unsafe { products(folding, message) })
}

#[target_feature(enable = "neon,aes")]
fn products(folding: &Folding, message: &[u8]) -> u64 {
    folding.by_products(message, &Unit(()))
}

/// Products by `PMULL`. Only made where the CPU has it.
struct Unit(());

impl Multiply for Unit {
    #[inline(always)]
    fn multiply(&self, a: u64, b: u64) -> u128 {
        // SAFETY: a `Unit` is only made where the CPU has the instruction.
        unsafe { vmull_p64(a, b) }
    }
}

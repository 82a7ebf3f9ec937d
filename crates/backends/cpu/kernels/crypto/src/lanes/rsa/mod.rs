//! RSA of eight numbers at a time under one key: a vector register holds one limb of all eight, one
//! number per lane.
//!
//! Limbs have 52 bits, and AVX-512 IFMA multiplies eight pairs at once. A CPU without IFMA has no
//! vector product of long integers, but it has one of doubles: a fused multiply-add, rounded
//! towards zero, gives the upper half of a product of 104 bits, and a second one the lower half,
//! both exact.
//!
//! * [`arithmetic`]: limbs and their products, of both kinds.
//! * [`limbs`]: single numbers in such limbs, for the one-time computations of a key.
//! * [`numbers`]: eight numbers in lanes.
//! * [`kernel`]: the products themselves.
//! * [`modulus`]: sums, products and powers modulo a number.
//! * [`public`], [`private`]: the operations of a key.
//!
//! Operations with private keys take the same steps and read the same memory for every key.
//! Exponents are processed in windows, for as many bits as the modulus has; tables are read from
//! end to end; and nothing is compared before it is a signature that may be released.

mod arithmetic;
mod kernel;
mod limbs;
mod modulus;
mod numbers;
mod private;
mod public;
#[cfg(test)]
mod tests;

pub use private::{RsaPrime, RsaPrivate, RsaPrivateParts};
pub use public::RsaPublic;

/// Numbers that are exponentiated in parallel.
pub const RSA_LANES: usize = numbers::LANES;

/// Whether this CPU has the instructions for the RSA lanes.
pub fn detected_for_rsa() -> bool {
    arithmetic::Kind::detected().is_some()
}

/// Whether it has IFMA, with which the library signs faster too.
pub fn detected_for_rsa_integers() -> bool {
    arithmetic::Kind::detected() == Some(arithmetic::Kind::Integers)
}

//! RSA of eight numbers at a time under one key: each limb of the eight lies in one vector register, a number to a lane.
//!
//! Limbs have 52 bits, of which AVX-512 IFMA multiplies eight by eight. A CPU without it has no instruction for the product of two long integers in vectors,
//! but it has one for doubles: a fused multiplication and addition, rounded towards zero, gives the upper half of a product of 104 bits, and a second one the
//! lower half, both exact.
//!
//! * [`arithmetic`]: limbs and their products, with either.
//! * [`limbs`]: single numbers in such limbs, for what is worked out once for a key.
//! * [`numbers`]: eight numbers in lanes.
//! * [`kernel`]: the products themselves.
//! * [`modulus`]: sums, products and powers modulo a number.
//! * [`public`], [`private`]: what a key does.
//!
//! What is done with private keys takes the same steps whatever they are, and reads the same memory: exponents are taken in windows of as many
//! bits as the modulus has, tables are read from end to end, nothing is compared before it is a signature that is released.

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

/// Numbers that are raised side by side.
pub const RSA_LANES: usize = numbers::LANES;

/// Whether this CPU has what the lanes of RSA need.
pub fn detected_for_rsa() -> bool {
    arithmetic::Kind::detected().is_some()
}

/// Whether it has the instructions of IFMA for them, with which the library too signs sooner.
pub fn detected_for_rsa_integers() -> bool {
    arithmetic::Kind::detected() == Some(arithmetic::Kind::Integers)
}

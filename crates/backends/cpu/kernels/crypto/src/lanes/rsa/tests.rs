//! Compares both kinds of limb multiplication on a CPU that has both; `tests/rsa.rs` compares the
//! better one with AWS-LC.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::io::Write;

use super::arithmetic::Kind;
use super::numbers::LANES;
use super::{RsaPrime, RsaPublic};
use crate::random::fill_random;

fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert!(fill_random(&mut bytes));
    bytes
}

/// An odd number with its highest bit set; all ones if `is_full`.
fn modulus(len: usize, is_full: bool) -> Vec<u8> {
    let mut bytes = if is_full { vec![0xff; len] } else { random(len) };
    bytes[0] |= 0x80;
    bytes[len - 1] |= 1;
    bytes
}

/// Numbers below a modulus whose highest bit is set: zero, one, the highest, and random ones.
fn numbers(modulus: &[u8]) -> Vec<Vec<u8>> {
    let len = modulus.len();
    let mut numbers = vec![vec![0; len], vec![0; len], modulus.to_vec()];
    numbers[1][len - 1] = 1;
    numbers[2][len - 1] -= 1;
    while numbers.len() < LANES {
        let mut number = random(len);
        number[0] &= 0x7f;
        numbers.push(number);
    }
    numbers
}

fn both() -> bool {
    let there = Kind::Doubles.is_there() && Kind::Integers.is_there();
    if !there {
        std::io::stderr().write_all(b"skipped: this CPU has no IFMA\n").unwrap();
    }
    there
}

#[test]
fn limbs_are_read_as_they_were_written() {
    for kind in [Kind::Doubles, Kind::Integers] {
        for limb in [0, 1, 2, (1 << 51) - 1, 1 << 51, (1 << 52) - 1] {
            assert_eq!(kind.limb(kind.operand(limb)), limb, "{kind:?}");
        }
    }
}

#[test]
fn doubles_and_integers_raise_to_the_same_secret_powers() {
    if !both() {
        return;
    }
    for len in [64, 127, 128, 129, 192, 256] {
        for is_full in [false, true] {
            let modulus = modulus(len, is_full);
            let numbers = numbers(&modulus);
            let numbers: Vec<&[u8]> = numbers.iter().map(Vec::as_slice).collect();
            for exponent in [vec![0; len], vec![1], vec![0x7f; len], random(len - 1), random(len - 1)] {
                let raised = [Kind::Doubles, Kind::Integers].map(|kind| {
                    let mut out = vec![0; LANES * len];
                    assert!(RsaPrime::with_kind(kind, &modulus).unwrap().raise(&numbers, &exponent, &mut out));
                    out
                });
                assert!(raised[0] == raised[1], "{len} bytes, full: {is_full}");
                // Zero stays zero, except for the power zero; one stays one.
                let (zero, one) = (&raised[1][..len], &raised[1][len..2 * len]);
                let is_zeroth = exponent.iter().all(|byte| *byte == 0);
                assert!(zero[..len - 1].iter().all(|byte| *byte == 0) && zero[len - 1] == u8::from(is_zeroth));
                assert!(one[..len - 1].iter().all(|byte| *byte == 0) && one[len - 1] == 1);
            }
        }
    }
}

#[test]
fn doubles_and_integers_raise_to_the_same_public_powers() {
    if !both() {
        return;
    }
    for len in [128, 255, 256, 257, 384, 512] {
        for (is_full, exponent) in [(false, 3), (true, 3), (false, 65_537), (true, 65_537), (false, u64::MAX)] {
            let modulus = modulus(len, is_full);
            let numbers = numbers(&modulus);
            let numbers: Vec<&[u8]> = numbers.iter().map(Vec::as_slice).collect();
            let raised = [Kind::Doubles, Kind::Integers].map(|kind| {
                let mut out = vec![0; LANES * len];
                RsaPublic::with_kind(kind, &modulus, exponent).unwrap().raise(&numbers, &mut out);
                out
            });
            assert!(raised[0] == raised[1], "{len} bytes, full: {is_full}, to {exponent}");
            // The highest is minus one, and stays so for an odd power.
            assert_eq!(raised[1][2 * len..3 * len], *numbers[2]);
        }
    }
}

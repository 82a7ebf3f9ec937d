//! ECDSA signatures over P-256 under one key, eight at a time.
//!
//! A nonce is the SHA-512 of the private key, 32 random bytes and the message's digest, modulo the
//! order. So two messages never share a nonce even if the randomness is bad, and a nonce stays
//! secret even if the randomness is known.
//!
//! No branch and no address depends on the private key or a nonce. Their copies in memory, and
//! those of the resulting points, are wiped.

use zeroize::{Zeroize, Zeroizing, zeroize_flat_type};

use super::field_p256::{left, product, square};
use super::number::{U256, chosen, subtracted};
use super::p256::{CHUNK, Multiples, ORDER, Point, Sum, base, inverses, of_big_endian, to_big_endian};
use super::table::{Digits, LANES, loaded, stored};
use crate::lanes::sha512;

/// A private key for the lanes.
pub struct P256SignLanes {
    secret: Zeroizing<U256>,
    /// The same in Montgomery form.
    entered: Zeroizing<U256>,
}

impl P256SignLanes {
    /// Takes a private key in range, big-endian. `None` if the CPU lacks the instructions.
    pub fn new(secret: &[u8; 32]) -> Option<P256SignLanes> {
        super::detected().then_some(())?;
        crate::lanes::entries::enter();
        let secret = Zeroizing::new(of_big_endian(secret));
        let entered = Zeroizing::new(ORDER.entered(&secret));
        Some(P256SignLanes { secret, entered })
    }

    /// Signs digests: r and s, big-endian. `random` has 32 fresh random bytes for each digest. A
    /// signature of zeros is invalid (probability 2^-256); the caller must then sign in another
    /// way.
    pub fn sign(&self, digests: &[[u8; 32]], random: &[[u8; 32]], signatures: &mut [[u8; 64]]) {
        let chunks = digests.chunks(CHUNK).zip(random.chunks(CHUNK)).zip(signatures.chunks_mut(CHUNK));
        for ((digests, random), signatures) in chunks {
            // SAFETY: a value of this type exists only if the CPU has the instructions.
            unsafe { self.sign_chunk(digests, random, signatures) };
        }
    }

    /// # Safety
    /// The CPU must have AVX-512 F and BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn sign_chunk(&self, digests: &[[u8; 32]], random: &[[u8; 32]], signatures: &mut [[u8; 64]]) {
        let hashes: Vec<U256> = digests.iter().map(|digest| ORDER.below(of_big_endian(digest), 0)).collect();
        let mut nonces = Zeroizing::new(Vec::with_capacity(CHUNK));
        for (hashes, random) in hashes.chunks(LANES).zip(random.chunks(LANES)) {
            // Lanes without a message repeat the last one.
            let hashes = std::array::from_fn(|lane| hashes[lane.min(hashes.len() - 1)]);
            let random = std::array::from_fn(|lane| of_big_endian(&random[lane.min(random.len() - 1)]));
            nonces.extend_from_slice(&*Zeroizing::new(self.nonces(&hashes, random)));
        }
        let mut points = multiplied(nonces.as_chunks().0);
        let mut over = inverses(&points);
        let xs = points.iter().zip(&over).flat_map(|(point, over)| left(&product(&point.x, &square(over))));
        let xs: Vec<U256> = xs.collect();
        for (point, over) in points.iter_mut().zip(&mut over) {
            // SAFETY: both are contents of registers, for which zeros are valid.
            unsafe {
                zeroize_flat_type(point);
                zeroize_flat_type(over);
            }
        }
        nonces.truncate(digests.len());
        nonces.iter_mut().for_each(|nonce| *nonce = ORDER.entered(nonce));
        ORDER.invert(&mut nonces);
        for (place, signature) in signatures.iter_mut().enumerate() {
            let r = ORDER.below(xs[place], 0);
            let sum = ORDER.sum(&ORDER.product(&r, &self.entered), &hashes[place]);
            let s = ORDER.product(&sum, &nonces[place]);
            let is_there = r != [0; 4] && s != [0; 4];
            let (first, second) = signature.split_at_mut(32);
            first.copy_from_slice(&if is_there { to_big_endian(&r) } else { [0; 32] });
            second.copy_from_slice(&if is_there { to_big_endian(&s) } else { [0; 32] });
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn nonces(&self, hashes: &[U256; LANES], random: [U256; LANES]) -> [U256; LANES] {
        let mut words = [[0_i64; LANES]; 16];
        for place in 0..4 {
            words[place] = [self.secret[place] as i64; LANES];
            words[4 + place] = random.map(|number| number[place] as i64);
            words[8 + place] = hashes.map(|number| number[place] as i64);
        }
        // After three times 32 bytes comes the padding's one bit.
        words[12] = [i64::MIN; LANES];
        words[15] = [3 * 32 * 8; LANES];
        let mut digests = stored(&sha512::hash_block(loaded(&words)));
        let half = |lane: usize, first: usize| std::array::from_fn(|place| digests[first + place][lane] as u64);
        let nonces = std::array::from_fn(|lane| ORDER.of_wide(&half(lane, 0), &half(lane, 4)));
        words.zeroize();
        digests.zeroize();
        nonces
    }
}

/// Multiples of the base point by the nonces or their negatives, which have the same x.
///
/// Equal or opposite points are never added. A factor is below half of the order. The sum before
/// window i is between -2^(8 i) and 2^(8 i), the next summand is at least that large, and both
/// together stay below the order.
#[target_feature(enable = "avx512f")]
fn multiplied(nonces: &[[U256; LANES]]) -> Vec<Point> {
    let digits: Vec<_> = nonces.iter().map(|nonces| Zeroizing::new(halved_digits(nonces))).collect();
    let (mut sums, base) = (vec![Sum::new(); nonces.len()], base());
    // Window by window, so that each table entry is read once for all nonces.
    for window in 0..Multiples::<4>::WINDOWS {
        for (sum, digits) in sums.iter_mut().zip(&digits) {
            sum.add_multiple(base, window, &digits[window]);
        }
    }
    let points = sums.iter().map(|sum| sum.point).collect();
    for sum in &mut sums {
        // SAFETY: the sum is contents of registers and a mask, for which zeros are valid.
        unsafe { zeroize_flat_type(sum) };
    }
    points
}

fn halved_digits(nonces: &[U256; LANES]) -> Digits {
    let halved = Zeroizing::new(nonces.map(|nonce| {
        let other = ORDER.negated(&nonce);
        // All ones if the nonce is the smaller one.
        chosen(&nonce, &other, subtracted(&nonce, &other).1.wrapping_neg())
    }));
    Multiples::<4>::digits(&halved, [false; LANES])
}

/// The x coordinates that the lanes compute for nonces, for tests.
///
/// # Safety
/// The CPU must have AVX-512 F.
#[cfg(test)]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn xs_of(nonces: &[U256; LANES]) -> [U256; LANES] {
    let points = multiplied(&[*nonces]);
    left(&product(&points[0].x, &square(&inverses(&points)[0])))
}

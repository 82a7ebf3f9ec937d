//! Eight numbers, limb by limb.

use zeroize::{Zeroize, Zeroizing};

use super::arithmetic::Kind;
use super::limbs::{self, LIMB_BITS};

pub(super) const LANES: usize = 8;
/// Maximal number of limbs.
pub(super) const LIMBS_MAX: usize = 80;

/// One limb of eight numbers, or a sum of such limbs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Vector(pub(super) [u64; LANES]);

impl Zeroize for Vector {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

/// Eight numbers, each limb as an operand of the kernel. Wiped when dropped.
pub(super) struct Numbers(Vec<Vector>);

impl Drop for Numbers {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::ops::Deref for Numbers {
    type Target = [Vector];

    fn deref(&self) -> &[Vector] {
        &self.0
    }
}

impl std::ops::DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [Vector] {
        &mut self.0
    }
}

impl Numbers {
    /// Zeros.
    pub(super) fn zero(limbs: usize) -> Numbers {
        // Zero has the same bits as a limb and as an operand of any kind.
        Numbers(vec![Vector([0; LANES]); limbs])
    }

    /// A copy, padded with zeros above.
    pub(super) fn extended(from: &[Vector], limbs: usize) -> Numbers {
        let mut numbers = Numbers::zero(limbs);
        numbers[..from.len()].copy_from_slice(from);
        numbers
    }

    /// The same number in each lane.
    pub(super) fn alike(kind: Kind, limbs: &[u64]) -> Numbers {
        Numbers(limbs.iter().map(|limb| Vector([kind.operand(*limb); LANES])).collect())
    }

    /// Reads big-endian bytes of equal length, which must fit, one number per lane. Other lanes are
    /// zero.
    pub(super) fn from_bytes(kind: Kind, bytes: &[&[u8]], limbs: usize) -> Numbers {
        let mut numbers = Numbers::zero(limbs);
        let mut lowest_first = Zeroizing::new([0; LIMBS_MAX * LIMB_BITS / 8 + 8]);
        let mut single = Zeroizing::new([0; LIMBS_MAX]);
        for (lane, bytes) in bytes.iter().enumerate().take(LANES) {
            lowest_first.iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from);
            lowest_first[bytes.len()..].fill(0);
            limbs::read(&lowest_first[..], &mut single[..limbs]);
            numbers.iter_mut().zip(single.iter()).for_each(|(vector, limb)| vector.0[lane] = kind.operand(*limb));
        }
        numbers
    }

    /// Writes the number of a lane, which must be less than `3 n`, modulo `n`, as bytes.
    pub(super) fn write(&self, kind: Kind, lane: usize, n: &[u64], out: &mut [u8]) {
        let mut single = Zeroizing::new([0; LIMBS_MAX]);
        let single = &mut single[..self.len()];
        single.iter_mut().zip(self.iter()).for_each(|(to, vector)| *to = kind.limb(vector.0[lane]));
        limbs::subtract_once(single, n);
        limbs::subtract_once(single, n);
        limbs::to_bytes(single, out);
    }
}

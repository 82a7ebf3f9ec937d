//! A hash that is the same in every run, on every machine and with every version of the standard
//! library.

use std::hash::{Hash, Hasher};

/// A hash that is the same in every run, on every machine: FNV-1a over the value's bytes, then
/// mixed so that every bit counts. It does not resist keys that are chosen to collide.
pub fn stable_hash<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = StableHasher(0xcbf2_9ce4_8422_2325);
    value.hash(&mut hasher);
    hasher.finish()
}

struct StableHasher(u64);

/// Numbers are written in little-endian order, and `usize` as eight bytes, on every machine.
macro_rules! write_little_endian {
    ($($name:ident: $number:ty as $wide:ty),* $(,)?) => {$(
        fn $name(&mut self, number: $number) {
            self.write(&(number as $wide).to_le_bytes());
        }
    )*};
}

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    write_little_endian! {
        write_u16: u16 as u16, write_u32: u32 as u32, write_u64: u64 as u64, write_u128: u128 as u128,
        write_usize: usize as u64, write_i16: i16 as i16, write_i32: i32 as i32, write_i64: i64 as i64,
        write_i128: i128 as i128, write_isize: isize as i64,
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// Spreads every input bit over the whole word (the finalizer of SplitMix64).
pub(super) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

//! Mutations of files: bytes changed, cut, repeated and joined. Each test uses a part of this
//! module.
#![allow(dead_code)]

/// Pseudo-random numbers, the same in each run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

pub fn mutated(seed: &[u8], other: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + numbers.below(4) {
        let at = numbers.below(bytes.len());
        match numbers.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << numbers.below(8),
            1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, numbers.next() as u8),
            4 if !bytes.is_empty() => drop(bytes.remove(at)),
            5 => drop(bytes.splice(at..at, huge(numbers))),
            _ => {
                let from = numbers.below(other.len());
                let piece = &other[from..(from + numbers.below(32)).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
    bytes
}

/// A number as a varint.
pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A large number, for a length, a dimension or an index.
pub fn huge(numbers: &mut Numbers) -> Vec<u8> {
    varint(u64::MAX >> numbers.below(40))
}

/// Number of mutations of each file, from `PANOPLY_FUZZ_MUTATIONS`.
pub fn mutations() -> usize {
    std::env::var("PANOPLY_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(1500)
}

//! Cyclic redundancy checks, by carry-less products where the CPU has them ([`folding`]). Several
//! threads check long messages in pieces: when a piece is followed by more bytes, its check is
//! multiplied by a power of x.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod folding;
#[cfg(target_arch = "x86_64")]
mod x86;

use folding::Folding;
use panoply_core::Threads;
use panoply_core::op::signal::Checksum;

use crate::threads::for_each_piece;

/// The least size of a piece of a long message, in bytes.
const PIECE_BYTES_MIN: usize = 256 << 10;

/// The checks of messages that are fewer than the threads. Long messages are split into pieces, so
/// that each thread gets about the same number of bytes.
pub fn crc_of_few(kind: Checksum, messages: &[&[u8]], threads: &dyn Threads) -> Vec<u64> {
    let total: usize = messages.iter().map(|message| message.len()).sum();
    let each = total.div_ceil(threads.count().max(1)).max(PIECE_BYTES_MIN);
    let mut pieces: Vec<&[u8]> = Vec::new();
    for message in messages {
        // An empty message has one piece as well.
        let (first, rest) = message.split_at(message.len().min(each));
        pieces.push(first);
        pieces.extend(rest.chunks(each));
    }
    let mut checks = vec![0; pieces.len()];
    for_each_piece(threads, &mut checks, 1, &|at, check| check[0] = crc(kind, pieces[at]));
    let (shape, mut of_each) = (Shape::of(kind), None);
    let mut left = pieces.iter().zip(checks);
    let mut check_of = |message: &&[u8]| {
        let own = left.by_ref().take(message.len().div_ceil(each).max(1));
        let joined = own.reduce(|(_, all), (piece, check)| {
            let power = match piece.len() == each {
                true => *of_each.get_or_insert_with(|| shape.power_of(each)),
                false => shape.power_of(piece.len()),
            };
            (piece, shape.moved(all, power) ^ check)
        });
        joined.map_or(0, |(_, check)| check)
    };
    messages.iter().map(&mut check_of).collect()
}

/// The check of a message.
pub fn crc(kind: Checksum, message: &[u8]) -> u64 {
    let folding = match kind {
        Checksum::Crc8 => &FOLD_8,
        Checksum::Crc16 => &FOLD_16,
        Checksum::Crc16Ccitt => &FOLD_16_CCITT,
        Checksum::Crc32 => &FOLD_32,
        Checksum::Crc32c => &FOLD_32C,
        Checksum::Crc64 => &FOLD_64,
    };
    #[cfg(target_arch = "x86_64")]
    let check = x86::check(folding, message);
    #[cfg(target_arch = "aarch64")]
    let check = aarch64::check(folding, message);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let check = None;
    check.unwrap_or_else(|| folding.by_bytes(message))
}

static FOLD_8: Folding = Folding::new(8, SHAPE_8.polynomial, 0, 0, true);
static FOLD_16: Folding = Folding::new(16, SHAPE_16.polynomial, 0, 0, false);
static FOLD_16_CCITT: Folding = Folding::new(16, SHAPE_16_CCITT.polynomial, 0xffff, 0, true);
static FOLD_32: Folding = Folding::new(32, SHAPE_32.polynomial, 0xffff_ffff, 0xffff_ffff, false);
static FOLD_32C: Folding = Folding::new(32, SHAPE_32C.polynomial, 0xffff_ffff, 0xffff_ffff, false);
static FOLD_64: Folding = Folding::new(64, SHAPE_64.polynomial, u64::MAX, u64::MAX, false);
#[cfg(test)]
static FOLDINGS: [&Folding; 6] = [&FOLD_8, &FOLD_16, &FOLD_16_CCITT, &FOLD_32, &FOLD_32C, &FOLD_64];

/// The parameters of a check. In polynomials the highest bit is the coefficient of the lowest
/// power.
struct Shape {
    bits: u32,
    polynomial: u64,
    /// The initial value, which is added to a check before it is moved over more bytes.
    begin: u64,
    /// Whether the check has its bits in the reverse order of the polynomials here.
    is_turned: bool,
    /// x to the powers 8, 16, 32 and so on.
    squares: [u64; usize::BITS as usize],
}

static SHAPE_8: Shape = Shape::new(8, 0xe0, 0, true);
static SHAPE_16: Shape = Shape::new(16, 0xa001, 0, false);
static SHAPE_16_CCITT: Shape = Shape::new(16, 0x8408, 0xffff, true);
// These start with all ones and invert the result. Both cancel out when checks are joined.
static SHAPE_32: Shape = Shape::new(32, 0xedb8_8320, 0, false);
static SHAPE_32C: Shape = Shape::new(32, 0x82f6_3b78, 0, false);
static SHAPE_64: Shape = Shape::new(64, 0x9a6c_9329_ac4b_c9b5, 0, false);

impl Shape {
    const fn new(bits: u32, polynomial: u64, begin: u64, is_turned: bool) -> Shape {
        let mut shape = Shape { bits, polynomial, begin, is_turned, squares: [0; usize::BITS as usize] };
        let (mut square, mut at) = (1 << (bits - 1), 0);
        while at < 8 {
            square = shape.times_x(square);
            at += 1;
        }
        at = 0;
        while at < shape.squares.len() {
            shape.squares[at] = square;
            square = shape.product(square, square);
            at += 1;
        }
        shape
    }

    fn of(kind: Checksum) -> &'static Shape {
        match kind {
            Checksum::Crc8 => &SHAPE_8,
            Checksum::Crc16 => &SHAPE_16,
            Checksum::Crc16Ccitt => &SHAPE_16_CCITT,
            Checksum::Crc32 => &SHAPE_32,
            Checksum::Crc32c => &SHAPE_32C,
            Checksum::Crc64 => &SHAPE_64,
        }
    }

    /// The contribution of `check` to the check of a longer message. `power` is x to eight times
    /// the number of bytes that follow.
    fn moved(&self, check: u64, power: u64) -> u64 {
        let turn = |value: u64| if self.is_turned { value.reverse_bits() >> (64 - self.bits) } else { value };
        turn(self.product(turn(check ^ self.begin), power))
    }

    /// x to eight times the number of bytes.
    fn power_of(&self, bytes: usize) -> u64 {
        let own = self.squares.iter().enumerate().filter(|(at, _)| bytes >> at & 1 == 1).map(|(_, square)| *square);
        own.reduce(|power, square| self.product(power, square)).unwrap_or(1 << (self.bits - 1))
    }

    const fn product(&self, a: u64, mut b: u64) -> u64 {
        let (mut sum, mut bit) = (0, self.bits);
        while bit > 0 {
            bit -= 1;
            sum ^= b & (a >> bit & 1).wrapping_neg();
            b = self.times_x(b);
        }
        sum
    }

    const fn times_x(&self, value: u64) -> u64 {
        value >> 1 ^ self.polynomial & (value & 1).wrapping_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_together_have_the_check_of_the_whole() {
        use crate::threads::tests::ScopedThreads;
        let lens = [0, 1, PIECE_BYTES_MIN, 2 * PIECE_BYTES_MIN - 1, 2 * PIECE_BYTES_MIN, 1 << 20, 777_777, 1_048_577];
        let bytes: Vec<u8> = (0..1_048_577_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for kind in Checksum::ALL {
            for len in lens {
                for threads in [1, 2, 3, 7] {
                    let messages = [&bytes[..len], &[], &bytes[len / 2..], &bytes[..len / 3]];
                    let got = crc_of_few(kind, &messages, &ScopedThreads(threads));
                    assert_eq!(got, messages.map(|message| crc(kind, message)), "{kind:?} {len} {threads}");
                    assert_eq!(crc_of_few(kind, &messages[..1], &ScopedThreads(threads)), got[..1]);
                }
            }
            // Every cut of a short message, including those with an empty part.
            let shape = Shape::of(kind);
            for cut in 0..=40 {
                let [first, second] = [&bytes[..cut], &bytes[cut..40]].map(|part| crc(kind, part));
                let joined = shape.moved(first, shape.power_of(40 - cut)) ^ second;
                assert_eq!(joined, crc(kind, &bytes[..40]), "{kind:?} {cut}");
            }
        }
    }

    /// The checks of `123456789`, which catalogues of CRCs list.
    #[test]
    fn the_catalogues_check_values() {
        let expected = [
            (Checksum::Crc8, 0xf4),
            (Checksum::Crc16, 0xbb3d),
            (Checksum::Crc16Ccitt, 0x29b1),
            (Checksum::Crc32, 0xcbf4_3926),
            (Checksum::Crc32c, 0xe306_9283),
            (Checksum::Crc64, 0xae8b_1486_0a79_9888),
        ];
        for (kind, check) in expected {
            assert_eq!(crc(kind, b"123456789"), check, "{kind:?}");
        }
    }
}

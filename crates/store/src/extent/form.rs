//! How a chunk is stored: plain, compressed, or compressed with its bytes in planes.
//!
//! In arrays of numbers, bytes that are nearly constant (signs and exponents) stand between bytes
//! that are nearly random, so hardly anything repeats. Planes put the first bytes of all numbers
//! first, then all second bytes and so on: the constant bytes are then adjacent and compress well,
//! and the random ones cost no search.

use crate::options::Compression;

/// Shorter chunks are not sampled.
const SAMPLED_BYTES_MIN: usize = 16 << 10;
/// Number and length of the pieces that are sampled from a chunk.
const PIECES: usize = 8;
const PIECE_BYTES: usize = 1 << 10;
/// Bytes with fewer bits of entropy than this repeat, as in words and records; planes would tear
/// the repetitions apart.
const BITS_MIN: f32 = 4.5;
/// The largest share of the entropy that planes may leave.
const LEFT_MAX: f32 = 0.96;
/// If more than one of this many positions has been seen before, repetitions gain more than planes.
const PLACES_PER_REPEAT: usize = 16;
const SEEN: usize = 4096;

/// How a chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is.
    Plain,
    /// Its planes, compressed.
    Packed(Compression, Width),
}

/// Bytes of a number, which is the number of planes; one if the bytes are not reordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    One,
    Two,
    Four,
    Eight,
}

impl Form {
    const PACKED: u32 = 1 << 31;
    const WIDTH_SHIFT: u32 = 29;
    /// Zero is Zstandard, as before other formats were known.
    const COMPRESSION_SHIFT: u32 = 27;

    /// The authenticated number of the form: 0 for a plain chunk, else an odd number.
    pub(crate) fn number(self) -> u8 {
        match self {
            Form::Plain => 0,
            Form::Packed(compression, width) => 1 | (width as u8) << 1 | (compression as u8) << 3,
        }
    }

    /// The format of compression; `None` for a plain chunk.
    pub(crate) fn compression(self) -> Option<Compression> {
        match self {
            Form::Plain => None,
            Form::Packed(compression, _) => Some(compression),
        }
    }

    /// Packs the form and the chunk's stored bytes into one word.
    pub(crate) fn word(self, stored: u32) -> u32 {
        match self {
            Form::Plain => stored,
            Form::Packed(compression, width) => {
                let form = (width as u32) << Form::WIDTH_SHIFT | (compression as u32) << Form::COMPRESSION_SHIFT;
                stored | Form::PACKED | form
            }
        }
    }

    /// Unpacks the form and the stored bytes from a word. `None` for an unknown form.
    pub(crate) fn of_word(word: u32) -> Option<(Form, u32)> {
        let stored = word & ((1 << Form::COMPRESSION_SHIFT) - 1);
        let compression = Compression::ALL.get((word >> Form::COMPRESSION_SHIFT & 3) as usize).copied()?;
        let width = [Width::One, Width::Two, Width::Four, Width::Eight][(word >> Form::WIDTH_SHIFT & 3) as usize];
        match (word & Form::PACKED != 0, compression, width) {
            (true, compression, width) => Some((Form::Packed(compression, width), stored)),
            (false, Compression::Zstd, Width::One) => Some((Form::Plain, stored)),
            (false, ..) => None,
        }
    }
}

impl Width {
    /// The width whose planes are likely to compress best.
    pub(crate) fn of(chunk: &[u8]) -> Width {
        if chunk.len() < SAMPLED_BYTES_MIN {
            return Width::One;
        }
        let mut counts = [[0_u32; 256]; 8];
        // Pieces begin at multiples of eight bytes, so numbers are aligned in them.
        let step = chunk.len() / PIECES / 8 * 8;
        for piece in 0..PIECES {
            for eight in chunk[piece * step..][..PIECE_BYTES].as_chunks::<8>().0 {
                counts.iter_mut().zip(eight).for_each(|(counts, byte)| counts[usize::from(*byte)] += 1);
            }
        }
        let mut bits = [0.0; 4];
        for (bits, width) in bits.iter_mut().zip([8, 4, 2, 1]) {
            *bits = counts[..width].iter().map(bits_of).sum();
            let (front, back) = counts.split_at_mut(4.min(width.max(2) / 2));
            let pairs = front.as_flattened_mut().iter_mut().zip(back.as_flattened());
            pairs.for_each(|(sum, other)| *sum += other);
        }
        let (one, widths) = (bits[3], [Width::Eight, Width::Four, Width::Two]);
        let sampled = (PIECES * PIECE_BYTES) as f32;
        // If two are about equally good, the one with fewer planes is taken.
        let cost = |place: &usize| bits[*place] * [1.02, 1.01, 1.0][*place];
        let best = (0..3).min_by(|a, b| cost(a).total_cmp(&cost(b)));
        match best.filter(|best| one > BITS_MIN * sampled && bits[*best] < LEFT_MAX * one && !repeats(chunk)) {
            Some(best) => widths[best],
            None => Width::One,
        }
    }

    /// Writes a chunk's planes one after the other, followed by the remainder that is shorter than
    /// a number.
    pub(crate) fn split(self, chunk: &[u8], planes: &mut [u8]) {
        match self {
            Width::One => planes.copy_from_slice(chunk),
            Width::Two => split_two(chunk, planes),
            Width::Four => split_four(chunk, planes),
            Width::Eight => split_eight(chunk, planes),
        }
    }

    /// Reassembles a chunk from its planes.
    pub(crate) fn join(self, planes: &[u8], chunk: &mut [u8]) {
        match self {
            Width::One => chunk.copy_from_slice(planes),
            Width::Two => join_two(planes, chunk),
            Width::Four => join_four(planes, chunk),
            Width::Eight => join_eight(planes, chunk),
        }
    }
}

/// Number of eight-byte numbers that are split into halves at a time.
const HALVED: usize = 64;

/// Splits `planes` into `WIDTH` planes and the remainder.
fn cut<const WIDTH: usize>(planes: &[u8]) -> ([&[u8]; WIDTH], &[u8]) {
    let len = planes.len() / WIDTH;
    (std::array::from_fn(|place| &planes[place * len..(place + 1) * len]), &planes[WIDTH * len..])
}

fn cut_mut<const WIDTH: usize>(planes: &mut [u8]) -> ([&mut [u8]; WIDTH], &mut [u8]) {
    let (len, mut rest) = (planes.len() / WIDTH, planes);
    let all = std::array::from_fn(|_| {
        let (plane, behind) = std::mem::take(&mut rest).split_at_mut(len);
        rest = behind;
        plane
    });
    (all, rest)
}

// Compilers vectorise each of the following loops.

fn split_two(chunk: &[u8], planes: &mut [u8]) {
    let ((numbers, rest), ([a, b], behind)) = (chunk.as_chunks::<2>(), cut_mut(planes));
    behind.copy_from_slice(rest);
    for ((number, a), b) in numbers.iter().zip(a).zip(b) {
        let number = u16::from_le_bytes(*number);
        (*a, *b) = (number as u8, (number >> 8) as u8);
    }
}

fn join_two(planes: &[u8], chunk: &mut [u8]) {
    let (([a, b], behind), (numbers, rest)) = (cut(planes), chunk.as_chunks_mut::<2>());
    rest.copy_from_slice(behind);
    for ((number, a), b) in numbers.iter_mut().zip(a).zip(b) {
        *number = (u16::from(*a) | u16::from(*b) << 8).to_le_bytes();
    }
}

fn split_four(chunk: &[u8], planes: &mut [u8]) {
    let ((numbers, rest), (planes, behind)) = (chunk.as_chunks::<4>(), cut_mut(planes));
    behind.copy_from_slice(rest);
    split_words(numbers.iter().map(|number| u32::from_le_bytes(*number)), planes);
}

#[inline(always)]
fn split_words(words: impl Iterator<Item = u32>, [a, b, c, d]: [&mut [u8]; 4]) {
    for ((((word, a), b), c), d) in words.zip(a).zip(b).zip(c).zip(d) {
        (*a, *b, *c, *d) = (word as u8, (word >> 8) as u8, (word >> 16) as u8, (word >> 24) as u8);
    }
}

fn join_four(planes: &[u8], chunk: &mut [u8]) {
    let ((planes, behind), (numbers, rest)) = (cut(planes), chunk.as_chunks_mut::<4>());
    rest.copy_from_slice(behind);
    join_words(planes, numbers.iter_mut(), |number, word| *number = word.to_le_bytes());
}

#[inline(always)]
fn join_words<T>([a, b, c, d]: [&[u8]; 4], words: impl Iterator<Item = T>, set: impl Fn(T, u32)) {
    for ((((word, a), b), c), d) in words.zip(a).zip(b).zip(c).zip(d) {
        set(word, u32::from(*a) | u32::from(*b) << 8 | u32::from(*c) << 16 | u32::from(*d) << 24);
    }
}

fn split_eight(chunk: &[u8], planes: &mut [u8]) {
    let ((numbers, rest), (mut planes, behind)) = (chunk.as_chunks::<8>(), cut_mut::<8>(planes));
    behind.copy_from_slice(rest);
    for (place, numbers) in numbers.chunks(HALVED).enumerate() {
        let mut halves = [[0; HALVED]; 2];
        let [low, high] = &mut halves;
        for ((number, low), high) in numbers.iter().zip(low).zip(high) {
            let number = u64::from_le_bytes(*number);
            (*low, *high) = (number as u32, (number >> 32) as u32);
        }
        let begin = place * HALVED;
        for (half, planes) in halves.iter().zip(planes.as_chunks_mut::<4>().0) {
            let parts = planes.each_mut().map(|plane| &mut plane[begin..begin + numbers.len()]);
            split_words(half[..numbers.len()].iter().copied(), parts);
        }
    }
}

fn join_eight(planes: &[u8], chunk: &mut [u8]) {
    let ((planes, behind), (numbers, rest)) = (cut::<8>(planes), chunk.as_chunks_mut::<8>());
    rest.copy_from_slice(behind);
    for (place, numbers) in numbers.chunks_mut(HALVED).enumerate() {
        let (mut halves, begin) = ([[0; HALVED]; 2], place * HALVED);
        for (half, planes) in halves.iter_mut().zip(planes.as_chunks::<4>().0) {
            let parts = planes.map(|plane| &plane[begin..begin + numbers.len()]);
            join_words(parts, half.iter_mut(), |half, word| *half = word);
        }
        for ((number, low), high) in numbers.iter_mut().zip(&halves[0]).zip(&halves[1]) {
            *number = (u64::from(*low) | u64::from(*high) << 32).to_le_bytes();
        }
    }
}

/// Estimated number of bits of bytes with these counts under an entropy code.
fn bits_of(counts: &[u32; 256]) -> f32 {
    let total: u32 = counts.iter().sum();
    let sum: f32 = counts.iter().map(|count| *count as f32 * log2(*count as f32)).sum();
    let kinds = counts.iter().filter(|count| **count > 0).count();
    // Correction for the sample: it contains fewer distinct bytes than the chunk, each too often.
    total as f32 * log2(total as f32) - sum + kinds.saturating_sub(1) as f32 * 0.72
}

/// Binary logarithm, precise to two decimal places.
fn log2(number: f32) -> f32 {
    let bits = number.max(1.0).to_bits();
    let fraction = f32::from_bits(bits & 0x007f_ffff | 0x3f80_0000);
    (bits >> 23) as f32 - 127.0 + (2.0 - fraction / 3.0) * fraction - 5.0 / 3.0
}

/// Whether groups of four bytes often recur in the middle of a chunk.
fn repeats(chunk: &[u8]) -> bool {
    let middle = &chunk[chunk.len() / 2..];
    let middle = &middle[..middle.len().min(SEEN)];
    let (mut seen, mut repeats) = ([0_u32; SEEN], 0);
    for four in middle.array_windows::<4>() {
        let word = u32::from_le_bytes(*four);
        let place = &mut seen[(word.wrapping_mul(0x9e37_79b1) >> 20) as usize % SEEN];
        repeats += usize::from(*place == word);
        *place = word;
    }
    repeats * PLACES_PER_REPEAT > middle.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [Width; 4] = [Width::One, Width::Two, Width::Four, Width::Eight];

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn planes_are_the_chunk_in_another_order() {
        for len in [0, 1, 3, 7, 8, 9, 63, 64, 65, 1001, 4096] {
            let chunk = noise(len);
            for width in WIDTHS {
                let (mut planes, mut again) = (vec![0; len], vec![0; len]);
                width.split(&chunk, &mut planes);
                width.join(&planes, &mut again);
                assert_eq!(again, chunk, "{len} {width:?}");
                let bytes = 1 << width as usize;
                let numbers = len / bytes;
                for place in 0..numbers * bytes {
                    assert_eq!(
                        planes[place % bytes * numbers + place / bytes],
                        chunk[place],
                        "{len} {width:?} {place}"
                    );
                }
            }
        }
    }

    #[test]
    fn words_say_the_form() {
        for stored in [16, 17, (1 << 24) + 16] {
            let packed = |compression| WIDTHS.map(|width| Form::Packed(compression, width));
            for form in [Form::Plain].into_iter().chain(Compression::ALL.into_iter().flat_map(packed)) {
                assert_eq!(Form::of_word(form.word(stored)), Some((form, stored)));
            }
        }
        // These words are unchanged from before planes and other formats existed.
        let frame = Form::Packed(Compression::Zstd, Width::One);
        assert_eq!((Form::Plain.word(20), frame.word(20)), (20, 20 | 1 << 31));
        assert_eq!((Form::Plain.number(), frame.number()), (0, 1));
        assert_eq!(Form::Packed(Compression::Lz4, Width::Four).number(), 1 | 2 << 1 | 2 << 3);
        for strange in [1 << 29, 2 << 29 | 20, 3 << 29 | 16, 1 << 27 | 20, 1 << 31 | 3 << 27 | 20] {
            assert_eq!(Form::of_word(strange), None);
        }
    }

    #[test]
    fn numbers_have_planes_and_nothing_else_has() {
        let len = 256 << 10;
        let random = noise(len);
        let with = |width: usize, high: &dyn Fn(usize) -> u8| -> Vec<u8> {
            let byte = |(place, byte): (usize, &u8)| if place % width == width - 1 { high(place) } else { *byte };
            random.iter().enumerate().map(byte).collect()
        };
        assert_eq!(Width::of(&random), Width::One);
        assert_eq!(Width::of(&with(4, &|_| 0x3f)), Width::Four);
        assert_eq!(Width::of(&with(8, &|_| 0x40)), Width::Eight);
        assert_eq!(Width::of(&with(2, &|place| 0x3e + (place as u8 >> 7))), Width::Two);
        let text: Vec<u8> =
            random.iter().flat_map(|byte| [b"one ", b"two ", b"ten\n"][usize::from(byte % 3)]).copied().collect();
        assert_eq!(Width::of(&text[..len]), Width::One);
        // The same numbers over and over: repetitions gain more than planes.
        let again: Vec<u8> = with(4, &|_| 0x3f)[..1000].iter().copied().cycle().take(len).collect();
        assert_eq!(Width::of(&again), Width::One);
        for short in [0, 1, 100, SAMPLED_BYTES_MIN - 1, SAMPLED_BYTES_MIN] {
            let width = Width::of(&with(4, &|_| 0x3f)[..short]);
            assert_eq!(width == Width::Four, short >= SAMPLED_BYTES_MIN, "{short}");
        }
    }
}

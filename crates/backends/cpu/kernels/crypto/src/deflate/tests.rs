//! Tests of the first level of DEFLATE, against libdeflate.

use libdeflater::Decompressor;
use panoply_core::op::crypto::Format;

use super::{Deflater, Inflater, bound};

/// A deterministic random generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Bytes of some kind: noise, few letters, repeated pieces from near and far, runs, numbers, or
    /// a mixture.
    fn message(&mut self, len: usize, kind: usize) -> Vec<u8> {
        let mut made: Vec<u8> = Vec::with_capacity(len + 300);
        while made.len() < len {
            let piece = 1 + self.below(300);
            match if kind == 6 { self.below(6) } else { kind } {
                0 => made.extend((0..piece).map(|_| self.next() as u8)),
                1 => made.extend((0..piece).map(|_| b"abc \n"[self.below(5)])),
                2 if !made.is_empty() => {
                    let back = 1 + self.below(made.len().min(70_000));
                    (0..piece).for_each(|_| made.push(made[made.len() - back]));
                }
                3 => made.extend(vec![self.next() as u8 & 3; piece]),
                4 => made.extend((made.len() as u32).to_le_bytes()),
                _ => made.push(self.next() as u8),
            }
        }
        made.truncate(len);
        made
    }
}

fn check(deflater: &mut Deflater, message: &[u8], format: Format) -> usize {
    let room = crate::pack::bound(format, message.len());
    // Bytes behind the bound must not be touched.
    let mut out = vec![0xaa; room + 16];
    let len = deflater.compress(format, message, &mut out[..room]).unwrap();
    assert!(out[room..].iter().all(|byte| *byte == 0xaa));
    let mut back = vec![0x55; message.len() + 1];
    let mut library = Decompressor::new();
    let made = match format {
        Format::Zlib => library.zlib_decompress(&out[..len], &mut back).unwrap(),
        Format::Gzip => library.gzip_decompress(&out[..len], &mut back).unwrap(),
        _ => library.deflate_decompress(&out[..len], &mut back).unwrap(),
    };
    assert!(back[..made] == *message, "{} bytes", message.len());
    let made = Inflater::new().unwrap().decompress(format, &out[..len], &mut back).unwrap();
    assert!(back[..made] == *message);
    len
}

#[test]
fn the_fastest_level_is_undone_whatever_the_message() {
    let (mut deflater, mut random) = (Deflater::new(1).unwrap(), Random(88_172_645_463_325_252));
    let formats = [Format::Deflate, Format::Zlib, Format::Gzip];
    let edges =
        [4096, 16_383, 16_384, 32_767, 32_768, 65_535, 65_536, 65_537, 98_304, 131_071, 131_072, 200_000, 1 << 20];
    let lens = (0..600).chain(edges).chain((0..200).map(|_| 0)).enumerate();
    for (round, len) in lens {
        let len = if round > 613 { random.below(150_000) } else { len };
        let message = random.message(len, round % 7);
        check(&mut deflater, &message, formats[round % 3]);
        if edges.contains(&len) {
            for (kind, format) in (0..7).zip(formats.into_iter().cycle()) {
                check(&mut deflater, &random.message(len, kind), format);
            }
        }
    }
}

#[test]
fn matches_are_found_from_the_nearest_to_the_farthest() {
    let (mut deflater, mut random) = (Deflater::new(1).unwrap(), Random(7));
    for distance in [1_usize, 2, 3, 4, 5, 31, 32, 33, 255, 256, 257, 4096, 32_767, 32_768] {
        let mut message = random.message(distance, 0);
        (0..80_000).for_each(|at| message.push(message[at]));
        let len = check(&mut deflater, &message, Format::Deflate);
        assert!(len < distance + 2000, "{distance}: {len}");
    }
    // A repetition at a distance of one byte too many.
    let mut message = random.message(32_769, 0);
    (0..100).for_each(|at| message.push(message[at]));
    check(&mut deflater, &message, Format::Deflate);
}

#[test]
fn what_does_not_become_smaller_is_stored() {
    let (mut deflater, mut random) = (Deflater::new(1).unwrap(), Random(3));
    for len in [1, 5, 100, 5000, 65_535, 65_536, 300_000] {
        let made = check(&mut deflater, &random.message(len, 0), Format::Deflate);
        assert!(made <= len + 10 * len.div_ceil(65_536), "{len}: {made}");
    }
    // Noise behind text: the stored blocks begin inside a byte.
    for len in 0..40 {
        let mut message = random.message(65_536 + len, 1);
        message.extend(random.message(140_000, 0));
        check(&mut deflater, &message, Format::Deflate);
    }
    assert_eq!(check(&mut deflater, &[], Format::Deflate), 2);
    assert!(check(&mut deflater, &[7; 1 << 20], Format::Deflate) < 8 << 10);
}

#[test]
fn less_room_than_may_be_needed_is_enough_where_it_is() {
    let mut deflater = Deflater::new(1).unwrap();
    let message = b"the same again and again, ".repeat(1000);
    let mut out = vec![0; 1000];
    let len = deflater.compress(Format::Zlib, &message, &mut out).unwrap();
    let mut back = vec![0; message.len()];
    assert_eq!(Decompressor::new().zlib_decompress(&out[..len], &mut back).unwrap(), message.len());
    assert_eq!(back, message);
    assert!(deflater.compress(Format::Zlib, &message, &mut out[..8]).is_err());
    assert!(out.len() < bound(message.len()));
}

/// A message always becomes the same bytes, regardless of earlier messages.
#[test]
fn nothing_of_one_message_is_left_for_the_next() {
    let (mut deflater, mut random) = (Deflater::new(1).unwrap(), Random(11));
    let message = random.message(40_000, 6);
    let mut pack = |message: &[u8]| {
        let mut out = vec![0; bound(message.len())];
        let len = deflater.compress(Format::Deflate, message, &mut out).unwrap();
        out.truncate(len);
        out
    };
    let first = pack(&message);
    for len in [10, 1000, 70_000, 300_000] {
        pack(&random.message(len, 2));
        assert!(pack(&message) == first, "{len}");
    }
}

//! RGB pictures that are written as PNG files, compressed and checksummed by Panoply's own ops.

use anyhow::Result;
use panoply::Bytes;
use panoply::crypto::{Compress, Format};
use panoply::prelude::*;
use panoply::signal::{Checksum, Crc};

/// The pixels of a picture, row by row.
pub struct Picture {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Makes a picture of a single colour.
    pub fn new(width: usize, height: usize, colour: [u8; 3]) -> Picture {
        Picture { width: width.max(1), pixels: vec![colour; width.max(1) * height.max(1)] }
    }

    /// Returns the width and the height in pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.pixels.len() / self.width)
    }

    /// Sets a pixel. Pixels outside the picture are ignored.
    pub fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        if x < self.width
            && let Some(pixel) = self.pixels.get_mut(y * self.width + x)
        {
            *pixel = colour;
        }
    }

    /// Encodes the picture as a PNG file.
    pub fn png(&self, runtime: &Runtime) -> Result<Vec<u8>> {
        let (width, height) = self.size();
        let mut rows = Vec::with_capacity((3 * width + 1) * height);
        for row in self.pixels.chunks(width) {
            rows.push(0); // No filter.
            rows.extend(row.iter().flatten());
        }
        let packed = runtime.run(Compress::new(Format::Zlib, Bytes::from_vec(rows))).wait()?;
        let packed = packed.into_one()?.as_slice()?.to_vec();
        let size = |size: usize| u32::try_from(size).map(u32::to_be_bytes);
        let header = [&size(width)?[..], &size(height)?, &[8, 2, 0, 0, 0]].concat();
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (name, data) in [(b"IHDR", header), (b"IDAT", packed), (b"IEND", Vec::new())] {
            file.extend(size(data.len())?);
            let body = [&name[..], &data].concat();
            let check = runtime.run(Crc::new(Checksum::Crc32, body.clone())).wait()?;
            file.extend(body);
            file.extend((check.first().copied().unwrap_or(0) as u32).to_be_bytes());
        }
        Ok(file)
    }
}

/// Maps a value from 0 to 1 to a colour: from black over violet and orange to white, with rising
/// brightness. NaN is black.
pub fn colour(share: f32) -> [u8; 3] {
    const STEPS: [[f32; 3]; 6] = [
        [4.0, 4.0, 20.0],
        [70.0, 15.0, 110.0],
        [155.0, 40.0, 100.0],
        [230.0, 95.0, 50.0],
        [250.0, 180.0, 40.0],
        [252.0, 253.0, 220.0],
    ];
    let place = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) } * 4.999;
    let (low, part) = (place as usize, place.fract());
    std::array::from_fn(|at| (STEPS[low][at] * (1.0 - part) + STEPS[low + 1][at] * part) as u8)
}

/// Encodes bytes as Base64.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let word = part.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for at in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= part.len() { letter.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    #[test]
    fn bytes_as_text() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn pixels_outside_are_left_out_and_colours_grow_brighter() {
        let mut picture = Picture::new(2, 2, [0; 3]);
        picture.set(1, 1, [9; 3]);
        picture.set(2, 0, [8; 3]);
        picture.set(0, 2, [8; 3]);
        assert_eq!(picture.pixels, [[0; 3], [0; 3], [0; 3], [9; 3]]);
        let bright = |share: f32| colour(share).iter().map(|part| u32::from(*part)).sum::<u32>();
        assert!(bright(0.0) < bright(0.3) && bright(0.3) < bright(0.8) && bright(0.8) < bright(1.0));
        assert_eq!((colour(f32::NAN), colour(-5.0), colour(7.0)), (colour(0.0), colour(0.0), colour(1.0)));
    }
}

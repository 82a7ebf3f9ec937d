//! RGB pictures that are written as PNG files, compressed and checksummed by Panoply's own ops.

use anyhow::Result;
use panoply::Bytes;
use panoply::crypto::{Compress, Format};
use panoply::prelude::*;
use panoply::signal::{Checksum, Crc};

use super::chart::Axis;
use super::letters;

/// The room around a picture for its axes, in pixels, and the length of a mark.
const FRAME_LEFT: usize = 76;
const FRAME_RIGHT: usize = 36;
const FRAME_TOP: usize = 36;
const FRAME_BOTTOM: usize = 56;
const MARK: usize = 5;
/// The colours of the ground and of the axes.
const GROUND: [u8; 3] = [16, 18, 24];
const INK: [u8; 3] = [220, 225, 234];

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

    /// The colour of a pixel; black outside the picture.
    fn get(&self, x: usize, y: usize) -> [u8; 3] {
        let pixel = if x < self.width { self.pixels.get(y * self.width + x) } else { None };
        pixel.copied().unwrap_or_default()
    }

    /// Repeats pixels until the picture has at least this size.
    pub fn at_least(&self, width_min: usize, height_min: usize) -> Picture {
        let (width, height) = self.size();
        let (across, down) = (width_min.div_ceil(width).max(1), height_min.div_ceil(height).max(1));
        let mut larger = Picture::new(width * across, height * down, [0; 3]);
        for y in 0..height * down {
            (0..width * across).for_each(|x| larger.set(x, y, self.get(x / across, y / down)));
        }
        larger
    }

    /// Draws axes around the picture. Values of `y` grow upwards, or downwards if `rises` is false.
    pub fn framed(&self, x: &Axis, y: &Axis, rises: bool) -> Picture {
        let (width, height) = self.size();
        let mut whole = Picture::new(FRAME_LEFT + width + FRAME_RIGHT, FRAME_TOP + height + FRAME_BOTTOM, GROUND);
        for row in 0..height {
            (0..width).for_each(|column| whole.set(FRAME_LEFT + column, FRAME_TOP + row, self.get(column, row)));
        }
        let last = |len: usize, share: f64| (share * len.saturating_sub(1) as f64).round() as usize;
        for (value, text) in &x.marks {
            let at = FRAME_LEFT + last(width, x.share(*value));
            (1..=MARK).for_each(|down| whole.set(at, FRAME_TOP + height + down, INK));
            let start = at.saturating_sub(letters::width(text) / 2);
            whole.write(text, start, FRAME_TOP + height + MARK + 4);
        }
        for (value, text) in &y.marks {
            let share = if rises { 1.0 - y.share(*value) } else { y.share(*value) };
            let at = FRAME_TOP + last(height, share);
            (1..=MARK).for_each(|left| whole.set(FRAME_LEFT - 1 - left, at, INK));
            let start = (FRAME_LEFT - MARK - 4).saturating_sub(letters::width(text));
            whole.write(text, start, at.saturating_sub(letters::HEIGHT / 2));
        }
        let middle = FRAME_LEFT + width / 2;
        let below = FRAME_TOP + height + FRAME_BOTTOM - letters::HEIGHT - 6;
        whole.write(&x.name, middle.saturating_sub(letters::width(&x.name) / 2), below);
        // The name of the vertical axis stands above it, because its letters cannot be rotated.
        whole.write(&y.name, 8, 6);
        whole
    }

    /// Writes a text whose upper left corner is at this pixel.
    fn write(&mut self, text: &str, x: usize, y: usize) {
        for (column, row) in letters::dots(text) {
            self.set(x + column, y + row, INK);
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

    /// Regression: the picture of a short recording was 512 × 12 pixels, without axes.
    #[test]
    fn a_small_picture_grows_and_gets_axes() {
        let mut small = Picture::new(512, 12, [0; 3]);
        small.set(511, 11, [9; 3]);
        let large = small.at_least(640, 320);
        assert_eq!((large.size(), large.get(1023, 323), large.get(1021, 323)), ((1024, 324), [9; 3], [0; 3]));
        let (x, y) = (Axis::frequency(-96e3, 96e3), Axis::time(0.06));
        let framed = large.framed(&x, &y, false);
        assert_eq!(framed.size(), (1024 + FRAME_LEFT + FRAME_RIGHT, 324 + FRAME_TOP + FRAME_BOTTOM));
        let zero = FRAME_LEFT + 512;
        assert!((zero - 1..=zero).any(|at| framed.get(at, FRAME_TOP + 324 + 1) == INK), "a mark at 0 kHz");
        assert_eq!(framed.get(FRAME_LEFT - 2, FRAME_TOP), INK, "a mark at 0 ms");
        assert_eq!(framed.get(FRAME_LEFT + 1023, FRAME_TOP + 323), [9; 3]);
    }

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

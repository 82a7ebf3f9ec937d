//! Pictures as inputs of models: decoded within bounds, resized, and converted to numbers.

mod file;
mod resize;

use panoply_core::{DType, Tensor, f16};
use resize::resized;

use crate::error::{Error, Result};

/// The longest side of a picture that is decoded.
pub const SIDE_MAX: u32 = 1 << 14;
/// The most pixels of a picture that is decoded. A small file may claim any size.
pub const PIXELS_MAX: u64 = 1 << 26;
/// The side of a picture, in pixels, if a model leaves the size open.
const SIDE_DEFAULT: usize = 224;

/// A picture of 8-bit RGB pixels.
#[derive(Clone)]
pub struct Picture {
    width: u32,
    height: u32,
    /// Red, green and blue of each pixel, row by row.
    bytes: Vec<u8>,
}

/// The conversion from bytes to a model's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalisation {
    /// 0 to 1.
    Unit,
    /// 0 to 255.
    Bytes,
    /// -1 to 1.
    Signed,
    /// 0 to 1, minus a mean and divided by a standard deviation, for red, green and blue.
    Standard {
        /// The mean.
        mean: [f32; 3],
        /// The standard deviation.
        deviation: [f32; 3],
    },
}

impl Normalisation {
    /// The mean and standard deviation of ImageNet. Most classifiers were trained with them.
    pub const IMAGENET: Normalisation =
        Normalisation::Standard { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };

    /// The value subtracted from the bytes of each channel, and the divisor applied next.
    pub fn steps(self) -> ([f32; 3], [f32; 3]) {
        match self {
            Normalisation::Unit => ([0.0; 3], [255.0; 3]),
            Normalisation::Bytes => ([0.0; 3], [1.0; 3]),
            Normalisation::Signed => ([127.5; 3], [127.5; 3]),
            Normalisation::Standard { mean, deviation } => (mean.map(|x| x * 255.0), deviation.map(|x| x * 255.0)),
        }
    }

    fn of(self, byte: u8, channel: usize) -> f32 {
        let value = f32::from(byte);
        match self {
            Normalisation::Unit => value / 255.0,
            Normalisation::Bytes => value,
            Normalisation::Signed => value / 127.5 - 1.0,
            Normalisation::Standard { mean, deviation } => (value / 255.0 - mean[channel]) / deviation[channel],
        }
    }
}

/// The method that brings a picture to a model's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The short side is scaled to the size and the centre is cut out, for classifiers.
    Crop,
    /// The aspect ratio is kept and grey bars fill the rest, for detectors.
    Letterbox,
    /// Stretched without regard to its aspect ratio.
    Stretch,
}

/// The picture that a model expects: its size and layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The height in pixels.
    pub height: usize,
    /// The width in pixels.
    pub width: usize,
    /// Three for RGB, or one for grey.
    pub channels: usize,
    /// Whether each channel is a plane of its own (channels first).
    pub planes: bool,
    /// The element type: `F32`, `F16` or `U8`.
    pub dtype: DType,
}

/// Maps a model's pixel coordinates back to the picture's: `(x - start) / scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Model pixels per picture pixel, horizontally and vertically.
    pub scale: [f32; 2],
    /// The picture's left and top edge, in model pixels.
    pub start: [f32; 2],
}

impl Frame {
    /// The frame that a model's input of these dimensions asks for. A dimension is `None` if the
    /// model leaves its size open; it becomes `open` pixels. `None` if the input is not a picture.
    pub fn of(dims: &[Option<usize>], dtype: DType, open: Option<usize>) -> Option<Frame> {
        let [_, a, b, c] = *dims else { return None };
        if !matches!(dtype, DType::F32 | DType::F16 | DType::U8) {
            return None;
        }
        let size = |dim: Option<usize>| dim.or(open).unwrap_or(SIDE_DEFAULT);
        let is_colour = |dim: Option<usize>| matches!(dim, Some(1 | 3));
        match (is_colour(a), is_colour(c)) {
            (true, _) => Some(Frame { height: size(b), width: size(c), channels: size(a), planes: true, dtype }),
            (false, true) => Some(Frame { height: size(a), width: size(b), channels: size(c), planes: false, dtype }),
            _ => None,
        }
        .filter(|frame| {
            (1..=SIDE_MAX as usize).contains(&frame.height) && (1..=SIDE_MAX as usize).contains(&frame.width)
        })
    }
}

impl Picture {
    /// A picture from bytes: red, green and blue of each pixel, row by row.
    pub fn from_rgb(width: u32, height: u32, bytes: Vec<u8>) -> Result<Picture> {
        if u128::from(width) * u128::from(height) * 3 != bytes.len() as u128 {
            return Err(Error::invalid("a picture", format!("{width} × {height} pixels of 3 bytes"), bytes.len()));
        }
        Ok(Picture { width, height, bytes })
    }

    /// The width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The picture as a model's input, a tensor on the host with a batch of one, and the picture's
    /// placement in it.
    pub fn tensor(&self, frame: &Frame, fit: Fit, normalisation: Normalisation) -> Result<(Tensor, Placement)> {
        if self.width() == 0 || self.height() == 0 {
            return Err(Error::invalid("a picture", "pixels", "none"));
        }
        let (sized, placement) = self.fitted(frame.width as u32, frame.height as u32, fit);
        let (count, channels) = (frame.width * frame.height, frame.channels);
        let mut values = vec![0.0_f32; count * channels];
        for (place, pixel) in sized.each_pixel().enumerate() {
            for channel in 0..channels {
                let byte = if channels == 1 { grey(pixel) } else { pixel[channel] };
                let at = if frame.planes { channel * count + place } else { place * channels + channel };
                values[at] = normalisation.of(byte, channel);
            }
        }
        let dims = match frame.planes {
            true => [1, channels, frame.height, frame.width],
            false => [1, frame.height, frame.width, channels],
        };
        let tensor = match frame.dtype {
            DType::F16 => {
                Tensor::from_vec(values.iter().map(|value| f16::from_f64(f64::from(*value))).collect(), dims)?
            }
            DType::U8 => Tensor::from_vec(values.iter().map(|value| *value as u8).collect(), dims)?,
            _ => Tensor::from_vec(values, dims)?,
        };
        Ok((tensor, placement))
    }

    /// The picture at a model's size as bytes, `[1, height, width, channels]` without regard to
    /// the frame's layout and element type, and the picture's placement in it.
    pub fn pixels(&self, frame: &Frame, fit: Fit) -> Result<(Vec<u8>, Placement)> {
        if self.width() == 0 || self.height() == 0 {
            return Err(Error::invalid("a picture", "pixels", "none"));
        }
        let (sized, placement) = self.fitted(frame.width as u32, frame.height as u32, fit);
        let bytes = match frame.channels {
            1 => sized.each_pixel().map(grey).collect(),
            _ => sized.bytes,
        };
        Ok((bytes, placement))
    }

    /// The bytes of the picture, `[height, width, 3]`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn each_pixel(&self) -> impl Iterator<Item = &[u8; 3]> {
        self.bytes.as_chunks().0.iter()
    }

    /// The bytes of a row.
    fn row(&self, y: u32) -> &[u8] {
        let len = self.width as usize * 3;
        &self.bytes[y as usize * len..][..len]
    }

    fn fitted(&self, width: u32, height: u32, fit: Fit) -> (Picture, Placement) {
        let across = width as f32 / self.width() as f32;
        let down = height as f32 / self.height() as f32;
        let sized = |scale: [f32; 2]| {
            let side = |side: u32, scale: f32| ((side as f32 * scale).round() as u32).clamp(1, 2 * SIDE_MAX);
            resized(self, side(self.width(), scale[0]), side(self.height(), scale[1]))
        };
        match fit {
            Fit::Stretch => {
                let scale = [across, down];
                (resized(self, width, height), Placement { scale, start: [0.0; 2] })
            }
            Fit::Letterbox => {
                let scale = [across.min(down); 2];
                let inner = sized(scale);
                let (x, y) = (width.saturating_sub(inner.width()) / 2, height.saturating_sub(inner.height()) / 2);
                let bytes = vec![114; width as usize * height as usize * 3];
                let mut whole = Picture { width, height, bytes };
                whole.place(&inner, x, y);
                (whole, Placement { scale, start: [x as f32, y as f32] })
            }
            Fit::Crop => {
                let scale = [across.max(down).min(SIDE_MAX as f32); 2];
                let larger = sized(scale);
                let (x, y) = (larger.width().saturating_sub(width) / 2, larger.height().saturating_sub(height) / 2);
                let cut = larger.cut(x, y, width, height);
                let whole = match (cut.width, cut.height) == (width, height) {
                    true => cut,
                    false => resized(&cut, width, height),
                };
                (whole, Placement { scale, start: [-(x as f32), -(y as f32)] })
            }
        }
    }

    /// Copies `inner` over the pixels from (`x`, `y`) on, as far as there are pixels.
    fn place(&mut self, inner: &Picture, x: u32, y: u32) {
        let width = inner.width.min(self.width.saturating_sub(x)) as usize * 3;
        for row in 0..inner.height.min(self.height.saturating_sub(y)) {
            let start = ((y + row) as usize * self.width as usize + x as usize) * 3;
            self.bytes[start..][..width].copy_from_slice(&inner.row(row)[..width]);
        }
    }

    /// The part from (`x`, `y`) on of at most this size.
    fn cut(&self, x: u32, y: u32, width: u32, height: u32) -> Picture {
        let (x, y) = (x.min(self.width), y.min(self.height));
        let (width, height) = (width.min(self.width - x), height.min(self.height - y));
        let rows = (y..y + height).map(|row| &self.row(row)[x as usize * 3..][..width as usize * 3]);
        Picture { width, height, bytes: rows.flatten().copied().collect() }
    }

    /// Draws the edges of a box. Its corners may lie outside of the picture.
    pub fn draw_box(&mut self, corners: [f32; 4], colour: [u8; 3]) {
        let (width, height) = (i64::from(self.width()), i64::from(self.height()));
        let thickness = (width.min(height) / 200).max(1);
        let [left, top, right, bottom] = corners.map(|corner| corner.round() as i64);
        let mut fill = |x: std::ops::Range<i64>, y: std::ops::Range<i64>| {
            for row in y.start.clamp(0, height)..y.end.clamp(0, height) {
                for column in x.start.clamp(0, width)..x.end.clamp(0, width) {
                    let start = (row * width + column) as usize * 3;
                    self.bytes[start..][..3].copy_from_slice(&colour);
                }
            }
        };
        fill(left..right, top..top + thickness);
        fill(left..right, bottom - thickness..bottom);
        fill(left..left + thickness, top..bottom);
        fill(right - thickness..right, top..bottom);
    }
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} × {})", self.width(), self.height())
    }
}

fn grey(pixel: &[u8; 3]) -> u8 {
    let [r, g, b] = pixel.map(f32::from);
    (0.299 * r + 0.587 * g + 0.114 * b).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(height: usize, width: usize, planes: bool) -> Frame {
        Frame { height, width, channels: 3, planes, dtype: DType::F32 }
    }

    #[test]
    fn pictures_become_planes_or_pixels() {
        let picture = Picture::from_rgb(2, 1, vec![255, 0, 0, 0, 0, 255]).unwrap();
        let picture = Picture::decode(&picture.encode(false).unwrap()).unwrap();
        let (planes, _) = picture.tensor(&frame(1, 2, true), Fit::Stretch, Normalisation::Unit).unwrap();
        assert_eq!(planes.as_slice::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        let (pixels, _) = picture.tensor(&frame(1, 2, false), Fit::Stretch, Normalisation::Signed).unwrap();
        assert_eq!(pixels.as_slice::<f32>().unwrap(), [1.0, -1.0, -1.0, -1.0, -1.0, 1.0]);
    }

    #[test]
    fn a_letterbox_leads_back_to_the_picture() {
        let picture = Picture::from_rgb(100, 50, vec![9; 15_000]).unwrap();
        let (tensor, placement) = picture.tensor(&frame(64, 64, true), Fit::Letterbox, Normalisation::Bytes).unwrap();
        assert_eq!(placement, Placement { scale: [0.64; 2], start: [0.0, 16.0] });
        assert_eq!(tensor.as_slice::<f32>().unwrap()[0], 114.0);
        assert_eq!(tensor.as_slice::<f32>().unwrap()[32 * 64], 9.0);
    }
}

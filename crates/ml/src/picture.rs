//! Pictures as models see them: decoded within bounds, brought to size, and turned into numbers.

use std::io::Cursor;

use image::imageops::{self, FilterType};
use image::{ImageFormat, ImageReader, Limits, Rgb, RgbImage};

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::network::{Dimension, Port};

/// The longest side of a picture that is decoded.
pub const SIDE_MAX: u32 = 1 << 14;
/// The most pixels of a picture that is decoded: a small file may claim any size.
pub const PIXELS_MAX: u64 = 1 << 26;
/// The side of a picture where a model leaves it open.
const SIDE_DEFAULT: usize = 224;

/// A picture of red, green and blue bytes.
#[derive(Clone)]
pub struct Picture(RgbImage);

/// How bytes become a model's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalisation {
    /// 0 to 1.
    Unit,
    /// 0 to 255.
    Bytes,
    /// -1 to 1.
    Signed,
    /// 0 to 1, less a mean and divided by a deviation, for red, green and blue.
    Standard {
        /// What is taken off.
        mean: [f32; 3],
        /// What it is divided by.
        deviation: [f32; 3],
    },
}

impl Normalisation {
    /// The mean and deviation of ImageNet, which most classifiers were trained with.
    pub const IMAGENET: Normalisation =
        Normalisation::Standard { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };

    /// What is taken off the bytes of each channel, and what they are then divided by.
    pub(crate) fn steps(self) -> ([f32; 3], [f32; 3]) {
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

/// How a picture is brought to a model's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The short side to the size, and the middle cut out: classifiers.
    Crop,
    /// As it is, with grey around it: detectors.
    Letterbox,
    /// Without regard to its shape.
    Stretch,
}

/// Where a model wants its picture: sizes, and whether channels come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The height in pixels.
    pub height: usize,
    /// The width in pixels.
    pub width: usize,
    /// Three, or one for grey.
    pub channels: usize,
    /// Whether each channel is a plane of its own.
    pub planes: bool,
    pub(crate) kind: ElementType,
}

/// From a model's pixels back to the picture's: `(x - left) / scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Pixels of the model for one of the picture, across and down.
    pub scale: [f32; 2],
    /// Where the picture begins.
    pub start: [f32; 2],
}

impl Frame {
    /// What an input asks for; sizes that it leaves open are `open` pixels. `None` where it is no picture.
    pub fn of(port: &Port, open: Option<usize>) -> Option<Frame> {
        let dims = port.dims.as_ref()?;
        let [_, a, b, c] = dims.as_slice() else { return None };
        let kind = port.kind.filter(|kind| matches!(kind, ElementType::F32 | ElementType::F16 | ElementType::U8))?;
        let size = |dim: &Dimension| match dim {
            Dimension::Fixed(size) => *size,
            Dimension::Named(_) => open.unwrap_or(SIDE_DEFAULT),
        };
        let is_colour = |dim: &Dimension| matches!(dim, Dimension::Fixed(1 | 3));
        match (is_colour(a), is_colour(c)) {
            (true, _) => Some(Frame { height: size(b), width: size(c), channels: size(a), planes: true, kind }),
            (false, true) => Some(Frame { height: size(a), width: size(b), channels: size(c), planes: false, kind }),
            _ => None,
        }
        .filter(|frame| {
            (1..=SIDE_MAX as usize).contains(&frame.height) && (1..=SIDE_MAX as usize).contains(&frame.width)
        })
    }
}

impl Picture {
    /// Decodes a PNG or JPEG. What claims more than [`SIDE_MAX`] or [`PIXELS_MAX`] is refused before it is decoded.
    pub fn decode(bytes: &[u8]) -> Result<Picture> {
        let wrong = |cause: image::ImageError| Error::invalid("a picture", "a whole PNG or JPEG", cause);
        let reader = || ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let (mut first, second) = match (reader(), reader()) {
            (Ok(first), Ok(second)) => (first, second),
            (Err(cause), _) | (_, Err(cause)) => return Err(Error::invalid("a picture", "a PNG or JPEG", cause)),
        };
        let (width, height) = second.into_dimensions().map_err(wrong)?;
        let pixels = u64::from(width) * u64::from(height);
        if width > SIDE_MAX || height > SIDE_MAX || pixels > PIXELS_MAX {
            return Err(Error::Limit { what: "the pixels of a picture", limit: PIXELS_MAX, got: pixels });
        }
        let mut limits = Limits::default();
        (limits.max_image_width, limits.max_image_height) = (Some(SIDE_MAX), Some(SIDE_MAX));
        limits.max_alloc = Some(PIXELS_MAX * 12);
        first.limits(limits);
        Ok(Picture(first.decode().map_err(wrong)?.into_rgb8()))
    }

    /// A picture of these bytes: red, green and blue of each pixel, row by row.
    pub fn from_rgb(width: u32, height: u32, bytes: Vec<u8>) -> Result<Picture> {
        let got = bytes.len();
        let image = RgbImage::from_raw(width, height, bytes);
        image
            .map(Picture)
            .ok_or_else(|| Error::invalid("a picture", format!("{width} × {height} pixels of 3 bytes"), got))
    }

    /// The width in pixels.
    pub fn width(&self) -> u32 {
        self.0.width()
    }

    /// The height in pixels.
    pub fn height(&self) -> u32 {
        self.0.height()
    }

    /// The picture as a model's input of one row, and where it lies in it.
    pub fn array(&self, frame: &Frame, fit: Fit, normalisation: Normalisation) -> Result<(Array, Placement)> {
        if self.width() == 0 || self.height() == 0 {
            return Err(Error::invalid("a picture", "pixels", "none"));
        }
        let (sized, placement) = self.fitted(frame.width as u32, frame.height as u32, fit);
        let (count, channels) = (frame.width * frame.height, frame.channels);
        let mut values = vec![0.0_f32; count * channels];
        for (place, Rgb(pixel)) in sized.pixels().enumerate() {
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
        let array = match frame.kind {
            ElementType::F32 => Array::from_slice(&values, dims)?,
            kind => Array::from_floats(kind, dims, &values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>())?,
        };
        Ok((array, placement))
    }

    /// The picture at a model's size as bytes, `[1, height, width, channels]`, and where it lies in it.
    pub(crate) fn pixels(&self, frame: &Frame, fit: Fit) -> Result<(Array, Placement)> {
        if self.width() == 0 || self.height() == 0 {
            return Err(Error::invalid("a picture", "pixels", "none"));
        }
        let (sized, placement) = self.fitted(frame.width as u32, frame.height as u32, fit);
        let dims = [1, frame.height, frame.width, frame.channels];
        let bytes: Vec<u8> = match frame.channels {
            1 => sized.pixels().map(|Rgb(pixel)| grey(pixel)).collect(),
            _ => sized.into_raw(),
        };
        Ok((Array::from_bytes(ElementType::U8, dims, &bytes)?, placement))
    }

    /// The bytes of the picture, `[height, width, 3]`.
    pub(crate) fn raw(&self) -> Result<Array> {
        let dims = [self.height() as usize, self.width() as usize, 3];
        Array::from_bytes(ElementType::U8, dims, self.0.as_raw())
    }

    fn fitted(&self, width: u32, height: u32, fit: Fit) -> (RgbImage, Placement) {
        let across = width as f32 / self.width() as f32;
        let down = height as f32 / self.height() as f32;
        let sized = |scale: [f32; 2]| {
            let side = |side: u32, scale: f32| ((side as f32 * scale).round() as u32).clamp(1, 2 * SIDE_MAX);
            imageops::resize(&self.0, side(self.width(), scale[0]), side(self.height(), scale[1]), FilterType::Triangle)
        };
        match fit {
            Fit::Stretch => {
                let scale = [across, down];
                (imageops::resize(&self.0, width, height, FilterType::Triangle), Placement { scale, start: [0.0; 2] })
            }
            Fit::Letterbox => {
                let scale = [across.min(down); 2];
                let inner = sized(scale);
                let (x, y) = (width.saturating_sub(inner.width()) / 2, height.saturating_sub(inner.height()) / 2);
                let mut whole = RgbImage::from_pixel(width, height, Rgb([114; 3]));
                imageops::replace(&mut whole, &inner, i64::from(x), i64::from(y));
                (whole, Placement { scale, start: [x as f32, y as f32] })
            }
            Fit::Crop => {
                let scale = [across.max(down).min(SIDE_MAX as f32); 2];
                let larger = sized(scale);
                let (x, y) = (larger.width().saturating_sub(width) / 2, larger.height().saturating_sub(height) / 2);
                let cut = imageops::crop_imm(&larger, x, y, width, height).to_image();
                let whole = match cut.dimensions() == (width, height) {
                    true => cut,
                    false => imageops::resize(&cut, width, height, FilterType::Triangle),
                };
                (whole, Placement { scale, start: [-(x as f32), -(y as f32)] })
            }
        }
    }

    /// Draws the edges of a box, whose corners may lie outside.
    pub fn draw_box(&mut self, corners: [f32; 4], colour: [u8; 3]) {
        let (width, height) = (i64::from(self.width()), i64::from(self.height()));
        let thickness = (width.min(height) / 200).max(1);
        let [left, top, right, bottom] = corners.map(|corner| corner.round() as i64);
        let mut fill = |x: std::ops::Range<i64>, y: std::ops::Range<i64>| {
            for row in y.start.clamp(0, height)..y.end.clamp(0, height) {
                for column in x.start.clamp(0, width)..x.end.clamp(0, width) {
                    self.0.put_pixel(column as u32, row as u32, Rgb(colour));
                }
            }
        };
        fill(left..right, top..top + thickness);
        fill(left..right, bottom - thickness..bottom);
        fill(left..left + thickness, top..bottom);
        fill(right - thickness..right, top..bottom);
    }

    /// The picture as the bytes of a file: a JPEG where `jpeg` says so, else a PNG.
    pub fn encode(&self, jpeg: bool) -> Result<Vec<u8>> {
        let (mut bytes, format) = (Vec::new(), if jpeg { ImageFormat::Jpeg } else { ImageFormat::Png });
        let written = self.0.write_to(&mut Cursor::new(&mut bytes), format);
        written.map(|()| bytes).map_err(|cause| Error::invalid("a picture", "one that can be written", cause))
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
        Frame { height, width, channels: 3, planes, kind: ElementType::F32 }
    }

    #[test]
    fn pictures_become_planes_or_pixels() {
        let picture = Picture::from_rgb(2, 1, vec![255, 0, 0, 0, 0, 255]).unwrap();
        let picture = Picture::decode(&picture.encode(false).unwrap()).unwrap();
        let (planes, _) = picture.array(&frame(1, 2, true), Fit::Stretch, Normalisation::Unit).unwrap();
        assert_eq!(planes.as_slice::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        let (pixels, _) = picture.array(&frame(1, 2, false), Fit::Stretch, Normalisation::Signed).unwrap();
        assert_eq!(pixels.as_slice::<f32>().unwrap(), [1.0, -1.0, -1.0, -1.0, -1.0, 1.0]);
    }

    #[test]
    fn a_letterbox_leads_back_to_the_picture() {
        let picture = Picture::from_rgb(100, 50, vec![9; 15_000]).unwrap();
        let (array, placement) = picture.array(&frame(64, 64, true), Fit::Letterbox, Normalisation::Bytes).unwrap();
        assert_eq!(placement, Placement { scale: [0.64; 2], start: [0.0, 16.0] });
        assert_eq!(array.as_slice::<f32>().unwrap()[0], 114.0);
        assert_eq!(array.as_slice::<f32>().unwrap()[32 * 64], 9.0);
    }

    #[test]
    fn bombs_and_noise_are_refused() {
        let mut bomb = Picture::from_rgb(1, 1, vec![0; 3]).unwrap().encode(false).unwrap();
        // The header claims 65,535 pixels each way.
        bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
        assert!(Picture::decode(&bomb).is_err());
        // So does the frame of a JPEG.
        let mut bomb = Picture::from_rgb(8, 8, vec![0; 192]).unwrap().encode(true).unwrap();
        let frame = bomb.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        bomb[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
        assert!(matches!(Picture::decode(&bomb), Err(Error::Limit { .. })));
        assert!(Picture::decode(b"no picture").is_err());
        let whole = Picture::from_rgb(4, 4, vec![1; 48]).unwrap().encode(true).unwrap();
        assert!(Picture::decode(&whole[..whole.len() / 3]).is_err());
    }
}

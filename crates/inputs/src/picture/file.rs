//! Pictures from and to PNG and JPEG files.

use std::fmt::Display;
use std::io::Cursor;

use jpeg_encoder::SamplingFactor;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::{PIXELS_MAX, Picture, SIDE_MAX};
use crate::error::{Error, Result};

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG_SIGNATURE: &[u8] = b"\xff\xd8\xff";
/// The memory that the decoder of PNGs may use besides the picture itself.
const PNG_BYTES_MAX: usize = PIXELS_MAX as usize * 12;
/// The quality of a written JPEG, of 100.
const JPEG_QUALITY: u8 = 75;

impl Picture {
    /// Decodes a PNG or JPEG of any depth and colour type. Transparency is dropped, and colour
    /// profiles are not applied. A file that claims more than [`SIDE_MAX`] or [`PIXELS_MAX`] is
    /// refused before it is decoded.
    pub fn decode(bytes: &[u8]) -> Result<Picture> {
        if bytes.starts_with(PNG_SIGNATURE) {
            decode_png(bytes)
        } else if bytes.starts_with(JPEG_SIGNATURE) {
            decode_jpeg(bytes)
        } else {
            Err(Error::invalid("a picture", "a PNG or JPEG", "another format"))
        }
    }

    /// The picture as the bytes of a file: a JPEG if `jpeg` is set, else a PNG.
    pub fn encode(&self, jpeg: bool) -> Result<Vec<u8>> {
        if jpeg { self.encode_jpeg() } else { self.encode_png() }
    }

    fn encode_png(&self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        let mut writer = encoder.write_header().map_err(unwritable)?;
        writer.write_image_data(&self.bytes).map_err(unwritable)?;
        writer.finish().map_err(unwritable)?;
        Ok(file)
    }

    fn encode_jpeg(&self) -> Result<Vec<u8>> {
        let side = |side: u32| u16::try_from(side).map_err(|_| unwritable(format!("a side of {side} pixels")));
        let (width, height) = (side(self.width)?, side(self.height)?);
        let mut file = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut file, JPEG_QUALITY);
        // Colours keep their resolution: thin edges of boxes would blur.
        encoder.set_sampling_factor(SamplingFactor::R_4_4_4);
        encoder.encode(&self.bytes, width, height, jpeg_encoder::ColorType::Rgb).map_err(unwritable)?;
        Ok(file)
    }
}

fn decode_png(bytes: &[u8]) -> Result<Picture> {
    let limits = png::Limits { bytes: PNG_BYTES_MAX };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_text_chunk(true);
    let header = decoder.read_header_info().map_err(wrong)?;
    let (width, height) = (header.width, header.height);
    check_size(width, height)?;
    // Palettes become RGB and grey of 1, 2 or 4 bits becomes 8; of 16 bits, the upper 8 remain
    // after rounding, which the decoder itself would not do.
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(wrong)?;
    let size = reader.output_buffer_size().ok_or_else(|| wrong("a size that does not fit in memory"))?;
    let mut samples = vec![0; size];
    let frame = reader.next_frame(&mut samples).map_err(wrong)?;
    samples.truncate(frame.buffer_size());
    if frame.bit_depth == png::BitDepth::Sixteen {
        samples = samples.as_chunks().0.iter().map(|sample| upper_byte(u16::from_be_bytes(*sample))).collect();
    }
    Picture::from_rgb(width, height, rgb(samples, frame.color_type.samples())?)
}

fn decode_jpeg(bytes: &[u8]) -> Result<Picture> {
    let side_max = SIDE_MAX as usize;
    // The size is checked below, so that the error names the limit.
    let any = DecoderOptions::default().set_strict_mode(false).set_max_width(usize::MAX).set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), any);
    decoder.decode_headers().map_err(wrong)?;
    let incomplete = || wrong("no frame header");
    let (width, height) = decoder.dimensions().ok_or_else(incomplete)?;
    let (width, height) = (u32::try_from(width).map_err(wrong)?, u32::try_from(height).map_err(wrong)?);
    check_size(width, height)?;
    let (colours, channels) = match decoder.input_colorspace().ok_or_else(incomplete)? {
        ColorSpace::Luma => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    let options = any.set_max_width(side_max).set_max_height(side_max).jpeg_set_out_colorspace(colours);
    let samples = JpegDecoder::new_with_options(ZCursor::new(bytes), options).decode().map_err(wrong)?;
    Picture::from_rgb(width, height, rgb(samples, channels)?)
}

fn check_size(width: u32, height: u32) -> Result<()> {
    let pixels = u64::from(width) * u64::from(height);
    if width > SIDE_MAX || height > SIDE_MAX || pixels > PIXELS_MAX {
        return Err(Error::Limit { what: "the pixels of a picture", limit: PIXELS_MAX, got: pixels });
    }
    Ok(())
}

/// Three bytes a pixel, from grey or RGB with or without alpha.
fn rgb(samples: Vec<u8>, channels: usize) -> Result<Vec<u8>> {
    match channels {
        1 => Ok(samples.iter().flat_map(|grey| [*grey; 3]).collect()),
        2 => Ok(samples.as_chunks().0.iter().flat_map(|[grey, _alpha]| [*grey; 3]).collect()),
        3 => Ok(samples),
        4 => Ok(samples.as_chunks().0.iter().flat_map(|[r, g, b, _alpha]| [*r, *g, *b]).collect()),
        other => Err(wrong(format!("{other} channels"))),
    }
}

fn upper_byte(sample: u16) -> u8 {
    ((u32::from(sample) + 128) / 257) as u8
}

fn wrong(cause: impl Display) -> Error {
    Error::invalid("a picture", "a whole PNG or JPEG", cause)
}

fn unwritable(cause: impl Display) -> Error {
    Error::invalid("a picture", "one that can be written", cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG with these samples.
    fn png(width: u32, colour: png::ColorType, depth: png::BitDepth, palette: &[u8], samples: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, 1);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if !palette.is_empty() {
            encoder.set_palette(palette.to_vec());
        }
        encoder.write_header().unwrap().write_image_data(samples).unwrap();
        file
    }

    #[test]
    fn pngs_of_every_colour_type_and_depth_become_rgb() {
        use png::BitDepth::{Eight, One, Sixteen, Two};
        use png::ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};
        let decoded = |file: Vec<u8>| Picture::decode(&file).unwrap().bytes;
        assert_eq!(decoded(png(2, Grayscale, One, &[], &[0b0100_0000])), [0, 0, 0, 255, 255, 255]);
        assert_eq!(decoded(png(2, Grayscale, Eight, &[], &[7, 9])), [7, 7, 7, 9, 9, 9]);
        // 0x0180 is 1.49 of 255, and 0x0190 is 1.56.
        assert_eq!(decoded(png(2, Grayscale, Sixteen, &[], &[1, 0x7f, 1, 0x90])), [1, 1, 1, 2, 2, 2]);
        assert_eq!(decoded(png(1, GrayscaleAlpha, Eight, &[], &[7, 0])), [7, 7, 7]);
        assert_eq!(decoded(png(2, Indexed, Two, &[1, 2, 3, 4, 5, 6], &[0b0100_0000])), [4, 5, 6, 1, 2, 3]);
        assert_eq!(decoded(png(1, Rgb, Sixteen, &[], &[255, 255, 128, 128, 0, 0])), [255, 128, 0]);
        assert_eq!(decoded(png(1, Rgba, Eight, &[], &[1, 2, 3, 0])), [1, 2, 3]);
    }

    #[test]
    fn jpegs_of_every_colour_type_become_rgb() {
        use jpeg_encoder::ColorType::{Cmyk, CmykAsYcck, Luma, Rgb};
        let red = |pixel: &[u8]| pixel[0] > 250 && pixel[1] < 5 && pixel[2] < 5;
        // Eight by eight pixels of red; as grey, a value in the middle. Inks are written inverted.
        for (colour, pixel) in [(Rgb, &[255, 0, 0][..]), (Cmyk, &[0, 255, 255, 0]), (CmykAsYcck, &[0, 255, 255, 0])] {
            let mut file = Vec::new();
            jpeg_encoder::Encoder::new(&mut file, 100).encode(&pixel.repeat(64), 8, 8, colour).unwrap();
            let picture = Picture::decode(&file).unwrap();
            assert!((picture.width, picture.height) == (8, 8), "{colour:?}");
            assert!(picture.bytes.chunks(3).all(red), "{colour:?}: {:?}", &picture.bytes[..3]);
        }
        let mut file = Vec::new();
        jpeg_encoder::Encoder::new(&mut file, 100).encode(&[100; 64], 8, 8, Luma).unwrap();
        assert_eq!(Picture::decode(&file).unwrap().bytes, [100; 192]);
    }

    #[test]
    fn a_written_jpeg_looks_like_the_picture() {
        let picture = Picture::from_rgb(16, 8, [200, 100, 50].repeat(128)).unwrap();
        let read = Picture::decode(&picture.encode(true).unwrap()).unwrap();
        assert_eq!((read.width(), read.height()), (16, 8));
        assert!(read.bytes.iter().zip(&picture.bytes).all(|(read, written)| read.abs_diff(*written) < 4));
    }

    #[test]
    fn bombs_and_noise_are_refused() {
        let mut bomb = Picture::from_rgb(1, 1, vec![0; 3]).unwrap().encode(false).unwrap();
        // The header claims 65,535 pixels each way.
        bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
        assert!(Picture::decode(&bomb).is_err());
        // The frame header of a JPEG claims the same.
        let mut bomb = Picture::from_rgb(8, 8, vec![0; 192]).unwrap().encode(true).unwrap();
        let frame = bomb.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        bomb[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
        assert!(matches!(Picture::decode(&bomb), Err(Error::Limit { .. })));
        assert!(Picture::decode(b"no picture").is_err());
        for jpeg in [false, true] {
            let whole = Picture::from_rgb(4, 4, vec![1; 48]).unwrap().encode(jpeg).unwrap();
            assert!(Picture::decode(&whole[..whole.len() / 3]).is_err());
        }
    }
}

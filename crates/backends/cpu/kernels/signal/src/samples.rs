//! Conversion between f32 and the sample formats of radios and files.

use panoply_core::op::signal::SampleFormat;

/// Reads the numbers in `bytes`. `numbers` must have room for all of them.
pub fn read(format: SampleFormat, bytes: &[u8], numbers: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], numbers: &mut [f32], read: impl Fn([u8; N]) -> f32) {
        numbers.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(number, bytes)| *number = read(*bytes));
    }
    match format {
        SampleFormat::U8 => each(bytes, numbers, |[byte]| (f32::from(byte) - 128.0) / 128.0),
        SampleFormat::I8 => each(bytes, numbers, |[byte]| f32::from(byte as i8) / 128.0),
        SampleFormat::I16 => each(bytes, numbers, |bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0),
        SampleFormat::I16Be => each(bytes, numbers, |bytes| f32::from(i16::from_be_bytes(bytes)) / 32_768.0),
        SampleFormat::I24 => each(bytes, numbers, |[low, middle, high]| {
            (i32::from_le_bytes([0, low, middle, high]) >> 8) as f32 / 8_388_608.0
        }),
        SampleFormat::I32 => each(bytes, numbers, |bytes| i32::from_le_bytes(bytes) as f32 / 2_147_483_648.0),
        SampleFormat::F32 => each(bytes, numbers, f32::from_le_bytes),
    }
}

/// Appends numbers to `bytes`. Values out of range are clamped to the integer's range; NaN becomes
/// 0.
pub fn write(format: SampleFormat, numbers: &[f32], bytes: &mut Vec<u8>) {
    for number in numbers {
        match format {
            SampleFormat::U8 => bytes.push((number * 128.0 + 128.0).round() as u8),
            SampleFormat::I8 => bytes.push((number * 128.0).round() as i8 as u8),
            SampleFormat::I16 => bytes.extend(((number * 32_768.0).round() as i16).to_le_bytes()),
            SampleFormat::I16Be => bytes.extend(((number * 32_768.0).round() as i16).to_be_bytes()),
            SampleFormat::I24 => {
                let wide = (f64::from(*number) * 8_388_608.0).round().clamp(-8_388_608.0, 8_388_607.0) as i32;
                bytes.extend(&wide.to_le_bytes()[..3]);
            }
            SampleFormat::I32 => {
                bytes.extend(((f64::from(*number) * 2_147_483_648.0).round() as i32).to_le_bytes());
            }
            SampleFormat::F32 => bytes.extend(number.to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let numbers: Vec<f32> = vec![0.0, 0.5, -1.0, 0.25, -0.125, 0.992_187_5];
        for format in SampleFormat::ALL {
            let (mut bytes, mut again) = (Vec::new(), vec![0.0; numbers.len()]);
            write(format, &numbers, &mut bytes);
            assert_eq!(bytes.len(), numbers.len() * format.size_bytes());
            read(format, &bytes, &mut again);
            assert_eq!(again, numbers, "{format:?}");
        }
        let mut bytes = Vec::new();
        write(SampleFormat::I16, &[9.0, -9.0, f32::NAN], &mut bytes);
        assert_eq!(bytes, [0xff, 0x7f, 0x00, 0x80, 0, 0]);
    }
}

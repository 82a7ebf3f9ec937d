//! The wire format of Protocol Buffers, read without copying and in memory bounded by the input.
//!
//! 1. A message is a slice. [`Fields`] iterates over its fields; the content of a field is a number
//!    or a slice of the same bytes.
//! 2. This module neither allocates nor recurses. Callers that read nested messages bound the
//!    depth.
//! 3. Groups, which ONNX does not use, are refused.

use crate::error::{Error, Result};

/// The content of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message, each with its number.
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { bytes, at: 0 }
    }

    fn malformed<T>(&self, what: &'static str) -> Result<T> {
        Err(Error::Malformed { what, at: self.at })
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in 0..10 {
            let Some(byte) = self.bytes.get(self.at) else { return self.malformed("a number is cut short") };
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 9 && bits > 1 {
                return self.malformed("a number has more than 64 bits");
            }
            value |= bits << (7 * shift);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.malformed("a number has more than 64 bits")
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => self.malformed("a field is longer than what is left"),
        }
    }

    fn field(&mut self) -> Result<(u32, Content<'a>)> {
        let key = self.varint()?;
        let Ok(number) = u32::try_from(key >> 3) else { return self.malformed("a field has no number") };
        if number == 0 {
            return self.malformed("a field has the number 0");
        }
        let content = match key & 7 {
            0 => Content::Varint(self.varint()?),
            1 => Content::Fixed64(u64::from_le_bytes(eight(self.take(8)?))),
            2 => {
                let count = self.varint()?;
                Content::Bytes(self.take(count)?)
            }
            5 => Content::Fixed32(u32::from_le_bytes(four(self.take(4)?))),
            _ => return self.malformed("a field has a type that does not exist"),
        };
        Ok((number, content))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Content<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // The bytes after a broken field cannot be interpreted.
            self.at = self.bytes.len();
        }
        Some(field)
    }
}

impl<'a> Content<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Content::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::Malformed { what: "a field has a number where it should have bytes", at: 0 }),
        }
    }

    pub(crate) fn text(self) -> Result<String> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned)
            .map_err(|error| Error::Malformed { what: "a name is no UTF-8", at: error.valid_up_to() })
    }

    pub(crate) fn number(self) -> Result<i64> {
        match self {
            Content::Varint(value) => Ok(value as i64),
            _ => Err(Error::Malformed { what: "a field should have a whole number", at: 0 }),
        }
    }

    pub(crate) fn float(self) -> Result<f32> {
        match self {
            Content::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(Error::Malformed { what: "a field should have a float", at: 0 }),
        }
    }

    /// Appends integers, one or many packed.
    pub(crate) fn numbers(self, numbers: &mut Vec<i64>) -> Result<()> {
        match self {
            Content::Varint(value) => numbers.push(value as i64),
            Content::Bytes(bytes) => {
                let mut packed = Fields::new(bytes);
                while packed.at < bytes.len() {
                    numbers.push(packed.varint()? as i64);
                }
            }
            _ => return Err(Error::Malformed { what: "a field should have whole numbers", at: 0 }),
        }
        Ok(())
    }

    /// Appends floats, one or many packed.
    pub(crate) fn floats(self, floats: &mut Vec<f32>) -> Result<()> {
        match self {
            Content::Fixed32(bits) => floats.push(f32::from_bits(bits)),
            Content::Bytes(bytes) if bytes.len().is_multiple_of(4) => {
                floats.extend(bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(four(bytes))));
            }
            _ => return Err(Error::Malformed { what: "a field should have floats", at: 0 }),
        }
        Ok(())
    }

    /// Appends doubles, one or many packed.
    pub(crate) fn doubles(self, doubles: &mut Vec<f64>) -> Result<()> {
        match self {
            Content::Fixed64(bits) => doubles.push(f64::from_bits(bits)),
            Content::Bytes(bytes) if bytes.len().is_multiple_of(8) => {
                doubles.extend(bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(eight(bytes))));
            }
            _ => return Err(Error::Malformed { what: "a field should have doubles", at: 0 }),
        }
        Ok(())
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    let mut four = [0; 4];
    four.iter_mut().zip(bytes).for_each(|(target, byte)| *target = *byte);
    four
}

fn eight(bytes: &[u8]) -> [u8; 8] {
    let mut eight = [0; 8];
    eight.iter_mut().zip(bytes).for_each(|(target, byte)| *target = *byte);
    eight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_type() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 0, 0, 0x80, 0x3f];
        let fields: Vec<_> = Fields::new(&bytes).collect::<Result<_>>().unwrap();
        assert_eq!(fields[0], (1, Content::Varint(150)));
        assert_eq!(fields[1].1.text().unwrap(), "hi");
        assert_eq!(fields[2].1.float().unwrap(), 1.0);
    }

    #[test]
    fn what_is_cut_short_is_an_error_and_ends() {
        let whole = [0x12, 0x04, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8];
        for end in 1..whole.len() {
            let fields: Vec<_> = Fields::new(&whole[..end]).collect();
            assert_eq!(fields.last().unwrap().is_err(), end != 6, "cut at {end}");
        }
        let endless = [0xff; 20];
        assert!(Fields::new(&endless).next().unwrap().is_err());
        let huge = [0x12, 0xff, 0xff, 0xff, 0xff, 0x7f, 1];
        assert!(matches!(Fields::new(&huge).next(), Some(Err(Error::Malformed { .. }))));
    }
}

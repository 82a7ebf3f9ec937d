//! Parses the dictionary in an array's header: a Python literal with three keys.

use super::super::error::FormatError;
use super::FORMAT;

/// The contents of the header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub element: ElementType,
    pub big_endian: bool,
    pub shape: Vec<u64>,
}

/// The supported element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F16,
    F32,
    F64,
    I8,
    U8,
}

impl ElementType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            ElementType::F16 => 2,
            ElementType::F32 => 4,
            ElementType::F64 => 8,
            ElementType::I8 | ElementType::U8 => 1,
        }
    }
}

impl Header {
    /// Parses the dictionary.
    pub fn parse(text: &str) -> Result<Header, FormatError> {
        let mut literal = Literal { rest: text.trim() };
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        literal.expect('{')?;
        while !literal.take('}') {
            let key = literal.string()?;
            literal.expect(':')?;
            match key {
                "descr" => descr = Some(literal.string().map_err(|_| structured())?),
                "fortran_order" => fortran = Some(literal.truth()?),
                "shape" => shape = Some(literal.tuple()?),
                _ => return Err(wrong(format!("the key `{}` is not known", key.escape_debug()))),
            }
            if !literal.take(',') {
                literal.expect('}')?;
                break;
            }
        }
        if !literal.rest.trim().is_empty() {
            return Err(wrong("something stands behind the dictionary"));
        }
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err(wrong("one of the keys descr, fortran_order and shape is missing"));
        };
        // An array of rank one has the same bytes in either order.
        if fortran && shape.len() > 1 {
            let what = "Fortran order".to_owned();
            let advice = "write it in C order: numpy.save(path, numpy.ascontiguousarray(array))";
            return Err(FormatError::Unsupported { format: FORMAT, what, advice });
        }
        let (element, big_endian) = element(descr)?;
        Ok(Header { element, big_endian, shape })
    }
}

fn element(descr: &str) -> Result<(ElementType, bool), FormatError> {
    let (order, name) = descr.split_at_checked(1).ok_or_else(|| wrong("descr is empty"))?;
    let element = match name {
        "f2" => ElementType::F16,
        "f4" => ElementType::F32,
        "f8" => ElementType::F64,
        "i1" => ElementType::I8,
        "u1" => ElementType::U8,
        _ => {
            let what = format!("the element type `{}`", descr.escape_debug());
            return Err(FormatError::Unsupported {
                format: FORMAT,
                what,
                advice: "convert it: array.astype('float32')",
            });
        }
    };
    match order {
        "<" | "|" | "=" => Ok((element, false)),
        ">" => Ok((element, true)),
        _ => Err(wrong(format!("the byte order `{}` is not known", order.escape_debug()))),
    }
}

fn structured() -> FormatError {
    let what = "an array of structures".to_owned();
    FormatError::Unsupported { format: FORMAT, what, advice: "save the field with the vectors alone" }
}

fn wrong(reason: impl Into<String>) -> FormatError {
    FormatError::header(FORMAT, reason)
}

/// A Python literal, consumed from the front.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn take(&mut self, character: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(character) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, character: char) -> Result<(), FormatError> {
        if self.take(character) { Ok(()) } else { Err(wrong(format!("the dictionary lacks a `{character}`"))) }
    }

    fn string(&mut self) -> Result<&'a str, FormatError> {
        let quote = if self.take('\'') { '\'' } else { '"' };
        if quote == '"' {
            self.expect('"')?;
        }
        let (text, rest) = self.rest.split_once(quote).ok_or_else(|| wrong("a text is not closed"))?;
        self.rest = rest;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, FormatError> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(wrong("fortran_order is neither True nor False"))
    }

    /// The numbers of a shape. The limit is generous: the reader refuses ranks above two.
    fn tuple(&mut self) -> Result<Vec<u64>, FormatError> {
        const RANK_MAX: usize = 64;
        let mut numbers = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            if numbers.len() == RANK_MAX {
                return Err(wrong("the shape has more than 64 axes"));
            }
            numbers.push(self.number()?);
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(numbers)
    }

    fn number(&mut self) -> Result<u64, FormatError> {
        self.rest = self.rest.trim_start();
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        // Python 2 appended `L` to long integers.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        number.parse().map_err(|_| wrong("the shape has an axis that is not a length"))
    }
}

//! NumPy's `.npy` files as arrays, of any rank and of the element types that NumPy and ONNX share.

use crate::array::Array;
use crate::bounds::{RANK_MAX, count_of};
use crate::element::ElementType;
use crate::error::{Error, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's name of each element type, little-endian.
const NAMES: [(&str, ElementType); 12] = [
    ("<f4", ElementType::F32),
    ("<f8", ElementType::F64),
    ("<f2", ElementType::F16),
    ("|i1", ElementType::I8),
    ("|u1", ElementType::U8),
    ("<i2", ElementType::I16),
    ("<u2", ElementType::U16),
    ("<i4", ElementType::I32),
    ("<u4", ElementType::U32),
    ("<i8", ElementType::I64),
    ("<u8", ElementType::U64),
    ("|b1", ElementType::Bool),
];

fn wrong(expected: &'static str, got: impl ToString) -> Error {
    Error::invalid("a .npy file", expected, got)
}

/// The array in the bytes of a file.
pub fn read(bytes: &[u8]) -> Result<Array> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("the bytes \\x93NUMPY at its start", "others"))?;
    let (header, data) = match *rest {
        [1, _, a, b, ..] => rest[4..].split_at_checked(usize::from(u16::from_le_bytes([a, b]))),
        [2 | 3, _, a, b, c, d, ..] => rest[6..].split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize),
        _ => None,
    }
    .ok_or_else(|| wrong("a whole header of version 1, 2 or 3", "something else"))?;
    let header = std::str::from_utf8(header).map_err(|_| wrong("a header of text", "other bytes"))?;
    let name = entry(header, "descr").map(|name| name.trim_matches(['\'', '"'])).unwrap_or_default();
    let kind = NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    let kind =
        kind.ok_or_else(|| wrong("numbers or truth, little end first, such as <f4 or <i8", format!("{name:?}")))?;
    if entry(header, "fortran_order") != Some("False") {
        return Err(wrong("rows one after the other", "columns (fortran_order)"));
    }
    let dims = shape(header)?;
    let expected = count_of(&dims)? * kind.size_bytes();
    match data.len() == expected {
        true => Array::from_bytes(kind, dims, data),
        false => Err(Error::invalid("a .npy file", format!("{expected} bytes of elements"), data.len())),
    }
}

/// The text of a header's entry, up to the next comma.
fn entry<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let after = header.split_once(&format!("'{key}':"))?.1;
    Some(after.split([',', '}']).next()?.trim())
}

fn shape(header: &str) -> Result<Vec<usize>> {
    let inside = header.split_once("'shape':").and_then(|(_, rest)| rest.split_once('(')?.1.split_once(')'));
    let (inside, _) = inside.ok_or_else(|| wrong("a shape", "none"))?;
    let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty()).take(RANK_MAX + 1);
    sizes.map(|size| size.parse().map_err(|_| wrong("a shape of numbers", format!("{size:?}")))).collect()
}

/// The bytes of a `.npy` file with this array.
pub fn write(array: &Array) -> Result<Vec<u8>> {
    let name = NAMES.iter().find(|(_, kind)| *kind == array.kind()).map(|(name, _)| *name);
    let name = name.ok_or_else(|| Error::unsupported(format!("{} in a .npy file", array.kind())))?;
    let shape: String = array.dims().iter().map(|dim| format!("{dim},")).collect();
    let mut header = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements begin at a multiple of 64 bytes.
    while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(|_| wrong("a short header", header.len()))?;
    Ok([MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes(), array.bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_come_back() {
        let array = Array::from_slice(&[1_i64, -2, 3, 4, 5, 6], [1, 2, 3]).unwrap();
        let back = read(&write(&array).unwrap()).unwrap();
        assert_eq!((back.kind(), back.dims(), back.bytes()), (array.kind(), array.dims(), array.bytes()));
        let scalar = Array::from_slice(&[2.5_f32], []).unwrap();
        assert!(read(&write(&scalar).unwrap()).unwrap().dims().is_empty());
    }

    #[test]
    fn broken_files_are_refused() {
        let whole = write(&Array::from_slice(&[1.0_f32; 4], [4]).unwrap()).unwrap();
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "cut at {end}");
        }
        let huge = String::from_utf8_lossy(&whole).replace("(4,)", "(99999999999,99999999999)");
        assert!(read(huge.as_bytes()).is_err());
    }
}

//! Numbers and bytes in the store's files: little-endian, one after the other, without gaps.

/// Reads fields from the beginning of a slice. Truncated or overlong input yields `None`.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes with their length in front, at most `len_max`.
    pub(crate) fn counted(&mut self, len_max: usize) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok().filter(|len| *len <= len_max)?;
        self.bytes(len)
    }

    /// Succeeds if no bytes are left.
    pub(crate) fn end(self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

/// Appends bytes with their length in front.
pub(crate) fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

/// Bytes as hexadecimal text: two digits for each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    hex_digits(bytes).collect()
}

/// The hexadecimal digits of bytes.
pub(crate) fn hex_digits(bytes: &[u8]) -> impl Iterator<Item = char> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)]))
}

/// Whether all characters are digits that [`hex`] writes.
pub(crate) fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Decodes hexadecimal text.
pub(crate) fn from_hex<const N: usize>(text: &[u8]) -> Option<zeroize::Zeroizing<[u8; N]>> {
    let mut bytes = zeroize::Zeroizing::new([0; N]);
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks(2)) {
        let digit = |character: u8| char::from(character).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_the_bytes_end() {
        let mut bytes = vec![7];
        bytes.extend(5_u32.to_le_bytes());
        put_counted(&mut bytes, b"name");
        let mut fields = Fields::new(&bytes);
        assert_eq!((fields.u8(), fields.u32(), fields.counted(4)), (Some(7), Some(5), Some(&b"name"[..])));
        assert_eq!(fields.end(), Some(()));
        assert!(Fields::new(&bytes[5..]).counted(3).is_none() && Fields::new(&bytes[5..12]).counted(9).is_none());
        assert!(Fields::new(&bytes).end().is_none());
    }

    #[test]
    fn hexadecimal_is_read_as_it_is_written() {
        assert_eq!(hex(&[0, 0xa7, 255]), "00a7ff");
        assert_eq!(*from_hex::<3>(b"00A7ff").unwrap(), [0, 0xa7, 255]);
        assert!(from_hex::<3>(b"00a7f").is_none() && from_hex::<3>(b"00a7fg").is_none());
    }
}

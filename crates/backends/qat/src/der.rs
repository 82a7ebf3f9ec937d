//! The part of DER that keys and signatures need.

const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;
const SEQUENCE: u8 = 0x30;

/// The bytes that are left to read.
#[derive(Clone, Copy)]
pub(crate) struct DerReader<'a>(pub(crate) &'a [u8]);

impl<'a> DerReader<'a> {
    /// The contents of the next element, which must be of `kind`. Lengths must be in their shortest
    /// form.
    fn element(&mut self, kind: u8) -> Option<&'a [u8]> {
        let (&[got, first], mut rest) = self.0.split_first_chunk::<2>()?;
        let mut len = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            let (digits, behind) = rest.split_at_checked(count)?;
            if !(1..=4).contains(&count) || digits[0] == 0 {
                return None;
            }
            len = digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit));
            rest = behind;
            if len < 0x80 {
                return None;
            }
        }
        let (contents, behind) = rest.split_at_checked(len)?;
        self.0 = behind;
        (got == kind).then_some(contents)
    }

    pub(crate) fn sequence(&mut self) -> Option<DerReader<'a>> {
        self.element(SEQUENCE).map(DerReader)
    }

    pub(crate) fn octets(&mut self) -> Option<&'a [u8]> {
        self.element(OCTET_STRING)
    }

    /// The contents of a bit string of whole bytes.
    pub(crate) fn bits(&mut self) -> Option<&'a [u8]> {
        self.element(BIT_STRING)?.strip_prefix(&[0])
    }

    /// A non-negative integer without leading zeros.
    pub(crate) fn number(&mut self) -> Option<&'a [u8]> {
        match self.element(INTEGER)? {
            [] => None,
            [0, rest @ ..] if rest.first().is_some_and(|byte| *byte < 0x80) => None,
            [0, rest @ ..] => Some(rest),
            [first, ..] if *first >= 0x80 => None,
            digits => Some(digits),
        }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Encodes a sequence of two integers.
pub(crate) fn pair(numbers: [&[u8]; 2]) -> Vec<u8> {
    let mut contents = Vec::new();
    for number in numbers {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        let digits = &number[zeros..];
        let sign = digits.first().is_none_or(|byte| *byte >= 0x80);
        contents.extend([INTEGER, (digits.len() + usize::from(sign)) as u8]);
        contents.extend(sign.then_some(0));
        contents.extend(digits);
    }
    // Two numbers of at most 48 bytes, each with a header of three bytes, are shorter than 128.
    [&[SEQUENCE, contents.len() as u8], &contents[..]].concat()
}

/// Extends a number to `len` bytes with leading zeros. `None` if the number is longer.
pub(crate) fn padded(number: &[u8], len: usize) -> Option<Vec<u8>> {
    let zeros = len.checked_sub(number.len())?;
    Some([&vec![0; zeros], number].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_one_form_only() {
        let read = |bytes: &[u8]| DerReader(bytes).number().map(<[u8]>::to_vec);
        assert_eq!(read(&[2, 1, 5]), Some(vec![5]));
        assert_eq!(read(&[2, 2, 0, 0x80]), Some(vec![0x80]));
        assert_eq!(read(&[2, 1, 0]), Some(vec![]), "zero has no digits");
        for wrong in [&[2, 0][..], &[2, 2, 0, 5], &[2, 1, 0x80], &[2, 2, 1], &[3, 1, 5], &[2, 0x81, 1, 5], &[2], &[]] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        assert!(DerReader(&[2, 0x84, 0xff, 0xff, 0xff, 0xff]).number().is_none());
        assert!(DerReader(&[2, 0x89, 1, 1, 1, 1, 1, 1, 1, 1, 1]).number().is_none());
    }

    #[test]
    fn a_pair_is_read_as_it_was_written() {
        let numbers = [vec![0, 0, 0x80, 1], vec![0, 7]];
        let written = pair([&numbers[0], &numbers[1]]);
        assert_eq!(written, [0x30, 8, 2, 3, 0, 0x80, 1, 2, 1, 7]);
        let mut inner = DerReader(&written).sequence().unwrap();
        assert_eq!((inner.number(), inner.number(), inner.is_at_end()), (Some(&[0x80, 1][..]), Some(&[7][..]), true));
        assert_eq!(padded(&[1], 3), Some(vec![0, 0, 1]));
        assert_eq!(padded(&[1; 4], 3), None);
    }
}

//! Reads the numbers of RSA keys from DER as the library writes it: whether a key is valid is
//! decided by the library.

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const BITS: u8 = 0x03;

/// The modulus and the exponent of a SubjectPublicKeyInfo.
pub(super) fn public_numbers(der: &[u8]) -> Option<[&[u8]; 2]> {
    let mut outer = DerReader(whole(SEQUENCE, der)?);
    outer.element(SEQUENCE)?;
    let key = outer.last(BITS)?.strip_prefix(&[0])?;
    let mut inner = DerReader(whole(SEQUENCE, key)?);
    let numbers = [inner.number()?, inner.number()?];
    inner.0.is_empty().then_some(numbers)
}

/// The modulus, the public exponent, the primes, their exponents and the coefficient of PKCS#8.
pub(super) fn private_numbers(pkcs8: &[u8]) -> Option<[&[u8]; 7]> {
    let mut outer = DerReader(whole(SEQUENCE, pkcs8)?);
    outer.number()?;
    outer.element(SEQUENCE)?;
    let mut inner = DerReader(whole(SEQUENCE, outer.last(OCTETS)?)?);
    // The version of a key with two primes.
    inner.number()?.is_empty().then_some(())?;
    let [modulus, exponent, _] = [inner.number()?, inner.number()?, inner.number()?];
    let numbers =
        [modulus, exponent, inner.number()?, inner.number()?, inner.number()?, inner.number()?, inner.number()?];
    inner.0.is_empty().then_some(numbers)
}

/// A small number.
pub(super) fn small(number: &[u8]) -> Option<u64> {
    (number.len() <= 8).then(|| number.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The rest of a sequence.
struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    /// The content of the next element, which must have this tag. Lengths must be in their shortest
    /// form.
    fn element(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (len, rest) = match self.0.strip_prefix(&[tag])? {
            [len @ 0..=0x7f, rest @ ..] => (usize::from(*len), rest),
            [0x81, len @ 0x80..=0xff, rest @ ..] => (usize::from(*len), rest),
            [0x82, high @ 1..=0xff, low, rest @ ..] => (usize::from(*high) << 8 | usize::from(*low), rest),
            _ => return None,
        };
        let content;
        (content, self.0) = rest.split_at_checked(len)?;
        Some(content)
    }

    /// The last element.
    fn last(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.element(tag).filter(|_| self.0.is_empty())
    }

    /// A non-negative number, without leading zeros: zero is empty.
    fn number(&mut self) -> Option<&'a [u8]> {
        match self.element(INTEGER)? {
            [0] => Some(&[]),
            [0, rest @ ..] if rest[0] >= 0x80 => Some(rest),
            number @ [1..=0x7f, ..] => Some(number),
            _ => None,
        }
    }
}

/// The only element.
fn whole(tag: u8, der: &[u8]) -> Option<&[u8]> {
    DerReader(der).last(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8], content].concat()
    }

    #[test]
    fn only_whole_keys_are_read() {
        let numbers: Vec<u8> = [&[2, 1, 0][..], &[2, 2, 0, 0x81], &[2, 1, 3], &[2, 1, 27]].concat();
        let rest: Vec<u8> = [5, 7, 9, 11, 13].iter().flat_map(|number| [2, 1, *number]).collect();
        let key = element(SEQUENCE, &[numbers, rest].concat());
        let pkcs8 = element(SEQUENCE, &[&[2, 1, 0][..], &element(SEQUENCE, &[5, 0]), &element(OCTETS, &key)].concat());
        let expected: [&[u8]; 7] = [&[0x81], &[3], &[5], &[7], &[9], &[11], &[13]];
        assert_eq!(private_numbers(&pkcs8), Some(expected));
        let public = element(SEQUENCE, &[2, 2, 0, 0x81, 2, 1, 3]);
        let public = element(BITS, &[&[0][..], &public].concat());
        let public = element(SEQUENCE, &[element(SEQUENCE, &[5, 0]), public].concat());
        assert_eq!(public_numbers(&public), Some([&[0x81][..], &[3]]));
        for len in 0..pkcs8.len() {
            assert_eq!(private_numbers(&pkcs8[..len]), None, "{len}");
        }
        for len in 0..public.len() {
            assert_eq!(public_numbers(&public[..len]), None, "{len}");
        }
        for place in 0..pkcs8.len() {
            for bit in 0..8 {
                // However a key is altered, nothing panics.
                let mut altered = pkcs8.clone();
                altered[place] ^= 1 << bit;
                let _ = private_numbers(&altered);
                let mut altered = public.clone();
                altered[place % public.len()] ^= 1 << bit;
                let _ = public_numbers(&altered);
            }
        }
        assert_eq!(private_numbers(&[&pkcs8[..], &[0]].concat()), None);
        assert_eq!((small(&[1, 0, 1]), small(&[1; 9])), (Some(65537), None));
        // Negative numbers, and numbers with leading zeros.
        for bad in [&[0x80][..], &[0, 0x7f], &[0, 0], &[]] {
            assert_eq!(DerReader(&element(INTEGER, bad)).number(), None);
        }
    }
}

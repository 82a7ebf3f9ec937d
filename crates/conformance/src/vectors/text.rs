//! The files of vectors: lines of fields in hexadecimal, under heads that name the algorithm.

/// One test vector, from one line of a file.
#[derive(Clone, Debug)]
pub(super) struct Vector<'a> {
    /// The algorithm in the head.
    pub(super) algorithm: &'a str,
    key: &'a str,
    /// The vector's number in the original file.
    pub(super) number: &'a str,
    /// `valid`, `invalid` or `acceptable`.
    pub(super) verdict: &'a str,
    fields: Vec<&'a str>,
}

impl Vector<'_> {
    /// The fields. Panics if their number is not `N` or one is not hexadecimal: the file is wrong
    /// then.
    pub(super) fn fields<const N: usize>(&self) -> [Vec<u8>; N] {
        assert_eq!(self.fields.len(), N, "{self:?}");
        std::array::from_fn(|index| self.field(index))
    }

    /// The field at `index`, decoded from hexadecimal.
    pub(super) fn field(&self, index: usize) -> Vec<u8> {
        decoded(self.fields[index]).unwrap_or_else(|| panic!("field {index} is not hexadecimal: {self:?}"))
    }

    /// A field that is a number in decimal digits.
    pub(super) fn number_at(&self, index: usize) -> usize {
        self.fields[index].parse().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The key in the head.
    pub(super) fn key(&self) -> Vec<u8> {
        decoded(self.key).unwrap_or_else(|| panic!("{self:?}"))
    }
}

/// Every vector of a file.
pub(super) fn vectors(text: &str) -> impl Iterator<Item = Vector<'_>> {
    let (mut algorithm, mut key) = ("", "");
    text.lines().filter_map(move |line| {
        if let Some(head) = line.strip_prefix('[') {
            let (name, rest) = head.split_once(']').unwrap_or((head, ""));
            (algorithm, key) = (name, rest.trim());
            return None;
        }
        let mut words = line.split(' ');
        let (number, verdict) = (words.next()?, words.next()?);
        Some(Vector { algorithm, key, number, verdict, fields: words.collect() })
    })
}

/// Decodes hexadecimal digits. `-` stands for no bytes.
fn decoded(text: &str) -> Option<Vec<u8>> {
    if text == "-" {
        return Some(Vec::new());
    }
    let digits: Option<Vec<u8>> = text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_hold_for_the_lines_below_them() {
        let text = "[a]\n1 valid 00ff -\n[b] 0102\n2 invalid 7 ab\n";
        let all: Vec<Vector<'_>> = vectors(text).collect();
        assert_eq!((all[0].algorithm, all[1].algorithm, all[1].key()), ("a", "b", vec![1, 2]));
        assert_eq!(all[0].fields(), [vec![0, 255], vec![]]);
        assert_eq!((all[1].number_at(0), all[1].verdict), (7, "invalid"));
        assert_eq!(all[1].field(1), [0xab]);
    }

    #[test]
    #[should_panic = "field 1 is not hexadecimal"]
    fn a_field_that_is_not_hexadecimal_is_not_taken_for_an_empty_one() {
        for vector in vectors("[a]\n1 valid 00 0g\n") {
            let _: [Vec<u8>; 2] = vector.fields();
        }
    }
}

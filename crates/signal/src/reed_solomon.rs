//! Reed–Solomon codes over bytes: errors and erasures.
//!
//! A word's first byte is the coefficient of the highest power; the parity bytes come last.

use panoply_core::op::signal::ReedSolomon;

use crate::gf256::Field;
use crate::level::Level;

/// 64-bit pieces of a remainder: the most parity bytes are eight times as many.
const PIECES: usize = 8;
/// Words whose remainders are found side by side.
const WORDS: usize = 4;

/// A code with its tables.
pub struct Code {
    shape: ReedSolomon,
    field: Field,
    level: Level,
    /// What each byte that is shifted out adds to the remainder.
    feedback: Vec<[u64; PIECES]>,
    /// Of each power of x, its values at the generator's roots.
    syndrome_rows: Vec<Vec<u8>>,
    /// Of each power, the values at every place of the places' inverses to that power.
    search_rows: Vec<Vec<u8>>,
}

/// More is wrong with a word than its code can mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondRepair;

impl Code {
    /// The tables of a code; `None` where its numbers make none.
    pub fn new(level: Level, shape: ReedSolomon) -> Option<Code> {
        shape.check().ok()?;
        let field = Field::new(shape.polynomial)?;
        let parity = shape.parity;
        let root = |index: usize| field.power(shape.root_step * (shape.first_root + index));
        // The generator's coefficients, the highest power first; it is monic.
        let mut generator = vec![1_u8];
        for index in 0..parity {
            let mut longer = generator.clone();
            longer.push(0);
            for (place, coefficient) in generator.iter().enumerate() {
                longer[place + 1] ^= field.mul(*coefficient, root(index));
            }
            generator = longer;
        }
        let feedback = (0..=255)
            .map(|byte| {
                let mut bytes = [0_u8; 8 * PIECES];
                bytes.iter_mut().zip(&generator[1..]).for_each(|(place, weight)| *place = field.mul(byte, *weight));
                pieces_of(&bytes)
            })
            .collect();
        let value =
            |power: usize, index: usize| field.power(shape.root_step * (shape.first_root + index) % 255 * power);
        let syndrome_rows = (0..255).map(|power| (0..parity).map(|index| value(power, index)).collect()).collect();
        let inverse = |power: usize, place: usize| field.power((255 - shape.root_step * place % 255) * power);
        let search_rows = (0..=parity).map(|power| (0..255).map(|place| inverse(power, place)).collect()).collect();
        Some(Code { shape, field, level, feedback, syndrome_rows, search_rows })
    }

    /// The code's numbers.
    pub fn shape(&self) -> &ReedSolomon {
        &self.shape
    }

    /// Writes words of data and parity one after the other, from data one after the other.
    pub fn encode(&self, data: &[u8], words: &mut [u8]) {
        let (k, n) = (self.shape.data, self.shape.data + self.shape.parity);
        for (data, words) in data.chunks(WORDS * k).zip(words.chunks_mut(WORDS * n)) {
            for (data, word) in data.chunks_exact(k).zip(words.chunks_exact_mut(n)) {
                word[..k].copy_from_slice(data);
            }
            self.for_each_remainder(data, k, |index, parity| {
                words[index * n + k..(index + 1) * n].copy_from_slice(parity);
            });
        }
    }

    /// Mends words that lie one after the other, in place; the outcome of each is how many bytes were wrong. `erased` says which bytes of
    /// every word are known to be lost. A word beyond repair is left as it is.
    pub fn decode(&self, words: &mut [u8], erased: &[usize], outcomes: &mut [Result<usize, BeyondRepair>]) {
        if erased.len() > self.shape.parity {
            outcomes.fill(Err(BeyondRepair));
            return;
        }
        let (k, n) = (self.shape.data, self.shape.data + self.shape.parity);
        let groups = words.chunks_mut(WORDS * n).zip(outcomes.chunks_mut(WORDS));
        for (words, outcomes) in groups {
            let data: Vec<u8> = words.chunks_exact(n).flat_map(|word| &word[..k]).copied().collect();
            self.for_each_remainder(&data, k, |index, parity| {
                let word = &mut words[index * n..(index + 1) * n];
                let mut rest = [0_u8; 8 * PIECES];
                let rest = &mut rest[..self.shape.parity];
                rest.iter_mut().zip(parity).zip(&word[k..]).for_each(|((place, a), b)| *place = a ^ b);
                outcomes[index] =
                    if rest.iter().all(|byte| *byte == 0) { Ok(0) } else { self.mend(word, rest, erased) };
            });
        }
    }

    /// Calls `use_parity` with the remainder of each of up to `WORDS` pieces of data.
    fn for_each_remainder(&self, data: &[u8], k: usize, mut use_parity: impl FnMut(usize, &[u8])) {
        let count = data.len() / k;
        let mut show = |index: usize, remainder: &[u64]| {
            let mut bytes = [0_u8; 8 * PIECES];
            bytes.chunks_exact_mut(8).zip(remainder).for_each(|(bytes, piece)| {
                bytes.copy_from_slice(&piece.to_le_bytes());
            });
            use_parity(index, &bytes[..self.shape.parity]);
        };
        match (count == WORDS, self.shape.parity <= 32) {
            (true, true) => {
                self.remainders::<WORDS, 4>(data, k).iter().enumerate().for_each(|(at, rest)| show(at, rest));
            }
            (true, false) => {
                self.remainders::<WORDS, PIECES>(data, k).iter().enumerate().for_each(|(at, rest)| show(at, rest));
            }
            (false, _) => {
                for (at, data) in data.chunks_exact(k).enumerate() {
                    show(at, &self.remainders::<1, PIECES>(data, k)[0]);
                }
            }
        }
    }

    /// The remainders of words side by side: of each, its first byte is shifted out, and adds a multiple of the generator.
    fn remainders<const COUNT: usize, const USED: usize>(&self, data: &[u8], k: usize) -> [[u64; USED]; COUNT] {
        let mut rests = [[0_u64; USED]; COUNT];
        let words: [&[u8]; COUNT] = std::array::from_fn(|word| &data[word * k..(word + 1) * k]);
        for at in 0..k {
            for (rest, word) in rests.iter_mut().zip(&words) {
                let add = &self.feedback[usize::from(word[at] ^ rest[0] as u8)];
                for piece in 0..USED {
                    let next = if piece + 1 < USED { rest[piece + 1] << 56 } else { 0 };
                    rest[piece] = (rest[piece] >> 8 | next) ^ add[piece];
                }
            }
        }
        rests
    }

    fn mend(&self, word: &mut [u8], rest: &[u8], erased: &[usize]) -> Result<usize, BeyondRepair> {
        let (parity, n) = (self.shape.parity, word.len());
        // The word's values at the generator's roots are its remainder's.
        let rows: Vec<&[u8]> = (0..parity).rev().map(|power| self.syndrome_rows[power].as_slice()).collect();
        let mut syndromes = vec![0; parity];
        self.field.combine(self.level, &[rest], &rows, &mut [&mut syndromes]);
        let places: Vec<usize> = erased.iter().map(|index| n - 1 - index).collect();
        if places.len() > parity {
            return Err(BeyondRepair);
        }
        let locator = self.locator(&syndromes, &places)?;
        let found = self.search(&locator, n)?;
        let values = self.values(&syndromes, &locator, &found)?;
        // What is to be added must explain every syndrome: nothing is mended by halves.
        let rows: Vec<&[u8]> = found.iter().map(|place| self.syndrome_rows[*place].as_slice()).collect();
        let mut explained = vec![0; parity];
        self.field.combine(self.level, &[&values], &rows, &mut [&mut explained]);
        if explained != syndromes {
            return Err(BeyondRepair);
        }
        for (place, value) in found.iter().zip(&values) {
            word[n - 1 - place] ^= value;
        }
        Ok(values.iter().filter(|value| **value != 0).count())
    }

    /// The polynomial whose roots are the inverses of the wrong places, by Berlekamp and Massey; erased places are given.
    fn locator(&self, syndromes: &[u8], erased: &[usize]) -> Result<Vec<u8>, BeyondRepair> {
        let (field, parity, known) = (&self.field, syndromes.len(), erased.len());
        let mut locator = vec![0_u8; parity + 1];
        locator[0] = 1;
        for (count, place) in erased.iter().enumerate() {
            let root = field.power(self.shape.root_step * place);
            for power in (1..=count + 1).rev() {
                locator[power] ^= field.mul(locator[power - 1], root);
            }
        }
        let (mut before, mut len) = (locator.clone(), known);
        for round in known + 1..=parity {
            let terms = locator[..=len.min(round - 1)].iter().zip(syndromes[..round].iter().rev());
            let discrepancy = terms.fold(0, |sum, (weight, syndrome)| sum ^ field.mul(*weight, *syndrome));
            before.rotate_right(1);
            before[0] = 0;
            if discrepancy == 0 {
                continue;
            }
            let (longer, inverse) = (2 * len < round + known, field.div(1, discrepancy));
            for (now, old) in locator.iter_mut().zip(&mut before).take(round + 1) {
                let next = *now ^ field.mul(discrepancy, *old);
                if longer {
                    *old = field.mul(*now, inverse);
                }
                *now = next;
            }
            if longer {
                len = round + known - len;
            }
        }
        let degree = locator.iter().rposition(|value| *value != 0).unwrap_or(0);
        if degree != len || 2 * (len - known.min(len)) + known > parity {
            return Err(BeyondRepair);
        }
        locator.truncate(degree + 1);
        Ok(locator)
    }

    /// The places where the locator is zero, all of which must lie in the word.
    fn search(&self, locator: &[u8], n: usize) -> Result<Vec<usize>, BeyondRepair> {
        let rows: Vec<&[u8]> = self.search_rows[..locator.len()].iter().map(Vec::as_slice).collect();
        let mut values = [0_u8; 255];
        self.field.combine(self.level, &[locator], &rows, &mut [&mut values]);
        let found: Vec<usize> = (0..n).filter(|place| values[*place] == 0).collect();
        if found.len() == locator.len() - 1 { Ok(found) } else { Err(BeyondRepair) }
    }

    /// What is wrong at each place, by Forney.
    fn values(&self, syndromes: &[u8], locator: &[u8], places: &[usize]) -> Result<Vec<u8>, BeyondRepair> {
        let (field, degree) = (&self.field, locator.len() - 1);
        let coefficient = |power: usize| {
            (0..=power.min(degree)).fold(0, |sum, at| sum ^ field.mul(locator[at], syndromes[power - at]))
        };
        let evaluator: Vec<u8> = (0..degree).map(coefficient).collect();
        let value = |place: &usize| {
            let exponent = (255 - self.shape.root_step * place % 255) % 255;
            let inverse = field.power(exponent);
            let top = evaluator.iter().rev().fold(0, |sum, weight| field.mul(sum, inverse) ^ weight);
            let square = field.mul(inverse, inverse);
            let odd = locator.iter().skip(1).step_by(2);
            let slope = odd.rev().fold(0, |sum, weight| field.mul(sum, square) ^ weight);
            if slope == 0 {
                return Err(BeyondRepair);
            }
            // The place to the power of 1 - first root.
            let shift = field.power(exponent * (self.shape.first_root + 254));
            Ok(field.mul(shift, field.div(top, slope)))
        };
        places.iter().map(value).collect()
    }
}

fn pieces_of(bytes: &[u8; 8 * PIECES]) -> [u64; PIECES] {
    std::array::from_fn(|piece| {
        let mut own = [0; 8];
        own.copy_from_slice(&bytes[8 * piece..8 * piece + 8]);
        u64::from_le_bytes(own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Seeded(u64);

    impl Seeded {
        fn next(&mut self) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize
        }
    }

    fn shapes() -> [ReedSolomon; 5] {
        [
            ReedSolomon::ccsds(223),
            ReedSolomon::ccsds(100),
            ReedSolomon::new(239, 16),
            ReedSolomon::new(11, 4),
            ReedSolomon::new(100, 50),
        ]
    }

    /// More lost places than parity could be filled in many ways, whatever is there.
    #[test]
    fn more_lost_places_than_parity_are_beyond_repair() {
        for shape in shapes() {
            let code = Code::new(Level::best(), shape).unwrap();
            let mut word = vec![0; shape.data + shape.parity];
            let mut outcomes = [Ok(0)];
            code.decode(&mut word, &(0..=shape.parity).collect::<Vec<_>>(), &mut outcomes);
            assert_eq!(outcomes, [Err(BeyondRepair)], "{shape:?}");
        }
    }

    #[test]
    fn errors_and_erasures_up_to_the_limit_are_mended() {
        let mut random = Seeded(5);
        for shape in shapes() {
            for level in Level::all() {
                let code = Code::new(level, shape).unwrap();
                let (k, n) = (shape.data, shape.data + shape.parity);
                for round in 0..30 {
                    let count = 1 + round % 6;
                    let data: Vec<u8> = (0..count * k).map(|_| random.next() as u8).collect();
                    let mut words = vec![0; count * n];
                    code.encode(&data, &mut words);
                    let sent = words.clone();
                    let lost = random.next() % (shape.parity + 1);
                    let wrong = (shape.parity - lost) / 2;
                    let mut order: Vec<usize> = (0..n).collect();
                    (0..n).for_each(|at| order.swap(at, random.next() % n));
                    for word in words.chunks_mut(n) {
                        order[..lost].iter().for_each(|at| word[*at] ^= random.next() as u8);
                        order[lost..lost + wrong].iter().for_each(|at| word[*at] ^= (random.next() % 255 + 1) as u8);
                    }
                    let mut outcomes = vec![Err(BeyondRepair); count];
                    code.decode(&mut words, &order[..lost], &mut outcomes);
                    assert_eq!(words, sent, "{shape:?} {lost} {wrong}");
                    for outcome in outcomes {
                        assert!(outcome.is_ok_and(|mended| (wrong..=wrong + lost).contains(&mended)));
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_beyond_repair_says_so_and_stays() {
        let mut random = Seeded(9);
        let shape = ReedSolomon::ccsds(223);
        let code = Code::new(Level::best(), shape).unwrap();
        let mut failed = 0;
        for _ in 0..200 {
            let data: Vec<u8> = (0..223).map(|_| random.next() as u8).collect();
            let mut word = vec![0; 255];
            code.encode(&data, &mut word);
            (0..255).step_by(5).for_each(|at| word[at] ^= (random.next() % 255 + 1) as u8);
            let (received, mut outcomes) = (word.clone(), [Ok(0)]);
            code.decode(&mut word, &[], &mut outcomes);
            if outcomes[0] == Err(BeyondRepair) {
                assert_eq!(word, received);
                failed += 1;
            }
        }
        // A word so far from every codeword is taken for another with a chance of 1 in 16!.
        assert_eq!(failed, 200);
        let erased: Vec<usize> = (0..33).collect();
        let (mut word, mut outcomes) = ((0..255).collect::<Vec<u8>>(), [Ok(0)]);
        code.decode(&mut word, &erased, &mut outcomes);
        assert_eq!(outcomes, [Err(BeyondRepair)]);
    }

    /// The published example of RS(15, 11)'s parent over bytes: QR's version 1-M has ten parity bytes for `HELLO WORLD`.
    #[test]
    fn the_parity_of_a_published_qr_code() {
        let data = [32, 91, 11, 120, 209, 114, 220, 77, 67, 64, 236, 17, 236, 17, 236, 17];
        let code = Code::new(Level::PLAIN, ReedSolomon::new(16, 10)).unwrap();
        let mut word = [0; 26];
        code.encode(&data, &mut word);
        assert_eq!(word[16..], [196, 35, 39, 119, 235, 215, 231, 226, 93, 23]);
    }
}

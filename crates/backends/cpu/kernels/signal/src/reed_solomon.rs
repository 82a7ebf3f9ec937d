//! Reed–Solomon codes over bytes, which correct errors and erasures.
//!
//! A word's first byte is the coefficient of the highest power; the parity bytes come last.

use panoply_core::op::signal::ReedSolomon;

use crate::gf256::{Field, GfRows};
use crate::level::Level;

/// Number of 64-bit pieces of a remainder, and the largest number of parity bytes.
const PIECES: usize = 8;
const PARITY_MAX: usize = 8 * PIECES;
/// Number of positions in the longest word, padded to whole vectors.
const PLACES: usize = 256;
/// Number of rounds without a discrepancy after which a locator is tried.
const PATIENCE_ROUNDS: usize = 3;
/// Number of words whose remainders are computed in parallel.
const WORDS: usize = 4;

/// A code with its tables.
pub struct Code {
    shape: ReedSolomon,
    field: Field,
    level: Level,
    /// The contribution to the remainder of each byte that is shifted out.
    feedback: Vec<[u64; PIECES]>,
    /// For each position in the data, the remainder of a word with a one there.
    parity_rows: GfRows,
    /// For each power of x, its values at the generator's roots.
    syndrome_rows: GfRows,
    /// For each power, the inverse of every position's element, raised to that power.
    search_rows: GfRows,
}

/// The values at the generator's roots, and the coefficients of polynomials whose degree is at most
/// the number of parity bytes. Unused elements are zero.
type Values = [u8; PARITY_MAX];
type Polynomial = [u8; PARITY_MAX + 1];

/// Positions in a word, each with a value.
struct Places {
    terms: [(u8, u8); PARITY_MAX],
    count: usize,
}

impl Places {
    fn known(&self) -> &[(u8, u8)] {
        &self.terms[..self.count]
    }
}

/// The word has more errors than the code can correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondRepair;

impl Code {
    /// The tables of a code. `None` if its parameters are invalid.
    pub fn new(level: Level, shape: ReedSolomon) -> Option<Code> {
        shape.check().ok()?;
        let field = Field::new(shape.polynomial)?;
        let parity = shape.parity;
        let root = |index: usize| field.power(shape.root_step * (shape.first_root + index));
        // The coefficients of the generator, the highest power first; it is monic.
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
        let parity_rows = GfRows::new(parity, parity_rows(&field, &generator[1..], shape.data));
        let value =
            |power: usize, index: usize| field.power(shape.root_step * (shape.first_root + index) % 255 * power);
        let syndrome_rows =
            GfRows::new(parity, (0..255).map(|power| (0..parity).map(|index| value(power, index)).collect()));
        let inverse = |power: usize, place: usize| field.power((255 - shape.root_step * place % 255) * power);
        let search_rows =
            GfRows::new(PLACES, (0..=parity).map(|power| (0..255).map(|place| inverse(power, place)).collect()));
        Some(Code { shape, field, level, feedback, parity_rows, syndrome_rows, search_rows })
    }

    /// The parameters of the code.
    pub fn shape(&self) -> &ReedSolomon {
        &self.shape
    }

    /// Encodes consecutive blocks of data into consecutive words of data and parity.
    pub fn encode(&self, data: &[u8], words: &mut [u8]) {
        let (k, n) = (self.shape.data, self.shape.data + self.shape.parity);
        for (data, words) in data.chunks(WORDS * k).zip(words.chunks_mut(WORDS * n)) {
            for (data, word) in data.chunks_exact(k).zip(words.chunks_exact_mut(n)) {
                word[..k].copy_from_slice(data);
            }
            let remainders = self.remainders_of(data, k);
            for (word, parity) in words.chunks_exact_mut(n).zip(&remainders) {
                word[k..].copy_from_slice(&parity[..self.shape.parity]);
            }
        }
    }

    /// Corrects consecutive words in place. The outcome of each word is its number of wrong bytes.
    /// `erased` has the positions of the bytes that are known to be lost in every word. A word that
    /// cannot be corrected is left unchanged.
    pub fn decode(&self, words: &mut [u8], erased: &[usize], outcomes: &mut [Result<usize, BeyondRepair>]) {
        if erased.len() > self.shape.parity {
            outcomes.fill(Err(BeyondRepair));
            return;
        }
        let (k, n) = (self.shape.data, self.shape.data + self.shape.parity);
        let groups = words.chunks_mut(WORDS * n).zip(outcomes.chunks_mut(WORDS));
        for (words, outcomes) in groups {
            let remainders = self.remainders_of(words, n);
            for ((word, parity), outcome) in words.chunks_exact_mut(n).zip(&remainders).zip(outcomes) {
                let mut rest = [0; PARITY_MAX];
                rest.iter_mut().zip(parity).zip(&word[k..]).for_each(|((place, a), b)| *place = a ^ b);
                *outcome = if rest == [0; PARITY_MAX] { Ok(0) } else { self.mend(word, &rest, erased) };
            }
        }
    }

    /// The remainders of up to `WORDS` blocks of data, whose starts are `stride` bytes apart.
    fn remainders_of(&self, data: &[u8], stride: usize) -> [Values; WORDS] {
        let mut shown = [[0; PARITY_MAX]; WORDS];
        if self.remainders_by_rows(data, stride, &mut shown) {
            return shown;
        }
        let mut show = |index: usize, remainder: &[u64]| {
            shown[index].as_chunks_mut::<8>().0.iter_mut().zip(remainder).for_each(|(bytes, piece)| {
                *bytes = piece.to_le_bytes();
            });
        };
        match (data.len() / stride == WORDS, self.shape.parity <= 32) {
            (true, true) => {
                let rests = self.remainders::<WORDS, 4>(data, stride);
                rests.iter().enumerate().for_each(|(at, rest)| show(at, rest));
            }
            (true, false) => {
                let rests = self.remainders::<WORDS, PIECES>(data, stride);
                rests.iter().enumerate().for_each(|(at, rest)| show(at, rest));
            }
            (false, _) => {
                for (at, data) in data.chunks_exact(stride).enumerate() {
                    show(at, &self.remainders::<1, PIECES>(data, stride)[0]);
                }
            }
        }
        shown
    }

    /// As `Code::remainders_of`, computed as sums of each byte's contribution. Returns whether the
    /// CPU supports it.
    fn remainders_by_rows(&self, data: &[u8], stride: usize, shown: &mut [Values; WORDS]) -> bool {
        let of_word = |word: usize| &data[word * stride..word * stride + self.shape.data];
        if data.len() / stride == WORDS {
            return self.field.weigh_rows(self.level, &self.parity_rows, std::array::from_fn(of_word), shown);
        }
        (0..data.len() / stride).all(|word| {
            let mut own = [shown[word]];
            let done = self.field.weigh_rows(self.level, &self.parity_rows, [of_word(word)], &mut own);
            shown[word] = own[0];
            done
        })
    }

    /// The remainders of several words in parallel: the first byte of each remainder is shifted out
    /// and adds a multiple of the generator.
    fn remainders<const COUNT: usize, const USED: usize>(&self, data: &[u8], stride: usize) -> [[u64; USED]; COUNT] {
        let (mut rests, k) = ([[0_u64; USED]; COUNT], self.shape.data);
        let words: [&[u8]; COUNT] = std::array::from_fn(|word| &data[word * stride..word * stride + k]);
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

    fn mend(&self, word: &mut [u8], rest: &Values, erased: &[usize]) -> Result<usize, BeyondRepair> {
        let (parity, n) = (self.shape.parity, word.len());
        if erased.len() > parity {
            return Err(BeyondRepair);
        }
        // At the generator's roots, the word and its remainder have the same values.
        let mut weights = [(0, 0); PARITY_MAX];
        weights.iter_mut().zip(rest[..parity].iter().rev()).enumerate().for_each(|(power, (term, weight))| {
            *term = (power as u8, *weight);
        });
        let syndromes = self.values_of(&weights[..parity]);
        // With few wrong bytes, the locator is usually found long before all syndromes are used.
        let found = self.explained(&syndromes, erased, n, PATIENCE_ROUNDS);
        let found = found.or_else(|BeyondRepair| self.explained(&syndromes, erased, n, parity))?;
        for (place, value) in found.known() {
            word[n - 1 - usize::from(*place)] ^= value;
        }
        Ok(found.known().iter().filter(|(_, value)| *value != 0).count())
    }

    /// The corrections to a word. They must explain every syndrome; otherwise the word is not
    /// changed at all.
    fn explained(&self, syndromes: &Values, erased: &[usize], n: usize, rounds: usize) -> Result<Places, BeyondRepair> {
        let (locator, degree) = self.locator(syndromes, erased, n, rounds)?;
        let mut found = self.search(&locator, degree, n)?;
        self.find_values(syndromes, &locator, &mut found)?;
        if self.values_of(found.known()) == *syndromes { Ok(found) } else { Err(BeyondRepair) }
    }

    /// The values at the generator's roots of a polynomial, given by powers and weights.
    fn values_of(&self, terms: &[(u8, u8)]) -> Values {
        let mut values = [0; PARITY_MAX];
        let used = self.shape.parity.next_multiple_of(32);
        self.field.sum_rows(self.level, &self.syndrome_rows, terms, &mut values[..used]);
        values
    }

    /// The locator polynomial and its degree, by the Berlekamp-Massey algorithm. Its roots are the
    /// inverses of the wrong positions; erased positions are given. The search ends early after
    /// `rounds` successive rounds that leave the locator unchanged.
    fn locator(
        &self,
        syndromes: &Values,
        erased: &[usize],
        n: usize,
        rounds: usize,
    ) -> Result<(Polynomial, usize), BeyondRepair> {
        let (field, parity, known) = (&self.field, self.shape.parity, erased.len());
        let mut locator = [0; PARITY_MAX + 1];
        locator[0] = 1;
        for (count, index) in erased.iter().enumerate() {
            let root = field.power(self.shape.root_step * (n - 1 - index));
            for power in (1..=count + 1).rev() {
                locator[power] ^= field.mul(locator[power - 1], root);
            }
        }
        // The syndromes in reverse order, so that both factors of the discrepancy's terms are read
        // in ascending order.
        let mut logs = [0; PARITY_MAX];
        logs.iter_mut().zip(syndromes[..parity].iter().rev()).for_each(|(log, value)| *log = field.log(*value));
        let (mut before, mut len, mut unchanged) = (locator, known, 0);
        for round in known + 1..=parity {
            let terms = locator[..=len.min(round - 1)].iter().zip(&logs[parity - round..]);
            let discrepancy = terms.fold(0, |sum, (weight, log)| sum ^ field.of_logs(field.log(*weight), *log));
            before.copy_within(..PARITY_MAX, 1);
            before[0] = 0;
            if discrepancy == 0 {
                unchanged += 1;
                if unchanged == rounds {
                    break;
                }
                continue;
            }
            unchanged = 0;
            let longer = 2 * len < round + known;
            let (by, back) = (field.products_of(discrepancy), field.products_of(field.div(1, discrepancy)));
            let degree = if longer { round + known - len } else { len };
            for (now, old) in locator.iter_mut().zip(&mut before).take(degree.max(len).min(parity) + 1) {
                let next = *now ^ by[usize::from(*old)];
                if longer {
                    *old = back[usize::from(*now)];
                }
                *now = next;
            }
            len = degree;
        }
        let degree = locator.iter().rposition(|value| *value != 0).unwrap_or(0);
        if degree != len || 2 * (len - known.min(len)) + known > parity {
            return Err(BeyondRepair);
        }
        Ok((locator, degree))
    }

    /// The positions at which the locator is zero. All of them must be in the word. Each comes with
    /// the sum of the locator's odd powers there.
    fn search(&self, locator: &Polynomial, degree: usize, n: usize) -> Result<Places, BeyondRepair> {
        let mut sums = [[0; PLACES]; 2];
        for (side, sums) in sums.iter_mut().enumerate() {
            let mut weights = [(0, 0); PARITY_MAX / 2 + 1];
            let own = locator[..=degree].iter().enumerate().skip(side).step_by(2);
            let count = own.zip(&mut weights).map(|((power, weight), term)| *term = (power as u8, *weight)).count();
            self.field.sum_rows(self.level, &self.search_rows, &weights[..count], sums);
        }
        let mut found = Places { terms: [(0, 0); PARITY_MAX], count: 0 };
        let [even, odd] = &sums;
        for (first, (even, odd)) in even.as_chunks::<8>().0.iter().zip(odd.as_chunks::<8>().0).enumerate() {
            let word = u64::from_le_bytes(*even) ^ u64::from_le_bytes(*odd);
            // Tests whether any byte is zero: a zero byte borrows in the subtraction although its
            // highest bit was not set.
            if word.wrapping_sub(u64::MAX / 255) & !word & (u64::MAX / 255) << 7 == 0 {
                continue;
            }
            for at in (0..8).filter(|at| even[*at] == odd[*at]).take_while(|at| 8 * first + at < n) {
                let free = found.terms.get_mut(found.count).ok_or(BeyondRepair)?;
                (*free, found.count) = (((8 * first + at) as u8, odd[at]), found.count + 1);
            }
        }
        if found.count == degree { Ok(found) } else { Err(BeyondRepair) }
    }

    /// Finds the error value at each position, by Forney's algorithm.
    fn find_values(&self, syndromes: &Values, locator: &Polynomial, places: &mut Places) -> Result<(), BeyondRepair> {
        let (field, degree) = (&self.field, places.count);
        let coefficient = |power: usize| {
            (0..=power.min(degree)).fold(0, |sum, at| sum ^ field.mul(locator[at], syndromes[power - at]))
        };
        let mut evaluator = [(0, 0); PARITY_MAX];
        for (power, term) in evaluator[..degree].iter_mut().enumerate() {
            *term = (power as u8, coefficient(power));
        }
        let mut tops = [0; PLACES];
        field.sum_rows(self.level, &self.search_rows, &evaluator[..degree], &mut tops);
        for (place, value) in &mut places.terms[..degree] {
            // The sum of the odd powers is the derivative of the locator, times the inverse of the
            // position's element.
            if *value == 0 {
                return Err(BeyondRepair);
            }
            let exponent = 255 - self.shape.root_step * usize::from(*place) % 255;
            let shift = field.power(exponent * self.shape.first_root);
            *value = field.mul(shift, field.div(tops[usize::from(*place)], *value));
        }
        Ok(())
    }
}

/// The remainders of a one at each data position. For the last position it is the generator without
/// its highest power; for each earlier position it is shifted once more.
fn parity_rows(field: &Field, generator: &[u8], data: usize) -> Vec<Vec<u8>> {
    let mut rows = vec![generator.to_vec(); data];
    for at in (1..data).rev() {
        let row = &rows[at];
        let shifted = (0..generator.len())
            .map(|place| row.get(place + 1).copied().unwrap_or(0) ^ field.mul(row[0], generator[place]))
            .collect();
        rows[at - 1] = shifted;
    }
    rows
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

    struct SeededRandom(u64);

    impl SeededRandom {
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

    /// If more bytes are lost than there are parity bytes, many codewords fit the rest.
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
        let mut random = SeededRandom(5);
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

    /// Words of random codes with random numbers of wrong and lost bytes. A corrected word is a
    /// codeword that differs in no more bytes than can be corrected. An uncorrectable word is left
    /// unchanged. All levels give the same result.
    #[test]
    fn any_word_of_any_code_is_judged_alike_at_every_level() {
        let mut random = SeededRandom(21);
        let steps: Vec<usize> = (1..255).filter(|step| [3, 5, 17].iter().all(|prime| step % prime != 0)).collect();
        let (mut mended, mut left) = (0, 0);
        for round in 0..300 {
            let parity = 1 + random.next() % 64;
            let mut shape = ReedSolomon::new(1 + random.next() % (255 - parity), parity);
            (shape.first_root, shape.root_step) = (random.next() % 255, steps[random.next() % steps.len()]);
            let (k, n) = (shape.data, shape.data + parity);
            let codes: Vec<Code> = Level::all().into_iter().filter_map(|level| Code::new(level, shape)).collect();
            let count = 1 + round % 9;
            let data: Vec<u8> = (0..count * k).map(|_| random.next() as u8).collect();
            let mut sent = vec![0; count * n];
            codes[0].encode(&data, &mut sent);
            let erased: Vec<usize> = (0..n).filter(|_| random.next().is_multiple_of(30)).take(parity).collect();
            let mut received = sent.clone();
            for word in received.chunks_mut(n) {
                let wrong = random.next() % (parity / 2 + 3);
                (0..wrong).for_each(|_| word[random.next() % n] ^= random.next() as u8);
                erased.iter().for_each(|at| word[*at] ^= random.next() as u8);
            }
            let mut expected = None;
            for code in &codes {
                let (mut words, mut coded) = (received.clone(), vec![0; count * n]);
                let mut outcomes = vec![Err(BeyondRepair); count];
                code.encode(&data, &mut coded);
                assert_eq!(coded, sent, "{shape:?}");
                code.decode(&mut words, &erased, &mut outcomes);
                for ((word, received), outcome) in words.chunks(n).zip(received.chunks(n)).zip(&outcomes) {
                    let Ok(changed) = *outcome else {
                        assert_eq!(word, received, "{shape:?}");
                        left += 1;
                        continue;
                    };
                    let mut again = vec![0; n];
                    code.encode(&word[..k], &mut again);
                    assert_eq!(word, again, "{shape:?}");
                    let differs = |at: &usize| word[*at] != received[*at];
                    assert_eq!((0..n).filter(differs).count(), changed, "{shape:?}");
                    let errors = (0..n).filter(|at| !erased.contains(at)).filter(differs).count();
                    assert!(2 * errors + erased.len() <= parity, "{shape:?} {errors} {}", erased.len());
                    mended += 1;
                }
                let got = (words, outcomes);
                assert_eq!(*expected.get_or_insert_with(|| got.clone()), got, "{shape:?}");
            }
        }
        assert!(mended > 500 && left > 100, "{mended} {left}");
    }

    #[test]
    fn what_is_beyond_repair_says_so_and_stays() {
        let mut random = SeededRandom(9);
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
        // Each word has 51 errors, and the code corrects 16. The probability that a decoder takes
        // such a word for another codeword is about 1 in 16 factorial: all 200 must be refused.
        assert_eq!(failed, 200);
        let erased: Vec<usize> = (0..33).collect();
        let (mut word, mut outcomes) = ((0..255).collect::<Vec<u8>>(), [Ok(0)]);
        code.decode(&mut word, &erased, &mut outcomes);
        assert_eq!(outcomes, [Err(BeyondRepair)]);
    }

    /// A published example over bytes: QR code version 1-M has ten parity bytes for `HELLO WORLD`.
    #[test]
    fn the_parity_of_a_published_qr_code() {
        let data = [32, 91, 11, 120, 209, 114, 220, 77, 67, 64, 236, 17, 236, 17, 236, 17];
        let code = Code::new(Level::PLAIN, ReedSolomon::new(16, 10)).unwrap();
        let mut word = [0; 26];
        code.encode(&data, &mut word);
        assert_eq!(word[16..], [196, 35, 39, 119, 235, 215, 231, 226, 93, 23]);
    }
}

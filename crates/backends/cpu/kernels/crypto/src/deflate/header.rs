//! The codes of a block, and the header that describes them.

use super::bits::Bits;
use super::code::{codes_of, lengths_of};
use super::tally::{SLOTS, SYMBOLS, Tally};

/// Maximal code lengths of literals, lengths and the end, and of distances: a literal and a match
/// fit into one write.
const SYMBOL_BITS_MAX: usize = 12;
const SLOT_BITS_MAX: usize = 11;
const SLOTS_USED: usize = 30;
/// The order in which the lengths of the code-length codes are written.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The code lengths, and their encoded form.
pub struct Header {
    pub symbols: [u8; SYMBOLS + 2],
    pub slots: [u8; SLOTS],
    counts: [usize; 2],
    /// Code lengths and repetition symbols, with the repetition counts.
    items: [(u8, u8); SYMBOLS + SLOTS],
    items_count: usize,
    codes: [u8; 19],
    codes_count: usize,
    /// Size of the header in bits.
    pub bits: u64,
}

impl Header {
    /// The fixed code, which needs no description.
    pub fn fixed() -> Header {
        let mut header = Header::empty();
        for (symbol, length) in header.symbols.iter_mut().enumerate() {
            *length = match symbol {
                144..256 => 9,
                256..280 => 7,
                _ => 8,
            };
        }
        header.slots.fill(5);
        header
    }

    /// Codes for the counted symbols.
    pub fn of(tally: &Tally) -> Header {
        let mut header = Header::empty();
        lengths_of(&tally.symbols, SYMBOL_BITS_MAX, &mut header.symbols[..SYMBOLS]);
        lengths_of(&tally.slots[..SLOTS_USED], SLOT_BITS_MAX, &mut header.slots[..SLOTS_USED]);
        let used = |lengths: &[u8]| lengths.iter().rposition(|length| *length > 0).map_or(1, |last| last + 1);
        let (symbols, slots) = (used(&header.symbols[..SYMBOLS]), used(&header.slots[..SLOTS_USED]));
        header.counts = [symbols, slots];
        let mut all = [0; SYMBOLS + SLOTS];
        all[..symbols].copy_from_slice(&header.symbols[..symbols]);
        all[symbols..symbols + slots].copy_from_slice(&header.slots[..slots]);
        let mut counts = [0; 19];
        for run in all[..symbols + slots].chunk_by(|a, b| a == b) {
            header.repeat(run[0], run.len(), &mut counts);
        }
        lengths_of(&counts, 7, &mut header.codes);
        header.codes_count =
            ORDER.iter().rposition(|symbol| header.codes[*symbol] > 0).map_or(4, |last| (last + 1).max(4));
        let more = 2 * u64::from(counts[16]) + 3 * u64::from(counts[17]) + 7 * u64::from(counts[18]);
        header.bits = 14 + 3 * header.codes_count as u64 + cost(&counts, &header.codes) + more;
        header
    }

    fn empty() -> Header {
        Header {
            symbols: [0; SYMBOLS + 2],
            slots: [0; SLOTS],
            counts: [0; 2],
            items: [(0, 0); SYMBOLS + SLOTS],
            items_count: 0,
            codes: [0; 19],
            codes_count: 0,
            bits: 0,
        }
    }

    /// Appends a code length `times` times.
    fn repeat(&mut self, length: u8, times: usize, counts: &mut [u32; 19]) {
        let mut left = times;
        let mut add = |symbol: u8, more: usize| {
            self.items[self.items_count] = (symbol, more as u8);
            self.items_count += 1;
            counts[usize::from(symbol)] += 1;
        };
        if length > 0 {
            add(length, 0);
            left -= 1;
        }
        while left >= 3 {
            let (symbol, least, most) = match (length, left) {
                (0, 11..) => (18, 11, 138),
                (0, _) => (17, 3, 10),
                _ => (16, 3, 6),
            };
            let now = left.min(most);
            add(symbol, now - least);
            left -= now;
        }
        (0..left).for_each(|_| add(length, 0));
    }

    /// Cost of the counted symbols with these codes, without extra bits.
    pub fn cost(&self, tally: &Tally) -> u64 {
        cost(&tally.symbols, &self.symbols) + cost(&tally.slots, &self.slots)
    }

    /// Writes the header.
    ///
    /// # Safety
    /// There must be space for its bits and eight bytes.
    pub unsafe fn write(&self, bits: &mut Bits) {
        let [symbols, slots] = self.counts.map(|count| count as u64);
        let counts = (symbols - 257) | (slots - 1) << 5 | (self.codes_count as u64 - 4) << 10;
        let mut codes = [0; 19];
        codes_of(&self.codes, &mut codes);
        // SAFETY: guaranteed by the caller.
        unsafe {
            bits.put(counts, 14);
            for symbol in &ORDER[..self.codes_count] {
                bits.put(u64::from(self.codes[*symbol]), 3);
            }
            for (symbol, more) in &self.items[..self.items_count] {
                let length = u32::from(self.codes[usize::from(*symbol)]);
                let more_len = match symbol {
                    16 => 2,
                    17 => 3,
                    18 => 7,
                    _ => 0,
                };
                bits.put(u64::from(codes[usize::from(*symbol)]) | u64::from(*more) << length, length + more_len);
            }
        }
    }
}

fn cost(counts: &[u32], lengths: &[u8]) -> u64 {
    counts.iter().zip(lengths).map(|(count, length)| u64::from(*count) * u64::from(*length)).sum()
}

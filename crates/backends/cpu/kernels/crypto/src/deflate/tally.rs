//! Symbol counts of a block.

use super::parse::Record;

/// All literals, and values for an absent one.
pub const LITERALS: usize = 512;
/// Every length, and zero for an absent one; from [`THIRD`] on, third literals.
pub const LENGTHS: usize = 1024;
/// Value of a record's length field for a third literal, minus the literal.
pub const THIRD: usize = 512;
/// Every distance slot, and the slot of an absent distance.
pub const SLOTS: usize = 32;
/// The symbols of literals, of the end and of lengths.
pub const SYMBOLS: usize = 286;

/// Records, and literals behind them.
pub struct TallyPiece<'a> {
    pub records: &'a [Record],
    pub literals: &'a [u8],
}

/// Counts of half a block. Each half has its own, so that no count waits for one of the other half.
#[derive(Clone, Copy)]
pub struct SymbolCounts {
    literals: [[u32; LITERALS]; 2],
    lengths: [u32; LENGTHS],
    slots: [u32; SLOTS],
}

/// Symbol counts of a block.
pub struct Tally {
    /// One for each half of a block.
    pub counts: [SymbolCounts; 2],
    /// The totals: literals, the end and lengths; and distance slots.
    pub symbols: [u32; SYMBOLS],
    pub slots: [u32; SLOTS],
}

impl Default for Tally {
    fn default() -> Tally {
        let none = SymbolCounts { literals: [[0; LITERALS]; 2], lengths: [0; LENGTHS], slots: [0; SLOTS] };
        Tally { counts: [none; 2], symbols: [0; SYMBOLS], slots: [0; SLOTS] }
    }
}

/// The table indices of a record: two literals, a length and a slot.
#[derive(Clone, Copy)]
pub struct Indices {
    pub literals: [usize; 2],
    pub length: usize,
    pub slot: usize,
    /// Number and value of the extra bits of the distance.
    pub more_len: u32,
    pub more: u64,
}

impl Indices {
    #[inline(always)]
    pub fn of(record: &Record) -> Indices {
        let [first, second, length, distance] = [0, 16, 32, 48].map(|shift| (record.0 >> shift) as u16);
        let distance = u32::from(distance);
        let more_len = (distance | 2).ilog2() - 1;
        Indices {
            literals: [usize::from(first) % LITERALS, usize::from(second) % LITERALS],
            length: usize::from(length) % LENGTHS,
            slot: ((distance >> more_len) + 2 * more_len) as usize % SLOTS,
            more_len,
            more: u64::from(distance & !(u32::MAX << more_len)),
        }
    }
}

impl SymbolCounts {
    /// Counts a record.
    #[inline(always)]
    pub fn add(&mut self, of: Indices) {
        self.literals[0][of.literals[0]] += 1;
        self.literals[1][of.literals[1]] += 1;
        self.lengths[of.length] += 1;
        self.slots[of.slot] += 1;
    }
}

impl Tally {
    /// Resets all counts.
    pub fn clear(&mut self) {
        *self = Tally::default();
    }

    /// Counts literals that are in no record.
    pub fn count_literals(&mut self, literals: &[u8]) {
        let [SymbolCounts { literals: [a, b], .. }, SymbolCounts { literals: [c, d], .. }] = &mut self.counts;
        let (words, rest) = literals.as_chunks::<8>();
        for word in words {
            let word = u64::from_le_bytes(*word);
            let byte = |at: u32| (word >> (8 * at)) as usize & 0xff;
            for half in [0, 4] {
                a[byte(half)] += 1;
                b[byte(half + 1)] += 1;
                c[byte(half + 2)] += 1;
                d[byte(half + 3)] += 1;
            }
        }
        rest.iter().for_each(|literal| a[usize::from(*literal)] += 1);
    }

    /// Computes the totals.
    pub fn sum_up(&mut self) {
        let [one, other] = &self.counts;
        for (byte, count) in self.symbols[..256].iter_mut().enumerate() {
            let of_half = |counts: &SymbolCounts| {
                counts.literals[0][byte] + counts.literals[1][byte] + counts.lengths[THIRD + byte]
            };
            *count = of_half(one) + of_half(other);
        }
        self.symbols[256..].fill(0);
        self.symbols[256] = 1;
        for length in 3..=258 {
            self.symbols[257 + length_symbol(length)] += one.lengths[length] + other.lengths[length];
        }
        for (slot, count) in self.slots.iter_mut().enumerate().take(SLOTS - 2) {
            *count = one.slots[slot] + other.slots[slot];
        }
    }
}

/// The symbol of a length, minus 257.
fn length_symbol(length: usize) -> usize {
    match length - 3 {
        // The first eight have no extra bits; from there on four symbols each have the same number.
        short @ 0..8 => short,
        255.. => 28,
        long => {
            let more = long.ilog2() as usize - 2;
            4 * more + (long >> more)
        }
    }
}

/// The lowest length of a symbol (minus 257), and its number of extra bits.
pub fn length_base(symbol: usize) -> (usize, u32) {
    match symbol {
        0..8 => (3 + symbol, 0),
        28.. => (258, 0),
        _ => (3 + ((symbol % 4 + 4) << (symbol / 4 - 1)), symbol as u32 / 4 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_among_those_of_its_symbol() {
        for length in 3..=258 {
            let (base, more) = length_base(length_symbol(length));
            assert!(length >= base && length < base + (1 << more), "{length} {base} {more}");
        }
        // The table of RFC 1951, 3.2.5.
        let table = [
            (3, 257),
            (10, 264),
            (11, 265),
            (18, 268),
            (19, 269),
            (35, 273),
            (114, 279),
            (115, 280),
            (227, 284),
            (257, 284),
            (258, 285),
        ];
        assert!(table.iter().all(|(length, symbol)| 257 + length_symbol(*length) == *symbol));
    }
}

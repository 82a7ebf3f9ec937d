//! The field of 256 elements, and sums of products of many bytes with constants.
//!
//! A product with a constant is linear in the bits of the other factor: one instruction on a CPU
//! with GFNI, two look-ups of half a byte on others.

use std::sync::Arc;

use panoply_core::once::OnceBox;

use crate::level::{Kind, Level};

/// A field, defined by a polynomial whose root generates it.
pub struct Field {
    exp: [u8; 512],
    log: [u8; 256],
    logs: [u16; 256],
    /// The product for each sum of two logs; zero if one of them is the log of zero.
    of_logs: Box<[u8; OF_LOGS]>,
    /// The table of all products.
    products: Vec<[u8; 256]>,
    multipliers: Vec<Multiplier>,
    /// The matrices of the multipliers, in a compact table.
    matrices: Box<[u64; 256]>,
}

/// The sum of two logs, including the log of zero, is less than this power of two.
const OF_LOGS: usize = 2048;
const LOG_OF_ZERO: u16 = 512;

/// The tables of a constant factor.
#[derive(Clone, Copy)]
struct Multiplier {
    low: [u8; 16],
    high: [u8; 16],
    /// The product as a matrix of bits, in the format of GFNI.
    matrix: u64,
}

/// x⁸ + x⁴ + x³ + x² + 1, for erasure codes, QR codes and discs.
pub const POLYNOMIAL_COMMON: u16 = 0x11d;
/// x⁸ + x⁷ + x² + x + 1, for the CCSDS codes.
pub const POLYNOMIAL_CCSDS: u16 = 0x187;

/// Rows of bytes, each padded with zeros to whole vectors.
pub struct GfRows {
    bytes: Vec<u8>,
    stride: usize,
}

impl GfRows {
    /// Rows of at most `len` bytes.
    pub fn new(len: usize, rows: impl IntoIterator<Item = Vec<u8>>) -> GfRows {
        let (mut bytes, stride) = (Vec::new(), len.next_multiple_of(ROW_BYTES));
        for row in rows {
            bytes.extend_from_slice(&row[..row.len().min(stride)]);
            bytes.resize(bytes.len().next_multiple_of(stride.max(1)), 0);
        }
        GfRows { bytes, stride }
    }

    fn row(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.stride..(number + 1) * self.stride]
    }
}

/// Number of bytes in a vector; the size of a row is a multiple of it.
const ROW_BYTES: usize = 32;

impl Field {
    /// The field of erasure codes. It is made once.
    pub fn common() -> Option<Arc<Field>> {
        static COMMON: OnceBox<Option<Arc<Field>>> = OnceBox::new();
        COMMON.get_or_make(|| Field::new(POLYNOMIAL_COMMON).map(Arc::new)).clone()
    }

    /// The field of a polynomial of degree eight. `None` if its root does not generate the field.
    pub fn new(polynomial: u16) -> Option<Field> {
        let (mut exp, mut log) = ([0_u8; 512], [0_u8; 256]);
        let mut value = 1_u16;
        for power in 0..255 {
            if value == 0 || value > 255 || (value == 1 && power > 0) {
                return None;
            }
            (exp[power], exp[power + 255]) = (value as u8, value as u8);
            log[value as usize] = power as u8;
            value <<= 1;
            if value & 0x100 != 0 {
                value ^= polynomial;
            }
        }
        if value != 1 {
            return None;
        }
        let product = |a: u8, b: u8| {
            if a == 0 || b == 0 { 0 } else { exp[usize::from(log[a as usize]) + usize::from(log[b as usize])] }
        };
        let products = (0..=255).map(|a| std::array::from_fn(|b| product(a, b as u8))).collect();
        let mut of_logs = Box::new([0; OF_LOGS]);
        of_logs[..510].copy_from_slice(&exp[..510]);
        let mut logs = log.map(u16::from);
        logs[0] = LOG_OF_ZERO;
        let mut field =
            Field { exp, log, logs, of_logs, products, multipliers: Vec::new(), matrices: Box::new([0; 256]) };
        field.multipliers = (0..=255).map(|constant| field.multiplier(constant)).collect();
        field.matrices.iter_mut().zip(&field.multipliers).for_each(|(matrix, known)| *matrix = known.matrix);
        Some(field)
    }

    /// The product.
    #[inline]
    pub fn mul(&self, a: u8, b: u8) -> u8 {
        self.products[usize::from(a)][usize::from(b)]
    }

    /// The products of `a` with all elements.
    #[inline]
    pub fn products_of(&self, a: u8) -> &[u8; 256] {
        &self.products[usize::from(a)]
    }

    /// The log of each element: [`Field::of_logs`] maps the sum of two logs to the product.
    #[inline]
    pub fn log(&self, a: u8) -> u16 {
        self.logs[usize::from(a)]
    }

    /// The product of two elements, given their logs.
    #[inline]
    pub fn of_logs(&self, a: u16, b: u16) -> u8 {
        self.of_logs[usize::from(a + b) % OF_LOGS]
    }

    /// The quotient; `b` is not zero.
    pub fn div(&self, a: u8, b: u8) -> u8 {
        if a == 0 {
            return 0;
        }
        self.exp[usize::from(self.log[a as usize]) + 255 - usize::from(self.log[b as usize])]
    }

    /// The generator raised to any power.
    pub fn power(&self, exponent: usize) -> u8 {
        self.exp[exponent % 255]
    }

    fn multiplier(&self, constant: u8) -> Multiplier {
        let low = std::array::from_fn(|half| self.mul(constant, half as u8));
        let high = std::array::from_fn(|half| self.mul(constant, (half << 4) as u8));
        let mut matrix = 0_u64;
        for bit in 0..8 {
            let product = self.mul(constant, 1 << bit);
            for row in (0..8).filter(|row| product >> row & 1 == 1) {
                matrix |= 1 << (8 * (7 - row) + bit);
            }
        }
        Multiplier { low, high, matrix }
    }

    /// `output = Σ weight · row`, byte by byte, over pairs of a row's index and a weight. The
    /// output is whole vectors, and not longer than a row.
    pub fn sum_rows(&self, level: Level, rows: &GfRows, terms: &[(u8, u8)], output: &mut [u8]) {
        assert!(output.len() <= rows.stride && output.len().is_multiple_of(ROW_BYTES));
        #[cfg(target_arch = "x86_64")]
        if level.kind() >= Kind::Gfni {
            // SAFETY: a level is only made if the CPU has its instructions; a row is as long as the
            // output.
            return unsafe { x86::sum_rows_affine(&self.matrices, rows, terms, output) };
        }
        #[cfg(target_arch = "x86_64")]
        if level.kind() >= Kind::Avx2 {
            // SAFETY: a level is only made if the CPU has its instructions; a row is as long as the
            // output.
            return unsafe { x86::sum_rows(&self.multipliers, rows, terms, output) };
        }
        let _ = level;
        output.fill(0);
        for (row, weight) in terms {
            let products = &self.products[usize::from(*weight)];
            output
                .iter_mut()
                .zip(rows.row(usize::from(*row)))
                .for_each(|(sum, byte)| *sum ^= products[usize::from(*byte)]);
        }
    }

    /// For each list of weights, which has one weight for each row: `output = Σ weight · row`.
    /// Returns false and writes nothing if the level has no instruction for it or if rows are
    /// longer than outputs.
    pub fn weigh_rows<const LISTS: usize>(
        &self,
        level: Level,
        rows: &GfRows,
        lists: [&[u8]; LISTS],
        outputs: &mut [[u8; 2 * ROW_BYTES]; LISTS],
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if level.kind() >= Kind::Gfni {
            let len = lists.iter().map(|list| list.len()).min().unwrap_or(0);
            let lists = lists.map(|list| &list[..len]);
            assert!(rows.bytes.len() >= len * rows.stride, "a row for each weight");
            match rows.stride / ROW_BYTES {
                // SAFETY: a level is only made if the CPU has its instructions; there is a row for
                // each weight, and each row is as long as its stride.
                1 => unsafe { x86::weigh_rows::<LISTS, 1>(&self.matrices, &rows.bytes, lists, outputs) },
                // SAFETY: as above.
                2 => unsafe { x86::weigh_rows::<LISTS, 2>(&self.matrices, &rows.bytes, lists, outputs) },
                _ => return false,
            }
            return true;
        }
        let _ = (level, rows, lists, outputs);
        false
    }

    /// `outputs[o] = Σ weights[o][s] · sources[s]`, byte by byte. All have the same length.
    pub fn combine(&self, level: Level, weights: &[&[u8]], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let len = outputs.first().map_or(0, |output| output.len());
        assert!(sources.iter().all(|source| source.len() == len));
        assert!(outputs.iter().all(|output| output.len() == len) && weights.len() == outputs.len());
        assert!(weights.iter().all(|weights| weights.len() == sources.len()));
        for (weights, outputs) in weights.chunks(OUTPUTS).zip(outputs.chunks_mut(OUTPUTS)) {
            let all: Vec<[&Multiplier; OUTPUTS]> = (0..sources.len())
                .map(|source| {
                    let weight = |output: usize| weights.get(output).map_or(0, |weights| weights[source]);
                    std::array::from_fn(|output| &self.multipliers[usize::from(weight(output))])
                })
                .collect();
            let done = match level.kind() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a level is only made if the CPU has its instructions; the lengths were
                // checked.
                Kind::Gfni => unsafe { x86::affine(&all, sources, outputs, len) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kind::Avx512 => unsafe { x86::look_up_wide(&all, sources, outputs, len) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kind::Avx2 => unsafe { x86::look_up(&all, sources, outputs, len) },
                _ => 0,
            };
            for at in done..len {
                for (place, output) in outputs.iter_mut().enumerate() {
                    let product = |(weights, source): (&[&Multiplier; OUTPUTS], &&[u8])| {
                        let byte = usize::from(source[at]);
                        weights[place].low[byte & 15] ^ weights[place].high[byte >> 4]
                    };
                    output[at] = all.iter().zip(sources).map(product).fold(0, |sum, byte| sum ^ byte);
                }
            }
        }
    }
}

/// Number of outputs that share one pass over the sources.
const OUTPUTS: usize = 4;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{GfRows, Multiplier, OUTPUTS, ROW_BYTES};
    use std::arch::x86_64::*;

    /// # Safety
    /// The output is whole vectors, and not longer than a row.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
    pub(super) unsafe fn sum_rows_affine(matrices: &[u64; 256], rows: &GfRows, terms: &[(u8, u8)], output: &mut [u8]) {
        const TOGETHER: usize = 8;
        let (many, few) = output.as_chunks_mut::<{ TOGETHER * ROW_BYTES }>();
        for (at, output) in many.iter_mut().enumerate() {
            // SAFETY: as the caller guarantees.
            unsafe { sum_part::<TOGETHER>(matrices, rows, terms, at * TOGETHER * ROW_BYTES, output) };
        }
        let first = many.len() * TOGETHER * ROW_BYTES;
        for (at, output) in few.as_chunks_mut::<ROW_BYTES>().0.iter_mut().enumerate() {
            // SAFETY: as the caller guarantees.
            unsafe { sum_part::<1>(matrices, rows, terms, first + at * ROW_BYTES, output) };
        }
    }

    /// # Safety
    /// The output is `VECTORS` vectors, and rows have as many from byte `at` on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
    unsafe fn sum_part<const VECTORS: usize>(
        matrices: &[u64; 256],
        rows: &GfRows,
        terms: &[(u8, u8)],
        at: usize,
        output: &mut [u8],
    ) {
        let mut sums = [_mm256_setzero_si256(); VECTORS];
        for (row, weight) in terms {
            let (bytes, matrix) = (&rows.row(usize::from(*row))[at..], matrices[usize::from(*weight)]);
            assert!(bytes.len() >= VECTORS * ROW_BYTES && output.len() >= VECTORS * ROW_BYTES);
            for (vector, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the assertion above checks that the vector may be read.
                let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(vector * ROW_BYTES).cast()) };
                let product = _mm256_gf2p8affine_epi64_epi8::<0>(bytes, _mm256_set1_epi64x(matrix as i64));
                *sum = _mm256_xor_si256(*sum, product);
            }
        }
        for (output, sum) in output.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(sums) {
            // SAFETY: there is room for a vector.
            unsafe { _mm256_storeu_si256(output.as_mut_ptr().cast(), sum) };
        }
    }

    /// # Safety
    /// There is a row of `VECTORS` vectors for each weight, and all lists have the same length.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
    pub(super) unsafe fn weigh_rows<const LISTS: usize, const VECTORS: usize>(
        matrices: &[u64; 256],
        rows: &[u8],
        lists: [&[u8]; LISTS],
        outputs: &mut [[u8; 2 * ROW_BYTES]; LISTS],
    ) {
        let mut sums = [[_mm256_setzero_si256(); VECTORS]; LISTS];
        for at in 0..lists[0].len() {
            for vector in 0..VECTORS {
                // SAFETY: there is a row for each weight.
                let row = unsafe { _mm256_loadu_si256(rows.as_ptr().add((at * VECTORS + vector) * ROW_BYTES).cast()) };
                for (sums, list) in sums.iter_mut().zip(&lists) {
                    // SAFETY: all lists have the same length.
                    let matrix = matrices[usize::from(unsafe { *list.get_unchecked(at) })];
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(row, _mm256_set1_epi64x(matrix as i64));
                    sums[vector] = _mm256_xor_si256(sums[vector], product);
                }
            }
        }
        for (output, sums) in outputs.iter_mut().zip(sums) {
            for (output, sum) in output.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(sums) {
                // SAFETY: there is room for a vector.
                unsafe { _mm256_storeu_si256(output.as_mut_ptr().cast(), sum) };
            }
        }
    }

    /// # Safety
    /// The output is whole vectors, and not longer than a row. There is a multiplier for each
    /// weight.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sum_rows(multipliers: &[Multiplier], rows: &GfRows, terms: &[(u8, u8)], output: &mut [u8]) {
        let half = _mm256_set1_epi8(15);
        for (at, output) in output.as_chunks_mut::<ROW_BYTES>().0.iter_mut().enumerate() {
            let mut sum = _mm256_setzero_si256();
            for (row, weight) in terms {
                let weight = &multipliers[usize::from(*weight)];
                let bytes = &rows.row(usize::from(*row))[at * ROW_BYTES..];
                assert!(bytes.len() >= ROW_BYTES);
                // SAFETY: the vector may be read, as asserted, and the tables have 16 bytes.
                let (bytes, tables) = unsafe {
                    let table = |table: &[u8; 16]| _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                    (_mm256_loadu_si256(bytes.as_ptr().cast()), [table(&weight.low), table(&weight.high)])
                };
                let low = _mm256_shuffle_epi8(tables[0], _mm256_and_si256(bytes, half));
                let high = _mm256_shuffle_epi8(tables[1], _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half));
                sum = _mm256_xor_si256(sum, _mm256_xor_si256(low, high));
            }
            // SAFETY: there is room for a vector.
            unsafe { _mm256_storeu_si256(output.as_mut_ptr().cast(), sum) };
        }
    }

    /// Processes all bytes. Returns their number.
    ///
    /// # Safety
    /// Sources and outputs have `len` bytes.
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    pub(super) unsafe fn affine(
        weights: &[[&Multiplier; OUTPUTS]],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
    ) -> usize {
        let mut at = 0;
        while at < len {
            // Two vectors at a time. The last ones are partly beyond the end and masked.
            let left = len - at;
            let mask = |skipped: usize| match left.saturating_sub(skipped) {
                0 => 0,
                bytes if bytes >= 64 => u64::MAX,
                bytes => (1 << bytes) - 1,
            };
            let masks = [mask(0), mask(64)];
            let mut sums = [[_mm512_setzero_si512(); 2]; OUTPUTS];
            for (weights, source) in weights.iter().zip(sources) {
                // SAFETY: bytes outside the masks are not read.
                let bytes: [__m512i; 2] = std::array::from_fn(|half| unsafe {
                    _mm512_maskz_loadu_epi8(masks[half], source.as_ptr().wrapping_add(at + 64 * half).cast())
                });
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    let matrix = _mm512_set1_epi64(weight.matrix as i64);
                    for half in 0..2 {
                        let product = _mm512_gf2p8affine_epi64_epi8::<0>(bytes[half], matrix);
                        sum[half] = _mm512_xor_si512(sum[half], product);
                    }
                }
            }
            for (output, sum) in outputs.iter_mut().zip(sums) {
                for half in 0..2 {
                    // SAFETY: bytes outside the masks are not written.
                    unsafe {
                        let to = output.as_mut_ptr().wrapping_add(at + 64 * half);
                        _mm512_mask_storeu_epi8(to.cast(), masks[half], sum[half]);
                    }
                }
            }
            at += 128.min(left);
        }
        len
    }

    /// Processes all bytes. Returns their number.
    ///
    /// # Safety
    /// Sources and outputs have `len` bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn look_up_wide(
        weights: &[[&Multiplier; OUTPUTS]],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
    ) -> usize {
        let half = _mm512_set1_epi8(15);
        for at in (0..len).step_by(64) {
            // The last vector is partly beyond the end and masked.
            let mask = if len - at >= 64 { u64::MAX } else { (1 << (len - at)) - 1 };
            let mut sums = [_mm512_setzero_si512(); OUTPUTS];
            for (weights, source) in weights.iter().zip(sources) {
                // SAFETY: bytes outside the mask are not read.
                let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, source.as_ptr().add(at).cast()) };
                let low = _mm512_and_si512(bytes, half);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), half);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    // SAFETY: the tables have 16 bytes.
                    let tables = unsafe {
                        [weight.low.as_ptr(), weight.high.as_ptr()]
                            .map(|table| _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast())))
                    };
                    let (low, high) = (_mm512_shuffle_epi8(tables[0], low), _mm512_shuffle_epi8(tables[1], high));
                    // The exclusive or of all three.
                    *sum = _mm512_ternarylogic_epi32::<0x96>(*sum, low, high);
                }
            }
            for (output, sum) in outputs.iter_mut().zip(sums) {
                // SAFETY: bytes outside the mask are not written.
                unsafe { _mm512_mask_storeu_epi8(output.as_mut_ptr().add(at).cast(), mask, sum) };
            }
        }
        len
    }

    /// Processes all whole vectors. Returns their number of bytes.
    ///
    /// # Safety
    /// Sources and outputs have `len` bytes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn look_up(
        weights: &[[&Multiplier; OUTPUTS]],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
    ) -> usize {
        let half = _mm256_set1_epi8(15);
        for at in (0..len / 32 * 32).step_by(32) {
            let mut sums = [_mm256_setzero_si256(); OUTPUTS];
            for (weights, source) in weights.iter().zip(sources) {
                // SAFETY: the whole vector is within the length.
                let bytes = unsafe { _mm256_loadu_si256(source.as_ptr().add(at).cast()) };
                let low = _mm256_and_si256(bytes, half);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    // SAFETY: the tables have 16 bytes.
                    let tables = unsafe {
                        [weight.low.as_ptr(), weight.high.as_ptr()]
                            .map(|table| _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast())))
                    };
                    let product =
                        _mm256_xor_si256(_mm256_shuffle_epi8(tables[0], low), _mm256_shuffle_epi8(tables[1], high));
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
            for (output, sum) in outputs.iter_mut().zip(sums) {
                // SAFETY: the whole vector is within the length.
                unsafe { _mm256_storeu_si256(output.as_mut_ptr().add(at).cast(), sum) };
            }
        }
        len / 32 * 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product by shifting and adding.
    fn plain(polynomial: u16, a: u8, b: u8) -> u8 {
        let mut sum = 0_u16;
        for bit in (0..8).rev() {
            sum <<= 1;
            if sum & 0x100 != 0 {
                sum ^= polynomial;
            }
            if b >> bit & 1 == 1 {
                sum ^= u16::from(a);
            }
        }
        sum as u8
    }

    #[test]
    fn products_are_those_of_polynomials() {
        for polynomial in [POLYNOMIAL_COMMON, POLYNOMIAL_CCSDS] {
            let field = Field::new(polynomial).unwrap();
            for a in 0..=255 {
                for b in 0..=255 {
                    assert_eq!(field.mul(a, b), plain(polynomial, a, b));
                    assert_eq!(field.of_logs(field.log(a), field.log(b)), field.mul(a, b));
                    assert!(b == 0 || field.div(field.mul(a, b), b) == a);
                }
            }
        }
        assert!(Field::new(0x11b).is_none(), "its root has another order");
    }

    #[test]
    fn sums_of_rows_agree_at_every_level() {
        let field = Field::new(POLYNOMIAL_CCSDS).unwrap();
        let row = |number: usize| (0..310).map(|at| (at * 31 + number * 57 + at / 3) as u8).collect::<Vec<u8>>();
        let rows = GfRows::new(310, (0..9).map(row));
        let terms = [(3, 0x5a), (8, 1), (0, 0), (7, 255), (3, 17)];
        for level in Level::all() {
            for len in [0, 32, 64, 96, 256, 320] {
                let mut output = vec![0xaa; len];
                field.sum_rows(level, &rows, &terms, &mut output);
                for (at, byte) in output.iter().enumerate() {
                    let of_row = |number: u8| row(usize::from(number)).get(at).copied().unwrap_or(0);
                    let sum = terms
                        .iter()
                        .fold(0, |sum, (number, weight)| sum ^ plain(POLYNOMIAL_CCSDS, of_row(*number), *weight));
                    assert_eq!(*byte, sum, "{level:?} {at}");
                }
            }
        }
    }

    #[test]
    fn weighed_rows_are_sums_of_rows() {
        let field = Field::new(POLYNOMIAL_COMMON).unwrap();
        for (len, count) in [(32, 7), (20, 223), (64, 5), (50, 100), (70, 3), (32, 0)] {
            let row = |number: usize| (0..len).map(|at| (at * 31 + number * 57 + at / 3) as u8).collect::<Vec<u8>>();
            let rows = GfRows::new(len, (0..count).map(row));
            let list = |seed: usize| (0..count).map(|at| (at * 101 + seed * 7) as u8).collect::<Vec<u8>>();
            let lists = [list(1), list(2), list(3)];
            for level in Level::all() {
                let mut outputs = [[0xaa; 64]; 3];
                if !field.weigh_rows(level, &rows, [&lists[0], &lists[1], &lists[2]], &mut outputs) {
                    assert!(level.kind() < Kind::Gfni || len > 64);
                    assert_eq!(outputs, [[0xaa; 64]; 3]);
                    continue;
                }
                for (output, list) in outputs.iter().zip(&lists) {
                    for (at, byte) in output.iter().enumerate().take(len) {
                        let product = |number: usize| plain(POLYNOMIAL_COMMON, row(number)[at], list[number]);
                        let sum = (0..count).map(product).fold(0, |sum, byte| sum ^ byte);
                        assert_eq!(*byte, sum, "{len} {count} {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn sums_of_products_agree_at_every_level() {
        let field = Field::new(POLYNOMIAL_COMMON).unwrap();
        for len in [0, 1, 31, 32, 33, 64, 127, 128, 129, 300] {
            let source = |seed: usize| (0..len).map(|at| (at * 37 + seed * 101 + at / 7) as u8).collect::<Vec<u8>>();
            let sources: Vec<Vec<u8>> = (0..5).map(source).collect();
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let weights: Vec<Vec<u8>> =
                (0..6).map(|output| (0..5).map(|source| (output * 91 + source * 57) as u8).collect()).collect();
            let weights: Vec<&[u8]> = weights.iter().map(Vec::as_slice).collect();
            for level in Level::all() {
                let mut outputs = vec![vec![0xaa; len]; 6];
                let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
                field.combine(level, &weights, &sources, &mut slices);
                for (output, weights) in outputs.iter().zip(&weights) {
                    for (at, byte) in output.iter().enumerate() {
                        let sum = sources
                            .iter()
                            .zip(*weights)
                            .fold(0, |sum, (source, weight)| sum ^ plain(POLYNOMIAL_COMMON, source[at], *weight));
                        assert_eq!(*byte, sum, "{level:?} {len} {at}");
                    }
                }
            }
        }
    }
}

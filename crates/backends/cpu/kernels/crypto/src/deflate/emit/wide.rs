//! Writes eight records or 32 literals at a time: their codes are looked up and concatenated in
//! vector lanes, and written in pairs.

use std::arch::x86_64::*;

use super::super::bits::Bits;
use super::super::tally::{Indices, LENGTHS, LITERALS, SLOTS, TallyPiece};
use super::Entries;

/// Records per vector.
const LANES: usize = 8;
/// Literals per lane.
const LITERALS_EACH: usize = 4;
/// Maximal number of bits of one write.
const WRITTEN_BITS_MAX: i64 = 56;
/// Fewer records are faster one by one.
const LANES_MIN: usize = 3;

/// Whether this CPU has the instructions and a fast gather. CPUs with AVX-512 have one if they also
/// have its half-precision instructions.
pub fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512fp16")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// # Safety
/// There must be space for the piece and eight bytes.
#[target_feature(enable = "avx512f,avx512cd,avx512bw,bmi1,bmi2,lzcnt")]
pub unsafe fn put_piece(entries: &Entries, bits: &mut Bits, piece: TallyPiece<'_>) {
    let (place, held, count) = bits.state();
    let mut own = Bits::new(place, held, count);
    for eight in piece.records.chunks(LANES) {
        if eight.len() < LANES_MIN {
            for record in eight {
                // SAFETY: guaranteed by the caller.
                unsafe { entries.put_record(&mut own, Indices::of(record)) };
            }
            break;
        }
        let mask = (0xff_u8) >> (LANES - eight.len());
        // SAFETY: the mask excludes missing records; a record is eight bytes. The caller guarantees
        // the rest.
        unsafe {
            let records = _mm512_maskz_loadu_epi64(mask, eight.as_ptr().cast());
            let (codes, lengths) = codes_of_records(entries, records);
            put_eight(&mut own, _mm512_maskz_mov_epi64(mask, codes), _mm512_maskz_mov_epi64(mask, lengths));
        }
    }
    let (groups, rest) = piece.literals.as_chunks::<{ LANES * LITERALS_EACH }>();
    for group in groups {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (codes, lengths) = codes_of_literals(entries, _mm256_loadu_si256(group.as_ptr().cast()));
            put_eight(&mut own, codes, lengths);
        }
    }
    let (fours, others) = rest.as_chunks::<LITERALS_EACH>();
    // SAFETY: guaranteed by the caller.
    unsafe {
        for four in fours {
            entries.put_four(&mut own, four);
        }
        for literal in others {
            entries.put(&mut own, entries.literals[usize::from(*literal)]);
        }
    }
    *bits = own;
}

// The following functions are inlined into the one above, so that vectors and bits stay in
// registers: they must be called from code that is compiled for these instructions.

/// Looks up entries of a table by the lowest `log2(N)` bits of each lane.
///
/// # Safety
/// The CPU must have the instructions, here and below.
#[inline(always)]
unsafe fn looked_up<const N: usize>(table: &[u32; N], places: __m512i) -> __m512i {
    const { assert!(N.is_power_of_two()) };
    // SAFETY: guaranteed by the caller; all indices are within the table.
    unsafe {
        let places = _mm512_and_si512(places, _mm512_set1_epi64(N as i64 - 1));
        _mm512_cvtepu32_epi64(_mm512_i64gather_epi32::<4>(places, table.as_ptr().cast()))
    }
}

/// The code of an entry, and its length.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn code(entry: __m512i) -> (__m512i, __m512i) {
    // SAFETY: guaranteed by the caller.
    unsafe { (_mm512_srli_epi64::<8>(entry), _mm512_and_si512(entry, _mm512_set1_epi64(0xff))) }
}

/// The codes of eight records, concatenated as by [`Entries::put_record`], and their lengths.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn codes_of_records(entries: &Entries, records: __m512i) -> (__m512i, __m512i) {
    const { assert!(SLOTS == 32) };
    // SAFETY: guaranteed by the caller; there are twice sixteen slots.
    unsafe {
        let a = looked_up::<LITERALS>(&entries.literals, records);
        let b = looked_up::<LITERALS>(&entries.literals, _mm512_srli_epi64::<16>(records));
        let c = looked_up::<LENGTHS>(&entries.lengths, _mm512_srli_epi64::<32>(records));
        let distance = _mm512_srli_epi64::<48>(records);
        let zeros = _mm512_lzcnt_epi64(_mm512_or_si512(distance, _mm512_set1_epi64(2)));
        let more_len = _mm512_sub_epi64(_mm512_set1_epi64(62), zeros);
        let slot = _mm512_add_epi64(_mm512_srlv_epi64(distance, more_len), _mm512_add_epi64(more_len, more_len));
        let more = _mm512_andnot_si512(_mm512_sllv_epi64(_mm512_set1_epi64(-1), more_len), distance);
        let low = _mm512_loadu_si512(entries.slots.as_ptr().cast());
        let high = _mm512_loadu_si512(entries.slots.as_ptr().add(16).cast());
        // Only the lowest five bits of an index count; the upper halves of lanes stay zero.
        let d = _mm512_maskz_permutex2var_epi32(0x5555, low, slot, high);
        let ((a_code, a_len), (b_code, b_len)) = (code(a), code(b));
        let ((c_code, c_len), (d_code, d_len)) = (code(c), code(d));
        let literals = _mm512_or_si512(a_code, _mm512_sllv_epi64(b_code, a_len));
        let far = _mm512_or_si512(d_code, _mm512_sllv_epi64(more, d_len));
        let matched = _mm512_or_si512(c_code, _mm512_sllv_epi64(far, c_len));
        let front = _mm512_add_epi64(a_len, b_len);
        let all = _mm512_or_si512(literals, _mm512_sllv_epi64(matched, front));
        // Without a match, the slot's length and extra bits add up to 256, which the mask removes.
        let length = _mm512_add_epi64(_mm512_add_epi64(front, c_len), _mm512_add_epi64(d_len, more_len));
        (all, _mm512_and_si512(length, _mm512_set1_epi64(0xff)))
    }
}

/// The same for four literals per lane.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn codes_of_literals(entries: &Entries, literals: __m256i) -> (__m512i, __m512i) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let words = _mm512_cvtepu32_epi64(literals);
        let of_byte = |shifted: __m512i| {
            let places = _mm512_and_si512(shifted, _mm512_set1_epi64(0xff));
            code(looked_up::<LITERALS>(&entries.literals, places))
        };
        let ((a, a_len), (b, b_len)) = (of_byte(words), of_byte(_mm512_srli_epi64::<8>(words)));
        let ((c, c_len), (d, d_len)) =
            (of_byte(_mm512_srli_epi64::<16>(words)), of_byte(_mm512_srli_epi64::<24>(words)));
        let front = _mm512_or_si512(a, _mm512_sllv_epi64(b, a_len));
        let back = _mm512_or_si512(c, _mm512_sllv_epi64(d, c_len));
        let front_len = _mm512_add_epi64(a_len, b_len);
        let all = _mm512_or_si512(front, _mm512_sllv_epi64(back, front_len));
        (all, _mm512_add_epi64(front_len, _mm512_add_epi64(c_len, d_len)))
    }
}

/// Writes the codes of eight lanes in order: two in one write if all pairs fit.
///
/// # Safety
/// As above; there must be space for them and eight bytes.
#[inline(always)]
unsafe fn put_eight(bits: &mut Bits, codes: __m512i, lengths: __m512i) {
    // SAFETY: guaranteed by the caller; all bits above the codes are zero.
    unsafe {
        let next_codes = _mm512_shuffle_epi32::<0b01_00_11_10>(codes);
        let next_lengths = _mm512_shuffle_epi32::<0b01_00_11_10>(lengths);
        let sums = _mm512_add_epi64(lengths, next_lengths);
        if _mm512_cmpgt_epi64_mask(sums, _mm512_set1_epi64(WRITTEN_BITS_MAX)) == 0 {
            let both = _mm512_or_si512(codes, _mm512_sllv_epi64(next_codes, lengths));
            // A pair's codes, followed by their length.
            let pairs = words(_mm512_mask_mov_epi64(both, 0xaa, sums));
            for [codes, length] in pairs.as_chunks().0 {
                bits.put(*codes, *length as u32);
            }
            return;
        }
        for (code, length) in words(codes).iter().zip(words(lengths)) {
            bits.put(*code, length as u32);
        }
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn words(lanes: __m512i) -> [u64; LANES] {
    let mut words = [0; LANES];
    // SAFETY: guaranteed by the caller; eight words are 64 bytes.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), lanes) };
    words
}

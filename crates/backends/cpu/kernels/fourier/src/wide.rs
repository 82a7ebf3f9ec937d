//! Transforms of powers of two with AVX-512. Real and imaginary parts are in separate vectors.
//!
//! The algorithm is Stockham's. The first pass is of radix 16: it takes sixteen elements whose
//! distance is a sixteenth of the line, for sixteen neighbours at once, and transposes the
//! resulting square. Every later pass has the radix 2, 4 or 8 and works on whole vectors. So there
//! are few passes, and only the first pass transposes numbers within vectors. Between passes a
//! block of sixteen complex numbers is sixteen real parts, then sixteen imaginary parts. An inverse
//! transform is a forward transform with real and imaginary parts exchanged.

use std::arch::x86_64::*;
use std::f64::consts::TAU;

use rustfft::num_complex::Complex;
use rustfft::{Direction, Fft, FftDirection, Length};

/// Number of elements of a vector, which is also the radix of the first pass.
const LANES: usize = 16;
/// Number of f32 in a block.
const BLOCK: usize = 2 * LANES;
/// The range of lengths for which this transform is faster than the library's.
const LEN_MIN: usize = 256;
const LEN_MAX: usize = 1 << 15;
/// Number of complex numbers in a cache line. Scratch memory is aligned to a cache line.
const ALIGNED: usize = 8;

/// A plan for lines of one length.
pub(crate) struct WideTransform {
    len: usize,
    inverse: bool,
    /// The roots of the first pass: a block for each group of sixteen neighbours and each output
    /// but the first.
    first: Vec<f32>,
    passes: Vec<FourierPass>,
}

struct FourierPass {
    radix: usize,
    /// The real and imaginary part of a root, for each group of the pass's butterflies and each of
    /// their outputs but the first.
    roots: Vec<f32>,
}

impl WideTransform {
    /// A plan. `None` if the CPU lacks the instructions or the length is out of range.
    pub(crate) fn new(len: usize, inverse: bool) -> Option<WideTransform> {
        let can = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
        if !can || !len.is_power_of_two() || !(LEN_MIN..=LEN_MAX).contains(&len) {
            return None;
        }
        let root = |of: usize, power: usize| {
            let angle = -TAU * (power % of) as f64 / of as f64;
            [angle.cos() as f32, angle.sin() as f32]
        };
        let mut first = Vec::new();
        for neighbour in (0..len / LANES).step_by(LANES) {
            for output in 1..LANES {
                let roots: [_; LANES] = std::array::from_fn(|lane| root(len, (neighbour + lane) * output));
                first.extend(roots.iter().map(|root| root[0]).chain(roots.iter().map(|root| root[1])));
            }
        }
        let (mut passes, mut left) = (Vec::new(), len / LANES);
        while left > 1 {
            // Two passes of radix 4 are better than one of radix 8 and one of radix 2.
            let radix = if left == 16 { 4 } else { left.min(8) };
            let groups = (0..left / radix).flat_map(|group| (1..radix).map(move |output| group * output));
            passes.push(FourierPass { radix, roots: groups.flat_map(|power| root(left, power)).collect() });
            left /= radix;
        }
        Some(WideTransform { len, inverse, first, passes })
    }

    /// Transforms one line from `input` to `output`, which may be the same memory. Meanwhile the
    /// next line is prefetched.
    ///
    /// # Safety
    /// The CPU has AVX-512 F and DQ. `input` is valid for reads of `len` complex numbers, `output`
    /// for writes of as many, and `scratch` for reads and writes of twice as many.
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn line(&self, input: *const f32, output: *mut f32, scratch: *mut f32, after: PrefetchRange) {
        // SAFETY: as the caller guarantees. Each half of the scratch memory, and the output, has a
        // block for every sixteen complex numbers.
        unsafe {
            // If the last pass reads from scratch memory, the first pass may write into the
            // output's memory, unless the transform is in place. Then fewer cache lines are in use.
            let is_free = self.passes.len().is_multiple_of(2) && !std::ptr::eq(input, output);
            let (mut from, mut to) = (if is_free { output } else { scratch.add(2 * self.len) }, scratch);
            match self.inverse {
                false => self.first_pass::<false>(input, from),
                true => self.first_pass::<true>(input, from),
            }
            let (mut blocks, mut left) = (1, self.len / LANES);
            for (number, pass) in self.passes.iter().enumerate() {
                left /= pass.radix;
                let is_last = number + 1 == self.passes.len();
                match (pass.radix, is_last, self.inverse) {
                    (2, false, _) => pass.run::<2, false, false>(left, blocks, from, to, after),
                    (4, false, _) => pass.run::<4, false, false>(left, blocks, from, to, after),
                    (_, false, _) => pass.run::<8, false, false>(left, blocks, from, to, after),
                    (2, true, false) => pass.run::<2, true, false>(left, blocks, from, output, after),
                    (4, true, false) => pass.run::<4, true, false>(left, blocks, from, output, after),
                    (_, true, false) => pass.run::<8, true, false>(left, blocks, from, output, after),
                    (2, true, true) => pass.run::<2, true, true>(left, blocks, from, output, after),
                    (4, true, true) => pass.run::<4, true, true>(left, blocks, from, output, after),
                    (_, true, true) => pass.run::<8, true, true>(left, blocks, from, output, after),
                }
                std::mem::swap(&mut from, &mut to);
                blocks *= pass.radix;
            }
        }
    }

    /// # Safety
    /// `input` is valid for reads of `len` complex numbers, and `to` for writes of their blocks.
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn first_pass<const INVERSE: bool>(&self, input: *const f32, to: *mut f32) {
        let apart = self.len / LANES;
        for (number, roots) in self.first.as_chunks::<{ (LANES - 1) * BLOCK }>().0.iter().enumerate() {
            let mut values = [ZERO; LANES];
            for (row, value) in values.iter_mut().enumerate() {
                // SAFETY: reads sixteen neighbours in each sixteenth of the line.
                *value = unsafe { load_pairs::<INVERSE>(input.add(2 * (row * apart + number * LANES))) };
            }
            let mut spectra = fft16::<INVERSE>(values);
            for (value, roots) in spectra[1..].iter_mut().zip(roots.as_chunks::<BLOCK>().0) {
                // SAFETY: a block is two vectors.
                *value = value.times(unsafe { load(roots.as_ptr()) });
            }
            let (mut re, mut im) = (spectra.map(|value| value.re), spectra.map(|value| value.im));
            (re, im) = (turned(re), turned(im));
            for (row, (re, im)) in re.into_iter().zip(im).enumerate() {
                // SAFETY: sixteen neighbours from each sixteenth of the line fill sixteen blocks.
                unsafe { store(to.add((number * LANES + row) * BLOCK), Value { re, im }) };
            }
        }
    }
}

impl FourierPass {
    /// # Safety
    /// `from` is valid for reads of `RADIX · groups · blocks` blocks, and `to` for writes of as
    /// many.
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn run<const RADIX: usize, const LAST: bool, const INVERSE: bool>(
        &self,
        groups: usize,
        blocks: usize,
        from: *const f32,
        to: *mut f32,
        after: PrefetchRange,
    ) {
        for group in 0..groups {
            let roots = &self.roots[group * (RADIX - 1) * 2..(group + 1) * (RADIX - 1) * 2];
            for block in 0..blocks {
                let mut values = [ZERO; RADIX];
                // Each address is computed from the previous one. Computed independently, the
                // compiler would use vectors for many addresses at once, which is slower.
                let mut place = from.wrapping_add((group * blocks + block) * BLOCK);
                for value in &mut values {
                    // SAFETY: row, group and block are in range.
                    *value = unsafe { load(place) };
                    place = place.wrapping_add(groups * blocks * BLOCK);
                }
                let mut values = butterfly(values);
                after.bring::<RADIX, LAST>(group * blocks + block);
                if !LAST {
                    for (value, root) in values[1..].iter_mut().zip(roots.as_chunks::<2>().0) {
                        *value = value.times(Value { re: _mm512_set1_ps(root[0]), im: _mm512_set1_ps(root[1]) });
                    }
                }
                let mut place = to.wrapping_add((group * RADIX * blocks + block) * BLOCK);
                for value in values {
                    // SAFETY: as above.
                    unsafe { if LAST { store_pairs::<INVERSE>(place, value) } else { store(place, value) } }
                    place = place.wrapping_add(blocks * BLOCK);
                }
            }
        }
    }
}

impl Length for WideTransform {
    fn len(&self) -> usize {
        self.len
    }
}

impl Direction for WideTransform {
    fn fft_direction(&self) -> FftDirection {
        if self.inverse { FftDirection::Inverse } else { FftDirection::Forward }
    }
}

impl WideTransform {
    /// Number of complex numbers of scratch memory, including those needed to align it.
    fn scratch_len(&self) -> usize {
        2 * self.len + ALIGNED
    }

    /// The start of the aligned part of the scratch memory.
    fn aligned(&self, scratch: &mut [Complex<f32>]) -> *mut f32 {
        let skipped = scratch.as_ptr().align_offset(ALIGNED * size_of::<Complex<f32>>()).min(ALIGNED);
        scratch[skipped..skipped + 2 * self.len].as_mut_ptr().cast()
    }
}

impl Fft<f32> for WideTransform {
    fn process_with_scratch(&self, buffer: &mut [Complex<f32>], scratch: &mut [Complex<f32>]) {
        assert!(buffer.len().is_multiple_of(self.len), "whole lines of {} numbers, not {}", self.len, buffer.len());
        let scratch = self.aligned(scratch);
        for line in buffer.chunks_exact_mut(self.len) {
            let line: *mut f32 = line.as_mut_ptr().cast();
            // SAFETY: a plan is only made if the CPU has the instructions; the line and the scratch
            // memory have the required lengths.
            unsafe { self.line(line, line, scratch, PrefetchRange::NOTHING) };
        }
    }

    fn process_outofplace_with_scratch(
        &self,
        input: &mut [Complex<f32>],
        output: &mut [Complex<f32>],
        scratch: &mut [Complex<f32>],
    ) {
        self.process_immutable_with_scratch(input, output, scratch);
    }

    fn process_immutable_with_scratch(
        &self,
        input: &[Complex<f32>],
        output: &mut [Complex<f32>],
        scratch: &mut [Complex<f32>],
    ) {
        assert!(input.len() == output.len() && input.len().is_multiple_of(self.len), "whole lines, as many as outputs");
        let scratch = self.aligned(scratch);
        let mut outputs = output.chunks_exact_mut(self.len).peekable();
        let mut lines = input.chunks_exact(self.len).peekable();
        while let (Some(line), Some(output)) = (lines.next(), outputs.next()) {
            let after = match (lines.peek(), outputs.peek()) {
                (Some(line), Some(output)) if self.len <= NEAR_MAX => {
                    PrefetchRange { input: line.as_ptr().cast(), output: output.as_ptr().cast() }
                }
                _ => PrefetchRange::NOTHING,
            };
            // SAFETY: as above.
            unsafe { self.line(line.as_ptr().cast(), output.as_mut_ptr().cast(), scratch, after) };
        }
    }

    fn get_inplace_scratch_len(&self) -> usize {
        self.scratch_len()
    }

    fn get_outofplace_scratch_len(&self) -> usize {
        self.scratch_len()
    }

    fn get_immutable_scratch_len(&self) -> usize {
        self.scratch_len()
    }
}

/// The longest line that is prefetched: the level-1 cache has room for lines up to this length.
const NEAR_MAX: usize = 1024;

/// The memory that will be read and written next. It is prefetched little by little, because many
/// prefetches at once would wait for each other.
#[derive(Clone, Copy)]
struct PrefetchRange {
    input: *const f32,
    output: *const f32,
}

impl PrefetchRange {
    const NOTHING: PrefetchRange = PrefetchRange { input: std::ptr::null(), output: std::ptr::null() };

    /// Prefetches as much memory as one butterfly covers: of the output during the last pass, of
    /// the input during the other passes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn bring<const RADIX: usize, const LAST: bool>(self, number: usize) {
        let line = if LAST { self.output } else { self.input };
        if line.is_null() {
            return;
        }
        for half in 0..2 * RADIX {
            let place = line.wrapping_add((2 * RADIX * number + half) * LANES).cast();
            // A prefetch has no effect on memory and cannot fault at any address.
            match LAST {
                true => _mm_prefetch::<_MM_HINT_ET0>(place),
                false => _mm_prefetch::<_MM_HINT_T0>(place),
            }
        }
    }
}

/// Sixteen complex numbers.
#[derive(Clone, Copy)]
struct Value {
    re: __m512,
    im: __m512,
}

// SAFETY: the bit pattern of all zeros is a valid vector.
const ZERO: Value = unsafe { std::mem::zeroed() };

impl Value {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn plus(self, other: Value) -> Value {
        Value { re: _mm512_add_ps(self.re, other.re), im: _mm512_add_ps(self.im, other.im) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn minus(self, other: Value) -> Value {
        Value { re: _mm512_sub_ps(self.re, other.re), im: _mm512_sub_ps(self.im, other.im) }
    }

    /// `self + i · other`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn plus_turned(self, other: Value) -> Value {
        Value { re: _mm512_sub_ps(self.re, other.im), im: _mm512_add_ps(self.im, other.re) }
    }

    /// `self - i · other`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn minus_turned(self, other: Value) -> Value {
        Value { re: _mm512_add_ps(self.re, other.im), im: _mm512_sub_ps(self.im, other.re) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn times(self, other: Value) -> Value {
        Value {
            re: _mm512_fnmadd_ps(self.im, other.im, _mm512_mul_ps(self.re, other.re)),
            im: _mm512_fmadd_ps(self.im, other.re, _mm512_mul_ps(self.re, other.im)),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn plus_scaled(self, scale: __m512, other: Value) -> Value {
        Value { re: _mm512_fmadd_ps(scale, other.re, self.re), im: _mm512_fmadd_ps(scale, other.im, self.im) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn minus_scaled(self, scale: __m512, other: Value) -> Value {
        Value { re: _mm512_fnmadd_ps(scale, other.re, self.re), im: _mm512_fnmadd_ps(scale, other.im, self.im) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn butterfly<const RADIX: usize>(values: [Value; RADIX]) -> [Value; RADIX] {
    let mut out = values;
    match RADIX {
        2 => (out[0], out[1]) = (values[0].plus(values[1]), values[0].minus(values[1])),
        4 => out.copy_from_slice(&fft4(std::array::from_fn(|at| values[at]))),
        _ => out.copy_from_slice(&fft8(std::array::from_fn(|at| values[at]))),
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fft4([a, b, c, d]: [Value; 4]) -> [Value; 4] {
    let (sum, difference, other_sum, other) = (a.plus(c), a.minus(c), b.plus(d), b.minus(d));
    [sum.plus(other_sum), difference.minus_turned(other), sum.minus(other_sum), difference.plus_turned(other)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fft8(x: [Value; 8]) -> [Value; 8] {
    let even = fft4([x[0], x[2], x[4], x[6]]);
    let odd = fft4([x[1], x[3], x[5], x[7]]);
    let half = _mm512_set1_ps(std::f32::consts::FRAC_1_SQRT_2);
    // The products with `1 - i` and `-1 - i`: rotations by -45° and -135°, without the factor
    // `1/√2`.
    let one = Value { re: _mm512_add_ps(odd[1].re, odd[1].im), im: _mm512_sub_ps(odd[1].im, odd[1].re) };
    let three = Value {
        re: _mm512_sub_ps(odd[3].im, odd[3].re),
        im: _mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), odd[3].re), odd[3].im),
    };
    [
        even[0].plus(odd[0]),
        even[1].plus_scaled(half, one),
        even[2].minus_turned(odd[2]),
        even[3].plus_scaled(half, three),
        even[0].minus(odd[0]),
        even[1].minus_scaled(half, one),
        even[2].plus_turned(odd[2]),
        even[3].minus_scaled(half, three),
    ]
}

/// cos(π/8) and cos(3π/8). Each is also the sine of the other angle.
const COS_1: f32 = 0.923_879_5;
const COS_3: f32 = 0.382_683_43;
const HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// The 16th roots of unity between the two radix-4 steps of `fft16`, by exponent.
const ROOTS: [[f32; 2]; 10] = [
    [1.0, 0.0],
    [COS_1, -COS_3],
    [HALF, -HALF],
    [COS_3, -COS_1],
    [0.0, -1.0],
    [-COS_3, -COS_1],
    [-HALF, -HALF],
    [-COS_1, -COS_3],
    [-1.0, 0.0],
    [-COS_1, COS_3],
];

/// The constant gives each caller an instance of its own, so that the compiler inlines it there.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fft16<const INVERSE: bool>(x: [Value; 16]) -> [Value; 16] {
    let (mut between, mut out) = (x, x);
    for column in 0..4 {
        let spectrum = fft4([x[column], x[column + 4], x[column + 8], x[column + 12]]);
        for (row, value) in spectrum.into_iter().enumerate() {
            let root = ROOTS[column * row];
            between[column + 4 * row] = match column * row {
                0 => value,
                4 => ZERO.minus_turned(value),
                _ => value.times(Value { re: _mm512_set1_ps(root[0]), im: _mm512_set1_ps(root[1]) }),
            };
        }
    }
    for row in 0..4 {
        let own = 4 * row;
        let spectrum = fft4([between[own], between[own + 1], between[own + 2], between[own + 3]]);
        for (column, value) in spectrum.into_iter().enumerate() {
            out[row + 4 * column] = value;
        }
    }
    out
}

/// # Safety
/// `from` is valid for reads of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn load(from: *const f32) -> Value {
    // SAFETY: as the caller guarantees.
    unsafe { Value { re: _mm512_loadu_ps(from), im: _mm512_loadu_ps(from.add(LANES)) } }
}

/// # Safety
/// `to` is valid for writes of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn store(to: *mut f32, value: Value) {
    // SAFETY: as the caller guarantees.
    unsafe {
        _mm512_storeu_ps(to, value.re);
        _mm512_storeu_ps(to.add(LANES), value.im);
    }
}

/// Loads complex numbers whose real and imaginary parts are interleaved.
///
/// # Safety
/// `from` is valid for reads of sixteen complex numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn load_pairs<const INVERSE: bool>(from: *const f32) -> Value {
    // SAFETY: as the caller guarantees.
    let Value { re: low, im: high } = unsafe { load(from) };
    let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    let (re, im) = (_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high));
    if INVERSE { Value { re: im, im: re } } else { Value { re, im } }
}

/// Stores complex numbers with interleaved real and imaginary parts.
///
/// # Safety
/// `to` is valid for writes of sixteen complex numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn store_pairs<const INVERSE: bool>(to: *mut f32, value: Value) {
    let (re, im) = if INVERSE { (value.im, value.re) } else { (value.re, value.im) };
    let low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    let high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    let pairs = Value { re: _mm512_permutex2var_ps(re, low, im), im: _mm512_permutex2var_ps(re, high, im) };
    // SAFETY: as the caller guarantees.
    unsafe { store(to, pairs) };
}

/// Transposes a square of numbers: first in pairs, then in fours, then by quarters of vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn turned(rows: [__m512; LANES]) -> [__m512; LANES] {
    let (mut pairs, mut fours, mut columns) = (rows, rows, rows);
    for at in (0..LANES).step_by(2) {
        pairs[at] = _mm512_unpacklo_ps(rows[at], rows[at + 1]);
        pairs[at + 1] = _mm512_unpackhi_ps(rows[at], rows[at + 1]);
    }
    for at in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (a, b) = (_mm512_castps_pd(pairs[at + half]), _mm512_castps_pd(pairs[at + 2 + half]));
            fours[at + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[at + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    // Quarter `q` of `fours[4g + c]` has column `4q + c` of the rows from `4g` on.
    for at in 0..4 {
        let even = [0, 8].map(|first| _mm512_shuffle_f32x4::<0x88>(fours[first + at], fours[first + 4 + at]));
        let odd = [0, 8].map(|first| _mm512_shuffle_f32x4::<0xdd>(fours[first + at], fours[first + 4 + at]));
        columns[at] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        columns[8 + at] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        columns[4 + at] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        columns[12 + at] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    columns
}

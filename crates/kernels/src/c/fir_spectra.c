// Long filters by spectra: a block takes a frame of LEN samples to its spectrum, multiplies with that of the taps, and takes it back, all in the
// block's memory; of a frame those outputs are kept whose samples are all in it. COMPLEX: samples are complex; of real ones two frames of a
// line are one of complex numbers. LEN is 4096 or 16384.
//
// A thread has 16 elements. Passes of radix 16 leave the spectrum in an order of their own, in which taps have theirs too; the way back goes
// through the same passes in reverse, so nothing is ever put in order.

#if COMPLEX
typedef complex64 sample;
#else
typedef f32 sample;
#endif
#if COMPLEX_TAPS
typedef complex64 tap;
#else
typedef f32 tap;
#endif

#define THREADS (LEN / 16)
// Blocks of a multiprocessor, as registers allow.
#define BLOCKS (LEN == 4096 ? 3 : 1)

DEVICE complex64 product(complex64 a, complex64 b)
{
    complex64 c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return c;
}

// Four elements `step` apart become their transform, in order; the sign is -1 for the way there, 1 for the way back.
DEVICE void transform_4(complex64 *a, u32 step, f32 sign)
{
    complex64 p = {a[0].re + a[2 * step].re, a[0].im + a[2 * step].im}, q = {a[0].re - a[2 * step].re, a[0].im - a[2 * step].im};
    complex64 r = {a[step].re + a[3 * step].re, a[step].im + a[3 * step].im};
    complex64 s = {-sign * (a[step].im - a[3 * step].im), sign * (a[step].re - a[3 * step].re)};
    a[0].re = p.re + r.re, a[0].im = p.im + r.im;
    a[step].re = q.re + s.re, a[step].im = q.im + s.im;
    a[2 * step].re = p.re - r.re, a[2 * step].im = p.im - r.im;
    a[3 * step].re = q.re - s.re, a[3 * step].im = q.im - s.im;
}

DEVICE complex64 turned(complex64 x, f32 re, f32 im)
{
    complex64 w = {re, im};
    return product(x, w);
}

// Sixteen elements become their transform, in order.
DEVICE void transform_16(complex64 *x, f32 sign)
{
    complex64 a[16];
    UNROLL for (u32 i = 0; i < 16; i++) a[i] = x[i];
    UNROLL for (u32 j = 0; j < 4; j++) transform_4(a + j, 4, sign);
    a[5] = turned(a[5], 0.92387953251128674f, sign * 0.38268343236508977f);
    a[6] = turned(a[6], 0.70710678118654752f, sign * 0.70710678118654752f);
    a[7] = turned(a[7], 0.38268343236508977f, sign * 0.92387953251128674f);
    a[9] = turned(a[9], 0.70710678118654752f, sign * 0.70710678118654752f);
    a[10] = turned(a[10], 0.0f, sign);
    a[11] = turned(a[11], -0.70710678118654752f, sign * 0.70710678118654752f);
    a[13] = turned(a[13], 0.38268343236508977f, sign * 0.92387953251128674f);
    a[14] = turned(a[14], -0.70710678118654752f, sign * 0.70710678118654752f);
    a[15] = turned(a[15], -0.92387953251128674f, sign * -0.38268343236508977f);
    UNROLL for (u32 k = 0; k < 4; k++) transform_4(a + 4 * k, 1, sign);
    UNROLL for (u32 k = 0; k < 16; k++) x[k] = a[k % 4 * 4 + k / 4];
}

DEVICE u32 padded(u32 place) { return place + place / 16; }

// The first of a thread's elements in a pass over parts of `length`, which are length / 16 apart.
DEVICE u32 first_of(u32 length)
{
    u32 apart = length / 16;
    return thread_x() / apart * length + thread_x() % apart;
}

DEVICE void store_all(LOCAL complex64 *memory, const complex64 *x, u32 length)
{
    UNROLL for (u32 j = 0; j < 16; j++) memory[padded(first_of(length) + length / 16 * j)] = x[j];
    BARRIER();
}
DEVICE void load_all(complex64 *x, LOCAL const complex64 *memory, u32 length)
{
    UNROLL for (u32 j = 0; j < 16; j++) x[j] = memory[padded(first_of(length) + length / 16 * j)];
}

// `roots`: exp(-2 pi i k / LEN) for every k below LEN, and behind them their conjugates, for the way back: what both ways read from one
// place a compiler would keep in registers, which there are too few of.
KERNEL LAUNCH_BOUNDS(256, 1) fir_roots(GLOBAL complex64 *RESTRICT roots)
{
    u32 k = block_x() * 256 + thread_x();
    complex64 root;
    sincospif(2.0f * (f32)k / (f32)LEN, &root.im, &root.re);
    roots[LEN + k] = root;
    root.im = -root.im;
    roots[k] = root;
}

// In a pass over parts of `length`, element k is turned by the k-th power of the thread's root: by one that is read, or a product of two.
DEVICE void turn_by_powers(complex64 *x, GLOBAL const complex64 *roots, u32 length)
{
    u32 place = thread_x() % (length / 16) * (LEN / length);
    complex64 one = roots[place], two = roots[2 * place], three = roots[3 * place];
    x[1] = product(x[1], one);
    x[2] = product(x[2], two);
    x[3] = product(x[3], three);
    UNROLL for (u32 k = 4; k < 16; k += 4) {
        complex64 w = roots[k * place];
        x[k] = product(x[k], w);
        x[k + 1] = product(x[k + 1], product(w, one));
        x[k + 2] = product(x[k + 2], product(w, two));
        x[k + 3] = product(x[k + 3], product(w, three));
    }
}

DEVICE void there(complex64 *x, LOCAL complex64 *memory, GLOBAL const complex64 *roots)
{
    transform_16(x, -1.0f);
    turn_by_powers(x, roots, LEN);
    store_all(memory, x, LEN);
    load_all(x, memory, LEN / 16);
    transform_16(x, -1.0f);
    turn_by_powers(x, roots, LEN / 16);
    store_all(memory, x, LEN / 16);
    load_all(x, memory, LEN / 256);
    transform_16(x, -1.0f);
#if LEN == 16384
    turn_by_powers(x, roots, LEN / 256);
    store_all(memory, x, LEN / 256);
    UNROLL for (u32 j = 0; j < 16; j++) x[j] = memory[padded(16 * thread_x() + j)];
    UNROLL for (u32 j = 0; j < 4; j++) transform_4(x + 4 * j, 1, -1.0f);
#endif
}

DEVICE void back(complex64 *x, LOCAL complex64 *memory, GLOBAL const complex64 *roots)
{
#if LEN == 16384
    UNROLL for (u32 j = 0; j < 4; j++) transform_4(x + 4 * j, 1, 1.0f);
    UNROLL for (u32 j = 0; j < 16; j++) memory[padded(16 * thread_x() + j)] = x[j];
    BARRIER();
    load_all(x, memory, LEN / 256);
    turn_by_powers(x, roots, LEN / 256);
#endif
    transform_16(x, 1.0f);
    store_all(memory, x, LEN / 256);
    load_all(x, memory, LEN / 16);
    turn_by_powers(x, roots, LEN / 16);
    transform_16(x, 1.0f);
    store_all(memory, x, LEN / 16);
    load_all(x, memory, LEN);
    turn_by_powers(x, roots, LEN);
    transform_16(x, 1.0f);
}

// The spectra of taps, `part` of them at a time, turned round and conjugated where it is asked for. A block for each part.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) fir_spectrum(GLOBAL complex64 *RESTRICT spectra, GLOBAL const tap *RESTRICT taps,
    GLOBAL const complex64 *RESTRICT roots, u32 tap_count, u32 part, u32 is_turned)
{
    DYNAMIC_SHARED(complex64, memory);
    complex64 x[16];
    UNROLL for (u32 j = 0; j < 16; j++) {
        u32 place = thread_x() + THREADS * j, number = block_x() * part + place;
        x[j].re = 0.0f, x[j].im = 0.0f;
        if (place < part && number < tap_count) {
            tap one = taps[is_turned ? tap_count - 1 - number : number];
#if COMPLEX_TAPS
            x[j].re = one.re, x[j].im = is_turned ? -one.im : one.im;
#else
            x[j].re = one;
#endif
        }
    }
    there(x, memory, roots);
    UNROLL for (u32 j = 0; j < 16; j++) {
        complex64 scaled = {x[j].re / LEN, x[j].im / LEN};
        spectra[(u64)block_x() * LEN + THREADS * j + thread_x()] = scaled;
    }
}

// What is larger than this, or is no number, would spoil the whole frame that it is in.
#define FINITE_MAX 1e30f

DEVICE u32 is_spoilt(complex64 x) { return !(fabsf(x.re) < FINITE_MAX && fabsf(x.im) < FINITE_MAX); }

// One part of the taps: y[t] += Σ taps[k] x[t + first - k], where the part's own taps are counted from zero; where `is_first`, y begins here.
// `marks` says of each block whether something in it is not finite, which spoils all of its outputs.
// A block for each frame, or pair of frames: a loop over them would keep every root in a register.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) fir_frames(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT source,
    GLOBAL const complex64 *RESTRICT spectrum, GLOBAL const complex64 *RESTRICT roots, GLOBAL u32 *RESTRICT marks, u64 len, u64 out_len,
    u32 part, i64 first, u32 is_first)
{
    DYNAMIC_SHARED(complex64, memory);
    SHARED u32 mark;
    if (thread_x() == 0) mark = is_first ? 0 : marks[block_x()];
    BARRIER();
    u64 kept = LEN - part + 1, frames = (out_len + kept - 1) / kept;
#if COMPLEX
    u64 units = frames;
#else
    u64 units = (frames + 1) / 2;
#endif
    u64 line = block_x() / units, number = block_x() - line * units;
    GLOBAL const sample *from = source + line * len;
    GLOBAL sample *to = target + line * out_len;
    complex64 x[16];
#if COMPLEX
    i64 start = (i64)(number * kept) + first - (i64)(part - 1);
#else
    i64 start = (i64)(2 * number * kept) + first - (i64)(part - 1);
#endif
    UNROLL for (u32 j = 0; j < 16; j++) {
        i64 place = start + (i64)(thread_x() + THREADS * j);
        x[j].re = 0.0f, x[j].im = 0.0f;
#if COMPLEX
        if (place >= 0 && place < (i64)len) x[j] = from[place];
#else
        if (place >= 0 && place < (i64)len) x[j].re = from[place];
        place += (i64)kept;
        if (place >= 0 && place < (i64)len) x[j].im = from[place];
#endif
        if (is_spoilt(x[j])) mark = 1;
    }
    there(x, memory, roots);
    UNROLL for (u32 j = 0; j < 16; j++) {
        complex64 weight = spectrum[THREADS * j + thread_x()];
        if (is_spoilt(weight)) mark = 1;
        x[j] = product(x[j], weight);
    }
    // The way back begins with the places that each thread has just read.
    back(x, memory, roots + LEN);
    UNROLL for (u32 j = 0; j < 16; j++) {
        u32 place = thread_x() + THREADS * j;
        if (place + 1 < part) continue;
        if (is_spoilt(x[j])) mark = 1;
#if COMPLEX
        u64 at = number * kept + place - (part - 1);
        if (at < out_len) {
            if (!is_first) x[j].re += to[at].re, x[j].im += to[at].im;
            to[at] = x[j];
        }
#else
        u64 at = 2 * number * kept + place - (part - 1);
        if (at < out_len) to[at] = x[j].re + (is_first ? 0.0f : to[at]);
        at += kept;
        if (at < out_len) to[at] = x[j].im + (is_first ? 0.0f : to[at]);
#endif
    }
    BARRIER();
    if (thread_x() == 0) marks[block_x()] = mark;
}

// Outputs of marked blocks, term by term: they are spoilt only where such a term is theirs.
KERNEL LAUNCH_BOUNDS(256, 2) fir_repair(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT source, GLOBAL const tap *RESTRICT taps,
    GLOBAL const u32 *RESTRICT marks, u64 blocks, u64 units, u64 outputs, u64 len, u64 out_len, i64 first, u32 tap_count, u32 is_turned)
{
    for (u64 block = block_x(); block < blocks; block += grid_size_x()) {
        if (!marks[block]) continue;
        u64 line = block / units, begin = (block - line * units) * outputs, end = begin + outputs < out_len ? begin + outputs : out_len;
        GLOBAL const sample *from = source + line * len;
        for (u64 at = begin + thread_x(); at < end; at += 256) {
            // Terms are added up by and by, and their sums to those before: fewer digits are lost.
            f32 all_re = 0.0f, all_im = 0.0f, re = 0.0f, im = 0.0f;
            i64 time = (i64)at + first;
            ROLLED for (u32 number = 0; number < tap_count; number++, time--) {
                if (number % 64 == 0) all_re += re, all_im += im, re = 0.0f, im = 0.0f;
                if (time < 0 || time >= (i64)len) continue;
                tap w = taps[is_turned ? tap_count - 1 - number : number];
#if COMPLEX_TAPS
                complex64 weight = {w.re, is_turned ? -w.im : w.im}, term = product(from[time], weight);
                re += term.re, im += term.im;
#elif COMPLEX
                re += w * from[time].re, im += w * from[time].im;
#else
                re += w * from[time];
#endif
            }
#if COMPLEX
            sample y = {all_re + re, all_im + im};
#else
            sample y = all_re + re;
#endif
            target[line * out_len + at] = y;
        }
    }
}

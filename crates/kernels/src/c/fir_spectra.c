// Long filters by spectra (overlap-save): a block transforms a frame of LEN samples, multiplies its spectrum with that of the taps, and transforms it
// back, all in the block's memory. It keeps the outputs whose samples are all in the frame. COMPLEX: samples are complex; otherwise two real frames
// of a line form one complex frame. LEN is 4096 or 16384.
//
// A thread has 16 elements. Passes of radix 16 leave the spectrum in a permuted order, which the spectrum of the taps has too. The inverse runs
// the same passes in reverse, so no spectrum is ever reordered.

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
    complex64 quarter = {-sign * a[10].im, sign * a[10].re};
    a[10] = quarter;
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

// How far its others lie from it in memory is known when this is compiled: where they are 16 or more apart, 16 divides that, and where they are
// fewer apart, none but every sixteenth begins behind another place that is left out.
DEVICE void store_all(LOCAL complex64 *memory, const complex64 *x, u32 length)
{
    LOCAL complex64 *own = memory + padded(first_of(length));
    UNROLL for (u32 j = 0; j < 16; j++) own[padded(length / 16 * j)] = x[j];
}
DEVICE void load_all(complex64 *x, LOCAL const complex64 *memory, u32 length)
{
    LOCAL const complex64 *own = memory + padded(first_of(length));
    UNROLL for (u32 j = 0; j < 16; j++) x[j] = own[padded(length / 16 * j)];
}

// Threads whose elements are a part of `length` have stored them, and see each other's: often they are of one warp.
DEVICE void meet(u32 length)
{
    if (length / 16 <= WARP) WARP_BARRIER();
    else BARRIER();
}

// `roots` has a table for the way there, and behind it its conjugates, for the way back: what both ways read from one place a compiler would keep
// in registers, which there are too few of. A table has, for each pass that turns, six powers of every thread's root, the first of all threads
// first, so that adjacent threads read adjacent words.
#define POWERS 6u
#define ROOTS_OF(length) (POWERS * ((length) / 16u))
#define ROOTS (ROOTS_OF(LEN) + ROOTS_OF(LEN / 16) + ROOTS_OF(LEN / 256))

// The root of a pass over parts of `length` is exp(-2 pi i place / length); its powers in the table are 1, 2, 3, 4, 8 and 12.
KERNEL LAUNCH_BOUNDS(256, 1) fir_roots(GLOBAL complex64 *RESTRICT roots)
{
    u32 number = block_x() * 256 + thread_x(), at = number, length = LEN;
    if (number >= ROOTS) return;
    while (at >= ROOTS_OF(length)) at -= ROOTS_OF(length), length /= 16;
    u32 power = at / (length / 16), place = at % (length / 16);
    power = power < 3 ? power + 1 : 4 * (power - 2);
    complex64 root;
    sincospif(2.0f * (f32)(power * place) / (f32)length, &root.im, &root.re);
    roots[ROOTS + number] = root;
    root.im = -root.im;
    roots[number] = root;
}

// In a pass over parts of `length`, element k is turned by the k-th power of the thread's root: by one that is read, or a product of two.
DEVICE void turn_by_powers(complex64 *x, GLOBAL const complex64 *roots, u32 length)
{
    u32 apart = length / 16, before = length == LEN ? 0 : length == LEN / 16 ? ROOTS_OF(LEN) : ROOTS_OF(LEN) + ROOTS_OF(LEN / 16);
    GLOBAL const complex64 *own = roots + before + thread_x() % apart;
    complex64 one = own[0], two = own[apart], three = own[2 * apart];
    x[1] = product(x[1], one);
    x[2] = product(x[2], two);
    x[3] = product(x[3], three);
    UNROLL for (u32 k = 4; k < 16; k += 4) {
        complex64 w = own[(k / 4 + 2) * apart];
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
    meet(LEN);
    load_all(x, memory, LEN / 16);
    transform_16(x, -1.0f);
    turn_by_powers(x, roots, LEN / 16);
    store_all(memory, x, LEN / 16);
    meet(LEN / 16);
    load_all(x, memory, LEN / 256);
    transform_16(x, -1.0f);
#if LEN == 16384
    turn_by_powers(x, roots, LEN / 256);
    store_all(memory, x, LEN / 256);
    meet(LEN / 256);
    load_all(x, memory, 16);
    UNROLL for (u32 j = 0; j < 4; j++) transform_4(x + 4 * j, 1, -1.0f);
#endif
}

DEVICE void back(complex64 *x, LOCAL complex64 *memory, GLOBAL const complex64 *roots)
{
#if LEN == 16384
    UNROLL for (u32 j = 0; j < 4; j++) transform_4(x + 4 * j, 1, 1.0f);
    store_all(memory, x, 16);
    meet(LEN / 256);
    load_all(x, memory, LEN / 256);
    turn_by_powers(x, roots, LEN / 256);
#endif
    transform_16(x, 1.0f);
    store_all(memory, x, LEN / 256);
    meet(LEN / 16);
    load_all(x, memory, LEN / 16);
    turn_by_powers(x, roots, LEN / 16);
    transform_16(x, 1.0f);
    store_all(memory, x, LEN / 16);
    meet(LEN);
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

// A sample of larger magnitude, or NaN, would make all outputs of its frame wrong.
#define FINITE_MAX 1e30f

DEVICE u32 is_spoilt(complex64 x) { return !((fabsf(x.re) < FINITE_MAX) & (fabsf(x.im) < FINITE_MAX)); }

// The part from `low` to `high` of a frame that begins at `start` and lies within `len` elements.
typedef struct {
    u32 low, high;
} extent;

DEVICE extent within(i64 start, u64 len)
{
    i64 low = start < 0 ? -start : 0, high = (i64)len - start;
    extent part = {low < LEN ? (u32)low : LEN, high <= 0 ? 0u : high < LEN ? (u32)high : LEN};
    return part;
}

DEVICE u32 is_in(extent part, u32 place) { return place >= part.low && place < part.high; }

// One part of the taps: y[t] += Σ taps[k] x[t + first - k], where the part's own taps are counted from zero; where `is_first`, y begins here.
// `marks` says for each block whether an element in it is not finite, which makes all of its outputs wrong. Elements of the spectrum that are not
// finite do so too, and are found there.
// A line has `units` blocks, one for each frame or pair of frames: a loop over them would keep every root in a register.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) fir_frames(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT source,
    GLOBAL const complex64 *RESTRICT spectrum, GLOBAL const complex64 *RESTRICT roots, GLOBAL u32 *RESTRICT marks, u64 len, u64 out_len,
    u32 units, u32 part, i64 first, u32 is_first)
{
    DYNAMIC_SHARED(complex64, memory);
    SHARED u32 mark;
    // Barriers follow before anybody else writes it.
    if (thread_x() == 0) mark = is_first ? 0 : marks[block_x()];
    u32 line = block_x() / units, number = block_x() - line * units, kept = LEN - part + 1, is_odd = 0;
    GLOBAL const sample *from = source + line * len;
    // Where the first sample lies, and where an output would that stands at its place.
#if COMPLEX
    i64 to_start = (i64)((u64)number * kept) - (i64)(part - 1);
#else
    i64 to_start = (i64)(2 * (u64)number * kept) - (i64)(part - 1);
#endif
    i64 start = to_start + first;
    complex64 x[16];
    extent inputs = within(start, len);
#if COMPLEX
    // Most frames lie within their line.
    if (inputs.low == 0 && inputs.high == LEN) {
        UNROLL for (u32 j = 0; j < 16; j++) x[j] = from[start + (i64)(thread_x() + THREADS * j)];
    } else {
        UNROLL for (u32 j = 0; j < 16; j++) {
            u32 place = thread_x() + THREADS * j;
            x[j].re = 0.0f, x[j].im = 0.0f;
            if (is_in(inputs, place)) x[j] = from[start + (i64)place];
        }
    }
#else
    extent others = within(start + (i64)kept, len);
    UNROLL for (u32 j = 0; j < 16; j++) {
        u32 place = thread_x() + THREADS * j;
        x[j].re = is_in(inputs, place) ? from[start + (i64)place] : 0.0f;
        x[j].im = is_in(others, place) ? from[start + (i64)kept + (i64)place] : 0.0f;
    }
#endif
    UNROLL for (u32 j = 0; j < 16; j++) is_odd |= is_spoilt(x[j]);
    there(x, memory, roots);
    UNROLL for (u32 j = 0; j < 16; j++) x[j] = product(x[j], spectrum[THREADS * j + thread_x()]);
    // The way back begins with the places that each thread has just read.
    back(x, memory, roots + ROOTS);
    UNROLL for (u32 j = 0; j < 16; j++) is_odd |= is_spoilt(x[j]);
    GLOBAL sample *to = target + line * out_len;
    // Outputs before the last of the part's taps contain samples of the frame's end.
    extent outputs = within(to_start, out_len);
    outputs.low = part - 1;
#if COMPLEX
    if (!is_first) {
        UNROLL for (u32 j = 0; j < 16; j++) {
            u32 place = thread_x() + THREADS * j;
            if (is_in(outputs, place)) x[j].re += to[to_start + (i64)place].re, x[j].im += to[to_start + (i64)place].im;
        }
    }
    UNROLL for (u32 j = 0; j < 16; j++) {
        u32 place = thread_x() + THREADS * j;
        if (is_in(outputs, place)) to[to_start + (i64)place] = x[j];
    }
#else
    extent behind = within(to_start + (i64)kept, out_len);
    behind.low = part - 1;
    UNROLL for (u32 j = 0; j < 16; j++) {
        u32 place = thread_x() + THREADS * j;
        i64 at = to_start + (i64)place;
        if (is_in(outputs, place)) to[at] = x[j].re + (is_first ? 0.0f : to[at]);
        at += (i64)kept;
        if (is_in(behind, place)) to[at] = x[j].im + (is_first ? 0.0f : to[at]);
    }
#endif
    if (is_odd) mark = 1;
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

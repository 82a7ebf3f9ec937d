// Fourier transforms of contiguous lines, by Stockham's algorithm: each pass takes one factor out of the length, reads with
// one arrangement and writes with the next, so that the last pass writes the spectrum in order. One launch is one pass.
//
// A pass over lines of `len` sees `stride` interleaved lines of `length` elements (length * stride = len), and makes of each
// butterfly of `radix` elements, `length / radix` apart, as many neighbours.
//
// WIDE is 1 for numbers in f64. RADIX is the factor of `butterfly`; all other properties of a pass are arguments, so that few kernels are compiled.

#ifndef RADIX
#define RADIX 1
#endif

// How a line lies in memory: complex numbers, real ones, or the first half of a spectrum whose other half mirrors it.
#define COMPLEX 0
#define REAL 1
#define HALF 2

typedef struct { f64 re, im; } wide;

#if WIDE
typedef f64 real;
typedef wide element;
#else
typedef f32 real;
typedef complex64 element;
#endif

// A pass: all lines are `len` long; see above. The sign is -1 for the transform, 1 for its inverse.
typedef struct {
    u64 lines;
    u32 len, length, stride, radix;
#if WIDE
    f64 scale;
    f32 sign;
    u32 unused;
#else
    f32 scale, sign;
#endif
    u32 source, target;
} pass;

// exp(sign * 2 pi i * numerator / denominator).
DEVICE wide root(u32 numerator, u32 denominator, f32 sign)
{
    wide w;
#if defined(PANOPLY_NO_F64)
    sincospif(2.0f * (f32)(numerator % denominator) / (f32)denominator, &w.im, &w.re);
#else
    sincos(6.283185307179586476925 * (f64)numerator / (f64)denominator, &w.im, &w.re);
#endif
    w.im *= sign;
    return w;
}

DEVICE wide multiply_wide(wide a, wide b)
{
    wide c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return c;
}

DEVICE element load_element(GLOBAL const void *source, u64 line, u32 place, const pass *now)
{
    if (now->source == COMPLEX) return ((GLOBAL const element *)source)[line * now->len + place];
    if (now->source == REAL) {
        element value = {((GLOBAL const real *)source)[line * now->len + place], 0};
        return value;
    }
    u32 half = now->len / 2 + 1;
    u32 mirrored = place < half ? place : now->len - place;
    element value = ((GLOBAL const element *)source)[line * half + mirrored];
    if (mirrored != place) value.im = -value.im;
    if (place == 0 || 2 * (u64)place == now->len) value.im = 0;
    return value;
}

DEVICE void store_element(GLOBAL void *target, u64 line, u32 place, const pass *now, real re, real im)
{
    u32 half = now->len / 2 + 1;
    element value = {re, im};
    if (now->target == COMPLEX) ((GLOBAL element *)target)[line * now->len + place] = value;
    else if (now->target == REAL) ((GLOBAL real *)target)[line * now->len + place] = re;
    else if (place < half) ((GLOBAL element *)target)[line * half + place] = value;
}

// A pass with a small factor. One thread is one butterfly.
KERNEL LAUNCH_BOUNDS(256, 1) butterfly(GLOBAL void *RESTRICT target, GLOBAL const void *RESTRICT source, pass now)
{
    SHARED element roots[RADIX];
    if (thread_x() < RADIX) {
        wide w = root(thread_x(), RADIX, now.sign);
        roots[thread_x()].re = (real)w.re;
        roots[thread_x()].im = (real)w.im;
    }
    BARRIER();
    u32 apart = now.length / RADIX, per_line = now.len / RADIX;
    u64 count = now.lines * per_line, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = i / per_line;
        u32 place = (u32)(i % per_line), group = place / now.stride, lane_of = place % now.stride;
        element a[RADIX];
        UNROLL for (u32 j = 0; j < RADIX; j++)
            a[j] = load_element(source, line, lane_of + now.stride * (group + j * apart), &now);
        wide turn = root(group, now.length, now.sign), twiddle = {now.scale, 0.0};
        UNROLL for (u32 k = 0; k < RADIX; k++) {
            real re = a[0].re, im = a[0].im;
            UNROLL for (u32 j = 1; j < RADIX; j++) {
                element w = roots[j * k % RADIX];
                re += a[j].re * w.re - a[j].im * w.im;
                im += a[j].re * w.im + a[j].im * w.re;
            }
            u32 to = lane_of + now.stride * (RADIX * group + k);
            real wr = (real)twiddle.re, wi = (real)twiddle.im;
            // The first of a butterfly is only scaled: an infinite element stays what it is.
            if (k == 0 || group == 0) store_element(target, line, to, &now, re * wr, im * wr);
            else store_element(target, line, to, &now, re * wr - im * wi, re * wi + im * wr);
            if (group != 0) twiddle = multiply_wide(twiddle, turn);
        }
    }
}

// A pass with a large prime factor: the plain sum, in f64. One thread is one element of the target.
KERNEL LAUNCH_BOUNDS(256, 1) plain_sum(GLOBAL void *RESTRICT target, GLOBAL const void *RESTRICT source, pass now)
{
    u32 apart = now.length / now.radix;
    u64 count = now.lines * now.len, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = i / now.len;
        u32 place = (u32)(i % now.len), lane_of = place % now.stride, rest = place / now.stride;
        u32 k = rest % now.radix, group = rest / now.radix;
        wide sum = {0.0, 0.0};
#if defined(PANOPLY_NO_F64)
        // Every root by itself, and what each addition loses is added to the next.
        wide lost = {0.0f, 0.0f};
        for (u32 j = 0; j < now.radix; j++) {
            element x = load_element(source, line, lane_of + now.stride * (group + j * apart), &now);
            wide value = {x.re, x.im};
            value = multiply_wide(value, root((u32)((u64)j * k % now.radix), now.radix, now.sign));
            f32 re = sub_f32(value.re, lost.re), im = sub_f32(value.im, lost.im);
            f32 next_re = add_f32(sum.re, re), next_im = add_f32(sum.im, im);
            lost.re = sub_f32(sub_f32(next_re, sum.re), re);
            lost.im = sub_f32(sub_f32(next_im, sum.im), im);
            sum.re = next_re;
            sum.im = next_im;
        }
#else
        wide turn = root(k, now.radix, now.sign), w = {1.0, 0.0};
        for (u32 j = 0; j < now.radix; j++) {
            element x = load_element(source, line, lane_of + now.stride * (group + j * apart), &now);
            wide value = {x.re, x.im};
            value = multiply_wide(value, w);
            sum.re += value.re;
            sum.im += value.im;
#if WIDE
            // Every root by itself: products would round as much as the sum may.
            w = root((u32)((u64)(j + 1) * k % now.radix), now.radix, now.sign);
#else
            w = multiply_wide(w, turn);
#endif
        }
#endif
        sum = multiply_wide(sum, root(group * k, now.length, now.sign));
        store_element(target, line, place, &now, (real)sum.re * now.scale, (real)sum.im * now.scale);
    }
}

#if WIDE
// Multiplies every part of `count` complex numbers.
KERNEL LAUNCH_BOUNDS(256, 4) scale(GLOBAL f64 *data, u64 count, f64 factor)
{
    u64 start = (u64)block_x() * block_size_x() + thread_x(), step = (u64)grid_size_x() * block_size_x();
    for (u64 i = start; i < 2 * count; i += step) data[i] *= factor;
}
#else
// Multiplies every part of `count` complex numbers, which start on 16 bytes.
KERNEL LAUNCH_BOUNDS(256, 4) scale(GLOBAL f32x4 *data, u64 count, f32 factor)
{
    u64 start = (u64)block_x() * block_size_x() + thread_x(), step = (u64)grid_size_x() * block_size_x();
    for (u64 i = start; i < count / 2; i += step) {
        f32x4 v = data[i];
        v.x *= factor;
        v.y *= factor;
        v.z *= factor;
        v.w *= factor;
        data[i] = v;
    }
    if (start == 0 && count % 2 != 0) {
        GLOBAL complex64 *last = (GLOBAL complex64 *)data + (count - 1);
        last->re *= factor;
        last->im *= factor;
    }
}
#endif

// Halves of spectra of `len` real numbers, scaled, without the imaginary parts that a real signal does not have.
KERNEL LAUNCH_BOUNDS(256, 4) pack_half(GLOBAL element *RESTRICT target, GLOBAL const element *RESTRICT source, u64 lines,
                                       u32 len, real factor)
{
    u32 half = len / 2 + 1;
    u64 count = lines * half, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u32 place = count >> 32 == 0 ? (u32)i % half : (u32)(i % half);
        element value = source[i];
        value.re *= factor;
        value.im = place == 0 || 2 * (u64)place == len ? 0 : value.im * factor;
        target[i] = value;
    }
}

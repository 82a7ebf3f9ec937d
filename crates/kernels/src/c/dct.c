// The steps before and after a Fourier transform that together are a cosine transform of lines of `n` samples. KIND is 1 to 4; the transform behind `dct_before`
// is of
//   1: 2 (n - 1) real numbers, the line and its mirror;
//   2: n real numbers, those at even places in order and the others backwards behind them;
//   3: half a spectrum, back to n real numbers in that order;
//   4: n / 2 complex numbers, or 2 n where n is odd (ODD), those in the second half zero.

#if KIND == 3 || KIND == 4
typedef complex64 entered;
#else
typedef f32 entered;
#endif
#if KIND == 3
typedef f32 transformed;
#else
typedef complex64 transformed;
#endif

// How many numbers of a line go into the transform, and come out of it.
#if KIND == 1
#define ENTERED (2 * (n - 1))
#define LEFT n
#elif KIND == 2
#define ENTERED n
#define LEFT (n / 2 + 1)
#elif KIND == 3
#define ENTERED (n / 2 + 1)
#define LEFT n
#elif ODD
#define ENTERED (2 * n)
#define LEFT (2 * n)
#else
#define ENTERED (n / 2)
#define LEFT (n / 2)
#endif

#define ROOT_OF_2 1.41421356237309504880f

DEVICE u64 quotient(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u64)((u32)a / (u32)b) : a / b; }

// exp(-pi i numerator / denominator).
DEVICE complex64 turn(u64 numerator, u64 denominator)
{
    complex64 w;
    sincospif((f32)numerator / (f32)denominator, &w.im, &w.re);
    w.im = -w.im;
    return w;
}

DEVICE complex64 product(complex64 a, complex64 b)
{
    complex64 c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return c;
}

KERNEL LAUNCH_BOUNDS(256, 4) dct_before(GLOBAL entered *RESTRICT target, GLOBAL const f32 *RESTRICT source, u64 lines, u64 n, u32 orthonormal)
{
    u64 count = lines * ENTERED, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = quotient(i, ENTERED), at = i - line * ENTERED;
        GLOBAL const f32 *from = source + line * n;
        f32 first = orthonormal ? ROOT_OF_2 : 1.0f;
#if KIND == 1
        u64 place = at < n ? at : 2 * (n - 1) - at;
        target[i] = from[place] * (place == 0 || place == n - 1 ? first : 1.0f);
#elif KIND == 2
        target[i] = from[2 * at < n ? 2 * at : 2 * (n - 1 - at) + 1];
#elif KIND == 3
        complex64 value = {from[at] * (at == 0 ? first : 1.0f), at == 0 ? 0.0f : -from[n - at]}, back = turn(at, 2 * n);
        back.im = -back.im;
        value = product(value, back);
        // The transform divides by the length.
        value.re *= (f32)n;
        value.im *= (f32)n;
        target[i] = value;
#elif ODD
        complex64 value = {at < n ? from[at] : 0.0f, 0.0f};
        target[i] = product(value, turn(at, 2 * n));
#else
        complex64 value = {from[2 * at], from[n - 1 - 2 * at]};
        target[i] = product(value, turn(4 * at + 1, 4 * n));
#endif
    }
}

KERNEL LAUNCH_BOUNDS(256, 4) dct_behind(GLOBAL f32 *RESTRICT target, GLOBAL const transformed *RESTRICT source, u64 lines, u64 n, u32 orthonormal,
    f32 scale)
{
    u64 count = lines * n, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = quotient(i, n), k = i - line * n;
        GLOBAL const transformed *from = source + line * LEFT;
        f32 value;
#if KIND == 1
        value = from[k].re;
        if (orthonormal && (k == 0 || k == n - 1)) value /= ROOT_OF_2;
#elif KIND == 2
        complex64 bin = from[2 * k <= n ? k : n - k];
        if (2 * k > n) bin.im = -bin.im;
        value = 2.0f * product(bin, turn(k, 2 * n)).re;
        if (orthonormal && k == 0) value /= ROOT_OF_2;
#elif KIND == 3
        value = from[k % 2 == 0 ? k / 2 : n - 1 - k / 2];
#elif ODD
        value = 2.0f * product(from[k], turn(2 * k + 1, 4 * n)).re;
#else
        u64 bin = k % 2 == 0 ? k / 2 : (n - 1 - k) / 2;
        complex64 turned = product(from[bin], turn(bin, n));
        value = 2.0f * (k % 2 == 0 ? turned.re : -turned.im);
#endif
        target[i] = value * scale;
    }
}

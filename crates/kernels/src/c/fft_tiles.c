// Long Fourier transforms of complex lines, in two passes over tiles in the block's memory.
//
// A line of `rows` x `cols` elements, both of them powers of two, is a matrix. The first pass transforms its columns and turns each
// element by its place; the second transforms the rows, and writes them as columns: the spectrum is then in order. A block takes LINES
// neighbouring columns, or rows, of LEN elements: the elements that it reads and writes of the matrix's lines are adjacent.
//
// `fft_lines` transforms whole lines that lie one after the other in one pass: LINES of them in a block.
//
// Parameters: LEN, 256 times 1, 2, 4, 8 or 16; LINES, a power of two up to 16; INVERSE; FIRST, whether this is the first pass; BLOCKS of a
// multiprocessor.
//
// A thread has 16 elements of a line, LEN / 16 apart. Passes of radix 16, 16 and LEN / 256, as in fft.c, exchange them by the block's
// memory.

#define SIGN (INVERSE ? 1.0f : -1.0f)

#define THREADS_OF_LINE (LEN / 16)
#define THREADS (LINES * THREADS_OF_LINE)
#define LAST_RADIX (LEN / 256)
// A line in the block's memory: one place more behind every 16, so that threads 16 places apart do not meet in a bank, nor lines.
#define LINE_PLACES (LEN + LEN / 16 + 16 / LINES)

DEVICE complex64 product(complex64 a, complex64 b)
{
    complex64 c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return c;
}

// exp(SIGN * 2 pi i * numerator / denominator); the denominator is a power of two up to 2^24, and above the numerator.
DEVICE complex64 root_of(u32 numerator, u32 denominator)
{
    complex64 w;
    sincospif(2.0f * (f32)numerator / (f32)denominator, &w.im, &w.re);
    w.im *= SIGN;
    return w;
}

// Four elements `step` apart become their transform, in order.
DEVICE void transform_4(complex64 *a, u32 step)
{
    complex64 p = {a[0].re + a[2 * step].re, a[0].im + a[2 * step].im}, q = {a[0].re - a[2 * step].re, a[0].im - a[2 * step].im};
    complex64 r = {a[step].re + a[3 * step].re, a[step].im + a[3 * step].im};
    // The difference, turned by a quarter.
    complex64 s = {-SIGN * (a[step].im - a[3 * step].im), SIGN * (a[step].re - a[3 * step].re)};
    a[0].re = p.re + r.re, a[0].im = p.im + r.im;
    a[step].re = q.re + s.re, a[step].im = q.im + s.im;
    a[2 * step].re = p.re - r.re, a[2 * step].im = p.im - r.im;
    a[3 * step].re = q.re - s.re, a[3 * step].im = q.im - s.im;
}

#define TURN(x, re_, im_)                          \
    {                                              \
        complex64 w = {re_, SIGN * (im_)};    \
        x = product(x, w);                         \
    }

// Element k of the transform of 16 elements is then at (k % 4) * 4 + k / 4.
DEVICE void transform_16(complex64 *a)
{
    UNROLL for (u32 j = 0; j < 4; j++) transform_4(a + j, 4);
    TURN(a[5], 0.92387953251128674f, 0.38268343236508977f)
    TURN(a[6], 0.70710678118654752f, 0.70710678118654752f)
    TURN(a[7], 0.38268343236508977f, 0.92387953251128674f)
    TURN(a[9], 0.70710678118654752f, 0.70710678118654752f)
    TURN(a[10], 0.0f, 1.0f)
    TURN(a[11], -0.70710678118654752f, 0.70710678118654752f)
    TURN(a[13], 0.38268343236508977f, 0.92387953251128674f)
    TURN(a[14], -0.70710678118654752f, 0.70710678118654752f)
    TURN(a[15], -0.92387953251128674f, -0.38268343236508977f)
    UNROLL for (u32 k = 0; k < 4; k++) transform_4(a + k * 4, 1);
}
#define PLACE_OF_16(k) ((k) % 4 * 4 + (k) / 4)

// The first sixteen powers, each by few products.
DEVICE void powers(complex64 *w, complex64 first)
{
    w[0].re = 1.0f, w[0].im = 0.0f;
    w[1] = first;
    UNROLL for (u32 k = 2; k < 16; k++) w[k] = product(w[k / 2], w[k - k / 2]);
}

DEVICE u32 place_of(u32 line, u32 position) { return line * LINE_PLACES + position + position / 16; }

// The transform of the block's lines. a[j] is element i + j * THREADS_OF_LINE of line `line`, and becomes that of the spectrum of `to_line`,
// with `to_i` for i. All threads of the block.
DEVICE void transform_lines(complex64 *a, LOCAL complex64 *memory, u32 line, u32 i, u32 to_line, u32 to_i)
{
    complex64 w[16];
    transform_16(a);
    powers(w, root_of(i, LEN));
    UNROLL for (u32 k = 0; k < 16; k++) memory[place_of(line, 16 * i + k)] = product(a[PLACE_OF_16(k)], w[k]);
    BARRIER();
    u32 q = to_i % 16, p = to_i / 16;
    UNROLL for (u32 j = 0; j < 16; j++) a[j] = memory[place_of(to_line, q + 16 * (p + LAST_RADIX * j))];
    BARRIER();
    transform_16(a);
    powers(w, root_of(p, LEN / 16));
    UNROLL for (u32 k = 0; k < 16; k++) memory[place_of(to_line, q + 16 * (16 * p + k))] = product(a[PLACE_OF_16(k)], w[k]);
    BARRIER();
    // Thread i takes the places i, i + LEN / 16, ..., which are those of 16 / LAST_RADIX butterflies.
    UNROLL for (u32 j = 0; j < 16; j++) a[j] = memory[place_of(to_line, to_i + THREADS_OF_LINE * j)];
    // Places 256 apart are 16 / LAST_RADIX elements apart.
    UNROLL for (u32 u = 0; u < 16 / LAST_RADIX; u++) {
        complex64 *b = a + u;
        const u32 step = 16 / LAST_RADIX;
#if LAST_RADIX == 1
        (void)b, (void)step;
#elif LAST_RADIX == 2
        complex64 x = b[0], y = b[step];
        b[0].re = x.re + y.re, b[0].im = x.im + y.im;
        b[step].re = x.re - y.re, b[step].im = x.im - y.im;
#elif LAST_RADIX == 4
        transform_4(b, step);
#elif LAST_RADIX == 16
        complex64 all[16];
        transform_16(b);
        UNROLL for (u32 k = 0; k < 16; k++) all[k] = b[PLACE_OF_16(k)];
        UNROLL for (u32 k = 0; k < 16; k++) b[k] = all[k];
#else
        complex64 even[4] = {b[0], b[2 * step], b[4 * step], b[6 * step]}, odd[4] = {b[step], b[3 * step], b[5 * step], b[7 * step]};
        transform_4(even, 1);
        transform_4(odd, 1);
        TURN(odd[1], 0.70710678118654752f, 0.70710678118654752f)
        TURN(odd[2], 0.0f, 1.0f)
        TURN(odd[3], -0.70710678118654752f, 0.70710678118654752f)
        UNROLL for (u32 k = 0; k < 4; k++) {
            b[k * step].re = even[k].re + odd[k].re, b[k * step].im = even[k].im + odd[k].im;
            b[(k + 4) * step].re = even[k].re - odd[k].re, b[(k + 4) * step].im = even[k].im - odd[k].im;
        }
#endif
    }
}

// One pass over lines of rows * cols elements, one after the other; a block for each tile. The second multiplies with `scale`.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) fft_tiles(GLOBAL complex64 *RESTRICT target, GLOBAL const complex64 *RESTRICT source, u32 rows,
    u32 cols, f32 scale)
{
    DYNAMIC_SHARED(complex64, memory);
    u32 across = (FIRST ? cols : rows) / LINES, base = block_x() % across * LINES;
    u64 start = (u64)(block_x() / across) * rows * cols;
    u32 to_line = thread_x() % LINES, to_i = thread_x() / LINES;
    complex64 a[16];
    if (FIRST) {
        UNROLL for (u32 j = 0; j < 16; j++) a[j] = source[start + (u64)(to_i + j * THREADS_OF_LINE) * cols + base + to_line];
        transform_lines(a, memory, to_line, to_i, to_line, to_i);
        complex64 w[16], first = root_of((base + to_line) * to_i, rows * cols);
        powers(w, root_of((base + to_line) * THREADS_OF_LINE, rows * cols));
        UNROLL for (u32 j = 0; j < 16; j++) {
            target[start + (u64)(to_i + j * THREADS_OF_LINE) * cols + base + to_line] = product(a[j], product(first, w[j]));
        }
    } else {
        u32 line = thread_x() / THREADS_OF_LINE, i = thread_x() % THREADS_OF_LINE;
        UNROLL for (u32 j = 0; j < 16; j++) a[j] = source[start + (u64)(base + line) * cols + i + j * THREADS_OF_LINE];
        transform_lines(a, memory, line, i, to_line, to_i);
        UNROLL for (u32 j = 0; j < 16; j++) {
            complex64 v = {a[j].re * scale, a[j].im * scale};
            target[start + (u64)(to_i + j * THREADS_OF_LINE) * rows + base + to_line] = v;
        }
    }
}

// The transforms of `lines` lines of LEN elements, one after the other, multiplied with `scale`; a block for every LINES of them.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) fft_lines(GLOBAL complex64 *RESTRICT target, GLOBAL const complex64 *RESTRICT source, u64 lines,
    f32 scale)
{
    DYNAMIC_SHARED(complex64, memory);
    u32 line = thread_x() / THREADS_OF_LINE, i = thread_x() % THREADS_OF_LINE;
    u64 number = (u64)block_x() * LINES + line, start = number * LEN + i;
    complex64 a[16], zero = {0.0f, 0.0f};
    // No thread of the block may return early, since they wait for each other.
    UNROLL for (u32 j = 0; j < 16; j++) a[j] = number < lines ? source[start + j * THREADS_OF_LINE] : zero;
    transform_lines(a, memory, line, i, line, i);
    if (number < lines) {
        UNROLL for (u32 j = 0; j < 16; j++) {
            complex64 v = {a[j].re * scale, a[j].im * scale};
            target[start + j * THREADS_OF_LINE] = v;
        }
    }
}

// Maps symbols to points, and points to symbols or bits. BITS is the number of bits of a symbol. SQUARE: the higher half of them is the place along
// the real axis, the lower half along the imaginary one. SOFT: likelihoods of bits instead of symbols.
//
// The compared value is |p|² - 2 re(r p*): the squared distance between point p and the received r, less |r|². No digits are lost far outside.

#ifndef BITS
#define BITS 1
#define SQUARE 0
#define SOFT 0
#endif
#define POINTS (1 << BITS)
#define HALF (BITS / 2)
#define LEVELS (1 << HALF)

// A symbol without a point is left in `complaint`: its place, and above it the symbol, below a one in the highest bit.
KERNEL LAUNCH_BOUNDS(256, 4) modulate(GLOBAL complex64 *RESTRICT target, GLOBAL const u8 *RESTRICT source,
    GLOBAL const complex64 *RESTRICT points, u32 count, u64 elements, GLOBAL u64 *complaint)
{
    SHARED complex64 known[256];
    if (thread_x() < count) known[thread_x()] = points[thread_x()];
    BARRIER();
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < elements; i += step) {
        u32 symbol = source[i];
        if (symbol < count) target[i] = known[symbol];
        else *(GLOBAL volatile u64 *)complaint = 1ull << 63 | (u64)symbol << 48 | (i & 0xffffffffffffull);
    }
}

#if SQUARE
// The likelihoods of the bits of one axis, the highest first; or the place with the least distance.
DEVICE u32 decide(f32 *soft, const f32 *levels, f32 received, f32 scale)
{
    f32 costs[LEVELS];
    u32 best = 0;
    UNROLL for (u32 i = 0; i < LEVELS; i++) {
        costs[i] = levels[i] * (levels[i] - 2.0f * received);
        if (i == 0 || costs[i] < costs[best]) best = i;
    }
    UNROLL for (u32 bit = 0; bit < HALF; bit++) {
        f32 zero = costs[0], one = costs[LEVELS >> (bit + 1)];
        UNROLL for (u32 i = 1; i < LEVELS; i++) {
            if (i >> (HALF - 1 - bit) & 1u) one = costs[i] < one ? costs[i] : one;
            else zero = costs[i] < zero ? costs[i] : zero;
        }
        soft[bit] = (one - zero) * scale;
    }
    return best;
}
#endif

KERNEL LAUNCH_BOUNDS(256, 2) demodulate(GLOBAL void *RESTRICT target, GLOBAL const complex64 *RESTRICT source,
    GLOBAL const complex64 *RESTRICT points, u64 elements, f32 scale)
{
#if SOFT
    // Likelihoods of a block lie one after the other, and are written so.
    SHARED f32 softs[256 * BITS];
#endif
#if SQUARE
    f32 levels[LEVELS];
    UNROLL for (u32 i = 0; i < LEVELS; i++) levels[i] = points[i].im;
#else
    SHARED complex64 known[POINTS];
    if (thread_x() < POINTS) known[thread_x()] = points[thread_x()];
    BARRIER();
#endif
    u64 step = (u64)grid_size_x() * 256;
    for (u64 first = (u64)block_x() * 256; first < elements; first += step) {
        u64 i = first + thread_x();
        complex64 received = {0.0f, 0.0f};
        if (i < elements) received = source[i];
        f32 soft[BITS];
        u32 symbol = 0;
#if SQUARE
        symbol = decide(soft, levels, received.re, scale) << HALF;
        symbol |= decide(soft + HALF, levels, received.im, scale);
#else
        f32 best = 0.0f, least[2 * BITS];
        for (u32 s = 0; s < POINTS; s++) {
            complex64 point = known[s];
            f32 cost = point.re * (point.re - 2.0f * received.re) + point.im * (point.im - 2.0f * received.im);
            if (s == 0 || cost < best) best = cost, symbol = s;
#if SOFT
            UNROLL for (u32 bit = 0; bit < BITS; bit++) {
                // The first with each value of a bit comes before any other with it.
                u32 value = s >> bit & 1u, is_first = s == 0 || s == 1u << bit;
                f32 before = value ? least[2 * bit + 1] : least[2 * bit];
                f32 now = is_first || cost < before ? cost : before;
                if (value) least[2 * bit + 1] = now;
                else least[2 * bit] = now;
            }
#endif
        }
#if SOFT
        UNROLL for (u32 bit = 0; bit < BITS; bit++)
            soft[BITS - 1 - bit] = (least[2 * bit + 1] - least[2 * bit]) * scale;
#endif
#endif
#if SOFT
        UNROLL for (u32 bit = 0; bit < BITS; bit++) softs[thread_x() * BITS + bit] = soft[bit];
        BARRIER();
        u64 begin = first * BITS, end = elements * BITS;
        UNROLL for (u32 bit = 0; bit < BITS; bit++) {
            u64 place = begin + bit * 256 + thread_x();
            if (place < end) ((GLOBAL f32 *)target)[place] = softs[bit * 256 + thread_x()];
        }
        BARRIER();
#else
        if (i < elements) ((GLOBAL u8 *)target)[i] = (u8)symbol;
#endif
    }
}

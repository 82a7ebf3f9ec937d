// Softmax and its logarithm. T is a float. Rows that fit are read once and held in registers; longer ones, and lines along
// another axis than the last, are read twice.

#if defined(ROWS)
// Its values are all that a thread holds: 48 registers are enough.
KERNEL LAUNCH_BOUNDS(BLOCK, 1280 / BLOCK) softmax_rows(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 rows, u32 len)
{
    GROUP_MEMORY
    u64 row = own_row();
    u32 me = own_place();
    if (GROUP == WARP && row >= rows) return;
    GLOBAL const T *from = source + row * len;
    GLOBAL T *to = target + row * len;
    REAL x[ITEMS][VECTOR];
    LOAD_ROW(x, from, len, REAL_LOWEST)
    SOFTEN_ROW(x, last)
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u32 i = (k * GROUP + me) * VECTOR;
        vector_t v;
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) v.at[e] = T_STORE(SOFTENED(x[k][e], last));
        if (i < len) *(GLOBAL vector_t *)(to + i) = v;
    }
}
#endif

// The highest element so far, and the sum of the others' exponentials relative to it.
typedef struct { REAL highest, total; } stats_t;

DEVICE stats_t stats_empty(void)
{
    stats_t s;
    s.highest = REAL_LOWEST;
    s.total = 0;
    return s;
}

// NaN does not become the highest, but it makes the total NaN; +∞ makes it NaN by ∞ - ∞, and -∞ adds nothing.
DEVICE stats_t stats_take(stats_t s, REAL x)
{
    REAL highest = REAL_MAX(s.highest, x);
    if (highest != s.highest) s.total *= REAL_EXP(s.highest - highest);
    if (x != REAL_LOWEST) s.total += REAL_EXP(x - highest);
    s.highest = highest;
    return s;
}

DEVICE stats_t stats_join(stats_t a, stats_t b)
{
    stats_t s;
    s.highest = REAL_MAX(a.highest, b.highest);
    if (a.highest != s.highest) a.total *= REAL_EXP(a.highest - s.highest);
    if (b.highest != s.highest) b.total *= REAL_EXP(b.highest - s.highest);
    s.total = a.total + b.total;
    return s;
}

DEVICE T softened(T x, stats_t s, REAL log_total, u32 is_log)
{
    REAL above = T_LOAD(x) - s.highest;
    return T_STORE(is_log ? above - log_total : REAL_EXP(above) / s.total);
}

#if defined(LONG_ROWS)
DEVICE stats_t stats_over_group(stats_t s, LOCAL REAL *of_warp)
{
    REAL highest = max_over_group(s.highest);
    if (s.highest != highest) s.total *= REAL_EXP(s.highest - highest);
    s.total = sum_over_group(s.total);
    s.highest = highest;
    return s;
}

// `splits` blocks for each row, each with `chunk` elements.
KERNEL LAUNCH_BOUNDS(BLOCK, BLOCKS_MIN) row_stats(GLOBAL stats_t *RESTRICT partials, GLOBAL const T *RESTRICT source, u64 len, u32 splits, u64 chunk)
{
    GROUP_MEMORY
    u64 row = block_x() / splits, split = block_x() % splits;
    u64 begin = split * chunk, end = begin + chunk < len ? begin + chunk : len;
    GLOBAL const T *from = source + row * len;
    stats_t s = stats_empty();
    for (u64 i = begin + thread_x() * VECTOR; i < end; i += BLOCK * VECTOR) {
        vector_t v = *(GLOBAL const vector_t *)(from + i);
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) s = stats_take(s, T_LOAD(v.at[e]));
    }
    s = stats_over_group(s, of_warp);
    if (thread_x() == 0) partials[block_x()] = s;
}

KERNEL LAUNCH_BOUNDS(BLOCK, BLOCKS_MIN) row_apply(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, GLOBAL const stats_t *RESTRICT partials,
    u64 len, u32 splits, u64 chunk, u32 is_log)
{
    GROUP_MEMORY
    u64 row = block_x() / splits, split = block_x() % splits;
    u64 begin = split * chunk, end = begin + chunk < len ? begin + chunk : len;
    GLOBAL const T *from = source + row * len;
    GLOBAL T *to = target + row * len;
    stats_t s = stats_empty();
    for (u32 i = thread_x(); i < splits; i += BLOCK) s = stats_join(s, partials[row * splits + i]);
    s = stats_over_group(s, of_warp);
    REAL log_total = REAL_LOG(s.total);
    for (u64 i = begin + thread_x() * VECTOR; i < end; i += BLOCK * VECTOR) {
        vector_t v = *(GLOBAL const vector_t *)(from + i);
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) v.at[e] = softened(v.at[e], s, log_total, is_log);
        *(GLOBAL vector_t *)(to + i) = v;
    }
}
#endif

#if defined(COLUMNS)
// Lines of `len` elements, `inner` apart: a warp, or 32 threads, beside each other, and the block's others below each other.
#define ACROSS (WARP < 32 ? 32 : WARP)
KERNEL LAUNCH_BOUNDS(BLOCK, BLOCKS_MIN) softmax_columns(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 len, u64 inner, u32 tiles, u32 is_log)
{
    SHARED stats_t shared[BLOCK];
    u32 t = thread_x(), y = t / ACROSS, warps = BLOCK / ACROSS;
    u64 outer = block_x() / tiles, column = (u64)(block_x() % tiles) * ACROSS + t % ACROSS;
    u64 first = outer * len * inner + column;
    int is_inside = column < inner;
    stats_t s = stats_empty();
    for (u64 r = y; is_inside && r < len; r += warps) s = stats_take(s, T_LOAD(source[first + r * inner]));
    shared[t] = s;
    BARRIER();
    s = shared[t % ACROSS];
    for (u32 w = 1; w < warps; w++) s = stats_join(s, shared[w * ACROSS + t % ACROSS]);
    REAL log_total = REAL_LOG(s.total);
    for (u64 r = y; is_inside && r < len; r += warps) {
        target[first + r * inner] = softened(source[first + r * inner], s, log_total, is_log);
    }
}
#endif

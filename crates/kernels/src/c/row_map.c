// A function of rows between two expressions. The text before this one has the expressions (`before`, `after`), how a thread
// reads its part of the inputs (LOAD_INPUTS, BEFORE, LOAD_MORE, AFTER), and which function is meant (FUNCTION_…).

KERNEL LAUNCH_BOUNDS(BLOCK, BLOCKS_MIN) row_map(GLOBAL OUT *RESTRICT target, INPUTS sizes_t size, strides_t stride, CONSTANTS u64 rows, u32 len, f64 epsilon)
{
    GROUP_MEMORY
    u64 row = own_row();
    u32 me = own_place();
    if (GROUP == WARP && row >= rows) return;
    OFFSETS
    REAL x[ITEMS][VECTOR];
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u32 i = (k * GROUP + me) * VECTOR;
        if (IS_FULL || i < len) {
            LOAD_INPUTS
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) x[k][e] = BEFORE;
        } else {
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) x[k][e] = FILL;
        }
    }
#if defined(FUNCTION_REDUCES)
    REAL result = FILL;
#if defined(FUNCTION_EXTREME)
    REAL odd = 0;
#endif
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
#if defined(FUNCTION_EXTREME)
            // The comparison passes over NaN, so those are counted.
            odd += x[k][e] != x[k][e] ? (REAL)1 : (REAL)0;
            result = FUNCTION_EXTREME(result, x[k][e]);
#else
            result += x[k][e];
#endif
        }
    }
#if defined(FUNCTION_MAX)
    result = max_over_group(result);
#elif defined(FUNCTION_MIN)
    result = -max_over_group(-result);
#else
    result = sum_over_group(result);
#endif
#if defined(FUNCTION_EXTREME)
    odd = sum_over_group(odd);
    if (odd > 0) result = odd * (REAL_LOWEST - REAL_LOWEST);
#endif
#if defined(FUNCTION_MEAN)
    result /= (REAL)len;
#endif
    if (me == 0) {
        LOAD_MORE
        REAL value = result;
        target[row] = OUT_STORE(AFTER);
    }
#else
#if defined(FUNCTION_SOFT)
    SOFTEN_ROW(x, last)
#define FINISHED(x) SOFTENED(x, last)
#else
    REAL mean = 0, square = 0;
#if !defined(FUNCTION_RMS)
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) mean += x[k][e];
    }
    mean = sum_over_group(mean) / (REAL)len;
#endif
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u32 i = (k * GROUP + me) * VECTOR;
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            REAL d = x[k][e] - mean;
            if (IS_FULL || i < len) square += d * d;
        }
    }
    REAL scale = (REAL)1 / REAL_SQRT(sum_over_group(square) / (REAL)len + (REAL)epsilon);
#define FINISHED(x) (((x) - mean) * scale)
#endif
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u32 i = (k * GROUP + me) * VECTOR;
        if (!IS_FULL && i >= len) continue;
        LOAD_MORE
        vector_out r;
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            REAL value = FINISHED(x[k][e]);
            r.at[e] = OUT_STORE(AFTER);
        }
        *(GLOBAL vector_out *)(target + row * len + i) = r;
    }
#endif
}

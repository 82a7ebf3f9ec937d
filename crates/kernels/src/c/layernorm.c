// Layer normalisation of rows. T is a float. Rows that fit are read once and held in registers; longer ones are read three
// times. `weight` and `bias` may be null.

DEVICE REAL normal(REAL x, REAL mean, REAL scale, GLOBAL const T *weight, GLOBAL const T *bias, u64 i)
{
    REAL y = (x - mean) * scale;
    if (weight) y *= T_LOAD(weight[i]);
    if (bias) y += T_LOAD(bias[i]);
    return y;
}

#if defined(ROWS)
KERNEL LAUNCH_BOUNDS(BLOCK, BLOCKS_MIN) layernorm_rows(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, GLOBAL const T *RESTRICT weight,
    GLOBAL const T *RESTRICT bias, u64 rows, u32 len, f64 epsilon, u32 is_rms)
{
    GROUP_MEMORY
    u64 row = own_row();
    u32 me = own_place();
    if (GROUP == WARP && row >= rows) return;
    GLOBAL const T *from = source + row * len;
    GLOBAL T *to = target + row * len;
    REAL x[ITEMS][VECTOR], mean = 0, square = 0;
    LOAD_ROW(x, from, len, (REAL)0)
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) mean += x[k][e];
    }
    mean = is_rms ? (REAL)0 : sum_over_group(mean) / (REAL)len;
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u32 i = (k * GROUP + me) * VECTOR;
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            REAL d = x[k][e] - mean;
            if (i < len) square += d * d;
        }
    }
    REAL scale = (REAL)1 / REAL_SQRT(sum_over_group(square) / (REAL)len + (REAL)epsilon);
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u32 i = (k * GROUP + me) * VECTOR;
        if (i >= len) continue;
        vector_t v, w, b;
        if (weight) w = *(GLOBAL const vector_t *)(weight + i);
        if (bias) b = *(GLOBAL const vector_t *)(bias + i);
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            REAL y = (x[k][e] - mean) * scale;
            if (weight) y *= T_LOAD(w.at[e]);
            if (bias) y += T_LOAD(b.at[e]);
            v.at[e] = T_STORE(y);
        }
        *(GLOBAL vector_t *)(to + i) = v;
    }
}
#endif

#if defined(LONG_ROWS)
// A block for each row.
KERNEL LAUNCH_BOUNDS(BLOCK, BLOCKS_MIN) layernorm_long(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, GLOBAL const T *RESTRICT weight,
    GLOBAL const T *RESTRICT bias, u64 len, f64 epsilon, u32 is_rms)
{
    GROUP_MEMORY
    GLOBAL const T *from = source + block_x() * len;
    GLOBAL T *to = target + block_x() * len;
    REAL mean = 0, square = 0;
    if (!is_rms) {
        for (u64 i = thread_x(); i < len; i += BLOCK) mean += T_LOAD(from[i]);
        mean = sum_over_group(mean) / (REAL)len;
    }
    for (u64 i = thread_x(); i < len; i += BLOCK) {
        REAL d = T_LOAD(from[i]) - mean;
        square += d * d;
    }
    REAL scale = (REAL)1 / REAL_SQRT(sum_over_group(square) / (REAL)len + (REAL)epsilon);
    for (u64 i = thread_x(); i < len; i += BLOCK) to[i] = T_STORE(normal(T_LOAD(from[i]), mean, scale, weight, bias, i));
}
#endif

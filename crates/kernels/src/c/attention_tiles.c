// Attention by tiles that a warp multiplies. 16-bit numbers are multiplied as they are; f32 numbers are split in two of eleven bits each,
// of whose four products the three that matter are added.
//
// Parameters besides those of attention.h: D and DV, the elements of a query and of a value, rounded up to multiples of 16; WARPS of a
// block; ROW_TILES of 16 queries for each; KEYS of a tile, a multiple of 16; WIDE, whether rows can be copied in words of 16 bytes;
// BLOCKS of a multiprocessor.
//
// A block has its queries in its memory, and two tiles of keys and of values: while one is worked on the next is copied. Rows lie an odd
// number of words of 16 bytes apart, so that matrix loads touch every bank once. A lane has two rows of each tile of scores, and in
// each two of every eight columns. The largest score of a row is common to four lanes; totals are added up in the end.
//
// Sums of f32 are gathered tile by tile in fresh accumulators and added to those so far by ordinary additions: the matrix unit rounds
// its own sums towards zero, which over thousands of keys would show.

#define THREADS (WARPS * WARP)
#define WARP_ROWS (ROW_TILES * 16)
#define BLOCK_ROWS (WARPS * WARP_ROWS)
#define D_PITCH (D * T_BYTES + 16)
#define DV_PITCH (DV * T_BYTES + 16)
#define K_BYTES (KEYS * D_PITCH)
#define STAGE_BYTES (K_BYTES + KEYS * DV_PITCH)

#if defined(T_IS_f16)
#define MULTIPLY multiply_f16
#elif defined(T_IS_bf16)
#define MULTIPLY multiply_bf16
#endif

// Starts the copy of some rows to the block's memory, zeros where there is nothing.
DEVICE void copy_rows(u8 *target, u32 rows, u32 width, u32 pitch, GLOBAL const T *source, i64 step, u32 first, u32 count, u32 columns)
{
#if WIDE
    u32 pieces = width * T_BYTES / 16;
    for (u32 i = thread_x(); i < rows * pieces; i += THREADS) {
        u32 r = i / pieces, piece = i % pieces;
        int present = first + r < count && piece * (16 / T_BYTES) < columns;
        GLOBAL const T *from = present ? source + (i64)(first + r) * step + piece * (16 / T_BYTES) : source;
        copy_async_16(target + r * pitch + piece * 16, from, present);
    }
#else
    for (u32 i = thread_x(); i < rows * width; i += THREADS) {
        u32 r = i / width, c = i % width;
        int present = first + r < count && c < columns;
        *(T *)(target + r * pitch + c * T_BYTES) = present ? source[(i64)(first + r) * step + c] : (T)0;
    }
#endif
}

DEVICE void copy_tile(u8 *stage, attention_work work, attention_sizes size, attention_steps step, u32 first)
{
    copy_rows(stage, KEYS, D, D_PITCH, work.k, step.k, first, size.n_k, size.d);
    copy_rows(stage + K_BYTES, KEYS, DV, DV_PITCH, work.v, step.v, first, size.n_k, size.d_v);
    COPY_ASYNC_COMMIT();
}

#define EACH_PRODUCT(product, columns)                       \
    UNROLL for (u32 n = 0; n < columns; n++) {               \
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) product;  \
    }

// Products of the warp's queries and the keys of a tile.
DEVICE void find_scores(scores_t score, const u8 *queries, const u8 *keys)
{
    UNROLL for (u32 i = 0; i < ROW_TILES * KEY_TILES * 4; i++) score[i / (KEY_TILES * 4)][i / 4 % KEY_TILES][i % 4] = 0.0f;
    const u8 *a_line = queries + lane() % 16 * D_PITCH + lane() / 16 * 16;
    const u8 *b_line = keys + (lane() % 8 + lane() / 16 * 8) * D_PITCH + lane() / 8 % 2 * 16;
    UNROLL for (u32 step = 0; step < D * T_BYTES / 32; step++) {
        u32 a[ROW_TILES][4], b[KEY_TILES][2];
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) load_matrices(a[m], a_line + m * 16 * D_PITCH + step * 32);
        UNROLL for (u32 n = 0; n < KEY_TILES; n += 2) load_matrices(b[n], b_line + n * 8 * D_PITCH + step * 32);
#if defined(T_IS_f32)
        u32 high[ROW_TILES][4], low[ROW_TILES][4], b_high[KEY_TILES][2], b_low[KEY_TILES][2];
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) split_words(a[m], high[m], low[m], 4);
        UNROLL for (u32 n = 0; n < KEY_TILES; n++) split_words(b[n], b_high[n], b_low[n], 2);
        // Each sum is waited for before the next product is added to it: all the others come between.
        EACH_PRODUCT(multiply_f32(score[m][n], low[m], b_high[n]), KEY_TILES)
        EACH_PRODUCT(multiply_f32(score[m][n], high[m], b_low[n]), KEY_TILES)
        EACH_PRODUCT(multiply_f32(score[m][n], high[m], b_high[n]), KEY_TILES)
#else
        EACH_PRODUCT(MULTIPLY(score[m][n], a[m], b[n]), KEY_TILES)
#endif
    }
}

// Adds the weighted values of a tile to sums that are scaled down first.
#if defined(T_IS_f32)
// Value tiles that are summed at a time.
#define TOGETHER (VALUE_TILES % 4 == 0 ? 4 : 2)
DEVICE void add_values(sums_t sum, scores_t weight, f32 correction[ROW_TILES][2], const u8 *values)
{
    // A lane's weights are those of two neighbouring keys, where the unit expects keys four apart: the keys change places, of the
    // weights as of the values.
    const f32 *line = (const f32 *)(values + lane() % 4 * 2 * DV_PITCH) + lane() / 4;
    UNROLL for (u32 first = 0; first < VALUE_TILES; first += TOGETHER) {
        f32 fresh[ROW_TILES][TOGETHER][4];
        UNROLL for (u32 i = 0; i < ROW_TILES * TOGETHER * 4; i++) fresh[i / (TOGETHER * 4)][i / 4 % TOGETHER][i % 4] = 0.0f;
        UNROLL for (u32 step = 0; step < KEY_TILES; step++) {
            u32 high[ROW_TILES][4], low[ROW_TILES][4];
            UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
                const f32 *w = weight[m][step];
                u32 a[4] = {f32_bits(w[0]), f32_bits(w[2]), f32_bits(w[1]), f32_bits(w[3])};
                split_words(a, high[m], low[m], 4);
            }
            u32 b_high[TOGETHER][2], b_low[TOGETHER][2];
            UNROLL for (u32 n = 0; n < TOGETHER; n++) {
                const f32 *at = line + step * 8 * (DV_PITCH / 4) + (first + n) * 8;
                u32 b[2] = {f32_bits(at[0]), f32_bits(at[DV_PITCH / 4])};
                split_words(b, b_high[n], b_low[n], 2);
            }
            EACH_PRODUCT(multiply_f32(fresh[m][n], low[m], b_high[n]), TOGETHER)
            EACH_PRODUCT(multiply_f32(fresh[m][n], high[m], b_low[n]), TOGETHER)
            EACH_PRODUCT(multiply_f32(fresh[m][n], high[m], b_high[n]), TOGETHER)
        }
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
            UNROLL for (u32 n = 0; n < TOGETHER; n++) {
                UNROLL for (u32 i = 0; i < 4; i++) sum[m][first + n][i] = sum[m][first + n][i] * correction[m][i / 2] + fresh[m][n][i];
            }
        }
    }
}
#else
DEVICE void add_values(sums_t sum, scores_t weight, f32 correction[ROW_TILES][2], const u8 *values)
{
    const u8 *line = values + lane() % 16 * DV_PITCH + lane() / 16 * 16;
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 n = 0; n < VALUE_TILES; n++) {
            UNROLL for (u32 i = 0; i < 4; i++) sum[m][n][i] *= correction[m][i / 2];
        }
    }
    UNROLL for (u32 step = 0; step < KEY_TILES / 2; step++) {
        u32 a[ROW_TILES][4];
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
            const f32 *w = weight[m][2 * step], *x = weight[m][2 * step + 1];
            a[m][0] = PACK(w[0], w[1]), a[m][1] = PACK(w[2], w[3]), a[m][2] = PACK(x[0], x[1]), a[m][3] = PACK(x[2], x[3]);
        }
        UNROLL for (u32 n = 0; n < VALUE_TILES; n += 2) {
            u32 b[4];
            load_matrices_turned(b, line + step * 16 * DV_PITCH + n * 16);
            UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
                MULTIPLY(sum[m][n], a[m], b);
                MULTIPLY(sum[m][n + 1], a[m], b + 2);
            }
        }
    }
}
#endif

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) attention_tiles(GLOBAL T *out, GLOBAL const T *q, GLOBAL const T *k, GLOBAL const T *v,
    GLOBAL const M *mask, attention_sizes size, attention_steps step, FIXED layout q_heads, FIXED layout k_heads, FIXED layout v_heads,
    FIXED layout mask_heads)
{
    DYNAMIC_SHARED(u8, queries);
    u8 *stages = queries + BLOCK_ROWS * D_PITCH;
    attention_work work = find_work(out, q, k, v, mask, size, &q_heads, &k_heads, &v_heads, &mask_heads, BLOCK_ROWS);
    u32 warp_row = thread_x() / WARP * WARP_ROWS, row = work.first + warp_row + lane() / 4;
    f32 factor = exponent_factor(size);
    scores_t score;
    sums_t sum;
    f32 largest[ROW_TILES][2], total[ROW_TILES][2], correction[ROW_TILES][2];
    UNROLL for (u32 i = 0; i < ROW_TILES * 2; i++) largest[i / 2][i % 2] = LOWEST, total[i / 2][i % 2] = 0.0f;
    UNROLL for (u32 i = 0; i < ROW_TILES * VALUE_TILES * 4; i++) sum[i / (VALUE_TILES * 4)][i / 4 % VALUE_TILES][i % 4] = 0.0f;
    copy_rows(queries, BLOCK_ROWS, D, D_PITCH, work.q, step.q, work.first, size.n_q, size.d);
    copy_tile(stages, work, size, step, 0);
    u32 stage = 0;
    for (u32 key = 0; key < work.end; key += KEYS) {
        const u8 *here = stages + stage * STAGE_BYTES;
        stage ^= 1;
        masks_t mask;
        load_mask(mask, key, work, size, step);
        COPY_ASYNC_WAIT(0);
        // The tile is visible to all threads, and no thread reads the previous tile any more.
        BARRIER();
        if (key + KEYS < work.end) copy_tile(stages + stage * STAGE_BYTES, work, size, step, key + KEYS);
        find_scores(score, queries + warp_row * D_PITCH, here);
        soften(score, mask, largest, total, correction, factor, row, key, work, size, step);
        add_values(sum, score, correction, here + K_BYTES);
    }
    COPY_ASYNC_WAIT(0);
    write_sums(sum, total, row, work, size);
}

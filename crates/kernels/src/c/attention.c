// Attention in plain arithmetic, for every element type, every number of elements and any width of warps.
//
// A block has 32 queries of one head and 64 columns of the values; for more columns other blocks compute the same weights again. It reads
// the keys, 32 at a time. Eight neighbouring threads share a query: each has every eighth key of the scores, and every eighth
// column of the sums. Largest score and total are the same in all eight. If each thread is a separate warp, it has one query.

#define BLOCK_ROWS 32
#define THREADS (BLOCK_ROWS * SHARERS)
#define KEYS 32
#define DEPTH 32
#define COLUMNS 64
#define SHARERS (WARP < 8 ? WARP : 8)

// Loads rows of a matrix from `column` on, zeros where there is nothing.
DEVICE void load_part(LOCAL f32 *part, u32 width, GLOBAL const T *rows, i64 step, u32 first, u32 count, u32 column, u32 columns, u32 pitch)
{
    for (u32 i = thread_x(); i < KEYS * width; i += THREADS) {
        u32 r = i / width, c = i % width;
        int present = first + r < count && column + c < columns;
        part[r * pitch + c] = present ? (f32)T_LOAD(rows[(i64)(first + r) * step + column + c]) : 0.0f;
    }
}

DEVICE f32 max_of_sharers(f32 x)
{
    UNROLL for (u32 mask = SHARERS / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor_f32(x, mask));
    return x;
}

DEVICE f32 sum_of_sharers(f32 x)
{
    UNROLL for (u32 mask = SHARERS / 2; mask > 0; mask /= 2) x += shuffle_xor_f32(x, mask);
    return x;
}

// The grid is (heads and tiles of queries, parts of the columns).
KERNEL LAUNCH_BOUNDS(THREADS, 2) attention(GLOBAL T *out, GLOBAL const T *q, GLOBAL const T *k, GLOBAL const T *v, GLOBAL const M *mask,
    attention_sizes size, attention_steps step, FIXED layout q_heads, FIXED layout k_heads, FIXED layout v_heads, FIXED layout mask_heads)
{
    SHARED f32 queries[BLOCK_ROWS * (DEPTH + 1)], keys[KEYS * (DEPTH + 1)], weights[BLOCK_ROWS * (KEYS + 1)], values[KEYS * COLUMNS];
    attention_work work = find_work(out, q, k, v, mask, size, &q_heads, &k_heads, &v_heads, &mask_heads, BLOCK_ROWS);
    u32 line = thread_x() / SHARERS, me = thread_x() % SHARERS, row = work.first + line, column = block_y() * COLUMNS;
    u32 seen = row < size.n_q ? keys_seen(size, row) : 0;
    f32 factor = exponent_factor(size), largest = LOWEST, total = 0.0f, sums[COLUMNS / SHARERS];
    for (u32 i = 0; i < COLUMNS / SHARERS; i++) sums[i] = 0.0f;
    for (u32 first = 0; first < work.end; first += KEYS) {
        f32 score[KEYS / SHARERS];
        for (u32 i = 0; i < KEYS / SHARERS; i++) score[i] = 0.0f;
        for (u32 depth = 0; depth < size.d; depth += DEPTH) {
            BARRIER();
            load_part(queries, DEPTH, work.q, step.q, work.first, size.n_q, depth, size.d, DEPTH + 1);
            load_part(keys, DEPTH, work.k, step.k, first, size.n_k, depth, size.d, DEPTH + 1);
            BARRIER();
            for (u32 i = 0; i < DEPTH; i++) {
                f32 x = queries[line * (DEPTH + 1) + i];
                UNROLL for (u32 j = 0; j < KEYS / SHARERS; j++) score[j] += x * keys[(me + j * SHARERS) * (DEPTH + 1) + i];
            }
        }
        f32 here = largest;
        UNROLL for (u32 j = 0; j < KEYS / SHARERS; j++) {
            u32 key = first + me + j * SHARERS;
            score[j] = key < seen ? finish_score(score[j], work, size, step, row, key) : LOWEST;
            here = fmaxf(here, score[j]);
        }
        here = max_of_sharers(here);
        f32 base = exponent_base(here, factor), added = 0.0f;
        // Exactly one where the largest score stays: `base` is rounded, and a fused product is not.
        f32 correction = largest == here ? 1.0f : exp2_below(largest * factor - base);
        largest = here;
        // The last tile's weights have been read.
        BARRIER();
        UNROLL for (u32 j = 0; j < KEYS / SHARERS; j++) {
            f32 weight = exp2_below(score[j] * factor - base);
            weights[line * (KEYS + 1) + me + j * SHARERS] = weight;
            added += weight;
        }
        total = total * correction + sum_of_sharers(added);
        load_part(values, COLUMNS, work.v, step.v, first, size.n_k, column, size.d_v, COLUMNS);
        BARRIER();
        UNROLL for (u32 j = 0; j < COLUMNS / SHARERS; j++) sums[j] *= correction;
        for (u32 i = 0; i < KEYS; i++) {
            f32 weight = weights[line * (KEYS + 1) + i];
            UNROLL for (u32 j = 0; j < COLUMNS / SHARERS; j++) sums[j] += weight * values[i * COLUMNS + me + j * SHARERS];
        }
    }
    if (row >= size.n_q) return;
    for (u32 j = 0; j < COLUMNS / SHARERS; j++) {
        u32 c = column + me + j * SHARERS;
        if (c < size.d_v) out_row(work, size, row)[c] = T_STORE(total == 0.0f ? 0.0f : sums[j] / total);
    }
}

// Attention with four warps that multiply together, for 16-bit numbers.
//
// Parameters besides those of attention.h: ROW_TILES is 1 and KEYS 128; D and DV, the elements of a query and of a value, rounded up to 64
// or 128; GROUPS of four warps, each with 64 queries; STAGES of keys and of values in the block's memory; TURNS, whether groups take turns
// at the matrix unit.
//
// Four more warps copy keys and values, stage by stage, as the groups are done with them. Everything lies in lines of 128 bytes whose
// pieces of 16 are permuted by the line's number. A group starts the products of the next keys and those of this tile's weights and
// values together, and makes weights of the scores while the values are multiplied. With TURNS, one group's products run while another
// makes weights.
//
// Queries, keys and values have rows that can be copied in words of 16 bytes; so have output rows.

#define GROUP_THREADS (4 * WARP)
#define BLOCK_ROWS (GROUPS * 64)
#define THREADS (GROUPS * GROUP_THREADS)
#define LINE_BYTES 128
// A chunk is 64 numbers of each row.
#define D_CHUNKS (D / 64)
#define DV_CHUNKS (DV / 64)
#define Q_CHUNK_BYTES (BLOCK_ROWS * LINE_BYTES)
#define CHUNK_BYTES (KEYS * LINE_BYTES)
#define K_BYTES (D_CHUNKS * CHUNK_BYTES)
#define V_BYTES (DV_CHUNKS * CHUNK_BYTES)

#if defined(T_IS_f16)
#define MULTIPLY group_multiply_f16
#define WEIGH group_weigh_f16
#else
#define MULTIPLY group_multiply_bf16
#define WEIGH group_weigh_bf16
#endif

typedef u32 weights_t[KEYS / 16][4];

// A stage's keys are there, or may be replaced; the same of values; a group's queries are there; a group has started its products.
SHARED gate keys_there[STAGES], keys_done[STAGES], values_there[STAGES], values_done[STAGES], queries_there[GROUPS], started[GROUPS];

// Starts the copy of rows by 128 threads, of which this is the one with this index; zeros where there is nothing.
DEVICE void copy_lines(u32 index, u8 *target, u32 lines, u32 chunks, u32 chunk_bytes, GLOBAL const T *source, i64 step, u32 first,
                       u32 count, u32 columns)
{
    u32 line = index / 8, piece = index % 8;
    u8 *to = target + line * LINE_BYTES + ((piece ^ (line & 7u)) << 4);
    GLOBAL const T *row = source + (i64)(first + line) * step + piece * 8;
    u32 rows = first + line < count ? count - first - line : 0;
    UNROLL for (u32 chunk = 0; chunk < chunks; chunk++) {
        GLOBAL const T *from = row + chunk * 64;
        u32 left = chunk * 64 + piece * 8 < columns ? rows : 0;
        UNROLL for (u32 i = 0; i < lines / 16; i++) {
            copy_async_16(to + chunk * chunk_bytes + i * 16 * LINE_BYTES, from, i * 16 < left);
            from += 16 * step;
        }
    }
}

// Fills the stages for all tiles of the block. The copiers.
DEVICE void copy_tiles(u8 *keys, u8 *values, attention_work work, attention_sizes size, attention_steps step)
{
    u32 index = thread_x() - THREADS, stage = 0, parity = 1;
    ROLLED for (u32 first = 0; first < work.end; first += KEYS) {
        gate_wait(&keys_done[stage], parity);
        copy_lines(index, keys + stage * K_BYTES, KEYS, D_CHUNKS, CHUNK_BYTES, work.k, step.k, first, size.n_k, size.d);
        gate_arrive_when_copied(&keys_there[stage]);
        gate_wait(&values_done[stage], parity);
        copy_lines(index, values + stage * V_BYTES, KEYS, DV_CHUNKS, CHUNK_BYTES, work.v, step.v, first, size.n_k, size.d_v);
        gate_arrive_when_copied(&values_there[stage]);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    COPY_ASYNC_WAIT(0);
}

// A lane says for its warp that it is done with a stage.
DEVICE void leave_stage(gate *done)
{
    WARP_BARRIER();
    if (lane() == 0) gate_arrive(done);
}

DEVICE void start_scores(scores_t score, tile_ref queries, tile_ref keys)
{
    UNROLL for (u32 i = 0; i < D / 16; i++) {
        MULTIPLY(&score[0][0][0], queries + TILE_STEP(i / 4 * Q_CHUNK_BYTES + i % 4 * 32), keys + TILE_STEP(i / 4 * CHUNK_BYTES + i % 4 * 32), i > 0);
    }
    GROUP_COMMIT();
}

DEVICE void start_values(sums_t sum, weights_t weight, tile_ref values)
{
    UNROLL for (u32 i = 0; i < KEYS / 16; i++) {
        UNROLL for (u32 chunk = 0; chunk < DV_CHUNKS; chunk++) {
            WEIGH(&sum[0][chunk * 8][0], weight[i], values + TILE_STEP(chunk * CHUNK_BYTES + i * 16 * LINE_BYTES));
        }
    }
    GROUP_COMMIT();
}

DEVICE void settle_scores(scores_t score)
{
    UNROLL for (u32 i = 0; i < KEY_TILES * 4; i++) GROUP_SETTLE(score[0][i / 4][i % 4]);
}

DEVICE void settle_sums(sums_t sum)
{
    UNROLL for (u32 i = 0; i < DV / 2; i++) GROUP_SETTLE(sum[0][i / 4][i % 4]);
}

DEVICE void pack_weights(weights_t weight, scores_t score)
{
    UNROLL for (u32 i = 0; i < KEYS / 16; i++) {
        const f32 *w = score[0][2 * i], *x = score[0][2 * i + 1];
        weight[i][0] = PACK(w[0], w[1]), weight[i][1] = PACK(w[2], w[3]), weight[i][2] = PACK(x[0], x[1]), weight[i][3] = PACK(x[2], x[3]);
    }
}

// Divides sums by their totals and writes them, 16 bytes at a time.
DEVICE void write_lines(sums_t sum, f32 total[1][2], u32 row, attention_work work, attention_sizes size)
{
    UNROLL for (u32 half = 0; half < 2; half++) {
        f32 whole = total[0][half];
        whole += shuffle_xor_f32(whole, 1);
        whole += shuffle_xor_f32(whole, 2);
        f32 share = whole == 0.0f ? 0.0f : 1.0f / whole;
        u32 own = row + half * 8;
        UNROLL for (u32 i = 0; i < DV / 32; i++) {
            u32 word[4];
            UNROLL for (u32 j = 0; j < 4; j++) {
                const f32 *x = sum[0][i * 4 + j] + half * 2;
                // Without keys there are no sums but zeros, even where values that do not count are NaN.
                word[j] = whole == 0.0f ? 0u : PACK(x[0] * share, x[1] * share);
            }
            u32x4 four = exchange_words(word);
            u32 column = i * 32 + lane() % 4 * 8;
            if (own < size.n_q && column < size.d_v) *(GLOBAL u32x4 *)(out_row(work, size, own) + column) = four;
        }
    }
}

// Goes through all keys for 64 queries. The warps of one group.
DEVICE void attend(const u8 *queries, const u8 *keys, const u8 *values, u32 group, attention_work work, attention_sizes size,
                   attention_steps step)
{
    u32 row = work.first + thread_x() / WARP * 16 + lane() / 4, before = (group + GROUPS - 1) % GROUPS, turn = group == 0;
    u32 stage = 0, parity = 0;
    tile_ref own_queries = tile_place(queries + group * 64 * LINE_BYTES), all_keys = tile_place(keys), all_values = lines_place(values);
    f32 factor = exponent_factor(size), largest[1][2] = {{LOWEST, LOWEST}}, total[1][2] = {{0.0f, 0.0f}}, correction[1][2];
    scores_t score;
    sums_t sum;
    weights_t weight;
    masks_t mask;
    UNROLL for (u32 i = 0; i < DV / 2; i++) sum[0][i / 4][i % 4] = 0.0f;
    if (work.end > 0) {
        gate_wait(&queries_there[group], 0);
        gate_wait(&keys_there[0], 0);
        TENSOR_FENCE();
        GROUP_BEGIN();
        start_scores(score, own_queries, all_keys);
        GROUP_WAIT();
        settle_scores(score);
        leave_stage(&keys_done[0]);
        load_mask(mask, 0, work, size, step);
        soften(score, mask, largest, total, correction, factor, row, 0, work, size, step);
        pack_weights(weight, score);
        ROLLED for (u32 first = KEYS; first < work.end; first += KEYS) {
            // Values lie one tile behind the keys.
            u32 value_stage = stage, value_parity = parity;
            if (++stage == STAGES) stage = 0, parity ^= 1;
            gate_wait(&keys_there[stage], parity);
            gate_wait(&values_there[value_stage], value_parity);
            if (TURNS && GROUPS > 1) gate_wait(&started[before], turn);
            turn ^= 1;
            TENSOR_FENCE();
            settle_scores(score);
            settle_sums(sum);
            GROUP_BEGIN();
            start_scores(score, own_queries, all_keys + TILE_STEP(stage * K_BYTES));
            start_values(sum, weight, all_values + TILE_STEP(value_stage * V_BYTES));
            if (TURNS && GROUPS > 1) leave_stage(&started[group]);
            GROUP_WAIT_BUT_LAST();
            settle_scores(score);
            leave_stage(&keys_done[stage]);
            load_mask(mask, first, work, size, step);
            soften(score, mask, largest, total, correction, factor, row, first, work, size, step);
            GROUP_WAIT();
            settle_sums(sum);
            leave_stage(&values_done[value_stage]);
            UNROLL for (u32 i = 0; i < DV / 2; i++) sum[0][i / 4][i % 4] *= correction[0][i / 2 % 2];
            pack_weights(weight, score);
        }
        gate_wait(&values_there[stage], parity);
        TENSOR_FENCE();
        settle_sums(sum);
        GROUP_BEGIN();
        start_values(sum, weight, all_values + TILE_STEP(stage * V_BYTES));
        GROUP_WAIT();
        settle_sums(sum);
    }
    write_lines(sum, total, row, work, size);
}

KERNEL LAUNCH_BOUNDS(THREADS + GROUP_THREADS, 1) attention_groups(GLOBAL T *out, GLOBAL const T *q, GLOBAL const T *k, GLOBAL const T *v,
    GLOBAL const M *mask, attention_sizes size, attention_steps step, FIXED layout q_heads, FIXED layout k_heads, FIXED layout v_heads,
    FIXED layout mask_heads)
{
    DYNAMIC_SHARED(u8, unaligned);
    u8 *queries = unaligned + (1024 - ((u64)unaligned & 1023)) % 1024;
    u8 *keys = queries + D_CHUNKS * Q_CHUNK_BYTES, *values = keys + STAGES * K_BYTES;
    attention_work work = find_work(out, q, k, v, mask, size, &q_heads, &k_heads, &v_heads, &mask_heads, BLOCK_ROWS);
    if (thread_x() == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            gate_prepare(&keys_there[i], GROUP_THREADS);
            gate_prepare(&values_there[i], GROUP_THREADS);
            gate_prepare(&keys_done[i], GROUPS * 4);
            gate_prepare(&values_done[i], GROUPS * 4);
        }
        for (u32 i = 0; i < GROUPS; i++) {
            gate_prepare(&queries_there[i], GROUP_THREADS);
            gate_prepare(&started[i], 4);
        }
    }
    BARRIER();
    if (thread_x() >= THREADS) {
        if (GROUPS > 1) GROUP_REGISTERS_LESS(24);
        copy_tiles(keys, values, work, size, step);
        return;
    }
    if (GROUPS == 2) GROUP_REGISTERS_MORE(240);
    if (GROUPS == 3) GROUP_REGISTERS_MORE(160);
    u32 group = shuffle_u32(thread_x() / GROUP_THREADS, 0);
    copy_lines(thread_x() % GROUP_THREADS, queries + group * 64 * LINE_BYTES, 64, D_CHUNKS, Q_CHUNK_BYTES, work.q, step.q,
        work.first + group * 64, size.n_q, size.d);
    COPY_ASYNC_COMMIT();
    COPY_ASYNC_WAIT(0);
    TENSOR_FENCE();
    gate_arrive(&queries_there[group]);
    attend(queries, keys, values, group, work, size, step);
}

// Attention of f32 numbers with four warps that multiply together. Numbers are split in two of eleven bits each, of whose four products the
// three that matter are added.
//
// Parameters besides those of attention.h: ROW_TILES is 1, KEYS, D and DV are 64; GROUPS of four warps, each with 64 queries; STAGES of keys
// and of values in the block's memory.
//
// Four more warps load keys and values, split them, and write both parts to the block's memory, the values turned: a line of 128 bytes
// has 32 numbers of one key, or one column of 32 keys. The pieces of 16 bytes of a line are permuted by its number. Queries and weights
// are split in registers. Sums are gathered tile by tile in fresh accumulators, see attention_tiles.c.
//
// Queries, keys and values have rows that can be loaded in words of 16 bytes.

#define GROUP_THREADS (4 * WARP)
#define BLOCK_ROWS (GROUPS * 64)
#define THREADS (GROUPS * GROUP_THREADS)
#define LINE_BYTES 128
// 32 numbers of 64 lines, which is half of a part of a tile; the high parts come first.
#define CHUNK_BYTES (64 * LINE_BYTES)
#define PART_BYTES (2 * CHUNK_BYTES)
#define STAGE_BYTES (2 * PART_BYTES)
// Loads of 16 bytes by each copier for a tile.
#define LOADS 8

typedef u32 parts_t[8][4];

// A stage's keys are there, or may be replaced; the same of values.
SHARED gate keys_there[STAGES], keys_done[STAGES], values_there[STAGES], values_done[STAGES];

DEVICE f32x4 load_four(GLOBAL const f32 *source, int present)
{
    f32x4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    return present ? *(GLOBAL const f32x4 *)source : none;
}

// A copier has 16 bytes of every eighth key.
DEVICE void load_keys(f32x4 *four, u32 index, attention_work work, attention_sizes size, attention_steps step, u32 first)
{
    u32 line = first + index / 16, column = index % 16 * 4;
    UNROLL for (u32 i = 0; i < LOADS; i++) {
        u32 key = line + i * 8;
        four[i] = load_four(work.k + (i64)key * step.k + column, key < size.n_k && column < size.d);
    }
}

DEVICE void write_keys(u8 *stage, const f32x4 *four, u32 index)
{
    u32 line = index / 16, piece = index % 16;
    u8 *target = stage + piece / 8 * CHUNK_BYTES + line * LINE_BYTES + ((piece % 8 ^ (line & 7u)) << 4);
    UNROLL for (u32 i = 0; i < LOADS; i++) {
        u32x4 high, low;
        split(f32_bits(four[i].x), &high.x, &low.x);
        split(f32_bits(four[i].y), &high.y, &low.y);
        split(f32_bits(four[i].z), &high.z, &low.z);
        split(f32_bits(four[i].w), &high.w, &low.w);
        *(u32x4 *)(target + i * 8 * LINE_BYTES) = high;
        *(u32x4 *)(target + i * 8 * LINE_BYTES + PART_BYTES) = low;
    }
}

// A copier has the columns of one key in one half of the columns: the lanes of a warp have neighbouring keys.
DEVICE void load_values(f32x4 *four, u32 index, attention_work work, attention_sizes size, attention_steps step, u32 first)
{
    u32 key = first + index % 64, column = index / 64 * 32;
    UNROLL for (u32 i = 0; i < LOADS; i++) {
        four[i] = load_four(work.v + (i64)key * step.v + column + i * 4, key < size.n_k && column + i * 4 < size.d_v);
    }
}

DEVICE void write_value(u8 *chunk, u32 line, u32 place, f32 x)
{
    u32 high, low;
    split(f32_bits(x), &high, &low);
    u8 *target = chunk + line * LINE_BYTES + ((place / 4 ^ (line & 7u)) << 4) + place % 4 * 4;
    *(u32 *)target = high;
    *(u32 *)(target + PART_BYTES) = low;
}

// Of eight keys, those with even numbers come first: as the lanes hold weights, see attention_tiles.c.
DEVICE void write_values(u8 *stage, const f32x4 *four, u32 index)
{
    u32 key = index % 32, place = key / 8 * 8 + key % 2 * 4 + key % 8 / 2, column = index / 64 * 32;
    u8 *chunk = stage + index / 32 % 2 * CHUNK_BYTES;
    UNROLL for (u32 i = 0; i < LOADS; i++) {
        write_value(chunk, column + i * 4, place, four[i].x);
        write_value(chunk, column + i * 4 + 1, place, four[i].y);
        write_value(chunk, column + i * 4 + 2, place, four[i].z);
        write_value(chunk, column + i * 4 + 3, place, four[i].w);
    }
}

// Fills the stages for all tiles of the block. The copiers.
DEVICE void copy_tiles(u8 *keys, u8 *values, attention_work work, attention_sizes size, attention_steps step)
{
    u32 index = thread_x() - THREADS, stage = 0, parity = 1;
    ROLLED for (u32 first = 0; first < work.end; first += KEYS) {
        f32x4 four[LOADS];
        load_keys(four, index, work, size, step, first);
        gate_wait(&keys_done[stage], parity);
        write_keys(keys + stage * STAGE_BYTES, four, index);
        TENSOR_FENCE();
        gate_arrive(&keys_there[stage]);
        load_values(four, index, work, size, step, first);
        gate_wait(&values_done[stage], parity);
        write_values(values + stage * STAGE_BYTES, four, index);
        TENSOR_FENCE();
        gate_arrive(&values_there[stage]);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// A lane says for its warp that it is done with a stage.
DEVICE void leave_stage(gate *done)
{
    WARP_BARRIER();
    if (lane() == 0) gate_arrive(done);
}

// Sums of the products of numbers in registers and a tile in the block's memory.
DEVICE void multiply_tile(f32 *sum, parts_t high, parts_t low, tile_ref tile)
{
    GROUP_BEGIN();
    UNROLL for (u32 i = 0; i < 8; i++) group_weigh_f32(sum, low[i], tile + TILE_STEP(i / 4 * CHUNK_BYTES + i % 4 * 32), i > 0);
    UNROLL for (u32 i = 0; i < 8; i++) {
        group_weigh_f32(sum, high[i], tile + TILE_STEP(PART_BYTES + i / 4 * CHUNK_BYTES + i % 4 * 32), 1);
    }
    UNROLL for (u32 i = 0; i < 8; i++) group_weigh_f32(sum, high[i], tile + TILE_STEP(i / 4 * CHUNK_BYTES + i % 4 * 32), 1);
    GROUP_COMMIT();
    GROUP_WAIT();
    UNROLL for (u32 i = 0; i < 32; i++) GROUP_SETTLE(sum[i]);
}

// The lane's numbers of its two queries.
DEVICE void load_queries(parts_t high, parts_t low, attention_work work, attention_sizes size, attention_steps step, u32 row)
{
    UNROLL for (u32 i = 0; i < 32; i++) {
        u32 own = row + i % 2 * 8, column = i / 4 * 8 + lane() % 4 + i / 2 % 2 * 4;
        int present = own < size.n_q && column < size.d;
        split(present ? f32_bits(work.q[(i64)own * step.q + column]) : 0u, &high[i / 4][i % 4], &low[i / 4][i % 4]);
    }
}

// Goes through all keys for 64 queries. The warps of one group.
DEVICE void attend(const u8 *keys, const u8 *values, attention_work work, attention_sizes size, attention_steps step)
{
    u32 row = work.first + thread_x() / WARP * 16 + lane() / 4, stage = 0, parity = 0;
    tile_ref all_keys = tile_place(keys), all_values = tile_place(values);
    f32 factor = exponent_factor(size), largest[1][2] = {{LOWEST, LOWEST}}, total[1][2] = {{0.0f, 0.0f}}, correction[1][2];
    parts_t query_high, query_low;
    sums_t sum;
    UNROLL for (u32 i = 0; i < 32; i++) sum[0][i / 4][i % 4] = 0.0f;
    load_queries(query_high, query_low, work, size, step, row);
    ROLLED for (u32 first = 0; first < work.end; first += KEYS) {
        scores_t score;
        gate_wait(&keys_there[stage], parity);
        TENSOR_FENCE();
        multiply_tile(&score[0][0][0], query_high, query_low, all_keys + TILE_STEP(stage * STAGE_BYTES));
        leave_stage(&keys_done[stage]);
        masks_t mask;
        load_mask(mask, first, work, size, step);
        soften(score, mask, largest, total, correction, factor, row, first, work, size, step);
        parts_t high, low;
        UNROLL for (u32 i = 0; i < 8; i++) {
            const f32 *w = score[0][i];
            u32 a[4] = {f32_bits(w[0]), f32_bits(w[2]), f32_bits(w[1]), f32_bits(w[3])};
            split_words(a, high[i], low[i], 4);
        }
        sums_t fresh;
        gate_wait(&values_there[stage], parity);
        TENSOR_FENCE();
        multiply_tile(&fresh[0][0][0], high, low, all_values + TILE_STEP(stage * STAGE_BYTES));
        leave_stage(&values_done[stage]);
        UNROLL for (u32 i = 0; i < 32; i++) sum[0][i / 4][i % 4] = sum[0][i / 4][i % 4] * correction[0][i / 2 % 2] + fresh[0][i / 4][i % 4];
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    write_sums(sum, total, row, work, size);
}

KERNEL LAUNCH_BOUNDS(THREADS + GROUP_THREADS, 1) attention_split(GLOBAL T *out, GLOBAL const T *q, GLOBAL const T *k, GLOBAL const T *v,
    GLOBAL const M *mask, attention_sizes size, attention_steps step, FIXED layout q_heads, FIXED layout k_heads, FIXED layout v_heads,
    FIXED layout mask_heads)
{
    DYNAMIC_SHARED(u8, unaligned);
    u8 *keys = unaligned + (1024 - ((u64)unaligned & 1023)) % 1024, *values = keys + STAGES * STAGE_BYTES;
    attention_work work = find_work(out, q, k, v, mask, size, &q_heads, &k_heads, &v_heads, &mask_heads, BLOCK_ROWS);
    if (thread_x() == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            gate_prepare(&keys_there[i], GROUP_THREADS);
            gate_prepare(&values_there[i], GROUP_THREADS);
            gate_prepare(&keys_done[i], GROUPS * 4);
            gate_prepare(&values_done[i], GROUPS * 4);
        }
    }
    BARRIER();
    if (thread_x() >= THREADS) {
        if (GROUPS == 2) GROUP_REGISTERS_LESS(72);
        copy_tiles(keys, values, work, size, step);
        return;
    }
    if (GROUPS == 2) GROUP_REGISTERS_MORE(216);
    attend(keys, values, work, size, step);
}

// Search with many queries: the matrix unit multiplies tiles of queries with tiles of rows; rows that may be among the nearest go to
// the query's list of candidates.
//
// Parameters besides those of search_choose.h: STAGES in the block's memory, of STAGE_CHUNKS chunks; RESIDENT, whether the queries stay
// there; COPIERS, an even number of warps that copy; GROUPED, whether four warps multiply together (then WARP_QUERIES is 16, WARP_ROWS is
// 128, and COPIERS is 4); PASS, see below; BLOCKS of a multiprocessor.
//
// A block keeps its queries and goes through tiles of rows. Both come in chunks of 128 bytes of each vector: a chunk lies in the
// block's memory as lines of 128 bytes, whose eight pieces of 16 bytes are permuted by the line's number, so that the matrix loads
// touch every bank once. The copiers fill one stage after the other as the warps that multiply empty them. No two of those wait
// for each other but for what one stage has: while some choose, others multiply.
//
// By the PASS's kind:
// ALL: every score of the tiles is written to its place of the lists.
// NEAREST: the nearest score of each group of rows is.
// LIST: keys up to the query's threshold are candidates. A warp collects them, computes again the scores that are only bounded, and
// appends what remains to the lists.
// Where sums are not the scores, what the first two write is a score that the row's own is at least as near as; the k-th of them is then a
// valid threshold all the same.

#define LIST 0
#define ALL 1
#define NEAREST 2
#define CHUNK_BYTES 128
#define QUERY_CHUNK_BYTES (BLOCK_QUERIES * CHUNK_BYTES)
#define ROW_CHUNK_BYTES (BLOCK_ROWS * CHUNK_BYTES)
#define STAGE_BYTES (STAGE_CHUNKS * (ROW_CHUNK_BYTES + (RESIDENT ? 0 : QUERY_CHUNK_BYTES)))
#define COPIER_THREADS (COPIERS * WARP)
// Threads that share the squares of a row.
#define SHARERS (THREADS / BLOCK_ROWS)

#if defined(T_IS_f32)
#define MULTIPLY multiply_f32
#define MULTIPLY_GROUP group_multiply_f32
#elif defined(T_IS_f16)
#define MULTIPLY multiply_f16
#define MULTIPLY_GROUP group_multiply_f16
#elif defined(T_IS_bf16)
#define MULTIPLY multiply_bf16
#define MULTIPLY_GROUP group_multiply_bf16
#else
#define MULTIPLY multiply_i8
#define MULTIPLY_GROUP group_multiply_i8
#endif

#define WARP_GROUPS ((WARPS + 3) / 4)
// Whether the registers of a multiprocessor do not suffice for as many in the copiers as in the other warps.
#define SHIFTS_REGISTERS (GROUPED && WARPS == 16)

// A stage's copies are there; it may be filled again; the queries are there; the facts of a tile's rows are, of this tile and the one
// before; a group has multiplied.
SHARED gate filled[STAGES], emptied[STAGES], prepared, measured[2], multiplied[WARP_GROUPS];

// Starts the copy of one chunk by some threads, of which this is the one with this index: lines of 128 bytes of as many vectors, zeros
// where there is nothing. Nothing is read from there. The threads are a multiple of 64.
DEVICE void copy_chunk(u32 index, u32 threads, u8 *target, GLOBAL const T *source, u32 first, u32 count, u32 vectors, u32 row_bytes, u32 chunk)
{
    u32 line = index / 8, number = index % 8, byte = chunk * CHUNK_BYTES + number * 16;
    u8 *to = target + line * CHUNK_BYTES + ((number ^ (line & 7u)) << 4);
    GLOBAL const u8 *from = (GLOBAL const u8 *)source + (u64)(first + line) * row_bytes + byte;
    u32 left = byte < row_bytes && first + line < count ? count - first - line : 0;
    if (vectors < threads / 8 && line >= vectors) return;
    UNROLL for (u32 i = 0; i < (vectors * 8 + threads - 1) / threads; i++) {
        copy_async_16(to + i * (threads / 8) * CHUNK_BYTES, from, i * (threads / 8) < left);
        from += (u64)(threads / 8) * row_bytes;
    }
}

// This thread's share of the squares of its row in one chunk.
DEVICE sum add_squares(const u8 *rows, sum square)
{
    u32 line = thread_x() / SHARERS, first = thread_x() % SHARERS * (8 / SHARERS);
    UNROLL_BY_2 for (u32 i = 0; i < 8 / SHARERS; i++) {
        value x[VALUES];
        unpack(*(const u32x4 *)(rows + line * CHUNK_BYTES + (((first + i) ^ (line & 7u)) << 4)), x);
        UNROLL for (u32 v = 0; v < VALUES; v++) square = add_product(x[v], x[v], square);
    }
    return square;
}

// Where a lane's line of a matrix load begins.
DEVICE const u8 *matrix_line(const u8 *chunk, u32 line, u32 piece_number)
{
    return chunk + line * CHUNK_BYTES + ((piece_number ^ (line & 7u)) << 4);
}

// Adds the products of one stage, or begins with them. Where warps are GROUPED, they are there after `finish_products`.
#if GROUPED
DEVICE void multiply_stage(sums a, const u8 *queries, const u8 *rows, u32 warp_query, u32 warp_row, int add)
{
    u32 x = tile_place(queries + warp_query / 64 * 64 * CHUNK_BYTES), y = tile_place(rows + warp_row * CHUNK_BYTES);
    GROUP_BEGIN();
    UNROLL for (u32 step = 0; step < STAGE_CHUNKS * 4; step++) {
        u32 chunk = step / 4;
        MULTIPLY_GROUP(&a[0][0][0], x + chunk * (QUERY_CHUNK_BYTES >> 4) + step % 4 * 2, y + chunk * (ROW_CHUNK_BYTES >> 4) + step % 4 * 2, add || step > 0);
    }
    GROUP_COMMIT();
}
DEVICE void finish_products(void) { GROUP_WAIT(); }
#else
DEVICE void multiply_stage(sums a, const u8 *queries, const u8 *rows, u32 warp_query, u32 warp_row, int add)
{
    if (!add) {
        UNROLL for (u32 i = 0; i < QUERY_TILES * ROW_TILES * 4; i++) a[i / (ROW_TILES * 4)][i / 4 % ROW_TILES][i % 4] = 0;
    }
    UNROLL for (u32 step = 0; step < STAGE_CHUNKS * 4; step++) {
        const u8 *queries_here = queries + step / 4 * QUERY_CHUNK_BYTES + warp_query * CHUNK_BYTES;
        const u8 *rows_here = rows + step / 4 * ROW_CHUNK_BYTES + warp_row * CHUNK_BYTES;
        u32 x[QUERY_TILES][4], y[ROW_TILES][2];
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            load_matrices(x[m], matrix_line(queries_here, m * 16 + lane() % 16, step % 4 * 2 + lane() / 16));
        }
        UNROLL for (u32 n = 0; n < ROW_TILES; n += 2) {
            load_matrices(y[n], matrix_line(rows_here, n * 8 + lane() % 8 + lane() / 16 * 8, step % 4 * 2 + lane() / 8 % 2));
        }
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            UNROLL for (u32 n = 0; n < ROW_TILES; n++) MULTIPLY(a[m][n], x[m], y[n]);
        }
    }
}
DEVICE void finish_products(void) {}
#endif

// Loads the facts about the block's queries. Called by all threads of the block.
DEVICE void learn_queries(GLOBAL const sum *squares, GLOBAL const u64 *limits)
{
    for (u32 i = thread_x(); i < BLOCK_QUERIES; i += THREADS) {
        u32 number = job.query_base + i;
        int present = number < job.query_count;
        sum square = present && NEEDS_FACTS ? squares[number] : 0;
        u64 limit = present && PASS == LIST ? limits[number] : MISSING_KEY;
        query_squares[i] = square;
        thresholds[i] = limit;
        queries_known[i] = present ? facts_of_query(square, job.dim, limit) : facts_of_no_query();
    }
}

// Completes what is known of this thread's row of a tile.
DEVICE void learn_row(row_facts *known, sum square, u32 row_base)
{
    UNROLL for (u32 mask = SHARERS / 2; mask > 0; mask /= 2) square += shuffle_xor_sum(square, mask);
    u32 line = thread_x() / SHARERS, row = row_base + line;
    if (thread_x() % SHARERS == 0) known[line] = facts_of_row(square, job.dim, job.lengths, row < job.row_count ? row : job.row_count - 1);
}

// The tiles of a pass: every `step`-th of all, but not each `left_out`-th of those, the first among these; 0 leaves none out. A block
// takes every n-th of them. A tile comes in `stages` stages.
typedef struct { u32 count, step, left_out, stages; } pass;

// The first row of the pass's tile with this number.
DEVICE u32 row_base_of(pass tiles, u32 number)
{
    if (tiles.left_out) number += number / (tiles.left_out - 1) + 1;
    return number * tiles.step * BLOCK_ROWS;
}

// Fills the stages for all tiles of the block. The copiers.
DEVICE void copy_tiles(u8 *stages, pass tiles, GLOBAL const T *rows, GLOBAL const T *queries, u32 row_count, u32 query_count, u32 query_base, u32 row_bytes)
{
    u32 index = thread_x() - THREADS, stage = 0, parity = 1;
    for (u32 tile = block_y(); tile < tiles.count; tile += grid_size_y()) {
        u32 row_base = row_base_of(tiles, tile);
        for (u32 step = 0; step < tiles.stages; step++) {
            u8 *target = stages + stage * STAGE_BYTES;
            gate_wait(&emptied[stage], parity);
            UNROLL for (u32 i = 0; i < STAGE_CHUNKS; i++) {
                u32 chunk = step * STAGE_CHUNKS + i;
                copy_chunk(index, COPIER_THREADS, target + i * ROW_CHUNK_BYTES, rows, row_base, row_count, BLOCK_ROWS, row_bytes, chunk);
                if (!RESIDENT) {
                    u8 *behind = target + STAGE_CHUNKS * ROW_CHUNK_BYTES + i * QUERY_CHUNK_BYTES;
                    copy_chunk(index, COPIER_THREADS, behind, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, chunk);
                }
            }
            gate_arrive_when_copied(&filled[stage]);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
    COPY_ASYNC_WAIT(0);
}

// Goes through all tiles of the block. The warps that multiply.
//
// Each group of four has a partner, and the two take turns: else all would multiply at once, and then all choose, while the matrix unit
// waits. Where a tile has more stages than there is room for, one group cannot wait until another has been through all of them.
DEVICE void choose_from_tiles(const u8 *memory, const u8 *stages, pass tiles, GLOBAL const f32 *lengths)
{
    u32 warp = shuffle_u32(thread_x() / WARP, 0), warp_query = warp % WARPS_ALONG_QUERIES * WARP_QUERIES, warp_row = warp / WARPS_ALONG_QUERIES * WARP_ROWS;
    u32 stage = 0, parity = 0, half = 0, half_parity = 0, collected_count = 0;
    u32 group = warp / 4, partner = (group + WARP_GROUPS / 2) % WARP_GROUPS, turn = partner > group;
    int takes_turns = GROUPED && WARP_GROUPS > 1 && tiles.stages <= STAGES;
    int squared = NEEDS_FACTS && !(EXACT && METRIC == COSINE && lengths);
    sums a;
    for (u32 tile = block_y(); tile < tiles.count; tile += grid_size_y()) {
        u32 row_base = row_base_of(tiles, tile);
        row_facts *known = rows_known[half];
        sum square = 0;
        if (takes_turns) gate_wait(&multiplied[partner], turn);
        turn ^= 1;
        for (u32 step = 0; step < tiles.stages; step++) {
            const u8 *rows_here = stages + stage * STAGE_BYTES;
            const u8 *queries_here = RESIDENT ? memory + step * STAGE_CHUNKS * QUERY_CHUNK_BYTES : rows_here + STAGE_CHUNKS * ROW_CHUNK_BYTES;
            gate_wait(&filled[stage], parity);
            if (GROUPED) TENSOR_FENCE();
            multiply_stage(a, queries_here, rows_here, warp_query, warp_row, step > 0);
            if (NEEDS_FACTS && squared) {
                UNROLL for (u32 i = 0; i < STAGE_CHUNKS; i++) square = add_squares(rows_here + i * ROW_CHUNK_BYTES, square);
            }
            int last = step + 1 == tiles.stages;
            if (NEEDS_FACTS && last) learn_row(known, square, row_base);
            WARP_BARRIER();
            if (NEEDS_FACTS && last && lane() == 0) gate_arrive(&measured[half]);
            finish_products();
            if (lane() == 0) gate_arrive(&emptied[stage]);
            if (takes_turns && last && lane() == 0) gate_arrive(&multiplied[group]);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        // Facts of the tile after the next take this place only when all have measured the next, and so have chosen here.
        if (NEEDS_FACTS) gate_wait(&measured[half], half_parity);
        u32 first = row_base + warp_row, part = tile * (BLOCK_ROWS / WARP_ROWS) + warp_row / WARP_ROWS;
        if (PASS == ALL) write_all(a, warp_query, first, known + warp_row, part * WARP_ROWS);
        if (PASS == NEAREST) write_nearest(a, warp_query, first, known + warp_row, part * (4 / SHARED_BY));
        if (PASS == LIST) collected_count = choose(a, warp_query, first, known + warp_row, &collections[warp], collected_count);
        half ^= 1;
        if (half == 0) half_parity ^= 1;
    }
    if (PASS == LIST) hand_over(&collections[warp], collected_count);
}

// The grid is (tiles of queries, parts of the rows). The pass takes `tiles` tiles of rows.
KERNEL LAUNCH_BOUNDS(THREADS + COPIER_THREADS, BLOCKS) search_many(GLOBAL const T *RESTRICT rows, GLOBAL const T *RESTRICT queries,
    GLOBAL const u32 *RESTRICT filter, GLOBAL const f32 *RESTRICT lengths, GLOBAL const sum *RESTRICT squares, GLOBAL const u64 *RESTRICT limits,
    GLOBAL u64 *lists, GLOBAL u32 *counts, u32 row_count, u32 query_count, u32 dim, u32 capacity, u32 tile_count, u32 tile_step, u32 left_out)
{
    DYNAMIC_SHARED(u8, unaligned);
    u8 *memory = unaligned + (1024 - ((u64)unaligned & 1023)) % 1024;
    u32 query_base = block_x() * BLOCK_QUERIES, row_bytes = dim * T_BYTES;
    u32 chunks = (row_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    pass tiles = {tile_count, tile_step, left_out, (chunks + STAGE_CHUNKS - 1) / STAGE_CHUNKS};
    if (thread_x() == 0) {
        work all = {rows, queries, filter, lengths, lists, counts, row_count, query_count, dim, capacity, query_base};
        job = all;
        for (u32 i = 0; i < STAGES; i++) {
            gate_prepare(&filled[i], COPIER_THREADS);
            gate_prepare(&emptied[i], WARPS);
        }
        for (u32 i = 0; i < WARP_GROUPS; i++) gate_prepare(&multiplied[i], 4);
        gate_prepare(&prepared, THREADS);
        gate_prepare(&measured[0], WARPS);
        gate_prepare(&measured[1], WARPS);
    }
    BARRIER();
    u32 kept = RESIDENT ? tiles.stages * STAGE_CHUNKS : 0;
    u8 *stages = memory + kept * QUERY_CHUNK_BYTES;
    if (thread_x() >= THREADS) {
        if (SHIFTS_REGISTERS) GROUP_REGISTERS_FEW();
        copy_tiles(stages, tiles, rows, queries, row_count, query_count, query_base, row_bytes);
        return;
    }
    if (SHIFTS_REGISTERS) GROUP_REGISTERS_MANY();
    for (u32 c = 0; c < kept; c++) {
        copy_chunk(thread_x(), THREADS, memory + c * QUERY_CHUNK_BYTES, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, c);
    }
    COPY_ASYNC_COMMIT();
    learn_queries(squares, limits);
    COPY_ASYNC_WAIT(0);
    if (GROUPED) TENSOR_FENCE();
    gate_arrive(&prepared);
    gate_wait(&prepared, 0);
    choose_from_tiles(memory, stages, tiles, lengths);
}

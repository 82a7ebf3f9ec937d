// Search with many queries: the matrix unit multiplies tiles of queries with tiles of rows; what may be among the nearest goes to
// the query's list of candidates.
//
// Parameters besides those of search_bounds.h: BLOCK_QUERIES and BLOCK_ROWS, the sizes of a tile; WARP_QUERIES and WARP_ROWS, the part of
// one warp; STAGES in the block's memory, of STAGE_CHUNKS chunks; RESIDENT, whether the queries stay there; GROUPED, whether four warps
// multiply together (then WARP_QUERIES is 16, and WARP_ROWS is 128); FIRST, see below; BLOCKS of a
// multiprocessor.
//
// A block keeps its queries and goes through tiles of rows. Both come in chunks of 128 bytes of each vector: a chunk lies in the
// block's memory as lines of 128 bytes, whose eight pieces of 16 bytes are permuted by the line's number, so that the matrix loads
// touch every bank once. While a stage is multiplied, the next is on its way.
//
// FIRST: every score of the tiles is written to its place of the lists. Where sums are not the scores, what is written is a score
// that the row's own is at least as near as; the k-th of them is then a valid threshold all the same.
// Else: keys up to the query's threshold are candidates. A warp collects them, computes those scores anew that are only
// bounded, and appends what remains to the lists.

#define QUERY_TILES (WARP_QUERIES / 16)
#define ROW_TILES (WARP_ROWS / 8)
#define WARPS_ALONG_QUERIES (BLOCK_QUERIES / WARP_QUERIES)
#define WARPS (WARPS_ALONG_QUERIES * (BLOCK_ROWS / WARP_ROWS))
#define THREADS (WARPS * WARP)
#define CHUNK_BYTES 128
#define QUERY_CHUNK_BYTES (BLOCK_QUERIES * CHUNK_BYTES)
#define ROW_CHUNK_BYTES (BLOCK_ROWS * CHUNK_BYTES)
#define STAGE_BYTES (STAGE_CHUNKS * (ROW_CHUNK_BYTES + (RESIDENT ? 0 : QUERY_CHUNK_BYTES)))
// Candidates that a warp collects before it looks at them.
#define COLLECTED_MAX 96
// Whether anything but the sums must be known of queries and rows.
#define NEEDS_FACTS !(EXACT && METRIC == DOT)
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

typedef struct {
    GLOBAL const T *rows, *queries;
    GLOBAL const u32 *filter;
    GLOBAL const f32 *lengths;
    GLOBAL u64 *lists;
    GLOBAL u32 *counts;
    u32 row_count, query_count, dim, capacity, query_base;
} work;

typedef struct {
    u64 keys[COLLECTED_MAX];   // EXACT: the keys; else the rows
    u8 queries[COLLECTED_MAX];
    u32 count;
} collected;

SHARED work job;
SHARED collected collections[WARPS];
SHARED u64 thresholds[BLOCK_QUERIES];
SHARED query_facts queries_known[BLOCK_QUERIES];
SHARED sum query_squares[BLOCK_QUERIES];
// Of this tile and the one before.
SHARED row_facts rows_known[2][BLOCK_ROWS];

// The score in the order of search_score.h, by LANES lanes for each row. All lanes of the warp.
DEVICE f32 score_anew(u32 row, u32 query, int present)
{
    sum s = 0, square = 0;
    u32 pieces = present ? job.dim / PIECE : 0;
    GLOBAL const T *x_from = job.rows + (u64)row * job.dim, *y_from = job.queries + (u64)(job.query_base + query) * job.dim;
    for (u32 p = lane() % LANES; p < pieces; p += LANES) {
        value x[VALUES], y[VALUES];
        unpack(load_piece(x_from + p * PIECE), x);
        unpack(load_piece(y_from + p * PIECE), y);
        UNROLL for (u32 v = 0; v < VALUES; v++) {
            if (ROW_SQUARES) square = add_product(x[v], x[v], square);
            s = accumulate(x[v], y[v], s);
        }
    }
    UNROLL for (u32 mask = LANES / 2; mask > 0; mask /= 2) {
        s += shuffle_xor_sum(s, mask);
        if (ROW_SQUARES) square += shuffle_xor_sum(square, mask);
    }
    f32 length = METRIC == COSINE && present && job.lengths ? job.lengths[row] : sqrtf((f32)square);
    return finish_score(s, square, query_squares[query], length);
}

DEVICE void append(u32 query, u64 key)
{
    u32 number = job.query_base + query, place = ATOMIC_ADD(&job.counts[number], 1u);
    if (place < job.capacity) job.lists[(u64)number * job.capacity + place] = key;
}

// Moves what the warp has collected to the lists. All lanes of the warp.
NOINLINE void hand_over(collected *mine)
{
    WARP_BARRIER();
    u32 count = mine->count;
#if EXACT
    for (u32 i = lane(); i < count; i += WARP) append(mine->queries[i], mine->keys[i]);
#else
    for (u32 base = 0; base < count; base += WARP / LANES) {
        u32 i = base + lane() / LANES, present = i < count;
        u32 row = present ? (u32)mine->keys[i] : 0, query = present ? mine->queries[i] : 0;
        u64 key = key_of(score_anew(row, query, (int)present), row);
        if (present && lane() % LANES == 0 && key <= thresholds[query]) append(query, key);
    }
#endif
    WARP_BARRIER();
    if (lane() == 0) mine->count = 0;
    WARP_BARRIER();
}

// Collects a row's sum with the first query and that with the eighth after it, where the bits of `near` say so. A lane for itself.
NOINLINE void collect(collected *mine, u32 near, sum a, sum b, u32 query, u32 row, f32 row_first)
{
    if (row >= job.row_count || !row_allowed(job.filter, row)) return;
    row_facts facts = {row_first, 0.0f};
    UNROLL for (u32 i = 0; i < 2; i++) {
        u32 which = query + i * 8;
        // What is not a number passes every bound, also that of places without a query.
        if (!((near >> i) & 1u) || job.query_base + which >= job.query_count) continue;
        u64 key = row;
        if (EXACT) {
            key = key_of(certain_score(i ? b : a, query_squares[which], 0.0f, facts, job.dim), row);
            if (key > thresholds[which]) continue;
        }
        u32 place = ATOMIC_ADD(&mine->count, 1u);
        mine->keys[place] = key;
        mine->queries[place] = (u8)which;
    }
}

// Makes room for what the warp's lanes can collect at once. All lanes of the warp.
DEVICE void make_room(collected *mine)
{
    WARP_BARRIER();
    // One lane's reading decides for all: others may have collected before a slow lane reads.
    if (shuffle_u32(mine->count, 0) > COLLECTED_MAX - 2 * WARP) hand_over(mine);
}

typedef sum sums[QUERY_TILES][ROW_TILES][4];

// Chooses the candidates of a tile. `row_base` is the warp's first row, `known` what is known from there on. All lanes of the warp.
DEVICE void choose(sums a, u32 query_base, u32 row_base, const row_facts *known, collected *mine)
{
    u32 row = lane() % 4 * 2, query = query_base + lane() / 4;
    query_facts limits[QUERY_TILES][2];
    UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
        UNROLL for (u32 half = 0; half < 2; half++) limits[m][half] = queries_known[query + m * 16 + half * 8];
    }
    // A bit for each pair of tiles in which this lane has a candidate.
    u32 candidates = 0;
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            int any = 0;
            UNROLL for (u32 i = 0; i < 4; i++) any |= may_be_near(a[m][n][i], limits[m][i / 2], known[row + n * 8 + i % 2]);
            candidates |= (u32)any << (n * QUERY_TILES + m);
        }
    }
    // Each bit stands for up to four of them.
    u32 most = reduce_add_u32(count_ones(candidates)) * 4u;
    if (most == 0) return;
    candidates = reduce_or_u32(candidates);
    WARP_BARRIER();
    if (shuffle_u32(mine->count, 0) + most > COLLECTED_MAX) hand_over(mine);
    int may_run_over = most > COLLECTED_MAX;
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            if (!((candidates >> (n * QUERY_TILES + m)) & 1u)) continue;
            UNROLL for (u32 i = 0; i < 2; i++) {
                row_facts facts = known[row + n * 8 + i];
                u32 near = (u32)may_be_near(a[m][n][i], limits[m][0], facts) | (u32)may_be_near(a[m][n][i + 2], limits[m][1], facts) << 1;
                if (may_run_over) make_room(mine);
                if (near) collect(mine, near, a[m][n][i], a[m][n][i + 2], query + m * 16, row_base + row + n * 8 + i, facts.first);
            }
        }
    }
}

// Writes every score of a tile to the lists, from `place` on.
DEVICE void write_all(sums a, u32 query_base, u32 row_base, const row_facts *known, u32 place)
{
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            UNROLL for (u32 i = 0; i < 4; i++) {
                u32 query = query_base + m * 16 + lane() / 4 + i / 2 * 8, offset = n * 8 + lane() % 4 * 2 + i % 2;
                u32 row = row_base + offset, number = job.query_base + query;
                u64 key = MISSING_KEY;
                if (row < job.row_count && row_allowed(job.filter, row)) {
                    key = key_of(certain_score(a[m][n][i], query_squares[query], queries_known[query].error, known[offset], job.dim), row);
                }
                if (number < job.query_count) job.lists[(u64)number * job.capacity + place + offset] = key;
            }
        }
    }
}

// Starts the copy of one chunk: lines of 128 bytes of as many vectors, zeros where there is nothing. Nothing is read from there.
DEVICE void copy_chunk(u8 *target, GLOBAL const T *source, u32 first, u32 count, u32 vectors, u32 row_bytes, u32 chunk)
{
    u32 line = thread_x() / 8, number = thread_x() % 8, byte = chunk * CHUNK_BYTES + number * 16;
    u8 *to = target + line * CHUNK_BYTES + ((number ^ (line & 7u)) << 4);
    GLOBAL const u8 *from = (GLOBAL const u8 *)source + (u64)(first + line) * row_bytes + byte;
    u32 left = byte < row_bytes && first + line < count ? count - first - line : 0;
    if (vectors < THREADS / 8 && line >= vectors) return;
    UNROLL for (u32 i = 0; i < (vectors * 8 + THREADS - 1) / THREADS; i++) {
        copy_async_16(to + i * (THREADS / 8) * CHUNK_BYTES, from, i * (THREADS / 8) < left);
        from += (u64)(THREADS / 8) * row_bytes;
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
    u64 x = tile_descriptor(queries + warp_query / 64 * 64 * CHUNK_BYTES), y = tile_descriptor(rows + warp_row * CHUNK_BYTES);
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

// What the block knows of its queries. All threads of the block.
DEVICE void learn_queries(GLOBAL const sum *squares, GLOBAL const u64 *limits)
{
    for (u32 i = thread_x(); i < BLOCK_QUERIES; i += THREADS) {
        u32 number = job.query_base + i;
        int present = number < job.query_count;
        sum square = present && NEEDS_FACTS ? squares[number] : 0;
        u64 limit = present && !FIRST ? limits[number] : MISSING_KEY;
        query_squares[i] = square;
        thresholds[i] = limit;
        queries_known[i] = present ? facts_of_query(square, job.dim, limit) : facts_of_no_query();
    }
}

// Starts the copy of one stage.
DEVICE void copy_stage(u8 *target, GLOBAL const T *rows, GLOBAL const T *queries, u32 row_count, u32 query_count, u32 query_base, u32 row_base, u32 step,
    u32 row_bytes)
{
    UNROLL for (u32 i = 0; i < STAGE_CHUNKS; i++) {
        u32 chunk = step * STAGE_CHUNKS + i;
        copy_chunk(target + i * ROW_CHUNK_BYTES, rows, row_base, row_count, BLOCK_ROWS, row_bytes, chunk);
        if (!RESIDENT) {
            copy_chunk(target + STAGE_CHUNKS * ROW_CHUNK_BYTES + i * QUERY_CHUNK_BYTES, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, chunk);
        }
    }
}

// Completes what is known of this thread's row of a tile.
DEVICE void learn_row(row_facts *known, sum square, u32 row_base)
{
    UNROLL for (u32 mask = SHARERS / 2; mask > 0; mask /= 2) square += shuffle_xor_sum(square, mask);
    u32 line = thread_x() / SHARERS, row = row_base + line;
    if (thread_x() % SHARERS == 0) known[line] = facts_of_row(square, job.dim, job.lengths, row < job.row_count ? row : job.row_count - 1);
}

// The first row of the pass's tile with this number. The pass takes every `tile_step`-th tile, but not each `left_out`-th of them,
// the first among these; 0 leaves none out.
DEVICE u32 row_base_of(u32 number, u32 tile_step, u32 left_out)
{
    if (left_out) number += number / (left_out - 1) + 1;
    return number * tile_step * BLOCK_ROWS;
}

// The grid is (tiles of queries, parts of the rows). The pass takes `tiles` tiles of rows.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) search_many(GLOBAL const T *RESTRICT rows, GLOBAL const T *RESTRICT queries, GLOBAL const u32 *RESTRICT filter,
    GLOBAL const f32 *RESTRICT lengths, GLOBAL const sum *RESTRICT squares, GLOBAL const u64 *RESTRICT limits, GLOBAL u64 *lists, GLOBAL u32 *counts,
    u32 row_count, u32 query_count, u32 dim, u32 capacity, u32 tiles, u32 tile_step, u32 left_out)
{
    DYNAMIC_SHARED(u8, unaligned);
    u8 *memory = unaligned + (1024 - ((u64)unaligned & 1023)) % 1024;
    u32 query_base = block_x() * BLOCK_QUERIES, row_bytes = dim * T_BYTES;
    u32 chunks = (row_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, steps = (chunks + STAGE_CHUNKS - 1) / STAGE_CHUNKS;
    u32 warp = thread_x() / WARP, warp_query = warp % WARPS_ALONG_QUERIES * WARP_QUERIES, warp_row = warp / WARPS_ALONG_QUERIES * WARP_ROWS;
    if (thread_x() == 0) {
        work all = {rows, queries, filter, lengths, lists, counts, row_count, query_count, dim, capacity, query_base};
        job = all;
    }
    if (lane() == 0) collections[warp].count = 0;
    BARRIER();
    learn_queries(squares, limits);

    u8 *stages = memory + (RESIDENT ? steps * STAGE_CHUNKS * QUERY_CHUNK_BYTES : 0);
    if (RESIDENT) {
        for (u32 c = 0; c < steps * STAGE_CHUNKS; c++) {
            copy_chunk(memory + c * QUERY_CHUNK_BYTES, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, c);
        }
    }
    // The tile, step and stage that are copied next, and those that are multiplied.
    u32 copy_tile = block_y(), copy_step = 0, copy_to = 0, tile = block_y(), step = 0, stage = 0, parity = 0;
    u32 copy_row = row_base_of(copy_tile, tile_step, left_out);
    for (u32 ahead = 0; ahead < STAGES - 1; ahead++) {
        if (copy_tile < tiles) copy_stage(stages + copy_to * STAGE_BYTES, rows, queries, row_count, query_count, query_base, copy_row, copy_step, row_bytes);
        COPY_ASYNC_COMMIT();
        copy_to++;
        if (++copy_step == steps) copy_step = 0, copy_tile += grid_size_y(), copy_row = row_base_of(copy_tile, tile_step, left_out);
    }
    int squared = NEEDS_FACTS && !(EXACT && METRIC == COSINE && lengths);
    sum square = 0;
    sums a;
    while (tile < tiles) {
        COPY_ASYNC_WAIT(STAGES - 2);
        if (GROUPED) TENSOR_FENCE();
        BARRIER();
        if (copy_tile < tiles) copy_stage(stages + copy_to * STAGE_BYTES, rows, queries, row_count, query_count, query_base, copy_row, copy_step, row_bytes);
        COPY_ASYNC_COMMIT();
        if (++copy_to == STAGES) copy_to = 0;
        if (++copy_step == steps) copy_step = 0, copy_tile += grid_size_y(), copy_row = row_base_of(copy_tile, tile_step, left_out);

        const u8 *rows_here = stages + stage * STAGE_BYTES;
        const u8 *queries_here = RESIDENT ? memory + step * STAGE_CHUNKS * QUERY_CHUNK_BYTES : rows_here + STAGE_CHUNKS * ROW_CHUNK_BYTES;
        multiply_stage(a, queries_here, rows_here, warp_query, warp_row, step > 0);
        if (NEEDS_FACTS && squared) {
            UNROLL for (u32 i = 0; i < STAGE_CHUNKS; i++) square = add_squares(rows_here + i * ROW_CHUNK_BYTES, square);
        }
        finish_products();
        if (++stage == STAGES) stage = 0;
        if (++step == steps) {
            step = 0;
            u32 row_base = row_base_of(tile, tile_step, left_out);
            row_facts *known = rows_known[parity];
            if (NEEDS_FACTS) {
                learn_row(known, square, row_base);
                square = 0;
                parity ^= 1;
                BARRIER();
            }
            if (FIRST) write_all(a, warp_query, row_base + warp_row, known + warp_row, tile * BLOCK_ROWS + warp_row);
            else choose(a, warp_query, row_base + warp_row, known + warp_row, &collections[warp]);
            tile += grid_size_y();
        }
    }
    COPY_ASYNC_WAIT(0);
    if (!FIRST) hand_over(&collections[warp]);
}

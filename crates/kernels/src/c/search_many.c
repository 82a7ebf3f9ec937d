// Search with many queries: the matrix unit multiplies tiles of queries with tiles of rows; what may be among the nearest goes to
// the query's list of candidates.
//
// Parameters besides those of search_bounds.h: BLOCK_QUERIES and BLOCK_ROWS, the sizes of a tile; WARP_QUERIES and WARP_ROWS, the part of
// one warp; STAGES, chunks of rows in the block's memory; RESIDENT, whether the queries stay there; FIRST, see below.
//
// A block keeps its queries and goes through tiles of rows. Both come in chunks of 128 bytes of each vector: a chunk lies in the
// block's memory as lines of 128 bytes, whose eight pieces of 16 bytes are permuted by the line's number, so that the matrix loads
// touch every bank once. While a chunk is multiplied, the next ones are on their way.
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
#define STAGE_BYTES (ROW_CHUNK_BYTES + (RESIDENT ? 0 : QUERY_CHUNK_BYTES))
// Candidates that a warp collects before it looks at them.
#define COLLECTED_MAX 64
#define NEEDS_QUERY_SQUARES !(EXACT && METRIC == DOT)
#define NEEDS_ROW_FACTS !(EXACT && METRIC == DOT)

#if defined(T_IS_f32)
#define MULTIPLY multiply_f32
#elif defined(T_IS_f16)
#define MULTIPLY multiply_f16
#elif defined(T_IS_bf16)
#define MULTIPLY multiply_bf16
#else
#define MULTIPLY multiply_i8
#endif

typedef struct {
    GLOBAL const T *rows, *queries;
    GLOBAL const u32 *filter;
    GLOBAL const f32 *lengths, *first, *second;
    GLOBAL u64 *lists;
    GLOBAL u32 *counts;
    u32 row_count, query_count, dim, capacity, query_base;
} work;

typedef struct {
    u64 keys[COLLECTED_MAX];   // EXACT: the keys; else the rows
    u32 queries[COLLECTED_MAX];
    u32 count;
} collected;

SHARED work job;
SHARED collected collections[WARPS];
SHARED u64 thresholds[BLOCK_QUERIES];
SHARED query_facts queries_known[BLOCK_QUERIES];
SHARED sum query_squares[BLOCK_QUERIES];

DEVICE row_facts load_facts(u32 row)
{
    row_facts facts = {0.0f, 0.0f};
    u32 at = row < job.row_count ? row : job.row_count - 1;
    if (NEEDS_ROW_FACTS) facts.first = job.first[at];
    if (!EXACT && METRIC != DOT) facts.second = job.second[at];
    return facts;
}

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

// Collects the row where `near` says so. All lanes of the warp.
DEVICE void collect(collected *mine, int near, sum a, u32 query, u32 row)
{
    near = near && row < job.row_count && row_allowed(job.filter, row);
    u64 key = row;
    if (EXACT && near) {
        key = key_of(certain_score(a, query_squares[query], 0.0f, load_facts(row), job.dim), row);
        near = key <= thresholds[query];
    }
    u32 all = ballot(near), before = mine->count;
    if (all == 0) return;
    if (near) {
        u32 place = before + count_ones(all & ((1u << lane()) - 1u));
        mine->keys[place] = key;
        mine->queries[place] = query;
    }
    WARP_BARRIER();
    if (lane() == 0) mine->count = before + count_ones(all);
    WARP_BARRIER();
    if (before + count_ones(all) > COLLECTED_MAX - WARP) hand_over(mine);
}

// Four sums of a tile: two neighbouring rows with two queries.
NOINLINE void collect_four(collected *mine, u32 near, sum a, sum b, sum c, sum d, u32 query, u32 row)
{
    collect(mine, near & 1u, a, query, row);
    collect(mine, near & 2u, b, query, row + 1);
    collect(mine, near & 4u, c, query + 8, row);
    collect(mine, near & 8u, d, query + 8, row + 1);
}

typedef sum sums[QUERY_TILES][ROW_TILES][4];

// Chooses the candidates of a tile whose first row is `row_base`. All lanes of the warp.
DEVICE void choose(sums a, u32 query_base, u32 row_base, collected *mine)
{
    u32 row = row_base + lane() % 4 * 2, query = query_base + lane() / 4;
    query_facts known[QUERY_TILES][2];
    UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
        UNROLL for (u32 half = 0; half < 2; half++) known[m][half] = queries_known[query + m * 16 + half * 8];
    }
    row_facts facts[ROW_TILES][2];
    int any = 0;
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 i = 0; i < 2; i++) facts[n][i] = load_facts(row + n * 8 + i);
    }
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            UNROLL for (u32 i = 0; i < 4; i++) any |= may_be_near(a[m][n][i], known[m][i / 2], facts[n][i % 2]);
        }
    }
    if (!ballot(any)) return;
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            u32 near = 0;
            UNROLL for (u32 i = 0; i < 4; i++) {
                near |= (u32)may_be_near(a[m][n][i], known[m][i / 2], facts[n][i % 2]) << i;
            }
            if (ballot(near != 0)) {
                collect_four(mine, near, a[m][n][0], a[m][n][1], a[m][n][2], a[m][n][3], query + m * 16, row + n * 8);
            }
        }
    }
}

// Writes every score of a tile to the lists, from `place` on.
DEVICE void write_all(sums a, u32 query_base, u32 row_base, u32 place)
{
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            UNROLL for (u32 i = 0; i < 4; i++) {
                u32 query = query_base + m * 16 + lane() / 4 + i / 2 * 8, offset = n * 8 + lane() % 4 * 2 + i % 2;
                u32 row = row_base + offset, number = job.query_base + query;
                u64 key = MISSING_KEY;
                if (row < job.row_count && row_allowed(job.filter, row)) {
                    key = key_of(certain_score(a[m][n][i], query_squares[query], queries_known[query].error, load_facts(row), job.dim), row);
                }
                if (number < job.query_count) job.lists[(u64)number * job.capacity + place + offset] = key;
            }
        }
    }
}

// Starts the copy of one chunk: lines of 128 bytes of as many vectors, zeros where there is nothing.
DEVICE void copy_chunk(u8 *target, GLOBAL const T *source, u64 first, u64 count, u32 vectors, u32 row_bytes, u32 chunk)
{
    UNROLL for (u32 i = thread_x(); i < vectors * 8; i += THREADS) {
        u32 line = i / 8, piece_number = i % 8, byte = chunk * CHUNK_BYTES + piece_number * 16;
        u64 vector = first + line;
        int present = vector < count && byte < row_bytes;
        GLOBAL const u8 *from = (GLOBAL const u8 *)source + (present ? vector * row_bytes + byte : 0);
        copy_async_16(target + line * CHUNK_BYTES + ((piece_number ^ (line & 7u)) << 4), from, present);
    }
}

// Where a lane's line of a matrix load begins.
DEVICE const u8 *matrix_line(const u8 *chunk, u32 line, u32 piece_number)
{
    return chunk + line * CHUNK_BYTES + ((piece_number ^ (line & 7u)) << 4);
}

// Adds the products of one chunk.
DEVICE void multiply_chunk(sums a, const u8 *queries, const u8 *rows)
{
    UNROLL for (u32 step = 0; step < 4; step++) {
        u32 x[QUERY_TILES][4], y[ROW_TILES][2];
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            load_matrices(x[m], matrix_line(queries, m * 16 + lane() % 16, step * 2 + lane() / 16));
        }
        UNROLL for (u32 n = 0; n < ROW_TILES; n += 2) {
            load_matrices(y[n], matrix_line(rows, n * 8 + lane() % 8 + lane() / 16 * 8, step * 2 + lane() / 8 % 2));
        }
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            UNROLL for (u32 n = 0; n < ROW_TILES; n++) MULTIPLY(a[m][n], x[m], y[n]);
        }
    }
}

// What the block knows of its queries. All threads of the block.
DEVICE void learn_queries(GLOBAL const sum *squares, GLOBAL const u64 *limits)
{
    for (u32 i = thread_x(); i < BLOCK_QUERIES; i += THREADS) {
        u32 number = job.query_base + i;
        int present = number < job.query_count;
        sum square = present && NEEDS_QUERY_SQUARES ? squares[number] : 0;
        u64 limit = present && !FIRST ? limits[number] : MISSING_KEY;
        query_squares[i] = square;
        thresholds[i] = limit;
        queries_known[i] = present ? facts_of_query(square, job.dim, limit) : facts_of_no_query();
    }
}

// The grid is (tiles of queries, parts of the rows). The tiles of rows are every `tile_step`-th, `tiles` of them.
KERNEL LAUNCH_BOUNDS(THREADS, 2) search_many(GLOBAL const T *RESTRICT rows, GLOBAL const T *RESTRICT queries, GLOBAL const u32 *RESTRICT filter,
    GLOBAL const f32 *RESTRICT lengths, GLOBAL const f32 *RESTRICT first, GLOBAL const f32 *RESTRICT second, GLOBAL const sum *RESTRICT squares,
    GLOBAL const u64 *RESTRICT limits, GLOBAL u64 *lists, GLOBAL u32 *counts, u32 row_count, u32 query_count, u32 dim, u32 capacity, u32 tiles,
    u32 tile_step)
{
    DYNAMIC_SHARED(u8, unaligned);
    u8 *memory = unaligned + (1024 - ((u64)unaligned & 1023)) % 1024;
    u32 query_base = block_x() * BLOCK_QUERIES, row_bytes = dim * T_BYTES, chunks = (row_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    u32 warp = thread_x() / WARP, warp_query = warp % WARPS_ALONG_QUERIES * WARP_QUERIES, warp_row = warp / WARPS_ALONG_QUERIES * WARP_ROWS;
    if (thread_x() == 0) {
        work all = {rows, queries, filter, lengths, first, second, lists, counts, row_count, query_count, dim, capacity, query_base};
        job = all;
    }
    if (lane() == 0) collections[warp].count = 0;
    BARRIER();
    learn_queries(squares, limits);

    u8 *stages = memory + (RESIDENT ? chunks * QUERY_CHUNK_BYTES : 0);
    if (RESIDENT) {
        for (u32 c = 0; c < chunks; c++) copy_chunk(memory + c * QUERY_CHUNK_BYTES, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, c);
    }
    // The tile and the chunk that is loaded next, and those that are multiplied.
    u32 load_tile = block_y(), load_chunk = 0, load_stage = 0, tile = block_y(), chunk = 0, stage = 0;
    for (u32 ahead = 0; ahead < STAGES; ahead++) {
        if (ahead == STAGES - 1) break;
        if (load_tile < tiles) {
            u8 *target = stages + load_stage * STAGE_BYTES;
            copy_chunk(target, rows, (u64)load_tile * tile_step * BLOCK_ROWS, row_count, BLOCK_ROWS, row_bytes, load_chunk);
            if (!RESIDENT) copy_chunk(target + ROW_CHUNK_BYTES, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, load_chunk);
        }
        COPY_ASYNC_COMMIT();
        load_stage++;
        if (++load_chunk == chunks) load_chunk = 0, load_tile += grid_size_y();
    }
    sums a;
    UNROLL for (u32 i = 0; i < QUERY_TILES * ROW_TILES * 4; i++) a[i / (ROW_TILES * 4)][i / 4 % ROW_TILES][i % 4] = 0;
    while (tile < tiles) {
        COPY_ASYNC_WAIT(STAGES - 2);
        BARRIER();
        if (load_tile < tiles) {
            u8 *target = stages + load_stage * STAGE_BYTES;
            copy_chunk(target, rows, (u64)load_tile * tile_step * BLOCK_ROWS, row_count, BLOCK_ROWS, row_bytes, load_chunk);
            if (!RESIDENT) copy_chunk(target + ROW_CHUNK_BYTES, queries, query_base, query_count, BLOCK_QUERIES, row_bytes, load_chunk);
        }
        COPY_ASYNC_COMMIT();
        if (++load_stage == STAGES) load_stage = 0;
        if (++load_chunk == chunks) load_chunk = 0, load_tile += grid_size_y();

        const u8 *rows_here = stages + stage * STAGE_BYTES;
        const u8 *queries_here = RESIDENT ? memory + chunk * QUERY_CHUNK_BYTES : rows_here + ROW_CHUNK_BYTES;
        multiply_chunk(a, queries_here + warp_query * CHUNK_BYTES, rows_here + warp_row * CHUNK_BYTES);
        if (++stage == STAGES) stage = 0;
        if (++chunk == chunks) {
            chunk = 0;
            u32 row_base = tile * tile_step * BLOCK_ROWS + warp_row;
            if (FIRST) write_all(a, warp_query, row_base, tile * BLOCK_ROWS + warp_row);
            else choose(a, warp_query, row_base, &collections[warp]);
            UNROLL for (u32 i = 0; i < QUERY_TILES * ROW_TILES * 4; i++) a[i / (ROW_TILES * 4)][i / 4 % ROW_TILES][i % 4] = 0;
            tile += grid_size_y();
        }
    }
    COPY_ASYNC_WAIT(0);
    if (!FIRST) hand_over(&collections[warp]);
}

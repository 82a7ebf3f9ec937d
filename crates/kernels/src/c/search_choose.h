// Which rows of a tile are candidates, and what becomes of them. Part of the units of Search with many queries.
//
// Parameters besides those of search_bounds.h: BLOCK_QUERIES and BLOCK_ROWS, the sizes of a tile; WARP_QUERIES and WARP_ROWS, the part of
// one warp; SHARED_BY, the lanes that share a group of `write_nearest`, 1 or 4.

#define QUERY_TILES (WARP_QUERIES / 16)
#define ROW_TILES (WARP_ROWS / 8)
#define WARPS_ALONG_QUERIES (BLOCK_QUERIES / WARP_QUERIES)
// Those that multiply.
#define WARPS (WARPS_ALONG_QUERIES * (BLOCK_ROWS / WARP_ROWS))
#define THREADS (WARPS * WARP)
// Candidates that a warp collects before it looks at them.
#define COLLECTED_MAX 96
// The nearer of two scores, the other where one is not a number.
#define NEARER(a, b) (METRIC == EUCLIDEAN ? fminf(a, b) : fmaxf(a, b))
// Whether anything but the sums must be known of queries and rows.
#define NEEDS_FACTS !(EXACT && METRIC == DOT)

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

// Moves the `count` keys that the warp has collected to the lists. All lanes of the warp.
NOINLINE void hand_over(collected *mine, u32 count)
{
    WARP_BARRIER();
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
}

typedef sum sums[QUERY_TILES][ROW_TILES][4];

// Collects what is near of this lane's four sums of a tile; `row` and `known` are the first row's. The warp has collected `count` so far;
// returns how many it then has, and has room for WARP more. All lanes of the warp.
NOINLINE u32 collect(collected *mine, u32 count, sum a, sum b, sum c, sum d, u32 query, u32 row, const row_facts *known)
{
    sum four[4] = {a, b, c, d};
    query_facts limits[2] = {queries_known[query], queries_known[query + 8]};
    UNROLL for (u32 i = 0; i < 4; i++) {
        u32 which = query + i / 2 * 8, number = row + i % 2;
        u64 key = number;
        // NaN passes every bound, also that of places without a query.
        int wanted = may_be_near(four[i], limits[i / 2], known[i % 2]) && number < job.row_count && job.query_base + which < job.query_count && row_allowed(job.filter, number);
        if (EXACT && wanted) {
            key = key_of(certain_score(four[i], query_squares[which], 0.0f, known[i % 2], job.dim), number);
            wanted = key <= thresholds[which];
        }
        lane_mask lanes = ballot(wanted);
        u32 place = count + count_lanes(lanes & lanes_below());
        if (wanted) {
            mine->keys[place] = key;
            mine->queries[place] = (u8)which;
        }
        count += count_lanes(lanes);
        if (count > COLLECTED_MAX - WARP) {
            hand_over(mine, count);
            count = 0;
        }
    }
    return count;
}

// Chooses the candidates of a tile. `row_base` is the warp's first row, `known` what is known from there on. The warp has collected
// `count` so far; returns how many it then has. All lanes of the warp.
DEVICE u32 choose(sums a, u32 query_base, u32 row_base, const row_facts *known, collected *mine, u32 count)
{
    u32 row = lane() % 4 * 2, query = query_base + lane() / 4;
    // A bit for each pair of tiles in which this lane has a candidate.
    u32 candidates = 0;
    UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
        query_facts limits[2] = {queries_known[query + m * 16], queries_known[query + m * 16 + 8]};
        UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
            int any = 0;
            UNROLL for (u32 i = 0; i < 4; i++) any |= may_be_near(a[m][n][i], limits[i / 2], known[row + n * 8 + i % 2]);
            candidates |= (u32)any << (n * QUERY_TILES + m);
        }
    }
    candidates = reduce_or_u32(candidates);
    if (candidates == 0) return count;
    UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
        UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
            if (!((candidates >> (n * QUERY_TILES + m)) & 1u)) continue;
            const sum *four = a[m][n];
            count = collect(mine, count, four[0], four[1], four[2], four[3], query + m * 16, row_base + row + n * 8, known + row + n * 8);
        }
    }
    return count;
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

// Writes the nearest score of each group of a tile's rows to the lists, from `place` on: those that SHARED_BY lanes have of a query. The row
// of the key is one that no other group has, and not before the row whose score it is.
DEVICE void write_nearest(sums a, u32 query_base, u32 row_base, const row_facts *known, u32 place)
{
    u32 row = row_base + lane() % 4 * 2;
    int plain = !job.filter && row_base + WARP_ROWS <= job.row_count;
    UNROLL for (u32 m = 0; m < QUERY_TILES; m++) {
        UNROLL for (u32 half = 0; half < 2; half++) {
            u32 query = query_base + m * 16 + half * 8 + lane() / 4, number = job.query_base + query;
            sum square = query_squares[query];
            f32 error = queries_known[query].error, nearest = NOT_A_NUMBER;
            UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
                UNROLL for (u32 i = 0; i < 2; i++) {
                    f32 score = certain_score(a[m][n][half * 2 + i], square, error, known[lane() % 4 * 2 + n * 8 + i], job.dim);
                    u32 here = row + n * 8 + i;
                    if (!plain && (here >= job.row_count || !row_allowed(job.filter, here))) score = NOT_A_NUMBER;
                    nearest = NEARER(nearest, score);
                }
            }
            UNROLL for (u32 mask = SHARED_BY / 2; mask > 0; mask /= 2) nearest = NEARER(nearest, shuffle_xor_f32(nearest, mask));
            if (lane() % SHARED_BY == 0 && number < job.query_count) {
                u64 key = nearest == nearest ? key_of(nearest, row + WARP_ROWS - 7 + (SHARED_BY - 1) * 2) : MISSING_KEY;
                job.lists[(u64)number * job.capacity + place + lane() % 4 / SHARED_BY] = key;
            }
        }
    }
}

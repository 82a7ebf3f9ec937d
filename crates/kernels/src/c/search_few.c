// Search with few queries: one pass over the rows that scores them and keeps each query's nearest.
//
// Parameters besides those of search_score.h: QUERIES scored at a time, LANES that share a row, ROWS that a group of lanes
// has under way, STEPS of loads under way for each, THREADS and BLOCKS of a multiprocessor. All are powers of two.
//
// The work is split into items: a group of queries and a part of the rows. A block keeps, for each query, a list of the nearest.
// The block that finishes a group's last part merges the parts' lists.

#define GROUPS (THREADS / LANES)
#define ROUND_ROWS (GROUPS * ROWS)
#define SUMS (ROWS * QUERIES)
// The number of sums that a lane holds when the lanes have added theirs.
#define HELD (SUMS > LANES ? SUMS / LANES : 1)
// The lanes' sums are added; a lane keeps those from `first_held` on.
DEVICE void add_lanes(sum *s)
{
    UNROLL for (u32 step = 0; (LANES >> step) > 1; step++) {
        u32 mask = (LANES / 2) >> step, half = SUMS >> (step + 1);
        int upper = (lane() & mask) != 0;
        UNROLL for (u32 i = 0; i < (SUMS + 1) / 2; i++) {
            if (i < half) {
                sum kept = upper ? s[i + half] : s[i], given = upper ? s[i] : s[i + half];
                s[i] = kept + shuffle_xor_sum(given, mask);
            }
        }
        if (half == 0) s[0] += shuffle_xor_sum(s[0], mask);
    }
}

// The number of the first sum that this lane keeps; SUMS where another lane reports the same one.
DEVICE u32 first_held(void)
{
    u32 count = SUMS, first = 0;
    UNROLL for (u32 mask = LANES / 2; mask > 0; mask /= 2) {
        u32 upper = (lane() & mask) != 0;
        if (count > 1) {
            count /= 2;
            first += upper * count;
        } else if (upper) {
            return SUMS;
        }
    }
    return first;
}

// This lane's share of the sums of ROWS rows, GROUPS apart, with all queries.
DEVICE void sum_pieces(GLOBAL const T *row, u64 step, u32 present, LOCAL const value *queries, u32 dim, sum *s, sum *squares)
{
    u32 pieces = dim / PIECE, length = pieces * VALUES;
    for (u32 p = lane() % LANES; p < pieces; p += LANES * STEPS) {
        piece loaded[STEPS][ROWS];
        UNROLL for (u32 t = 0; t < STEPS; t++) {
            UNROLL for (u32 r = 0; r < ROWS; r++) {
                int wanted = p + t * LANES < pieces && ((present >> r) & 1u);
                loaded[t][r] = wanted ? load_piece(row + r * step + (p + t * LANES) * PIECE) : no_piece();
            }
        }
        UNROLL for (u32 t = 0; t < STEPS; t++) {
            if (p + t * LANES >= pieces) break;
            value x[ROWS][VALUES];
            UNROLL for (u32 r = 0; r < ROWS; r++) unpack(loaded[t][r], x[r]);
            if (ROW_SQUARES) {
                UNROLL for (u32 r = 0; r < ROWS; r++) {
                    UNROLL for (u32 v = 0; v < VALUES; v++) squares[r] = add_product(x[r][v], x[r][v], squares[r]);
                }
            }
            UNROLL for (u32 query = 0; query < QUERIES; query++) {
                LOCAL const value *q = queries + query * length + (p + t * LANES) * VALUES;
                value y[VALUES];
                copy_values(y, q);
                UNROLL for (u32 r = 0; r < ROWS; r++) {
                    UNROLL for (u32 v = 0; v < VALUES; v++) {
                        s[r * QUERIES + query] = accumulate(x[r][v], y[v], s[r * QUERIES + query]);
                    }
                }
            }
        }
    }
}

typedef struct {
    GLOBAL const T *rows;
    GLOBAL const u32 *filter;
    GLOBAL const f32 *lengths;
    u32 count, dim;
} collection;

// Scores one round of rows and offers them.
DEVICE void search_round(const collection *in, u64 round, LOCAL const value *queries, LOCAL const sum *query_squares, const nearest *lists)
{
    u64 first = round * ROUND_ROWS + thread_x() / LANES;
    u32 present = 0;
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        u64 row = first + r * GROUPS;
        if (row < in->count && row_allowed(in->filter, row)) present |= 1u << r;
    }
    sum s[SUMS], squares[ROWS];
    UNROLL for (u32 i = 0; i < SUMS; i++) s[i] = 0;
    UNROLL for (u32 r = 0; r < ROWS; r++) squares[r] = 0;
    sum_pieces(in->rows + first * in->dim, (u64)GROUPS * in->dim, present, queries, in->dim, s, squares);
    add_lanes(s);
    if (ROW_SQUARES) {
        UNROLL for (u32 mask = LANES / 2; mask > 0; mask /= 2) {
            UNROLL for (u32 r = 0; r < ROWS; r++) squares[r] += shuffle_xor_sum(squares[r], mask);
        }
    }
    u32 held = first_held();
    UNROLL for (u32 i = 0; i < HELD; i++) {
        u32 r = (held + i) / QUERIES, query = (held + i) % QUERIES;
        if (held + i >= SUMS || !((present >> r) & 1u)) continue;
        u64 row = first + r * GROUPS;
        sum square = squares[0];
        UNROLL for (u32 other = 1; other < ROWS; other++) square = r == other ? squares[other] : square;
        f32 length = METRIC != COSINE ? 0.0f : in->lengths ? in->lengths[row] : sqrtf((f32)square);
        offer(lists, query, key_of(finish_score(s[i], square, query_squares[query], length), (u32)row));
    }
}

// Brings the queries of a group to the block's memory, with the sums of their squares. All threads of the block.
DEVICE void load_queries(LOCAL value *values, LOCAL sum *squares, GLOBAL const Q *queries, GLOBAL const u32 *chosen, u32 group, u32 count, u32 dim)
{
    u32 length = dim / PIECE * VALUES;
    for (u32 query = 0; query < QUERIES; query++) {
        u32 number = chosen ? chosen[1 + group] : group * QUERIES + query;
        for (u32 i = thread_x(); i < length; i += THREADS) {
            values[query * length + i] = number < count ? query_value(queries + (u64)number * dim, i) : 0;
        }
    }
    BARRIER();
    if (!ROW_SQUARES) return;
    for (u32 query = thread_x() / WARP; query < QUERIES; query += THREADS / WARP) {
        sum square = 0;
        for (u32 i = lane(); i < length; i += WARP) {
            square = add_product(values[query * length + i], values[query * length + i], square);
        }
        for (u32 mask = WARP / 2; mask > 0; mask /= 2) square += shuffle_xor_sum(square, mask);
        if (lane() == 0) squares[query] = square;
    }
}

// `chosen` is null, or the number of queries to do and then their numbers, where QUERIES is 1. `parts_keys` has room for k keys
// of every query and part.
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) search_few(GLOBAL const T *RESTRICT rows, GLOBAL const Q *RESTRICT queries,
    GLOBAL const u32 *RESTRICT filter, GLOBAL const f32 *RESTRICT lengths, GLOBAL const u32 *chosen, GLOBAL u64 *parts_keys,
    GLOBAL u32 *tickets, GLOBAL u32 *ids, GLOBAL f32 *scores, u32 count, u32 dim, u32 query_count, u32 k, u32 k_wanted, u32 capacity, u32 parts)
{
    DYNAMIC_SHARED(u64, memory);
    SHARED u64 thresholds[QUERIES];
    SHARED u32 counts[QUERIES], firsts[QUERIES];
    SHARED sum query_squares[QUERIES];
    nearest lists = {memory, thresholds, counts, firsts, capacity, k};
    LOCAL value *values = (LOCAL value *)(memory + QUERIES * capacity);
    collection in = {rows, filter, lengths, count, dim};
    u32 groups = chosen ? chosen[0] : (query_count + QUERIES - 1) / QUERIES;
    u64 rounds = ((u64)count + ROUND_ROWS - 1) / ROUND_ROWS;
    u32 rounds_between = (capacity - k) / 2 / ROUND_ROWS;
    if (rounds_between == 0) rounds_between = 1;

    for (u64 item = block_x(); item < (u64)groups * parts; item += grid_size_x()) {
        u32 group = (u32)(item / parts), part = (u32)(item % parts);
        BARRIER();
        load_queries(values, query_squares, queries, chosen, group, query_count, dim);
        clear(&lists);
        u32 since = 0;
        for (u64 round = part; round < rounds; round += parts) {
            // The first round alone gives a threshold.
            if (since == rounds_between || round == (u64)part + parts) {
                make_room(&lists, rounds_between * ROUND_ROWS);
                since = 0;
            }
            search_round(&in, round, values, query_squares, &lists);
            since++;
        }
        BARRIER();
        tighten(&lists);
        if (parts > 1) {
            GLOBAL u64 *target = parts_keys + (u64)group * QUERIES * k * parts;
            for (u32 i = thread_x(); i < QUERIES * k; i += THREADS) {
                u32 query = i / k, place = i % k;
                target[((u64)query * k + place) * parts + part] = place < counts[query] ? memory[query * capacity + place] : MISSING_KEY;
            }
            if (!finishes_group(&lists, tickets, group, parts)) continue;
            merge_parts(&lists, target, parts);
        }
        for (u32 i = thread_x(); i < QUERIES * k_wanted; i += THREADS) {
            u32 query = i / k_wanted, place = i % k_wanted, number = chosen ? chosen[1 + group] : group * QUERIES + query;
            if (number >= query_count) continue;
            u64 key = place < counts[query] ? memory[query * capacity + place] : MISSING_KEY;
            write_neighbour(ids, scores, (u64)number * k_wanted + place, key);
        }
    }
}

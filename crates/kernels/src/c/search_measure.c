// What search with many queries must know of the rows and the queries beforehand: one pass over them.
//
// Parameters: those of search_bounds.h, and THREADS.

#define GROUPS (THREADS / LANES)

DEVICE sum add_lanes(sum s, u32 lanes)
{
    for (u32 mask = lanes / 2; mask > 0; mask /= 2) s += shuffle_xor_sum(s, mask);
    return s;
}

DEVICE void measure_rows(GLOBAL const T *rows, GLOBAL const f32 *lengths, GLOBAL f32 *first, GLOBAL f32 *second, u32 count, u32 dim, u32 blocks)
{
    u32 pieces = dim / PIECE;
    for (u64 base = (u64)block_x() * GROUPS; base < count; base += (u64)blocks * GROUPS) {
        u64 row = base + thread_x() / LANES;
        sum square = 0;
        if (row < count) {
            UNROLL for (u32 p = lane() % LANES; p < pieces; p += LANES) {
                value x[VALUES];
                unpack(load_piece(rows + row * dim + p * PIECE), x);
                UNROLL for (u32 v = 0; v < VALUES; v++) square = add_product(x[v], x[v], square);
            }
        }
        square = add_lanes(square, LANES);
        if (row < count && lane() % LANES == 0) {
            row_facts facts = facts_of_row(square, dim, lengths, row);
            first[row] = facts.first;
            if (second) second[row] = facts.second;
        }
    }
}

DEVICE void measure_queries(GLOBAL const Q *queries, GLOBAL sum *squares, u32 count, u32 dim, u32 block, u32 blocks)
{
    u32 length = dim / PIECE * VALUES;
    for (u32 query = block * (THREADS / WARP) + thread_x() / WARP; query < count; query += blocks * (THREADS / WARP)) {
        sum square = 0;
        for (u32 i = lane(); i < length; i += WARP) {
            value q = query_value(queries + (u64)query * dim, i);
            square = add_product(q, q, square);
        }
        square = add_lanes(square, WARP);
        if (lane() == 0) squares[query] = square;
    }
}

// The first `row_blocks` blocks measure rows, the others queries.
KERNEL LAUNCH_BOUNDS(THREADS, 2) measure(GLOBAL const T *RESTRICT rows, GLOBAL const Q *RESTRICT queries, GLOBAL const f32 *RESTRICT lengths,
    GLOBAL f32 *first, GLOBAL f32 *second, GLOBAL sum *squares, u32 count, u32 query_count, u32 dim, u32 row_blocks)
{
    if (block_x() < row_blocks) measure_rows(rows, lengths, first, second, count, dim, row_blocks);
    else measure_queries(queries, squares, query_count, dim, block_x() - row_blocks, grid_size_x() - row_blocks);
}

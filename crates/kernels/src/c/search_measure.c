// The sums of the queries' squares, in the order of the fused pass. Parameters: those of search_score.h, and THREADS.

KERNEL LAUNCH_BOUNDS(THREADS, 2) measure(GLOBAL const Q *RESTRICT queries, GLOBAL sum *squares, u32 count, u32 dim)
{
    u32 length = dim / PIECE * VALUES, step = grid_size_x() * (THREADS / WARP);
    for (u32 query = block_x() * (THREADS / WARP) + thread_x() / WARP; query < count; query += step) {
        sum square = 0;
        for (u32 i = lane(); i < length; i += WARP) {
            value q = query_value(queries + (u64)query * dim, i);
            square = add_product(q, q, square);
        }
        for (u32 mask = WARP / 2; mask > 0; mask /= 2) square += shuffle_xor_sum(square, mask);
        if (lane() == 0) squares[query] = square;
    }
}

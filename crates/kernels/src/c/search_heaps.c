// Search where threads do not see each other's values: a thread scores a part of the rows with one query and keeps the nearest in its own
// heap; then a thread for each query joins the heaps of all parts. Parameters: those of search_score.h, and THREADS.

// The number of sums that are added in parallel.
#define SUMS (VALUES < 8 ? 8 : VALUES)
#define SUM_PIECES (SUMS / VALUES)

typedef struct {
    sum product, square;
} score_sums;

// The sums of a row with a query, and with itself.
DEVICE score_sums sums_of(GLOBAL const T *row, GLOBAL const Q *query, u32 dim)
{
    sum products[SUMS], squares[SUMS];
    for (u32 i = 0; i < SUMS; i++) products[i] = squares[i] = 0;
    u32 pieces = dim / PIECE, p = 0;
    for (; p < pieces; p++) {
        value x[VALUES];
        u32 first = p % SUM_PIECES * VALUES;
        unpack(load_piece(row + p * PIECE), x);
        for (u32 v = 0; v < VALUES; v++) {
            products[first + v] = accumulate(x[v], query_value(query, p * VALUES + v), products[first + v]);
            if (ROW_SQUARES) squares[first + v] = add_product(x[v], x[v], squares[first + v]);
        }
    }
    score_sums all = {products[0], squares[0]};
    for (u32 i = 1; i < SUMS; i++) {
        all.product += products[i];
        all.square += squares[i];
    }
    return all;
}

DEVICE sum query_square_of(GLOBAL const Q *query, u32 dim)
{
    sum square = 0;
    for (u32 i = 0; ROW_SQUARES && i < dim / PIECE * VALUES; i++) {
        value q = query_value(query, i);
        square = add_product(q, q, square);
    }
    return square;
}

// A thread for each query and part of the rows, `chunk` of them.
KERNEL LAUNCH_BOUNDS(THREADS, 1) search_parts(GLOBAL const T *RESTRICT rows, GLOBAL const Q *RESTRICT queries,
    GLOBAL const u32 *RESTRICT filter, GLOBAL const f32 *RESTRICT lengths, GLOBAL u64 *heaps, GLOBAL u32 *counts, u32 count, u32 dim,
    u32 query_count, u32 k, u32 parts, u32 chunk)
{
    u64 number = (u64)block_x() * THREADS + thread_x(), which = number / parts;
    if (which >= query_count) return;
    GLOBAL const Q *query = queries + which * dim;
    GLOBAL u64 *heap = heaps + number * k;
    sum query_square = query_square_of(query, dim);
    u64 begin = number % parts * chunk, end = begin + chunk < count ? begin + chunk : count;
    u32 found = 0;
    for (u64 row = begin; row < end; row++) {
        if (!row_allowed(filter, row)) continue;
        score_sums s = sums_of(rows + row * dim, query, dim);
        f32 length = METRIC != COSINE ? 0.0f : lengths ? lengths[row] : sqrtf((f32)s.square);
        found = heap_offer(heap, found, k, key_of(finish_score(s.product, s.square, query_square, length), (u32)row));
    }
    counts[number] = found;
}

// A thread for each query.
KERNEL LAUNCH_BOUNDS(THREADS, 1) search_join(GLOBAL u64 *heaps, GLOBAL const u32 *counts, GLOBAL u32 *ids, GLOBAL f32 *scores, u32 query_count,
    u32 k, u32 k_wanted, u32 parts)
{
    u64 query = (u64)block_x() * THREADS + thread_x();
    if (query >= query_count) return;
    GLOBAL u64 *heap = heaps + query * parts * k;
    u32 found = heap_merge(heap, counts + query * parts, parts, k);
    for (u32 i = 0; i < k_wanted; i++) write_neighbour(ids, scores, query * k_wanted + i, i < found ? heap[i] : MISSING_KEY);
}

// Running sums, products, maxima and minima. T is the element, KIND one of those below.
//
// A row of one tile is scanned by a block (scan_rows). Longer rows are cut into tiles that all blocks share (scan_long): each
// tile is read once, waits in the block's memory for the total before it, and is written once.
// 1. A block draws tiles in their order and holds two: it publishes the total of the second before it completes the first, so
//    that what a tile waits for was mostly published while it was being read.
// 2. A block knows the total up to its last tile, and adds the totals that the tiles since then have published.
// 3. Only blocks that run draw tiles, and they complete them in their order: every tile that another one waits for is under way.
// 4. Values that an earlier launch published have another epoch and are ignored.
// 5. Where the value fits, it travels with the epoch in one 64-bit word. Otherwise it is written and fenced before the epoch,
//    and read after it.
// If each thread is a separate warp, each thread has a chunk of a long row, and three launches scan it: the totals of the chunks,
// what lies before each, and the chunks (chunk_totals, chunk_starts, chunk_scan).
// REVERSED and EXCLUSIVE are constants in scan_long, and the launch's arguments in scan_rows, where constants would only make
// more kernels.

#define SUM 0
#define PRODUCT 1
#define MAXIMUM 2
#define MINIMUM 3

typedef T_ACC ACC;
typedef struct ALIGNED(VECTOR_BYTES) { T at[VECTOR]; } vector_t;

DEVICE ACC join(ACC a, ACC b)
{
#if KIND == SUM && defined(INTEGER)
    return (ACC)((u32)a + (u32)b);
#elif KIND == SUM
    return a + b;
#elif KIND == PRODUCT && defined(INTEGER)
    return (ACC)((u32)a * (u32)b);
#elif KIND == PRODUCT
    return a * b;
#elif KIND == MAXIMUM
    return a > b || a != a ? a : b;
#else
    return a < b || a != a ? a : b;
#endif
}

// The neutral element.
DEVICE ACC neutral(void)
{
#if KIND == SUM
    return 0;
#elif KIND == PRODUCT
    return 1;
#elif defined(T_IS_i32)
    return KIND == MAXIMUM ? (i32)0x80000000u : 0x7fffffff;
#elif defined(T_IS_i8)
    return KIND == MAXIMUM ? -128 : 127;
#elif defined(T_IS_u32)
    return KIND == MAXIMUM ? 0u : 0xffffffffu;
#elif defined(T_IS_u8)
    return KIND == MAXIMUM ? 0u : 255u;
#elif defined(T_IS_f64)
    return bits_f64(KIND == MAXIMUM ? 0xfff0000000000000ull : 0x7ff0000000000000ull);
#else
    return bits_f32(KIND == MAXIMUM ? 0xff800000u : 0x7f800000u);
#endif
}

typedef union { ACC acc; u32 word[sizeof(ACC) / 4]; } acc_words;

#define ACC_SHUFFLE(name)                                                                         \
    DEVICE ACC acc_##name(ACC a, u32 by)                                                          \
    {                                                                                             \
        acc_words x;                                                                              \
        x.acc = a;                                                                                \
        UNROLL                                                                                    \
        for (u32 w = 0; w < sizeof(ACC) / 4; w++) x.word[w] = name##_u32(x.word[w], by);          \
        return x.acc;                                                                             \
    }
ACC_SHUFFLE(shuffle)
ACC_SHUFFLE(shuffle_up)
ACC_SHUFFLE(shuffle_xor)

// The inclusive scan over the warp: this lane's value and those of the lanes before it.
DEVICE ACC up_to_lane(ACC value)
{
    UNROLL
    for (u32 by = 1; by < WARP; by *= 2) {
        ACC other = acc_shuffle_up(value, by);
        if (lane() >= by) value = join(other, value);
    }
    return value;
}

#if defined(ROWS)
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_MIN) scan_rows(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 len,
    u32 is_reversed, u32 is_exclusive)
{
    SHARED ACC of_warp[THREADS / WARP];
    u32 warp = thread_x() / WARP;
    u64 begin = ((u64)warp * ITEMS * WARP + lane()) * VECTOR;
    GLOBAL const T *from = source + block_x() * len;
    GLOBAL T *to = target + block_x() * len;
    ACC x[ITEMS][VECTOR], before[ITEMS];
    // Whether the row fills the tile; the end of a single row need not be even.
    int is_whole = (u64)THREADS * ITEMS * VECTOR <= len;
    i64 first = (i64)(REVERSED ? len - VECTOR - begin : begin);
    if (is_whole) {
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) {
            vector_t v = *(GLOBAL const vector_t *)(from + first + (REVERSED ? -1 : 1) * (i64)(k * WARP * VECTOR));
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) x[k][e] = T_LOAD(REVERSED ? v.at[VECTOR - 1 - e] : v.at[e]);
        }
    } else {
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) {
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) {
                u64 i = begin + k * (WARP * VECTOR) + e;
                x[k][e] = i < len ? T_LOAD(from[REVERSED ? len - 1 - i : i]) : neutral();
            }
        }
    }
    ACC running = neutral();
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        ACC up_to = x[k][0];
        UNROLL
        for (u32 e = 1; e < VECTOR; e++) up_to = join(up_to, x[k][e]);
        up_to = up_to_lane(up_to);
        ACC others = acc_shuffle_up(up_to, 1);
        before[k] = lane() == 0 ? running : join(running, others);
        running = join(running, acc_shuffle(up_to, WARP - 1));
    }
    ACC prefix = neutral();
    if (THREADS > WARP) {
        if (lane() == 0) of_warp[warp] = running;
        BARRIER();
        for (u32 w = 0; w < warp; w++) prefix = join(prefix, of_warp[w]);
    }
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        ACC sum = join(prefix, before[k]);
        ACC out[VECTOR];
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            ACC next = join(sum, x[k][e]);
            out[e] = EXCLUSIVE ? sum : next;
            sum = next;
        }
        if (is_whole) {
            vector_t v;
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) v.at[e] = T_STORE(REVERSED ? out[VECTOR - 1 - e] : out[e]);
            *(GLOBAL vector_t *)(to + first + (REVERSED ? -1 : 1) * (i64)(k * WARP * VECTOR)) = v;
        } else {
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) {
                u64 i = begin + k * (WARP * VECTOR) + e;
                if (i < len) to[REVERSED ? len - 1 - i : i] = T_STORE(out[e]);
            }
        }
    }
}
#endif

#if defined(LONG)
#define WARPS (THREADS / WARP)
#define TILE_VECTORS (THREADS * ITEMS)
#define NO_TILE 0xffffffffu

#if !defined(T_IS_f64)
#define PACKED 1
#endif

// The rows, and the places where their tiles publish their totals.
typedef struct {
    GLOBAL T *target;
    GLOBAL const T *source;
    u64 len;
    u32 tiles_of_row, tiles;
    GLOBAL u32 *drawn;
    GLOBAL u64 *published;
    GLOBAL u64 *values;
    u32 epoch;
} task;

// The next tile, or NO_TILE once one beyond the last was drawn. The last of all draws leaves the counter as it was.
DEVICE u32 draw(const task *job, u32 latest)
{
    if (latest >= job->tiles) return NO_TILE;
    u32 tile = ATOMIC_ADD(job->drawn, 1u);
    if (tile == job->tiles + grid_size_x() - 1u) *job->drawn = 0;
    return tile;
}

DEVICE void publish(const task *job, u32 tile, ACC value)
{
    u64 word = job->epoch;
#if defined(PACKED)
    acc_words x;
    x.acc = value;
    word |= (u64)x.word[0] << 32;
#else
    store_coherent_u64(job->values + tile, f64_bits(value));
    FENCE();
#endif
    store_coherent_u64(job->published + tile, word);
}

DEVICE ACC published_by(const task *job, u32 tile)
{
    u64 word;
    do word = load_coherent_u64(job->published + tile);
    while ((u32)word != job->epoch);
#if defined(PACKED)
    acc_words x;
    x.word[0] = (u32)(word >> 32);
    return x.acc;
#else
    FENCE();
    return bits_f64(load_coherent_u64(job->values + tile));
#endif
}

// A tile, with its row and its place in it; none where `number` is beyond the last.
typedef struct { u32 number, index; u64 row; int is_whole; } part;

DEVICE part part_of(const task *job, u32 tile)
{
    part p = { tile, tile, 0, 0 };
    if (job->tiles_of_row < job->tiles) {
        p.row = tile / job->tiles_of_row;
        p.index = tile % job->tiles_of_row;
    }
    p.is_whole = tile < job->tiles && ((u64)p.index + 1) * (TILE_VECTORS * VECTOR) <= job->len;
    return p;
}

// Where a vector of the tile lies in memory. Vectors are counted in the order of the scan.
DEVICE u64 vector_place(const task *job, const part *p, u32 vector)
{
    u64 before = ((u64)p->index * TILE_VECTORS + vector) * VECTOR;
    return p->row * job->len + (REVERSED ? job->len - VECTOR - before : before);
}

// How many of a vector's elements are within the row.
DEVICE u32 present_in(const task *job, const part *p, u32 vector)
{
    u64 begin = ((u64)p->index * TILE_VECTORS + vector) * VECTOR;
    if (p->number >= job->tiles || begin >= job->len) return 0;
    return job->len - begin < VECTOR ? (u32)(job->len - begin) : VECTOR;
}

#define STEP (REVERSED ? -(i64)(THREADS * VECTOR) : (i64)(THREADS * VECTOR))

// Begins to read a tile into its slot. A thread reads what it will write.
DEVICE void fetch(const task *job, const part *p, LOCAL vector_t *slot)
{
    GLOBAL const T *from = job->source + (i64)vector_place(job, p, thread_x());
    LOCAL vector_t *to = slot + thread_x();
    if (VECTOR_BYTES == 16 && p->is_whole) {
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) copy_async_16(to + k * THREADS, from + k * STEP, 1);
    } else if (p->is_whole) {
        // All reads are under way before the first is waited for.
        vector_t x[ITEMS];
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) x[k] = *(GLOBAL const vector_t *)(from + k * STEP);
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) to[k * THREADS] = x[k];
    } else {
        for (u32 k = 0; k < ITEMS; k++) {
            u32 present = present_in(job, p, k * THREADS + thread_x());
            for (u32 e = 0; e < present; e++) to[k * THREADS].at[e] = from[k * STEP + e];
        }
    }
    COPY_ASYNC_COMMIT();
}

DEVICE ACC element(const vector_t *v, u32 e) { return T_LOAD(v->at[REVERSED ? VECTOR - 1 - e : e]); }

// The total of this thread's part of a tile: ITEMS vectors, one after the other.
DEVICE ACC own_sum(const task *job, const part *p, LOCAL const vector_t *slot)
{
    ACC sum = neutral();
    if (p->is_whole) {
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) {
            vector_t v = slot[thread_x() * ITEMS + k];
            ACC of_vector = element(&v, 0);
            UNROLL
            for (u32 e = 1; e < VECTOR; e++) of_vector = join(of_vector, element(&v, e));
            sum = join(sum, of_vector);
        }
    } else {
        for (u32 k = 0; k < ITEMS; k++) {
            vector_t v = slot[thread_x() * ITEMS + k];
            u32 present = present_in(job, p, thread_x() * ITEMS + k);
            for (u32 e = 0; e < present; e++) sum = join(sum, element(&v, e));
        }
    }
    return sum;
}

// Puts the results of this thread's part in the place of its elements. Elements beyond the row's end are not written.
DEVICE void complete(LOCAL vector_t *slot, ACC sum)
{
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        vector_t v = slot[thread_x() * ITEMS + k];
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            ACC next = join(sum, element(&v, e));
            v.at[REVERSED ? VECTOR - 1 - e : e] = T_STORE(EXCLUSIVE ? sum : next);
            sum = next;
        }
        slot[thread_x() * ITEMS + k] = v;
    }
}

DEVICE void write_out(const task *job, const part *p, LOCAL const vector_t *slot)
{
    GLOBAL T *to = job->target + (i64)vector_place(job, p, thread_x());
    LOCAL const vector_t *from = slot + thread_x();
    if (p->is_whole) {
        UNROLL
        for (u32 k = 0; k < ITEMS; k++) *(GLOBAL vector_t *)(to + k * STEP) = from[k * THREADS];
    } else {
        for (u32 k = 0; k < ITEMS; k++) {
            u32 present = present_in(job, p, k * THREADS + thread_x());
            for (u32 e = 0; e < present; e++) to[k * STEP + e] = from[k * THREADS].at[e];
        }
    }
}

// The total of the warp's values.
DEVICE ACC acc_of_warp(ACC value)
{
    UNROLL
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) value = join(value, acc_shuffle_xor(value, mask));
    return value;
}

// Publishes the total of a tile, with the total of each warp in `of_warp`. Returns the total of the earlier threads of this warp.
// Every thread of the block must take part.
DEVICE ACC measure(const task *job, const part *p, LOCAL const vector_t *slot, LOCAL ACC *of_warp)
{
    ACC up_to = up_to_lane(own_sum(job, p, slot));
    if (lane() == WARP - 1) of_warp[thread_x() / WARP] = up_to;
    BARRIER();
    if (thread_x() < WARP) {
        ACC whole = acc_of_warp(lane() < WARPS ? of_warp[lane()] : neutral());
        if (lane() == 0 && p->number < job->tiles) publish(job, p->number, whole);
    }
    ACC others = acc_shuffle_up(up_to, 1);
    return lane() == 0 ? neutral() : others;
}

KERNEL LAUNCH_BOUNDS(THREADS, 2) scan_long(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 len,
    u32 tiles_of_row, u32 tiles, GLOBAL u32 *drawn, GLOBAL u64 *published, GLOBAL u64 *values, u32 epoch)
{
    DYNAMIC_SHARED(vector_t, slots);
    SHARED ACC of_warp[2][WARPS];
    SHARED ACC since[WARPS];
    SHARED u32 told;
    task job = { target, source, len, tiles_of_row, tiles, drawn, published, values, epoch };
    u32 warp = thread_x() / WARP, is_second = 0;
    if (thread_x() == 0) told = draw(&job, 0);
    BARRIER();
    part here = part_of(&job, told);
    fetch(&job, &here, slots);
    BARRIER();
    if (thread_x() == 0) told = draw(&job, here.number);
    BARRIER();
    part next = part_of(&job, told);
    fetch(&job, &next, slots + TILE_VECTORS);
    COPY_ASYNC_WAIT(1);
    BARRIER();
    // The total of the earlier threads of the warp, in the next tile.
    ACC before_next = measure(&job, &here, slots, of_warp[0]);
    // The total of this row before the tile `from`.
    ACC carry = neutral();
    u32 from = 0;
    while (here.number < tiles) {
        LOCAL vector_t *slot = slots + is_second * TILE_VECTORS, *other = slots + (1 - is_second) * TILE_VECTORS;
        u32 after = 0;
        ACC before = before_next;
        // The first warp has more to do than the last one.
        if (thread_x() == THREADS - 1) after = draw(&job, next.number);
        COPY_ASYNC_WAIT(0);
        BARRIER();
        before_next = measure(&job, &next, other, of_warp[1 - is_second]);
        u32 row_begin = here.number - here.index;
        if (from <= row_begin) {
            from = row_begin;
            carry = neutral();
        }
        ACC earlier = neutral();
        for (u32 tile = from + thread_x(); tile < here.number; tile += THREADS) {
            earlier = join(earlier, published_by(&job, tile));
        }
        earlier = acc_of_warp(earlier);
        if (lane() == 0) since[warp] = earlier;
        if (thread_x() == THREADS - 1) told = after;
        BARRIER();
        after = told;
        ACC prefix = neutral(), whole = neutral();
        UNROLL
        for (u32 w = 0; w < WARPS; w++) {
            carry = join(carry, since[w]);
            if (w == warp) prefix = whole;
            whole = join(whole, of_warp[is_second][w]);
        }
        complete(slot, join(join(carry, prefix), before));
        carry = join(carry, whole);
        BARRIER();
        write_out(&job, &here, slot);
        from = here.number + 1;
        here = next;
        next = part_of(&job, after);
        fetch(&job, &next, slot);
        is_second = 1 - is_second;
    }
}
#endif

#if defined(CHUNKS)
// The total of each chunk of each row. A thread for each chunk, of `chunk` elements in the order of the scan.
KERNEL LAUNCH_BOUNDS(THREADS, 1) chunk_totals(GLOBAL ACC *RESTRICT totals, GLOBAL const T *RESTRICT source, u64 rows, u64 len, u32 chunks,
    u64 chunk, u32 is_reversed)
{
    u64 number = (u64)block_x() * THREADS + thread_x(), row = number / chunks, begin = number % chunks * chunk;
    if (row >= rows) return;
    u64 end = begin + chunk < len ? begin + chunk : len;
    ACC sum = neutral();
    for (u64 i = begin; i < end; i++) sum = join(sum, T_LOAD(source[row * len + (is_reversed ? len - 1 - i : i)]));
    totals[number] = sum;
}

// Turns the totals of chunks into the totals before each chunk. A thread for each row.
KERNEL LAUNCH_BOUNDS(THREADS, 1) chunk_starts(GLOBAL ACC *RESTRICT totals, u64 rows, u32 chunks)
{
    u64 row = (u64)block_x() * THREADS + thread_x();
    if (row >= rows) return;
    ACC sum = neutral();
    for (u64 c = row * chunks; c < (row + 1) * chunks; c++) {
        ACC next = join(sum, totals[c]);
        totals[c] = sum;
        sum = next;
    }
}

// Scans the chunks.
KERNEL LAUNCH_BOUNDS(THREADS, 1) chunk_scan(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, GLOBAL const ACC *RESTRICT starts,
    u64 rows, u64 len, u32 chunks, u64 chunk, u32 is_reversed, u32 is_exclusive)
{
    u64 number = (u64)block_x() * THREADS + thread_x(), row = number / chunks, begin = number % chunks * chunk;
    if (row >= rows) return;
    u64 end = begin + chunk < len ? begin + chunk : len;
    ACC sum = starts[number];
    for (u64 i = begin; i < end; i++) {
        u64 at = row * len + (is_reversed ? len - 1 - i : i);
        ACC next = join(sum, T_LOAD(source[at]));
        target[at] = T_STORE(is_exclusive ? sum : next);
        sum = next;
    }
}
#endif

#if defined(COLUMNS)
#define AHEAD 4
// Lines of `len` elements, `inner` apart, a thread for each.
KERNEL LAUNCH_BOUNDS(THREADS, 1) scan_columns(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 lines, u64 len,
    u64 inner, u32 is_reversed, u32 is_exclusive)
{
    u64 line = (u64)block_x() * THREADS + thread_x();
    if (line >= lines) return;
    u64 outer = line / inner;
    i64 step = is_reversed ? -(i64)inner : (i64)inner;
    u64 first = outer * len * inner + (line - outer * inner) + (is_reversed ? (len - 1) * inner : 0);
    GLOBAL const T *from = source + first;
    GLOBAL T *to = target + first;
    ACC sum = neutral();
    u64 r = 0;
    for (; r + AHEAD <= len; r += AHEAD) {
        T x[AHEAD];
        UNROLL
        for (u32 a = 0; a < AHEAD; a++) x[a] = from[(i64)(r + a) * step];
        UNROLL
        for (u32 a = 0; a < AHEAD; a++) {
            ACC next = join(sum, T_LOAD(x[a]));
            to[(i64)(r + a) * step] = T_STORE(is_exclusive ? sum : next);
            sum = next;
        }
    }
    for (; r < len; r++) {
        ACC next = join(sum, T_LOAD(from[(i64)r * step]));
        to[(i64)r * step] = T_STORE(is_exclusive ? sum : next);
        sum = next;
    }
}
#endif

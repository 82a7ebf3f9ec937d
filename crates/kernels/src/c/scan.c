// Running sums, products, maxima and minima. T is the element, KIND one of those below.
//
// A row is cut into tiles of THREADS × ITEMS vectors. Rows of several tiles are scanned in one pass: a tile publishes what its
// elements come to, then looks back over the tiles before it until one has published what everything up to its end comes to.
// 1. Blocks start in the order of their numbers, so that every tile before this one is done or under way.
// 2. A tile's status is epoch << 2 | state; what another launch left there has another epoch and counts as nothing.
// 3. Where the value fits, it travels with the status in one 64-bit word. Otherwise it is written and fenced before the
//    status, and read after it.
// REVERSED and EXCLUSIVE are constants where a row has many tiles, and the launch's arguments where that would only make
// more kernels.

#define SUM 0
#define PRODUCT 1
#define MAXIMUM 2
#define MINIMUM 3

#define HAS_OWN 1u
#define HAS_ALL 2u

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

// What changes nothing.
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

#if defined(ROWS)
#if !defined(T_IS_f64)
#define PACKED 1
#endif

// The state of a tile with its value; `values` has two places for each tile where they are not packed.
typedef struct { GLOBAL u64 *status; GLOBAL f64 *values; u32 epoch; } board;

DEVICE void publish(const board *b, u32 tile, u32 state, ACC value)
{
    u32 tag = b->epoch << 2 | state;
#if defined(PACKED)
    acc_words x;
    x.acc = value;
    store_coherent_u64(b->status + tile, (u64)x.word[0] << 32 | tag);
#else
    store_coherent_u64((GLOBAL u64 *)b->values + (u64)tile * 2 + (state == HAS_ALL), f64_bits(value));
    FENCE();
    store_coherent_u64(b->status + tile, tag);
#endif
}

// The state of a tile: 0 where nothing has been published in this launch.
DEVICE u32 state_of(const board *b, u64 word) { return (u32)word >> 2 == b->epoch ? (u32)word & 3u : 0u; }

DEVICE ACC value_of(const board *b, i64 tile, u64 word, u32 state)
{
#if defined(PACKED)
    acc_words x;
    x.word[0] = (u32)(word >> 32);
    return x.acc;
#else
    return bits_f64(load_coherent_u64((GLOBAL const u64 *)b->values + (u64)tile * 2 + (state == HAS_ALL)));
#endif
}

// Tiles that one lane looks at in one go.
#define DEPTH 2

// By one warp: what the tiles from `first` up to, but not including, `tile` come to.
DEVICE ACC look_back(const board *b, i64 first, i64 tile)
{
    ACC all = neutral();
    for (i64 nearest = tile - 1;; nearest -= WARP * DEPTH) {
        u64 word[DEPTH];
        u32 state[DEPTH], is_waiting;
        do {
            UNROLL
            for (u32 d = 0; d < DEPTH; d++) {
                i64 at = nearest - (i64)(d * WARP + lane());
                word[d] = at >= first ? load_coherent_u64(b->status + at) : 0;
            }
            is_waiting = 0;
            UNROLL
            for (u32 d = 0; d < DEPTH; d++) {
                i64 at = nearest - (i64)(d * WARP + lane());
                state[d] = at >= first ? state_of(b, word[d]) : HAS_ALL;
                // What lies behind a complete tile is not needed.
                u32 complete = ballot(state[d] == HAS_ALL), waiting = ballot(state[d] == 0);
                u32 until = complete ? complete & (0u - complete) : 0u;
                if (waiting & (until - 1u)) is_waiting = 1;
                if (complete) {
                    UNROLL
                    for (u32 rest = d + 1; rest < DEPTH; rest++) state[rest] = HAS_ALL;
                    break;
                }
            }
        } while (is_waiting);
#if !defined(PACKED)
        FENCE();
#endif
        u32 is_done = 0;
        UNROLL
        for (u32 d = 0; d < DEPTH; d++) {
            if (is_done) break;
            i64 at = nearest - (i64)(d * WARP + lane());
            u32 complete = ballot(state[d] == HAS_ALL);
            // The nearest complete tile is the lowest bit; everything behind it is in it.
            u32 used = complete ? (complete & (0u - complete)) * 2u - 1u : 0xffffffffu;
            ACC value = neutral();
            if (at >= first && (used >> lane() & 1u)) value = value_of(b, at, word[d], state[d]);
            UNROLL
            for (u32 mask = WARP / 2; mask > 0; mask /= 2) value = join(value, acc_shuffle_xor(value, mask));
            all = join(value, all);
            is_done = complete;
        }
        if (is_done) return all;
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_MIN) scan_rows(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 len, u32 tiles,
    u32 is_reversed, u32 is_exclusive, GLOBAL u64 *status, GLOBAL f64 *values, u32 epoch)
{
    SHARED ACC of_warp[THREADS / WARP];
    SHARED ACC before_tile;
    u32 warp = thread_x() / WARP;
    u64 row = block_x() / tiles, tile = block_x() % tiles;
    u64 begin = tile * ((u64)THREADS * ITEMS * VECTOR) + ((u64)warp * ITEMS * WARP + lane()) * VECTOR;
    GLOBAL const T *from = source + row * len;
    GLOBAL T *to = target + row * len;
    ACC x[ITEMS][VECTOR], before[ITEMS];
    // Whether the whole tile lies within the row; the end of a single row need not be even.
    int is_whole = (tile + 1) * ((u64)THREADS * ITEMS * VECTOR) <= len;
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
        UNROLL
        for (u32 by = 1; by < WARP; by *= 2) {
            ACC other = acc_shuffle_up(up_to, by);
            if (lane() >= by) up_to = join(other, up_to);
        }
        ACC others = acc_shuffle_up(up_to, 1);
        before[k] = lane() == 0 ? running : join(running, others);
        running = join(running, acc_shuffle(up_to, WARP - 1));
    }
    ACC prefix = neutral();
    if (THREADS > WARP || tiles > 1) {
        if (lane() == 0) of_warp[warp] = running;
        BARRIER();
        ACC whole = neutral();
        for (u32 w = 0; w < THREADS / WARP; w++) {
            if (w == warp) prefix = whole;
            whole = join(whole, of_warp[w]);
        }
        if (tiles > 1) {
            board b;
            b.status = status;
            b.values = values;
            b.epoch = epoch;
            if (warp == 0) {
                ACC earlier = neutral();
                if (tile > 0) {
                    if (thread_x() == 0) publish(&b, block_x(), HAS_OWN, whole);
                    earlier = look_back(&b, (i64)(row * tiles), block_x());
                }
                if (thread_x() == 0) {
                    publish(&b, block_x(), HAS_ALL, join(earlier, whole));
                    before_tile = earlier;
                }
            }
            BARRIER();
            prefix = join(before_tile, prefix);
        }
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

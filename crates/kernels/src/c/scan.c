// Running sums, products, maxima and minima. T is the element, KIND one of those below.
//
// A row is cut into tiles of THREADS × ITEMS vectors. Rows of several tiles are scanned in one pass: a tile publishes what its
// elements come to, then looks back over the tiles before it until one has published what everything up to its end comes to.
// 1. Tiles are taken in order, by a ticket, so that every tile before this one is done or under way.
// 2. A tile's status is epoch << 2 | state; what another launch left there has another epoch and counts as nothing.
// 3. Where the value fits, it travels with the status in one 64-bit word. Otherwise it is written and fenced before the
//    status, and read after it.
// 4. Whoever takes the last ticket sets the counter back to zero for the next launch.

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

DEVICE void publish(const board *b, u32 ticket, u32 state, ACC value)
{
    u32 tag = b->epoch << 2 | state;
#if defined(PACKED)
    acc_words x;
    x.acc = value;
    store_coherent_u64(b->status + ticket, (u64)x.word[0] << 32 | tag);
#else
    *(GLOBAL volatile f64 *)(b->values + (u64)ticket * 2 + (state == HAS_ALL)) = value;
    FENCE();
    store_coherent_u64(b->status + ticket, tag);
#endif
}

// The state of a tile: 0 where nothing has been published in this launch.
DEVICE u32 state_of(const board *b, u64 word) { return (u32)word >> 2 == b->epoch ? (u32)word & 3u : 0u; }

DEVICE ACC value_of(const board *b, i64 ticket, u64 word, u32 state)
{
#if defined(PACKED)
    acc_words x;
    x.word[0] = (u32)(word >> 32);
    return x.acc;
#else
    return *(GLOBAL const volatile f64 *)(b->values + (u64)ticket * 2 + (state == HAS_ALL));
#endif
}

// By one warp: what the tiles from `first` up to, but not including, `ticket` come to.
DEVICE ACC look_back(const board *b, i64 first, i64 ticket)
{
    ACC all = neutral();
    for (i64 nearest = ticket - 1;; nearest -= WARP) {
        i64 at = nearest - (i64)lane();
        u64 word = 0;
        u32 state;
        do {
            if (at >= first) word = load_coherent_u64(b->status + at);
            state = at >= first ? state_of(b, word) : HAS_ALL;
        } while (ballot(state == 0) != 0);
#if !defined(PACKED)
        FENCE();
#endif
        u32 complete = ballot(state == HAS_ALL);
        // The nearest complete tile is the lowest bit; everything behind it is in it.
        u32 used = complete ? (complete & (0u - complete)) * 2u - 1u : 0xffffffffu;
        ACC value = neutral();
        if (at >= first && (used >> lane() & 1u)) value = value_of(b, at, word, state);
        UNROLL
        for (u32 mask = WARP / 2; mask > 0; mask /= 2) value = join(value, acc_shuffle_xor(value, mask));
        all = join(value, all);
        if (complete) return all;
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, 1) scan_rows(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 len, u32 tiles,
    u32 is_reversed, u32 is_exclusive, GLOBAL u64 *status, GLOBAL f64 *values, u32 epoch, GLOBAL u32 *tickets)
{
    SHARED ACC of_warp[THREADS / WARP];
    SHARED ACC before_tile;
    SHARED u32 taken;
    u32 ticket = block_x(), warp = thread_x() / WARP;
    if (tiles > 1) {
        if (thread_x() == 0) {
            taken = ATOMIC_ADD(tickets, 1u);
            if (taken == grid_size_x() - 1) *tickets = 0;
        }
        BARRIER();
        ticket = taken;
    }
    u64 row = ticket / tiles, tile = ticket % tiles;
    u64 begin = tile * ((u64)THREADS * ITEMS * VECTOR) + ((u64)warp * ITEMS * WARP + lane()) * VECTOR;
    GLOBAL const T *from = source + row * len;
    GLOBAL T *to = target + row * len;
    ACC x[ITEMS][VECTOR], before[ITEMS];
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u64 i = begin + k * (WARP * VECTOR);
        vector_t v;
        if (i < len) v = *(GLOBAL const vector_t *)(from + (is_reversed ? len - VECTOR - i : i));
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            x[k][e] = i < len ? T_LOAD(is_reversed ? v.at[VECTOR - 1 - e] : v.at[e]) : neutral();
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
                    if (thread_x() == 0) publish(&b, ticket, HAS_OWN, whole);
                    earlier = look_back(&b, (i64)(row * tiles), ticket);
                }
                if (thread_x() == 0) {
                    publish(&b, ticket, HAS_ALL, join(earlier, whole));
                    before_tile = earlier;
                }
            }
            BARRIER();
            prefix = join(before_tile, prefix);
        }
    }
    UNROLL
    for (u32 k = 0; k < ITEMS; k++) {
        u64 i = begin + k * (WARP * VECTOR);
        ACC sum = join(prefix, before[k]);
        ACC out[VECTOR];
        vector_t v;
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            ACC next = join(sum, x[k][e]);
            out[e] = is_exclusive ? sum : next;
            sum = next;
        }
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) v.at[e] = T_STORE(is_reversed ? out[VECTOR - 1 - e] : out[e]);
        if (i < len) *(GLOBAL vector_t *)(to + (is_reversed ? len - VECTOR - i : i)) = v;
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

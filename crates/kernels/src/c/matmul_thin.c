// Products of floats with few rows or few columns. Their time is that of reading the other operand.
//
// The thin operand has up to ROWS rows along the depth: A's rows or, SWAPPED, B's columns. The wide operand is the other one; it is
// loaded in words of 16 bytes, DEEP along the depth or else across it, where a block has TILE places. Where it is very long, each of its
// places belongs to a few lanes instead of a warp: TALL. Where neither operand has whole words and there are few sums, each belongs to a
// warp: NARROW. The order of the additions depends on nothing but the sizes and the device.

#define THREADS 256
#define WARPS (THREADS / WARP)
// The elements of a word.
#define WIDE ((u32)(16 / sizeof(T)))

typedef struct {
    GLOBAL const T *thin, *wide;
    i64 thin_along, thin_deep, wide_along, wide_deep;
    u32 thin_extent, wide_extent;
} operands;

DEVICE operands operands_of(GLOBAL const T *a, GLOBAL const T *b, sizes size, strides a_step, strides b_step)
{
    operands its;
#if SWAPPED
    its.thin = b, its.thin_along = b_step.col, its.thin_deep = b_step.row, its.thin_extent = size.n;
    its.wide = a, its.wide_along = a_step.row, its.wide_deep = a_step.col, its.wide_extent = size.m;
#else
    its.thin = a, its.thin_along = a_step.row, its.thin_deep = a_step.col, its.thin_extent = size.m;
    its.wide = b, its.wide_along = b_step.col, its.wide_deep = b_step.row, its.wide_extent = size.n;
#endif
    return its;
}

// The elements of a word.
DEVICE void load_word(f32 *x, GLOBAL const T *from)
{
    f32x4 word = load_now((GLOBAL const f32x4 *)from);
    f32 four[4] = {word.x, word.y, word.z, word.w};
    UNROLL
    for (u32 i = 0; i < 4; i++) {
#if defined(T_IS_f32)
        x[i] = four[i];
#else
        u32 bits = f32_bits(four[i]);
        x[2 * i] = T_LOAD((u16)bits);
        x[2 * i + 1] = T_LOAD((u16)(bits >> 16));
#endif
    }
}

// Adds up `count` values of each lane over the lanes whose numbers differ in bits from `lowest` upward. With each step the lanes of a pair share
// the values that are left, so that a lane ends with `*left` sums: those from the number that is returned onward. `*is_first` tells
// one of the lanes that have the same ones.
DEVICE u32 add_lanes(f32 *values, u32 count, u32 lowest, u32 *left, i32 *is_first)
{
    u32 first = 0, same = 0;
    UNROLL
    for (u32 mask = WARP / 2; mask >= lowest; mask /= 2) {
        if (count % 2 != 0) {
            UNROLL
            for (u32 i = 0; i < count; i++) values[i] += shuffle_xor_f32(values[i], mask);
            same |= lane() & mask;
            continue;
        }
        count /= 2;
        i32 upper = (lane() & mask) != 0;
        UNROLL
        for (u32 i = 0; i < count; i++) {
            f32 kept = upper ? values[count + i] : values[i], given = upper ? values[i] : values[count + i];
            values[i] = kept + shuffle_xor_f32(given, mask);
        }
        first += upper ? count : 0;
    }
    *left = count;
    *is_first = same == 0;
    return first;
}

// Finishes the sum of a place along the thin operand and one along the wide operand.
#define FINISH(sum, thin_place, wide_place)                                                                         \
    do {                                                                                                            \
        u32 finish_row = SWAPPED ? (wide_place) : (thin_place), finish_col = SWAPPED ? (thin_place) : (wide_place); \
        out[((u64)batch * size.m + finish_row) * size.n + finish_col] =                                             \
            finished((sum) * size.alpha, c, bias, size, c_step, &c_batch, batch, finish_row, finish_col);           \
    } while (0)

#define BEGIN                                                                     \
    u32 batch = block_z();                                                        \
    operands its = operands_of(a + (batch > 0 ? layout_offset(&a_batch, batch) : 0), \
                               b + (batch > 0 ? layout_offset(&b_batch, batch) : 0), size, a_step, b_step);

#if NARROW

// The depth that a lane has at once.
#define AT_ONCE 8

// A warp has one sum, and its lanes take turns along the depth.
KERNEL LAUNCH_BOUNDS(THREADS, 2) matmul_thin(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c,
                   GLOBAL const R *bias, sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch,
                   FIXED layout b_batch, FIXED layout c_batch)
{
    BEGIN
    u32 number = block_x() * WARPS + thread_x() / WARP;
    // The same for a whole warp.
    if (number >= its.thin_extent * its.wide_extent) return;
    u32 r = number / its.wide_extent, s = number % its.wide_extent;
    its.thin += (i64)r * its.thin_along;
    its.wide += (i64)s * its.wide_along;
    f32 sum = 0.0f;
    for (u32 from = lane(); from < size.k; from += WARP * AT_ONCE) {
        f32 x[AT_ONCE], y[AT_ONCE];
        UNROLL
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 d = from + i * WARP, at = d < size.k ? d : from;
            x[i] = d < size.k ? T_LOAD(its.thin[(i64)at * its.thin_deep]) : 0.0f;
            y[i] = d < size.k ? T_LOAD(its.wide[(i64)at * its.wide_deep]) : 0.0f;
        }
        UNROLL
        for (u32 i = 0; i < AT_ONCE; i++) sum += x[i] * y[i];
    }
    UNROLL
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) sum += shuffle_xor_f32(sum, mask);
    if (lane() == 0) FINISH(sum, r, s);
}

#elif TALL

// Lanes that share a place along the wide operand, and places that they have at a time. ROWS is a multiple of four here.
#define LANES 8
#define PLACES 2
// The depth that the lanes read at once, and the depth that a block has of the thin operand at a time.
#define STEP (LANES * WIDE)
#define DEPTH (4096 / ROWS / STEP * STEP)
#define FOURS (ROWS / 4)

KERNEL LAUNCH_BOUNDS(THREADS, 2) matmul_thin(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c,
                   GLOBAL const R *bias, sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch,
                   FIXED layout b_batch, FIXED layout c_batch)
{
    // In the order in which lanes next to each other read it: by step, element of a word, four rows, lane.
    SHARED ALIGNED(16) f32x4 thin[DEPTH * FOURS];
    BEGIN
    u32 own = thread_x() % LANES, first = (block_x() * (THREADS / LANES) + thread_x() / LANES) * PLACES;
    f32 sums[PLACES][ROWS];
    UNROLL
    for (u32 i = 0; i < PLACES * ROWS; i++) sums[i / ROWS][i % ROWS] = 0.0f;
    for (u32 from = 0; from < size.k; from += DEPTH) {
        u32 depth = size.k - from < DEPTH ? size.k - from : DEPTH;
        BARRIER();
        for (u32 at = thread_x(); at < (depth + STEP - 1) / STEP * STEP * FOURS; at += THREADS) {
            u32 d = at / FOURS, four = at % FOURS, word = d / WIDE;
            f32 x[4];
            UNROLL
            for (u32 i = 0; i < 4; i++) {
                u32 r = four * 4 + i;
                x[i] = 0.0f;
                if (r < its.thin_extent && d < depth)
                    x[i] = T_LOAD(its.thin[(i64)r * its.thin_along + (i64)(from + d) * its.thin_deep]);
            }
            f32x4 rows;
            rows.x = x[0], rows.y = x[1], rows.z = x[2], rows.w = x[3];
            thin[((word / LANES * WIDE + d % WIDE) * FOURS + four) * LANES + word % LANES] = rows;
        }
        BARRIER();
        for (u32 step = 0; step * STEP + own * WIDE < depth; step++) {
            f32 y[PLACES][WIDE];
            UNROLL
            for (u32 j = 0; j < PLACES; j++) {
                u32 place = first + j < its.wide_extent ? first + j : its.wide_extent - 1;
                load_word(y[j], its.wide + (i64)place * its.wide_along + from + step * STEP + own * WIDE);
            }
            UNROLL
            for (u32 i = 0; i < WIDE * FOURS; i++) {
                u32 e = i / FOURS, r = i % FOURS * 4;
                f32x4 rows = thin[((step * WIDE + e) * FOURS + i % FOURS) * LANES + own];
                UNROLL
                for (u32 j = 0; j < PLACES; j++) {
                    sums[j][r] += rows.x * y[j][e];
                    sums[j][r + 1] += rows.y * y[j][e];
                    sums[j][r + 2] += rows.z * y[j][e];
                    sums[j][r + 3] += rows.w * y[j][e];
                }
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < PLACES * ROWS; i++) {
        u32 j = i / ROWS, r = i % ROWS;
        f32 sum = sums[j][r];
        UNROLL
        for (u32 mask = LANES / 2; mask > 0; mask /= 2) sum += shuffle_xor_f32(sum, mask);
        if (own == i % LANES && r < its.thin_extent && first + j < its.wide_extent) FINISH(sum, r, first + j);
    }
}

#elif DEEP

// The depth that a block has of the thin operand at a time.
#define DEPTH (4096 / ROWS)

// A warp has COLS places along the wide operand, and its lanes have words of them one after the other.
KERNEL LAUNCH_BOUNDS(THREADS, 2) matmul_thin(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c,
                   GLOBAL const R *bias, sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch,
                   FIXED layout b_batch, FIXED layout c_batch)
{
    SHARED f32 thin[ROWS * DEPTH];
    BEGIN
    u32 first = (block_x() * WARPS + thread_x() / WARP) * COLS;
    f32 sums[ROWS * COLS];
    UNROLL
    for (u32 i = 0; i < ROWS * COLS; i++) sums[i] = 0.0f;
    for (u32 from = 0; from < size.k; from += DEPTH) {
        u32 depth = size.k - from < DEPTH ? size.k - from : DEPTH;
        BARRIER();
        for (u32 d = thread_x(); d < depth; d += THREADS) {
            UNROLL
            for (u32 r = 0; r < ROWS; r++) {
                u32 row = r < its.thin_extent ? r : 0;
                thin[r * DEPTH + d] = T_LOAD(its.thin[(i64)row * its.thin_along + (i64)(from + d) * its.thin_deep]);
            }
        }
        BARRIER();
        for (u32 d = lane() * WIDE; d < depth; d += WARP * WIDE) {
            f32 y[COLS][WIDE];
            UNROLL
            for (u32 j = 0; j < COLS; j++) {
                u32 place = first + j < its.wide_extent ? first + j : its.wide_extent - 1;
                load_word(y[j], its.wide + (i64)place * its.wide_along + from + d);
            }
            UNROLL
            for (u32 r = 0; r < ROWS; r++) {
                UNROLL
                for (u32 e = 0; e < WIDE; e++) {
                    f32 x = thin[r * DEPTH + d + e];
                    UNROLL
                    for (u32 j = 0; j < COLS; j++) sums[r * COLS + j] += x * y[j][e];
                }
            }
        }
    }
    u32 left;
    i32 is_first;
    u32 number = add_lanes(sums, ROWS * COLS, 1, &left, &is_first);
    UNROLL
    for (u32 i = 0; i < left; i++) {
        u32 r = (number + i) / COLS, j = (number + i) % COLS;
        if (is_first && r < its.thin_extent && first + j < its.wide_extent) FINISH(sums[i], r, first + j);
    }
}

#else

// The threads that have words next to each other, and the words that a thread loads at once.
#define ACROSS (TILE / WIDE)
#define WORDS 4

// Threads with the same places take turns along the depth.
KERNEL LAUNCH_BOUNDS(THREADS, 2) matmul_thin(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c,
                   GLOBAL const R *bias, sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch,
                   FIXED layout b_batch, FIXED layout c_batch)
{
    SHARED f32 of_warp[WARPS * ROWS * TILE];
    BEGIN
    u32 own = thread_x() % ACROSS * WIDE, place = block_x() * TILE + own;
    f32 sums[ROWS * WIDE];
    UNROLL
    for (u32 i = 0; i < ROWS * WIDE; i++) sums[i] = 0.0f;
    if (place < its.wide_extent) {
        for (u32 from = thread_x() / ACROSS; from < size.k; from += WORDS * (THREADS / ACROSS)) {
            f32 y[WORDS][WIDE], x[WORDS][ROWS];
            UNROLL
            for (u32 w = 0; w < WORDS; w++) {
                u32 d = from + w * (THREADS / ACROSS), at = d < size.k ? d : from;
                load_word(y[w], its.wide + (i64)at * its.wide_deep + place);
                UNROLL
                for (u32 r = 0; r < ROWS; r++) {
                    u32 row = r < its.thin_extent ? r : 0;
                    x[w][r] = T_LOAD(its.thin[(i64)row * its.thin_along + (i64)at * its.thin_deep]);
                }
            }
            UNROLL
            for (u32 w = 0; w < WORDS; w++) {
                if (from + w * (THREADS / ACROSS) >= size.k) break;
                UNROLL
                for (u32 i = 0; i < ROWS * WIDE; i++) sums[i] += x[w][i / WIDE] * y[w][i % WIDE];
            }
        }
    }
    u32 left;
    i32 is_first;
    u32 number = add_lanes(sums, ROWS * WIDE, ACROSS, &left, &is_first);
    UNROLL
    for (u32 i = 0; i < left; i++) {
        u32 r = (number + i) / WIDE, e = (number + i) % WIDE;
        if (is_first) of_warp[(thread_x() / WARP * ROWS + r) * TILE + own + e] = sums[i];
    }
    BARRIER();
    for (u32 at = thread_x(); at < ROWS * TILE; at += THREADS) {
        f32 sum = of_warp[at];
        UNROLL
        for (u32 warp = 1; warp < WARPS; warp++) sum += of_warp[warp * ROWS * TILE + at];
        u32 r = at / TILE, s = block_x() * TILE + at % TILE;
        if (r < its.thin_extent && s < its.wide_extent) FINISH(sum, r, s);
    }
}

#endif

// Reductions along any axes. T is the element, R the result, OPERATION one of accumulate.h's, VECTOR the elements of one load.
//
// `kept` and `reduced` say where the outputs and the elements of each lie. If one output has several blocks, each stores its
// accumulator in `partials`; the last one to finish, by the output's counter, joins them in their order, so that a sum
// is the same every time. It also sets the counter back to zero for the next launch.

typedef struct ALIGNED(VECTOR_BYTES) { T at[VECTOR]; } vector_t;

#define BLOCK 256
#define LOADS 4

#if defined(ROWS)
// Elements begin..end of a row, by `group` threads of which this one is `me`. FLAT: the row's elements are neighbours.
DEVICE ACC gather_row(GLOBAL const T *RESTRICT row, const layout *reduced, u64 begin, u64 end, u32 me, u32 group)
{
    ACC lanes[LOADS];
    UNROLL
    for (u32 l = 0; l < LOADS; l++) lanes[l] = acc_empty();
    u64 i = begin + (u64)me * VECTOR, step = (u64)group * VECTOR;
#if FLAT
    for (; i + (LOADS - 1) * step + VECTOR <= end; i += LOADS * step) {
        vector_t x[LOADS];
        UNROLL
        for (u32 l = 0; l < LOADS; l++) x[l] = *(GLOBAL const vector_t *)(row + i + l * step);
        UNROLL
        for (u32 l = 0; l < LOADS; l++) {
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) lanes[e % LOADS] = acc_join(lanes[e % LOADS], acc_of(x[l].at[e], i + l * step + e));
        }
    }
    for (; i + VECTOR <= end; i += step) {
        vector_t x = *(GLOBAL const vector_t *)(row + i);
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) lanes[e % LOADS] = acc_join(lanes[e % LOADS], acc_of(x.at[e], i + e));
    }
    for (u64 rest = end - (end - begin) % VECTOR + me; VECTOR > 1 && rest < end; rest += group) {
        lanes[0] = acc_join(lanes[0], acc_of(row[rest], rest));
    }
#else
    // Vectors lie whole along the innermost axis, and there are no others.
    for (; i + (LOADS - 1) * step < end; i += LOADS * step) {
        vector_t x[LOADS];
        UNROLL
        for (u32 l = 0; l < LOADS; l++) x[l] = *(GLOBAL const vector_t *)(row + place_of(reduced, i + l * step));
        UNROLL
        for (u32 l = 0; l < LOADS; l++) {
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) lanes[e % LOADS] = acc_join(lanes[e % LOADS], acc_of(x[l].at[e], i + l * step + e));
        }
    }
    for (; i < end; i += step) {
        vector_t x = *(GLOBAL const vector_t *)(row + place_of(reduced, i));
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) lanes[e % LOADS] = acc_join(lanes[e % LOADS], acc_of(x.at[e], i + e));
    }
#endif
    return acc_join(acc_join(lanes[0], lanes[1]), acc_join(lanes[2], lanes[3]));
}

#if !defined(BLOCKS)
// `group` lanes for each output.
KERNEL LAUNCH_BOUNDS(BLOCK, 4) rows(GLOBAL R *RESTRICT target, GLOBAL const T *RESTRICT source, FIXED layout kept, FIXED layout reduced,
    u64 outputs, u64 count, u32 group)
{
    u64 output = (u64)block_x() * (BLOCK / group) + thread_x() / group;
    u32 me = thread_x() % group;
    ACC a = acc_empty();
    if (output < outputs) a = gather_row(source + place_of(&kept, output), &reduced, 0, count, me, group);
    a = acc_over_lanes(a, group);
    if (output < outputs && me == 0) target[output] = acc_result(a, count);
}
#else
// Combines the accumulators of all threads of the block, in thread 0. `of_warp` has a place for each warp.
DEVICE ACC acc_over_block(ACC a, LOCAL ACC *of_warp)
{
#if WARP == 1
    u32 t = thread_x();
    BARRIER();
    of_warp[t] = a;
    for (u32 half = BLOCK / 2; half > 0; half /= 2) {
        BARRIER();
        if (t < half) of_warp[t] = acc_join(of_warp[t], of_warp[t + half]);
    }
    BARRIER();
    return of_warp[0];
#else
    a = acc_over_lanes(a, WARP);
    BARRIER();
    if (lane() == 0) of_warp[thread_x() / WARP] = a;
    BARRIER();
    a = lane() < BLOCK / WARP ? of_warp[lane()] : acc_empty();
    return acc_over_lanes(a, WARP);
#endif
}

// `splits` blocks for each output, each with `chunk` elements.
KERNEL LAUNCH_BOUNDS(BLOCK, 4) rows(GLOBAL R *RESTRICT target, GLOBAL const T *RESTRICT source, FIXED layout kept, FIXED layout reduced,
    u64 count, u32 splits, u64 chunk, GLOBAL ACC *partials, GLOBAL u32 *counters)
{
    SHARED ACC of_warp[BLOCK / WARP];
    SHARED u32 is_last;
    u32 output = block_x() / splits, split = block_x() % splits;
    u64 begin = split * chunk, end = begin + chunk < count ? begin + chunk : count;
    ACC a = acc_empty();
    if (begin < end) a = gather_row(source + place_of(&kept, output), &reduced, begin, end, thread_x(), BLOCK);
    a = acc_over_block(a, of_warp);
    if (splits == 1) {
        if (thread_x() == 0) target[output] = acc_result(a, count);
        return;
    }
    if (thread_x() == 0) {
        partials[(u64)output * splits + split] = a;
        FENCE();
        is_last = ATOMIC_ADD(&counters[output], 1u) == splits - 1;
    }
    BARRIER();
    if (!is_last) return;
    FENCE();
    a = acc_empty();
    for (u32 s = thread_x(); s < splits; s += BLOCK) a = acc_join(a, acc_load_coherent(&partials[(u64)output * splits + s]));
    a = acc_over_block(a, of_warp);
    if (thread_x() == 0) {
        target[output] = acc_result(a, count);
        counters[output] = 0;
    }
}
#endif
#endif

#if defined(COLUMNS)
// Joins what the threads of one column have, over `rows` rows of the block that `width` threads share; the first row gets it.
DEVICE void join_columns(ACC *a, LOCAL ACC *shared, u32 width, u32 rows)
{
    u32 t = thread_x();
    for (u32 half = rows / 2; half > 0; half /= 2) {
        BARRIER();
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) shared[e * BLOCK + t] = a[e];
        BARRIER();
        if (t / width < half) {
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) a[e] = acc_join(a[e], shared[e * BLOCK + t + half * width]);
        }
    }
}

// Outputs that are neighbours in memory: `width` threads beside each other, each with VECTOR columns, and BLOCK / width rows.
// Outputs are outer × inner; a block has one tile of columns, one outer place and one of `splits` parts of the rows.
KERNEL LAUNCH_BOUNDS(BLOCK, 4) columns(GLOBAL R *RESTRICT target, GLOBAL const T *RESTRICT source, FIXED layout outer, FIXED layout reduced,
    u64 inner, u64 outputs, u64 count, u32 width, u32 tiles, u32 splits, u64 chunk, GLOBAL ACC *partials, GLOBAL u32 *counters)
{
    SHARED ACC shared[VECTOR * BLOCK];
    SHARED u32 is_last;
    u32 rows = BLOCK / width, x = thread_x() % width, y = thread_x() / width;
    u32 split = block_x() % splits, tile = block_x() / splits;
    u64 outer_place = tile / tiles, column = ((u64)(tile % tiles) * width + x) * VECTOR;
    u64 begin = split * chunk, end = begin + chunk < count ? begin + chunk : count;
    GLOBAL const T *from = source + place_of(&outer, outer_place) + column;
    ACC a[VECTOR];
    UNROLL
    for (u32 e = 0; e < VECTOR; e++) a[e] = acc_empty();
    if (column < inner) {
        u64 r = begin + y;
        for (; r + (LOADS - 1) * rows < end; r += LOADS * rows) {
            vector_t v[LOADS];
            UNROLL
            for (u32 l = 0; l < LOADS; l++) v[l] = *(GLOBAL const vector_t *)(from + place_of(&reduced, r + l * rows));
            UNROLL
            for (u32 l = 0; l < LOADS; l++) {
                UNROLL
                for (u32 e = 0; e < VECTOR; e++) a[e] = acc_join(a[e], acc_of(v[l].at[e], r + l * rows));
            }
        }
        for (; r < end; r += rows) {
            vector_t v = *(GLOBAL const vector_t *)(from + place_of(&reduced, r));
            UNROLL
            for (u32 e = 0; e < VECTOR; e++) a[e] = acc_join(a[e], acc_of(v.at[e], r));
        }
    }
    join_columns(a, shared, width, rows);
    u64 output = outer_place * inner + column;
    int writes = y == 0 && column < inner;
    if (splits == 1) {
        UNROLL
        for (u32 e = 0; e < VECTOR; e++) {
            if (writes) target[output + e] = acc_result(a[e], count);
        }
        return;
    }
    UNROLL
    for (u32 e = 0; e < VECTOR; e++) {
        if (writes) partials[split * outputs + output + e] = a[e];
    }
    FENCE();
    BARRIER();
    if (thread_x() == 0) is_last = ATOMIC_ADD(&counters[tile], 1u) == splits - 1;
    BARRIER();
    if (!is_last) return;
    FENCE();
    UNROLL
    for (u32 e = 0; e < VECTOR; e++) {
        a[e] = acc_empty();
        for (u32 s = y; s < splits && column < inner; s += rows) {
            a[e] = acc_join(a[e], acc_load_coherent(&partials[s * outputs + output + e]));
        }
    }
    join_columns(a, shared, width, rows);
    UNROLL
    for (u32 e = 0; e < VECTOR; e++) {
        if (writes) target[output + e] = acc_result(a[e], count);
    }
    if (thread_x() == 0) counters[tile] = 0;
}
#endif

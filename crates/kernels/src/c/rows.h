// Rows of floats that a group of threads holds in registers: GROUP threads (a warp, or a whole block) have ITEMS vectors of
// VECTOR elements each; what goes beyond the row's end is filled. REAL is what elements are computed in.

#if defined(T_IS_f64)
typedef f64 REAL;
#define REAL_SHUFFLE_XOR shuffle_xor_f64
#define REAL_EXP exp
#define REAL_LOG log
#define REAL_SQRT sqrt
#define REAL_MAX fmax
#define REAL_LOWEST bits_f64(0xfff0000000000000ull)
#else
typedef f32 REAL;
#define REAL_SHUFFLE_XOR shuffle_xor_f32
#define REAL_EXP exp_below
#define REAL_LOG logf
#define REAL_SQRT sqrtf
#define REAL_MAX fmaxf
#define REAL_LOWEST bits_f32(0xff800000u)
#endif

typedef struct ALIGNED(VECTOR_BYTES) { T at[VECTOR]; } vector_t;

#if GROUP > WARP
#define BLOCK GROUP
#else
#define BLOCK 256
#endif

// Enough for 64 registers of each thread.
#define BLOCKS_MIN (1024 / BLOCK)

DEVICE REAL real_sum(REAL a, REAL b) { return a + b; }
DEVICE REAL real_max(REAL a, REAL b) { return REAL_MAX(a, b); }

#define OVER_WARP(name, JOIN)                                                                     \
    DEVICE REAL name##_over_warp(REAL x)                                                          \
    {                                                                                             \
        UNROLL                                                                                    \
        for (u32 mask = WARP / 2; mask > 0; mask /= 2) x = JOIN(x, REAL_SHUFFLE_XOR(x, mask));    \
        return x;                                                                                 \
    }
OVER_WARP(sum, real_sum)
OVER_WARP(max, real_max)

// GROUP_MEMORY stands in every kernel that calls sum_over_group or max_over_group; functions that do are given `of_warp`.
#if GROUP > WARP && WARP == 1
#define GROUP_MEMORY SHARED REAL of_warp[GROUP];
#define OVER_GROUP(name, JOIN, EMPTY)                                                             \
    DEVICE REAL name##_over_group_by(REAL x, LOCAL REAL *of_warp)                                 \
    {                                                                                             \
        of_warp[thread_x()] = x;                                                                  \
        for (u32 half = GROUP / 2; half > 0; half /= 2) {                                         \
            BARRIER();                                                                            \
            if (thread_x() < half) of_warp[thread_x()] = JOIN(of_warp[thread_x()], of_warp[thread_x() + half]); \
        }                                                                                         \
        BARRIER();                                                                                \
        x = of_warp[0];                                                                           \
        BARRIER();                                                                                \
        return x;                                                                                 \
    }
#elif GROUP > WARP
#define GROUP_MEMORY SHARED REAL of_warp[GROUP / WARP];
// Every thread of the block gets the result.
#define OVER_GROUP(name, JOIN, EMPTY)                                                             \
    DEVICE REAL name##_over_group_by(REAL x, LOCAL REAL *of_warp)                                 \
    {                                                                                             \
        x = name##_over_warp(x);                                                                  \
        if (lane() == 0) of_warp[thread_x() / WARP] = x;                                          \
        BARRIER();                                                                                \
        x = name##_over_warp(lane() < GROUP / WARP ? of_warp[lane()] : EMPTY);                    \
        BARRIER();                                                                                \
        return x;                                                                                 \
    }
#else
#define GROUP_MEMORY LOCAL REAL *of_warp = 0;
#define OVER_GROUP(name, JOIN, EMPTY) DEVICE REAL name##_over_group_by(REAL x, LOCAL REAL *of_warp) { return name##_over_warp(x); }
#endif
OVER_GROUP(sum, real_sum, (REAL)0)
OVER_GROUP(max, real_max, REAL_LOWEST)
#define sum_over_group(x) sum_over_group_by(x, of_warp)
#define max_over_group(x) max_over_group_by(x, of_warp)

// Reads this thread's part of a row. A row that fills its group needs no comparisons.
#define LOAD_ROW(x, from, len, fill)                                                              \
    if (len == GROUP * ITEMS * VECTOR) {                                                          \
        UNROLL                                                                                    \
        for (u32 k = 0; k < ITEMS; k++) {                                                         \
            vector_t v = *(GLOBAL const vector_t *)(from + (k * GROUP + own_place()) * VECTOR);   \
            UNROLL                                                                                \
            for (u32 e = 0; e < VECTOR; e++) x[k][e] = T_LOAD(v.at[e]);                           \
        }                                                                                         \
    } else {                                                                                      \
        UNROLL                                                                                    \
        for (u32 k = 0; k < ITEMS; k++) {                                                         \
            u32 i = (k * GROUP + own_place()) * VECTOR;                                           \
            vector_t v;                                                                           \
            if (i < len) v = *(GLOBAL const vector_t *)(from + i);                                \
            UNROLL                                                                                \
            for (u32 e = 0; e < VECTOR; e++) x[k][e] = i < len ? T_LOAD(v.at[e]) : fill;          \
        }                                                                                         \
    }

// The row of this thread's group, and the thread's place in the group.
DEVICE u64 own_row(void) { return GROUP > WARP ? block_x() : (u64)block_x() * (BLOCK / WARP) + thread_x() / WARP; }
DEVICE u32 own_place(void) { return GROUP > WARP ? thread_x() : lane(); }

// Takes the highest of a row off each element and, unless IS_LOG, raises e to it; `last` is what is left to do, by SOFTENED. Elements
// behind the row's end are REAL_LOWEST.
#define SOFTEN_ROW(x, last)                                                    \
    REAL highest = REAL_LOWEST, total = 0;                                     \
    UNROLL                                                                     \
    for (u32 k = 0; k < ITEMS; k++) {                                          \
        UNROLL                                                                 \
        for (u32 e = 0; e < VECTOR; e++) highest = REAL_MAX(highest, x[k][e]); \
    }                                                                          \
    highest = max_over_group(highest);                                         \
    UNROLL                                                                     \
    for (u32 k = 0; k < ITEMS; k++) {                                          \
        UNROLL                                                                 \
        for (u32 e = 0; e < VECTOR; e++) {                                     \
            x[k][e] -= highest;                                                \
            REAL power = REAL_EXP(x[k][e]);                                    \
            total += power;                                                    \
            if (!IS_LOG) x[k][e] = power;                                      \
        }                                                                      \
    }                                                                          \
    total = sum_over_group(total);                                             \
    REAL last = IS_LOG ? REAL_LOG(total) : (REAL)1 / total;
#define SOFTENED(x, last) (IS_LOG ? (x) - (last) : (x) * (last))

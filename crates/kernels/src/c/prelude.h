// The prelude of the C dialect: the words that kernels use. Each compiler has a file of its own before this one (cuda.h, hip.h, host.h, opencl.h), with
// the types, the words of the first part of this list, and the words that it does better than the portable bodies below, each marked by OWN_….
//
//   KERNEL                 before an entry: KERNEL name(args) { … }; it returns nothing
//   LAUNCH_BOUNDS(t, b)    behind KERNEL: blocks have t threads, and at least b of them should fit a multiprocessor; LAUNCH_UP_TO(t) where
//                          they have as many or fewer
//   DEVICE                 before a function that kernels call
//   GLOBAL                 before a pointer to device memory
//   LOCAL                  before a pointer to the block's memory
//   SHARED                 before an array of the block's memory; in a kernel, not in the functions that it calls
//   DYNAMIC_SHARED(T, x)   the block's memory whose size the launch gives, as T *x
//   thread_x() …           place of the thread in its block, block_x() … of the block in the grid,
//   block_size_x() …       threads in a block, grid_size_x() … blocks in the grid (also _y, _z)
//   BARRIER()              waits for all threads of the block; WARP_BARRIER() for those of the warp. Each then sees what the others have written
//   lane(), WARP           place in the warp, and its width: 32, or 64; 1 where threads do not see each other's values
//   lane_mask              a bit for each lane of a warp; ballot(p) those for which p holds, lanes_below() those before this one,
//                          count_lanes(m) how many
//   shuffle_…              values of other lanes; every lane of the warp must take part
//   match_byte(x)          the lanes whose lowest eight bits are the same; every lane must take part
//   reduce_or_u32(x)       the bits that any lane has; every lane must take part
//   ATOMIC_…               on device or block memory, relaxed; return the old value
//   FENCE()                what was written before is seen by the whole device before what is written after
//   LOAD_VOLATILE(p)       a load that is not taken from a register or a stale cache
//   load_coherent_…        what another block wrote before it fenced and said so: never from this processor's own cache
//   atomic_add_ordered     adds to a counter. Writes that the thread has seen before are visible to the next thread that adds to it
//   load_stream            a load of what will not be read again soon; load_now one that is not put off until it is needed
//   add_f32 …              sums, differences and products that are rounded at once, and never contracted
//   exp_below(x)           exp(x) for x up to zero, to a few parts in 10⁷ for results that are not negligible
//   exp2_below(x)          two to the power of x for x up to zero, likewise
//   reciprocal_near(x)     1 / x, to a unit or two in the last place
//   pack_f16(a, b) …       two numbers rounded to 16 bits in one word, the first in its low half (also pack_bf16)
//   min2_u16(a, b)         the lesser of both halves of two words
//   dot4_i8(a, b, sum)     the sum of four products of signed bytes, and another
//   copy_async_16(to, from, present)
//                          copies 16 bytes to the block's memory, or zeros; it may take effect as late as COPY_ASYNC_WAIT(groups), which
//                          leaves at most `groups` COPY_ASYNC_COMMIT()s unfinished
//   tile16                 one operand of a product of 16 × 16 × 16 numbers of 16 bits by a warp of 32 or 64: load_tile16(rows, step) of 16 rows
//                          of A, or columns of B, of 16 numbers each in the block's memory, `step` numbers apart, at multiples of 8.
//                          multiply_tile16_f16(sums, a, b) adds to a lane's TILE16_SUMS sums (also _bf16); the i-th is that of the row
//                          tile16_row(i) and the column tile16_col(i). Loaded operands do not change until they are multiplied
//   gate                   a word of the block's memory that threads wait for, phase after phase: gate_prepare(p, arrivals) says how
//                          many gate_arrive(p) end a phase; gate_wait(p, parity) waits for the end of one, the first of which
//                          has the parity 0, while that before the first is over
//   UNROLL                 before a loop with a known number of rounds; UNROLL_BY_2, UNROLL_BY_4, ROLLED
//   NOINLINE               before a function that is not worth a copy wherever it is called
//   PLACE(base, word)      where a table's word leads to, as bytes: an address, or an offset in bytes from the common base
//   FIXED                  before an argument whose address is taken: without it every thread would have a copy
//   PERSISTENT             before a variable of the file that keeps its value between launches; zero at first
//
// Only where the driver's Properties::matrix_tiles says so, and for kernels that have an alternative in plain arithmetic: gate,
// load_matrices, load_matrices_turned, multiply_f16 and its like; where Properties::warp_groups does, group_multiply.h.
//
// f16 and bf16 are u16 in memory and f32 in registers.

#if !defined(ROLLED)
#define ROLLED
#endif
#if !defined(PLACE)
#define PLACE(base, word) ((GLOBAL u8 *)((u64)(base) + (word)))
#endif
#if !defined(FIXED)
#define FIXED const
#endif

typedef struct ALIGNED(8) { f32 re, im; } complex64;
typedef struct ALIGNED(8) { u32 x, y; } u32x2;
#if !defined(OWN_LOADS)
typedef struct ALIGNED(16) { u32 x, y, z, w; } u32x4;
typedef struct ALIGNED(16) { f32 x, y, z, w; } f32x4;
DEVICE u32x4 load_stream(GLOBAL const u32x4 *p) { return *p; }
DEVICE f32x4 load_now(GLOBAL const f32x4 *p) { return *p; }
#endif

#if WARP == 64
DEVICE u32 count_lanes(lane_mask lanes) { return count_ones((u32)lanes) + count_ones((u32)(lanes >> 32)); }
#else
DEVICE u32 count_lanes(lane_mask lanes) { return count_ones(lanes); }
#endif
DEVICE lane_mask lanes_below(void) { return ((lane_mask)1 << lane()) - 1; }

#if !defined(OWN_MATCH_BYTE)
DEVICE lane_mask match_byte(u32 x)
{
    lane_mask same = ~(lane_mask)0;
    UNROLL for (u32 bit = 1; bit < 256; bit *= 2) {
        lane_mask votes = ballot((x & bit) != 0);
        // Lanes without the bit look for those without it.
        same &= x & bit ? votes : ~votes;
    }
    return same;
}
#endif

#if !defined(OWN_REDUCE_OR)
DEVICE u32 reduce_or_u32(u32 x)
{
    UNROLL for (u32 mask = WARP / 2; mask > 0; mask /= 2) x |= shuffle_xor_u32(x, mask);
    return x;
}
#endif

#if !defined(OWN_ROUNDED)
DEVICE f32 add_f32(f32 a, f32 b) { return a + b; }
DEVICE f32 sub_f32(f32 a, f32 b) { return a - b; }
DEVICE f32 mul_f32(f32 a, f32 b) { return a * b; }
DEVICE f64 add_f64(f64 a, f64 b) { return a + b; }
DEVICE f64 sub_f64(f64 a, f64 b) { return a - b; }
DEVICE f64 mul_f64(f64 a, f64 b) { return a * b; }
#endif

#if !defined(OWN_EXP_BELOW)
DEVICE f32 exp_below(f32 x) { return expf(x); }
#endif

#if !defined(OWN_EXP2_BELOW)
DEVICE f32 exp2_below(f32 x) { return exp2f(x); }
#endif

#if !defined(OWN_RECIPROCAL_NEAR)
DEVICE f32 reciprocal_near(f32 x) { return 1.0f / x; }
#endif

#if !defined(OWN_COHERENT)
DEVICE u32 load_coherent_u32(GLOBAL const u32 *p) { return LOAD_VOLATILE(p); }
DEVICE u64 load_coherent_u64(GLOBAL const u64 *p) { return LOAD_VOLATILE(p); }
DEVICE void store_coherent_u64(GLOBAL u64 *p, u64 v) { STORE_VOLATILE(p, v); }
DEVICE u32 atomic_add_ordered(GLOBAL u32 *p, u32 v)
{
    FENCE();
    u32 before = ATOMIC_ADD(p, v);
    FENCE();
    return before;
}
#endif

#if !defined(OWN_MIN2)
DEVICE u32 min2_u16(u32 a, u32 b)
{
    u32 low = (a & 0xffffu) < (b & 0xffffu) ? a : b, high = (a >> 16) < (b >> 16) ? a : b;
    return (low & 0xffffu) | (high & 0xffff0000u);
}
#endif

#if !defined(OWN_DOT4)
DEVICE i32 dot4_i8(u32 a, u32 b, i32 sum)
{
    UNROLL for (u32 i = 0; i < 32; i += 8) sum += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
    return sum;
}
#endif

#if !defined(OWN_COPIES)
DEVICE void copy_async_16(LOCAL void *target, GLOBAL const void *source, int present)
{
    u32x4 zeros = {0, 0, 0, 0};
    *(LOCAL u32x4 *)target = present ? *(GLOBAL const u32x4 *)source : zeros;
}
#define COPY_ASYNC_COMMIT() ((void)0)
#define COPY_ASYNC_WAIT(groups) ((void)0)
#endif

#if !defined(OWN_F16)
DEVICE f32 f16_to_f32(u16 x)
{
    u32 sign = (u32)(x & 0x8000u) << 16, exponent = (x >> 10) & 31u, fraction = x & 1023u;
    if (exponent == 31u) return bits_f32(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0u) return bits_f32(sign | ((exponent + 112u) << 23) | (fraction << 13));
    f32 tiny = (f32)fraction * 5.9604644775390625e-8f;
    return sign ? -tiny : tiny;
}

DEVICE u16 f32_to_f16(f32 x)
{
    u32 bits = f32_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u16)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (u16)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        // Subnormal in f16: the sum aligns the fraction's last place, and rounds to nearest even.
        f32 shifted = bits_f32(magnitude) + 0.5f;
        return (u16)(sign | (f32_bits(shifted) - 0x3f000000u));
    }
    u32 odd = (magnitude >> 13) & 1u;
    return (u16)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}
#endif

DEVICE f32 bf16_to_f32(u16 x) { return bits_f32((u32)x << 16); }

DEVICE u16 f32_to_bf16(f32 x)
{
    u32 bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if !defined(OWN_PACKS)
DEVICE u32 pack_f16(f32 a, f32 b) { return (u32)f32_to_f16(a) | (u32)f32_to_f16(b) << 16; }
DEVICE u32 pack_bf16(f32 a, f32 b) { return (u32)f32_to_bf16(a) | (u32)f32_to_bf16(b) << 16; }
#endif

#if WARP >= 32
#define TILE16_SUMS (256 / WARP)
#if defined(OWN_TILE16_PLACES)
#elif WARP == 64
DEVICE u32 tile16_row(u32 i) { return lane() / 16 * 4 + i; }
DEVICE u32 tile16_col(u32 i) { return lane() % 16; }
#else
DEVICE u32 tile16_row(u32 i) { return i * 2 + lane() / 16; }
DEVICE u32 tile16_col(u32 i) { return lane() % 16; }
#endif
#if !defined(OWN_TILE16)
typedef struct {
    LOCAL const u16 *rows;
    u32 step;
} tile16;
DEVICE tile16 load_tile16(LOCAL const u16 *rows, u32 step)
{
    tile16 tile = {rows, step};
    return tile;
}
#define MULTIPLY_TILE16(name, load)                                                                                   \
    DEVICE void name(f32 *sums, tile16 a, tile16 b)                                                                   \
    {                                                                                                                 \
        for (u32 i = 0; i < TILE16_SUMS; i++) {                                                                       \
            LOCAL const u16 *x = a.rows + tile16_row(i) * a.step, *y = b.rows + tile16_col(i) * b.step;                \
            for (u32 d = 0; d < 16; d++) sums[i] += load(x[d]) * load(y[d]);                                          \
        }                                                                                                             \
    }
MULTIPLY_TILE16(multiply_tile16_f16, f16_to_f32)
MULTIPLY_TILE16(multiply_tile16_bf16, bf16_to_f32)
#endif
#endif

DEVICE f32 shuffle_f32(f32 x, u32 from) { return bits_f32(shuffle_u32(f32_bits(x), from)); }
DEVICE f32 shuffle_xor_f32(f32 x, u32 mask) { return bits_f32(shuffle_xor_u32(f32_bits(x), mask)); }
DEVICE f32 shuffle_up_f32(f32 x, u32 by) { return bits_f32(shuffle_up_u32(f32_bits(x), by)); }
DEVICE f32 shuffle_down_f32(f32 x, u32 by) { return bits_f32(shuffle_down_u32(f32_bits(x), by)); }

DEVICE u64 shuffle_u64(u64 x, u32 from)
{
    return ((u64)shuffle_u32((u32)(x >> 32), from) << 32) | shuffle_u32((u32)x, from);
}
DEVICE u64 shuffle_xor_u64(u64 x, u32 mask)
{
    return ((u64)shuffle_xor_u32((u32)(x >> 32), mask) << 32) | shuffle_xor_u32((u32)x, mask);
}
DEVICE u64 shuffle_up_u64(u64 x, u32 by)
{
    return ((u64)shuffle_up_u32((u32)(x >> 32), by) << 32) | shuffle_up_u32((u32)x, by);
}
DEVICE u64 shuffle_down_u64(u64 x, u32 by)
{
    return ((u64)shuffle_down_u32((u32)(x >> 32), by) << 32) | shuffle_down_u32((u32)x, by);
}
DEVICE f64 shuffle_xor_f64(f64 x, u32 mask) { return bits_f64(shuffle_xor_u64(f64_bits(x), mask)); }
DEVICE f64 shuffle_up_f64(f64 x, u32 by) { return bits_f64(shuffle_up_u64(f64_bits(x), by)); }

// A layout of up to eight axes, passed by value: sizes and strides in elements, the last axis first.
typedef struct {
    u32 rank;
    u32 size[8];
    i64 stride[8];
} layout;

// Where the element with this number, in row-major order, lies.
DEVICE i64 layout_offset(const layout *view, u64 number)
{
    i64 offset = 0;
    for (u32 axis = 0; axis < view->rank; axis++) {
        u64 size = view->size[axis];
        offset += (i64)(number % size) * view->stride[axis];
        number /= size;
    }
    return offset;
}

// The host's side of the dialect, on top of emulation.h.

#define KERNEL static void
#define DEVICE static inline
#define GLOBAL
#define LOCAL
#define SHARED BLOCK_MEMORY
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulation::dynamic_shared
#define RESTRICT __restrict__
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#define LAUNCH_BOUNDS(threads, blocks)
#define LAUNCH_UP_TO(threads)
#define UNROLL
#define BARRIER() emulation::block_barrier()
#define WARP_BARRIER() emulation::warp_barrier()
#define FENCE() ((void)0)
#define LOAD_VOLATILE(p) (*(p))
#define STORE_VOLATILE(p, v) (*(p) = (v))

DEVICE u32 thread_x() { return emulation::thread.x; }
DEVICE u32 thread_y() { return emulation::thread.y; }
DEVICE u32 thread_z() { return emulation::thread.z; }
DEVICE u32 block_x() { return emulation::block.x; }
DEVICE u32 block_y() { return emulation::block.y; }
DEVICE u32 block_z() { return emulation::block.z; }
DEVICE u32 block_size_x() { return emulation::block_size.x; }
DEVICE u32 block_size_y() { return emulation::block_size.y; }
DEVICE u32 block_size_z() { return emulation::block_size.z; }
DEVICE u32 grid_size_x() { return emulation::grid_size.x; }
DEVICE u32 grid_size_y() { return emulation::grid_size.y; }
DEVICE u32 grid_size_z() { return emulation::grid_size.z; }
DEVICE u32 lane() { return emulation::current % WARP; }

DEVICE u32 shuffle_u32(u32 x, u32 from) { return emulation::exchange(x, from); }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return emulation::exchange(x, lane() ^ mask); }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return emulation::exchange(x, lane() >= by ? lane() - by : lane()); }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return emulation::exchange(x, lane() + by < WARP ? lane() + by : lane()); }
#if WARP == 64
typedef u64 lane_mask;
#else
typedef u32 lane_mask;
#endif
UNCHECKED DEVICE lane_mask ballot(i32 predicate)
{
    using namespace emulation;
    u32 base = current / WARP * WARP;
    lane_mask mask = 0;
    slots[current] = predicate != 0;
    warp_barrier();
    for (u32 i = 0; i < WARP && base + i < threads; i++) mask |= (lane_mask)slots[base + i] << i;
    warp_barrier();
    return mask;
}

DEVICE u32 f32_bits(f32 x) { u32 y; memcpy(&y, &x, 4); return y; }
DEVICE f32 bits_f32(u32 x) { f32 y; memcpy(&y, &x, 4); return y; }
DEVICE u64 f64_bits(f64 x) { u64 y; memcpy(&y, &x, 8); return y; }
DEVICE f64 bits_f64(u64 x) { f64 y; memcpy(&y, &x, 8); return y; }
DEVICE u32 count_ones(u32 x) { return (u32)__builtin_popcount(x); }
DEVICE u32 leading_zeros(u32 x) { return x ? (u32)__builtin_clz(x) : 32; }
DEVICE u32 reverse_bits(u32 x)
{
    u32 y = 0;
    for (int i = 0; i < 32; i++) y |= ((x >> i) & 1u) << (31 - i);
    return y;
}
DEVICE f32 rsqrtf(f32 x) { return 1.0f / sqrtf(x); }
DEVICE f64 rsqrt(f64 x) { return 1.0 / sqrt(x); }
DEVICE void sincospif(f32 x, f32 *sine, f32 *cosine)
{
    *sine = (f32)sin(3.141592653589793238463 * (f64)x);
    *cosine = (f32)cos(3.141592653589793238463 * (f64)x);
}

template <class P, class V> static P atomic_add(P *p, V v) { P old = *p; *p = (P)(old + v); return old; }
template <class P, class V> static P atomic_max(P *p, V v) { P old = *p; if (old < (P)v) *p = (P)v; return old; }
template <class P, class V> static P atomic_min(P *p, V v) { P old = *p; if ((P)v < old) *p = (P)v; return old; }
template <class P, class V> static P atomic_or(P *p, V v) { P old = *p; *p = (P)(old | v); return old; }
template <class P, class V> static P atomic_exchange(P *p, V v) { P old = *p; *p = (P)v; return old; }
template <class P, class V, class W> static P atomic_cas(P *p, V expected, W v)
{
    P old = *p;
    if (old == (P)expected) *p = (P)v;
    return old;
}
#define ATOMIC_ADD(p, v) atomic_add(p, v)
#define ATOMIC_MAX(p, v) atomic_max(p, v)
#define ATOMIC_MIN(p, v) atomic_min(p, v)
#define ATOMIC_OR(p, v) atomic_or(p, v)
#define ATOMIC_CAS(p, expected, v) atomic_cas(p, expected, v)
#define ATOMIC_EXCHANGE(p, v) atomic_exchange(p, v)

#define PERSISTENT BLOCK_MEMORY
#define NOINLINE static
#define UNROLL_BY_2
#define UNROLL_BY_4

// Words that only warps of 32 have.
#if WARP == 32
typedef struct { u32 arrivals, arrived, phase; } gate;
DEVICE void gate_prepare(gate *p, u32 arrivals) { *p = gate{arrivals, 0, 0}; }
UNCHECKED DEVICE void gate_arrive(gate *p)
{
    emulation::moved = true;
    if (++p->arrived == p->arrivals) p->arrived = 0, p->phase++;
}
DEVICE void gate_arrive_when_copied(gate *p) { gate_arrive(p); }
DEVICE void gate_wait(gate *p, u32 parity)
{
    while ((p->phase & 1u) == parity) emulation::leave();
}
// Makes copies to the block's memory visible to matrix units, which read it by themselves.
#define TENSOR_FENCE() ((void)0)

// Four matrices of eight rows of 16 bytes. Lane l names row l % 8 of matrix l / 8, and gets of each matrix word l % 4 of row l / 4.
UNCHECKED DEVICE void load_matrices(u32 *r, const void *row)
{
    using namespace emulation;
    u32 base = current / WARP * WARP, l = lane();
    if ((uintptr_t)row % 16 != 0) __builtin_trap();
    slots[current] = (u64)(uintptr_t)row;
    warp_barrier();
    for (u32 i = 0; i < 4; i++) memcpy(&r[i], (const char *)(uintptr_t)slots[base + i * 8 + l / 4] + l % 4 * 4, 4);
    warp_barrier();
}

// The same of matrices of 16-bit numbers, turned: a lane gets of each matrix the numbers of column l / 4 in the rows 2 (l % 4) and the
// next.
DEVICE void load_matrices_turned(u32 *r, const void *row)
{
    using namespace emulation;
    u32 base = current / WARP * WARP, l = lane();
    if ((uintptr_t)row % 16 != 0) __builtin_trap();
    slots[current] = (u64)(uintptr_t)row;
    warp_barrier();
    for (u32 i = 0; i < 4; i++) {
        u16 pair[2];
        for (u32 j = 0; j < 2; j++) memcpy(&pair[j], (const char *)(uintptr_t)slots[base + i * 8 + l % 4 * 2 + j] + l / 4 * 2, 2);
        memcpy(&r[i], pair, 4);
    }
    warp_barrier();
}

// d += a * b by the lanes of a warp. In words of 32 bits, a is 16 rows of 8 and b 8 rows of 8; a lane holds of a the words t and
// t + 4 of the rows g and g + 8, of b the words t and t + 4 of row g, and of d the columns 2t and 2t + 1 of the rows g and g + 8,
// where g is lane / 4 and t is lane % 4.
namespace emulation {
static u32 operands[THREADS_MAX][6];
template <class N, class F> UNCHECKED static void multiply(N *d, const u32 *a, const u32 *b, F word_product)
{
    u32 base = current / WARP * WARP, g = lane() / 4, t = lane() % 4;
    memcpy(operands[current], a, 16);
    memcpy(operands[current] + 4, b, 8);
    warp_barrier();
    for (u32 i = 0; i < 4; i++) {
        u32 row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (u32 w = 0; w < 8; w++) {
            u32 x = operands[base + row % 8 * 4 + w % 4][row / 8 + w / 4 * 2], y = operands[base + column * 4 + w % 4][4 + w / 4];
            d[i] += word_product(x, y);
        }
    }
    warp_barrier();
}
} // namespace emulation
DEVICE f32 f16_to_f32(u16 x);
DEVICE i32 dot4_i8(u32 a, u32 b, i32 sum);
DEVICE void multiply_f16(f32 *d, const u32 *a, const u32 *b)
{
    emulation::multiply(d, a, b, [](u32 x, u32 y) {
        return f16_to_f32((u16)x) * f16_to_f32((u16)y) + f16_to_f32((u16)(x >> 16)) * f16_to_f32((u16)(y >> 16));
    });
}
DEVICE void multiply_bf16(f32 *d, const u32 *a, const u32 *b)
{
    emulation::multiply(d, a, b, [](u32 x, u32 y) {
        return bits_f32(x << 16) * bits_f32(y << 16) + bits_f32(x & 0xffff0000u) * bits_f32(y & 0xffff0000u);
    });
}
// The factors are cut to 11 significant bits.
DEVICE void multiply_f32(f32 *d, const u32 *a, const u32 *b)
{
    emulation::multiply(d, a, b, [](u32 x, u32 y) { return bits_f32(x & 0xffffe000u) * bits_f32(y & 0xffffe000u); });
}
DEVICE void multiply_i8(i32 *d, const u32 *a, const u32 *b)
{
    emulation::multiply(d, a, b, [](u32 x, u32 y) { return dot4_i8(x, y, 0); });
}
#endif

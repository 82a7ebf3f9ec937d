// OpenCL C's side of the dialect, for versions 1.2 to 3.0. There are no generic pointers (GLOBAL and LOCAL say what a pointer is to), no
// variables of the file, and the block's memory is declared in kernels alone. Kernels' parameters are rewritten before a compiler sees
// them: a pointer is a buffer and an offset, and what a launch adds to the block's memory comes last; see opencl.rs.
//
// Lanes of a warp, by what the device has:
//   WARP 1                 no subgroups: each thread is a separate warp, and every shuffle returns its argument
//   PANOPLY_SUBGROUPS      cl_khr_subgroups with shuffles and ballots, as wide as WARP
//   PANOPLY_INTEL          cl_intel_subgroups, whose kernels say how wide they are
//   PANOPLY_PTX            NVIDIA's compiler, which has the instructions but no words for them
//   PANOPLY_PTX_TILES      besides, the matrix units of compute capability 8.0 and above

#if !defined(PANOPLY_NO_F64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#if defined(PANOPLY_SUBGROUPS)
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif

typedef char i8;
typedef uchar u8;
typedef short i16;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef float f32;
#if defined(PANOPLY_NO_F64)
// Where the device has none, what is only computed in f64 is computed in f32; tensors of f64 are not supported there.
typedef float f64;
#else
typedef double f64;
#endif
// Every version converts f16 in memory, whether it computes with it or not.
#define OWN_F16
static inline __attribute__((always_inline)) f32 f16_to_f32(u16 x) { return vload_half(0, (const __private half *)&x); }
static inline __attribute__((always_inline)) u16 f32_to_f16(f32 x)
{
    u16 bits;
    vstore_half_rte(x, 0, (__private half *)&bits);
    return bits;
}
// A keyword of OpenCL's that kernels have as a name.
#define half half_of

#if defined(PANOPLY_INTEL)
#define KERNEL __attribute__((intel_reqd_sub_group_size(WARP))) __kernel void
#else
#define KERNEL __kernel void
#endif
#define DEVICE static inline __attribute__((always_inline))
#define NOINLINE static
#define GLOBAL __global
#define LOCAL __local
#define SHARED __local
#define RESTRICT restrict
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#define LAUNCH_BOUNDS(threads, blocks) __attribute__((reqd_work_group_size(threads, 1, 1)))
#define LAUNCH_UP_TO(threads)
// Memory has no addresses: what tables lead to lies in one buffer.
#define PLACE(base, word) ((base) + (word))
#define DYNAMIC_SHARED(type, name) LOCAL type *name = (LOCAL type *)panoply_shared
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#if defined(PANOPLY_UNROLLS)
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_2 _Pragma("unroll 2")
#define UNROLL_BY_4 _Pragma("unroll 4")
#else
// A compiler for processors unrolls where it pays; explicit pragmas make it slow.
#define UNROLL
#define UNROLL_BY_2
#define UNROLL_BY_4
#endif

DEVICE u32 thread_x(void) { return (u32)get_local_id(0); }
DEVICE u32 thread_y(void) { return (u32)get_local_id(1); }
DEVICE u32 thread_z(void) { return (u32)get_local_id(2); }
DEVICE u32 block_x(void) { return (u32)get_group_id(0); }
DEVICE u32 block_y(void) { return (u32)get_group_id(1); }
DEVICE u32 block_z(void) { return (u32)get_group_id(2); }
DEVICE u32 block_size_x(void) { return (u32)get_local_size(0); }
DEVICE u32 block_size_y(void) { return (u32)get_local_size(1); }
DEVICE u32 block_size_z(void) { return (u32)get_local_size(2); }
DEVICE u32 grid_size_x(void) { return (u32)get_num_groups(0); }
DEVICE u32 grid_size_y(void) { return (u32)get_num_groups(1); }
DEVICE u32 grid_size_z(void) { return (u32)get_num_groups(2); }

DEVICE u32 f32_bits(f32 x) { return as_uint(x); }
DEVICE f32 bits_f32(u32 x) { return as_float(x); }
#if defined(PANOPLY_NO_F64)
// A launch passes an f64 by its bits. It becomes the nearest f32; a number that is too small becomes zero.
DEVICE u64 f64_bits(f64 x) { return as_uint(x); }
DEVICE f64 bits_f64(u64 x)
{
    u32 sign = (u32)(x >> 32) & 0x80000000u, exponent = (u32)(x >> 52) & 0x7ffu, fraction = (u32)(x >> 29) & 0x7fffffu;
    if (exponent == 0x7ffu) return as_float(sign | 0x7f800000u | ((x & 0xfffffffffffffUL) != 0 ? 0x400000u : 0u));
    if (exponent < 897u) return as_float(sign);
    if (exponent > 1150u) return as_float(sign | 0x7f800000u);
    u32 rest = (u32)x & 0x1fffffffu;
    u32 up = rest > 0x10000000u || (rest == 0x10000000u && (fraction & 1u));
    return as_float(sign | (((exponent - 896u) << 23 | fraction) + up));
}
#else
DEVICE u64 f64_bits(f64 x) { return as_ulong(x); }
DEVICE f64 bits_f64(u64 x) { return as_double(x); }
#endif
DEVICE u32 count_ones(u32 x) { return popcount(x); }
DEVICE u32 leading_zeros(u32 x) { return clz(x); }
DEVICE u32 reverse_bits(u32 x)
{
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    x = (x >> 8 & 0x00ff00ffu) | (x & 0x00ff00ffu) << 8;
    return x >> 16 | x << 16;
}

// --------------------------------------------------------------------------------------------------------- warps
#if WARP == 1
typedef u32 lane_mask;
DEVICE u32 lane(void) { return 0; }
DEVICE u32 shuffle_u32(u32 x, u32 from) { return x; }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return x; }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return x; }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return x; }
DEVICE lane_mask ballot_of(i32 predicate) { return (lane_mask)predicate; }
#define WARP_BARRIER()
#define OWN_MATCH_BYTE
DEVICE lane_mask match_byte(u32 x) { return 1; }
#else
#if WARP == 64
typedef u64 lane_mask;
#else
typedef u32 lane_mask;
#endif
DEVICE u32 lane(void) { return (u32)get_local_id(0) & (WARP - 1u); }
#if defined(PANOPLY_PTX)
DEVICE u32 shuffle_u32(u32 x, u32 from)
{
    u32 y;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(from));
    return y;
}
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask)
{
    u32 y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(mask));
    return y;
}
DEVICE u32 shuffle_up_u32(u32 x, u32 by)
{
    u32 y;
    asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(y) : "r"(x), "r"(by));
    return y;
}
DEVICE u32 shuffle_down_u32(u32 x, u32 by)
{
    u32 y;
    asm volatile("shfl.sync.down.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(by));
    return y;
}
DEVICE lane_mask ballot_of(i32 predicate)
{
    u32 y;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(y) : "r"(predicate));
    return y;
}
#define WARP_BARRIER() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
#elif defined(PANOPLY_INTEL)
DEVICE u32 shuffle_u32(u32 x, u32 from) { return intel_sub_group_shuffle(x, from); }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return intel_sub_group_shuffle_xor(x, mask); }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return intel_sub_group_shuffle(x, lane() >= by ? lane() - by : lane()); }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return intel_sub_group_shuffle(x, lane() + by < WARP ? lane() + by : lane()); }
DEVICE lane_mask ballot_of(i32 predicate)
{
    lane_mask votes = 0;
    for (u32 from = 0; from < WARP; from++) votes |= (lane_mask)intel_sub_group_shuffle((u32)predicate, from) << from;
    return votes;
}
#define WARP_BARRIER() sub_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
DEVICE u32 shuffle_u32(u32 x, u32 from) { return sub_group_shuffle(x, from); }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return sub_group_shuffle_xor(x, mask); }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return sub_group_shuffle(x, lane() >= by ? lane() - by : lane()); }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return sub_group_shuffle(x, lane() + by < WARP ? lane() + by : lane()); }
DEVICE lane_mask ballot_of(i32 predicate)
{
    uint4 votes = sub_group_ballot(predicate);
#if WARP == 64
    return (u64)votes.y << 32 | votes.x;
#else
    return votes.x;
#endif
}
#define WARP_BARRIER() sub_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#endif
#endif
#define ballot(predicate) ballot_of((predicate) ? 1 : 0)

// -------------------------------------------------------------------------------------------------------- memory
#define ATOMIC_ADD(p, v) atomic_add(p, v)
#define ATOMIC_MAX(p, v) atomic_max(p, v)
#define ATOMIC_MIN(p, v) atomic_min(p, v)
#define ATOMIC_OR(p, v) atomic_or(p, v)
#define ATOMIC_CAS(p, expected, v) atomic_cmpxchg(p, expected, v)
#define ATOMIC_EXCHANGE(p, v) atomic_xchg(p, v)

#if defined(PANOPLY_PTX)
#define FENCE() asm volatile("membar.gl;" ::: "memory")
#elif defined(__opencl_c_atomic_scope_device) && defined(__opencl_c_atomic_order_seq_cst)
#define FENCE() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_seq_cst, memory_scope_device)
#elif __OPENCL_C_VERSION__ >= 200 && __OPENCL_C_VERSION__ < 300
#define FENCE() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_seq_cst, memory_scope_device)
#else
// OpenCL 1.2 promises less than it does: on the devices that have no other fence this one reaches the whole device.
#define FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

#define OWN_COHERENT
DEVICE u32 load_coherent_u32(GLOBAL const u32 *p) { return *(volatile GLOBAL const u32 *)p; }
DEVICE u64 load_coherent_u64(GLOBAL const u64 *p) { return *(volatile GLOBAL const u64 *)p; }
DEVICE void store_coherent_u64(GLOBAL u64 *p, u64 v) { *(volatile GLOBAL u64 *)p = v; }
DEVICE u32 atomic_add_ordered(GLOBAL u32 *p, u32 v)
{
    FENCE();
    u32 before = atomic_add(p, v);
    FENCE();
    return before;
}

// --------------------------------------------------------------------------------------------------------- numbers
#define OWN_ROUNDED
#if defined(PANOPLY_PTX)
#define ROUNDED(name, instruction, F, constraint)                                                 \
    DEVICE F name(F a, F b)                                                                       \
    {                                                                                             \
        F y;                                                                                      \
        asm(instruction " %0, %1, %2;" : "=" constraint(y) : constraint(a), constraint(b));       \
        return y;                                                                                 \
    }
ROUNDED(add_f32, "add.rn.f32", f32, "f")
ROUNDED(sub_f32, "sub.rn.f32", f32, "f")
ROUNDED(mul_f32, "mul.rn.f32", f32, "f")
ROUNDED(add_f64, "add.rn.f64", f64, "d")
ROUNDED(sub_f64, "sub.rn.f64", f64, "d")
ROUNDED(mul_f64, "mul.rn.f64", f64, "d")
#else
#define ROUNDED(name, F, expression)                                                              \
    DEVICE F name(F a, F b)                                                                       \
    {                                                                                             \
        _Pragma("OPENCL FP_CONTRACT OFF") F y = expression;                                       \
        return y;                                                                                 \
    }
ROUNDED(add_f32, f32, a + b)
ROUNDED(sub_f32, f32, a - b)
ROUNDED(mul_f32, f32, a *b)
ROUNDED(add_f64, f64, a + b)
ROUNDED(sub_f64, f64, a - b)
ROUNDED(mul_f64, f64, a *b)
#endif

#if defined(PANOPLY_PTX_TILES)
#define OWN_TILE16
#define OWN_TILE16_PLACES
// Four matrices of 8 x 8: rows 0 to 7 and 8 to 15 of the first eight numbers in depth, then of the others.
typedef struct {
    u32 parts[4];
} tile16;
DEVICE tile16 load_tile16(LOCAL const u16 *rows, u32 step)
{
    tile16 tile;
    LOCAL const u16 *line = rows + lane() % 16 * step + lane() / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(tile.parts[0]), "=r"(tile.parts[1]), "=r"(tile.parts[2]), "=r"(tile.parts[3])
        : "r"((u32)(u64)line)
        : "memory");
    return tile;
}
// The first four sums are of the columns 0 to 7, the others of the columns 8 to 15.
DEVICE u32 tile16_row(u32 i) { return lane() / 4 + i % 4 / 2 * 8; }
DEVICE u32 tile16_col(u32 i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }
#define MULTIPLY_HALF(sums, types, a, low, high)                                                                              \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"((sums)[0]), "+f"((sums)[1]), "+f"((sums)[2]), "+f"((sums)[3])                                                  \
        : "r"(a.parts[0]), "r"(a.parts[1]), "r"(a.parts[2]), "r"(a.parts[3]), "r"(low), "r"(high))
#define MULTIPLY_TILE16(name, types)                                       \
    DEVICE void name(f32 *sums, tile16 a, tile16 b)                        \
    {                                                                      \
        MULTIPLY_HALF(sums, types, a, b.parts[0], b.parts[2]);             \
        MULTIPLY_HALF(sums + 4, types, a, b.parts[1], b.parts[3]);         \
    }
MULTIPLY_TILE16(multiply_tile16_f16, "f16.f16")
MULTIPLY_TILE16(multiply_tile16_bf16, "bf16.bf16")
#endif

// OpenCL's functions have the same name for every type; what kernels call with an f at the end is f32.
#define expf(x) exp((f32)(x))
#define exp2f(x) exp2((f32)(x))
#define logf(x) log((f32)(x))
#define sqrtf(x) sqrt((f32)(x))
#define rsqrtf(x) rsqrt((f32)(x))
#define tanhf(x) tanh((f32)(x))
#define erff(x) erf((f32)(x))
#define erfcf(x) erfc((f32)(x))
#define floorf(x) floor((f32)(x))
#define ceilf(x) ceil((f32)(x))
#define rintf(x) rint((f32)(x))
#define sinf(x) sin((f32)(x))
#define cosf(x) cos((f32)(x))
#define fabsf(x) fabs((f32)(x))
#define fmaxf(x, y) fmax((f32)(x), (f32)(y))
#define fminf(x, y) fmin((f32)(x), (f32)(y))
#define fmodf(x, y) fmod((f32)(x), (f32)(y))
#define fmaf(x, y, z) fma((f32)(x), (f32)(y), (f32)(z))
// OpenCL's own takes its arguments in another way, and may be a macro.
#undef sincos
#define sincos(x, sine, cosine) (*(sine) = sin((f64)(x)), *(cosine) = cos((f64)(x)))
DEVICE void sincospif(f32 x, f32 *sine, f32 *cosine)
{
    *sine = sinpi(x);
    *cosine = cospi(x);
}

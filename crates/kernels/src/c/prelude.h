// The prelude of the C dialect: the words that kernels use, for each compiler.
//
//   KERNEL                 before an entry: KERNEL name(args) { … }; it returns nothing
//   DEVICE                 before a function that kernels call
//   GLOBAL                 before a pointer to device memory
//   SHARED                 before an array of the block's memory
//   DYNAMIC_SHARED(T, x)   the block's memory whose size the launch gives, as T *x
//   thread_x() …           place of the thread in its block, block_x() … of the block in the grid,
//   block_size_x() …       threads in a block, grid_size_x() … blocks in the grid (also _y, _z)
//   BARRIER()              waits for all threads of the block; WARP_BARRIER() for those of the warp
//   lane(), WARP           place in the warp, and its width
//   shuffle_…              values of other lanes; every lane of the warp must take part
//   match_byte(x)          the lanes whose lowest eight bits are the same; every lane must take part
//   ATOMIC_…               on device or block memory, relaxed; return the old value
//   FENCE()                what was written before is seen by the whole device before what is written after
//   LOAD_VOLATILE(p)       a load that is not taken from a register or a stale cache
//   gate                   a word of the block's memory that threads wait for, phase after phase: gate_prepare(p, arrivals) says how
//                          many gate_arrive(p) end a phase; gate_wait(p, parity) waits for the end of one, the first of which
//                          has the parity 0, while that before the first is over
//   UNROLL                 before a loop with a known number of rounds
//   PERSISTENT             before a variable of the file that keeps its value between launches; zero at first
//
// f16 and bf16 are u16 in memory and f32 in registers.

#if defined(PANOPLY_CUDA)

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name)                      \
    extern __shared__ __align__(16) u8 dynamic_shared[]; \
    type *name = (type *)dynamic_shared
#define RESTRICT __restrict__
#define ALIGNED(bytes) __align__(bytes)
#define LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define UNROLL _Pragma("unroll")
#define WARP 32
#define BARRIER() __syncthreads()
#define WARP_BARRIER() __syncwarp()
#define FENCE() __threadfence()
#define LOAD_VOLATILE(p) load_volatile(p)
#define STORE_VOLATILE(p, v) store_volatile(p, v)

template <class V> DEVICE V load_volatile(const V *p) { return *(const volatile V *)p; }
template <class V, class W> DEVICE void store_volatile(V *p, W v) { *(volatile V *)p = (V)v; }

DEVICE u32 thread_x(void) { return threadIdx.x; }
DEVICE u32 thread_y(void) { return threadIdx.y; }
DEVICE u32 thread_z(void) { return threadIdx.z; }
DEVICE u32 block_x(void) { return blockIdx.x; }
DEVICE u32 block_y(void) { return blockIdx.y; }
DEVICE u32 block_z(void) { return blockIdx.z; }
DEVICE u32 block_size_x(void) { return blockDim.x; }
DEVICE u32 block_size_y(void) { return blockDim.y; }
DEVICE u32 block_size_z(void) { return blockDim.z; }
DEVICE u32 grid_size_x(void) { return gridDim.x; }
DEVICE u32 grid_size_y(void) { return gridDim.y; }
DEVICE u32 grid_size_z(void) { return gridDim.z; }
DEVICE u32 lane(void) { return threadIdx.x & 31u; }

DEVICE u32 shuffle_u32(u32 x, u32 from) { return __shfl_sync(0xffffffffu, x, from); }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return __shfl_up_sync(0xffffffffu, x, by); }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return __shfl_down_sync(0xffffffffu, x, by); }
// CUDA has a ballot(bool) of its own, without synchronisation, which a comparison would select.
DEVICE u32 ballot_of(i32 predicate) { return __ballot_sync(0xffffffffu, predicate); }
#define ballot(predicate) ballot_of((i32)(predicate))

DEVICE u32 f32_bits(f32 x) { return __float_as_uint(x); }
DEVICE f32 bits_f32(u32 x) { return __uint_as_float(x); }
DEVICE u64 f64_bits(f64 x) { return (u64)__double_as_longlong(x); }
DEVICE f64 bits_f64(u64 x) { return __longlong_as_double((i64)x); }
DEVICE u32 count_ones(u32 x) { return (u32)__popc(x); }
DEVICE u32 leading_zeros(u32 x) { return (u32)__clz((i32)x); }
DEVICE u32 reverse_bits(u32 x) { return __brev(x); }

// The lanes of the warp whose lowest eight bits are the same as this lane's.
DEVICE u32 match_byte(u32 x)
{
    u32 same = 0xffffffffu;
    UNROLL for (u32 bit = 1; bit < 256; bit *= 2) {
        u32 votes;
        // Lanes without the bit look for those without it.
        asm("{ .reg .pred p; .reg .b32 b;\n"
            "  and.b32 b, %1, %2; setp.ne.u32 p, b, 0;\n"
            "  vote.sync.ballot.b32 %0, p, 0xffffffff;\n"
            "  @!p not.b32 %0, %0; }"
            : "=r"(votes)
            : "r"(x), "r"(bit));
        same &= votes;
    }
    return same;
}

#define ATOMIC_ADD(p, v) atomicAdd(p, v)
#define ATOMIC_MAX(p, v) atomicMax(p, v)
#define ATOMIC_MIN(p, v) atomicMin(p, v)
#define ATOMIC_OR(p, v) atomicOr(p, v)
#define ATOMIC_CAS(p, expected, v) atomicCAS(p, expected, v)
#define ATOMIC_EXCHANGE(p, v) atomicExch(p, v)

DEVICE f32 f16_to_f32(u16 x)
{
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

DEVICE u16 f32_to_f16(f32 x)
{
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// Search and TopK: see the list at their host versions.
#define PERSISTENT static __device__
#define NOINLINE static __device__ __noinline__
#define UNROLL_BY_2 _Pragma("unroll 2")
DEVICE u32 atomic_add_ordered(GLOBAL u32 *p, u32 v)
{
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
    return before;
}
DEVICE u32 reduce_or_u32(u32 x) { return __reduce_or_sync(0xffffffffu, x); }
DEVICE i32 dot4_i8(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void copy_async_16(void *target, GLOBAL const void *source, int present)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source),
        "r"(present ? 16 : 0) : "memory");
}
typedef u64 gate;
DEVICE void gate_prepare(gate *p, u32 arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(p)), "r"(arrivals) : "memory");
}
DEVICE void gate_arrive(gate *p)
{
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(p)) : "memory");
}
// Arrives when all that this thread has started to copy so far is there.
DEVICE void gate_arrive_when_copied(gate *p)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(p)) : "memory");
}
DEVICE void gate_wait(gate *p, u32 parity)
{
#if __CUDA_ARCH__ >= 900
#define GATE_TEST "mbarrier.try_wait.parity.shared.b64"
#else
#define GATE_TEST "mbarrier.test_wait.parity.shared.b64"
#endif
    asm volatile("{ .reg .pred over; again: " GATE_TEST " over, [%0], %1; @!over bra again; }" ::"r"(shared_address(p)), "r"(parity) : "memory");
}
#define COPY_ASYNC_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_ASYNC_WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")
#define TENSOR_FENCE() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
DEVICE void load_matrices(u32 *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
#define MULTIPLY_TILE(name, shape, types, number, letter)                                                              \
    DEVICE void name(number *d, const u32 *a, const u32 *b)                                                             \
    {                                                                                                                  \
        asm("mma.sync.aligned." shape ".row.col." types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3])                                    \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                        \
    }
MULTIPLY_TILE(multiply_f16, "m16n8k16", "f32.f16.f16.f32", f32, "f")
MULTIPLY_TILE(multiply_bf16, "m16n8k16", "f32.bf16.bf16.f32", f32, "f")
MULTIPLY_TILE(multiply_f32, "m16n8k8", "f32.tf32.tf32.f32", f32, "f")
MULTIPLY_TILE(multiply_i8, "m16n8k32", "s32.s8.s8.s32", i32, "r")

#elif defined(PANOPLY_HOST)

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

#else
#error "the prelude does not know this compiler"
#endif

// Everything below is the same for every compiler.

typedef struct ALIGNED(8) { f32 re, im; } complex64;
typedef struct ALIGNED(8) { u32 x, y; } u32x2;
typedef struct ALIGNED(16) { u32 x, y, z, w; } u32x4;
typedef struct ALIGNED(16) { f32 x, y, z, w; } f32x4;

// A load of what will not be read again soon.
#if defined(PANOPLY_CUDA)
DEVICE u32x4 load_stream(GLOBAL const u32x4 *p)
{
    u32x4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
// A load that is not put off until its value is needed.
DEVICE f32x4 load_now(GLOBAL const f32x4 *p)
{
    f32x4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
#else
DEVICE u32x4 load_stream(GLOBAL const u32x4 *p) { return *p; }
DEVICE f32x4 load_now(GLOBAL const f32x4 *p) { return *p; }
#endif

DEVICE f32 bf16_to_f32(u16 x) { return bits_f32((u32)x << 16); }

DEVICE u16 f32_to_bf16(f32 x)
{
    u32 bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

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

// CUDA's side of the dialect, for NVRTC. This file has only the words that are instructions of the GPU. Each of them defines
// OWN_…, which takes the place of the portable body in prelude.h.

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
#define LOCAL
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name)                      \
    extern __shared__ __align__(16) u8 dynamic_shared[]; \
    type *name = (type *)dynamic_shared
#define RESTRICT __restrict__
#define ALIGNED(bytes) __align__(bytes)
#define LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define LAUNCH_UP_TO(threads) __launch_bounds__(threads, 1)
#define UNROLL _Pragma("unroll")
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
DEVICE u32 lane(void) { return threadIdx.x & (WARP - 1u); }

DEVICE u32 shuffle_u32(u32 x, u32 from) { return __shfl_sync(0xffffffffu, x, from); }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return __shfl_up_sync(0xffffffffu, x, by); }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return __shfl_down_sync(0xffffffffu, x, by); }
typedef u32 lane_mask;
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

#define OWN_MATCH_BYTE
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

#define OWN_F16
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

#define PERSISTENT static __device__
#define NOINLINE static __device__ __noinline__
#define UNROLL_BY_2 _Pragma("unroll 2")
#define UNROLL_BY_4 _Pragma("unroll 4")
#define ROLLED _Pragma("unroll 1")
#define FIXED const __grid_constant__

#define OWN_ROUNDED
DEVICE f32 add_f32(f32 a, f32 b) { return __fadd_rn(a, b); }
DEVICE f32 sub_f32(f32 a, f32 b) { return __fsub_rn(a, b); }
DEVICE f32 mul_f32(f32 a, f32 b) { return __fmul_rn(a, b); }
DEVICE f64 add_f64(f64 a, f64 b) { return __dadd_rn(a, b); }
DEVICE f64 sub_f64(f64 a, f64 b) { return __dsub_rn(a, b); }
DEVICE f64 mul_f64(f64 a, f64 b) { return __dmul_rn(a, b); }

#define OWN_EXP_BELOW
DEVICE f32 exp_below(f32 x)
{
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

#define OWN_EXP2_BELOW
DEVICE f32 exp2_below(f32 x)
{
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define OWN_RECIPROCAL_NEAR
DEVICE f32 reciprocal_near(f32 x)
{
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define OWN_COHERENT
DEVICE u32 load_coherent_u32(GLOBAL const u32 *p)
{
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEVICE u64 load_coherent_u64(GLOBAL const u64 *p)
{
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
DEVICE void store_coherent_u64(GLOBAL u64 *p, u64 v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEVICE u32 atomic_add_ordered(GLOBAL u32 *p, u32 v)
{
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
    return before;
}

#define OWN_LOADS
typedef struct ALIGNED(16) { u32 x, y, z, w; } u32x4;
typedef struct ALIGNED(16) { f32 x, y, z, w; } f32x4;
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

#if __CUDA_ARCH__ >= 900
#define OWN_MIN2
DEVICE u32 min2_u16(u32 a, u32 b)
{
    u32 y;
    asm("min.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
#endif

#define OWN_DOT4
DEVICE i32 dot4_i8(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }

// From compute capability 8.0 on.
#if __CUDA_ARCH__ >= 800
#define OWN_REDUCE_OR
DEVICE u32 reduce_or_u32(u32 x) { return __reduce_or_sync(0xffffffffu, x); }
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

#define OWN_PACKS
DEVICE u32 pack_f16(f32 a, f32 b)
{
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
    return y;
}
DEVICE u32 pack_bf16(f32 a, f32 b)
{
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
    return y;
}

#define OWN_COPIES
DEVICE void copy_async_16(void *target, GLOBAL const void *source, int present)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source),
        "r"(present ? 16 : 0) : "memory");
}
#define COPY_ASYNC_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_ASYNC_WAIT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")

// Gates, and tiles that a warp multiplies: Properties::matrix_tiles of the driver.
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
#define TENSOR_FENCE() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
DEVICE void load_matrices(u32 *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_matrices_turned(u32 *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
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
#endif

// HIP's side of the dialect, for hiprtc. Warps have 64 lanes or 32, as the architecture has: WARP says which. Words that are instructions of AMD's
// GPUs stand behind __AMDGCN__ and define OWN_…; the rest are words that HIP shares with CUDA. Tiles of 16 × 16 that a warp multiplies
// are those of MFMA (gfx90a, gfx94, gfx95: warps of 64) and WMMA (gfx11: warps of 32). There are no asynchronous copies: plain loads and stores take their place.

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

#if !defined(HIP_DYNAMIC_SHARED)
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ __attribute__((aligned(16))) type name[];
#endif

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define LOCAL
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name)           \
    HIP_DYNAMIC_SHARED(u8, dynamic_shared)    \
    type *name = (type *)dynamic_shared
#define RESTRICT __restrict__
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
// HIP's second bound counts warps of a quarter of a multiprocessor, and is the compiler's to choose.
#define LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads)
#define LAUNCH_UP_TO(threads) __launch_bounds__(threads)
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_2 _Pragma("unroll 2")
#define UNROLL_BY_4 _Pragma("unroll 4")
#define ROLLED _Pragma("unroll 1")
#define PERSISTENT static __device__
#define NOINLINE static __device__ __attribute__((noinline))
#define BARRIER() __syncthreads()
// Lanes of a warp go in step; what they wrote to the block's memory must not be moved across.
#define WARP_BARRIER() warp_barrier()
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

DEVICE void warp_barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

DEVICE u32 shuffle_u32(u32 x, u32 from) { return __shfl(x, (i32)from); }
DEVICE u32 shuffle_xor_u32(u32 x, u32 mask) { return __shfl_xor(x, (i32)mask); }
DEVICE u32 shuffle_up_u32(u32 x, u32 by) { return __shfl_up(x, by); }
DEVICE u32 shuffle_down_u32(u32 x, u32 by) { return __shfl_down(x, by); }
// HIP's ballot has 64 bits for both widths of warps.
#if WARP == 64
typedef u64 lane_mask;
#else
typedef u32 lane_mask;
#endif
DEVICE lane_mask ballot(i32 predicate) { return (lane_mask)__ballot(predicate); }

DEVICE u32 f32_bits(f32 x) { return __float_as_uint(x); }
DEVICE f32 bits_f32(u32 x) { return __uint_as_float(x); }
DEVICE u64 f64_bits(f64 x) { return (u64)__double_as_longlong(x); }
DEVICE f64 bits_f64(u64 x) { return __longlong_as_double((i64)x); }
DEVICE u32 count_ones(u32 x) { return (u32)__popc(x); }
DEVICE u32 leading_zeros(u32 x) { return (u32)__clz((i32)x); }
DEVICE u32 reverse_bits(u32 x) { return __brev(x); }

#define ATOMIC_ADD(p, v) atomicAdd(p, v)
#define ATOMIC_MAX(p, v) atomicMax(p, v)
#define ATOMIC_MIN(p, v) atomicMin(p, v)
#define ATOMIC_OR(p, v) atomicOr(p, v)
#define ATOMIC_CAS(p, expected, v) atomicCAS(p, expected, v)
#define ATOMIC_EXCHANGE(p, v) atomicExch(p, v)

// hiprtc contracts sums of products unless a pragma forbids it.
#define OWN_ROUNDED
#define ROUNDED(name, type, sign)                     \
    DEVICE type name(type a, type b)                  \
    {                                                 \
        _Pragma("clang fp contract(off)") return a sign b; \
    }
ROUNDED(add_f32, f32, +)
ROUNDED(sub_f32, f32, -)
ROUNDED(mul_f32, f32, *)
ROUNDED(add_f64, f64, +)
ROUNDED(sub_f64, f64, -)
ROUNDED(mul_f64, f64, *)

// Loads and stores that are the whole device's are atomic ones.
#define OWN_COHERENT
DEVICE u32 load_coherent_u32(GLOBAL const u32 *p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u64 load_coherent_u64(GLOBAL const u64 *p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE void store_coherent_u64(GLOBAL u64 *p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u32 atomic_add_ordered(GLOBAL u32 *p, u32 v)
{
    return __hip_atomic_fetch_add(p, v, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}

#if defined(__AMDGCN__)
#define OWN_F16
typedef union { u16 bits; _Float16 number; } f16_bits;
DEVICE f32 f16_to_f32(u16 x)
{
    f16_bits y;
    y.bits = x;
    return (f32)y.number;
}
DEVICE u16 f32_to_f16(f32 x)
{
    f16_bits y;
    y.number = (_Float16)x;
    return y.bits;
}

#if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || \
    defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) || defined(__gfx1032__) || \
    defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || defined(__gfx1036__)
#define OWN_DOT4
DEVICE i32 dot4_i8(u32 a, u32 b, i32 sum) { return __builtin_amdgcn_sdot4((i32)a, (i32)b, sum, false); }
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__)
#define OWN_DOT4
DEVICE i32 dot4_i8(u32 a, u32 b, i32 sum) { return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, sum, false); }
#endif

// A lane of MFMA has four numbers in depth of one row of A, and of one column of B; of WMMA all sixteen, and the lanes 16 further on the same
// ones. The sums lie as tile16_row says.
#if WARP == 64 && (defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__))
#define OWN_TILE16
typedef _Float16 mfma_f16 __attribute__((ext_vector_type(4)));
typedef short mfma_bf16 __attribute__((ext_vector_type(4)));
typedef f32 mfma_sums __attribute__((ext_vector_type(4)));
typedef union {
    u64 bits;
    mfma_f16 f16;
    mfma_bf16 bf16;
} tile16;
DEVICE tile16 load_tile16(LOCAL const u16 *rows, u32 step)
{
    tile16 tile;
    tile.bits = *(LOCAL const u64 *)(rows + lane() % 16 * step + lane() / 16 * 4);
    return tile;
}
#define MULTIPLY_TILE16(name, type, instruction)                                   \
    DEVICE void name(f32 *sums, tile16 a, tile16 b)                                \
    {                                                                              \
        mfma_sums four = {sums[0], sums[1], sums[2], sums[3]};                     \
        four = instruction(a.type, b.type, four, 0, 0, 0);                         \
        sums[0] = four.x, sums[1] = four.y, sums[2] = four.z, sums[3] = four.w;    \
    }
MULTIPLY_TILE16(multiply_tile16_f16, f16, __builtin_amdgcn_mfma_f32_16x16x16f16)
MULTIPLY_TILE16(multiply_tile16_bf16, bf16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
#elif WARP == 32 && (defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__))
#define OWN_TILE16
typedef _Float16 wmma_f16 __attribute__((ext_vector_type(16)));
typedef short wmma_bf16 __attribute__((ext_vector_type(16)));
typedef u32 wmma_bits __attribute__((ext_vector_type(4)));
typedef f32 wmma_sums __attribute__((ext_vector_type(8)));
typedef union {
    wmma_bits half[2];
    wmma_f16 f16;
    wmma_bf16 bf16;
} tile16;
DEVICE tile16 load_tile16(LOCAL const u16 *rows, u32 step)
{
    LOCAL const wmma_bits *row = (LOCAL const wmma_bits *)(rows + lane() % 16 * step);
    tile16 tile;
    tile.half[0] = row[0], tile.half[1] = row[1];
    return tile;
}
#define MULTIPLY_TILE16(name, type, instruction)                                                                   \
    DEVICE void name(f32 *sums, tile16 a, tile16 b)                                                                \
    {                                                                                                              \
        wmma_sums eight = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]};                \
        eight = instruction(a.type, b.type, eight);                                                                \
        UNROLL for (u32 i = 0; i < 8; i++) sums[i] = eight[i];                                                     \
    }
MULTIPLY_TILE16(multiply_tile16_f16, f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
MULTIPLY_TILE16(multiply_tile16_bf16, bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32)
#endif
#endif

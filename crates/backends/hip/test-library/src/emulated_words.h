// The words of HIP's compiler that hip.h uses, on threads that are fibres: behind emulation.h, before the text that hiprtc was given.

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline
#define __shared__ BLOCK_MEMORY
#define __launch_bounds__(...)
#define HIP_DYNAMIC_SHARED(type, name) type *name = (type *)emulation::dynamic_shared;
#define threadIdx emulation::thread
#define blockIdx emulation::block
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

#define __syncthreads() emulation::block_barrier()
#define __threadfence() ((void)0)
#define __builtin_amdgcn_fence(order, scope) ((void)0)
#define __builtin_amdgcn_wave_barrier() emulation::warp_barrier()
#define __HIP_MEMORY_SCOPE_AGENT 4
#define __hip_atomic_load(p, order, scope) (*(p))
#define __hip_atomic_store(p, v, order, scope) (*(p) = (v))
#define __hip_atomic_fetch_add(p, v, order, scope) atomicAdd(p, v)

static inline u32 hip_lane() { return emulation::current % WARP; }
static inline u32 __shfl(u32 x, int from) { return emulation::exchange(x, (u32)from); }
static inline u32 __shfl_xor(u32 x, int mask) { return emulation::exchange(x, hip_lane() ^ (u32)mask); }
static inline u32 __shfl_up(u32 x, u32 by) { return emulation::exchange(x, hip_lane() >= by ? hip_lane() - by : hip_lane()); }
static inline u32 __shfl_down(u32 x, u32 by) { return emulation::exchange(x, hip_lane() + by < WARP ? hip_lane() + by : hip_lane()); }
static u64 __ballot(int predicate)
{
    using namespace emulation;
    u32 base = current / WARP * WARP;
    u64 mask = 0;
    slots[current] = predicate != 0;
    warp_barrier();
    for (u32 i = 0; i < WARP && base + i < threads; i++) mask |= (u64)slots[base + i] << i;
    warp_barrier();
    return mask;
}

static inline u32 __float_as_uint(f32 x) { u32 y; memcpy(&y, &x, 4); return y; }
static inline f32 __uint_as_float(u32 x) { f32 y; memcpy(&y, &x, 4); return y; }
static inline i64 __double_as_longlong(f64 x) { i64 y; memcpy(&y, &x, 8); return y; }
static inline f64 __longlong_as_double(i64 x) { f64 y; memcpy(&y, &x, 8); return y; }
static inline int __popc(u32 x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
static inline u32 __brev(u32 x)
{
    u32 y = 0;
    for (int i = 0; i < 32; i++) y |= ((x >> i) & 1u) << (31 - i);
    return y;
}
static inline f32 rsqrtf(f32 x) { return 1.0f / sqrtf(x); }
static inline f64 rsqrt(f64 x) { return 1.0 / sqrt(x); }
static inline void sincospif(f32 x, f32 *sine, f32 *cosine)
{
    *sine = (f32)sin(3.141592653589793238463 * (f64)x);
    *cosine = (f32)cos(3.141592653589793238463 * (f64)x);
}

template <class P, class V> static P atomicAdd(P *p, V v) { P old = *p; *p = (P)(old + v); return old; }
template <class P, class V> static P atomicMax(P *p, V v) { P old = *p; if (old < (P)v) *p = (P)v; return old; }
template <class P, class V> static P atomicMin(P *p, V v) { P old = *p; if ((P)v < old) *p = (P)v; return old; }
template <class P, class V> static P atomicOr(P *p, V v) { P old = *p; *p = (P)(old | v); return old; }
template <class P, class V> static P atomicExch(P *p, V v) { P old = *p; *p = (P)v; return old; }
template <class P, class V, class W> static P atomicCAS(P *p, V expected, W v)
{
    P old = *p;
    if (old == (P)expected) *p = (P)v;
    return old;
}

// A code object's facts about a kernel: the size of each argument.
template <class... A> static u32 sizes_of(void (*)(A...), u32 *sizes)
{
    const u32 each[] = {(u32)sizeof(A)..., 0};
    for (u32 i = 0; i < sizeof...(A); i++) sizes[i] = each[i];
    return sizeof...(A);
}
#define PANOPLY_HIP_ENTRY(name)                                                                                                   \
    extern "C" u32 panoply_sizes_##name(u32 *sizes) { return sizes_of(name, sizes); }                                             \
    extern "C" const char *panoply_launch_##name(void **arguments, const u32 *grid, const u32 *block, u64 shared)                 \
    {                                                                                                                             \
        emulation::bind(name, arguments);                                                                                         \
        emulation::prepare_checks(nullptr, 0, shared, 0);                                                                         \
        emulation::run_grid(grid, block, shared);                                                                                 \
        return emulation::failure[0] ? emulation::failure : nullptr;                                                              \
    }

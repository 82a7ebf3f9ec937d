// The words of HIP's compiler that hip.h uses, for NVRTC: before the text that hiprtc was given.

#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[];
#define __shfl(x, from) __shfl_sync(0xffffffffu, x, from)
#define __shfl_xor(x, mask) __shfl_xor_sync(0xffffffffu, x, mask)
#define __shfl_up(x, by) __shfl_up_sync(0xffffffffu, x, by)
#define __shfl_down(x, by) __shfl_down_sync(0xffffffffu, x, by)
#define __ballot(predicate) ((unsigned long long)__ballot_sync(0xffffffffu, predicate))
#define __builtin_amdgcn_fence(order, scope) __threadfence_block()
#define __builtin_amdgcn_wave_barrier() __syncwarp()
#define __ATOMIC_RELAXED 0
#define __ATOMIC_ACQUIRE 2
#define __ATOMIC_RELEASE 3
#define __ATOMIC_ACQ_REL 4
#define __HIP_MEMORY_SCOPE_AGENT 4
template <class V> static __device__ V hip_load(const V *p) { return *(const volatile V *)p; }
template <class V, class W> static __device__ void hip_store(V *p, W v) { *(volatile V *)p = (V)v; }
template <class V, class W> static __device__ V hip_add(V *p, W v)
{
    __threadfence();
    V before = atomicAdd(p, (V)v);
    __threadfence();
    return before;
}
#define __hip_atomic_load(p, order, scope) hip_load(p)
#define __hip_atomic_store(p, v, order, scope) hip_store(p, v)
#define __hip_atomic_fetch_add(p, v, order, scope) hip_add(p, v)

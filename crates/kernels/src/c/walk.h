// Places in layouts, and values that travel between threads as words.

// Before an argument whose address is taken: without it every thread would have a copy.
#if defined(PANOPLY_CUDA)
#define FIXED const __grid_constant__
#else
#define FIXED const
#endif

// As layout_offset, with 32-bit arithmetic where the number allows it, and without a division for the outermost axis.
DEVICE i64 place_of(const layout *view, u64 number)
{
    if (view->rank == 0) return 0;
    i64 offset = 0;
    u32 axis = 0;
    if (number >> 32) {
        for (; axis + 1 < view->rank && number >> 32; axis++) {
            u64 size = view->size[axis], rest = number / size;
            offset += (i64)(number - rest * size) * view->stride[axis];
            number = rest;
        }
    }
    if (axis + 1 < view->rank) {
        u32 small = (u32)number;
        for (; axis + 1 < view->rank; axis++) {
            u32 size = view->size[axis], rest = small / size;
            offset += (i64)(small - rest * size) * view->stride[axis];
            small = rest;
        }
        number = small;
    }
    return offset + (i64)number * view->stride[axis];
}

// What another block wrote before it fenced and said so: never from this processor's own cache.
#if defined(PANOPLY_CUDA)
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
#else
DEVICE u32 load_coherent_u32(GLOBAL const u32 *p) { return *p; }
DEVICE u64 load_coherent_u64(GLOBAL const u64 *p) { return *p; }
DEVICE void store_coherent_u64(GLOBAL u64 *p, u64 v) { *p = v; }
#endif

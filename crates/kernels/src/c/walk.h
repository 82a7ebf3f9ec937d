// Places in layouts, and values that travel between threads as words.

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
DEVICE u32 load_coherent_u32(GLOBAL const u32 *p) { return *(GLOBAL const volatile u32 *)p; }
DEVICE u64 load_coherent_u64(GLOBAL const u64 *p) { return *(GLOBAL const volatile u64 *)p; }
DEVICE void store_coherent_u64(GLOBAL u64 *p, u64 v) { *(GLOBAL volatile u64 *)p = v; }

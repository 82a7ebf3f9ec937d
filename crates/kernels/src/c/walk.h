// Places in layouts.

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

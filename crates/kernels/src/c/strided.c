// Copies between layouts. T is a word of the element's size: u8, u16, u32 or u64.

// The elements of a view, one after the other.
KERNEL LAUNCH_BOUNDS(256, 4) gather_view(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, layout view, u64 count)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        target[i] = source[layout_offset(&view, i)];
    }
}

// Copies rows into rows that are padded with zeros. T is the element as stored, THREADS the block's.

KERNEL LAUNCH_BOUNDS(THREADS, 2) pack_rows(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 rows, u32 dim, u32 padded)
{
    u64 step = (u64)grid_size_x() * (THREADS / WARP);
    for (u64 row = (u64)block_x() * (THREADS / WARP) + thread_x() / WARP; row < rows; row += step) {
        for (u32 i = lane(); i < padded; i += WARP) target[row * padded + i] = i < dim ? source[row * dim + i] : 0;
    }
}

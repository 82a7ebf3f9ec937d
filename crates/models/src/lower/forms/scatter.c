// Elements joined by all updates of theirs, one after the other: each thread has an element, and looks through the indices of its line.
KERNEL scatter(GLOBAL const f32 *x, GLOBAL const i32 *indices, GLOBAL const f32 *updates, GLOBAL f32 *y, u32 elements, u32 len, u32 inner, u32 count)
{
    for (u32 i = block_x() * block_size_x() + thread_x(); i < elements; i += grid_size_x() * block_size_x()) {
        u32 at = i % inner, row = i / inner % len, first = i / inner / len * count;
        f32 old = x[i];
        for (u32 k = 0; k < count; k++) {
            u32 place = (first + k) * inner + at;
            if ((u32)indices[place] == row) {
                f32 given = updates[place];
                old = JOIN;
            }
        }
        y[i] = old;
    }
}

// Planes of other sizes: each element is a sum of elements with weights, by a table for each axis. Places below zero are none. An
// axis with no entries stays as it is.
KERNEL resample(GLOBAL const f32 *x, GLOBAL const i32 *row_at, GLOBAL const f32 *row_of, GLOBAL const i32 *column_at, GLOBAL const f32 *column_of,
                GLOBAL f32 *y, u32 count, u32 height, u32 width, u32 rows, u32 columns, u32 row_entries, u32 column_entries)
{
    for (u32 i = block_x() * block_size_x() + thread_x(); i < count; i += grid_size_x() * block_size_x()) {
        u32 column = i % columns, row = i / columns % rows, plane = i / columns / rows;
        f32 sum = 0.0f;
        for (u32 r = 0; r < row_entries || r == 0; r++) {
            i32 from_row = row_entries == 0 ? (i32)row : row_at[row * row_entries + r];
            if (from_row < 0) continue;
            f32 part = 0.0f;
            for (u32 c = 0; c < column_entries || c == 0; c++) {
                i32 from = column_entries == 0 ? (i32)column : column_at[column * column_entries + c];
                if (from < 0) continue;
                f32 weight = column_entries == 0 ? 1.0f : column_of[column * column_entries + c];
                part += weight * x[(plane * height + (u32)from_row) * width + (u32)from];
            }
            sum += (row_entries == 0 ? 1.0f : row_of[row * row_entries + r]) * part;
        }
        y[i] = sum;
    }
}

// Planes of the elements of others, by a table of places for each axis. Places below zero are none: `fill` stands there. An axis with no
// entries stays as it is.
KERNEL frame(GLOBAL const STORED *x, GLOBAL const i32 *row_at, GLOBAL const i32 *column_at, GLOBAL STORED *y, u32 count, u32 height, u32 width,
             u32 rows, u32 columns, u32 row_entries, u32 column_entries, u32 fill)
{
    for (u32 i = block_x() * block_size_x() + thread_x(); i < count; i += grid_size_x() * block_size_x()) {
        u32 column = i % columns, row = i / columns % rows, plane = i / columns / rows;
        i32 from_row = row_entries == 0 ? (i32)row : row_at[row];
        i32 from_column = column_entries == 0 ? (i32)column : column_at[column];
        if (from_row < 0 || from_column < 0) y[i] = FILL;
        else y[i] = x[(plane * height + (u32)from_row) * width + (u32)from_column];
    }
}

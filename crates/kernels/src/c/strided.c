// Copies between layouts. T is a word of the element's size, or of several elements' where they lie together.

// The words of a view, one after the other.
#if defined(COPY_VIEW)
KERNEL LAUNCH_BOUNDS(256, 4) copy_view(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, FIXED layout view, u64 count)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        target[i] = source[place_of(&view, i)];
    }
}
#endif

// Where neighbours in the target are `source_step` apart in the source, and neighbours in the source are `target_step` apart in
// the target: squares of TILE × TILE pass through the block's memory, so that both sides are read and written in runs.
// Rows run along the target's neighbours, columns along the source's. A block has one square of one batch.
#if defined(TILE)
KERNEL LAUNCH_BOUNDS(256, 4) transpose_tiles(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, u64 rows, u64 columns,
    i64 source_step, i64 target_step, FIXED layout source_batch, FIXED layout target_batch, u32 row_tiles, u32 column_tiles)
{
    SHARED T square[TILE][TILE + 1];
    u32 tile = block_x() % (row_tiles * column_tiles), batch = block_x() / (row_tiles * column_tiles);
    u64 row = (u64)(tile % row_tiles) * TILE, column = (u64)(tile / row_tiles) * TILE;
    u32 x = thread_x() % TILE, y = thread_x() / TILE, step = 256 / TILE;
    source += place_of(&source_batch, batch);
    target += place_of(&target_batch, batch);
    UNROLL
    for (u32 r = 0; r < TILE; r += 256 / TILE) {
        if (row + r + y < rows && column + x < columns) {
            square[r + y][x] = source[(i64)(row + r + y) * source_step + (i64)(column + x)];
        }
    }
    BARRIER();
    UNROLL
    for (u32 c = 0; c < TILE; c += 256 / TILE) {
        if (column + c + y < columns && row + x < rows) {
            target[(i64)(column + c + y) * target_step + (i64)(row + x)] = square[x][c + y];
        }
    }
}
#endif

// Many copies as one launch: a row of blocks for each. Three words of the table say where it goes, where it comes from and how many bytes there are. Where the
// highest bit of the bytes is set it is a word that is moved: it is copied where it is not zero, and is zero from then on.
#if defined(COPY_MANY)
KERNEL LAUNCH_BOUNDS(256, 4) copy_many(GLOBAL u8 *base, GLOBAL const u64 *table)
{
    GLOBAL u8 *target = PLACE(base, table[3 * block_y()]);
    GLOBAL u8 *source = PLACE(base, table[3 * block_y() + 1]);
    u64 bytes = table[3 * block_y() + 2];
    u64 first = (u64)block_x() * 256 + thread_x(), step = (u64)grid_size_x() * 256;
    if (bytes >> 63) {
        u64 word = *(GLOBAL u64 *)source;
        if (first == 0 && word != 0) {
            *(GLOBAL volatile u64 *)target = word;
            *(GLOBAL u64 *)source = 0;
        }
        return;
    }
    u64 wide = (((u64)target | (u64)source) & 15) == 0 ? bytes / 16 : 0;
    for (u64 i = first; i < wide; i += step) {
        ((GLOBAL u32x4 *)target)[i] = ((GLOBAL const u32x4 *)source)[i];
    }
    for (u64 i = wide * 16 + first; i < bytes; i += step) {
        target[i] = source[i];
    }
}
#endif

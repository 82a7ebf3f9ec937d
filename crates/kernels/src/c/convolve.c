// 2-D convolutions: out[r][c] = Σ weights[a][b] in[first_row + r - a][first_column + c - b], where a plane is zero outside
// its borders. COMPLEX: elements are complex.

#if COMPLEX
typedef complex64 element;
#else
typedef f32 element;
#endif

// A block has a tile of outputs, of which each thread makes ROWS below each other; the kernel goes by pieces of CHUNK_ROWS × CHUNK_COLUMNS.
#define TILE 32u
#define ROWS 4u
#define CHUNK_ROWS 4u
#define CHUNK_COLUMNS 16u

typedef struct {
    u64 planes;
    u32 in_rows, in_columns, rows, columns, kernel_rows, kernel_columns, first_row, first_column;
    // Whether the kernel is turned round along both axes and conjugated.
    u32 is_turned, unused;
} shape;

DEVICE element none(void)
{
#if COMPLEX
    element zero = {0.0f, 0.0f};
    return zero;
#else
    return 0.0f;
#endif
}

DEVICE element with_product(element sum, element a, element b)
{
#if COMPLEX
    sum.re += a.re * b.re - a.im * b.im;
    sum.im += a.re * b.im + a.im * b.re;
    return sum;
#else
    return sum + a * b;
#endif
}

DEVICE element weight_at(GLOBAL const element *weights, const shape *all, u32 row, u32 column)
{
    if (!all->is_turned) return weights[(u64)row * all->kernel_columns + column];
    element weight = weights[(u64)(all->kernel_rows - 1 - row) * all->kernel_columns + all->kernel_columns - 1 - column];
#if COMPLEX
    weight.im = -weight.im;
#endif
    return weight;
}

#if TILES
KERNEL LAUNCH_BOUNDS(256, 2) convolve_tiles(GLOBAL element *RESTRICT target, GLOBAL const element *RESTRICT source,
    GLOBAL const element *RESTRICT weights, FIXED shape all)
{
    SHARED element inputs[TILE + CHUNK_ROWS - 1][TILE + CHUNK_COLUMNS];
    SHARED element chunk[CHUNK_ROWS][CHUNK_COLUMNS];
    u32 across = (all.columns + TILE - 1) / TILE, down = (all.rows + TILE - 1) / TILE, x = thread_x() % TILE, y = thread_x() / TILE * ROWS;
    u64 tiles = all.planes * down * across;
    for (u64 tile = block_x(); tile < tiles; tile += grid_size_x()) {
        u64 plane = tile / ((u64)down * across);
        u32 within = (u32)(tile % ((u64)down * across)), row = within / across * TILE, column = within % across * TILE;
        GLOBAL const element *from = source + plane * all.in_rows * all.in_columns;
        element sums[ROWS];
        UNROLL for (u32 i = 0; i < ROWS; i++) sums[i] = none();
        for (u32 a0 = 0; a0 < all.kernel_rows; a0 += CHUNK_ROWS) {
            for (u32 b0 = 0; b0 < all.kernel_columns; b0 += CHUNK_COLUMNS) {
                // The element at the tile's corner, which the chunk's last weight is for.
                i64 top = (i64)all.first_row + row - a0 - (CHUNK_ROWS - 1), left = (i64)all.first_column + column - b0 - (CHUNK_COLUMNS - 1);
                u32 width = TILE + CHUNK_COLUMNS - 1, room = (TILE + CHUNK_ROWS - 1) * width;
                BARRIER();
                for (u32 i = thread_x(); i < room; i += 256) {
                    i64 r = top + i / width, c = left + i % width;
                    u32 is_in = r >= 0 && r < (i64)all.in_rows && c >= 0 && c < (i64)all.in_columns;
                    inputs[i / width][i % width] = is_in ? from[r * all.in_columns + c] : none();
                }
                u32 a = thread_x() / CHUNK_COLUMNS, b = thread_x() % CHUNK_COLUMNS;
                if (a < CHUNK_ROWS && a0 + a < all.kernel_rows && b0 + b < all.kernel_columns) chunk[a][b] = weight_at(weights, &all, a0 + a, b0 + b);
                BARRIER();
                u32 columns = all.kernel_columns - b0 < CHUNK_COLUMNS ? all.kernel_columns - b0 : CHUNK_COLUMNS;
                for (u32 next = 0; next < columns; next++) {
                    element own[ROWS + CHUNK_ROWS - 1];
                    UNROLL for (u32 i = 0; i < ROWS + CHUNK_ROWS - 1; i++) own[i] = inputs[y + i][x + CHUNK_COLUMNS - 1 - next];
                    UNROLL for (u32 j = 0; j < CHUNK_ROWS; j++) {
                        // Taps beyond the kernel are skipped, since an infinite element times zero is NaN.
                        if (a0 + j >= all.kernel_rows) break;
                        UNROLL for (u32 i = 0; i < ROWS; i++) sums[i] = with_product(sums[i], chunk[j][next], own[i + CHUNK_ROWS - 1 - j]);
                    }
                }
            }
        }
        UNROLL for (u32 i = 0; i < ROWS; i++)
            if (row + y + i < all.rows && column + x < all.columns)
                target[(plane * all.rows + row + y + i) * all.columns + column + x] = sums[i];
    }
}

#else
// Planes of `height` × `width` with the input's at their beginning, or with the weights, and zeros behind.
KERNEL LAUNCH_BOUNDS(256, 4) pad_planes(GLOBAL element *RESTRICT target, GLOBAL const element *RESTRICT source, FIXED shape all, u32 height, u32 width,
    u32 is_kernel)
{
    u32 rows = is_kernel ? all.kernel_rows : all.in_rows, columns = is_kernel ? all.kernel_columns : all.in_columns;
    u64 count = (is_kernel ? 1 : all.planes) * height * width, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = i / width, plane = line / height;
        u32 row = (u32)(line % height), column = (u32)(i % width);
        element value = none();
        if (row < rows && column < columns)
            value = is_kernel ? weight_at(source, &all, row, column) : source[(plane * rows + row) * columns + column];
        target[i] = value;
    }
}

// Multiplies `count` bins with the kernel's, which has `each` of them for every plane.
KERNEL LAUNCH_BOUNDS(256, 4) multiply_bins(GLOBAL complex64 *RESTRICT bins, GLOBAL const complex64 *RESTRICT weights, u64 count, u64 each)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        complex64 a = bins[i], b = weights[i % each], c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
        bins[i] = c;
    }
}
#endif

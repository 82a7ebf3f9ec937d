// The product of matrices in any layout, with its epilogue. It serves every element type; vendors' libraries, and for f32
// `matmul_tiles`, are faster where they have the type and the layout.
//
// Each block computes a tile of 64 × 64 sums, each of its 256 threads 4 × 4 of them.

#define TILE 64
#define DEPTH 16

// Loads a tile of DEPTH × TILE elements: place (d, i) holds element (first_i + i, first_d + d) by the given strides.
DEVICE void load_tile(LOCAL SUM tile[DEPTH][TILE + 1], GLOBAL const T *source, i64 along_i, i64 along_d, u32 first_i, u32 count_i,
                      u32 first_d, u32 count_d, i32 d_is_near)
{
    for (u32 place = thread_x(); place < TILE * DEPTH; place += 256) {
        u32 i = d_is_near ? place / DEPTH : place % TILE;
        u32 d = d_is_near ? place % DEPTH : place / TILE;
        SUM x = ZERO;
        if (first_i + i < count_i && first_d + d < count_d) {
            x = TO_SUM(source[(i64)(first_i + i) * along_i + (i64)(first_d + d) * along_d]);
        }
        tile[d][i] = x;
    }
}

// The sums of one tile: each thread's 4 × 4.
DEVICE void multiply_tile(SUM sums[4][4], LOCAL SUM a_tile[DEPTH][TILE + 1], LOCAL SUM b_tile[DEPTH][TILE + 1], GLOBAL const T *a,
                          GLOBAL const T *b, sizes size, strides a_step, strides b_step, u32 first_row, u32 first_col)
{
    u32 row = thread_x() / 16 * 4, col = thread_x() % 16 * 4;
    for (u32 i = 0; i < 4; i++) {
        for (u32 j = 0; j < 4; j++) {
            SUM zero = ZERO;
            sums[i][j] = zero;
        }
    }
    for (u32 depth = 0; depth < size.k; depth += DEPTH) {
        BARRIER();
        load_tile(a_tile, a, a_step.row, a_step.col, first_row, size.m, depth, size.k, a_step.col == 1);
        load_tile(b_tile, b, b_step.col, b_step.row, first_col, size.n, depth, size.k, b_step.row == 1);
        BARRIER();
        UNROLL
        for (u32 d = 0; d < DEPTH; d++) {
            UNROLL
            for (u32 i = 0; i < 4; i++) {
                UNROLL
                for (u32 j = 0; j < 4; j++) {
                    sums[i][j] = multiply_add(sums[i][j], a_tile[d][row + i], b_tile[d][col + j]);
                }
            }
        }
    }
}

KERNEL LAUNCH_BOUNDS(256, 2) matmul(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c, GLOBAL const R *bias,
                   sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch, FIXED layout b_batch, FIXED layout c_batch)
{
    SHARED SUM a_tile[DEPTH][TILE + 1];
    SHARED SUM b_tile[DEPTH][TILE + 1];
    u32 row = thread_x() / 16 * 4, col = thread_x() % 16 * 4;
    u32 first_col = block_x() * TILE;
    for (u32 batch = block_z(); batch < size.batches; batch += grid_size_z()) {
        GLOBAL const T *a_matrix = a + layout_offset(&a_batch, batch);
        GLOBAL const T *b_matrix = b + layout_offset(&b_batch, batch);
        for (u32 first_row = block_y() * TILE; first_row < size.m; first_row += grid_size_y() * TILE) {
            SUM sums[4][4];
            multiply_tile(sums, a_tile, b_tile, a_matrix, b_matrix, size, a_step, b_step, first_row, first_col);
            for (u32 i = 0; i < 4; i++) {
                for (u32 j = 0; j < 4; j++) {
                    u32 r = first_row + row + i, s = first_col + col + j;
                    if (r >= size.m || s >= size.n) continue;
                    SUM sum = scaled(sums[i][j], size.alpha);
                    out[((u64)batch * size.m + r) * size.n + s] = finished(sum, c, bias, size, c_step, &c_batch, batch, r, s);
                }
            }
        }
    }
}

// Many small products of the same sizes, each in separate memory: the table holds the places of the output, of A and
// of B, three for each product.
KERNEL LAUNCH_BOUNDS(256, 2) matmul_many(GLOBAL u8 *base, GLOBAL const u64 *table, sizes size, strides a_step, strides b_step)
{
    SHARED SUM a_tile[DEPTH][TILE + 1];
    SHARED SUM b_tile[DEPTH][TILE + 1];
    u32 row = thread_x() / 16 * 4, col = thread_x() % 16 * 4;
    u32 first_col = block_x() * TILE, first_row = block_y() * TILE;
    GLOBAL R *out = (GLOBAL R *)PLACE(base, table[3 * block_z()]);
    GLOBAL const T *a = (GLOBAL const T *)PLACE(base, table[3 * block_z() + 1]);
    GLOBAL const T *b = (GLOBAL const T *)PLACE(base, table[3 * block_z() + 2]);
    SUM sums[4][4];
    multiply_tile(sums, a_tile, b_tile, a, b, size, a_step, b_step, first_row, first_col);
    for (u32 i = 0; i < 4; i++) {
        for (u32 j = 0; j < 4; j++) {
            u32 r = first_row + row + i, s = first_col + col + j;
            if (r < size.m && s < size.n) out[(u64)r * size.n + s] = FROM_SUM(activate(scaled(sums[i][j], size.alpha)));
        }
    }
}

// The epilogue alone, over sums that a library left in S: f32 where they are not rounded yet, else R's own type. The output may
// be the sums' own memory.
KERNEL LAUNCH_BOUNDS(256, 4) epilogue(GLOBAL R *out, GLOBAL const S *sums, GLOBAL const R *c, GLOBAL const R *bias, sizes size,
                     strides c_step, FIXED layout c_batch)
{
    u64 count = (u64)size.batches * size.m * size.n, step = (u64)grid_size_x() * 256;
    for (u64 at = (u64)block_x() * 256 + thread_x(); at < count; at += step) {
        u32 s = (u32)(at % size.n);
        u64 above = at / size.n;
        u32 r = (u32)(above % size.m), batch = (u32)(above / size.m);
        SUM sum = S_LOAD(sums[at]);
        out[at] = finished(sum, c, bias, size, c_step, &c_batch, batch, r, s);
    }
}

// max(x, 0) of two numbers of 16 bits; NaN stays, and the sign of a zero goes.
DEVICE u32 relu_of_two(u32 x)
{
    u32 low = x & 0xffffu, high = x >> 16;
    if (low >= 0x8000u && low <= 0xfc00u) low = 0;
    if (high >= 0x8000u && high <= 0xfc00u) high = 0;
    return high << 16 | low;
}

// max(x, 0) of f16 numbers in place. They begin at a multiple of 16 bytes.
KERNEL LAUNCH_BOUNDS(256, 8) relu_f16(GLOBAL u16 *values, u64 count)
{
    u64 step = (u64)grid_size_x() * 256, first = (u64)block_x() * 256 + thread_x();
    for (u64 at = first; at < count / 8; at += step) {
        u32x4 x = ((GLOBAL const u32x4 *)values)[at];
        x.x = relu_of_two(x.x), x.y = relu_of_two(x.y), x.z = relu_of_two(x.z), x.w = relu_of_two(x.w);
        ((GLOBAL u32x4 *)values)[at] = x;
    }
    for (u64 at = count / 8 * 8 + first; at < count; at += step) values[at] = (u16)relu_of_two(values[at]);
}

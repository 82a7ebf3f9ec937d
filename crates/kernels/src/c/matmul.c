// The product of matrices in any layout, with its epilogue: activation(alpha · A·B + beta · C + bias). It serves every
// element type; vendors' libraries are faster where they have the type and the layout.
//
// T is the operands' element type, R the result's. Each block computes a tile of 64 × 64 sums, each of its 256 threads
// 4 × 4 of them. BIAS is 0 (none), 1 (one number for each column) or 2 (one for each row); ACTIVATION counts as in
// `activate` below.

#define TILE 64
#define DEPTH 16

#if defined(T_IS_c64)
#define SUM complex64
#define ZERO {0.0f, 0.0f}
#define TO_SUM(x) (x)
#define FROM_SUM(x) (x)
#elif defined(T_IS_f64)
#define SUM f64
#define ZERO 0.0
#define TO_SUM(x) (x)
#define FROM_SUM(x) (x)
#elif defined(T_IS_i32) || defined(T_IS_u32) || defined(T_IS_i8) || defined(T_IS_u8)
// Sums wrap at 32 bits, whatever the sign.
#define SUM u32
#define ZERO 0u
#define TO_SUM(x) ((u32)T_LOAD(x))
#define FROM_SUM(x) ((R)(x))
#else
#define SUM f32
#define ZERO 0.0f
#define TO_SUM(x) T_LOAD(x)
#define FROM_SUM(x) R_STORE(x)
#endif

DEVICE SUM multiply_add(SUM sum, SUM x, SUM y)
{
#if defined(T_IS_c64)
    sum.re += x.re * y.re - x.im * y.im;
    sum.im += x.re * y.im + x.im * y.re;
    return sum;
#else
    return sum + x * y;
#endif
}

DEVICE SUM scaled(SUM x, f32 factor)
{
#if defined(T_IS_c64)
    x.re *= factor;
    x.im *= factor;
    return x;
#elif defined(T_IS_i32) || defined(T_IS_u32) || defined(T_IS_i8) || defined(T_IS_u8)
    return x * (u32)(i32)factor;
#else
    return x * (SUM)factor;
#endif
}

DEVICE SUM added(SUM x, SUM y)
{
#if defined(T_IS_c64)
    x.re += y.re;
    x.im += y.im;
    return x;
#else
    return x + y;
#endif
}

// An element of C or of the bias.
DEVICE SUM addend(R x)
{
#if defined(T_IS_i8) || defined(T_IS_u8) || defined(T_IS_i32) || defined(T_IS_u32)
    return (u32)x;
#elif defined(T_IS_c64)
    return x;
#else
    return R_LOAD(x);
#endif
}

DEVICE SUM activate(SUM x)
{
#if ACTIVATION == 0
    return x;
#elif defined(T_IS_i32) || defined(T_IS_i8) || defined(T_IS_u8)
    return (i32)x < 0 ? 0u : x;
#elif defined(T_IS_u32)
    return x;
#elif defined(T_IS_c64)
    return x;
#elif ACTIVATION == 1
    return x < (SUM)0 ? (SUM)0 : x;
#elif ACTIVATION == 2
    // Far below zero the factor is nothing, and takes even an infinity with it.
    SUM factor = (SUM)(1.0 + erf((f64)x * 0.70710678118654752440));
    return factor == (SUM)0 ? (SUM)0 : x * factor * (SUM)0.5;
#elif ACTIVATION == 3
    return x / ((SUM)1 + (SUM)exp(-(f64)x));
#elif ACTIVATION == 4
    return (SUM)(1.0 / (1.0 + exp(-(f64)x)));
#else
    return (SUM)tanh((f64)x);
#endif
}

typedef struct {
    i64 row, col;
} strides;

typedef struct {
    u32 m, n, k, batches;
    f32 alpha, beta;
} sizes;

// What becomes of the scaled sum at row r and column s.
DEVICE R finished(SUM sum, GLOBAL const R *c, GLOBAL const R *bias, sizes size, strides c_step, const layout *c_batch, u32 batch,
                  u32 r, u32 s)
{
#if HAS_C
    i64 at = layout_offset(c_batch, batch) + (i64)r * c_step.row + (i64)s * c_step.col;
    sum = added(sum, scaled(addend(c[at]), size.beta));
#endif
#if BIAS == 1
    sum = added(sum, addend(bias[s]));
#elif BIAS == 2
    sum = added(sum, addend(bias[r]));
#endif
    return FROM_SUM(activate(sum));
}

// Loads a tile of DEPTH × TILE elements: place (d, i) holds element (first_i + i, first_d + d) by the given strides.
DEVICE void load_tile(SUM tile[DEPTH][TILE + 1], GLOBAL const T *source, i64 along_i, i64 along_d, u32 first_i, u32 count_i,
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
DEVICE void multiply_tile(SUM sums[4][4], SUM a_tile[DEPTH][TILE + 1], SUM b_tile[DEPTH][TILE + 1], GLOBAL const T *a,
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
                   sizes size, strides a_step, strides b_step, strides c_step, layout a_batch, layout b_batch, layout c_batch)
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

// Many small products of the same sizes, each with memory of its own: the table holds the addresses of the output, of A and
// of B, three for each product.
KERNEL LAUNCH_BOUNDS(256, 2) matmul_many(GLOBAL const u64 *table, sizes size, strides a_step, strides b_step)
{
    SHARED SUM a_tile[DEPTH][TILE + 1];
    SHARED SUM b_tile[DEPTH][TILE + 1];
    u32 row = thread_x() / 16 * 4, col = thread_x() % 16 * 4;
    u32 first_col = block_x() * TILE, first_row = block_y() * TILE;
    GLOBAL R *out = (GLOBAL R *)table[3 * block_z()];
    GLOBAL const T *a = (GLOBAL const T *)table[3 * block_z() + 1];
    GLOBAL const T *b = (GLOBAL const T *)table[3 * block_z() + 2];
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
                     strides c_step, layout c_batch)
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

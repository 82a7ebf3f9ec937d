// A convolution and its two gradients as matrix products (implicit GEMM): the second matrix is gathered from an image on
// the fly, and never stored.
//
//   out[m, n] = Σ_k a[m, k] · b(n, k)
//
// Both n and k are made of a plane, a row and a column. The plane of both, and the sum of their rows and of their columns,
// say which element of the image b(n, k) is; beyond the image it is zero.
//
//                 m          n                     k                     row of the image
//   forward       filter     image, pixel          channel, tap          pixel · stride + tap · dilation - padding
//   to the input  channel    image, pixel          filter, tap           (pixel + padding - tap · dilation) / stride
//   to weights    filter     channel, tap          image, pixel          pixel · stride + tap · dilation - padding
//
// T           the element type
// POS         i32 where every row and column fits, else i64
// INDEX       u32 where every n and k fits, else u64
// DIVIDES     1 where rows and columns are divided by the stride, and only those that it divides count
//
// TILES, MATRIX_UNITS, DIRECT and PARTS choose the kernel, TRIAL those that try a library's. With AROUND there is instead what a
// library's convolution needs around it: `turn`, `widen` and `finish`.

#define TILE 64
#define DEPTH 16
#define THREADS 256

typedef T_ACC sum;

// Not inlined: it is long, and called once for each of a thread's sums.
NOINLINE sum activate_far(sum x, u32 activation)
{
    f64 wide = (f64)x;
    if (activation == 2) {
        // Far below zero the factor is nothing, and takes even an infinity with it.
        sum factor = (sum)(1.0 + erf(wide * 0.70710678118654752440));
        return factor == (sum)0 ? (sum)0 : x * factor * (sum)0.5;
    }
    if (activation == 5) return (sum)tanh(wide);
    f64 below = exp(-wide);
    if (activation == 4) return (sum)(1.0 / (1.0 + below));
    return isinf(below) ? (sum)0 : (sum)(wide / (1.0 + below));
}

// 0: the number itself, 1: relu, 2: gelu, 3: silu, 4: sigmoid, 5: the hyperbolic tangent.
DEVICE sum activate(sum x, u32 activation)
{
    if (activation == 0) return x;
    if (activation == 1) return x < (sum)0 ? (sum)0 : x;
    return activate_far(x, activation);
}

#if defined(AROUND)

#define ACROSS 32

DEVICE T turned(T x, u32 activation) { return activation == 0 ? x : (T)T_STORE(activate(T_LOAD(x), activation)); }

// Transposes matrices of 16-bit numbers and applies a function: out[matrix][column][row] = f(in[matrix][row][column]). With
// PAIRS both extents are even, and two numbers move at once. Blocks: columns, rows, matrices.
#if T_BYTES == 2
KERNEL LAUNCH_BOUNDS(THREADS, 8) turn(GLOBAL T *RESTRICT out, GLOBAL const T *RESTRICT in, u64 matrices, u64 rows, u64 columns,
                                      u32 activation)
{
    SHARED ALIGNED(16) u16 tile[TILE][TILE + 2];
    // Adjacent threads move adjacent elements.
    u32 line = thread_x() / ACROSS, l = thread_x() % ACROSS;
    u64 first_column = (u64)block_x() * TILE;
    for (u64 matrix = block_z(); matrix < matrices; matrix += grid_size_z()) {
        for (u64 first_row = (u64)block_y() * TILE; first_row < rows; first_row += (u64)grid_size_y() * TILE) {
            GLOBAL const T *from = in + matrix * rows * columns;
            GLOBAL T *to = out + matrix * rows * columns;
            UNROLL for (u32 i = 0; i < TILE / 8; i++) {
                u32 r = line + i * 8;
                u64 row = first_row + r;
#if PAIRS
                u64 column = first_column + 2 * l;
                if (row < rows && column < columns)
                    *(LOCAL u32 *)&tile[r][2 * l] = *(GLOBAL const u32 *)&from[row * columns + column];
#else
                UNROLL for (u32 half = 0; half < TILE; half += ACROSS) {
                    u64 column = first_column + l + half;
                    if (row < rows && column < columns) tile[r][l + half] = from[row * columns + column];
                }
#endif
            }
            BARRIER();
            UNROLL for (u32 i = 0; i < TILE / 8; i++) {
                u32 c = line + i * 8;
                u64 column = first_column + c;
#if PAIRS
                u64 row = first_row + 2 * l;
                if (row < rows && column < columns) {
                    u32 low = turned(tile[2 * l][c], activation), high = turned(tile[2 * l + 1][c], activation);
                    *(GLOBAL u32 *)&to[column * rows + row] = low | high << 16;
                }
#else
                UNROLL for (u32 half = 0; half < TILE; half += ACROSS) {
                    u64 row = first_row + l + half;
                    if (row < rows && column < columns)
                        to[column * rows + row] = turned(tile[l + half][c], activation);
                }
#endif
            }
            BARRIER();
        }
    }
}

// Images of fewer than eight channels with their channels last, and zeros behind them up to eight: sixteen bytes for each pixel.
KERNEL LAUNCH_BOUNDS(THREADS, 8) widen(GLOBAL u64 *RESTRICT out, GLOBAL const u16 *RESTRICT in, u64 images, u64 area, u32 channels)
{
    u64 step = (u64)grid_size_x() * THREADS, pixels = images * area;
    for (u64 i = (u64)block_x() * THREADS + thread_x(); i < pixels; i += step) {
        u64 image = i / area, low = 0, high = 0;
        GLOBAL const u16 *from = in + image * channels * area + (i - image * area);
        for (u32 c = 0; c < channels; c++) {
            u64 bits = (u64)from[c * area] << (c % 4 * 16);
            if (c < 4) low |= bits;
            else high |= bits;
        }
        out[2 * i] = low;
        out[2 * i + 1] = high;
    }
}
#endif

// Adds each plane's bias and applies the function, in place. Blocks: planes, parts of a plane.
KERNEL LAUNCH_BOUNDS(THREADS, 4) finish(GLOBAL T *RESTRICT out, GLOBAL const T *RESTRICT bias, u64 pixels, u32 filters,
                                        u32 activation)
{
    GLOBAL T *plane = out + (u64)block_x() * pixels;
    sum add = bias ? T_LOAD(bias[block_x() % filters]) : (sum)0;
    for (u64 i = (u64)block_y() * THREADS + thread_x(); i < pixels; i += (u64)grid_size_y() * THREADS) {
        plane[i] = T_STORE(activate(T_LOAD(plane[i]) + add, activation));
    }
}

#else

// One of n and k: how many rows and columns it has, where they are, and what one plane is worth in elements of the image
// and in elements of the other matrix (a for k, out for n).
typedef struct {
    i64 height, width, mul_y, add_y, mul_x, add_x, plane, other;
} side;

typedef struct {
    i64 m, n, k, groups;
    // Elements from one m to the next in a and out, and from one group to the next in a, in b and in out.
    i64 a_row, out_row, a_group, b_group, out_group;
    // The image, and what its rows and columns are divided by.
    i64 height, width, divide_y, divide_x;
    // How much of k one part has, how many parts there are, and elements from one part of out to the next.
    i64 part_k, parts, part_out;
    i64 activation;
} product;

typedef struct {
    i64 plane, other;
    POS y, x;
} place;

DEVICE place place_of(const side *s, INDEX number)
{
    INDEX area = (INDEX)(s->height * s->width), outer = number / area, rest = number - outer * area;
    INDEX row = rest / (INDEX)s->width, column = rest - row * (INDEX)s->width;
    place p;
    p.plane = (i64)outer * s->plane;
    p.other = (i64)outer * s->other + rest;
    p.y = (POS)row * (POS)s->mul_y + (POS)s->add_y;
    p.x = (POS)column * (POS)s->mul_x + (POS)s->add_x;
    return p;
}

// Whether this is a pixel of the image; divides its row and column where they are to be divided.
DEVICE i32 is_in_image(const product *size, POS *y, POS *x)
{
#if DIVIDES
    POS row = *y / (POS)size->divide_y, column = *x / (POS)size->divide_x;
    if (row * (POS)size->divide_y != *y || column * (POS)size->divide_x != *x) return 0;
    *y = row;
    *x = column;
#endif
    return *y >= 0 && *x >= 0 && *y < (POS)size->height && *x < (POS)size->width;
}

DEVICE sum gathered(GLOBAL const T *b, const product *size, i64 plane, POS y, POS x)
{
    return is_in_image(size, &y, &x) ? T_LOAD(b[plane + (i64)y * size->width + x]) : (sum)0;
}

// Writes a sum: finished, or as it is where it is one of several parts.
DEVICE void put(GLOBAL void *out, i64 at, sum x, GLOBAL const T *bias, i64 m, const product *size)
{
    if (size->parts > 1) {
        ((GLOBAL sum *)out)[at] = x;
    } else {
        if (bias) x += T_LOAD(bias[m]);
        ((GLOBAL T *)out)[at] = T_STORE(activate(x, (u32)size->activation));
    }
}

#if defined(TILES)

// Each block has a tile of 64 × 64 sums, each of its threads 4 × 4 of them. Blocks: tiles of n, tiles of m, groups × parts.
KERNEL LAUNCH_BOUNDS(THREADS, 2) convolve(GLOBAL void *RESTRICT out, GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b,
                                          GLOBAL const T *RESTRICT bias, product size, side of_n, side of_k)
{
    SHARED ALIGNED(16) sum a_tile[DEPTH][TILE + 4];
    SHARED ALIGNED(16) sum b_tile[DEPTH][TILE + 4];
    SHARED place table[2][DEPTH];
    u32 t = thread_x(), group = block_z() % (u32)size.groups, part = block_z() / (u32)size.groups;
    i64 m_first = (i64)block_y() * TILE, n_first = (i64)block_x() * TILE;
    i64 k_begin = part * size.part_k, k_end = k_begin + size.part_k < size.k ? k_begin + size.part_k : size.k;
    a += group * size.a_group;
    b += group * size.b_group;
    // Of a, a thread loads one k of four m; of b, four k of one n.
    u32 a_k = t % DEPTH, a_m = t / DEPTH, b_n = t % TILE, b_k = t / TILE;
    i32 has_n = n_first + b_n < size.n;
    place own = place_of(&of_n, (INDEX)(has_n ? n_first + b_n : 0));
    sum a_next[4], b_next[4], sums[4][4];
    UNROLL for (u32 i = 0; i < 4; i++)
        UNROLL for (u32 j = 0; j < 4; j++) sums[i][j] = (sum)0;
    u32 row = t / 16 * 4, col = t % 16 * 4;

    if (t < DEPTH && k_begin + t < k_end) table[0][t] = place_of(&of_k, (INDEX)(k_begin + t));
    BARRIER();
    for (i64 k = k_begin; k - DEPTH < k_end; k += DEPTH) {
        i32 even = ((k - k_begin) / DEPTH) & 1;
        i32 is_first = k == k_begin;
        if (!is_first) {
            // Stores the elements that the previous round loaded; their sums follow while this round's loads run.
            UNROLL for (u32 j = 0; j < 4; j++) {
                a_tile[a_k][a_m + j * 16] = a_next[j];
                b_tile[b_k + j * 4][b_n] = b_next[j];
            }
        }
        if (t < DEPTH && k + DEPTH + t < k_end) table[!even][t] = place_of(&of_k, (INDEX)(k + DEPTH + t));
        BARRIER();
        UNROLL for (u32 j = 0; j < 4; j++) {
            i64 m = m_first + a_m + j * 16;
            a_next[j] = (sum)0;
            b_next[j] = (sum)0;
            if (k + a_k < k_end && m < size.m) a_next[j] = T_LOAD(a[m * size.a_row + table[even][a_k].other]);
            if (k + b_k + j * 4 < k_end && has_n) {
                LOCAL const place *p = &table[even][b_k + j * 4];
                b_next[j] = gathered(b, &size, own.plane + p->plane, own.y + p->y, own.x + p->x);
            }
        }
        if (!is_first) {
            UNROLL for (u32 d = 0; d < DEPTH; d++) {
                sum x[4], y[4];
                UNROLL for (u32 i = 0; i < 4; i++) x[i] = a_tile[d][row + i];
                UNROLL for (u32 j = 0; j < 4; j++) y[j] = b_tile[d][col + j];
                UNROLL for (u32 i = 0; i < 4; i++)
                    UNROLL for (u32 j = 0; j < 4; j++) sums[i][j] += x[i] * y[j];
            }
        }
        BARRIER();
    }

    i64 out_first = group * size.out_group + part * size.part_out;
    UNROLL for (u32 j = 0; j < 4; j++) {
        if (n_first + col + j >= size.n) break;
        i64 to = out_first + place_of(&of_n, (INDEX)(n_first + col + j)).other;
        UNROLL for (u32 i = 0; i < 4; i++) {
            i64 m = m_first + row + i;
            if (m < size.m) put(out, to + m * size.out_row, sums[i][j], bias, group * size.m + m, &size);
        }
    }
}

#endif

#if defined(MATRIX_UNITS)

// The same for 16-bit numbers, by matrix units: a block has 128 × 128 sums, a warp 64 × 32 of them. Here k is a tap first
// and a channel then, a multiple of DEEP; `a` is turned to match, so that its rows are read sixteen bytes at a time, and a
// tile of b is DEEP channels of one tap, whose pixel is found once.
#define WIDE 128
#define DEEP 32
#define PITCH (DEEP + 8)

typedef struct {
    u16 a[WIDE][PITCH], b[WIDE][PITCH];
} tiles;

// Sixteen channels of one pixel, two to a word; zeros where there is no such pixel.
DEVICE void load_channels(u32 *words, GLOBAL const T *from, i64 step, i32 is_there)
{
    UNROLL for (u32 i = 0; i < 8; i++) words[i] = 0;
    if (!is_there) return;
    UNROLL for (u32 i = 0; i < 8; i++) {
        u32 low = from[2 * i * step], high = from[(2 * i + 1) * step];
        words[i] = low | high << 16;
    }
}

DEVICE void multiply_tiles(f32 sums[4][4][4], const tiles *now, u32 first_m, u32 first_n)
{
    // Which row of the four matrices that are loaded at once this lane names, and where in the row.
    u32 matrix = lane() / 8, row = lane() % 8;
    UNROLL for (u32 k = 0; k < DEEP; k += 16) {
        u32 a[4][4], b[2][4];
        UNROLL for (u32 i = 0; i < 4; i++)
            load_matrices(a[i], &now->a[first_m + i * 16 + matrix % 2 * 8 + row][k + matrix / 2 * 8]);
        UNROLL for (u32 j = 0; j < 2; j++)
            load_matrices(b[j], &now->b[first_n + j * 16 + matrix / 2 * 8 + row][k + matrix % 2 * 8]);
        UNROLL for (u32 i = 0; i < 4; i++) {
            UNROLL for (u32 j = 0; j < 4; j++) {
#if defined(T_IS_f16)
                multiply_f16(sums[i][j], a[i], &b[j / 2][j % 2 * 2]);
#else
                multiply_bf16(sums[i][j], a[i], &b[j / 2][j % 2 * 2]);
#endif
            }
        }
    }
}

// Blocks: tiles of n, tiles of m, groups.
KERNEL LAUNCH_BOUNDS(THREADS, 2) convolve_tiles(GLOBAL void *RESTRICT out, GLOBAL const T *RESTRICT a,
                                                GLOBAL const T *RESTRICT b, GLOBAL const T *RESTRICT bias, product size,
                                                side of_n, side of_k)
{
    SHARED ALIGNED(16) tiles both[2];
    u32 t = thread_x(), group = block_z(), warp = t / WARP;
    i64 m_first = (i64)block_y() * WIDE, n_first = (i64)block_x() * WIDE;
    // A thread loads half a row of each tile: of a, sixteen k of one m; of b, sixteen channels of one n.
    u32 a_m = t / 2, a_k = t % 2 * 16, b_n = t % WIDE, b_k = t / WIDE * 16;
    i32 has_m = m_first + a_m < size.m, has_n = n_first + b_n < size.n;
    place own = place_of(&of_n, (INDEX)(has_n ? n_first + b_n : 0));
    a += group * size.a_group + (has_m ? m_first + a_m : 0) * size.a_row + a_k;
    b += group * size.b_group + own.plane + b_k * of_k.plane;
    i64 channels = size.k / (of_k.height * of_k.width), channel = 0;
    i32 row = 0, column = 0;
    u32x4 zero = {0, 0, 0, 0}, a_next[2];
    u32 b_next[8];
    f32 sums[4][4][4];
    UNROLL for (u32 i = 0; i < 64; i++) sums[i / 16][i / 4 % 4][i % 4] = 0.0f;

    u32 rounds = (u32)(size.k / DEEP);
    for (u32 round = 0; round <= rounds; round++) {
        // This round's loads are under way while the round before is multiplied.
        if (round < rounds) {
            a_next[0] = has_m ? *(GLOBAL const u32x4 *)(a + (i64)round * DEEP) : zero;
            a_next[1] = has_m ? *(GLOBAL const u32x4 *)(a + (i64)round * DEEP + 8) : zero;
            POS y = own.y + (POS)row * (POS)of_k.mul_y, x = own.x + (POS)column * (POS)of_k.mul_x;
            i32 is_there = has_n && is_in_image(&size, &y, &x);
            load_channels(b_next, b + channel * of_k.plane + (i64)y * size.width + x, of_k.plane, is_there);
            channel += DEEP;
            if (channel == channels) {
                channel = 0;
                column++;
                if (column == (i32)of_k.width) {
                    column = 0;
                    row++;
                }
            }
        }
        if (round > 0) multiply_tiles(sums, &both[(round - 1) % 2], warp / 4 * 64, warp % 4 * 32);
        if (round < rounds) {
            tiles *next = &both[round % 2];
            UNROLL for (u32 i = 0; i < 2; i++) {
                *(u32x4 *)&next->a[a_m][a_k + i * 8] = a_next[i];
                u32x4 words = {b_next[4 * i], b_next[4 * i + 1], b_next[4 * i + 2], b_next[4 * i + 3]};
                *(u32x4 *)&next->b[b_n][b_k + i * 8] = words;
            }
        }
        BARRIER();
    }

    UNROLL for (u32 j = 0; j < 8; j++) {
        i64 n = n_first + warp % 4 * 32 + j / 2 * 8 + lane() % 4 * 2 + j % 2;
        if (n >= size.n) continue;
        i64 to = group * size.out_group + place_of(&of_n, (INDEX)n).other;
        UNROLL for (u32 i = 0; i < 8; i++) {
            i64 m = m_first + warp / 4 * 64 + i / 2 * 16 + lane() / 4 + i % 2 * 8;
            if (m < size.m) put(out, to + m * size.out_row, sums[i / 2][j / 2][i % 2 * 2 + j % 2], bias, group * size.m + m, &size);
        }
    }
}
#endif

#if defined(DIRECT)

// Where few m share an image, as in depthwise convolutions, a thread has one sum and nothing is shared. Blocks: n, groups × m.
KERNEL LAUNCH_BOUNDS(THREADS, 4)
convolve_directly(GLOBAL void *RESTRICT out, GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b,
                  GLOBAL const T *RESTRICT bias, product size, side of_n, side of_k)
{
    i64 n = (i64)block_x() * THREADS + thread_x(), planes = size.k / (of_k.height * of_k.width);
    if (n >= size.n) return;
    place own = place_of(&of_n, (INDEX)n);
    for (i64 line = block_y(); line < size.groups * size.m; line += grid_size_y()) {
        i64 group = line / size.m, m = line - group * size.m;
        GLOBAL const T *from = b + group * size.b_group + own.plane;
        GLOBAL const T *factors = a + group * size.a_group + m * size.a_row;
        sum total = (sum)0;
        for (i64 plane = 0; plane < planes; plane++) {
            GLOBAL const T *factor = factors + plane * of_k.other;
            POS y = own.y + (POS)of_k.add_y;
            for (u32 r = 0; r < (u32)of_k.height; r++, y += (POS)of_k.mul_y) {
                POS x = own.x + (POS)of_k.add_x;
                for (u32 c = 0; c < (u32)of_k.width; c++, x += (POS)of_k.mul_x) {
                    total += T_LOAD(*factor++) * gathered(from, &size, plane * of_k.plane, y, x);
                }
            }
        }
        put(out, group * size.out_group + own.other + m * size.out_row, total, bias, line, &size);
    }
}

#endif

#if defined(PARTS)

// The sums of all parts, in their order.
KERNEL LAUNCH_BOUNDS(THREADS, 4) add_parts(GLOBAL T *RESTRICT out, GLOBAL const sum *RESTRICT parts, u64 count, u32 rounds)
{
    u64 step = (u64)grid_size_x() * THREADS;
    for (u64 i = (u64)block_x() * THREADS + thread_x(); i < count; i += step) {
        sum total = (sum)0;
        for (u32 part = 0; part < rounds; part++) total += parts[part * count + i];
        out[i] = T_STORE(total);
    }
}

#endif

#if defined(TRIAL)

// Numbers between -2 and 2 that look random.
KERNEL LAUNCH_BOUNDS(THREADS, 8) noise(GLOBAL T *RESTRICT out, u64 count, u32 seed)
{
    u64 step = (u64)grid_size_x() * THREADS;
    for (u64 i = (u64)block_x() * THREADS + thread_x(); i < count; i += step) {
        u32 x = ((u32)i ^ seed) * 0x9e3779b1u;
        x = (x ^ x >> 15) * 0x85ebca77u;
        x = (x ^ x >> 13) * 0xc2b2ae3du;
        out[i] = T_STORE((sum)((f32)(i32)(x ^ x >> 16) * 9.3132257461547852e-10f));
    }
}

// Which of the sums sample number `block` is.
typedef struct {
    i64 group, m, at;
    place own;
} sample;

DEVICE sample sample_of(i64 number, const product *size, const side *of_n)
{
    i64 line = number / size->n;
    sample s;
    s.group = line / size->m;
    s.m = line - s.group * size->m;
    s.own = place_of(of_n, (INDEX)(number - line * size->n));
    s.at = s.group * size->out_group + s.own.other + s.m * size->out_row;
    return s;
}

// Computes every `step`-th sum in f64, each in a separate block.
KERNEL LAUNCH_BOUNDS(THREADS, 4) exact_sums(GLOBAL f64 *RESTRICT exact, GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b,
                                            GLOBAL const T *RESTRICT bias, product size, side of_n, side of_k, u64 step)
{
    SHARED f64 totals[THREADS];
    sample s = sample_of((i64)(block_x() * step), &size, &of_n);
    GLOBAL const T *from = b + s.group * size.b_group + s.own.plane;
    GLOBAL const T *factors = a + s.group * size.a_group + s.m * size.a_row;
    f64 total = 0.0;
    for (i64 k = thread_x(); k < size.k; k += THREADS) {
        place p = place_of(&of_k, (INDEX)k);
        total += (f64)T_LOAD(factors[p.other]) * (f64)gathered(from, &size, p.plane, s.own.y + p.y, s.own.x + p.x);
    }
    totals[thread_x()] = total;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        BARRIER();
        if (thread_x() < half) totals[thread_x()] += totals[thread_x() + half];
    }
    if (thread_x() == 0) exact[block_x()] = totals[0] + (bias ? (f64)T_LOAD(bias[s.group * size.m + s.m]) : 0.0);
}

// Writes 1 where what comes of one of those sums, with a residual and a function where there are such, is further off than is allowed.
KERNEL LAUNCH_BOUNDS(THREADS, 4) compare_sums(GLOBAL u32 *wrong, GLOBAL const T *RESTRICT out, GLOBAL const f64 *RESTRICT exact,
                                              GLOBAL const T *RESTRICT residual, product size, side of_n, u64 step, u32 samples,
                                              f32 relative, f32 absolute)
{
    u32 number = block_x() * THREADS + thread_x();
    if (number >= samples) return;
    sample s = sample_of((i64)(number * step), &size, &of_n);
    f64 expected = exact[number] + (residual ? (f64)T_LOAD(residual[s.at]) : 0.0);
    if (size.activation != 0) expected = (f64)activate((sum)expected, (u32)size.activation);
    f64 off = (f64)T_LOAD(out[s.at]) - expected;
    // NaN is wrong too.
    if (!(fabs(off) <= (f64)relative * fabs(expected) + (f64)absolute)) *wrong = 1;
}

#endif

#endif

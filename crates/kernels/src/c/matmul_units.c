// The product of matrices of f16 or bf16 by the tiles of 16 × 16 × 16 that a warp multiplies, with sums in f32: for devices whose tile16 is an
// instruction, where no library takes the product. Rows or columns are contiguous, and loaded in words of eight numbers.
//
// A block of 256 threads computes TILE × TILE sums. Its warps stand two high, and each has TILE / 2 rows of the sums and its share of the
// columns. The block's memory has two slabs of A's rows and B's columns, DEPTH numbers of each: one is multiplied, while the next is
// loaded to registers and then stored. A_DEEP says that A's rows are contiguous, B_DEEP that B's columns are; else A's columns are, and B's rows.

#define THREADS 256
#define DEPTH 32
// Numbers from one row to the next in the block's memory: a multiple of 16 bytes, but of no more.
#define STEP (DEPTH + 8)
#define SLAB (2 * TILE * STEP)
#define WORDS (TILE * DEPTH / 8 / THREADS)
#define HIGH (TILE / 2 / 16)
#define WIDE (TILE / (THREADS / WARP / 2) / 16)
#if defined(T_IS_bf16)
#define MULTIPLY multiply_tile16_bf16
#else
#define MULTIPLY multiply_tile16_f16
#endif

// The words of an operand's slab that a thread brings: eight numbers in depth of one row, or of eight rows at one depth. Elements beyond the
// matrix are zeros.
DEVICE void load_words(u32x4 *words, GLOBAL const u16 *tile, i64 far, u32 count, u32 first_depth, u32 depth, i32 deep)
{
    UNROLL
    for (u32 i = 0; i < WORDS; i++) {
        u32 word = thread_x() + i * THREADS;
        u32 row = deep ? word / (DEPTH / 8) : word % (TILE / 8) * 8;
        u32 d = first_depth + (deep ? word % (DEPTH / 8) * 8 : word / (TILE / 8));
        u32 x = 0u, y = 0u, z = 0u, w = 0u;
        if (row < count && d < depth) {
            GLOBAL const u32x4 *from = (GLOBAL const u32x4 *)(tile + (deep ? (i64)row * far + d : (i64)d * far + row));
            // Number by number: a choice between structures would be made in memory.
            x = from->x, y = from->y, z = from->z, w = from->w;
        }
        words[i].x = x, words[i].y = y, words[i].z = z, words[i].w = w;
    }
}

DEVICE void store_words(LOCAL u16 *slab, const u32x4 *words, i32 deep)
{
    UNROLL
    for (u32 i = 0; i < WORDS; i++) {
        u32 word = thread_x() + i * THREADS;
        if (deep) {
            *(LOCAL u32x4 *)(slab + word / (DEPTH / 8) * STEP + word % (DEPTH / 8) * 8) = words[i];
        } else {
            LOCAL u16 *target = slab + word % (TILE / 8) * 8 * STEP + word / (TILE / 8);
            target[0] = (u16)words[i].x, target[STEP] = (u16)(words[i].x >> 16);
            target[2 * STEP] = (u16)words[i].y, target[3 * STEP] = (u16)(words[i].y >> 16);
            target[4 * STEP] = (u16)words[i].z, target[5 * STEP] = (u16)(words[i].z >> 16);
            target[6 * STEP] = (u16)words[i].w, target[7 * STEP] = (u16)(words[i].w >> 16);
        }
    }
}

// Adds what a slab gives to a warp's sums.
DEVICE void multiply_slab(f32 sums[HIGH][WIDE][TILE16_SUMS], LOCAL const u16 *a, LOCAL const u16 *b)
{
    UNROLL
    for (u32 d = 0; d < DEPTH; d += 16) {
        tile16 left[HIGH], right[WIDE];
        UNROLL
        for (u32 i = 0; i < HIGH; i++) left[i] = load_tile16(a + i * 16 * STEP + d, STEP);
        UNROLL
        for (u32 j = 0; j < WIDE; j++) right[j] = load_tile16(b + j * 16 * STEP + d, STEP);
        UNROLL
        for (u32 i = 0; i < HIGH; i++) {
            UNROLL
            for (u32 j = 0; j < WIDE; j++) MULTIPLY(sums[i][j], left[i], right[j]);
        }
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, 1) matmul_units(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c,
                   GLOBAL const R *bias, sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch,
                   FIXED layout b_batch, FIXED layout c_batch)
{
    DYNAMIC_SHARED(u16, slabs);
    u32 warp = thread_x() / WARP, warp_row = warp % 2 * (HIGH * 16), warp_col = warp / 2 * (WIDE * 16);
    u32 first_row = block_y() * TILE, first_col = block_x() * TILE, batch = block_z();
    GLOBAL const u16 *a_tile = (GLOBAL const u16 *)a + layout_offset(&a_batch, batch) + (i64)first_row * a_step.row;
    GLOBAL const u16 *b_tile = (GLOBAL const u16 *)b + layout_offset(&b_batch, batch) + (i64)first_col * b_step.col;
    i64 a_far = A_DEEP ? a_step.row : a_step.col, b_far = B_DEEP ? b_step.col : b_step.row;
    f32 sums[HIGH][WIDE][TILE16_SUMS];
    UNROLL
    for (u32 i = 0; i < HIGH * WIDE * TILE16_SUMS; i++) {
        sums[i / TILE16_SUMS / WIDE][i / TILE16_SUMS % WIDE][i % TILE16_SUMS] = 0.0f;
    }
    u32x4 a_words[WORDS], b_words[WORDS];
    load_words(a_words, a_tile, a_far, size.m - first_row, 0, size.k, A_DEEP);
    load_words(b_words, b_tile, b_far, size.n - first_col, 0, size.k, B_DEEP);
    LOCAL u16 *slab = slabs, *other = slabs + SLAB;
    for (u32 depth = 0; depth < size.k; depth += DEPTH) {
        store_words(slab, a_words, A_DEEP);
        store_words(slab + TILE * STEP, b_words, B_DEEP);
        // All have stored this slab, and have done with the one before it, into which they store next.
        BARRIER();
        load_words(a_words, a_tile, a_far, size.m - first_row, depth + DEPTH, size.k, A_DEEP);
        load_words(b_words, b_tile, b_far, size.n - first_col, depth + DEPTH, size.k, B_DEEP);
        multiply_slab(sums, slab + warp_row * STEP, slab + (TILE + warp_col) * STEP);
        LOCAL u16 *last = slab;
        slab = other;
        other = last;
    }
    UNROLL
    for (u32 i = 0; i < HIGH; i++) {
        UNROLL
        for (u32 j = 0; j < WIDE; j++) {
            UNROLL
            for (u32 v = 0; v < TILE16_SUMS; v++) {
                u32 r = first_row + warp_row + i * 16 + tile16_row(v), s = first_col + warp_col + j * 16 + tile16_col(v);
                if (r >= size.m || s >= size.n) continue;
                f32 sum = sums[i][j][v] * size.alpha;
                out[((u64)batch * size.m + r) * size.n + s] = finished(sum, c, bias, size, c_step, &c_batch, batch, r, s);
            }
        }
    }
}

// The product of matrices of f32, or of 16-bit floats, whose rows or columns are contiguous and can be loaded in words of four numbers: as
// fast for f32 as vendors' libraries for products that are over before a library's preparations are.
//
// A block of 128 threads computes TILE_M × 64 sums. Its threads form SLICES teams, and each team the whole tile, a thread 8 × 8 sums
// of it, from every SLICES-th run of 8 along the depth; at the end the teams' sums are added. So even a small product has a tile
// for each multiprocessor. The order of the additions depends on nothing but the sizes.
//
// A warp has 32 × 64 of the sums: a thread four rows and the four 16 below, four columns and the four 32 to the right.
// A_DEEP says that A's rows are contiguous, B_DEEP that B's columns are; else A's columns are, and B's rows.

#define THREADS 128
#define TILE_N 64
#define RUN 8
// TILE_M / 8 × 64 / 8 threads of 8 × 8 sums.
#define TEAM TILE_M
#define SLICES (THREADS / TEAM)
#define DEPTH (RUN * SLICES)
// Places from one step in depth to the next: a multiple of 16 bytes, but of no more.
#define A_STEP (TILE_M + 4)
#define B_STEP (TILE_N + 4)
#define SLAB (DEPTH * (A_STEP + B_STEP))
#define A_WORDS (TILE_M * DEPTH / 4 / THREADS)
#define B_WORDS (TILE_N * DEPTH / 4 / THREADS)

// The words of every slab of an operand that a thread brings: from where, where to, and how deep they are. Words beyond the
// matrix have a depth larger than any. Words along the depth are taken in pairs: whole sectors are loaded, and their numbers stored to
// different banks.
DEVICE void find_words(GLOBAL const T **from, u32 *to, u32 *depth_of, u32 words, GLOBAL const T *tile, i64 far, u32 extent,
                       u32 count, u32 step, i32 deep)
{
    UNROLL
    for (u32 i = 0; i < words; i++) {
        u32 word = thread_x() + i * THREADS;
        u32 e = deep ? word / 2 % 16 + word / 32 % (extent / 16) * 16 : word % (extent / 4) * 4;
        u32 d = deep ? (word % 2 + word / 32 / (extent / 16) * 2) * 4 : word / (extent / 4);
        from[i] = tile + (deep ? (i64)e * far + d : (i64)d * far + e);
        to[i] = d * step + e;
        depth_of[i] = e < count ? d : 0xffffffffu;
    }
}

// Four neighbouring numbers.
DEVICE f32x4 load_four(GLOBAL const T *from)
{
#if defined(T_IS_f32)
    return load_now((GLOBAL const f32x4 *)from);
#else
    u64 bits = *(GLOBAL const u64 *)from;
    f32x4 four = {T_LOAD((u16)bits), T_LOAD((u16)(bits >> 16)), T_LOAD((u16)(bits >> 32)), T_LOAD((u16)(bits >> 48))};
    return four;
#endif
}

// Loads a thread's words of the next slab, of which so much depth is left.
DEVICE void load_words(f32x4 *word, GLOBAL const T **from, const u32 *depth_of, u32 words, u32 left, i64 next)
{
    UNROLL
    for (u32 i = 0; i < words; i++) {
        f32x4 none = {0.0f, 0.0f, 0.0f, 0.0f};
        word[i] = none;
        if (depth_of[i] < left) word[i] = load_four(from[i]);
        from[i] += next;
    }
}

DEVICE void store_words(LOCAL f32 *slab, const f32x4 *word, const u32 *to, u32 words, u32 step, i32 deep)
{
    UNROLL
    for (u32 i = 0; i < words; i++) {
        LOCAL f32 *target = slab + to[i];
        if (deep) {
            target[0] = word[i].x, target[step] = word[i].y, target[2 * step] = word[i].z, target[3 * step] = word[i].w;
        } else {
            *(LOCAL f32x4 *)target = word[i];
        }
    }
}

// Stores the words that were loaded for a slab, and loads those of the one after it.
#define NEXT_SLAB(slab)                                                         \
    store_words(slab, a_words, a_to, A_WORDS, A_STEP, A_DEEP);                  \
    store_words(slab + DEPTH * A_STEP, b_words, b_to, B_WORDS, B_STEP, B_DEEP); \
    left = left > DEPTH ? left - DEPTH : 0;                                     \
    load_words(a_words, a_from, a_depth, A_WORDS, left, a_next);                \
    load_words(b_words, b_from, b_depth, B_WORDS, left, b_next);                \
    BARRIER();

DEVICE void load_eight(f32 *eight, LOCAL const f32 *first, LOCAL const f32 *second)
{
    f32x4 x = *(LOCAL const f32x4 *)first, y = *(LOCAL const f32x4 *)second;
    eight[0] = x.x, eight[1] = x.y, eight[2] = x.z, eight[3] = x.w;
    eight[4] = y.x, eight[5] = y.y, eight[6] = y.z, eight[7] = y.w;
}

// Leaves a thread's sums where the block finds them: the team's tile, row by row.
DEVICE void leave_sums(f32 sums[8][8], LOCAL f32 *room, u32 row, u32 col)
{
    UNROLL
    for (u32 i = 0; i < 8; i++) {
        UNROLL
        for (u32 j = 0; j < 8; j += 4) {
            f32x4 four = {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
            *(LOCAL f32x4 *)(room + (row + i % 4 + i / 4 * 16) * TILE_N + col + j * 8) = four;
        }
    }
}

// Four neighbouring sums of the tile, from all teams.
DEVICE f32x4 add_teams(LOCAL const f32 *room)
{
    f32x4 sum = *(LOCAL const f32x4 *)room;
    UNROLL
    for (u32 team = 1; team < SLICES; team++) {
        f32x4 other = *(LOCAL const f32x4 *)(room + team * TILE_M * TILE_N);
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    return sum;
}

KERNEL LAUNCH_BOUNDS(THREADS, 2) matmul_tiles(GLOBAL R *out, GLOBAL const T *a, GLOBAL const T *b, GLOBAL const R *c,
                   GLOBAL const R *bias, sizes size, strides a_step, strides b_step, strides c_step, FIXED layout a_batch,
                   FIXED layout b_batch, FIXED layout c_batch)
{
    DYNAMIC_SHARED(f32, slabs);
    u32 team = thread_x() / TEAM, member = thread_x() % TEAM;
    u32 row = member / 32 * 32 + member % 32 / 8 * 4, col = member % 8 * 4;
    u32 a_place = team * RUN * A_STEP + row, b_place = DEPTH * A_STEP + team * RUN * B_STEP + col;
    u32 first_row = block_y() * TILE_M, first_col = block_x() * TILE_N, batch = block_z();
    GLOBAL const T *a_tile = a + (i64)first_row * a_step.row, *b_tile = b + (i64)first_col * b_step.col;
    if (batch > 0) {
        a_tile += layout_offset(&a_batch, batch);
        b_tile += layout_offset(&b_batch, batch);
    }
    i64 a_far = A_DEEP ? a_step.row : a_step.col, b_far = B_DEEP ? b_step.col : b_step.row;
    i64 a_next = A_DEEP ? DEPTH : DEPTH * a_far, b_next = B_DEEP ? DEPTH : DEPTH * b_far;
    GLOBAL const T *a_from[A_WORDS], *b_from[B_WORDS];
    u32 a_to[A_WORDS], b_to[B_WORDS], a_depth[A_WORDS], b_depth[B_WORDS];
    find_words(a_from, a_to, a_depth, A_WORDS, a_tile, a_far, TILE_M, size.m - first_row, A_STEP, A_DEEP);
    find_words(b_from, b_to, b_depth, B_WORDS, b_tile, b_far, TILE_N, size.n - first_col, B_STEP, B_DEEP);
    // While one slab is multiplied the next lies in the block's memory, or goes there, and the one after that is loaded. Beyond the
    // last one nothing is left.
    f32x4 a_words[A_WORDS], b_words[B_WORDS];
    u32 left = size.k;
    load_words(a_words, a_from, a_depth, A_WORDS, left, a_next);
    load_words(b_words, b_from, b_depth, B_WORDS, left, b_next);
    f32 sums[8][8], x[2][8], y[2][8];
    UNROLL
    for (u32 i = 0; i < 64; i++) sums[i / 8][i % 8] = 0.0f;
    LOCAL f32 *slab = slabs, *other = slabs + SLAB;
    NEXT_SLAB(slab)
    load_eight(x[0], slab + a_place, slab + a_place + 16);
    load_eight(y[0], slab + b_place, slab + b_place + 32);
    for (u32 depth = 0; depth < size.k; depth += DEPTH) {
        UNROLL
        for (u32 d = 0; d < RUN; d++) {
            // The numbers of the next step are loaded while those of this one are multiplied.
            if (d + 1 == RUN) {
                NEXT_SLAB(other)
            }
            LOCAL const f32 *a_at = d + 1 < RUN ? slab + a_place + (d + 1) * A_STEP : other + a_place;
            LOCAL const f32 *b_at = d + 1 < RUN ? slab + b_place + (d + 1) * B_STEP : other + b_place;
            load_eight(x[(d + 1) % 2], a_at, a_at + 16);
            load_eight(y[(d + 1) % 2], b_at, b_at + 32);
            UNROLL
            for (u32 i = 0; i < 64; i++) sums[i / 8][i % 8] += x[d % 2][i / 8] * y[d % 2][i % 8];
        }
        LOCAL f32 *last = slab;
        slab = other;
        other = last;
    }
    BARRIER();
    leave_sums(sums, slabs + team * TILE_M * TILE_N, row, col);
    BARRIER();
    for (u32 at = thread_x() * 4; at < TILE_M * TILE_N; at += THREADS * 4) {
        u32 r = first_row + at / TILE_N, s = first_col + at % TILE_N;
        if (r >= size.m || s >= size.n) continue;
        f32x4 sum = add_teams(slabs + at);
        f32 four[4] = {sum.x, sum.y, sum.z, sum.w};
        R ended[4];
        UNROLL
        for (u32 j = 0; j < 4; j++) {
            if (s + j < size.n) ended[j] = finished(four[j] * size.alpha, c, bias, size, c_step, &c_batch, batch, r, s + j);
        }
        GLOBAL R *target = out + ((u64)batch * size.m + r) * size.n + s;
#if defined(R_IS_f32)
        if (size.n % 4 == 0) {
            f32x4 word = {ended[0], ended[1], ended[2], ended[3]};
            *(GLOBAL f32x4 *)target = word;
            continue;
        }
#endif
        UNROLL
        for (u32 j = 0; j < 4; j++) {
            if (s + j < size.n) target[j] = ended[j];
        }
    }
}

// Tables of multiples for Ed25519. WINDOW: bits of a window.

#define WINDOWS (256u / WINDOW)
#define ENTRIES (1u << WINDOW)
// How many entries a thread makes.
#define RUN 16u

// Entry 16 i + j of the table is i B + j Q, where Q is the point -A. One block of 256 threads.
KERNEL LAUNCH_BOUNDS(256, 1) ed25519_table(GLOBAL addend *RESTRICT table, GLOBAL const field *RESTRICT key)
{
    field base_x = {{0x8f25d51au, 0xc9562d60u, 0x9525a7b2u, 0x692cc760u, 0xfdd6dc5cu, 0xc0a4e231u, 0xcd6e53feu, 0x216936d3u}};
    field base_y = {{0x66666658u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u}};
    point sum = none();
    addend base = addend_of(affine(base_x, base_y)), other = addend_of(affine(key[0], key[1]));
    ROLLED for (u32 i = 0; i < 30; i++) {
        if (i < 15 ? i < thread_x() / 16 : i - 15 < thread_x() % 16) sum = added(sum, i < 15 ? base : other);
    }
    table[thread_x()] = addend_of(sum);
}

// The points 2^(WINDOW i) B and, where there are two, behind them 2^(WINDOW i) Q, where Q is the point -A: one thread for each.
KERNEL LAUNCH_BOUNDS(32, 1) ed25519_bases(GLOBAL point *RESTRICT bases, GLOBAL const field *RESTRICT key, u32 count)
{
    field base_x = {{0x8f25d51au, 0xc9562d60u, 0x9525a7b2u, 0x692cc760u, 0xfdd6dc5cu, 0xc0a4e231u, 0xcd6e53feu, 0x216936d3u}};
    field base_y = {{0x66666658u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u}};
    if (thread_x() >= count) return;
    point sum = thread_x() == 0 ? affine(base_x, base_y) : affine(key[0], key[1]);
    ROLLED for (u32 i = 0; i < WINDOW * WINDOWS; i++) {
        if (i % WINDOW == 0) bases[thread_x() * WINDOWS + i / WINDOW] = sum;
        sum = doubled(sum);
    }
}

// Entry ENTRIES i + d of the table is d times point i of `bases`. A thread has RUN of them.
KERNEL LAUNCH_BOUNDS(64, 1) ed25519_multiples(GLOBAL addend *RESTRICT table, GLOBAL const point *RESTRICT bases)
{
    u32 place = (block_x() * 64 + thread_x()) * RUN, first = place % ENTRIES;
    addend own = addend_of(bases[place / ENTRIES]);
    point sum = none();
    ROLLED for (u32 i = 0; i < WINDOW; i++) {
        sum = doubled(sum);
        if (first >> (WINDOW - 1 - i) & 1u) sum = added(sum, own);
    }
    ROLLED for (u32 i = 0; i < RUN; i++) {
        table[place + i] = addend_of(sum);
        sum = added(sum, own);
    }
}

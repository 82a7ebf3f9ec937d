// Tables of multiples for ECDSA. WINDOW: bits of a window.

#define WINDOWS (CURVE / WINDOW)
#define ENTRIES (1u << WINDOW)
// How many entries a thread makes.
#define RUN 16u

// The points 2^(WINDOW i) G and, where there are two, behind them 2^(WINDOW i) Q: one thread for each. `key` is Q.
KERNEL LAUNCH_BOUNDS(32, 1) ecdsa_bases(GLOBAL point *RESTRICT bases, GLOBAL const affine *RESTRICT key, u32 count)
{
    if (thread_x() >= count) return;
    point sum = added(none(), base_or(key, thread_x()));
    ROLLED for (u32 i = 0; i < WINDOW * WINDOWS; i++) {
        if (i % WINDOW == 0) bases[thread_x() * WINDOWS + i / WINDOW] = sum;
        sum = doubled(sum);
    }
}

// Entry ENTRIES i + d of the table is d times point i of `bases`; that for no d is not used. A thread has RUN of them,
// and `runs` threads have all.
KERNEL LAUNCH_BOUNDS(64, 1) ecdsa_table(GLOBAL affine *RESTRICT table, GLOBAL const point *RESTRICT bases, u32 runs)
{
    u32 own_run = block_x() * 64 + thread_x(), place = own_run * RUN, first = place % ENTRIES;
    if (own_run >= runs) return;
    point base = bases[place / ENTRIES], sum = none(), sums[RUN];
    number over = inverse(base.z), square = multiply(over, over), products[RUN];
    affine own;
    own.x = multiply(base.x, square);
    own.y = multiply(base.y, multiply(square, over));
    ROLLED for (u32 i = 0; i < WINDOW; i++) {
        sum = doubled(sum);
        if (first >> (WINDOW - 1 - i) & 1u) sum = added(sum, own);
    }
    // One over each Z, from one over the product of all; the Z of no point counts as one.
    ROLLED for (u32 i = 0; i < RUN; i++) {
        sums[i] = sum;
        number z = is_zero(sum.z) ? one() : sum.z;
        products[i] = i > 0 ? multiply(products[i - 1], z) : z;
        sum = added(sum, own);
    }
    over = inverse(products[RUN - 1]);
    ROLLED for (u32 i = RUN; i > 0; i--) {
        point p = sums[i - 1];
        number z = is_zero(p.z) ? one() : p.z, own_over = i > 1 ? multiply(over, products[i - 2]) : over;
        over = multiply(over, z);
        square = multiply(own_over, own_over);
        affine entry;
        entry.x = multiply(p.x, square);
        entry.y = multiply(p.y, multiply(square, own_over));
        table[place + i - 1] = entry;
    }
}

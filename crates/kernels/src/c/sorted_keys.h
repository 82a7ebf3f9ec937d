// Sorting keys in the block's memory. Part of the units that choose the smallest keys.
//
// Parameters: THREADS of the block.

// Sorts `lists` lists of `size` keys, a power of two; list i starts at keys + i * stride. All threads of the block.
DEVICE void sort_keys(u64 *keys, u32 lists, u32 stride, u32 size)
{
    u32 pairs = size / 2, pairs_log2 = 31 - leading_zeros(pairs | 1);
    for (u32 width = 2; width <= size; width *= 2) {
        for (u32 gap = width / 2; gap > 0; gap /= 2) {
            for (u32 i = thread_x(); i < lists * pairs; i += THREADS) {
                u32 pair = i & (pairs - 1), low = ((pair & ~(gap - 1)) << 1) | (pair & (gap - 1));
                u64 *at = keys + (i >> pairs_log2) * stride + low;
                u64 a = at[0], b = at[gap];
                if ((a > b) == ((low & width) == 0)) {
                    at[0] = b;
                    at[gap] = a;
                }
            }
            BARRIER();
        }
    }
}

DEVICE u32 power_of_two_at_least(u32 x) { return x <= 1 ? 1 : 1u << (32 - leading_zeros(x - 1)); }

// Sorting keys in the block's memory. Part of the units that choose the smallest keys.
//
// Parameters: THREADS of the block; WIDE_KEYS where a key is a rank of 64 bits and an index, else it is one number of 64 bits.

#if defined(WIDE_KEYS)
typedef struct ALIGNED(16) { u64 rank, index; } sort_key;
DEVICE int key_less(sort_key a, sort_key b) { return a.rank < b.rank || (a.rank == b.rank && a.index < b.index); }
DEVICE sort_key make_key(u64 rank, u32 index)
{
    sort_key made = {rank, index};
    return made;
}
DEVICE u32 key_index(sort_key a) { return (u32)a.index; }
// Comes after every other.
DEVICE sort_key last_key(void) { return make_key(0xffffffffffffffffULL, 0xffffffffu); }
#else
typedef u64 sort_key;
DEVICE int key_less(sort_key a, sort_key b) { return a < b; }
DEVICE sort_key make_key(u64 rank, u32 index) { return (rank << 32) | index; }
DEVICE u32 key_index(sort_key a) { return (u32)a; }
DEVICE sort_key last_key(void) { return 0xffffffffffffffffULL; }
#endif

// Sorts `lists` lists of `size` keys, a power of two; list i starts at keys + i * stride. All threads of the block.
DEVICE void sort_keys(LOCAL sort_key *keys, u32 lists, u32 stride, u32 size)
{
    u32 pairs = size / 2, pairs_log2 = 31 - leading_zeros(pairs | 1);
    for (u32 width = 2; width <= size; width *= 2) {
        for (u32 gap = width / 2; gap > 0; gap /= 2) {
            for (u32 i = thread_x(); i < lists * pairs; i += THREADS) {
                u32 pair = i & (pairs - 1), low = ((pair & ~(gap - 1)) << 1) | (pair & (gap - 1));
                LOCAL sort_key *at = keys + (i >> pairs_log2) * stride + low;
                sort_key a = at[0], b = at[gap];
                if (key_less(b, a) == ((low & width) == 0)) {
                    at[0] = b;
                    at[gap] = a;
                }
            }
            BARRIER();
        }
    }
}

DEVICE u32 power_of_two_at_least(u32 x) { return x <= 1 ? 1 : 1u << (32 - leading_zeros(x - 1)); }

// The most keys of a list for which counting smaller ones is faster than sorting.
#define RANKED_MAX 128

// Moves the `kept` smallest keys of each list, in order, to the places from stride - kept on, where counts[i] keys of list i do not
// reach. Keys are distinct. `size` is a power of two, no count is above it, and it is at most RANKED_MAX. All threads of the block.
DEVICE void rank_keys(LOCAL sort_key *keys, LOCAL const u32 *counts, u32 lists, u32 stride, u32 size, u32 kept)
{
    // Neighbouring lanes share the counting for one key.
    u32 slots = lists * size, shared_by = 1, size_log2 = 31 - leading_zeros(size);
    while (shared_by < WARP && slots * shared_by * 2 <= THREADS) shared_by *= 2;
    u32 part = thread_x() & (shared_by - 1), step = THREADS / shared_by;
    for (u32 base = 0; base < slots; base += step) {
        u32 slot = base + thread_x() / shared_by, list = slot >> size_log2, place = slot & (size - 1);
        u32 count = slot < slots ? counts[list] : 0, rank = 0;
        LOCAL sort_key *from = keys + (u64)list * stride;
        sort_key mine = place < count ? from[place] : last_key();
        for (u32 i = part; i < count; i += shared_by) rank += key_less(from[i], mine);
        for (u32 mask = shared_by / 2; mask > 0; mask /= 2) rank += shuffle_xor_u32(rank, mask);
        if (part == 0 && place < count && rank < kept) from[stride - kept + rank] = mine;
    }
    BARRIER();
}

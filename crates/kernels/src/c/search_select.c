// The k nearest of each query's candidates. METRIC as in search_keys.h; THREADS of a block, which takes one query.
//
// A list that had more candidates than room has lost some. This does not harm a threshold, which comes from rows that exist.
// A result would be wrong, so such a query is put on the list of those that are searched again.

// Bins of a lane, where a warp has all 256.
#define BINS_OF_LANE (256 / WARP)

// A bound that exactly k of the keys, which are distinct, do not exceed. There must be k. All threads of the block.
DEVICE u64 bound_of_smallest(const u64 *keys, u32 count, u32 k)
{
    SHARED u32 bins[256], digit, below, within;
    u64 prefix = 0;
    for (u32 shift = 56;; shift -= 8) {
        for (u32 i = thread_x(); i < 256; i += THREADS) bins[i] = 0;
        BARRIER();
        for (u32 i = thread_x(); i < count; i += THREADS) {
            u64 key = keys[i];
            if (((key ^ prefix) >> shift) < 256) ATOMIC_ADD(&bins[(key >> shift) & 255u], 1u);
        }
        BARRIER();
        if (thread_x() < WARP) {
            u32 mine = 0, upto;
            for (u32 i = 0; i < BINS_OF_LANE; i++) mine += bins[lane() * BINS_OF_LANE + i];
            upto = mine;
            for (u32 by = 1; by < WARP; by *= 2) {
                u32 other = shuffle_up_u32(upto, by);
                if (lane() >= by) upto += other;
            }
            u32 before = upto - mine;
            if (before < k && k <= upto) {
                u32 i = lane() * BINS_OF_LANE;
                while (before + bins[i] < k) before += bins[i++];
                digit = i;
                below = before;
                within = bins[i];
            }
        }
        BARRIER();
        prefix |= (u64)digit << shift;
        k -= below;
        if (within == k || shift == 0) return prefix | ((1ULL << shift) - 1);
        // The bins are cleared only when all have read what was found.
        BARRIER();
    }
}

// Small k: each of the groups into which the keys are dealt has its smallest; k of those do not exceed their k-th, and no more than k
// groups have keys that do not.
#define GROUPS 64
#define GROUPED_K_MAX 16

// A bound that at least k of the keys do not exceed, and few more, for k up to GROUPED_K_MAX; MISSING_KEY where there may be no k.
// `spare` has room for four times GROUPS. All threads of the block.
DEVICE u64 bound_by_groups(const u64 *keys, u32 count, u32 k, u64 *spare)
{
    SHARED u32 groups;
    u32 sharers = THREADS / GROUPS, group = thread_x() / sharers;
    u64 least = MISSING_KEY;
    for (u32 i = thread_x() % sharers * GROUPS + group; i < count; i += THREADS) least = keys[i] < least ? keys[i] : least;
    for (u32 mask = sharers / 2; mask > 0; mask /= 2) {
        u64 other = shuffle_xor_u64(least, mask);
        least = other < least ? other : least;
    }
    if (thread_x() == 0) groups = 0;
    BARRIER();
    if (thread_x() % sharers == 0 && least != MISSING_KEY) spare[ATOMIC_ADD(&groups, 1u)] = least;
    BARRIER();
    if (groups < k) return MISSING_KEY;
    rank_keys(spare, &groups, 1, 4 * GROUPS, GROUPS, k);
    return spare[4 * GROUPS - 1];
}

// A bound that at least k of the keys do not exceed; MISSING_KEY where there are fewer. All threads of the block.
DEVICE u64 bound_of(const u64 *keys, u32 count, u32 k, u64 *spare)
{
    if (count < k) return MISSING_KEY;
    u64 bound = k <= GROUPED_K_MAX ? bound_by_groups(keys, count, k, spare) : MISSING_KEY;
    return bound != MISSING_KEY ? bound : bound_of_smallest(keys, count, k);
}

// Gathers the keys up to the bound, without the places that no row took, as long as there is room. Returns how many there are. All
// threads of the block.
DEVICE u32 gather(u64 *to, u32 room, const u64 *keys, u32 count, u64 bound)
{
    SHARED u32 taken;
    BARRIER();
    if (thread_x() == 0) taken = 0;
    BARRIER();
    for (u32 i = thread_x(); i < count; i += THREADS) {
        u64 key = keys[i];
        if (key > bound || key == MISSING_KEY) continue;
        u32 place = ATOMIC_ADD(&taken, 1u);
        if (place < room) to[place] = key;
    }
    BARRIER();
    return taken;
}

// The k smallest keys in order, from the result on. `spare` has room for k, at least twice RANKED_MAX; `found` becomes how many there
// are, at most k. All threads of the block.
DEVICE const u64 *smallest_in_order(u64 *keys, u32 count, u64 *spare, u32 spare_size, u32 k, u32 *found)
{
    SHARED u32 taken;
    u32 room = k <= GROUPED_K_MAX ? RANKED_MAX : spare_size, near = gather(spare, room, keys, count, bound_of(keys, count, k, spare));
    // An unlucky order of keys makes the bound of groups a wide one.
    if (near > room) near = gather(spare, spare_size, keys, count, bound_of_smallest(keys, count, k));
    u32 kept = near < k ? near : k, size = power_of_two_at_least(near);
    *found = kept;
    if (thread_x() == 0) taken = near;
    if (size <= RANKED_MAX) {
        BARRIER();
        rank_keys(spare, &taken, 1, spare_size, size, kept);
        return spare + spare_size - kept;
    }
    for (u32 i = near + thread_x(); i < size; i += THREADS) spare[i] = MISSING_KEY;
    BARRIER();
    sort_keys(spare, 1, 0, size);
    return spare;
}

// With `ids` null, sets the query's threshold to its k-th key or a little more, and leaves what is within in its list, or nothing unless
// it `keeps` them; of a list that ran over, only that. Else writes the result.
// `given` is the number of keys of every list, or 0 where `counts` says it. `chosen` is the number of queries whose list ran over,
// and then their numbers. The block's memory has room for `spare_size` keys and a list.
KERNEL LAUNCH_BOUNDS(THREADS, 2) search_select(GLOBAL u64 *lists, GLOBAL u32 *counts, GLOBAL u64 *thresholds, GLOBAL u32 *chosen,
    GLOBAL u32 *ids, GLOBAL f32 *scores, u32 given, u32 capacity, u32 k, u32 places, u32 spare_size, u32 keeps)
{
    DYNAMIC_SHARED(u64, spare);
    u64 *keys = spare + spare_size;
    u32 query = block_x(), found = given ? given : counts[query];
    if (ids && found > capacity) {
        if (thread_x() == 0) chosen[1 + ATOMIC_ADD(&chosen[0], 1u)] = query;
        return;
    }
    u32 count = found < capacity ? found : capacity;
    GLOBAL u64 *list = lists + (u64)query * capacity;
    for (u32 i = thread_x(); i < count; i += THREADS) keys[i] = list[i];
    BARRIER();
    if (ids) {
        u32 kept;
        const u64 *result = smallest_in_order(keys, count, spare, spare_size, k, &kept);
        for (u32 i = thread_x(); i < places; i += THREADS) {
            write_neighbour(ids, scores, (u64)query * places + i, i < kept ? result[i] : MISSING_KEY);
        }
        return;
    }
    u64 threshold = bound_of(keys, count, k, spare);
    u32 kept = keeps ? gather(list, capacity, keys, count, threshold) : 0;
    if (thread_x() == 0) {
        if (given || threshold < thresholds[query]) thresholds[query] = threshold;
        counts[query] = keeps && found > capacity ? found : kept;
        if (query == 0) chosen[0] = 0;
    }
}

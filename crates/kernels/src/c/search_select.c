// The k nearest of each query's candidates. METRIC as in search_keys.h; THREADS of a block, which takes one query.
//
// A list that had more candidates than room has lost some. For a threshold that does not matter: it comes from rows that exist.
// For a result it does, so such a query is put on the list of those that are searched anew.

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
            for (u32 i = 0; i < 8; i++) mine += bins[lane() * 8 + i];
            upto = mine;
            for (u32 by = 1; by < WARP; by *= 2) {
                u32 other = shuffle_up_u32(upto, by);
                if (lane() >= by) upto += other;
            }
            u32 before = upto - mine;
            if (before < k && k <= upto) {
                u32 i = lane() * 8;
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

// Brings a list to the block's memory, without the places that no row took. Returns how many keys it has. All threads of the block.
DEVICE u32 load_list(u64 *keys, GLOBAL const u64 *list, u32 count)
{
    SHARED u32 found;
    if (thread_x() == 0) found = 0;
    BARRIER();
    for (u32 i = thread_x(); i < count; i += THREADS) {
        u64 key = list[i];
        if (key != MISSING_KEY) keys[ATOMIC_ADD(&found, 1u)] = key;
    }
    BARRIER();
    return found;
}

// The `kept` smallest keys in order, from the result on. `spare` has room for `kept`, at least twice RANKED_MAX. All threads of the block.
DEVICE const u64 *smallest_in_order(u64 *keys, u32 count, u64 *spare, u32 spare_size, u32 kept)
{
    SHARED u32 taken;
    u64 bound = count > kept ? bound_of_smallest(keys, count, kept) : MISSING_KEY;
    BARRIER();
    if (thread_x() == 0) taken = 0;
    BARRIER();
    for (u32 i = thread_x(); i < count; i += THREADS) {
        u64 key = keys[i];
        if (key <= bound) spare[ATOMIC_ADD(&taken, 1u)] = key;
    }
    BARRIER();
    u32 size = power_of_two_at_least(kept);
    if (size <= RANKED_MAX) {
        rank_keys(spare, &taken, 1, spare_size, size, kept);
        return spare + spare_size - kept;
    }
    for (u32 i = kept + thread_x(); i < size; i += THREADS) spare[i] = MISSING_KEY;
    BARRIER();
    sort_keys(spare, 1, 0, size);
    return spare;
}

// With `ids` null, sets the query's threshold to its k-th key, and leaves the k nearest in its list, or nothing unless it
// `keeps` them; of a list that ran over, only that. Else writes the result.
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
    u32 count = load_list(keys, lists + (u64)query * capacity, found < capacity ? found : capacity);
    if (ids) {
        u32 kept = count < k ? count : k;
        const u64 *result = smallest_in_order(keys, count, spare, spare_size, kept);
        for (u32 i = thread_x(); i < places; i += THREADS) {
            write_neighbour(ids, scores, (u64)query * places + i, i < kept ? result[i] : MISSING_KEY);
        }
        return;
    }
    u64 threshold = count >= k ? bound_of_smallest(keys, count, k) : MISSING_KEY;
    SHARED u32 kept;
    if (thread_x() == 0) kept = 0;
    BARRIER();
    if (keeps) {
        for (u32 i = thread_x(); i < count; i += THREADS) {
            if (keys[i] <= threshold) lists[(u64)query * capacity + ATOMIC_ADD(&kept, 1u)] = keys[i];
        }
    }
    BARRIER();
    if (thread_x() == 0) {
        if (given || threshold < thresholds[query]) thresholds[query] = threshold;
        counts[query] = keeps && found > capacity ? found : kept;
        if (query == 0) chosen[0] = 0;
    }
}

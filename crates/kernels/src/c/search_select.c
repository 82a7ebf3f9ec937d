// The k nearest of each query's candidates. METRIC as in search_score.h; THREADS of a block, which takes one query.
//
// A list that had more candidates than room has lost some. For a threshold that does not matter: it comes from rows that exist.
// For a result it does, so such a query is put on the list of those that are searched anew.

// With `ids` null, sets the query's threshold to its k-th key and makes its list empty for the next pass. Else writes the result.
// `given` is the number of keys of every list, or 0 where `counts` says it. `chosen` is the number of queries whose list ran over,
// and then their numbers.
KERNEL LAUNCH_BOUNDS(THREADS, 1) search_select(GLOBAL const u64 *RESTRICT lists, GLOBAL u32 *counts, GLOBAL u64 *thresholds, GLOBAL u32 *chosen,
    GLOBAL u32 *ids, GLOBAL f32 *scores, u32 given, u32 capacity, u32 k, u32 places)
{
    DYNAMIC_SHARED(u64, keys);
    u32 query = block_x(), found = given ? given : counts[query];
    GLOBAL const u64 *list = lists + (u64)query * capacity;
    if (ids && found > capacity) {
        if (thread_x() == 0) chosen[1 + ATOMIC_ADD(&chosen[0], 1u)] = query;
        return;
    }
    u32 count = found < capacity ? found : capacity, size = power_of_two_at_least(count);
    for (u32 i = thread_x(); i < size; i += THREADS) keys[i] = i < count ? list[i] : MISSING_KEY;
    BARRIER();
    sort_keys(keys, 1, 0, size);
    if (ids) {
        for (u32 i = thread_x(); i < places; i += THREADS) {
            write_neighbour(ids, scores, (u64)query * places + i, i < k && i < count ? keys[i] : MISSING_KEY);
        }
    } else if (thread_x() == 0) {
        u64 threshold = count >= k ? keys[k - 1] : MISSING_KEY;
        if (given || threshold < thresholds[query]) thresholds[query] = threshold;
        counts[query] = 0;
        if (query == 0) chosen[0] = 0;
    }
}

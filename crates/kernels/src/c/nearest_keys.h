// The nearest of the keys that are offered: lists in the block's memory, and the merge of several blocks' lists. Needs sorted_keys.h.
//
// Parameters: THREADS of the block, QUERIES, the number of lists.
//
// Keys below a list's threshold are added; when more might not fit, the list is sorted, cut to the k smallest, and its last key
// becomes the threshold.

// Loads under way in a merge, for each query.
#define MERGE_STEPS (QUERIES < 8 ? 8 / QUERIES : 1)
// Parts whose nearest give the first threshold.
#define MERGE_SOME 64
#define TICKETS_MAX 4096

typedef struct {
    LOCAL sort_key *keys;       // QUERIES lists of `capacity` keys
    LOCAL sort_key *thresholds; // keys from here on are not wanted
    LOCAL u32 *counts;
    LOCAL u32 *firsts;          // room for a number of each list
    u32 capacity, k;
} nearest;

// Adds a key. Where there is no room it is only counted.
DEVICE void offer(const nearest *lists, u32 query, sort_key key)
{
    if (key_less(key, lists->thresholds[query])) {
        u32 place = ATOMIC_ADD(&lists->counts[query], 1u);
        if (place < lists->capacity) lists->keys[query * lists->capacity + place] = key;
    }
}

// The longest list's number of keys. Called by all threads of the block, while no thread offers keys.
DEVICE u32 most_keys(const nearest *lists)
{
    u32 most = 0;
    for (u32 query = 0; query < QUERIES; query++) most = lists->counts[query] > most ? lists->counts[query] : most;
    return most;
}

DEVICE void sort_lists(const nearest *lists, u32 size)
{
    for (u32 query = 0; query < QUERIES; query++) {
        for (u32 i = lists->counts[query] + thread_x(); i < size; i += THREADS) {
            lists->keys[query * lists->capacity + i] = last_key();
        }
    }
    BARRIER();
    sort_keys(lists->keys, QUERIES, lists->capacity, size);
}

// As sort_lists, for the k nearest alone.
DEVICE void rank_lists(const nearest *lists, u32 size)
{
    u32 k = lists->k;
    rank_keys(lists->keys, lists->counts, QUERIES, lists->capacity, size, k);
    for (u32 i = thread_x(); i < QUERIES * k; i += THREADS) {
        u32 query = i / k, place = i % k;
        LOCAL sort_key *list = lists->keys + query * lists->capacity;
        if (place < lists->counts[query]) list[place] = list[lists->capacity - k + place];
    }
    BARRIER();
}

// Sorts the lists, cuts them to the k nearest and sets the thresholds. All threads of the block, after a barrier.
DEVICE void tighten(const nearest *lists)
{
    u32 most = most_keys(lists), size = power_of_two_at_least(most);
    if (size <= RANKED_MAX && most + lists->k <= lists->capacity) rank_lists(lists, size);
    else sort_lists(lists, size);
    if (thread_x() < QUERIES) {
        u32 query = thread_x(), count = lists->counts[query];
        lists->counts[query] = count < lists->k ? count : lists->k;
        if (count >= lists->k) lists->thresholds[query] = lists->keys[query * lists->capacity + lists->k - 1];
    }
    BARRIER();
}

// Keys of a list from which its first threshold comes.
#define FIRST_MAX 64

// Sets the first thresholds from the beginning of each list, and drops what they do not let pass; the lists stay unsorted. For
// lists of at most THREADS keys. All threads of the block, after a barrier.
DEVICE void tighten_first(const nearest *lists)
{
    LOCAL u32 *firsts = lists->firsts;
    u32 k = lists->k;
    if (thread_x() < QUERIES) firsts[thread_x()] = lists->counts[thread_x()] < FIRST_MAX ? lists->counts[thread_x()] : FIRST_MAX;
    BARRIER();
    rank_keys(lists->keys, firsts, QUERIES, lists->capacity, FIRST_MAX, k);
    for (u32 query = 0; query < QUERIES; query++) {
        LOCAL sort_key *list = lists->keys + query * lists->capacity;
        u32 count = lists->counts[query];
        if (firsts[query] < k) continue;
        sort_key threshold = list[lists->capacity - 1], mine = thread_x() < count ? list[thread_x()] : last_key();
        BARRIER();
        if (thread_x() == 0) {
            lists->counts[query] = 0;
            lists->thresholds[query] = threshold;
        }
        BARRIER();
        if (!key_less(threshold, mine)) list[ATOMIC_ADD(&lists->counts[query], 1u)] = mine;
    }
    BARRIER();
}

// Makes room for `more` keys in every list. All threads of the block, after which they may offer so many.
DEVICE void make_room(const nearest *lists, u32 more)
{
    BARRIER();
    int full = 0, first = 0;
    u32 most = most_keys(lists);
    for (u32 query = 0; query < QUERIES; query++) {
        u32 count = lists->counts[query];
        full |= count + more > lists->capacity;
        first |= count >= lists->k && !key_less(lists->thresholds[query], last_key());
    }
    BARRIER();
    if (first && QUERIES <= 4 && lists->k <= FIRST_MAX / 2 && most <= THREADS && most + lists->k <= lists->capacity && !full) tighten_first(lists);
    else if (full || first) tighten(lists);
}

// Makes the lists empty. All threads of the block.
DEVICE void clear(const nearest *lists)
{
    BARRIER();
    if (thread_x() < QUERIES) {
        lists->thresholds[thread_x()] = last_key();
        lists->counts[thread_x()] = 0;
    }
    BARRIER();
}

// A key that another block has written.
DEVICE sort_key load_fresh(GLOBAL const sort_key *p)
{
#if defined(WIDE_KEYS)
    return make_key(((GLOBAL const volatile u64 *)p)[0], (u32)((GLOBAL const volatile u64 *)p)[1]);
#else
    return *(GLOBAL const volatile u64 *)p;
#endif
}

// The part of each query's keys that a thread has loaded: number base + t * width + thread.
typedef sort_key loaded_keys[MERGE_STEPS][QUERIES];

DEVICE void load_parts(loaded_keys loaded, GLOBAL const sort_key *parts_keys, u32 base, u32 width, u32 total)
{
    UNROLL for (u32 t = 0; t < MERGE_STEPS; t++) {
        u32 i = base + t * width + thread_x();
        int present = thread_x() < width && i < total;
        UNROLL for (u32 query = 0; query < QUERIES; query++) {
            loaded[t][query] = present ? load_fresh(&parts_keys[(u64)query * total + i]) : last_key();
        }
    }
}

// Offers all keys, those of a query `total` apart, bit by bit.
DEVICE void offer_carefully(const nearest *lists, GLOBAL const sort_key *parts_keys, u32 total)
{
    u32 share = (lists->capacity - lists->k) / 2, width = share < THREADS ? share : THREADS;
    for (u32 base = 0; base < total; base += width * MERGE_STEPS) {
        loaded_keys loaded;
        load_parts(loaded, parts_keys, base, width, total);
        UNROLL for (u32 t = 0; t < MERGE_STEPS; t++) {
            if (base + t * width >= total) break;
            make_room(lists, width);
            UNROLL for (u32 query = 0; query < QUERIES; query++) offer(lists, query, loaded[t][query]);
        }
    }
}

// Offers all keys after the first `some`. Those must be in the lists already.
DEVICE void offer_rest(const nearest *lists, const loaded_keys first_loaded, GLOBAL const sort_key *parts_keys, u32 some, u32 total)
{
    UNROLL for (u32 t = 0; t < MERGE_STEPS; t++) {
        UNROLL for (u32 query = 0; query < QUERIES; query++) {
            if (t * THREADS + thread_x() >= some) offer(lists, query, first_loaded[t][query]);
        }
    }
    for (u32 base = THREADS * MERGE_STEPS; base < total; base += THREADS * MERGE_STEPS) {
        loaded_keys loaded;
        load_parts(loaded, parts_keys, base, THREADS, total);
        UNROLL for (u32 t = 0; t < MERGE_STEPS; t++) {
            UNROLL for (u32 query = 0; query < QUERIES; query++) offer(lists, query, loaded[t][query]);
        }
    }
}

// Merges the lists of all parts of a group. All threads of the block. The nearest of each part come first: the k-th of some of them
// is a threshold that little of the rest passes. Should it not fit all the same, everything is offered again, bit by bit.
DEVICE void merge_parts(const nearest *lists, GLOBAL const sort_key *parts_keys, u32 parts)
{
    u32 total = parts * lists->k, some = parts < MERGE_SOME ? parts : MERGE_SOME;
    loaded_keys loaded;
    load_parts(loaded, parts_keys, 0, THREADS, total);
    clear(lists);
    UNROLL for (u32 query = 0; query < QUERIES; query++) {
        if (thread_x() < some) offer(lists, query, loaded[0][query]);
    }
    BARRIER();
    tighten(lists);
    offer_rest(lists, loaded, parts_keys, some, total);
    BARRIER();
    if (most_keys(lists) > lists->capacity) {
        clear(lists);
        offer_carefully(lists, parts_keys, total);
        BARRIER();
    }
    tighten(lists);
}

// Whether this block is the last to finish a part of the group. `tickets` are zero before the first launch, and left so. All threads of
// the block.
DEVICE int finishes_group(const nearest *lists, GLOBAL u32 *tickets, u32 group, u32 parts)
{
    LOCAL u32 *last = lists->firsts;
    BARRIER();
    if (thread_x() == 0) {
        *last = atomic_add_ordered(&tickets[group % TICKETS_MAX], 1u) == parts - 1;
        if (*last) tickets[group % TICKETS_MAX] = 0;
    }
    BARRIER();
    return (int)*last;
}


// Lists of the smallest keys, each kept by one thread in device memory, for devices whose threads do not see each other's values. A list is a
// heap whose largest key comes first: a key is compared with that one, and most go no further. Needs sorted_keys.h.

// Puts a key in the place of the first, and lets it sink to where it belongs.
DEVICE void heap_sink(GLOBAL sort_key *heap, u32 count, sort_key key)
{
    u32 at = 0;
    for (u32 child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && key_less(heap[child], heap[child + 1])) child++;
        if (!key_less(key, heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
}

// Adds a key where it is one of the k smallest; returns how many there are now.
DEVICE u32 heap_offer(GLOBAL sort_key *heap, u32 count, u32 k, sort_key key)
{
    if (count == k) {
        if (key_less(key, heap[0])) heap_sink(heap, count, key);
        return count;
    }
    u32 at = count;
    for (; at > 0; at = (at - 1) / 2) {
        sort_key parent = heap[(at - 1) / 2];
        if (!key_less(parent, key)) break;
        heap[at] = parent;
    }
    heap[at] = key;
    return count + 1;
}

// Puts the keys of a heap in order, the smallest first.
DEVICE void heap_sort(GLOBAL sort_key *heap, u32 count)
{
    for (u32 left = count; left > 1; left--) {
        sort_key largest = heap[0], last = heap[left - 1];
        heap_sink(heap, left - 1, last);
        heap[left - 1] = largest;
    }
}

// Adds the keys of other heaps, k places apart, to the first of them, and puts that in order; returns how many it has.
DEVICE u32 heap_merge(GLOBAL sort_key *heaps, GLOBAL const u32 *counts, u32 parts, u32 k)
{
    u32 count = counts[0];
    for (u32 part = 1; part < parts; part++) {
        for (u32 i = 0; i < counts[part]; i++) count = heap_offer(heaps, count, k, heaps[(u64)part * k + i]);
    }
    heap_sort(heaps, count);
    return count;
}

// The k largest or smallest elements of lanes, in order, with their indices.
//
// Parameters: T, the element; LARGEST; STEPS, loads under way in a thread; those of nearest_keys.h, QUERIES being 1.
// A lane's elements lie `inner` apart: lane l begins at (l / inner) * length * inner + l % inner.

#if defined(WIDE_KEYS)
DEVICE u64 ascending_rank(f64 x)
{
    if (x != x) return 0xffffffffffffffffULL;
    u64 bits = f64_bits(x + 0.0);
    return bits ^ ((bits >> 63) ? 0xffffffffffffffffULL : 0x8000000000000000ULL);
}
DEVICE u64 rank_of(T x) { return LARGEST ? ~ascending_rank(x) : ascending_rank(x); }
#else
// NaN is above every number, or with NAN_LAST behind all that are chosen; both zeros are the same.
DEVICE u32 ascending_rank(T x)
{
#if defined(T_IS_f32) || defined(T_IS_f16) || defined(T_IS_bf16)
    f32 number = T_LOAD(x);
#if defined(NAN_LAST)
    if (number != number) return LARGEST ? 0u : 0xffffffffu;
#else
    if (number != number) return 0xffffffffu;
#endif
    u32 bits = f32_bits(number + 0.0f);
    return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
#elif defined(T_IS_u32) || defined(T_IS_u8)
    return (u32)x;
#else
    return (u32)(i32)x ^ 0x80000000u;
#endif
}
DEVICE u32 rank_of(T x) { return LARGEST ? ~ascending_rank(x) : ascending_rank(x); }
#endif

DEVICE u64 lane_start(u64 number, u32 length, u64 inner) { return number / inner * length * inner + number % inner; }

DEVICE void write_chosen(GLOBAL T *values, GLOBAL u32 *indices, u64 place, GLOBAL const T *input, u64 inner, sort_key chosen)
{
    values[place] = input[key_index(chosen) * inner];
    indices[place] = key_index(chosen);
}

#if defined(HEAPS)

// Where threads do not see each other's values: a thread for each lane and part of it, of `chunk` elements.
KERNEL LAUNCH_BOUNDS(THREADS, 1) topk_parts(GLOBAL const T *RESTRICT input, GLOBAL sort_key *heaps, GLOBAL u32 *counts, u64 lanes, u32 length,
    u64 inner, u32 k, u32 parts, u32 chunk)
{
    u64 number = (u64)block_x() * THREADS + thread_x(), which = number / parts;
    if (which >= lanes) return;
    GLOBAL const T *from = input + lane_start(which, length, inner);
    GLOBAL sort_key *heap = heaps + number * k;
    u64 begin = number % parts * chunk, end = begin + chunk < length ? begin + chunk : length;
    u32 found = 0;
    for (u64 i = begin; i < end; i++) found = heap_offer(heap, found, k, make_key(rank_of(from[i * inner]), (u32)i));
    counts[number] = found;
}

// A thread for each lane.
KERNEL LAUNCH_BOUNDS(THREADS, 1) topk_join(GLOBAL const T *RESTRICT input, GLOBAL T *values, GLOBAL u32 *indices, GLOBAL sort_key *heaps,
    GLOBAL const u32 *counts, u64 lanes, u32 length, u64 inner, u32 k, u32 parts)
{
    u64 which = (u64)block_x() * THREADS + thread_x();
    if (which >= lanes) return;
    GLOBAL sort_key *heap = heaps + which * parts * k;
    u32 found = heap_merge(heap, counts + which * parts, parts, k);
    for (u32 i = 0; i < found; i++) {
        write_chosen(values, indices, lane_start(which, k, inner) + i * inner, input + lane_start(which, length, inner), inner, heap[i]);
    }
}

#else

// One round's keys, THREADS of them at a time, with room made before. All threads of the block.
DEVICE void offer_round(const nearest *lists, const sort_key *keys)
{
    UNROLL for (u32 t = 0; t < STEPS; t++) {
        make_room(lists, THREADS);
        offer(lists, 0, keys[t]);
    }
    BARRIER();
}

// Offers a part of a lane: rounds of THREADS * STEPS elements, every `parts`-th of them.
DEVICE void offer_part(const nearest *lists, GLOBAL const T *input, u32 length, u64 inner, u32 part, u32 parts)
{
    for (u64 base = (u64)part * THREADS * STEPS; base < length; base += (u64)parts * THREADS * STEPS) {
        sort_key keys[STEPS];
        T loaded[STEPS];
        UNROLL for (u32 t = 0; t < STEPS; t++) {
            u64 i = base + t * THREADS + thread_x();
            loaded[t] = i < length ? input[i * inner] : 0;
        }
        UNROLL for (u32 t = 0; t < STEPS; t++) {
            u64 i = base + t * THREADS + thread_x();
            keys[t] = i < length ? make_key(rank_of(loaded[t]), (u32)i) : last_key();
        }
        // Most rounds add next to nothing. One that does not fit is taken back, and done again bit by bit.
        u32 before = lists->counts[0];
        int known = key_less(lists->thresholds[0], last_key());
        BARRIER();
        if (known) {
            UNROLL for (u32 t = 0; t < STEPS; t++) offer(lists, 0, keys[t]);
            BARRIER();
        }
        if (!known || lists->counts[0] > lists->capacity) {
            BARRIER();
            if (thread_x() == 0) lists->counts[0] = before;
            BARRIER();
            offer_round(lists, keys);
        }
    }
}

// Items are a lane and a part of it. `parts_keys` has room for k keys of every lane and part.
KERNEL LAUNCH_BOUNDS(THREADS, 2) topk(GLOBAL const T *RESTRICT input, GLOBAL T *values, GLOBAL u32 *indices, GLOBAL sort_key *parts_keys,
    GLOBAL u32 *tickets, u64 lanes, u32 length, u64 inner, u32 k, u32 capacity, u32 parts)
{
    DYNAMIC_SHARED(sort_key, memory);
    SHARED sort_key thresholds[1];
    SHARED u32 counts[1], firsts[1];
    nearest lists = {memory, thresholds, counts, firsts, capacity, k};
    for (u64 item = block_x(); item < lanes * parts; item += grid_size_x()) {
        u64 number = item / parts;
        u32 part = (u32)(item % parts);
        GLOBAL const T *from = input + lane_start(number, length, inner);
        clear(&lists);
        offer_part(&lists, from, length, inner, part, parts);
        BARRIER();
        tighten(&lists);
        if (parts > 1) {
            GLOBAL sort_key *target = parts_keys + number * k * parts;
            for (u32 i = thread_x(); i < k; i += THREADS) target[(u64)i * parts + part] = i < counts[0] ? memory[i] : last_key();
            if (!finishes_group(&lists, tickets, (u32)number, parts)) continue;
            merge_parts(&lists, target, parts);
        }
        for (u32 i = thread_x(); i < k; i += THREADS) {
            write_chosen(values, indices, lane_start(number, k, inner) + i * inner, from, inner, memory[i]);
        }
    }
}

#endif

// For a large k: the keys of whole lanes, sorted in device memory. `size` is a power of two.
KERNEL LAUNCH_BOUNDS(THREADS, 2) fill_keys(GLOBAL const T *RESTRICT input, GLOBAL sort_key *keys, u64 lanes, u32 length, u64 inner, u64 size)
{
    u64 step = (u64)grid_size_x() * THREADS;
    for (u64 i = (u64)block_x() * THREADS + thread_x(); i < lanes * size; i += step) {
        u64 number = i / size, index = i % size;
        keys[i] = index < length ? make_key(rank_of(input[lane_start(number, length, inner) + index * inner]), (u32)index) : last_key();
    }
}

// One step of sorting: keys `gap` apart, in runs of `width`.
KERNEL LAUNCH_BOUNDS(THREADS, 2) sort_step(GLOBAL sort_key *keys, u64 pairs, u64 size, u64 width, u64 gap)
{
    u64 step = (u64)grid_size_x() * THREADS;
    for (u64 i = (u64)block_x() * THREADS + thread_x(); i < pairs; i += step) {
        u64 low = ((i & ~(gap - 1)) << 1) | (i & (gap - 1));
        sort_key a = keys[low], b = keys[low + gap];
        if (key_less(b, a) == (((low & (size - 1)) & width) == 0)) {
            keys[low] = b;
            keys[low + gap] = a;
        }
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, 2) write_sorted(GLOBAL const T *RESTRICT input, GLOBAL T *values, GLOBAL u32 *indices, GLOBAL const sort_key *keys, u64 lanes,
    u32 length, u64 inner, u32 k, u64 size)
{
    u64 step = (u64)grid_size_x() * THREADS;
    for (u64 i = (u64)block_x() * THREADS + thread_x(); i < lanes * k; i += step) {
        u64 number = i / k, place = i % k;
        write_chosen(values, indices, lane_start(number, k, inner) + place * inner, input + lane_start(number, length, inner), inner,
            keys[number * size + place]);
    }
}

// Sort, argsort and sort by key, along lines of one length.
//
// Elements are moved by their bits, so that a zero keeps its sign and a NaN its bits. They are compared by `order`, an
// unsigned number made from the bits on the fly: NaN is above everything, both zeros are equal, and all bits are inverted if the
// largest comes first. Every sort here is stable.
//
//   sort_lines      lines of up to 2048 elements: several lines to a block, a bitonic network over (order, position)
//   sort_block      lines of up to TILE elements: one to a block, all digits in the block's memory
//   histogram, sort_digit
//                   longer lines: the counts of every digit in one pass, and then one pass for each digit of eight bits,
//                   lowest first. A tile learns where its elements go from the tiles before it on the line, by looking
//                   back at what they have published.
//   count_chunks, start_chunks, move_chunks
//                   longer lines if each thread is a separate warp: each thread has a chunk of a line, and counts and moves it
//                   element by element, in three launches for each digit
//
// T_BYTES     the size of a key; its type is a `rule`
// V_BYTES     the size of a value that follows its key; 0: none
// ITEMS       keys of one thread in a tile
// CODED       1 where keys change to `order` in the first pass over digits and back in the last, and move as that in
//             between. NaNs then all come out as one, so it is not for sorts that keep everything.
//
// Where no values are given, those that come out are the positions of the keys on their lines. Where keys_out is null,
// sorted keys are not wanted.

#define THREADS 384
#define WARPS (THREADS / WARP)
#define DIGITS 256u
#define PASSES T_BYTES

#if T_BYTES == 1
typedef u8 raw;
#elif T_BYTES == 2
typedef u16 raw;
#elif T_BYTES == 4
typedef u32 raw;
#else
typedef u64 raw;
#endif

#if T_BYTES == 8
typedef u64 key;
#else
typedef u32 key;
#endif

#if V_BYTES == 1
typedef u8 value;
#elif V_BYTES == 2
typedef u16 value;
#elif V_BYTES == 8
typedef u64 value;
#else
typedef u32 value;
#endif

#define SIGN ((key)1 << (T_BYTES * 8 - 1))
#define MASK (SIGN - 1 + SIGN)

// The type of the keys and their direction. One kernel serves all types of a size.
typedef struct {
    // The bits of infinity, for floats; 0 for integers.
    u64 infinity;
    // The bits that are inverted in an integer: its sign bit, if it has one.
    u64 sign;
    // The bits that are inverted at the end: all, if the largest comes first.
    u64 turn;
    // Floats of a smaller magnitude are equal: 1 where the sign of a zero does not count, else 0.
    u64 equal_below;
} rule;

DEVICE key order(raw bits, const rule *as)
{
    key k = (key)bits;
    if (as->infinity != 0) {
        key magnitude = k & (SIGN - 1);
        k = magnitude < (key)as->equal_below ? SIGN : (k & SIGN) ? ~k & MASK : k | SIGN;
        k = magnitude > (key)as->infinity ? MASK : k;
    }
    return k ^ (key)as->sign ^ (key)as->turn;
}

// The bits again, where no floats were made equal.
DEVICE raw bits_of(key k, const rule *as)
{
    k ^= (key)as->sign ^ (key)as->turn;
    if (as->infinity != 0) k = (k & SIGN) ? k ^ SIGN : ~k & MASK;
    return (raw)k;
}

DEVICE u32 digit_of(raw bits, u32 shift, const rule *as)
{
#if CODED
    return (u32)((key)bits >> shift) & (DIGITS - 1);
#else
    return (u32)(order(bits, as) >> shift) & (DIGITS - 1);
#endif
}

// ---------------------------------------------------------------------------------------------------- short lines
#if defined(SHORT)

#define SLOTS_MAX 2048

typedef struct {
    u64 first[SLOTS_MAX];
#if T_BYTES == 8
    u32 second[SLOTS_MAX];
#endif
} entries;

DEVICE void put(LOCAL entries *all, u32 slot, key k, u32 position)
{
#if T_BYTES == 8
    all->first[slot] = k;
    all->second[slot] = position;
#else
    all->first[slot] = ((u64)k << 32) | position;
#endif
}

DEVICE u32 position_at(LOCAL const entries *all, u32 slot)
{
#if T_BYTES == 8
    return all->second[slot];
#else
    return (u32)all->first[slot];
#endif
}

// Puts two slots in order, or against it.
DEVICE void compare_exchange(LOCAL entries *all, u32 low, u32 high, i32 rises)
{
    u64 a = all->first[low], b = all->first[high];
#if T_BYTES == 8
    u32 at = all->second[low], bt = all->second[high];
    if ((b < a || (b == a && bt < at)) == rises) {
        all->first[low] = b;
        all->first[high] = a;
        all->second[low] = bt;
        all->second[high] = at;
    }
#else
    if ((b < a) == rises) {
        all->first[low] = b;
        all->first[high] = a;
    }
#endif
}

// `padded` is the length, rounded up to a power of two; a block has 2 slots for each thread, for slots / padded lines.
// A line's elements lie `inner` apart; `outer` of them follow one another. Threads go along the lines where lines are
// contiguous, and across them where they are not.
KERNEL LAUNCH_UP_TO(1024) sort_lines(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values,
                                         GLOBAL raw *RESTRICT keys_out, GLOBAL value *RESTRICT values_out, rule as,
                                         u64 lines, u64 inner, u32 length, u32 padded)
{
    SHARED entries all;
    u32 threads = block_size_x(), slots = 2 * threads, here = slots / padded, t = thread_x();
    u64 first_line = (u64)block_x() * here;
    for (u32 e = t; e < slots; e += threads) {
        u32 l = inner == 1 ? e / padded : e % here, p = inner == 1 ? e % padded : e / here;
        u64 line = first_line + l;
        key k = MASK;
        if (p < length && line < lines) k = order(keys[(line / inner * length + p) * inner + line % inner], &as);
        put(&all, l * padded + p, k, p);
    }
    BARRIER();
    for (u32 size = 2; size <= padded; size *= 2) {
        for (u32 reach = size / 2; reach > 0; reach /= 2) {
            u32 low = 2 * t - (t & (reach - 1));
            // The last round leaves every line ascending, at any place in the block.
            compare_exchange(&all, low, low + reach, size == padded || (low & size) == 0);
            // Up to a reach of one warp, a warp keeps to its own slots, twice as many as it has lanes.
            if (reach > WARP || (reach == 1 && size >= WARP)) BARRIER();
            else WARP_BARRIER();
        }
    }
    BARRIER();
    for (u32 e = t; e < slots; e += threads) {
        u32 l = inner == 1 ? e / padded : e % here, p = inner == 1 ? e % padded : e / here;
        u64 line = first_line + l;
        if (p >= length || line >= lines) continue;
        u64 start = line / inner * length * inner + line % inner, to = start + p * inner;
        u32 from = position_at(&all, l * padded + p);
        if (keys_out) keys_out[to] = keys[start + from * inner];
        if (V_BYTES > 0) values_out[to] = values ? values[start + from * inner] : (value)from;
    }
}

#elif defined(CHUNKS)

// ----------------------------------------------------------------------------------------------------- chunks
// How often each digit occurs in each chunk: counts[line][digit][chunk]. A thread for each chunk, of `chunk` elements.
KERNEL LAUNCH_BOUNDS(256, 1) count_chunks(GLOBAL const raw *RESTRICT keys, GLOBAL u32 *RESTRICT counts, rule as, u64 lines, u64 length,
                                          u32 chunks, u32 chunk, u32 pass)
{
    u64 number = (u64)block_x() * 256 + thread_x(), line = number / chunks, own = number % chunks;
    if (line >= lines) return;
    u64 begin = own * chunk, end = begin + chunk < length ? begin + chunk : length;
    counts += line * DIGITS * chunks + own;
    for (u32 d = 0; d < DIGITS; d++) counts[(u64)d * chunks] = 0;
    for (u64 i = begin; i < end; i++) counts[(u64)digit_of(keys[line * length + i], pass * 8, &as) * chunks]++;
}

// From counts to where each chunk's elements of a digit begin on the line. A block for each line, a thread for each digit.
KERNEL LAUNCH_BOUNDS(256, 1) start_chunks(GLOBAL u32 *counts, u32 chunks)
{
    SHARED u32 totals[DIGITS];
    u32 d = thread_x(), total = 0;
    counts += ((u64)block_x() * DIGITS + d) * chunks;
    for (u32 c = 0; c < chunks; c++) total += counts[c];
    totals[d] = total;
    BARRIER();
    u32 start = 0;
    for (u32 lower = 0; lower < d; lower++) start += totals[lower];
    for (u32 c = 0; c < chunks; c++) {
        u32 count = counts[c];
        counts[c] = start;
        start += count;
    }
}

// Moves every element to where its digit says. A thread for each chunk.
KERNEL LAUNCH_BOUNDS(256, 1) move_chunks(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values, GLOBAL raw *RESTRICT keys_out,
                                         GLOBAL value *RESTRICT values_out, GLOBAL u32 *RESTRICT starts, rule as, u64 lines, u64 length,
                                         u32 chunks, u32 chunk, u32 pass)
{
    u64 number = (u64)block_x() * 256 + thread_x(), line = number / chunks, own = number % chunks;
    if (line >= lines) return;
    u64 begin = own * chunk, end = begin + chunk < length ? begin + chunk : length;
    starts += line * DIGITS * chunks + own;
    for (u64 i = begin; i < end; i++) {
        raw bits = keys[line * length + i];
        GLOBAL u32 *start = &starts[(u64)digit_of(bits, pass * 8, &as) * chunks];
        u64 to = line * length + *start;
        *start += 1;
        if (keys_out) keys_out[to] = bits;
        if (V_BYTES > 0) values_out[to] = values ? values[line * length + i] : (value)i;
    }
}

#else

// ------------------------------------------------------------------------------------------------------ tiles
#define TILE (THREADS * ITEMS)

typedef struct {
    u32 of_warp[WARPS][DIGITS];
    u32 start[DIGITS];
    u32 sums[2][DIGITS / WARP];
} ranking;

// The sum over the digits before this thread's; for all threads of the block, of which the first 256 have a count.
DEVICE u32 sum_before(u32 count, LOCAL u32 *sums)
{
    u32 warp = thread_x() / WARP, sum = count;
    UNROLL for (u32 by = 1; by < WARP; by *= 2) {
        u32 other = shuffle_up_u32(sum, by);
        if (lane() >= by) sum += other;
    }
    if (lane() == WARP - 1 && warp < DIGITS / WARP) sums[warp] = sum;
    BARRIER();
    u32 before = 0;
    UNROLL for (u32 w = 0; w < DIGITS / WARP; w++) before += w < warp ? sums[w] : 0;
    return before + sum - count;
}

// Where a key's place in its tile begins: a warp has a row of keys, a lane every WARPth of them.
DEVICE u32 slot_of(u32 item) { return thread_x() / WARP * (WARP * ITEMS) + item * WARP + lane(); }

// The place of each key among those of its digit in its warp, above the digit. Keys beyond `count` rank as the last of the
// highest digit, which leaves them at the tile's end; coded keys are there by themselves.
DEVICE void rank_in_warps(const raw *keys, u32 *ranks, u32 shift, u32 count, const rule *as, LOCAL ranking *r)
{
    LOCAL u32 *mine = r->of_warp[thread_x() / WARP];
    u32 digits = DIGITS / WARP;
    lane_mask below = lanes_below();
    UNROLL for (u32 d = 0; d < digits; d++) mine[d * WARP + lane()] = 0;
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 digit = CODED || slot_of(i) < count ? digit_of(keys[i], shift, as) : DIGITS - 1;
        lane_mask same = match_byte(digit);
        // The last lane of a digit counts for all.
        ranks[i] = digit | count_lanes(same & below) << 8 | (u32)(same >> lane() == 1) << 16;
    }
    WARP_BARRIER();
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 digit = ranks[i] & 255u, rank = mine[digit] + ((ranks[i] >> 8) & 255u);
        WARP_BARRIER();
        if (ranks[i] >> 16) mine[digit] = rank + 1;
        WARP_BARRIER();
        ranks[i] = digit | rank << 8;
    }
    BARRIER();
}

// How often this thread's digit occurs in the tile.
DEVICE u32 count_in_tile(LOCAL const ranking *r)
{
    u32 sum = 0;
    if (thread_x() < DIGITS) {
        UNROLL for (u32 w = 0; w < WARPS; w++) sum += r->of_warp[w][thread_x()];
    }
    return sum;
}

// Where each warp's keys of this thread's digit begin, in a tile where all warps' begin at `start`.
DEVICE void start_warps(u32 start, LOCAL ranking *r)
{
    if (thread_x() < DIGITS) {
        UNROLL for (u32 w = 0; w < WARPS; w++) {
            u32 count = r->of_warp[w][thread_x()];
            r->of_warp[w][thread_x()] = start;
            start += count;
        }
    }
    BARRIER();
}

// Turns ranks in warps into places in the tile.
DEVICE void place_in_tile(u32 *ranks, LOCAL const ranking *r)
{
    LOCAL const u32 *mine = r->of_warp[thread_x() / WARP];
    UNROLL for (u32 i = 0; i < ITEMS; i++) ranks[i] = mine[ranks[i] & 255u] + (ranks[i] >> 8);
}

#if defined(BLOCK)

// One line to a block; a line's elements lie `inner` apart.
KERNEL LAUNCH_BOUNDS(THREADS, 2) sort_block(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values,
                                            GLOBAL raw *RESTRICT keys_out, GLOBAL value *RESTRICT values_out, rule as,
                                            u64 inner, u32 length)
{
    SHARED ranking r;
    SHARED raw exchange[TILE];
    SHARED u16 positions[V_BYTES > 0 ? TILE : 1];
    u64 line = block_x(), start = line / inner * length * inner + line % inner;
    raw own[ITEMS];
    u32 ranks[ITEMS];
    u16 position[ITEMS];
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 slot = slot_of(i);
        own[i] = slot < length ? keys[start + slot * inner] : 0;
        position[i] = (u16)slot;
    }
    for (u32 pass = 0; pass < PASSES; pass++) {
        rank_in_warps(own, ranks, pass * 8, length, &as, &r);
        start_warps(sum_before(count_in_tile(&r), r.sums[0]), &r);
        place_in_tile(ranks, &r);
        UNROLL for (u32 i = 0; i < ITEMS; i++) {
            exchange[ranks[i]] = own[i];
            if (V_BYTES > 0) positions[ranks[i]] = position[i];
        }
        BARRIER();
        UNROLL for (u32 i = 0; i < ITEMS; i++) {
            own[i] = exchange[slot_of(i)];
            if (V_BYTES > 0) position[i] = positions[slot_of(i)];
        }
    }
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 slot = slot_of(i);
        if (slot >= length) continue;
        u64 to = start + slot * inner;
        if (keys_out) keys_out[to] = own[i];
        if (V_BYTES > 0) values_out[to] = values ? values[start + position[i] * inner] : (value)position[i];
    }
}

#else

#if defined(COUNTS)

// How often each digit occurs on each line: counts[line][pass][digit], zero before. Each block has a part of a line.
KERNEL LAUNCH_BOUNDS(512, 3) histogram(GLOBAL const raw *RESTRICT keys, GLOBAL u32 *RESTRICT counts, rule as, u64 length,
                                        u32 parts)
{
    SHARED u32 bins[2 * PASSES * DIGITS];
    u32 t = thread_x(), line = block_x() / parts, part = block_x() % parts;
    u64 stride = (u64)parts * 512 * 8;
    keys += line * length;
    for (u32 b = t; b < 2 * PASSES * DIGITS; b += 512) bins[b] = 0;
    BARRIER();
    // Neighbouring warps count apart, so that fewer of them meet at one bin.
    LOCAL u32 *mine = bins + t / WARP % 2 * (PASSES * DIGITS);
    for (u64 base = (u64)part * 512 * 8; base < length; base += stride) {
        raw own[8];
        UNROLL for (u32 i = 0; i < 8; i++) {
            u64 at = base + i * 512 + t;
            own[i] = at < length ? keys[at] : 0;
        }
        UNROLL for (u32 i = 0; i < 8; i++) {
            i32 counts_here = base + i * 512 + t < length;
            key k = order(own[i], &as);
            UNROLL for (u32 pass = 0; pass + 1 < PASSES; pass++) {
                if (counts_here) ATOMIC_ADD(&mine[pass * DIGITS + ((u32)(k >> (pass * 8)) & (DIGITS - 1))], 1u);
            }
            // The highest digits of numbers of like size are the same: a warp counts them together.
            u32 highest = (u32)(k >> ((PASSES - 1) * 8));
            lane_mask same = match_byte(highest) & ballot(counts_here);
            if (counts_here && (same & lanes_below()) == 0) {
                ATOMIC_ADD(&mine[(PASSES - 1) * DIGITS + highest], count_lanes(same));
            }
        }
    }
    BARRIER();
    counts += (u64)line * (PASSES * DIGITS);
    for (u32 b = t; b < PASSES * DIGITS; b += 512) {
        u32 count = bins[b] + bins[PASSES * DIGITS + b];
        if (count > 0) ATOMIC_ADD(&counts[b], count);
    }
}

#else

// The value that a tile has published for one digit: 0 (nothing yet), the digit's count in the tile, or the place of the next tile's
// elements on the line. The number and its mark are one word, so that they are seen together.
#define OWN ((STATUS)1 << (sizeof(STATUS) * 8 - 2))
#define ALL ((STATUS)2 << (sizeof(STATUS) * 8 - 2))
#define NUMBER (OWN - 1)
#define LOOK_AT 4

// Where the tile's elements of this thread's digit go: the sum of what the tiles before it have.
DEVICE u32 look_back(GLOBAL const STATUS *published, u32 tile)
{
    u32 sum = 0;
    i64 at = (i64)tile - 1;
    for (;;) {
        STATUS seen[LOOK_AT];
        UNROLL for (i32 i = 0; i < LOOK_AT; i++) seen[i] = at >= i ? *(GLOBAL const volatile STATUS *)&published[(at - i) * DIGITS] : 0;
        UNROLL for (i32 i = 0; i < LOOK_AT; i++) {
            // Nothing published: look again from here.
            if (seen[i] == 0) break;
            sum += (u32)(seen[i] & NUMBER);
            if (seen[i] & ALL) return sum;
            at--;
        }
    }
}

// One digit of all lines. `ticket` hands out tiles in order, so that the tiles before one are always under way.
KERNEL LAUNCH_BOUNDS(THREADS, T_BYTES < 8 && V_BYTES == 0 ? 3 : 2)
sort_digit(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values, GLOBAL raw *RESTRICT keys_out,
           GLOBAL value *RESTRICT values_out, GLOBAL const u32 *RESTRICT counts, GLOBAL STATUS *RESTRICT published,
           GLOBAL u32 *RESTRICT ticket, rule as, u64 length, u32 tiles, u32 pass)
{
    SHARED ranking r;
    SHARED ALIGNED(16) u8 exchange[TILE * (V_BYTES > T_BYTES ? V_BYTES : T_BYTES)];
    SHARED u32 number;
    u32 t = thread_x(), shift = pass * 8;
    if (t == 0) number = ATOMIC_ADD(ticket, 1u);
    BARRIER();
    u32 line = number / tiles, tile = number % tiles;
    u64 begin = (u64)tile * TILE, left = length - begin;
    u32 count = left < TILE ? (u32)left : TILE;
    keys += line * length + begin;
    raw own[ITEMS];
    u32 ranks[ITEMS];
    UNROLL for (u32 i = 0; i < ITEMS; i++) own[i] = slot_of(i) < count ? keys[slot_of(i)] : (raw)MASK;
    if (CODED && pass == 0) {
        UNROLL for (u32 i = 0; i < ITEMS; i++) own[i] = slot_of(i) < count ? (raw)order(own[i], &as) : (raw)MASK;
    }
    rank_in_warps(own, ranks, shift, count, &as, &r);

    published += ((u64)line * tiles) * DIGITS;
    u32 total = count_in_tile(&r), base = 0;
    if (tile == 0) {
        // The first tile of a line begins where the lower digits of the whole line end.
        u32 whole = t < DIGITS ? counts[((u64)line * PASSES + pass) * DIGITS + t] : 0;
        base = sum_before(whole, r.sums[1]);
        if (t < DIGITS) *(GLOBAL volatile STATUS *)&published[t] = ALL | (STATUS)(base + total);
    } else if (t < DIGITS) {
        *(GLOBAL volatile STATUS *)&published[(u64)tile * DIGITS + t] = OWN | (STATUS)total;
    }
    u32 before = sum_before(total, r.sums[0]);
    start_warps(before, &r);
    place_in_tile(ranks, &r);
    LOCAL raw *sorted = (LOCAL raw *)exchange;
    UNROLL for (u32 i = 0; i < ITEMS; i++) sorted[ranks[i]] = own[i];
    if (t < DIGITS && tile > 0) {
        base = look_back(published + t, tile);
        *(GLOBAL volatile STATUS *)&published[(u64)tile * DIGITS + t] = ALL | (STATUS)(base + total);
    }
    // From a place in the tile to its place on the line.
    if (t < DIGITS) r.start[t] = base - before;
    BARRIER();
    u32 places[ITEMS];
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 slot = t + i * THREADS;
        raw bits = sorted[slot];
        places[i] = slot + r.start[digit_of(bits, shift, &as)];
        if (CODED && pass == PASSES - 1) bits = bits_of(bits, &as);
        if (keys_out && slot < count) keys_out[line * length + places[i]] = bits;
    }
#if V_BYTES > 0
    BARRIER();
    LOCAL value *moved = (LOCAL value *)exchange;
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u64 from = begin + slot_of(i);
        value v = (value)from;
        if (values) v = slot_of(i) < count ? values[line * length + from] : 0;
        moved[ranks[i]] = v;
    }
    BARRIER();
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 slot = t + i * THREADS;
        if (slot < count) values_out[line * length + places[i]] = moved[slot];
    }
#endif
}

#endif
#endif
#endif

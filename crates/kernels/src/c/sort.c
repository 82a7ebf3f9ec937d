// Sort, argsort and sort by key, along lines of one length.
//
// Elements move as the bits they are, so that a zero keeps its sign and a NaN its bits; what decides is `order`, an
// unsigned number made from the bits whenever it is needed: NaN above everything, both zeros equal, turned over where the
// largest comes first. Every sort here is stable.
//
//   sort_lines      lines of up to 2048 elements: several lines to a block, a bitonic network over (order, position)
//   sort_block      lines of up to TILE elements: one to a block, all digits in the block's memory
//   histogram, sort_digit
//                   longer lines: the counts of every digit in one pass, and then one pass for each digit of eight bits,
//                   lowest first. A tile learns where its elements go from the tiles before it on the line, by looking
//                   back at what they have published.
//
// T           the type of the keys
// FALLS       1 where the largest comes first
// V_BYTES     the size of a value that follows its key; 0: none
// POSITIONS   1 where the values are the positions of the keys on their lines
// KEYS_OUT    1 where sorted keys are wanted
// ITEMS       keys of one thread in a tile

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

#if defined(T_IS_f32)
#define INFINITE 0x7f800000u
#elif defined(T_IS_f16)
#define INFINITE 0x7c00u
#elif defined(T_IS_bf16)
#define INFINITE 0x7f80u
#elif defined(T_IS_f64)
#define INFINITE 0x7ff0000000000000ull
#endif

DEVICE key order(raw bits)
{
    key k = (key)bits;
#if defined(INFINITE)
    key magnitude = k & (SIGN - 1);
    k = magnitude == 0 ? SIGN : (k & SIGN) ? ~k & MASK : k | SIGN;
    k = magnitude > INFINITE ? MASK : k;
#elif defined(T_IS_i32) || defined(T_IS_i8)
    k ^= SIGN;
#endif
    return FALLS ? ~k & MASK : k;
}

DEVICE u32 digit_of(raw bits, u32 shift) { return (u32)(order(bits) >> shift) & (DIGITS - 1); }

// ---------------------------------------------------------------------------------------------------- short lines
#if defined(SHORT)

#define SLOTS_MAX 2048

typedef struct {
    u64 first[SLOTS_MAX];
#if T_BYTES == 8
    u32 second[SLOTS_MAX];
#endif
} entries;

DEVICE void put(entries *all, u32 slot, key k, u32 position)
{
#if T_BYTES == 8
    all->first[slot] = k;
    all->second[slot] = position;
#else
    all->first[slot] = ((u64)k << 32) | position;
#endif
}

DEVICE u32 position_at(const entries *all, u32 slot)
{
#if T_BYTES == 8
    return all->second[slot];
#else
    return (u32)all->first[slot];
#endif
}

// Puts two slots in order, or against it.
DEVICE void compare_exchange(entries *all, u32 low, u32 high, i32 rises)
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
KERNEL LAUNCH_BOUNDS(1024, 1) sort_lines(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values,
                                         GLOBAL raw *RESTRICT keys_out, GLOBAL value *RESTRICT values_out, u64 lines,
                                         u64 inner, u32 length, u32 padded)
{
    SHARED entries all;
    u32 threads = block_size_x(), slots = 2 * threads, here = slots / padded, t = thread_x();
    u64 first_line = (u64)block_x() * here;
    for (u32 e = t; e < slots; e += threads) {
        u32 l = inner == 1 ? e / padded : e % here, p = inner == 1 ? e % padded : e / here;
        u64 line = first_line + l;
        key k = MASK;
        if (p < length && line < lines) k = order(keys[(line / inner * length + p) * inner + line % inner]);
        put(&all, l * padded + p, k, p);
    }
    BARRIER();
    for (u32 size = 2; size <= padded; size *= 2) {
        for (u32 reach = size / 2; reach > 0; reach /= 2) {
            u32 low = 2 * t - (t & (reach - 1));
            // The last round leaves every line rising, whatever its place in the block.
            compare_exchange(&all, low, low + reach, size == padded || (low & size) == 0);
            // Up to a reach of one warp, a warp keeps to its own 64 slots.
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
        if (KEYS_OUT) keys_out[to] = keys[start + from * inner];
        if (POSITIONS) values_out[to] = (value)from;
        else if (V_BYTES > 0) values_out[to] = values[start + from * inner];
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
DEVICE u32 sum_before(u32 count, u32 *sums)
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

// Where a key's place in its tile begins: a warp has a row of keys, a lane every 32nd of them.
DEVICE u32 slot_of(u32 item) { return thread_x() / WARP * (WARP * ITEMS) + item * WARP + lane(); }

// The place of each key among those of its digit in its warp, above the digit. Keys beyond `count` rank as the last of the
// highest digit, which leaves them at the tile's end.
DEVICE void rank_in_warps(const raw *keys, u32 *ranks, u32 shift, u32 count, ranking *r)
{
    u32 *mine = r->of_warp[thread_x() / WARP], below = (1u << lane()) - 1;
    UNROLL for (u32 d = 0; d < DIGITS / WARP; d++) mine[d * WARP + lane()] = 0;
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 digit = slot_of(i) < count ? digit_of(keys[i], shift) : DIGITS - 1, same = match_byte(digit);
        ranks[i] = digit | count_ones(same & below) << 8 | count_ones(same) << 16;
    }
    WARP_BARRIER();
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 digit = ranks[i] & 255u, before = (ranks[i] >> 8) & 255u, all = ranks[i] >> 16, seen = mine[digit];
        WARP_BARRIER();
        if (before + 1 == all) mine[digit] = seen + all;
        WARP_BARRIER();
        ranks[i] = digit | (seen + before) << 8;
    }
    BARRIER();
}

// Turns the warps' counts into sums over the warps before; returns the count of this thread's digit in the tile.
DEVICE u32 sum_warps(ranking *r)
{
    u32 sum = 0, digit = thread_x();
    if (digit < DIGITS) {
        UNROLL for (u32 w = 0; w < WARPS; w++) {
            u32 count = r->of_warp[w][digit];
            r->of_warp[w][digit] = sum;
            sum += count;
        }
    }
    return sum;
}

// Turns ranks in warps into places in the tile.
DEVICE void place_in_tile(u32 *ranks, const ranking *r)
{
    const u32 *mine = r->of_warp[thread_x() / WARP];
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 digit = ranks[i] & 255u;
        ranks[i] = r->start[digit] + mine[digit] + (ranks[i] >> 8);
    }
}

#if defined(BLOCK)

// One line to a block; a line's elements lie `inner` apart.
KERNEL LAUNCH_BOUNDS(THREADS, 2) sort_block(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values,
                                            GLOBAL raw *RESTRICT keys_out, GLOBAL value *RESTRICT values_out, u64 inner,
                                            u32 length)
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
        rank_in_warps(own, ranks, pass * 8, length, &r);
        u32 before = sum_before(sum_warps(&r), r.sums[0]);
        if (thread_x() < DIGITS) r.start[thread_x()] = before;
        BARRIER();
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
        if (KEYS_OUT) keys_out[to] = own[i];
        if (POSITIONS) values_out[to] = (value)position[i];
        else if (V_BYTES > 0) values_out[to] = values[start + position[i] * inner];
    }
}

#else

// How often each digit occurs on each line: counts[line][pass][digit], zero before. Each block has a part of a line.
KERNEL LAUNCH_BOUNDS(512, 3) histogram(GLOBAL const raw *RESTRICT keys, GLOBAL u32 *RESTRICT counts, u64 length, u32 parts)
{
    SHARED u32 bins[2 * PASSES * DIGITS];
    u32 t = thread_x(), line = block_x() / parts, part = block_x() % parts;
    u64 stride = (u64)parts * 512 * 8;
    keys += line * length;
    for (u32 b = t; b < 2 * PASSES * DIGITS; b += 512) bins[b] = 0;
    BARRIER();
    // Neighbouring warps count apart, so that fewer of them meet at one bin.
    u32 *mine = bins + t / WARP % 2 * (PASSES * DIGITS);
    for (u64 base = (u64)part * 512 * 8; base < length; base += stride) {
        raw own[8];
        UNROLL for (u32 i = 0; i < 8; i++) {
            u64 at = base + i * 512 + t;
            own[i] = at < length ? keys[at] : 0;
        }
        UNROLL for (u32 i = 0; i < 8; i++) {
            if (base + i * 512 + t >= length) continue;
            key k = order(own[i]);
            UNROLL for (u32 pass = 0; pass < PASSES; pass++) {
                ATOMIC_ADD(&mine[pass * DIGITS + ((u32)(k >> (pass * 8)) & (DIGITS - 1))], 1u);
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

// What a tile has published for one digit: nothing yet (0), how often it occurs in the tile, or where the next tile's
// elements go on the line. The number and its mark are one word, so that they are seen together.
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
        UNROLL for (i32 i = 0; i < LOOK_AT; i++) seen[i] = at >= i ? LOAD_VOLATILE(&published[(at - i) * DIGITS]) : 0;
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
KERNEL LAUNCH_BOUNDS(THREADS, 2)
sort_digit(GLOBAL const raw *RESTRICT keys, GLOBAL const value *RESTRICT values, GLOBAL raw *RESTRICT keys_out,
           GLOBAL value *RESTRICT values_out, GLOBAL const u32 *RESTRICT counts, GLOBAL STATUS *RESTRICT published,
           GLOBAL u32 *RESTRICT ticket, u64 length, u32 tiles, u32 pass, u32 makes_positions, u32 writes_keys)
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
    UNROLL for (u32 i = 0; i < ITEMS; i++) own[i] = slot_of(i) < count ? keys[slot_of(i)] : 0;
    rank_in_warps(own, ranks, shift, count, &r);

    published += ((u64)line * tiles) * DIGITS;
    u32 total = sum_warps(&r), base = 0;
    if (tile == 0) {
        // The first tile of a line begins where the lower digits of the whole line end.
        u32 whole = t < DIGITS ? counts[((u64)line * PASSES + pass) * DIGITS + t] : 0;
        base = sum_before(whole, r.sums[1]);
        if (t < DIGITS) STORE_VOLATILE(&published[t], ALL | (STATUS)(base + total));
    } else if (t < DIGITS) {
        STORE_VOLATILE(&published[(u64)tile * DIGITS + t], OWN | (STATUS)total);
    }
    u32 before = sum_before(total, r.sums[0]);
    if (t < DIGITS) r.start[t] = before;
    BARRIER();
    place_in_tile(ranks, &r);
    raw *sorted = (raw *)exchange;
    UNROLL for (u32 i = 0; i < ITEMS; i++) sorted[ranks[i]] = own[i];
    if (t < DIGITS && tile > 0) {
        base = look_back(published + t, tile);
        STORE_VOLATILE(&published[(u64)tile * DIGITS + t], ALL | (STATUS)(base + total));
    }
    BARRIER();
    // From a place in the tile to its place on the line.
    if (t < DIGITS) r.start[t] = base - before;
    BARRIER();
    u32 places[ITEMS];
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u32 slot = t + i * THREADS;
        raw bits = sorted[slot];
        places[i] = slot + r.start[digit_of(bits, shift)];
        if (writes_keys && slot < count) keys_out[line * length + places[i]] = bits;
    }
#if V_BYTES > 0
    BARRIER();
    value *moved = (value *)exchange;
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
        u64 from = begin + slot_of(i);
        value v = (value)from;
        if (!makes_positions) v = slot_of(i) < count ? values[line * length + from] : 0;
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

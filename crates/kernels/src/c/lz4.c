// Blocks of LZ4, a warp for each, taken apart and made. All lanes read the tokens, and copy together. For any content of a block, no byte is read outside of it, no byte
// is written outside of its place, and each step consumes at least one byte of the block.
//
// `lens` gets the decompressed length of each message, or its error. The places of the messages are adjacent, and each has room for the longest
// result that is permitted.

#define REJECTED (~(u64)0)
#define TOO_LONG (~(u64)0 - 1)
#define BLOCK 128u
#define WARPS (BLOCK / WARP)

// The length that follows a nibble of 15. Sets `is_cut` if the block ends before the length does.
DEVICE u32 longer(u32 count, GLOBAL const u8 *from, u32 end, u32 *at, u32 *is_cut)
{
    u32 byte = 255;
    while (byte == 255) {
        if (*at >= end) {
            *is_cut = 1;
            return count;
        }
        byte = from[*at];
        *at += 1;
        count += byte;
    }
    return count;
}

// Each byte of a match is `offset` behind the one that it becomes; where it is longer than that it repeats itself.
DEVICE void copy_match(GLOBAL u8 *to, u32 offset, u32 len)
{
    GLOBAL const u8 *from = to - offset;
    if (offset >= len) {
        for (u32 i = lane(); i < len; i += WARP) to[i] = from[i];
    } else {
        for (u32 i = lane(); i < len; i += WARP) to[i] = from[i % offset];
    }
}

// `room` is the most that a message may become; no message has 2^24 bytes, so that all counts have 32 bits.
KERNEL LAUNCH_BOUNDS(128, 8) lz4_blocks(GLOBAL u8 *target, GLOBAL u64 *RESTRICT lens, GLOBAL const u8 *RESTRICT source,
    GLOBAL const u64 *RESTRICT rows, FIXED batch all, u32 room)
{
    u64 number = (u64)block_x() * WARPS + thread_x() / WARP;
    if (number >= all.count) return;
    message one = message_at(&all, rows, number);
    GLOBAL const u8 *from = source + one.source;
    GLOBAL u8 *to = target + one.target;
    // No byte of a block stands for more than 255.
    u32 end = (u32)one.len, most = end * 255u < room ? end * 255u : room;
    u32 at = 0, made = 0, is_cut = 0, is_wrong = 0;
    for (;;) {
        if (at >= end) {
            is_cut = 1;
            break;
        }
        u32 token = from[at++], literals = token >> 4;
        if (literals == 15) literals = longer(literals, from, end, &at, &is_cut);
        if (is_cut || literals > end - at) {
            is_cut = 1;
            break;
        }
        if (!is_wrong && literals <= most - made)
            for (u32 i = lane(); i < literals; i += WARP) to[made + i] = from[at + i];
        // Bytes without room are counted, and the bytes after them are not written either.
        is_wrong |= literals > most - made ? 2u : 0;
        at += literals;
        made += literals;
        if (at == end) break;
        if (end - at < 2) {
            is_cut = 1;
            break;
        }
        u32 offset = (u32)from[at] | (u32)from[at + 1] << 8, len = token & 15u;
        at += 2;
        if (len == 15) len = longer(len, from, end, &at, &is_cut);
        if (is_cut) break;
        len += 4;
        if (offset == 0 || offset > made) is_wrong |= 1u;
        if (is_wrong == 0 && len <= most - made) {
            // Every lane sees what all have written.
            WARP_BARRIER();
            copy_match(to + made, offset, len);
        }
        is_wrong |= made > most || len > most - made ? 2u : 0;
        made += len;
    }
    if (lane() == 0) lens[number] = is_cut ? REJECTED : made > room ? TOO_LONG : is_wrong ? REJECTED : made;
}

// Where each message begins when they lie close, behind the last its end, and then how many lie elsewhere now. One block.
KERNEL LAUNCH_BOUNDS(256, 1) unpacked_offsets(GLOBAL u64 *RESTRICT offsets, GLOBAL const u64 *RESTRICT lens, GLOBAL const u64 *RESTRICT rows,
    FIXED batch all)
{
    SHARED u64 sums[256];
    SHARED u32 elsewhere;
    u64 each = (all.count + 255) / 256, begin = thread_x() * each, end = begin + each < all.count ? begin + each : all.count, sum = 0;
    for (u64 i = begin; i < end; i++) sum += lens[i] < TOO_LONG ? lens[i] : 0;
    sums[thread_x()] = sum;
    if (thread_x() == 0) elsewhere = 0;
    BARRIER();
    u64 place = 0;
    for (u32 i = 0; i < thread_x(); i++) place += sums[i];
    for (u64 i = begin; i < end; i++) {
        offsets[i] = place;
        if (place != message_at(&all, rows, i).target) ATOMIC_ADD(&elsewhere, 1u);
        place += lens[i] < TOO_LONG ? lens[i] : 0;
    }
    if (thread_x() == 255) offsets[all.count] = place;
    BARRIER();
    if (thread_x() == 0) offsets[all.count + 1] = elsewhere;
}

// Brings messages together, where they are not, or where it is asked for; a warp for each.
KERNEL LAUNCH_BOUNDS(128, 8) unpacked_move(GLOBAL u8 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT offsets,
    GLOBAL const u64 *RESTRICT rows, FIXED batch all, u32 is_asked)
{
    u64 number = (u64)block_x() * WARPS + thread_x() / WARP;
    if (number >= all.count || (!is_asked && offsets[all.count + 1] == 0)) return;
    GLOBAL const u8 *from = source + message_at(&all, rows, number).target;
    GLOBAL u8 *to = target + offsets[number];
    u64 len = offsets[number + 1] - offsets[number], words = 0;
    if ((((u64)from | (u64)to) & 15) == 0) {
        words = len / 16;
        for (u64 i = lane(); i < words; i += WARP) ((GLOBAL u32x4 *)to)[i] = ((GLOBAL const u32x4 *)from)[i];
    }
    for (u64 i = 16 * words + lane(); i < len; i += WARP) to[i] = from[i];
}

// Blocks end with literals: no match begins in the last twelve bytes, or reaches the last five.
#define MATCH_BEGINS 12u
#define MATCH_ENDS 5u
#define OFFSET_MAX 65535u
#define PACK_LOG2 12u

DEVICE u32 four_bytes(GLOBAL const u8 *from) { return from[0] | (u32)from[1] << 8 | (u32)from[2] << 16 | (u32)from[3] << 24; }

// How many lanes are below the first one in a mask that is not zero.
DEVICE u32 first_lane(lane_mask lanes) { return count_lanes((lanes & (~lanes + 1)) - 1); }

// Writes what follows a nibble of 15, and returns where it ends.
DEVICE u32 put_longer(GLOBAL u8 *to, u32 at, u32 count)
{
    u32 full = (count - 15) / 255;
    for (u32 i = lane(); i < full; i += WARP) to[at + i] = 255;
    if (lane() == 0) to[at + full] = (u8)((count - 15) % 255);
    return at + full + 1;
}

// Writes literals and a match, and returns where they end. The last sequence of a block has no match: its `len` is zero.
DEVICE u32 put_sequence(GLOBAL u8 *to, u32 at, GLOBAL const u8 *literals, u32 count, u32 offset, u32 len)
{
    u32 extra = len > 4 ? len - 4 : 0;
    if (lane() == 0) to[at] = (u8)((count < 15 ? count : 15) << 4 | (extra < 15 ? extra : 15));
    at += 1;
    if (count >= 15) at = put_longer(to, at, count);
    for (u32 i = lane(); i < count; i += WARP) to[at + i] = literals[i];
    at += count;
    if (len == 0) return at;
    if (lane() == 0) {
        to[at] = (u8)offset;
        to[at + 1] = (u8)(offset >> 8);
    }
    at += 2;
    return extra >= 15 ? put_longer(to, at, extra) : at;
}

// Makes blocks, a warp for each. The lanes look for matches at consecutive positions; the first that has one makes a sequence. The table has the last
// position of each hash, plus one. `lens` gets the length of each block. A sequence is never longer than its bytes but for one byte for each 255
// literals, so that a place of `len + len / 255 + 16` bytes is enough.
KERNEL LAUNCH_BOUNDS(WARP, 8) lz4_pack(GLOBAL u8 *target, GLOBAL u64 *RESTRICT lens, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    FIXED batch all)
{
    SHARED u32 table[1u << PACK_LOG2];
    message one = message_at(&all, rows, block_x());
    GLOBAL const u8 *from = source + one.source;
    GLOBAL u8 *to = target + one.target;
    u32 end = (u32)one.len, at = 0, begin = 0, made = 0;
    for (u32 i = lane(); i < 1u << PACK_LOG2; i += WARP) table[i] = 0;
    WARP_BARRIER();
    while (at + MATCH_BEGINS <= end) {
        u32 own = at + lane(), known = 0, is_match = 0, hash = 0;
        if (own + MATCH_BEGINS <= end) {
            u32 word = four_bytes(from + own);
            hash = (word * 2654435761u) >> (32 - PACK_LOG2);
            known = table[hash];
            // Lanes of an earlier round may have noted positions that lie ahead now.
            is_match = known != 0 && known <= own && own + 1 - known <= OFFSET_MAX && four_bytes(from + known - 1) == word;
        }
        WARP_BARRIER();
        if (own + MATCH_BEGINS <= end) ATOMIC_MAX(&table[hash], own + 1);
        WARP_BARRIER();
        lane_mask matches = ballot(is_match);
        if (matches == 0) {
            at += WARP;
            continue;
        }
        u32 first = first_lane(matches), place = at + first, back = shuffle_u32(known, first) - 1;
        u32 len = 4, most = end - MATCH_ENDS - place;
        for (;;) {
            u32 i = len + lane();
            lane_mask others = ballot(i >= most || from[place + i] != from[back + i]);
            if (others != 0) {
                len += first_lane(others);
                break;
            }
            len += WARP;
        }
        made = put_sequence(to, made, from + begin, place - begin, place - back, len);
        at = begin = place + len;
    }
    made = put_sequence(to, made, from + begin, end - begin, 0, 0);
    if (lane() == 0) lens[block_x()] = made;
}

// Blocks of LZ4, a warp for each. All lanes read the tokens, and copy together. For any content of a block, no byte is read outside of it, no byte
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

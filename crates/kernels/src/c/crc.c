// Cyclic redundancy checks, as remainders with the lowest bit first: a warp for each message. Its lanes take turns at the words of the
// message: each adds a word to a remainder of its own, which goes on by a row of WARP words from turn to turn, by tables; in the end each is
// brought to where the rows end, and all are added. WIDE is 1 for remainders of 64 bits.
//
// `tables` has, for each byte of a remainder, what a row makes of it; then, for each lane, the factor that brings it to the end; then what
// a byte makes of a remainder. `is_turned`: the check has the highest bit first, so bytes are turned round.

#if WIDE
typedef u64 word;
#define WORD_BYTES 8u
#else
typedef u32 word;
#define WORD_BYTES 4u
#endif
#define TABLE (256u * WORD_BYTES)
#define BLOCK 256u
#define WARPS (BLOCK / WARP)

DEVICE u32 turned(u32 byte, u32 is_turned) { return is_turned ? reverse_bits(byte) >> 24 : byte; }

DEVICE word load_word(GLOBAL const u8 *from, u32 is_turned)
{
    word value = 0;
    if (((u64)from & (WORD_BYTES - 1)) == 0) {
        value = *(GLOBAL const word *)from;
    } else {
        UNROLL for (u32 i = 0; i < WORD_BYTES; i++) value |= (word)from[i] << (8 * i);
    }
    if (is_turned) {
        word other = 0;
        UNROLL for (u32 i = 0; i < WORD_BYTES; i++) other |= (word)turned((u32)(value >> (8 * i)) & 255u, 1) << (8 * i);
        value = other;
    }
    return value;
}

// The product of two remainders; `polynomial` is what follows the highest bit.
DEVICE word multiply(word a, word b, word polynomial)
{
    word product = 0;
    ROLLED for (u32 i = 0; i < 8 * WORD_BYTES; i++) {
        product ^= (0 - (a >> (8 * WORD_BYTES - 1 - i) & 1)) & b;
        b = b >> 1 ^ ((0 - (b & 1)) & polynomial);
    }
    return product;
}

DEVICE word add_lanes(word x)
{
#if WIDE
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) x ^= shuffle_xor_u64(x, mask);
#else
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) x ^= shuffle_xor_u32(x, mask);
#endif
    return x;
}

KERNEL LAUNCH_BOUNDS(BLOCK, 1) crc_messages(GLOBAL u64 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const word *RESTRICT tables, FIXED batch all, u64 first, u64 last, u64 polynomial, u32 width, u32 is_turned)
{
    SHARED word row_table[TABLE];
    SHARED word byte_table[256];
    for (u32 i = thread_x(); i < TABLE; i += BLOCK) row_table[i] = tables[i];
    for (u32 i = thread_x(); i < 256; i += BLOCK) byte_table[i] = tables[TABLE + WARP + i];
    BARRIER();
    u32 place = thread_x() % WARP;
    word factor = tables[TABLE + place];
    u64 step = (u64)grid_size_x() * WARPS;
    for (u64 number = (u64)block_x() * WARPS + thread_x() / WARP; number < all.count; number += step) {
        message one = message_at(&all, rows, number);
        GLOBAL const u8 *from = source + one.source;
        u64 turns = one.len / (WARP * WORD_BYTES);
        word rest = 0;
        UNROLL_BY_4 for (u64 turn = 0; turn < turns; turn++) {
            word next = load_word(from + WORD_BYTES * (turn * WARP + place), is_turned);
            if (turn == 0 && place == 0) next ^= (word)first;
            word moved = 0;
            UNROLL for (u32 i = 0; i < WORD_BYTES; i++) moved ^= row_table[256 * i + ((u32)(rest >> (8 * i)) & 255u)];
            rest = moved ^ next;
        }
        rest = add_lanes(multiply(rest, factor, (word)polynomial));
        if (place == 0) {
            if (turns == 0) rest = (word)first;
            for (u64 i = turns * WARP * WORD_BYTES; i < one.len; i++)
                rest = rest >> 8 ^ byte_table[((u32)rest ^ turned(from[i], is_turned)) & 255u];
            u64 check = (u64)rest;
            if (is_turned) {
                u64 other = 0;
                for (u32 i = 0; i < width; i++) other |= (check >> i & 1) << (width - 1 - i);
                check = other;
            }
            target[number] = check ^ last;
        }
    }
}

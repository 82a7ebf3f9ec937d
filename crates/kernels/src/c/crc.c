// Cyclic redundancy checks, as remainders with the lowest bit first: a warp for each message. Its lanes take turns at the message's vectors of
// 16 bytes. Each lane adds their words to its own remainders, and tables advance these by a row of WARP vectors from turn to turn. In the end
// each lane's remainders are advanced to the end of its last word, then to the end of the row, and all are added. WIDE is 1 for remainders of 64 bits.
//
// Rows end with the message. Zeros before its first byte, which fill up the first row, change no remainder.
//
// The limit is the block's memory, not global memory: each byte needs a look-up, and look-ups of a warp that meet in a bank wait for each other. So
// there are COPIES of the table, whose entries are adjacent, in 2^SHIFT bytes: with one copy for each lane no two look-ups meet.
//
// `tables` has, for each byte of a remainder, what a row makes of it; then, for each lane, the factor that brings it to the end; then what
// a byte makes of a remainder. `is_turned`: the check has the highest bit first, so bytes are turned round. BLOCK is the number of threads.

#if WIDE
typedef u64 word;
#define WORD_BYTES 8u
#else
typedef u32 word;
#define WORD_BYTES 4u
#endif
#define TABLE (256u * WORD_BYTES)
#define WARPS (BLOCK / WARP)
#define VECTOR_BYTES 16u
#define WORDS (VECTOR_BYTES / WORD_BYTES)
#define ROW_BYTES (WARP * VECTOR_BYTES)

DEVICE u32 turned(u32 byte, u32 is_turned) { return is_turned ? reverse_bits(byte) >> 24 : byte; }

// Turns the bits of each byte round.
DEVICE word turned_word(word value)
{
#if WIDE
    value = (value & 0x5555555555555555) << 1 | (value >> 1 & 0x5555555555555555);
    value = (value & 0x3333333333333333) << 2 | (value >> 2 & 0x3333333333333333);
    return (value & 0x0f0f0f0f0f0f0f0f) << 4 | (value >> 4 & 0x0f0f0f0f0f0f0f0f);
#else
    value = (value & 0x55555555u) << 1 | (value >> 1 & 0x55555555u);
    value = (value & 0x33333333u) << 2 | (value >> 2 & 0x33333333u);
    return (value & 0x0f0f0f0fu) << 4 | (value >> 4 & 0x0f0f0f0fu);
#endif
}

// A vector of a message that begins on one.
DEVICE void load_vector(word *next, GLOBAL const u8 *from, u32 is_turned)
{
    u32x4 v = load_stream((GLOBAL const u32x4 *)from);
#if WIDE
    next[0] = (u64)v.x | (u64)v.y << 32, next[1] = (u64)v.z | (u64)v.w << 32;
#else
    next[0] = v.x, next[1] = v.y, next[2] = v.z, next[3] = v.w;
#endif
    if (is_turned) UNROLL for (u32 w = 0; w < WORDS; w++) next[w] = turned_word(next[w]);
}

// The bytes from `at` on, which may lie before the message, where there are zeros. The check's initial value is added to its first bytes.
DEVICE void load_bytes(word *next, GLOBAL const u8 *from, i64 at, word first, u32 is_turned)
{
    // Places within an array that are not known when it is compiled would put it into slow memory.
    UNROLL for (u32 w = 0; w < WORDS; w++) {
        word value = 0;
        ROLLED for (u32 i = 0; i < WORD_BYTES; i++) {
            i64 place = at + (i64)(w * WORD_BYTES + i);
            if (place < 0) continue;
            u32 byte = turned(from[place], is_turned);
            if (place < (i64)WORD_BYTES) byte ^= (u32)(first >> (8 * (u32)place)) & 255u;
            value |= (word)byte << (8 * i);
        }
        next[w] = value;
    }
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

// Vectors of a lane that are on their way at a time.
#define AHEAD 8u

// A word with its i-th byte SHIFT bits above the lowest: where an entry begins that is 2^SHIFT bytes from the next, in as few instructions as
// it can be said in.
DEVICE u32 shifted(word x, u32 i) { return 8 * i < SHIFT ? (u32)(x << (SHIFT - 8 * i)) : (u32)(x >> (8 * i - SHIFT)); }

// A lane's remainders go on by a row, and its next words are added.
#define GO_ON(next) \
    UNROLL for (u32 w = 0; w < WORDS; w++) { \
        word moved = (next)[w]; \
        UNROLL for (u32 i = 0; i < WORD_BYTES; i++) \
            moved ^= *(LOCAL const word *)((LOCAL const u8 *)row_table + (i * 256 << SHIFT) + ((shifted(rest[w], i) & 255u << SHIFT) | copy)); \
        rest[w] = moved; \
    }

KERNEL LAUNCH_BOUNDS(BLOCK, 1) crc_messages(GLOBAL u64 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const word *RESTRICT tables, FIXED batch all, u64 first, u64 last, u64 polynomial, u32 width, u32 is_turned)
{
    DYNAMIC_SHARED(word, row_table);
    SHARED word byte_table[256];
    for (u32 i = thread_x(); i < TABLE * COPIES; i += BLOCK) row_table[i] = tables[i / COPIES];
    for (u32 i = thread_x(); i < 256; i += BLOCK) byte_table[i] = tables[TABLE + WARP + i];
    BARRIER();
    u32 place = thread_x() % WARP, copy = place % COPIES * WORD_BYTES;
    word factor = tables[TABLE + place];
    u64 step = (u64)grid_size_x() * WARPS;
    for (u64 number = (u64)block_x() * WARPS + thread_x() / WARP; number < all.count; number += step) {
        message one = message_at(&all, rows, number);
        GLOBAL const u8 *from = source + one.source;
        u64 turns = (one.len + ROW_BYTES - 1) / ROW_BYTES;
        // Where this lane's vector of the first row begins.
        i64 at = (i64)one.len - (i64)(turns * ROW_BYTES) + (i64)(place * VECTOR_BYTES);
        u32 is_aligned = (((u64)from | one.len) & (VECTOR_BYTES - 1)) == 0;
        word rest[WORDS];
        u64 turn = 1;
        if (is_aligned) {
            // A vector lies in the message, or before it.
            UNROLL for (u32 w = 0; w < WORDS; w++) rest[w] = 0;
            if (turns > 0 && at >= 0) load_vector(rest, from + at, is_turned);
            if (turns > 0 && at == 0) rest[0] ^= (word)first;
            for (; turn + AHEAD <= turns; turn += AHEAD) {
                word next[AHEAD][WORDS];
                i64 here = at + (i64)(turn * ROW_BYTES);
                UNROLL for (u32 k = 0; k < AHEAD; k++) load_vector(next[k], from + here + k * ROW_BYTES, is_turned);
                UNROLL for (u32 k = 0; k < AHEAD; k++) GO_ON(next[k]);
            }
        } else load_bytes(rest, from, turns > 0 ? at : -(i64)ROW_BYTES, (word)first, is_turned);
        ROLLED for (; turn < turns; turn++) {
            word next[WORDS];
            i64 here = at + (i64)(turn * ROW_BYTES);
            if (is_aligned) load_vector(next, from + here, is_turned);
            else load_bytes(next, from, here, (word)first, is_turned);
            GO_ON(next);
        }
        word sum = rest[0];
        UNROLL for (u32 w = 1; w < WORDS; w++) {
            UNROLL for (u32 i = 0; i < WORD_BYTES; i++) sum = sum >> 8 ^ byte_table[(u32)sum & 255u];
            sum ^= rest[w];
        }
        sum = add_lanes(multiply(sum, factor, (word)polynomial));
        if (place == 0) {
            // The check's initial value is longer than a short message.
            if (one.len < WORD_BYTES) {
                sum = (word)first;
                for (u64 i = 0; i < one.len; i++) sum = sum >> 8 ^ byte_table[((u32)sum ^ turned(from[i], is_turned)) & 255u];
            }
            u64 check = (u64)sum;
            if (is_turned) {
                u64 other = 0;
                for (u32 i = 0; i < width; i++) other |= (check >> i & 1) << (width - 1 - i);
                check = other;
            }
            target[number] = check ^ last;
        }
    }
}

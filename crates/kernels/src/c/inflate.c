// Streams of DEFLATE, a block of one warp for each. All lanes read the same bits and take the same branches; they build tables and copy
// together. For any content of a stream, no byte is read outside of it, no byte is written outside of its place, and each step consumes at least
// one bit of the stream.
//
// Codes that the format leaves unused have the same meaning as in libdeflate, so that every device gives the same answer: lengths 286 and 287 are 258,
// distances 30 and 31 are like 29, and a code of a single word of one bit has that symbol for both bits.
//
// `lens` gets the decompressed length of each message, or its error. The places are those of lz4.c, which joins the messages.

#define REJECTED (~(u64)0)
#define TOO_LONG (~(u64)0 - 1)
// Codes of at most this length in bits are looked up; longer codes are decoded bit by bit.
#define ROOT 10u
#define ROOT_ENTRIES 1024u
#define CODE_BITS_MAX 15u
#define LITERALS_MAX 288u
#define SYMBOLS_MAX 320u
#define END_OF_BLOCK 256u

typedef struct {
    GLOBAL const u8 *from;
    u32 at, end;
    // The next bits, the lowest first, and how many there are.
    u64 bits;
    u32 count;
    // Whether more were wanted than there are, and whether what they say makes no sense.
    u32 is_cut, is_wrong;
} reader;

// A code: an entry for the next ROOT bits, `symbol << 4 | bits`, or 0; how many words of each length there are; symbols in the order of words.
typedef struct {
    LOCAL u16 *table;
    LOCAL u16 *counts;
    LOCAL u16 *sorted;
} code;

DEVICE void refill(reader *in)
{
    while (in->count <= 56 && in->at < in->end) {
        in->bits |= (u64)in->from[in->at++] << in->count;
        in->count += 8;
    }
}

DEVICE void drop_bits(reader *in, u32 count)
{
    if (in->count < count) {
        in->is_cut = 1;
        in->count = count;
    }
    in->bits >>= count;
    in->count -= count;
}

// At most 16 bits; those that are not there are zero.
DEVICE u32 take_bits(reader *in, u32 count)
{
    if (in->count < count) refill(in);
    u32 value = (u32)in->bits & ((1u << count) - 1);
    drop_bits(in, count);
    return value;
}

DEVICE u32 reversed(u32 word, u32 bits)
{
    u32 turned = 0;
    for (u32 i = 0; i < bits; i++) turned |= (word >> i & 1) << (bits - 1 - i);
    return turned;
}

// Builds the code of these lengths. Returns nonzero if there is none. Every lane must take part.
DEVICE u32 build_code(code made, LOCAL const u8 *lens, u32 symbols)
{
    BARRIER();
    if (thread_x() == 0) {
        for (u32 i = 0; i <= CODE_BITS_MAX; i++) made.counts[i] = 0;
        for (u32 i = 0; i < symbols; i++) made.counts[lens[i]]++;
        made.counts[0] = 0;
        u32 place = 0;
        for (u32 bits = 1; bits <= CODE_BITS_MAX; bits++)
            for (u32 i = 0; made.counts[bits] > 0 && i < symbols; i++)
                if (lens[i] == bits) made.sorted[place++] = (u16)i;
    }
    BARRIER();
    i32 left = 1;
    u32 total = 0;
    for (u32 bits = 1; bits <= CODE_BITS_MAX; bits++) {
        left = 2 * left - (i32)made.counts[bits];
        if (left < 0) return 1;
        total += made.counts[bits];
    }
    // Empty, or of one word of one bit, which stands for the other bit as well.
    u32 is_small = left > 0;
    if (is_small && total > 0 && (total != 1 || made.counts[1] != 1)) return 1;
    u16 everywhere = is_small ? (u16)((total > 0 ? made.sorted[0] : 0) << 4 | 1) : 0;
    for (u32 i = thread_x(); i < ROOT_ENTRIES; i += WARP) made.table[i] = everywhere;
    BARRIER();
    u32 word = 0, place = 0;
    for (u32 bits = 1; bits <= ROOT && !is_small; bits++) {
        u32 count = made.counts[bits];
        for (u32 i = thread_x(); i < count; i += WARP) {
            u16 entry = (u16)(made.sorted[place + i] << 4 | bits);
            for (u32 at = reversed(word + i, bits); at < ROOT_ENTRIES; at += 1u << bits) made.table[at] = entry;
        }
        place += count;
        word = (word + count) << 1;
    }
    BARRIER();
    return 0;
}

DEVICE u32 symbol_of(reader *in, code known)
{
    if (in->count < CODE_BITS_MAX) refill(in);
    u32 entry = known.table[(u32)in->bits & (ROOT_ENTRIES - 1)];
    if (entry != 0) {
        drop_bits(in, entry & 15u);
        return entry >> 4;
    }
    u32 word = 0, first = 0, place = 0;
    for (u32 bits = 1; bits <= CODE_BITS_MAX; bits++) {
        word |= (u32)(in->bits >> (bits - 1)) & 1u;
        u32 count = known.counts[bits];
        if (word < first + count) {
            drop_bits(in, bits);
            return known.sorted[place + word - first];
        }
        place += count;
        first = (first + count) << 1;
        word <<= 1;
    }
    in->is_wrong = 1;
    return END_OF_BLOCK;
}

// The lengths of a block's own codes. Every lane must take part.
DEVICE void read_lens(reader *in, code lengths, LOCAL u8 *lens, u32 *literals, u32 *distances)
{
    *literals = take_bits(in, 5) + 257;
    *distances = take_bits(in, 5) + 1;
    u32 some = take_bits(in, 4) + 4;
    // The order in which lengths of the code of lengths stand, five bits each.
    u64 front = 16ull | 17ull << 5 | 18ull << 10 | 0ull << 15 | 8ull << 20 | 7ull << 25 | 9ull << 30 | 6ull << 35 | 10ull << 40 | 5ull << 45;
    u64 back = 11ull | 4ull << 5 | 12ull << 10 | 3ull << 15 | 13ull << 20 | 2ull << 25 | 14ull << 30 | 1ull << 35 | 15ull << 40;
    BARRIER();
    for (u32 i = thread_x(); i < 19; i += WARP) lens[i] = 0;
    BARRIER();
    for (u32 i = 0; i < some; i++) {
        u32 len = take_bits(in, 3), place = (u32)((i < 10 ? front : back) >> 5 * (i % 10)) & 31u;
        if (thread_x() == 0) lens[place] = (u8)len;
    }
    in->is_wrong |= build_code(lengths, lens, 19);
    u32 all = *literals + *distances, made = 0, last = 0;
    while (made < all && !in->is_wrong && !in->is_cut) {
        u32 symbol = symbol_of(in, lengths), times = 1;
        if (symbol < 16) {
            last = symbol;
        } else if (symbol == 16) {
            in->is_wrong |= made == 0;
            times = 3 + take_bits(in, 2);
        } else {
            last = 0;
            times = symbol == 17 ? 3 + take_bits(in, 3) : 11 + take_bits(in, 7);
        }
        in->is_wrong |= times > all - made;
        if (!in->is_wrong)
            for (u32 i = thread_x(); i < times; i += WARP) lens[made + i] = (u8)last;
        made += times;
    }
}

DEVICE void fixed_lens(LOCAL u8 *lens)
{
    BARRIER();
    for (u32 i = thread_x(); i < SYMBOLS_MAX; i += WARP) lens[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : i < LITERALS_MAX ? 8 : 5;
}

DEVICE u32 length_of(reader *in, u32 symbol)
{
    u32 number = symbol - 257;
    if (number < 4) return 3 + number;
    if (number >= 28) return 258;
    u32 more = (number >> 2) - 1;
    return ((4 + (number & 3)) << more) + 3 + take_bits(in, more);
}

DEVICE u32 distance_of(reader *in, u32 symbol)
{
    if (symbol < 2) return 1 + symbol;
    u32 number = symbol < 29 ? symbol : 29;
    u32 more = (number >> 1) - 1;
    return ((2 + (number & 1)) << more) + 1 + take_bits(in, more);
}

// Copies what stands in the stream as it is; returns how long the message is then, or more than `most`.
DEVICE u32 copy_stored(reader *in, GLOBAL u8 *to, u32 made, u32 most)
{
    drop_bits(in, in->count & 7u);
    u32 len = take_bits(in, 16), check = take_bits(in, 16);
    // Whole bytes that were taken ahead are given back.
    in->at -= in->count / 8;
    in->bits = 0;
    in->count = 0;
    in->is_wrong |= (len ^ check) != 0xffffu;
    in->is_cut |= !in->is_wrong && len > in->end - in->at;
    if (in->is_cut || in->is_wrong) return made;
    if (len > most - made) return most + 1;
    for (u32 i = thread_x(); i < len; i += WARP) to[made + i] = in->from[in->at + i];
    in->at += len;
    return made + len;
}

// Copies of what was made before, and bytes, up to the end of the block; returns how long the message is then, or more than `most`.
DEVICE u32 follow_codes(reader *in, GLOBAL u8 *to, u32 made, u32 most, code literals, code distances)
{
    while (!in->is_cut && !in->is_wrong) {
        u32 symbol = symbol_of(in, literals);
        if (symbol == END_OF_BLOCK || in->is_cut) return made;
        if (symbol < END_OF_BLOCK) {
            if (made == most) return most + 1;
            if (thread_x() == 0) to[made] = (u8)symbol;
            made++;
            continue;
        }
        u32 len = length_of(in, symbol);
        if (len > most - made) return most + 1;
        u32 distance = distance_of(in, symbol_of(in, distances));
        in->is_wrong |= distance > made;
        if (in->is_wrong || in->is_cut) return made;
        // Every lane sees what all have written; where a copy is longer than its distance it repeats itself.
        WARP_BARRIER();
        GLOBAL const u8 *from = to + made - distance;
        for (u32 i = thread_x(); i < len; i += WARP) to[made + i] = from[distance >= len ? i : i % distance];
        made += len;
    }
    return made;
}

// `room` is the most that a message may become. No byte of a stream stands for more than 1032; no place has 2^32 bytes.
KERNEL LAUNCH_BOUNDS(WARP, 16) inflate_streams(GLOBAL u8 *target, GLOBAL u64 *RESTRICT lens, GLOBAL const u8 *RESTRICT source,
    GLOBAL const u64 *RESTRICT rows, FIXED batch all, u32 room)
{
    SHARED u16 tables[2 * ROOT_ENTRIES];
    SHARED u16 counts[2 * (CODE_BITS_MAX + 1)];
    SHARED u16 sorted[SYMBOLS_MAX + LITERALS_MAX];
    SHARED u8 code_lens[SYMBOLS_MAX];
    u64 number = block_x();
    message one = message_at(&all, rows, number);
    GLOBAL u8 *to = target + one.target;
    u32 most = one.len * 1032 < room ? (u32)(one.len * 1032) : room, made = 0, is_last = 0;
    reader in;
    in.from = source + one.source;
    in.at = 0;
    in.end = (u32)one.len;
    in.bits = 0;
    in.count = in.is_cut = in.is_wrong = 0;
    code literals, distances;
    literals.table = tables;
    literals.counts = counts;
    literals.sorted = sorted;
    distances.table = tables + ROOT_ENTRIES;
    distances.counts = counts + CODE_BITS_MAX + 1;
    distances.sorted = sorted + LITERALS_MAX;
    while (!is_last && !in.is_cut && !in.is_wrong && made <= most) {
        is_last = take_bits(&in, 1);
        u32 kind = take_bits(&in, 2);
        if (kind == 0) {
            made = copy_stored(&in, to, made, most);
            continue;
        }
        u32 first = LITERALS_MAX, second = 32;
        if (kind == 1) fixed_lens(code_lens);
        else if (kind == 2) read_lens(&in, literals, code_lens, &first, &second);
        else in.is_wrong = 1;
        if (in.is_cut || in.is_wrong) break;
        in.is_wrong = build_code(literals, code_lens, first);
        if (!in.is_wrong) in.is_wrong = build_code(distances, code_lens + first, second);
        if (!in.is_wrong) made = follow_codes(&in, to, made, most, literals, distances);
    }
    // Nothing may follow but the rest of the last byte.
    if (in.at - in.count / 8 != in.end) in.is_wrong |= made <= most;
    if (thread_x() == 0) lens[number] = in.is_cut ? REJECTED : made > most ? TOO_LONG : in.is_wrong ? REJECTED : (u64)made;
}

// The tags of GCM: a polynomial over the field of 2^128 elements, whose coefficients are a message's associated data, its text and their
// lengths, in blocks. Products are made of integer products of bits that lie four apart, so that carries stay between them (as BearSSL's
// are): no table, and no address or branch that depends on a key or a message.
//
// A message's blocks are hashed by chunks of 2^`log_chunk`, counted from its end, one for each thread; the sums of chunks are hashed in the same way, level by
// level, until one is left for each message. Level l multiplies by the power 2^(log_chunk * (l - 1)) of the key.
//
// An element is four words, the first of which has the last four bytes, highest bit first.

typedef struct { u32 w[4]; } element;

DEVICE u64 multiply_bits(u32 x, u32 y)
{
    u32 x0 = x & 0x11111111u, x1 = x & 0x22222222u, x2 = x & 0x44444444u, x3 = x & 0x88888888u;
    u32 y0 = y & 0x11111111u, y1 = y & 0x22222222u, y2 = y & 0x44444444u, y3 = y & 0x88888888u;
    u64 z0 = (u64)x0 * y0 ^ (u64)x1 * y3 ^ (u64)x2 * y2 ^ (u64)x3 * y1;
    u64 z1 = (u64)x0 * y1 ^ (u64)x1 * y0 ^ (u64)x2 * y3 ^ (u64)x3 * y2;
    u64 z2 = (u64)x0 * y2 ^ (u64)x1 * y1 ^ (u64)x2 * y0 ^ (u64)x3 * y3;
    u64 z3 = (u64)x0 * y3 ^ (u64)x1 * y2 ^ (u64)x2 * y1 ^ (u64)x3 * y0;
    return (z0 & 0x1111111111111111ull) | (z1 & 0x2222222222222222ull) | (z2 & 0x4444444444444444ull) | (z3 & 0x8888888888888888ull);
}

// Two words by two, after Karatsuba.
DEVICE void multiply_pairs(u64 *low, u64 *high, u32 a0, u32 a1, u32 b0, u32 b1)
{
    u64 first = multiply_bits(a0, b0), last = multiply_bits(a1, b1);
    u64 middle = multiply_bits(a0 ^ a1, b0 ^ b1) ^ first ^ last;
    *low = first ^ middle << 32;
    *high = last ^ middle >> 32;
}

// The field's polynomial, of a product that is shifted by one bit since the bits are in reverse.
DEVICE element reduced(u64 p0, u64 p1, u64 p2, u64 p3)
{
    u32 z[8] = {(u32)p0, (u32)(p0 >> 32), (u32)p1, (u32)(p1 >> 32), (u32)p2, (u32)(p2 >> 32), (u32)p3, (u32)(p3 >> 32)};
    UNROLL for (u32 i = 7; i > 0; i--) z[i] = z[i] << 1 | z[i - 1] >> 31;
    z[0] <<= 1;
    UNROLL for (u32 i = 0; i < 4; i++) {
        u32 low = z[i];
        z[i + 4] ^= low ^ low >> 1 ^ low >> 2 ^ low >> 7;
        z[i + 3] ^= low << 31 ^ low << 30 ^ low << 25;
    }
    element result = {{z[4], z[5], z[6], z[7]}};
    return result;
}

DEVICE element multiply(element a, element b)
{
    u64 l0, l1, h0, h1, m0, m1;
    multiply_pairs(&l0, &l1, a.w[0], a.w[1], b.w[0], b.w[1]);
    multiply_pairs(&h0, &h1, a.w[2], a.w[3], b.w[2], b.w[3]);
    multiply_pairs(&m0, &m1, a.w[0] ^ a.w[2], a.w[1] ^ a.w[3], b.w[0] ^ b.w[2], b.w[1] ^ b.w[3]);
    m0 ^= l0 ^ h0;
    m1 ^= l1 ^ h1;
    return reduced(l0, l1 ^ m0, h0 ^ m1, h1);
}

// A bit between any two.
DEVICE u64 spread_bits(u32 x)
{
    u64 y = x;
    y = (y | y << 16) & 0x0000ffff0000ffffull;
    y = (y | y << 8) & 0x00ff00ff00ff00ffull;
    y = (y | y << 4) & 0x0f0f0f0f0f0f0f0full;
    y = (y | y << 2) & 0x3333333333333333ull;
    return (y | y << 1) & 0x5555555555555555ull;
}

DEVICE element element_of(u32x4 block)
{
    element result = {{swap_bytes(block.w), swap_bytes(block.z), swap_bytes(block.y), swap_bytes(block.x)}};
    return result;
}

// The powers of the key that the levels multiply by, one after the other.
KERNEL LAUNCH_BOUNDS(32, 1) gcm_powers(GLOBAL u32 *RESTRICT powers, GLOBAL const u8 *RESTRICT zeros_encrypted, u32 levels, u32 log_chunk)
{
    if (thread_x() != 0) return;
    element power = element_of(load_block(zeros_encrypted, 16));
    for (u32 level = 0; level < levels; level++) {
        UNROLL for (u32 i = 0; i < 4; i++) powers[4 * level + i] = power.w[i];
        for (u32 i = 0; i < log_chunk; i++)
            power = reduced(spread_bits(power.w[0]), spread_bits(power.w[1]), spread_bits(power.w[2]), spread_bits(power.w[3]));
    }
}

// One block of a message as it is hashed. The text is where the op left it, or found it.
DEVICE element hashed_block(const message *one, u64 text, GLOBAL const u8 *texts, GLOBAL const u8 *data, u64 number)
{
    u64 data_blocks = (one->data_len + 15) / 16, text_blocks = (one->len + 15) / 16;
    if (number < data_blocks) return element_of(load_block(data + one->data + 16 * number, one->data_len - 16 * number));
    number -= data_blocks;
    if (number < text_blocks) return element_of(load_block(texts + text + 16 * number, one->len - 16 * number));
    u64 data_bits = 8 * one->data_len, text_bits = 8 * one->len;
    element lengths = {{(u32)text_bits, (u32)(text_bits >> 32), (u32)data_bits, (u32)(data_bits >> 32)}};
    return lengths;
}

// One level. `is_target`: the text lies where the target does.
KERNEL LAUNCH_BOUNDS(128, 2) gcm_hash(GLOBAL u32 *RESTRICT sums, GLOBAL const u32 *RESTRICT parts, GLOBAL const u8 *RESTRICT texts,
    GLOBAL const u8 *RESTRICT data, GLOBAL const u64 *RESTRICT rows, GLOBAL const u32 *RESTRICT powers, FIXED batch all, u64 elements,
    u32 is_target, u32 level, u32 log_chunk)
{
    u64 at = (u64)block_x() * block_size_x() + thread_x();
    if (at >= elements) return;
    u32 shift = level * log_chunk, below = shift - log_chunk;
    u64 number = message_of(&all, rows, at, ROW_BLOCKS, shift, 1);
    u64 place = at - place_of(&all, rows, number, ROW_BLOCKS, shift, 1);
    message one = message_at(&all, rows, number);
    u64 blocks = (one.data_len + 15) / 16 + (one.len + 15) / 16 + 1;
    u64 count = (blocks + (1ull << shift) - 1) >> shift, parts_count = (blocks + (1ull << below) - 1) >> below;
    if (place >= count) return;
    u64 left = (count - place - 1) << log_chunk, end = parts_count - left;
    u64 begin = end > (1ull << log_chunk) ? end - (1ull << log_chunk) : 0;
    u64 first_part = place_of(&all, rows, number, ROW_BLOCKS, below, 1);
    element power, sum = {{0, 0, 0, 0}};
    UNROLL for (u32 i = 0; i < 4; i++) power.w[i] = powers[4 * (level - 1) + i];
    ROLLED for (u64 i = begin; i < end; i++) {
        element next;
        if (level == 1) next = hashed_block(&one, is_target ? one.target : one.source, texts, data, i);
        else UNROLL for (u32 j = 0; j < 4; j++) next.w[j] = parts[4 * (first_part + i) + j];
        sum = multiply(sum, power);
        UNROLL for (u32 j = 0; j < 4; j++) sum.w[j] ^= next.w[j];
    }
    if (level == 1) sum = multiply(sum, power);
    UNROLL for (u32 j = 0; j < 4; j++) sums[4 * at + j] = sum.w[j];
}

// The tags of messages whose last level has one sum each. They are written to `tags`, behind each text or all together; or, where there is
// a `verdict`, compared.
KERNEL LAUNCH_BOUNDS(128, 2) gcm_tags(GLOBAL u8 *tags, GLOBAL const u32 *RESTRICT sums, GLOBAL const u8 *RESTRICT masks,
    GLOBAL const u64 *RESTRICT rows, FIXED batch all, u32 shift, u32 is_apart, GLOBAL u32 *verdict, u32 is_check)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    // All lanes give their verdicts together; those without a message of their own do the last one's work.
    u32 is_there = number < all.count;
    if (!is_there) number = all.count - 1;
    message one = message_at(&all, rows, number);
    u64 at = place_of(&all, rows, number, ROW_BLOCKS, shift, 1);
    u32x4 mask = load_block(masks + 16 * number, 16);
    u32x4 tag = {swap_bytes(sums[4 * at + 3]) ^ mask.x, swap_bytes(sums[4 * at + 2]) ^ mask.y, swap_bytes(sums[4 * at + 1]) ^ mask.z,
        swap_bytes(sums[4 * at]) ^ mask.w};
    GLOBAL u8 *place = tags + (is_apart ? 16 * number : (is_check ? one.source : one.target) + one.len);
    if (is_check) {
        u32x4 given = load_block(place, 16);
        u32 differs = (given.x ^ tag.x) | (given.y ^ tag.y) | (given.z ^ tag.z) | (given.w ^ tag.w);
        give_verdict(verdict, is_there, differs, number);
    } else if (is_there) {
        store_block(place, tag, 16);
    }
}

// The tags of ChaCha20-Poly1305: a polynomial modulo 2^130 - 5, whose coefficients are a message's associated data, its text and their
// lengths, in blocks. Each message has its own key. Chunks and levels are those of `gcm.c`.
//
// An element is five limbs of 26 bits, the lowest first, each of which may have a little more.

#define LIMBS 5u
#define LIMB 0x3ffffffu

typedef struct { u32 w[LIMBS]; } element;

// Words of a message's key: the power that each level multiplies by, and what is added at the end.
DEVICE u64 key_words(u32 levels) { return LIMBS * levels + 4; }

DEVICE element multiply(element a, element b)
{
    u64 d[LIMBS], carry = 0;
    UNROLL for (u32 i = 0; i < LIMBS; i++) {
        d[i] = 0;
        UNROLL for (u32 j = 0; j < LIMBS; j++) {
            u32 k = (i + LIMBS - j) % LIMBS;
            d[i] += (u64)a.w[j] * (j <= i ? b.w[k] : 5 * b.w[k]);
        }
    }
    element result;
    UNROLL for (u32 i = 0; i < LIMBS; i++) {
        d[i] += carry;
        result.w[i] = (u32)d[i] & LIMB;
        carry = d[i] >> 26;
    }
    u64 low = result.w[0] + carry * 5;
    result.w[0] = (u32)low & LIMB;
    result.w[1] += (u32)(low >> 26);
    return result;
}

DEVICE element element_of(u32x4 block, u32 above)
{
    element result;
    result.w[0] = block.x & LIMB;
    result.w[1] = (block.x >> 26 | block.y << 6) & LIMB;
    result.w[2] = (block.y >> 20 | block.z << 12) & LIMB;
    result.w[3] = (block.z >> 14 | block.w << 18) & LIMB;
    result.w[4] = block.w >> 8 | above << 24;
    return result;
}

// The keys of the messages.
KERNEL LAUNCH_BOUNDS(128, 2) poly_keys(GLOBAL u32 *RESTRICT keys, GLOBAL const u32 *RESTRICT key, GLOBAL const u8 *RESTRICT nonces,
    u64 count, u32 levels, u32 log_chunk)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    if (number >= count) return;
    u32 x[16];
    chacha_block(x, key, nonces + 12 * number, 0);
    GLOBAL u32 *own = keys + number * key_words(levels);
    u32x4 clamped = {x[0] & 0x0fffffffu, x[1] & 0x0ffffffcu, x[2] & 0x0ffffffcu, x[3] & 0x0ffffffcu};
    element power = element_of(clamped, 0);
    for (u32 level = 0; level < levels; level++) {
        UNROLL for (u32 i = 0; i < LIMBS; i++) own[LIMBS * level + i] = power.w[i];
        if (level + 1 < levels)
            for (u32 i = 0; i < log_chunk; i++) power = multiply(power, power);
    }
    UNROLL for (u32 i = 0; i < 4; i++) own[LIMBS * levels + i] = x[4 + i];
}

DEVICE element hashed_block(const message *one, u64 text, GLOBAL const u8 *texts, GLOBAL const u8 *data, u64 number)
{
    u64 data_blocks = (one->data_len + 15) / 16, text_blocks = (one->len + 15) / 16;
    if (number < data_blocks) return element_of(load_block(data + one->data + 16 * number, one->data_len - 16 * number), 1);
    number -= data_blocks;
    if (number < text_blocks) return element_of(load_block(texts + text + 16 * number, one->len - 16 * number), 1);
    u32x4 lengths = {(u32)one->data_len, (u32)(one->data_len >> 32), (u32)one->len, (u32)(one->len >> 32)};
    return element_of(lengths, 1);
}

// One level. `is_target`: the text lies where the target does.
KERNEL LAUNCH_BOUNDS(128, 2) poly_hash(GLOBAL u32 *RESTRICT sums, GLOBAL const u32 *RESTRICT parts, GLOBAL const u8 *RESTRICT texts,
    GLOBAL const u8 *RESTRICT data, GLOBAL const u64 *RESTRICT rows, GLOBAL const u32 *RESTRICT keys, FIXED batch all, u64 elements,
    u32 is_target, u32 level, u32 levels, u32 log_chunk)
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
    GLOBAL const u32 *own = keys + number * key_words(levels) + LIMBS * (level - 1);
    element power, sum = {{0, 0, 0, 0, 0}};
    UNROLL for (u32 i = 0; i < LIMBS; i++) power.w[i] = own[i];
    ROLLED for (u64 i = begin; i < end; i++) {
        element next;
        if (level == 1) next = hashed_block(&one, is_target ? one.target : one.source, texts, data, i);
        else UNROLL for (u32 j = 0; j < LIMBS; j++) next.w[j] = parts[LIMBS * (first_part + i) + j];
        sum = multiply(sum, power);
        UNROLL for (u32 j = 0; j < LIMBS; j++) sum.w[j] += next.w[j];
    }
    if (level == 1) sum = multiply(sum, power);
    UNROLL for (u32 j = 0; j < LIMBS; j++) sums[LIMBS * at + j] = sum.w[j];
}

// Writes tags, or compares them, as `gcm.c` does.
KERNEL LAUNCH_BOUNDS(128, 2) poly_tags(GLOBAL u8 *tags, GLOBAL const u32 *RESTRICT sums, GLOBAL const u32 *RESTRICT keys,
    GLOBAL const u64 *RESTRICT rows, FIXED batch all, u32 levels, u32 shift, u32 is_apart, GLOBAL u32 *verdict, u32 is_check)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    // All lanes give their verdicts together; those without a message of their own do the last one's work.
    u32 is_there = number < all.count;
    if (!is_there) number = all.count - 1;
    message one = message_at(&all, rows, number);
    u64 at = place_of(&all, rows, number, ROW_BLOCKS, shift, 1);
    u32 h[LIMBS], carry = 0;
    UNROLL for (u32 i = 0; i < LIMBS; i++) h[i] = sums[LIMBS * at + i];
    // Twice, since the highest limb's carry comes back at the lowest.
    UNROLL for (u32 turn = 0; turn < 2; turn++) {
        UNROLL for (u32 i = 0; i < LIMBS; i++) {
            h[i] += carry;
            carry = h[i] >> 26;
            h[i] &= LIMB;
        }
        carry *= 5;
    }
    h[0] += carry;
    // Less the modulus, where that is not less than zero.
    u32 less[LIMBS];
    carry = 5;
    UNROLL for (u32 i = 0; i < LIMBS; i++) {
        less[i] = h[i] + carry;
        carry = less[i] >> 26;
        less[i] &= LIMB;
    }
    u32 keep = carry - 1;
    UNROLL for (u32 i = 0; i < LIMBS; i++) h[i] = (h[i] & keep) | (less[i] & ~keep);
    GLOBAL const u32 *added = keys + number * key_words(levels) + LIMBS * levels;
    u32 words[4] = {h[0] | h[1] << 26, h[1] >> 6 | h[2] << 20, h[2] >> 12 | h[3] << 14, h[3] >> 18 | h[4] << 8};
    u64 sum = 0;
    UNROLL for (u32 i = 0; i < 4; i++) {
        sum += (u64)words[i] + added[i];
        words[i] = (u32)sum;
        sum >>= 32;
    }
    u32x4 tag = {words[0], words[1], words[2], words[3]};
    GLOBAL u8 *place = tags + (is_apart ? 16 * number : (is_check ? one.source : one.target) + one.len);
    if (is_check) {
        u32x4 given = load_block(place, 16);
        u32 differs = (given.x ^ tag.x) | (given.y ^ tag.y) | (given.z ^ tag.z) | (given.w ^ tag.w);
        give_verdict(verdict, is_there, differs, number);
    } else if (is_there) {
        store_block(place, tag, 16);
    }
}

// Codes over the field of 256 elements.

// Shards that are sums of others, each times a weight: four of them at a time. Four bytes of a shard are one word, which is doubled seven times;
// each double is added where the weight has its bit. `masks` has, for each group of four shards, each source and each bit, a word for each
// of the four: ones where the bit is set. `sources` says which rows of the input are taken.
#define WORDS 4u

KERNEL LAUNCH_BOUNDS(128, 4) combine_shards(GLOBAL u8 *RESTRICT target, GLOBAL const u8 *RESTRICT input, GLOBAL const u32x4 *RESTRICT masks,
    GLOBAL const u32 *RESTRICT sources, u32 source_count, u32 shard_count, u64 len, u32 is_aligned)
{
    DYNAMIC_SHARED(u32x4, own);
    u32 group = block_y();
    for (u32 i = thread_x(); i < 8 * source_count; i += 128) own[i] = masks[(u64)group * 8 * source_count + i];
    BARRIER();
    u64 step = (u64)grid_size_x() * 128 * 16;
    for (u64 at = ((u64)block_x() * 128 + thread_x()) * 16; at < len; at += step) {
        u32 sums[4][WORDS];
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 j = 0; j < WORDS; j++) sums[i][j] = 0;
        for (u32 source = 0; source < source_count; source++) {
            GLOBAL const u8 *from = input + sources[source] * len + at;
            u32 words[WORDS] = {0, 0, 0, 0};
            if (is_aligned) {
                u32x4 four = *(GLOBAL const u32x4 *)from;
                words[0] = four.x;
                words[1] = four.y;
                words[2] = four.z;
                words[3] = four.w;
            } else {
                UNROLL for (u32 i = 0; i < 16; i++)
                    if (at + i < len) words[i / 4] |= (u32)from[i] << (8 * (i % 4));
            }
            UNROLL for (u32 bit = 0; bit < 8; bit++) {
                u32x4 mask = own[8 * source + bit];
                UNROLL for (u32 j = 0; j < WORDS; j++) {
                    sums[0][j] ^= words[j] & mask.x;
                    sums[1][j] ^= words[j] & mask.y;
                    sums[2][j] ^= words[j] & mask.z;
                    sums[3][j] ^= words[j] & mask.w;
                    words[j] = (words[j] & 0x7f7f7f7fu) << 1 ^ (words[j] >> 7 & 0x01010101u) * 0x1du;
                }
            }
        }
        UNROLL for (u32 i = 0; i < 4; i++) {
            if (4 * group + i >= shard_count) break;
            GLOBAL u8 *to = target + (u64)(4 * group + i) * len + at;
            if (is_aligned) {
                u32x4 four = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
                *(GLOBAL u32x4 *)to = four;
            } else {
                UNROLL for (u32 j = 0; j < 16; j++)
                    if (at + j < len) to[j] = (u8)(sums[i][j / 4] >> (8 * (j % 4)));
            }
        }
    }
}

// The parity of Reed–Solomon words, a word for each thread: the remainder of a division by the generator, byte by byte. PARITY_WORDS words
// have room for it; `products` has, for each byte, its product with the generator.
#ifdef PARITY_WORDS
KERNEL LAUNCH_BOUNDS(128, 4) rs_encode(GLOBAL u8 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL const u32 *RESTRICT products,
    u64 count, u32 data, u32 parity)
{
    // Rows of the table are read sixteen bytes at a time, where they have as many.
#if PARITY_WORDS >= 4
    SHARED u32x4 rows[64 * PARITY_WORDS];
    LOCAL u32 *table = (LOCAL u32 *)rows;
#else
    SHARED u32 table[256 * PARITY_WORDS];
#endif
    for (u32 i = thread_x(); i < 256 * PARITY_WORDS; i += 128) table[i] = products[i];
    BARRIER();
    u64 number = (u64)block_x() * 128 + thread_x();
    if (number >= count) return;
    GLOBAL const u8 *from = source + number * data;
    GLOBAL u8 *to = target + number * (data + parity);
    u32 rest[PARITY_WORDS];
    UNROLL for (u32 i = 0; i < PARITY_WORDS; i++) rest[i] = 0;
    for (u32 at = 0; at < data; at++) {
        u32 byte = from[at], first = (byte ^ rest[0]) & 255u;
        to[at] = (u8)byte;
        u32 row[PARITY_WORDS];
#if PARITY_WORDS >= 4
        UNROLL for (u32 i = 0; i < PARITY_WORDS / 4; i++) {
            u32x4 four = rows[first * (PARITY_WORDS / 4) + i];
            row[4 * i] = four.x;
            row[4 * i + 1] = four.y;
            row[4 * i + 2] = four.z;
            row[4 * i + 3] = four.w;
        }
#else
        UNROLL for (u32 i = 0; i < PARITY_WORDS; i++) row[i] = table[first * PARITY_WORDS + i];
#endif
        UNROLL for (u32 i = 0; i < PARITY_WORDS; i++) {
            u32 above = i + 1 < PARITY_WORDS ? rest[(i + 1) % PARITY_WORDS] << 24 : 0;
            rest[i] = (rest[i] >> 8 | above) ^ row[i];
        }
    }
    UNROLL for (u32 i = 0; i < 4 * PARITY_WORDS; i++)
        if (i < parity) to[data + i] = (u8)(rest[i / 4] >> (8 * (i % 4)));
}
#endif

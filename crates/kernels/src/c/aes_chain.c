// AES in CBC mode: each message's first block is added to its initial vector, and every other block to the ciphertext of the block before it.
//
// To encrypt, a thread processes eight messages together; to decrypt (DECRYPT), eight blocks of one message. With
// `is_padded`, one to sixteen bytes follow a message, and each of them has their number (PKCS#7).

#if DECRYPT
KERNEL LAUNCH_BOUNDS(128, 4) aes_chain(GLOBAL u8 *target, GLOBAL const u8 *source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const u32 *RESTRICT round_keys, GLOBAL const u8 *RESTRICT vectors, u32 rounds, FIXED batch all, u64 units, u32 is_padded)
{
    SHARED u32 keys[KEY_WORDS];
    load_keys(keys, round_keys, rounds);
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 unit = (u64)block_x() * block_size_x() + thread_x(); unit < units; unit += step) {
        u64 number = message_of(&all, rows, unit, ROW_UNITS, 0, 0);
        u64 first = 128 * (unit - before_message(&all, rows, number, ROW_UNITS));
        message one = message_at(&all, rows, number);
        u32 s[STATE];
        UNROLL for (u32 slot = 0; slot < 8; slot++) {
            u64 at = first + 16 * slot;
            u32x4 block = load_block(source + one.source + at, at < one.len ? 16 : 0);
            s[slot] = block.x;
            s[8 + slot] = block.y;
            s[16 + slot] = block.z;
            s[24 + slot] = block.w;
        }
        to_bits(s);
        decrypt_state(s, keys, rounds);
        from_bits(s);
        UNROLL for (u32 slot = 0; slot < 8; slot++) {
            u64 at = first + 16 * slot;
            if (at >= one.len) break;
            u32x4 before = load_block(at == 0 ? vectors + 16 * number : source + one.source + at - 16, 16);
            u32x4 block = {s[slot] ^ before.x, s[8 + slot] ^ before.y, s[16 + slot] ^ before.z, s[24 + slot] ^ before.w};
            store_block(target + one.target + at, block, 16);
        }
    }
    wipe_words(keys, (rounds + 1) * STATE);
}
#else
KERNEL LAUNCH_BOUNDS(32, 1) aes_chain(GLOBAL u8 *target, GLOBAL const u8 *source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const u32 *RESTRICT round_keys, GLOBAL const u8 *RESTRICT vectors, u32 rounds, FIXED batch all, u64 units, u32 is_padded)
{
    SHARED u32 keys[KEY_WORDS];
    load_keys(keys, round_keys, rounds);
    u64 unit = (u64)block_x() * block_size_x() + thread_x();
    message each[8];
    u32 s[STATE];
    u64 longest = 0;
    UNROLL for (u32 slot = 0; slot < 8; slot++) {
        // Units beyond the last have no message, and no block.
        u64 number = 8 * unit + slot;
        u32x4 vector = load_block(vectors + 16 * number, number < all.count ? 16 : 0);
        s[slot] = vector.x;
        s[8 + slot] = vector.y;
        s[16 + slot] = vector.z;
        s[24 + slot] = vector.w;
        each[slot].len = 0;
        if (number < all.count) {
            each[slot] = message_at(&all, rows, number);
            u64 blocks = each[slot].len / 16 + is_padded;
            if (blocks > longest) longest = blocks;
        }
    }
    ROLLED for (u64 place = 0; place < longest; place++) {
        UNROLL for (u32 slot = 0; slot < 8; slot++) {
            u64 at = 16 * place, len = each[slot].len, left = at < len ? len - at : 0;
            u32x4 block = load_block(source + each[slot].source + at, left);
            if (left < 16) {
                u32 pad = 16 - (u32)left, words[4];
                UNROLL for (u32 i = 0; i < 4; i++) {
                    words[i] = 0;
                    UNROLL for (u32 j = 0; j < 4; j++)
                        if (4 * i + j >= left) words[i] |= pad << (8 * j);
                }
                block.x |= words[0];
                block.y |= words[1];
                block.z |= words[2];
                block.w |= words[3];
            }
            s[slot] ^= block.x;
            s[8 + slot] ^= block.y;
            s[16 + slot] ^= block.z;
            s[24 + slot] ^= block.w;
        }
        to_bits(s);
        encrypt_state(s, keys, rounds);
        from_bits(s);
        UNROLL for (u32 slot = 0; slot < 8; slot++) {
            u32x4 block = {s[slot], s[8 + slot], s[16 + slot], s[24 + slot]};
            u64 number = 8 * unit + slot, blocks = each[slot].len / 16 + is_padded;
            if (number < all.count && place < blocks) store_block(target + each[slot].target + 16 * place, block, 16);
        }
    }
    wipe_words(keys, (rounds + 1) * STATE);
}
#endif

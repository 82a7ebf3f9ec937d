// SHA-2: a thread hashes a message. WIDE is 1 for SHA-512 and its shorter form, 0 for SHA-256; KEY is 1 for the states derived from a key.
//
// `states` has the initial state, eight words. With a key (HMAC) it has the state after the key's block, and behind it the initial state for
// the inner digest. The key counts as one block that was hashed already.

// A block of a message of `len` bytes, before which `hashed` bytes were hashed, with what follows its end.
DEVICE void load_words(word *w, GLOBAL const u8 *from, u64 len, u64 at, u64 hashed)
{
    if (at + BLOCK <= len && ((u64)from & 15) == 0) {
        UNROLL for (u32 i = 0; i < BLOCK / 16; i++) {
            u32x4 four = *(GLOBAL const u32x4 *)(from + at + 16 * i);
#if WIDE
            w[2 * i] = word_of(four.x, four.y);
            w[2 * i + 1] = word_of(four.z, four.w);
#else
            w[4 * i] = word_of(four.x, 0);
            w[4 * i + 1] = word_of(four.y, 0);
            w[4 * i + 2] = word_of(four.z, 0);
            w[4 * i + 3] = word_of(four.w, 0);
#endif
        }
        return;
    }
    u64 bits = 8 * (len + hashed);
    u32 is_last = at + BLOCK >= len + 1 + 2 * WORD_BYTES;
    UNROLL for (u32 i = 0; i < 16; i++) {
        word value = 0;
        ROLLED for (u32 j = 0; j < WORD_BYTES; j++) {
            u64 place = at + WORD_BYTES * i + j;
            u32 byte = place == len ? 0x80u : 0;
            if (place < len) byte = from[place];
            value = value << 8 | byte;
        }
        w[i] = value;
    }
#if WIDE
    if (is_last) w[15] = bits;
#else
    if (is_last) {
        w[14] = (u32)(bits >> 32);
        w[15] = (u32)bits;
    }
#endif
}

#if !KEY
KERNEL LAUNCH_BOUNDS(64, 8) sha_messages(GLOBAL u8 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const word *RESTRICT states, FIXED batch all, u32 digest_bytes, u32 is_keyed)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    if (number >= all.count) return;
    message one = message_at(&all, rows, number);
    word state[8];
    u32 step = 0;
    // The inner digest is another message, assembled in words.
    ROLLED for (step = 0; step <= is_keyed; step++) {
        word w[16];
        u64 blocks = step ? 1 : (one.len + 1 + 2 * WORD_BYTES + BLOCK - 1) / BLOCK, hashed = is_keyed ? BLOCK : 0;
        if (step) {
            UNROLL for (u32 i = 0; i < 16; i++) w[i] = i < 8 && WORD_BYTES * i < digest_bytes ? state[i % 8] : 0;
            UNROLL for (u32 i = 0; i < 9; i++)
                if (WORD_BYTES * i == digest_bytes) w[i] = (word)0x80 << (8 * WORD_BYTES - 8);
            w[15] = 8 * ((word)digest_bytes + BLOCK);
        }
        UNROLL for (u32 i = 0; i < 8; i++) state[i] = states[8 * step + i];
        ROLLED for (u64 i = 0; i < blocks; i++) {
            if (!step) load_words(w, source + one.source, one.len, BLOCK * i, hashed);
            compress(state, w);
        }
    }
    UNROLL for (u32 i = 0; i < 8 * WORD_BYTES; i++)
        if (i < digest_bytes) target[number * digest_bytes + i] = (u8)(state[i / WORD_BYTES] >> (8 * (WORD_BYTES - 1 - i % WORD_BYTES)));
}

#else
// The states after a key's block, for the inner and for the outer hash; a key longer than a block is hashed before. One thread.
KERNEL LAUNCH_BOUNDS(32, 1) sha_key(GLOBAL word *RESTRICT states, GLOBAL const word *RESTRICT first, GLOBAL const u8 *RESTRICT key, u64 len,
    u32 digest_bytes)
{
    if (thread_x() != 0) return;
    word padded[16], state[8], w[16];
    UNROLL for (u32 i = 0; i < 16; i++) {
        padded[i] = 0;
        ROLLED for (u32 j = 0; j < WORD_BYTES; j++) {
            u32 place = WORD_BYTES * i + j;
            padded[i] = padded[i] << 8 | (place < len && len <= BLOCK ? key[place] : 0);
        }
    }
    u64 blocks = len > BLOCK ? (len + 1 + 2 * WORD_BYTES + BLOCK - 1) / BLOCK : 0;
    ROLLED for (u64 step = 0; step < blocks + 2; step++) {
        u32 is_inner = step == blocks, is_outer = step > blocks;
        if (step == 0 || is_inner || is_outer) {
            // The hash of the key's own blocks is the key.
            if (is_inner && blocks > 0)
                UNROLL for (u32 i = 0; i < 8; i++) padded[i] = WORD_BYTES * i < digest_bytes ? state[i] : 0;
            UNROLL for (u32 i = 0; i < 8; i++) state[i] = first[i];
        }
        word pad = (word)(is_outer ? 0x5c5c5c5c5c5c5c5cull : 0x3636363636363636ull);
        if (step < blocks) load_words(w, key, len, BLOCK * step, 0);
        else UNROLL for (u32 i = 0; i < 16; i++) w[i] = padded[i] ^ pad;
        compress(state, w);
        if (step >= blocks)
            UNROLL for (u32 i = 0; i < 8; i++) states[8 * (step - blocks) + i] = state[i];
    }
}
#endif

// The round keys of AES, as `aes.h` adds them: word `32 * round + 8 * row + bit` has a byte of ones for each column whose key byte has the
// bit. One block of 32 threads; the first expands the key by FIPS 197.

DEVICE u32 substitute_word(u32 word)
{
    u32 q[8];
    UNROLL for (u32 bit = 0; bit < 8; bit++) q[bit] = word >> bit & 0x01010101u;
    substitute(q);
    u32 result = 0;
    UNROLL for (u32 bit = 0; bit < 8; bit++) result |= (q[bit] & 0x01010101u) << bit;
    return result;
}

KERNEL LAUNCH_BOUNDS(32, 1) aes_expand(GLOBAL u32 *RESTRICT target, GLOBAL const u32 *RESTRICT key, u32 key_words, u32 rounds)
{
    SHARED u32 words[60];
    if (thread_x() == 0) {
        u32 round_constant = 1, count = 4 * (rounds + 1);
        ROLLED for (u32 i = 0; i < count; i++) {
            if (i < key_words) {
                words[i] = key[i];
                continue;
            }
            u32 last = words[i - 1];
            if (i % key_words == 0) {
                last = substitute_word(last >> 8 | last << 24) ^ round_constant;
                round_constant = round_constant << 1 ^ (round_constant >> 7) * 0x11bu;
            } else if (key_words > 6 && i % key_words == 4) {
                last = substitute_word(last);
            }
            words[i] = words[i - key_words] ^ last;
        }
    }
    BARRIER();
    u32 row = thread_x() / 8, bit = thread_x() % 8;
    for (u32 round = 0; round <= rounds; round++) {
        u32 sliced = 0;
        UNROLL for (u32 column = 0; column < 4; column++)
            sliced |= (0u - (words[4 * round + column] >> (8 * row + bit) & 1u)) & 0xffu << (8 * column);
        target[round * STATE + thread_x()] = sliced;
    }
    wipe_words(words, 60);
}

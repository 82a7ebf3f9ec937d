// One block of the stream of ChaCha20 (RFC 8439), as sixteen words.

DEVICE u32 rotated_left(u32 x, u32 by) { return x << by | x >> (32 - by); }

#define QUARTER(a, b, c, d) \
    { \
        x[a] += x[b]; \
        x[d] = rotated_left(x[d] ^ x[a], 16); \
        x[c] += x[d]; \
        x[b] = rotated_left(x[b] ^ x[c], 12); \
        x[a] += x[b]; \
        x[d] = rotated_left(x[d] ^ x[a], 8); \
        x[c] += x[d]; \
        x[b] = rotated_left(x[b] ^ x[c], 7); \
    }

DEVICE void chacha_block(u32 *x, GLOBAL const u32 *key, GLOBAL const u8 *nonce, u32 counter)
{
    u32 first[16];
    first[0] = 0x61707865u;
    first[1] = 0x3320646eu;
    first[2] = 0x79622d32u;
    first[3] = 0x6b206574u;
    UNROLL for (u32 i = 0; i < 8; i++) first[4 + i] = key[i];
    first[12] = counter;
    UNROLL for (u32 i = 0; i < 3; i++) {
        first[13 + i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++) first[13 + i] |= (u32)nonce[4 * i + j] << (8 * j);
    }
    UNROLL for (u32 i = 0; i < 16; i++) x[i] = first[i];
    ROLLED for (u32 round = 0; round < 10; round++) {
        QUARTER(0, 4, 8, 12)
        QUARTER(1, 5, 9, 13)
        QUARTER(2, 6, 10, 14)
        QUARTER(3, 7, 11, 15)
        QUARTER(0, 5, 10, 15)
        QUARTER(1, 6, 11, 12)
        QUARTER(2, 7, 8, 13)
        QUARTER(3, 4, 9, 14)
    }
    UNROLL for (u32 i = 0; i < 16; i++) x[i] += first[i];
}

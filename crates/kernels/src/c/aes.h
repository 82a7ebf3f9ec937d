// AES on eight blocks at a time, bit by bit: no table, and no address that depends on a key or a message.
//
// The state is 32 words, `8 * row + bit`. A word has that bit of the row's four columns, a byte for each column, and in each byte a bit for
// each block. So rows shift by rotating words, and columns mix by adding words. The circuit of the S-box is Boyar and Peralta's.

#define STATE 32u
// Words of the round keys of the longest key.
#define KEY_WORDS (15u * STATE)

#define SWAP_BITS(a, b, mask, by) \
    { \
        u32 moved = ((a) >> (by) ^ (b)) & (mask); \
        (b) ^= moved; \
        (a) ^= moved << (by); \
    }

DEVICE u32 rotated(u32 x, u32 by) { return by ? x >> by | x << (32 - by) : x; }

// Bytes of columns to bytes of rows, and back: word `8 * i + block` has column i, then row i.
DEVICE void turn_bytes(u32 *s)
{
    UNROLL for (u32 k = 0; k < 8; k++) {
        SWAP_BITS(s[k], s[8 + k], 0x00ff00ffu, 8)
        SWAP_BITS(s[16 + k], s[24 + k], 0x00ff00ffu, 8)
        SWAP_BITS(s[k], s[16 + k], 0x0000ffffu, 16)
        SWAP_BITS(s[8 + k], s[24 + k], 0x0000ffffu, 16)
    }
}

// In each byte: bit i of word j becomes bit j of word i.
DEVICE void turn_bits(u32 *s)
{
    UNROLL for (u32 row = 0; row < 4; row++) {
        u32 *v = s + 8 * row;
        UNROLL for (u32 i = 0; i < 8; i += 2) SWAP_BITS(v[i], v[i + 1], 0x55555555u, 1)
        UNROLL for (u32 i = 0; i < 2; i++) {
            SWAP_BITS(v[i], v[i + 2], 0x33333333u, 2)
            SWAP_BITS(v[i + 4], v[i + 6], 0x33333333u, 2)
        }
        UNROLL for (u32 i = 0; i < 4; i++) SWAP_BITS(v[i], v[i + 4], 0x0f0f0f0fu, 4)
    }
}

// Blocks, word `8 * column + block`, to a state, and back.
DEVICE void to_bits(u32 *s)
{
    turn_bytes(s);
    turn_bits(s);
}
DEVICE void from_bits(u32 *s)
{
    turn_bits(s);
    turn_bytes(s);
}

DEVICE void substitute(u32 *q)
{
    u32 x0 = q[7], x1 = q[6], x2 = q[5], x3 = q[4], x4 = q[3], x5 = q[2], x6 = q[1], x7 = q[0];
    u32 y14 = x3 ^ x5, y13 = x0 ^ x6, y9 = x0 ^ x3, y8 = x0 ^ x5, t0 = x1 ^ x2, y1 = t0 ^ x7, y4 = y1 ^ x3, y12 = y13 ^ y14;
    u32 y2 = y1 ^ x0, y5 = y1 ^ x6, y3 = y5 ^ y8, t1 = x4 ^ y12, y15 = t1 ^ x5, y20 = t1 ^ x1, y6 = y15 ^ x7, y10 = y15 ^ t0;
    u32 y11 = y20 ^ y9, y7 = x7 ^ y11, y17 = y10 ^ y11, y19 = y10 ^ y8, y16 = t0 ^ y11, y21 = y13 ^ y16, y18 = x0 ^ y16;
    u32 t2 = y12 & y15, t4 = (y3 & y6) ^ t2, t6 = (y4 & x7) ^ t2, t7 = y13 & y16, t9 = (y5 & y1) ^ t7, t11 = (y2 & y7) ^ t7;
    u32 t12 = y9 & y11, t14 = (y14 & y17) ^ t12, t16 = (y8 & y10) ^ t12;
    u32 t21 = t4 ^ t14 ^ y20, t22 = t6 ^ t16 ^ y19, t23 = t9 ^ t14 ^ y21, t24 = t11 ^ t16 ^ y18;
    u32 t25 = t21 ^ t22, t26 = t21 & t23, t27 = t24 ^ t26, t29 = (t25 & t27) ^ t22, t30 = t23 ^ t24, t31 = t22 ^ t26;
    u32 t33 = (t31 & t30) ^ t24, t34 = t23 ^ t33, t35 = t27 ^ t33, t36 = t24 & t35, t37 = t36 ^ t34, t38 = t27 ^ t36;
    u32 t40 = t25 ^ (t29 & t38), t41 = t40 ^ t37, t42 = t29 ^ t33, t43 = t29 ^ t40, t44 = t33 ^ t37, t45 = t42 ^ t41;
    u32 z0 = t44 & y15, z1 = t37 & y6, z2 = t33 & x7, z3 = t43 & y16, z4 = t40 & y1, z5 = t29 & y7, z6 = t42 & y11;
    u32 z7 = t45 & y17, z8 = t41 & y10, z9 = t44 & y12, z10 = t37 & y3, z11 = t33 & y4, z12 = t43 & y13, z13 = t40 & y5;
    u32 z14 = t29 & y2, z15 = t42 & y9, z16 = t45 & y14, z17 = t41 & y8;
    u32 t46 = z15 ^ z16, t47 = z10 ^ z11, t48 = z5 ^ z13, t49 = z9 ^ z10, t50 = z2 ^ z12, t51 = z2 ^ z5, t52 = z7 ^ z8;
    u32 t53 = z0 ^ z3, t54 = z6 ^ z7, t55 = z16 ^ z17, t56 = z12 ^ t48, t57 = t50 ^ t53, t58 = z4 ^ t46, t59 = z3 ^ t54;
    u32 t60 = t46 ^ t57, t61 = z14 ^ t57, t62 = t52 ^ t58, t63 = t49 ^ t58, t64 = z4 ^ t59, t65 = t61 ^ t62, t66 = z1 ^ t63;
    u32 s3 = t53 ^ t66;
    q[7] = t59 ^ t63;
    q[1] = ~(t56 ^ t62);
    q[0] = ~(t48 ^ t60);
    q[4] = s3;
    q[3] = t51 ^ t66;
    q[2] = t47 ^ t65;
    q[6] = ~(t64 ^ s3);
    q[5] = ~(t55 ^ t64 ^ t65);
}

// The S-box backwards is itself between two of these.
DEVICE void unaffine(u32 *q)
{
    u32 q0 = ~q[0], q1 = ~q[1], q2 = q[2], q3 = q[3], q4 = q[4], q5 = ~q[5], q6 = ~q[6], q7 = q[7];
    q[7] = q1 ^ q4 ^ q6;
    q[6] = q0 ^ q3 ^ q5;
    q[5] = q7 ^ q2 ^ q4;
    q[4] = q6 ^ q1 ^ q3;
    q[3] = q5 ^ q0 ^ q2;
    q[2] = q4 ^ q7 ^ q1;
    q[1] = q3 ^ q6 ^ q0;
    q[0] = q2 ^ q5 ^ q7;
}

DEVICE void add_key(u32 *s, LOCAL const u32 *key)
{
    UNROLL for (u32 i = 0; i < STATE; i++) s[i] ^= key[i];
}

// Twice a row of bytes, in the field of 2^8 elements.
DEVICE void double_bytes(u32 *to, const u32 *from)
{
    to[0] = from[7];
    to[1] = from[0] ^ from[7];
    to[2] = from[1];
    to[3] = from[2] ^ from[7];
    to[4] = from[3] ^ from[7];
    to[5] = from[4];
    to[6] = from[5];
    to[7] = from[6];
}

DEVICE void mix_columns(u32 *s)
{
    u32 sums[STATE], twice[8];
    UNROLL for (u32 i = 0; i < STATE; i++) sums[i] = s[i] ^ s[(i + 8) % STATE];
    u32 first[8];
    UNROLL for (u32 bit = 0; bit < 8; bit++) first[bit] = s[bit];
    UNROLL for (u32 row = 0; row < 4; row++) {
        double_bytes(twice, sums + 8 * row);
        UNROLL for (u32 bit = 0; bit < 8; bit++) {
            u32 next = row < 3 ? s[(8 * row + 8 + bit) % STATE] : first[bit];
            s[8 * row + bit] = twice[bit] ^ next ^ sums[(8 * row + 16 + bit) % STATE];
        }
    }
}

DEVICE void unmix_columns(u32 *s)
{
    UNROLL for (u32 row = 0; row < 2; row++) {
        u32 sum[8], twice[8], fourfold[8];
        UNROLL for (u32 bit = 0; bit < 8; bit++) sum[bit] = s[8 * row + bit] ^ s[8 * row + 16 + bit];
        double_bytes(twice, sum);
        double_bytes(fourfold, twice);
        UNROLL for (u32 bit = 0; bit < 8; bit++) {
            s[8 * row + bit] ^= fourfold[bit];
            s[8 * row + 16 + bit] ^= fourfold[bit];
        }
    }
    mix_columns(s);
}

DEVICE void encrypt_state(u32 *s, LOCAL const u32 *keys, u32 rounds)
{
    add_key(s, keys);
    ROLLED for (u32 round = 1; round <= rounds; round++) {
        UNROLL for (u32 row = 0; row < 4; row++) {
            substitute(s + 8 * row);
            UNROLL for (u32 bit = 0; bit < 8; bit++) s[8 * row + bit] = rotated(s[8 * row + bit], 8 * row);
        }
        if (round < rounds) mix_columns(s);
        add_key(s, keys + round * STATE);
    }
}

DEVICE void decrypt_state(u32 *s, LOCAL const u32 *keys, u32 rounds)
{
    add_key(s, keys + rounds * STATE);
    ROLLED for (u32 left = rounds; left > 0; left--) {
        UNROLL for (u32 row = 0; row < 4; row++) {
            UNROLL for (u32 bit = 0; bit < 8; bit++) s[8 * row + bit] = rotated(s[8 * row + bit], (32 - 8 * row) % 32);
            unaffine(s + 8 * row);
            substitute(s + 8 * row);
            unaffine(s + 8 * row);
        }
        add_key(s, keys + (left - 1) * STATE);
        if (left > 1) unmix_columns(s);
    }
}

// The round keys to the block's memory.
DEVICE void load_keys(LOCAL u32 *keys, GLOBAL const u32 *from, u32 rounds)
{
    for (u32 i = thread_x(); i < (rounds + 1) * STATE; i += block_size_x()) keys[i] = from[i];
    BARRIER();
}

// Nothing of a key stays in the block's memory, which the next block to run there could read. Every thread of the block must get here.
DEVICE void wipe_words(LOCAL u32 *words, u32 count)
{
    BARRIER();
    for (u32 i = thread_x(); i < count; i += block_size_x()) *(LOCAL volatile u32 *)(words + i) = 0;
}

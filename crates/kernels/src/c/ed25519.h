// The curve of Ed25519 (RFC 8032) and the numbers that it is made of. Nothing here has a branch or an address that depends on them.
//
// Numbers modulo 2^255 - 19 are eight words, the lowest first, and below 2^256; where it matters they are brought below the modulus.

typedef struct { u32 w[8]; } field;
// x = X / Z, y = Y / Z, T = X Y / Z.
typedef struct { field x, y, z, t; } point;
// A point in the form for additions: Y - X, Y + X, 2 d T, 2 Z.
typedef struct { field minus, plus, turned, twice; } addend;

// 2^256 is 38.
DEVICE field folded(u32 *words, u64 above)
{
    field result;
    u64 carry = 38 * above;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += words[i];
        result.w[i] = (u32)carry;
        carry >>= 32;
    }
    result.w[0] += 38 * (u32)carry;
    return result;
}

NOINLINE field multiply(field a, field b)
{
    u32 wide[16];
    UNROLL for (u32 i = 0; i < 16; i++) wide[i] = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < 8; j++) {
            carry += (u64)a.w[i] * b.w[j] + wide[i + j];
            wide[i + j] = (u32)carry;
            carry >>= 32;
        }
        wide[i + 8] = (u32)carry;
    }
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += (u64)wide[i + 8] * 38 + wide[i];
        wide[i] = (u32)carry;
        carry >>= 32;
    }
    return folded(wide, carry);
}

DEVICE field add(field a, field b)
{
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += (u64)a.w[i] + b.w[i];
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    return folded(a.w, carry);
}

DEVICE field subtract(field a, field b)
{
    i64 carry = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += (i64)a.w[i] - (i64)b.w[i];
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    carry *= 38;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += a.w[i];
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    a.w[0] -= 38 * (u32)-carry;
    return a;
}

// The one number below the modulus.
DEVICE field reduced(field a)
{
    UNROLL for (u32 turn = 0; turn < 2; turn++) {
        u64 carry = 19 * (u64)(a.w[7] >> 31);
        a.w[7] &= 0x7fffffffu;
        UNROLL for (u32 i = 0; i < 8; i++) {
            carry += a.w[i];
            a.w[i] = (u32)carry;
            carry >>= 32;
        }
    }
    field more;
    u64 carry = 19;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += a.w[i];
        more.w[i] = (u32)carry;
        carry >>= 32;
    }
    u32 is_more = 0u - (more.w[7] >> 31);
    more.w[7] &= 0x7fffffffu;
    UNROLL for (u32 i = 0; i < 8; i++) a.w[i] = (more.w[i] & is_more) | (a.w[i] & ~is_more);
    return a;
}

DEVICE field squared(field a, u32 times)
{
    ROLLED for (u32 i = 0; i < times; i++) a = multiply(a, a);
    return a;
}

// One over it: the power 2^255 - 21.
DEVICE field inverse(field a)
{
    field a2 = squared(a, 1), a9 = multiply(squared(a2, 2), a), a11 = multiply(a9, a2);
    field b5 = multiply(squared(a11, 1), a9), b10 = multiply(squared(b5, 5), b5), b20 = multiply(squared(b10, 10), b10);
    field b40 = multiply(squared(b20, 20), b20), b50 = multiply(squared(b40, 10), b10), b100 = multiply(squared(b50, 50), b50);
    field b200 = multiply(squared(b100, 100), b100), b250 = multiply(squared(b200, 50), b50);
    return multiply(squared(b250, 5), a11);
}

DEVICE point completed(field e, field f, field g, field h)
{
    point sum;
    sum.x = multiply(e, f);
    sum.y = multiply(g, h);
    sum.z = multiply(f, g);
    sum.t = multiply(e, h);
    return sum;
}

DEVICE point doubled(point p)
{
    field a = multiply(p.x, p.x), b = multiply(p.y, p.y), c = multiply(p.z, p.z), h = add(a, b), xy = add(p.x, p.y);
    field g = subtract(a, b);
    return completed(subtract(h, multiply(xy, xy)), add(add(c, c), g), g, h);
}

DEVICE point added(point p, addend q)
{
    field a = multiply(subtract(p.y, p.x), q.minus), b = multiply(add(p.y, p.x), q.plus), c = multiply(p.t, q.turned);
    field d = multiply(p.z, q.twice);
    return completed(subtract(b, a), subtract(d, c), add(d, c), add(b, a));
}

DEVICE addend addend_of(point p)
{
    field d2 = {{0x26b2f159u, 0xebd69b94u, 0x8283b156u, 0x00e0149au, 0xeef3d130u, 0x198e80f2u, 0x56dffce7u, 0x2406d9dcu}};
    addend q;
    q.minus = subtract(p.y, p.x);
    q.plus = add(p.y, p.x);
    q.turned = multiply(p.t, d2);
    q.twice = add(p.z, p.z);
    return q;
}

DEVICE point none(void)
{
    point p;
    UNROLL for (u32 i = 0; i < 8; i++) {
        p.x.w[i] = 0;
        p.y.w[i] = i == 0;
        p.z.w[i] = i == 0;
        p.t.w[i] = 0;
    }
    return p;
}

DEVICE point affine(field x, field y)
{
    point p = none();
    p.x = x;
    p.y = y;
    p.t = multiply(x, y);
    return p;
}

// Words of a number below 2^512, modulo the order of the base, after Barrett.
DEVICE void modulo_order(u32 *result, const u32 *x)
{
    const u32 order[9] = {0x5cf5d3edu, 0x5812631au, 0xa2f79cd6u, 0x14def9deu, 0x00000000u, 0x00000000u, 0x00000000u, 0x10000000u, 0};
    const u32 factor[9] = {0x0a2c131bu, 0xed9ce5a3u, 0x086329a7u, 0x2106215du, 0xffffffebu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0x0000000fu};
    u32 q[18], r[9], product[9];
    UNROLL for (u32 i = 0; i < 18; i++) q[i] = 0;
    UNROLL for (u32 i = 0; i < 9; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < 9; j++) {
            carry += (u64)x[7 + i] * factor[j] + q[i + j];
            q[i + j] = (u32)carry;
            carry >>= 32;
        }
        q[i + 9] = (u32)carry;
    }
    UNROLL for (u32 i = 0; i < 9; i++) product[i] = 0;
    UNROLL for (u32 i = 0; i < 9; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < 9; j++) {
            if (i + j >= 9) break;
            carry += (u64)q[9 + i] * order[j] + product[i + j];
            product[i + j] = (u32)carry;
            carry >>= 32;
        }
    }
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < 9; i++) {
        borrow += (i64)x[i] - (i64)product[i];
        r[i] = (u32)borrow;
        borrow >>= 32;
    }
    UNROLL for (u32 turn = 0; turn < 2; turn++) {
        u32 less[9];
        borrow = 0;
        UNROLL for (u32 i = 0; i < 9; i++) {
            borrow += (i64)r[i] - (i64)order[i];
            less[i] = (u32)borrow;
            borrow >>= 32;
        }
        // All ones where it was less than the order already.
        u32 is_less = (u32)borrow;
        UNROLL for (u32 i = 0; i < 9; i++) r[i] = (r[i] & is_less) | (less[i] & ~is_less);
    }
    UNROLL for (u32 i = 0; i < 8; i++) result[i] = r[i];
}

// A point as it is written.
DEVICE field encoded(point p)
{
    field one_over = inverse(p.z), x = reduced(multiply(p.x, one_over)), y = reduced(multiply(p.y, one_over));
    y.w[7] |= x.w[0] << 31;
    return y;
}

// The hash of `words` words and a text, as a number of sixteen words. The lowest byte of a word comes first. `first` is the state that SHA-512
// begins with.
#ifndef HEAD_WORDS
#define HEAD_WORDS 16u
#endif
DEVICE void hashed(u32 *result, const u32 *head, u32 words, GLOBAL const u8 *text, u64 len, GLOBAL const u64 *first)
{
    u64 state[8], w[16], before = 4 * words, all = len + before, blocks = (all + 17 + 127) / 128;
    UNROLL for (u32 i = 0; i < 8; i++) state[i] = first[i];
    ROLLED for (u64 block = 0; block < blocks; block++) {
        UNROLL for (u32 i = 0; i < 16; i++) {
            u64 value = 0;
            if (block == 0 && 2 * i < words) {
                // Words at constant places stay in registers.
                value = (u64)swap_bytes(head[2 * i % HEAD_WORDS]) << 32 | swap_bytes(head[(2 * i + 1) % HEAD_WORDS]);
            } else {
                ROLLED for (u32 j = 0; j < 8; j++) {
                    u64 at = 128 * block + 8 * i + j;
                    u32 byte = at == all ? 0x80u : 0;
                    if (at < all) byte = text[at - before];
                    value = value << 8 | byte;
                }
            }
            w[i] = value;
        }
        if (block + 1 == blocks) w[15] = 8 * all;
        compress(state, w);
    }
    // The digest's first byte is the number's lowest.
    UNROLL for (u32 i = 0; i < 8; i++) {
        result[2 * i] = swap_bytes((u32)(state[i] >> 32));
        result[2 * i + 1] = swap_bytes((u32)state[i]);
    }
}

// Bytes at any address, as words with the first byte lowest.
DEVICE void load_words(u32 *words, GLOBAL const u8 *from, u32 count)
{
    UNROLL for (u32 i = 0; i < count; i++) {
        words[i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++) words[i] |= (u32)from[4 * i + j] << (8 * j);
    }
}

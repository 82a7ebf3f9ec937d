// The curve P-256 (FIPS 186-5) and the numbers that it is made of. But for `added`, which is for points that are public, nothing here has a branch
// or an address that depends on them.
//
// Numbers are eight words, the lowest first, and below their modulus. Those modulo the field's prime p are multiplied after Montgomery: each
// stands for itself times 2^256.

typedef struct { u32 w[8]; } number;
typedef struct { number x, y; } affine;
// x = X / Z², y = Y / Z³; none where Z is zero.
typedef struct { number x, y, z; } point;

// `words` and above them `above` times 2^256, which is below twice the modulus.
DEVICE number reduced(const u32 *words, u32 above, const u32 *modulus)
{
    number less;
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        borrow += (i64)words[i] - (i64)modulus[i];
        less.w[i] = (u32)borrow;
        borrow >>= 32;
    }
    // All ones where the words were less: they borrow, and there is nothing above to borrow from.
    u32 is_less = (u32)borrow & (above - 1u);
    UNROLL for (u32 i = 0; i < 8; i++) less.w[i] = (words[i] & is_less) | (less.w[i] & ~is_less);
    return less;
}

DEVICE number reduced_by_p(const u32 *words, u32 above)
{
    const u32 p[8] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000001u, 0xffffffffu};
    return reduced(words, above, p);
}

// Adding q p makes the lowest word zero, where q is that word: p is 2^256 - 2^224 + 2^192 + 2^96 - 1.
NOINLINE number multiply(number a, number b)
{
    u32 t[9];
    UNROLL for (u32 i = 0; i < 9; i++) t[i] = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < 8; j++) {
            carry += (u64)a.w[j] * b.w[i] + t[j];
            t[j] = (u32)carry;
            carry >>= 32;
        }
        carry += t[8];
        u32 q = t[0], last = (u32)carry, above = (u32)(carry >> 32);
        t[0] = t[1];
        t[1] = t[2];
        carry = (u64)t[3] + q;
        t[2] = (u32)carry;
        carry = (carry >> 32) + t[4];
        t[3] = (u32)carry;
        carry = (carry >> 32) + t[5];
        t[4] = (u32)carry;
        carry = (carry >> 32) + t[6] + q;
        t[5] = (u32)carry;
        i64 rest = (i64)(carry >> 32) + (i64)t[7] - (i64)q;
        t[6] = (u32)rest;
        rest = (rest >> 32) + (i64)last + (i64)q;
        t[7] = (u32)rest;
        t[8] = above + (u32)(rest >> 32);
    }
    return reduced_by_p(t, t[8]);
}

// The same modulo the order of the base.
NOINLINE number multiply_by_order(number a, number b)
{
    const u32 order[8] = {0xfc632551u, 0xf3b9cac2u, 0xa7179e84u, 0xbce6faadu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0xffffffffu};
    u32 t[9];
    UNROLL for (u32 i = 0; i < 9; i++) t[i] = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < 8; j++) {
            carry += (u64)a.w[j] * b.w[i] + t[j];
            t[j] = (u32)carry;
            carry >>= 32;
        }
        carry += t[8];
        u32 q = t[0] * 0xee00bc4fu, last = (u32)carry, above = (u32)(carry >> 32);
        carry = ((u64)q * order[0] + t[0]) >> 32;
        UNROLL for (u32 j = 1; j < 8; j++) {
            carry += (u64)q * order[j] + t[j];
            t[j - 1] = (u32)carry;
            carry >>= 32;
        }
        carry += last;
        t[7] = (u32)carry;
        t[8] = above + (u32)(carry >> 32);
    }
    return reduced(t, t[8], order);
}

DEVICE number add(number a, number b)
{
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += (u64)a.w[i] + b.w[i];
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    return reduced_by_p(a.w, (u32)carry);
}

DEVICE number subtract(number a, number b)
{
    const u32 p[8] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000001u, 0xffffffffu};
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        borrow += (i64)a.w[i] - (i64)b.w[i];
        a.w[i] = (u32)borrow;
        borrow >>= 32;
    }
    u32 mask = (u32)borrow;
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += (u64)a.w[i] + (p[i] & mask);
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    return a;
}

DEVICE u32 is_zero(number a)
{
    u32 any = 0;
    UNROLL for (u32 i = 0; i < 8; i++) any |= a.w[i];
    return any == 0;
}

// Whether a is less than these words.
DEVICE u32 is_below(number a, const u32 *words)
{
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < 8; i++) borrow = (borrow + (i64)a.w[i] - (i64)words[i]) >> 32;
    return borrow != 0;
}

DEVICE number number_of(const u32 *words)
{
    number result;
    UNROLL for (u32 i = 0; i < 8; i++) result.w[i] = words[i];
    return result;
}

// One, as it stands in products.
DEVICE number one(void)
{
    const u32 words[8] = {0x00000001u, 0x00000000u, 0x00000000u, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xfffffffeu, 0x00000000u};
    return number_of(words);
}

// A number as it stands in products.
DEVICE number entered(number a)
{
    const u32 square[8] = {0x00000003u, 0x00000000u, 0xffffffffu, 0xfffffffbu, 0xfffffffeu, 0xffffffffu, 0xfffffffdu, 0x00000004u};
    return multiply(a, number_of(square));
}

DEVICE number squared(number a, u32 times)
{
    ROLLED for (u32 i = 0; i < times; i++) a = multiply(a, a);
    return a;
}

// One over it, or zero: the power p - 2. A name's number says of how many ones the exponent consists.
NOINLINE number inverse(number a)
{
    number a2 = multiply(squared(a, 1), a), a4 = multiply(squared(a2, 2), a2), a6 = multiply(squared(a4, 2), a2);
    number a8 = multiply(squared(a4, 4), a4), a16 = multiply(squared(a8, 8), a8), a24 = multiply(squared(a16, 8), a8);
    number a30 = multiply(squared(a24, 6), a6), a32 = multiply(squared(a30, 2), a2);
    number high = multiply(squared(a32, 32), a), middle = multiply(squared(high, 128), a32);
    number low = multiply(squared(multiply(squared(middle, 32), a32), 30), a30);
    return multiply(squared(low, 2), a);
}

DEVICE number order(void)
{
    const u32 words[8] = {0xfc632551u, 0xf3b9cac2u, 0xa7179e84u, 0xbce6faadu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0xffffffffu};
    return number_of(words);
}

// A number as it stands in products modulo the order.
DEVICE number entered_by_order(number a)
{
    const u32 square[8] = {0xbe79eea2u, 0x83244c95u, 0x49bd6fa6u, 0x4699799cu, 0x2b6bec59u, 0x2845b239u, 0xf3d95620u, 0x66e12d94u};
    return multiply_by_order(a, number_of(square));
}

// One over it modulo the order, by fours of the exponent's bits; as it stands in products, as is what it is given.
DEVICE number inverse_by_order(number a)
{
    const u32 exponent[8] = {0xfc63254fu, 0xf3b9cac2u, 0xa7179e84u, 0xbce6faadu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0xffffffffu};
    number powers[15], result = a;
    powers[0] = a;
    ROLLED for (u32 i = 1; i < 15; i++) powers[i] = multiply_by_order(powers[i - 1], a);
    result = powers[14];
    ROLLED for (u32 place = 63; place > 0; place--) {
        ROLLED for (u32 i = 0; i < 4; i++) result = multiply_by_order(result, result);
        u32 four = exponent[(place - 1) / 8] >> (4 * ((place - 1) % 8)) & 15u;
        if (four > 0) result = multiply_by_order(result, powers[four - 1]);
    }
    return result;
}

NOINLINE point doubled(point p)
{
    number delta = multiply(p.z, p.z), gamma = multiply(p.y, p.y), beta = multiply(p.x, gamma);
    number third = multiply(subtract(p.x, delta), add(p.x, delta)), alpha = add(add(third, third), third);
    number twice = add(beta, beta), fourfold = add(twice, twice), both = add(p.y, p.z), square = multiply(gamma, gamma);
    point result;
    result.x = subtract(multiply(alpha, alpha), add(fourfold, fourfold));
    result.z = subtract(subtract(multiply(both, both), gamma), delta);
    square = add(square, square);
    square = add(square, square);
    result.y = subtract(multiply(alpha, subtract(fourfold, result.x)), add(square, square));
    return result;
}

NOINLINE point added(point p, affine q)
{
    if (is_zero(p.z)) {
        p.x = q.x;
        p.y = q.y;
        p.z = one();
        return p;
    }
    number square = multiply(p.z, p.z);
    number h = subtract(multiply(q.x, square), p.x), r = subtract(multiply(q.y, multiply(p.z, square)), p.y);
    // Equal points are doubled, opposite ones have no sum: h is zero, and so is the Z below.
    if (is_zero(h) && is_zero(r)) return doubled(p);
    number h2 = multiply(h, h), h3 = multiply(h, h2), v = multiply(p.x, h2);
    point result;
    result.x = subtract(subtract(multiply(r, r), h3), add(v, v));
    result.y = subtract(multiply(r, subtract(v, result.x)), multiply(p.y, h3));
    result.z = multiply(p.z, h);
    return result;
}

DEVICE point none(void)
{
    point p;
    UNROLL for (u32 i = 0; i < 8; i++) p.x.w[i] = p.y.w[i] = p.z.w[i] = 0;
    return p;
}

// The base, or the key, as they stand in products.
DEVICE affine base_or(GLOBAL const affine *key, u32 is_key)
{
    const u32 base_x[8] = {0xd898c296u, 0xf4a13945u, 0x2deb33a0u, 0x77037d81u, 0x63a440f2u, 0xf8bce6e5u, 0xe12c4247u, 0x6b17d1f2u};
    const u32 base_y[8] = {0x37bf51f5u, 0xcbb64068u, 0x6b315eceu, 0x2bce3357u, 0x7c0f9e16u, 0x8ee7eb4au, 0xfe1a7f9bu, 0x4fe342e2u};
    affine own;
    if (is_key) {
        own = *key;
    } else {
        own.x = number_of(base_x);
        own.y = number_of(base_y);
    }
    own.x = entered(own.x);
    own.y = entered(own.y);
    return own;
}

// The hash of a message as a number.
DEVICE number hashed(GLOBAL const u8 *text, u64 len, GLOBAL const u32 *first)
{
    u32 state[8], w[16];
    u64 blocks = (len + 9 + 63) / 64;
    UNROLL for (u32 i = 0; i < 8; i++) state[i] = first[i];
    ROLLED for (u64 block = 0; block < blocks; block++) {
        UNROLL for (u32 i = 0; i < 16; i++) {
            u32 value = 0;
            ROLLED for (u32 j = 0; j < 4; j++) {
                u64 at = 64 * block + 4 * i + j;
                u32 byte = at == len ? 0x80u : 0;
                if (at < len) byte = text[at];
                value = value << 8 | byte;
            }
            w[i] = value;
        }
        if (block + 1 == blocks) {
            w[14] = (u32)(8 * len >> 32);
            w[15] = (u32)(8 * len);
        }
        compress(state, w);
    }
    number result;
    UNROLL for (u32 i = 0; i < 8; i++) result.w[i] = state[7 - i];
    return result;
}

// Up to 32 bytes, the highest first.
DEVICE number number_at(GLOBAL const u8 *bytes, u32 len)
{
    number result;
    UNROLL for (u32 i = 0; i < 8; i++) {
        result.w[i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++)
            if (4 * i + j < len) result.w[i] |= (u32)bytes[len - 1 - (4 * i + j)] << (8 * j);
    }
    return result;
}

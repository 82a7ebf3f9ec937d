// The curves P-256 and P-384 (FIPS 186-5), of which CURVE is 256 or 384, and the numbers that they are made of. But for `added`, which is for points
// that are public, nothing here has a branch or an address that depends on them.
//
// Numbers are WORDS words, the lowest first, and below their modulus. Those modulo the field's prime p are multiplied after Montgomery: each
// stands for itself times 2^CURVE. P-256 is for SHA-256, and P-384 for SHA-384, whose words are WIDE.

#if CURVE == 384
#define WORDS 12u
#define PRIME {0xffffffffu, 0x00000000u, 0x00000000u, 0xffffffffu, 0xfffffffeu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}
// 2^CURVE, and its square, modulo p.
#define ONE {0x00000001u, 0xffffffffu, 0xffffffffu, 0x00000000u, 0x00000001u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u}
#define SQUARE {0x00000001u, 0xfffffffeu, 0x00000000u, 0x00000002u, 0x00000000u, 0xfffffffeu, 0x00000000u, 0x00000002u, 0x00000001u, 0x00000000u, 0x00000000u, 0x00000000u}
#define BASE_X {0x72760ab7u, 0x3a545e38u, 0xbf55296cu, 0x5502f25du, 0x82542a38u, 0x59f741e0u, 0x8ba79b98u, 0x6e1d3b62u, 0xf320ad74u, 0x8eb1c71eu, 0xbe8b0537u, 0xaa87ca22u}
#define BASE_Y {0x90ea0e5fu, 0x7a431d7cu, 0x1d7e819du, 0x0a60b1ceu, 0xb5f0b8c0u, 0xe9da3113u, 0x289a147cu, 0xf8f41dbdu, 0x9292dc29u, 0x5d9e98bfu, 0x96262c6fu, 0x3617de4au}
#define ORDER {0xccc52973u, 0xecec196au, 0x48b0a77au, 0x581a0db2u, 0xf4372ddfu, 0xc7634d81u, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}
#define ORDER_LESS_2 {0xccc52971u, 0xecec196au, 0x48b0a77au, 0x581a0db2u, 0xf4372ddfu, 0xc7634d81u, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}
// 2^(2 CURVE) modulo the order, and minus one over the order modulo 2^32.
#define ORDER_SQUARE {0x19b409a9u, 0x2d319b24u, 0xdf1aa419u, 0xff3d81e5u, 0xfcb82947u, 0xbc3e483au, 0x4aab1cc5u, 0xd40d4917u, 0x28266895u, 0x3fb05b7au, 0x2b39bf21u, 0x0c84ee01u}
#define ORDER_OVER 0xe88fdc45u
// p less the order.
#define GAP {0x333ad68cu, 0x1313e696u, 0xb74f5885u, 0xa7e5f24cu, 0x0bc8d21fu, 0x389cb27eu, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u}
#else
#define WORDS 8u
#define PRIME {0xffffffffu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000001u, 0xffffffffu}
#define ONE {0x00000001u, 0x00000000u, 0x00000000u, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xfffffffeu, 0x00000000u}
#define SQUARE {0x00000003u, 0x00000000u, 0xffffffffu, 0xfffffffbu, 0xfffffffeu, 0xffffffffu, 0xfffffffdu, 0x00000004u}
#define BASE_X {0xd898c296u, 0xf4a13945u, 0x2deb33a0u, 0x77037d81u, 0x63a440f2u, 0xf8bce6e5u, 0xe12c4247u, 0x6b17d1f2u}
#define BASE_Y {0x37bf51f5u, 0xcbb64068u, 0x6b315eceu, 0x2bce3357u, 0x7c0f9e16u, 0x8ee7eb4au, 0xfe1a7f9bu, 0x4fe342e2u}
#define ORDER {0xfc632551u, 0xf3b9cac2u, 0xa7179e84u, 0xbce6faadu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0xffffffffu}
#define ORDER_LESS_2 {0xfc63254fu, 0xf3b9cac2u, 0xa7179e84u, 0xbce6faadu, 0xffffffffu, 0xffffffffu, 0x00000000u, 0xffffffffu}
#define ORDER_SQUARE {0xbe79eea2u, 0x83244c95u, 0x49bd6fa6u, 0x4699799cu, 0x2b6bec59u, 0x2845b239u, 0xf3d95620u, 0x66e12d94u}
#define ORDER_OVER 0xee00bc4fu
#define GAP {0x039cdaaeu, 0x0c46353du, 0x58e8617bu, 0x43190553u, 0x00000000u, 0x00000000u, 0x00000000u, 0x00000000u}
#endif
#define NUMBER_BYTES (4u * WORDS)
// Words of a hash.
#define DIGEST_WORDS (NUMBER_BYTES / WORD_BYTES)

typedef struct { u32 w[WORDS]; } number;
typedef struct { number x, y; } affine;
// x = X / Z², y = Y / Z³; none where Z is zero.
typedef struct { number x, y, z; } point;

// `words` and above them `above` times 2^CURVE, which is below twice the modulus.
DEVICE number reduced(const u32 *words, u32 above, const u32 *modulus)
{
    number less;
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        borrow += (i64)words[i] - (i64)modulus[i];
        less.w[i] = (u32)borrow;
        borrow >>= 32;
    }
    // All ones where the words were less: they borrow, and there is nothing above to borrow from.
    u32 is_less = (u32)borrow & (above - 1u);
    UNROLL for (u32 i = 0; i < WORDS; i++) less.w[i] = (words[i] & is_less) | (less.w[i] & ~is_less);
    return less;
}

DEVICE number reduced_by_p(const u32 *words, u32 above)
{
    const u32 p[WORDS] = PRIME;
    return reduced(words, above, p);
}

// Adding q p makes the lowest word zero, where q is that word: p is 2^256 - 2^224 + 2^192 + 2^96 - 1, or 2^384 - 2^128 - 2^96 + 2^32 - 1.
NOINLINE number multiply(number a, number b)
{
    u32 t[WORDS + 1];
    UNROLL for (u32 i = 0; i < WORDS + 1; i++) t[i] = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < WORDS; j++) {
            carry += (u64)a.w[j] * b.w[i] + t[j];
            t[j] = (u32)carry;
            carry >>= 32;
        }
        carry += t[WORDS];
        u32 q = t[0], last = (u32)carry, above = (u32)(carry >> 32);
#if CURVE == 384
        i64 rest = (i64)t[1] + (i64)q;
        t[0] = (u32)rest;
        rest = (rest >> 32) + (i64)t[2];
        t[1] = (u32)rest;
        rest = (rest >> 32) + (i64)t[3] - (i64)q;
        t[2] = (u32)rest;
        rest = (rest >> 32) + (i64)t[4] - (i64)q;
        t[3] = (u32)rest;
        UNROLL for (u32 j = 4; j < 11; j++) {
            rest = (rest >> 32) + (i64)t[j + 1];
            t[j] = (u32)rest;
        }
#else
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
#endif
        rest = (rest >> 32) + (i64)last + (i64)q;
        t[WORDS - 1] = (u32)rest;
        t[WORDS] = above + (u32)(rest >> 32);
    }
    return reduced_by_p(t, t[WORDS]);
}

// The same modulo the order of the base.
NOINLINE number multiply_by_order(number a, number b)
{
    const u32 order[WORDS] = ORDER;
    u32 t[WORDS + 1];
    UNROLL for (u32 i = 0; i < WORDS + 1; i++) t[i] = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < WORDS; j++) {
            carry += (u64)a.w[j] * b.w[i] + t[j];
            t[j] = (u32)carry;
            carry >>= 32;
        }
        carry += t[WORDS];
        u32 q = t[0] * ORDER_OVER, last = (u32)carry, above = (u32)(carry >> 32);
        carry = ((u64)q * order[0] + t[0]) >> 32;
        UNROLL for (u32 j = 1; j < WORDS; j++) {
            carry += (u64)q * order[j] + t[j];
            t[j - 1] = (u32)carry;
            carry >>= 32;
        }
        carry += last;
        t[WORDS - 1] = (u32)carry;
        t[WORDS] = above + (u32)(carry >> 32);
    }
    return reduced(t, t[WORDS], order);
}

DEVICE number add(number a, number b)
{
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        carry += (u64)a.w[i] + b.w[i];
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    return reduced_by_p(a.w, (u32)carry);
}

DEVICE number subtract(number a, number b)
{
    const u32 p[WORDS] = PRIME;
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        borrow += (i64)a.w[i] - (i64)b.w[i];
        a.w[i] = (u32)borrow;
        borrow >>= 32;
    }
    u32 mask = (u32)borrow;
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        carry += (u64)a.w[i] + (p[i] & mask);
        a.w[i] = (u32)carry;
        carry >>= 32;
    }
    return a;
}

DEVICE u32 is_zero(number a)
{
    u32 any = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) any |= a.w[i];
    return any == 0;
}

// Whether a is less than these words.
DEVICE u32 is_below(number a, const u32 *words)
{
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) borrow = (borrow + (i64)a.w[i] - (i64)words[i]) >> 32;
    return borrow != 0;
}

DEVICE number number_of(const u32 *words)
{
    number result;
    UNROLL for (u32 i = 0; i < WORDS; i++) result.w[i] = words[i];
    return result;
}

// One, as it stands in products.
DEVICE number one(void)
{
    const u32 words[WORDS] = ONE;
    return number_of(words);
}

// A number as it stands in products.
DEVICE number entered(number a)
{
    const u32 square[WORDS] = SQUARE;
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
#if CURVE == 384
    number a2 = multiply(squared(a, 1), a), a3 = multiply(squared(a2, 1), a), a6 = multiply(squared(a3, 3), a3);
    number a12 = multiply(squared(a6, 6), a6), a15 = multiply(squared(a12, 3), a3), a30 = multiply(squared(a15, 15), a15);
    number a60 = multiply(squared(a30, 30), a30), a120 = multiply(squared(a60, 60), a60), a240 = multiply(squared(a120, 120), a120);
    number a32 = multiply(squared(a30, 2), a2), a255 = multiply(squared(a240, 15), a15);
    number low = multiply(squared(multiply(squared(a255, 33), a32), 94), a30);
#else
    number a2 = multiply(squared(a, 1), a), a4 = multiply(squared(a2, 2), a2), a6 = multiply(squared(a4, 2), a2);
    number a8 = multiply(squared(a4, 4), a4), a16 = multiply(squared(a8, 8), a8), a24 = multiply(squared(a16, 8), a8);
    number a30 = multiply(squared(a24, 6), a6), a32 = multiply(squared(a30, 2), a2);
    number high = multiply(squared(a32, 32), a), middle = multiply(squared(high, 128), a32);
    number low = multiply(squared(multiply(squared(middle, 32), a32), 30), a30);
#endif
    return multiply(squared(low, 2), a);
}

DEVICE number order(void)
{
    const u32 words[WORDS] = ORDER;
    return number_of(words);
}

// A number as it stands in products modulo the order.
DEVICE number entered_by_order(number a)
{
    const u32 square[WORDS] = ORDER_SQUARE;
    return multiply_by_order(a, number_of(square));
}

// One over it modulo the order, by fours of the exponent's bits; as it stands in products, as is what it is given.
DEVICE number inverse_by_order(number a)
{
    const u32 exponent[WORDS] = ORDER_LESS_2;
    number powers[15], result = a;
    powers[0] = a;
    ROLLED for (u32 i = 1; i < 15; i++) powers[i] = multiply_by_order(powers[i - 1], a);
    result = powers[14];
    ROLLED for (u32 place = 8 * WORDS - 1; place > 0; place--) {
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
    UNROLL for (u32 i = 0; i < WORDS; i++) p.x.w[i] = p.y.w[i] = p.z.w[i] = 0;
    return p;
}

// The base, or the key, as they stand in products.
DEVICE affine base_or(GLOBAL const affine *key, u32 is_key)
{
    const u32 base_x[WORDS] = BASE_X;
    const u32 base_y[WORDS] = BASE_Y;
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

// The state of a hash, and a hash, whose words have the highest byte first, the first word first.
typedef struct { word w[8]; } hash_state;
typedef struct { word w[DIGEST_WORDS]; } digest;

DEVICE digest turned(number a)
{
    digest result;
    UNROLL for (u32 i = 0; i < DIGEST_WORDS; i++) {
#if WIDE
        result.w[i] = (u64)a.w[WORDS - 1 - 2 * i] << 32 | a.w[WORDS - 2 - 2 * i];
#else
        result.w[i] = a.w[WORDS - 1 - i];
#endif
    }
    return result;
}

DEVICE number number_of_digest(const word *words)
{
    number result;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
#if WIDE
        result.w[i] = (u32)(words[DIGEST_WORDS - 1 - i / 2] >> (32 * (i % 2)));
#else
        result.w[i] = words[WORDS - 1 - i];
#endif
    }
    return result;
}

// The hash of a message as a number.
DEVICE number hashed(GLOBAL const u8 *text, u64 len, GLOBAL const word *first)
{
    word state[8], w[16];
    u64 blocks = (len + 1 + 2 * WORD_BYTES + BLOCK - 1) / BLOCK;
    UNROLL for (u32 i = 0; i < 8; i++) state[i] = first[i];
    ROLLED for (u64 block = 0; block < blocks; block++) {
        UNROLL for (u32 i = 0; i < 16; i++) {
            word value = 0;
            ROLLED for (u32 j = 0; j < WORD_BYTES; j++) {
                u64 at = BLOCK * block + WORD_BYTES * i + j;
                u32 byte = at == len ? 0x80u : 0;
                if (at < len) byte = text[at];
                value = value << 8 | byte;
            }
            w[i] = value;
        }
        if (block + 1 == blocks) {
#if !WIDE
            w[14] = (u32)(8 * len >> 32);
#endif
            w[15] = (word)(8 * len);
        }
        compress(state, w);
    }
    return number_of_digest(state);
}

// Up to NUMBER_BYTES bytes, the highest first.
DEVICE number number_at(GLOBAL const u8 *bytes, u32 len)
{
    number result;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        result.w[i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++)
            if (4 * i + j < len) result.w[i] |= (u32)bytes[len - 1 - (4 * i + j)] << (8 * j);
    }
    return result;
}

// Signatures of Ed25519 under one key (RFC 8032), a thread for each: whether the encoding of [s]B - [h]A is the signature's first half. All of it is
// public, so tables are read at places that depend on it. MANY: each eight bits of s and of h name an entry of a large table; else each four bits
// of both name one of a small table, and the sum is doubled between them, which takes less for few signatures. TABLES: the kernels that make the
// tables, and not the other.
//
// Numbers modulo 2^255 - 19 are eight words, the lowest first, and below 2^256; where it matters they are brought below the modulus.

typedef struct { u32 w[8]; } field;
// x = X / Z, y = Y / Z, T = X Y / Z.
typedef struct { field x, y, z, t; } point;
// What a point is added by: Y - X, Y + X, 2 d T, 2 Z.
typedef struct { field minus, plus, turned, twice; } addend;

// Bits of a window of the large table, how many windows and entries there are, and how many of these a thread makes.
#define WINDOW 8u
#define WINDOWS 32u
#define ENTRIES 256u
#define RUN 16u

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
    if (more.w[7] >> 31 == 0) return a;
    more.w[7] &= 0x7fffffffu;
    return more;
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

#if TABLES
// Entry 16 i + j of the table is i B + j Q, where Q is the point -A. One block of 256 threads.
KERNEL LAUNCH_BOUNDS(256, 1) ed25519_table(GLOBAL addend *RESTRICT table, GLOBAL const field *RESTRICT key)
{
    field base_x = {{0x8f25d51au, 0xc9562d60u, 0x9525a7b2u, 0x692cc760u, 0xfdd6dc5cu, 0xc0a4e231u, 0xcd6e53feu, 0x216936d3u}};
    field base_y = {{0x66666658u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u}};
    point sum = none();
    addend base = addend_of(affine(base_x, base_y)), other = addend_of(affine(key[0], key[1]));
    ROLLED for (u32 i = 0; i < 30; i++) {
        if (i < 15 ? i < thread_x() / 16 : i - 15 < thread_x() % 16) sum = added(sum, i < 15 ? base : other);
    }
    table[thread_x()] = addend_of(sum);
}

// The points 2^(8 i) B, and behind them 2^(8 i) Q, where Q is the point -A: one thread for each of the two.
KERNEL LAUNCH_BOUNDS(32, 1) ed25519_bases(GLOBAL point *RESTRICT bases, GLOBAL const field *RESTRICT key)
{
    field base_x = {{0x8f25d51au, 0xc9562d60u, 0x9525a7b2u, 0x692cc760u, 0xfdd6dc5cu, 0xc0a4e231u, 0xcd6e53feu, 0x216936d3u}};
    field base_y = {{0x66666658u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u, 0x66666666u}};
    if (thread_x() > 1) return;
    point sum = thread_x() == 0 ? affine(base_x, base_y) : affine(key[0], key[1]);
    ROLLED for (u32 i = 0; i < WINDOW * WINDOWS; i++) {
        if (i % WINDOW == 0) bases[thread_x() * WINDOWS + i / WINDOW] = sum;
        sum = doubled(sum);
    }
}

// Entry 256 i + d of the table is d times point i of `bases`. A thread has RUN of them.
KERNEL LAUNCH_BOUNDS(64, 1) ed25519_multiples(GLOBAL addend *RESTRICT table, GLOBAL const point *RESTRICT bases)
{
    u32 place = (block_x() * 64 + thread_x()) * RUN, first = place % ENTRIES;
    addend own = addend_of(bases[place / ENTRIES]);
    point sum = none();
    ROLLED for (u32 i = 0; i < WINDOW; i++) {
        sum = doubled(sum);
        if (first >> (WINDOW - 1 - i) & 1u) sum = added(sum, own);
    }
    ROLLED for (u32 i = 0; i < RUN; i++) {
        table[place + i] = addend_of(sum);
        sum = added(sum, own);
    }
}

#else
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
        if (borrow == 0)
            UNROLL for (u32 i = 0; i < 9; i++) r[i] = less[i];
    }
    UNROLL for (u32 i = 0; i < 8; i++) result[i] = r[i];
}

DEVICE u32 is_below_order(const u32 *x)
{
    const u32 order[8] = {0x5cf5d3edu, 0x5812631au, 0xa2f79cd6u, 0x14def9deu, 0x00000000u, 0x00000000u, 0x00000000u, 0x10000000u};
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < 8; i++) borrow = (borrow + (i64)x[i] - (i64)order[i]) >> 32;
    return borrow != 0;
}

// The hash of the signature's first half, the key and the message, as a number.
DEVICE void hashed(u32 *result, GLOBAL const u8 *signature, GLOBAL const u8 *key, GLOBAL const u8 *text, u64 len, GLOBAL const u64 *first)
{
    u64 state[8], w[16], all = len + 64, blocks = (all + 17 + 127) / 128;
    UNROLL for (u32 i = 0; i < 8; i++) state[i] = first[i];
    ROLLED for (u64 block = 0; block < blocks; block++) {
        UNROLL for (u32 i = 0; i < 16; i++) {
            u64 value = 0;
            ROLLED for (u32 j = 0; j < 8; j++) {
                u64 at = 128 * block + 8 * i + j;
                u32 byte = at == all ? 0x80u : 0;
                if (at < 32) byte = signature[at];
                else if (at < 64) byte = key[at - 32];
                else if (at < all) byte = text[at - 64];
                value = value << 8 | byte;
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

// `key` is the encoded key, `first` the state that SHA-512 begins with. Verdicts are 1 or 0.
KERNEL LAUNCH_BOUNDS(64, 2) ed25519_verify(GLOBAL u8 *RESTRICT verdicts, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const u8 *RESTRICT signatures, GLOBAL const u64 *RESTRICT signature_rows, GLOBAL const addend *RESTRICT table,
    GLOBAL const u8 *RESTRICT key, GLOBAL const u64 *RESTRICT first, FIXED batch all, FIXED batch all_signatures)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    if (number >= all.count) return;
    message text = message_at(&all, rows, number), given = message_at(&all_signatures, signature_rows, number);
    if (given.len != 64) {
        verdicts[number] = 0;
        return;
    }
    GLOBAL const u8 *signature = signatures + given.source;
    u32 s[8], h[16], half_h[8];
    UNROLL for (u32 i = 0; i < 8; i++) {
        s[i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++) s[i] |= (u32)signature[32 + 4 * i + j] << (8 * j);
    }
    hashed(h, signature, key, source + text.source, text.len, first);
    modulo_order(half_h, h);
    point sum = none();
#if MANY
    ROLLED for (u32 window = 0; window < 2 * WINDOWS; window++) {
        u32 word = 0;
        UNROLL for (u32 i = 0; i < 8; i++) {
            word = window / 4 == i ? s[i] : word;
            word = window / 4 == i + 8 ? half_h[i] : word;
        }
        sum = added(sum, table[ENTRIES * window + (word >> (8 * (window % 4)) & 255u)]);
    }
#else
    ROLLED for (u32 window = 64; window > 0; window--) {
        ROLLED for (u32 i = 0; i < 4; i++) sum = doubled(sum);
        u32 place = window - 1, high = 0, low = 0;
        // Words at constant places stay in registers.
        UNROLL for (u32 i = 0; i < 8; i++) {
            high = place / 8 == i ? s[i] : high;
            low = place / 8 == i ? half_h[i] : low;
        }
        high = high >> (4 * (place % 8)) & 15u;
        low = low >> (4 * (place % 8)) & 15u;
        sum = added(sum, table[16 * high + low]);
    }
#endif
    field one_over = inverse(sum.z), x = reduced(multiply(sum.x, one_over)), y = reduced(multiply(sum.y, one_over));
    y.w[7] |= x.w[0] << 31;
    u32 differs = 0;
    UNROLL for (u32 i = 0; i < 32; i++) differs |= (y.w[i / 4] >> (8 * (i % 4)) & 255u) ^ signature[i];
    verdicts[number] = (u8)(differs == 0 && is_below_order(s));
}
#endif

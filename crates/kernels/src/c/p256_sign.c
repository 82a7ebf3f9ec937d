// Signatures of ECDSA over P-256 made under one key, a thread for each, with the nonces of RFC 6979. Tables are read whole, and masks select the wanted
// entry: no branch and no address depends on the key or on a nonce. The one exception is a candidate that is too large for a nonce, which occurs once in
// 2^32 and reveals only that candidate.
//
// Where HEDGED is 1 a nonce is hashed from fresh randomness too, by section 3.6 of RFC 6979 (additional data k'): 32 random bytes of the op, with the
// message's number added bit by bit. So no two signatures share a nonce: two of one message that did would tell the key where a fault made one differ.

#define WINDOW 4u
#define WINDOWS 64u
#define ENTRIES 16u
// More candidates for a nonce than this would be a wonder.
#define TURNS_MAX 8u

// The words that are hashed to a nonce, with the highest byte first, the first word first.
typedef struct { u32 w[16]; } words16;

NOINLINE number compressed(number state, words16 block)
{
    compress(state.w, block.w);
    return state;
}

DEVICE number turned(number a)
{
    number result;
    UNROLL for (u32 i = 0; i < 8; i++) result.w[i] = a.w[7 - i];
    return result;
}

// The state of the hash after the block of a key of 32 bytes.
DEVICE number begun(number key, u32 pad, number first)
{
    words16 block;
    UNROLL for (u32 i = 0; i < 16; i++) block.w[i] = (i < 8 ? key.w[i % 8] : 0) ^ pad;
    return compressed(first, block);
}

// The inputs of a nonce.
typedef struct { number secret, hash, noise; } seed;

// HMAC of a value (BARE), of it and a byte (WITH_BYTE), or of it, a byte, the private key, the hash and, where HEDGED, the randomness (WITH_KEY).
#define BARE 32u
#define WITH_BYTE 33u
#define WITH_KEY (HEDGED ? 129u : 97u)
NOINLINE number keyed(number key, number value, u32 byte, seed from, u32 len, number first)
{
    words16 block, next;
#if HEDGED
    words16 last;
#endif
    UNROLL for (u32 i = 0; i < 16; i++) {
        block.w[i] = i < 8 ? value.w[i % 8] : 0;
        next.w[i] = 0;
    }
    if (len == WITH_KEY) {
        UNROLL for (u32 i = 0; i < 8; i++) {
            u32 before = i > 0 ? from.secret.w[(i + 7) % 8] : byte, before_hash = i > 0 ? from.hash.w[(i + 7) % 8] : from.secret.w[7];
            block.w[8 + i] = before << 24 | from.secret.w[i] >> 8;
            next.w[i] = before_hash << 24 | from.hash.w[i] >> 8;
        }
#if HEDGED
        UNROLL for (u32 i = 0; i < 8; i++) {
            u32 before = i > 0 ? from.noise.w[(i + 7) % 8] : from.hash.w[7];
            next.w[8 + i] = before << 24 | from.noise.w[i] >> 8;
            last.w[i] = last.w[8 + i] = 0;
        }
        last.w[0] = from.noise.w[7] << 24 | 0x800000u;
        last.w[15] = 8 * (64 + len);
#else
        next.w[8] = from.hash.w[7] << 24 | 0x800000u;
        next.w[15] = 8 * (64 + len);
#endif
    } else {
        block.w[8] = len == BARE ? 0x80000000u : byte << 24 | 0x800000u;
        block.w[15] = 8 * (64 + len);
    }
    number inner = compressed(begun(key, 0x36363636u, first), block);
    if (len == WITH_KEY) inner = compressed(inner, next);
#if HEDGED
    if (len == WITH_KEY) inner = compressed(inner, last);
#endif
    UNROLL for (u32 i = 0; i < 16; i++) block.w[i] = i < 8 ? inner.w[i % 8] : 0;
    block.w[8] = 0x80000000u;
    block.w[15] = 8 * (64 + 32);
    return compressed(begun(key, 0x5c5c5c5cu, first), block);
}

// The nonce, which is below the order.
DEVICE number nonce_of(seed from, number first)
{
    number key, value, nonce, most = order();
    UNROLL for (u32 i = 0; i < 8; i++) {
        key.w[i] = 0;
        value.w[i] = 0x01010101u;
    }
    ROLLED for (u32 i = 0; i < 2; i++) {
        key = keyed(key, value, i, from, WITH_KEY, first);
        value = keyed(key, value, 0, from, BARE, first);
    }
    ROLLED for (u32 turn = 0; turn < TURNS_MAX; turn++) {
        value = keyed(key, value, 0, from, BARE, first);
        nonce = turned(value);
        if (!is_zero(nonce) && is_below(nonce, most.w)) break;
        key = keyed(key, value, 0, from, WITH_BYTE, first);
        value = keyed(key, value, 0, from, BARE, first);
    }
    return nonce;
}

DEVICE number chosen(number a, number b, u32 is_a)
{
    UNROLL for (u32 i = 0; i < 8; i++) a.w[i] = (a.w[i] & is_a) | (b.w[i] & ~is_a);
    return a;
}

// The sum, or, unless `is_there`, the first. They are neither equal nor opposite; masks are all ones or zero.
NOINLINE point added_masked(point p, affine q, u32 is_there)
{
    number square = multiply(p.z, p.z);
    number h = subtract(multiply(q.x, square), p.x), r = subtract(multiply(q.y, multiply(p.z, square)), p.y);
    number h2 = multiply(h, h), h3 = multiply(h, h2), v = multiply(p.x, h2);
    point sum;
    sum.x = subtract(subtract(multiply(r, r), h3), add(v, v));
    sum.y = subtract(multiply(r, subtract(v, sum.x)), multiply(p.y, h3));
    sum.z = multiply(p.z, h);
    u32 any = 0;
    UNROLL for (u32 i = 0; i < 8; i++) any |= p.z.w[i];
    u32 is_first = ((any | (0u - any)) >> 31) - 1u;
    sum.x = chosen(chosen(q.x, sum.x, is_first), p.x, is_there);
    sum.y = chosen(chosen(q.y, sum.y, is_first), p.y, is_there);
    sum.z = chosen(chosen(one(), sum.z, is_first), p.z, is_there);
    return sum;
}

// `factor` times the base, with a factor above 0 and below the order. Entry 16 i + d of the table is d 16^i times the base; the entry for d = 0 is not used. The
// sum so far is less than 16^i times the base, and with the next entry less than the order. So it is neither the next entry nor its opposite.
NOINLINE affine multiplied(number factor, GLOBAL const affine *table)
{
    point sum = none();
    ROLLED for (u32 window = 0; window < WINDOWS; window++) {
        u32 word = 0, own[16];
        UNROLL for (u32 i = 0; i < 8; i++) word = window / 8 == i ? factor.w[i] : word;
        u32 digit = word >> (WINDOW * (window % 8)) & (ENTRIES - 1u);
        UNROLL for (u32 i = 0; i < 16; i++) own[i] = 0;
        GLOBAL const u32x4 *entries = (GLOBAL const u32x4 *)(table + ENTRIES * window);
        ROLLED for (u32 d = 1; d < ENTRIES; d++) {
            u32 is_own = 0u - (((d ^ digit) - 1u) >> 31);
            UNROLL for (u32 i = 0; i < 4; i++) {
                u32x4 four = entries[4 * d + i];
                own[4 * i] |= four.x & is_own;
                own[4 * i + 1] |= four.y & is_own;
                own[4 * i + 2] |= four.z & is_own;
                own[4 * i + 3] |= four.w & is_own;
            }
        }
        affine next;
        UNROLL for (u32 i = 0; i < 8; i++) {
            next.x.w[i] = own[i];
            next.y.w[i] = own[8 + i];
        }
        sum = added_masked(sum, next, (digit - 1u >> 31) - 1u);
    }
    number over = inverse(sum.z), square = multiply(over, over), plain;
    UNROLL for (u32 i = 0; i < 8; i++) plain.w[i] = i == 0;
    affine result;
    result.x = multiply(multiply(sum.x, square), plain);
    result.y = multiply(multiply(sum.y, multiply(square, over)), plain);
    return result;
}

DEVICE void store_number(GLOBAL u32 *to, number a)
{
    UNROLL for (u32 i = 0; i < 8; i++) to[i] = swap_bytes(a.w[7 - i]);
}

// `key` is the private key and both coordinates of the public one, the highest byte first, `first` the state that SHA-256 begins with, `noise` 32
// random bytes of this op, which are read only if HEDGED. A signature has 64 bytes: r and s, the highest byte first. One thread more than there are
// messages checks whether the keys belong together: all ones, or 1.
KERNEL LAUNCH_BOUNDS(64, 2) p256_sign(GLOBAL u32 *RESTRICT signatures, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const affine *RESTRICT table, GLOBAL const u8 *RESTRICT key, GLOBAL const u32 *RESTRICT first, GLOBAL const u8 *RESTRICT noise,
    GLOBAL u64 *RESTRICT complaint, FIXED batch all)
{
    u64 own = (u64)block_x() * block_size_x() + thread_x();
    if (own > all.count) return;
    number secret = number_at(key, 32), most = order(), nonce = secret, hash, state;
    UNROLL for (u32 i = 0; i < 8; i++) state.w[i] = first[i];
    if (own < all.count) {
        message text = message_at(&all, rows, own);
        hash = hashed(source + text.source, text.len, first);
        hash = reduced(hash.w, 0, most.w);
        seed from = {turned(secret), turned(hash), none().x};
#if HEDGED
        from.noise = turned(number_at(noise, 32));
        from.noise.w[6] ^= (u32)(own >> 32);
        from.noise.w[7] ^= (u32)own;
#endif
        nonce = nonce_of(from, state);
    }
    affine found = multiplied(nonce, table);
    if (own == all.count) {
        number x = number_at(key + 32, 32), y = number_at(key + 64, 32);
        u32 differs = 0;
        UNROLL for (u32 i = 0; i < 8; i++) differs |= (found.x.w[i] ^ x.w[i]) | (found.y.w[i] ^ y.w[i]);
        *(GLOBAL volatile u64 *)complaint = differs ? 1 : ~(u64)0;
        return;
    }
    // Neither r nor s is zero, unless with a chance of one in 2^255.
    number r = reduced(found.x.w, 0, most.w), sum = multiply_by_order(r, entered_by_order(secret));
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        carry += (u64)sum.w[i] + hash.w[i];
        sum.w[i] = (u32)carry;
        carry >>= 32;
    }
    sum = reduced(sum.w, (u32)carry, most.w);
    store_number(signatures + 16 * own, r);
    store_number(signatures + 16 * own + 8, multiply_by_order(sum, inverse_by_order(entered_by_order(nonce))));
}

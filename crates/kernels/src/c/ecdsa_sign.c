// Signatures of ECDSA made under one key, a thread for each, with the nonces of RFC 6979. Tables are read whole, and masks select the wanted
// entry: no branch and no address depends on the key or on a nonce. The one exception is a candidate that is too large for a nonce, which occurs once in
// 2^32 (P-256) or 2^190 (P-384) and reveals only that candidate.
//
// Where HEDGED is 1 a nonce is hashed from fresh randomness too, by section 3.6 of RFC 6979 (additional data k'): NUMBER_BYTES random bytes of the op, with the
// message's number added bit by bit. So no two signatures share a nonce: two of one message that did would tell the key where a fault made one differ.

#define WINDOW 4u
#define WINDOWS (CURVE / WINDOW)
#define ENTRIES 16u
// More candidates for a nonce than this would be a wonder.
#define TURNS_MAX 8u

typedef struct { word w[16]; } words16;

NOINLINE hash_state compressed(hash_state state, words16 block)
{
    compress(state.w, block.w);
    return state;
}

DEVICE digest digest_of(hash_state state)
{
    digest result;
    UNROLL for (u32 i = 0; i < DIGEST_WORDS; i++) result.w[i] = state.w[i];
    return result;
}

// The state of the hash after the block of a key as long as a hash.
DEVICE hash_state begun(digest key, u32 pad, hash_state first)
{
    words16 block;
    word pads = pad;
#if WIDE
    pads |= pads << 32;
#endif
    UNROLL for (u32 i = 0; i < 16; i++) block.w[i] = (i < DIGEST_WORDS ? key.w[i % DIGEST_WORDS] : 0) ^ pads;
    return compressed(first, block);
}

// The inputs of a nonce.
typedef struct { digest secret, hash, noise; } seed;

// The highest byte of a word.
#define TOP(byte) ((word)(byte) << (8 * WORD_BYTES - 8))
// The inputs, their words with one byte before them, and the blocks that these need behind a value.
#define INPUTS (HEDGED ? 3u : 2u)
#define INPUT_WORDS (INPUTS * DIGEST_WORDS)
#define BLOCKS ((DIGEST_WORDS + INPUT_WORDS + 3 + 15) / 16)

// HMAC of a value (BARE), of it and a byte (WITH_BYTE), or of it, a byte, the private key, the hash and, where HEDGED, the randomness (WITH_KEY).
#define BARE NUMBER_BYTES
#define WITH_BYTE (NUMBER_BYTES + 1)
#define WITH_KEY ((1 + INPUTS) * NUMBER_BYTES + 1)
NOINLINE digest keyed(digest key, digest value, u32 byte, seed from, u32 len, hash_state first)
{
    word all[16 * BLOCKS];
    UNROLL for (u32 i = 0; i < 16 * BLOCKS; i++) all[i] = i < DIGEST_WORDS ? value.w[i % DIGEST_WORDS] : 0;
    if (len == WITH_KEY) {
        word before = byte;
        UNROLL for (u32 i = 0; i < INPUT_WORDS; i++) {
            u32 place = i % DIGEST_WORDS;
            word next = i < DIGEST_WORDS ? from.secret.w[place] : i < 2 * DIGEST_WORDS ? from.hash.w[place] : from.noise.w[place];
            all[DIGEST_WORDS + i] = TOP(before) | next >> 8;
            before = next;
        }
        all[DIGEST_WORDS + INPUT_WORDS] = TOP(before) | TOP(0x80u) >> 8;
        all[16 * BLOCKS - 1] = 8 * (BLOCK + len);
    } else {
        all[DIGEST_WORDS] = len == BARE ? TOP(0x80u) : TOP(byte) | TOP(0x80u) >> 8;
        all[15] = 8 * (BLOCK + len);
    }
    words16 block;
    hash_state inner = begun(key, 0x36363636u, first);
    UNROLL for (u32 b = 0; b < BLOCKS; b++) {
        UNROLL for (u32 i = 0; i < 16; i++) block.w[i] = all[16 * b + i];
        if (b == 0 || len == WITH_KEY) inner = compressed(inner, block);
    }
    UNROLL for (u32 i = 0; i < 16; i++) block.w[i] = i < DIGEST_WORDS ? inner.w[i % 8] : 0;
    block.w[DIGEST_WORDS] = TOP(0x80u);
    block.w[15] = 8 * (BLOCK + NUMBER_BYTES);
    return digest_of(compressed(begun(key, 0x5c5c5c5cu, first), block));
}

// The nonce, which is below the order.
DEVICE number nonce_of(seed from, hash_state first)
{
    digest key, value;
    number nonce, most = order();
    UNROLL for (u32 i = 0; i < DIGEST_WORDS; i++) {
        key.w[i] = 0;
        value.w[i] = (word)0x0101010101010101ull;
    }
    ROLLED for (u32 i = 0; i < 2; i++) {
        key = keyed(key, value, i, from, WITH_KEY, first);
        value = keyed(key, value, 0, from, BARE, first);
    }
    ROLLED for (u32 turn = 0; turn < TURNS_MAX; turn++) {
        value = keyed(key, value, 0, from, BARE, first);
        nonce = number_of_digest(value.w);
        if (!is_zero(nonce) && is_below(nonce, most.w)) break;
        key = keyed(key, value, 0, from, WITH_BYTE, first);
        value = keyed(key, value, 0, from, BARE, first);
    }
    return nonce;
}

DEVICE number chosen(number a, number b, u32 is_a)
{
    UNROLL for (u32 i = 0; i < WORDS; i++) a.w[i] = (a.w[i] & is_a) | (b.w[i] & ~is_a);
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
    UNROLL for (u32 i = 0; i < WORDS; i++) any |= p.z.w[i];
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
        u32 bits = 0, own[2 * WORDS];
        UNROLL for (u32 i = 0; i < WORDS; i++) bits = window / 8 == i ? factor.w[i] : bits;
        u32 digit = bits >> (WINDOW * (window % 8)) & (ENTRIES - 1u);
        UNROLL for (u32 i = 0; i < 2 * WORDS; i++) own[i] = 0;
        GLOBAL const u32x4 *entries = (GLOBAL const u32x4 *)(table + ENTRIES * window);
        ROLLED for (u32 d = 1; d < ENTRIES; d++) {
            u32 is_own = 0u - (((d ^ digit) - 1u) >> 31);
            UNROLL for (u32 i = 0; i < WORDS / 2; i++) {
                u32x4 four = entries[WORDS / 2 * d + i];
                own[4 * i] |= four.x & is_own;
                own[4 * i + 1] |= four.y & is_own;
                own[4 * i + 2] |= four.z & is_own;
                own[4 * i + 3] |= four.w & is_own;
            }
        }
        affine next;
        UNROLL for (u32 i = 0; i < WORDS; i++) {
            next.x.w[i] = own[i];
            next.y.w[i] = own[WORDS + i];
        }
        sum = added_masked(sum, next, (digit - 1u >> 31) - 1u);
    }
    number over = inverse(sum.z), square = multiply(over, over), plain;
    UNROLL for (u32 i = 0; i < WORDS; i++) plain.w[i] = i == 0;
    affine result;
    result.x = multiply(multiply(sum.x, square), plain);
    result.y = multiply(multiply(sum.y, multiply(square, over)), plain);
    return result;
}

DEVICE void store_number(GLOBAL u32 *to, number a)
{
    UNROLL for (u32 i = 0; i < WORDS; i++) to[i] = swap_bytes(a.w[WORDS - 1 - i]);
}

// `key` is the private key and both coordinates of the public one, the highest byte first, `first` the state that the hash begins with, `noise`
// NUMBER_BYTES random bytes of this op, which are read only if HEDGED. A signature is r and s, the highest byte first. One thread more than there are
// messages checks whether the keys belong together: all ones, or 1.
KERNEL LAUNCH_BOUNDS(64, 2) ecdsa_sign(GLOBAL u32 *RESTRICT signatures, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const affine *RESTRICT table, GLOBAL const u8 *RESTRICT key, GLOBAL const word *RESTRICT first, GLOBAL const u8 *RESTRICT noise,
    GLOBAL u64 *RESTRICT complaint, FIXED batch all)
{
    u64 own = (u64)block_x() * block_size_x() + thread_x();
    if (own > all.count) return;
    number secret = number_at(key, NUMBER_BYTES), most = order(), nonce = secret, hash;
    hash_state state;
    UNROLL for (u32 i = 0; i < 8; i++) state.w[i] = first[i];
    if (own < all.count) {
        message text = message_at(&all, rows, own);
        hash = hashed(source + text.source, text.len, first);
        hash = reduced(hash.w, 0, most.w);
        seed from = {turned(secret), turned(hash), turned(none().x)};
#if HEDGED
        number fresh = number_at(noise, NUMBER_BYTES);
        fresh.w[1] ^= (u32)(own >> 32);
        fresh.w[0] ^= (u32)own;
        from.noise = turned(fresh);
#endif
        nonce = nonce_of(from, state);
    }
    affine found = multiplied(nonce, table);
    if (own == all.count) {
        number x = number_at(key + NUMBER_BYTES, NUMBER_BYTES), y = number_at(key + 2 * NUMBER_BYTES, NUMBER_BYTES);
        u32 differs = 0;
        UNROLL for (u32 i = 0; i < WORDS; i++) differs |= (found.x.w[i] ^ x.w[i]) | (found.y.w[i] ^ y.w[i]);
        *(GLOBAL volatile u64 *)complaint = differs ? 1 : ~(u64)0;
        return;
    }
    // Neither r nor s is zero, unless with a chance of one in 2^(CURVE - 1).
    number r = reduced(found.x.w, 0, most.w), sum = multiply_by_order(r, entered_by_order(secret));
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        carry += (u64)sum.w[i] + hash.w[i];
        sum.w[i] = (u32)carry;
        carry >>= 32;
    }
    sum = reduced(sum.w, (u32)carry, most.w);
    store_number(signatures + 2 * WORDS * own, r);
    store_number(signatures + 2 * WORDS * own + WORDS, multiply_by_order(sum, inverse_by_order(entered_by_order(nonce))));
}

// Signatures of RSA with the exponent 65537: a thread verifies one. A number has LIMBS words, the lowest first. PSS: the padding is that of PSS, with a salt
// as long as the digest and the same hash throughout, WIDE for SHA-512 and its shorter form; else that of PKCS#1 v1.5. All inputs are public.

#if PSS
typedef word given_word;
#else
typedef u8 given_word;
// Bytes before a digest.
#define PREFIX_BYTES 19u
#endif

// a * b / 2^(32 LIMBS) modulo n; both are below it. `inverse` is -1 / n modulo 2^32. `to` may be one of them.
DEVICE void montgomery(u32 *to, const u32 *a, const u32 *b, GLOBAL const u32 *n, u32 inverse)
{
    u32 t[LIMBS + 2];
    ROLLED for (u32 i = 0; i < LIMBS + 2; i++) t[i] = 0;
    ROLLED for (u32 i = 0; i < LIMBS; i++) {
        u64 carry = 0, factor = b[i];
        ROLLED for (u32 j = 0; j < LIMBS; j++) {
            carry += a[j] * factor + t[j];
            t[j] = (u32)carry;
            carry >>= 32;
        }
        carry += t[LIMBS];
        t[LIMBS] = (u32)carry;
        t[LIMBS + 1] = (u32)(carry >> 32);
        factor = (u32)(t[0] * inverse);
        carry = (factor * n[0] + t[0]) >> 32;
        ROLLED for (u32 j = 1; j < LIMBS; j++) {
            carry += factor * n[j] + t[j];
            t[j - 1] = (u32)carry;
            carry >>= 32;
        }
        carry += t[LIMBS];
        t[LIMBS - 1] = (u32)carry;
        t[LIMBS] = t[LIMBS + 1] + (u32)(carry >> 32);
    }
    // Once more than n at the most.
    u32 is_below = t[LIMBS] == 0, is_known = t[LIMBS] != 0;
    ROLLED for (u32 i = LIMBS; i-- > 0 && !is_known;) {
        is_known = t[i] != n[i];
        is_below = t[i] < n[i];
    }
    u64 borrow = 0;
    ROLLED for (u32 i = 0; i < LIMBS; i++) {
        u64 less = (u64)t[i] - (is_below ? 0 : n[i]) - borrow;
        to[i] = (u32)less;
        borrow = less >> 63;
    }
}

// A byte of the number, counted from the highest.
DEVICE u32 byte_of(const u32 *number, u32 at) { return number[LIMBS - 1 - at / 4] >> (24 - 8 * (at % 4)) & 0xffu; }

#if PSS
// Bytes of the longest digest.
#define DIGEST_MAX (8 * WORD_BYTES)

// Hashes up to two blocks less their end: the digest's bytes.
NOINLINE void hash_bytes(u8 *digest, const u8 *bytes, u32 len, GLOBAL const word *first)
{
    word state[8], w[16];
    u32 blocks = (len + 1 + 2 * WORD_BYTES + BLOCK - 1) / BLOCK;
    ROLLED for (u32 i = 0; i < 8; i++) state[i] = first[i];
    ROLLED for (u32 block = 0; block < blocks; block++) {
        UNROLL for (u32 i = 0; i < 16; i++) {
            word value = 0;
            ROLLED for (u32 j = 0; j < WORD_BYTES; j++) {
                u32 at = BLOCK * block + WORD_BYTES * i + j, byte = at == len ? 0x80u : 0;
                if (at < len) byte = bytes[at];
                value = value << 8 | byte;
            }
            w[i] = value;
        }
        if (block + 1 == blocks) w[15] = 8 * len;
        compress(state, w);
    }
    ROLLED for (u32 i = 0; i < DIGEST_MAX; i++)
        digest[i] = (u8)(state[i / WORD_BYTES] >> (8 * (WORD_BYTES - 1 - i % WORD_BYTES)));
}

// Whether this is the digest with its padding: zeros, a one and the salt, masked; the hash of digest and salt; and the last byte. `first` is the
// state that the hash begins with.
DEVICE u32 is_padded(const u32 *number, GLOBAL const u8 *digest, u32 digest_bytes, GLOBAL const word *first)
{
    u32 masked = 4 * LIMBS - digest_bytes - 1, salt = masked - digest_bytes;
    u8 seed[DIGEST_MAX + 4], mask[DIGEST_MAX], salted[8 + 2 * DIGEST_MAX];
    u32 differs = byte_of(number, 4 * LIMBS - 1) ^ 0xbcu;
    // The number's highest bit is none of the padding's.
    differs |= byte_of(number, 0) >> 7;
    ROLLED for (u32 i = 0; i < digest_bytes; i++) seed[i] = (u8)byte_of(number, masked + i);
    ROLLED for (u32 i = 0; i < 4; i++) seed[digest_bytes + i] = 0;
    ROLLED for (u32 i = 0; i < 8 + digest_bytes; i++) salted[i] = i < 8 ? 0 : digest[i - 8];
    ROLLED for (u32 at = 0; at < masked; at++) {
        u32 within = at % digest_bytes;
        if (within == 0) {
            seed[digest_bytes + 3] = (u8)(at / digest_bytes);
            hash_bytes(mask, seed, digest_bytes + 4, first);
        }
        u32 byte = byte_of(number, at) ^ mask[within];
        if (at == 0) byte &= 0x7fu;
        if (at >= salt) salted[8 + digest_bytes + at - salt] = (u8)byte;
        else differs |= byte ^ (at + 1 == salt);
    }
    hash_bytes(mask, salted, 8 + 2 * digest_bytes, first);
    ROLLED for (u32 i = 0; i < digest_bytes; i++) differs |= mask[i] ^ seed[i];
    return differs == 0;
}

#else
// Whether this is the digest with its padding. `prefix` stands before the digest.
DEVICE u32 is_padded(const u32 *number, GLOBAL const u8 *digest, u32 digest_bytes, GLOBAL const u8 *prefix)
{
    u32 text = 4 * LIMBS - digest_bytes, name = text - PREFIX_BYTES, differs = 0;
    ROLLED for (u32 at = 0; at < 4 * LIMBS; at++) {
        u32 expected = at == 0 || at == name - 1 ? 0 : at == 1 ? 1 : 0xffu;
        if (at >= text) expected = digest[at - text];
        else if (at >= name) expected = prefix[at - name];
        differs |= byte_of(number, at) ^ expected;
    }
    return differs == 0;
}
#endif

// `key` is n, then 2^(64 LIMBS) modulo n. `given` is what the padding is made with: the hash's first state, or what stands before a digest.
KERNEL LAUNCH_BOUNDS(64, 4) rsa_verify(GLOBAL u8 *RESTRICT verdicts, GLOBAL const u8 *RESTRICT digests, GLOBAL const u8 *RESTRICT signatures,
    GLOBAL const u64 *RESTRICT rows, GLOBAL const u32 *RESTRICT key, GLOBAL const given_word *RESTRICT given, FIXED batch all,
    u32 inverse, u32 digest_bytes)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    if (number >= all.count) return;
    message one = message_at(&all, rows, number);
    GLOBAL const u8 *from = signatures + one.source;
    GLOBAL const u32 *square = key + LIMBS;
    u32 is_right = one.len == 4 * LIMBS;
    u32 signature[LIMBS], power[LIMBS];
    ROLLED for (u32 i = 0; i < LIMBS; i++) {
        u32 limb = 0, at = 4 * (LIMBS - 1 - i);
        if (is_right) limb = (u32)from[at] << 24 | (u32)from[at + 1] << 16 | (u32)from[at + 2] << 8 | from[at + 3];
        signature[i] = limb;
        power[i] = square[i];
    }
    u32 is_below = 0, is_known = 0;
    ROLLED for (u32 i = LIMBS; i-- > 0 && !is_known;) {
        is_known = signature[i] != key[i];
        is_below = signature[i] < key[i];
    }
    is_right &= is_below;
    if (is_right) {
        montgomery(power, power, signature, key, inverse);
        ROLLED for (u32 i = 0; i < 16; i++) montgomery(power, power, power, key, inverse);
        montgomery(power, power, signature, key, inverse);
        is_right = is_padded(power, digests + number * digest_bytes, digest_bytes, given);
    }
    verdicts[number] = (u8)is_right;
}

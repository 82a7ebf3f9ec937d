// Signatures of RSA with the padding of PKCS#1 v1.5 and the exponent 65537: a thread verifies one. A number has LIMBS words, the lowest first.
// Everything here is public.

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

// What a byte of the padded digest should be, counted from the first.
DEVICE u32 expected_byte(u32 at, GLOBAL const u8 *digest, u32 digest_bytes, GLOBAL const u8 *prefix, u32 prefix_bytes)
{
    u32 bytes = 4 * LIMBS, text = bytes - digest_bytes, name = text - prefix_bytes;
    if (at >= text) return digest[at - text];
    if (at >= name) return prefix[at - name];
    return at == 0 || at == name - 1 ? 0 : at == 1 ? 1 : 0xff;
}

// `key` is n, then 2^(64 LIMBS) modulo n.
KERNEL LAUNCH_BOUNDS(64, 4) rsa_verify(GLOBAL u8 *RESTRICT verdicts, GLOBAL const u8 *RESTRICT digests, GLOBAL const u8 *RESTRICT signatures,
    GLOBAL const u64 *RESTRICT rows, GLOBAL const u32 *RESTRICT key, GLOBAL const u8 *RESTRICT prefix, FIXED batch all, u32 inverse,
    u32 digest_bytes, u32 prefix_bytes)
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
        ROLLED for (u32 at = 0; at < 4 * LIMBS; at++) {
            u32 byte = power[LIMBS - 1 - at / 4] >> (24 - 8 * (at % 4)) & 0xffu;
            is_right &= byte == expected_byte(at, digests + number * digest_bytes, digest_bytes, prefix, prefix_bytes);
        }
    }
    verdicts[number] = (u8)is_right;
}

// Signatures of Ed25519 made under one key (RFC 8032), a thread for each. Tables are read whole, and masks select the wanted entry: no branch and
// no address depends on the key or on values derived from it.
//
// Where HEDGED is 1 the nonce is hashed from fresh randomness too. RFC 8032 hashes prefix || message, so that two signatures of one message have one
// nonce, and tell the key where a fault made one of them differ. Here the hash begins with a whole block: randomness (32 bytes), prefix (32 bytes),
// the message's number in the op (8 bytes), zeros; then the message. So no two signatures share a nonce, neither those of two ops nor those of one,
// and without the randomness the nonce is still a secret of the prefix.

#define WINDOW 4u
#define WINDOWS 64u
#define ENTRIES 16u

// `factor` times the base. Entry 16 i + d of the table is d 16^i times the base.
NOINLINE point multiplied(field factor, GLOBAL const addend *table)
{
    point sum = none();
    ROLLED for (u32 window = 0; window < WINDOWS; window++) {
        u32 word = 0, own[32];
        UNROLL for (u32 i = 0; i < 8; i++) word = window / 8 == i ? factor.w[i] : word;
        u32 digit = word >> (WINDOW * (window % 8)) & (ENTRIES - 1u);
        UNROLL for (u32 i = 0; i < 32; i++) own[i] = 0;
        GLOBAL const u32x4 *entries = (GLOBAL const u32x4 *)(table + ENTRIES * window);
        ROLLED for (u32 d = 0; d < ENTRIES; d++) {
            u32 is_own = 0u - (((d ^ digit) - 1u) >> 31);
            UNROLL for (u32 i = 0; i < 8; i++) {
                u32x4 four = entries[8 * d + i];
                own[4 * i] |= four.x & is_own;
                own[4 * i + 1] |= four.y & is_own;
                own[4 * i + 2] |= four.z & is_own;
                own[4 * i + 3] |= four.w & is_own;
            }
        }
        addend next;
        UNROLL for (u32 i = 0; i < 8; i++) {
            next.minus.w[i] = own[i];
            next.plus.w[i] = own[8 + i];
            next.turned.w[i] = own[16 + i];
            next.twice.w[i] = own[24 + i];
        }
        sum = added(sum, next);
    }
    return sum;
}

#if EXPAND
// Expands a key's seed into parts of eight words each: the factor, the prefix that is hashed before a message, the public key, x and y of its opposite, and the
// public key once more; signatures are verified with the last three. One thread.
KERNEL LAUNCH_BOUNDS(32, 1) ed25519_expand(GLOBAL u32 *RESTRICT expanded, GLOBAL const u8 *RESTRICT seed, GLOBAL const addend *RESTRICT table,
    GLOBAL const u64 *RESTRICT first)
{
    if (thread_x() != 0) return;
    u32 head[HEAD_WORDS], hash[16];
    load_words(head, seed, 8);
    hashed(hash, head, 8, seed, 0, first);
    hash[0] &= 0xfffffff8u;
    hash[7] = (hash[7] & 0x7fffffffu) | 0x40000000u;
    field factor;
    UNROLL for (u32 i = 0; i < 8; i++) factor.w[i] = hash[i];
    point public_key = multiplied(factor, table);
    field zero, one_over = inverse(public_key.z);
    UNROLL for (u32 i = 0; i < 8; i++) zero.w[i] = 0;
    field x = reduced(multiply(public_key.x, one_over)), y = reduced(multiply(public_key.y, one_over));
    field opposite = reduced(subtract(zero, x));
    UNROLL for (u32 i = 0; i < 8; i++) {
        expanded[i] = hash[i];
        expanded[8 + i] = hash[8 + i];
        expanded[16 + i] = expanded[40 + i] = y.w[i] | (i == 7 ? x.w[0] << 31 : 0);
        expanded[24 + i] = opposite.w[i];
        expanded[32 + i] = y.w[i];
    }
}

#else
// (a b + c) modulo the order of the base; a and c are below it.
DEVICE void multiply_add(u32 *result, const u32 *a, GLOBAL const u32 *b, field c)
{
    u32 wide[16];
    UNROLL for (u32 i = 0; i < 16; i++) wide[i] = i < 8 ? c.w[i % 8] : 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
        u64 carry = 0;
        UNROLL for (u32 j = 0; j < 8; j++) {
            carry += (u64)a[i] * b[j] + wide[i + j];
            wide[i + j] = (u32)carry;
            carry >>= 32;
        }
        wide[i + 8] = (u32)carry;
    }
    modulo_order(result, wide);
}

// `expanded` is the expanded key, `first` the initial state of SHA-512, `noise` 32 random bytes of this op, which are read only if
// HEDGED. A signature has 64 bytes.
KERNEL LAUNCH_BOUNDS(64, 2) ed25519_sign(GLOBAL u32 *RESTRICT signatures, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const addend *RESTRICT table, GLOBAL const u32 *RESTRICT expanded, GLOBAL const u64 *RESTRICT first, GLOBAL const u8 *RESTRICT noise,
    FIXED batch all)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    if (number >= all.count) return;
    message text = message_at(&all, rows, number);
    u32 head[HEAD_WORDS], hash[16], h[8], s[8];
    field nonce;
#if HEDGED
    load_words(head, noise, 8);
    UNROLL for (u32 i = 0; i < 8; i++) head[8 + i] = expanded[8 + i];
    UNROLL for (u32 i = 16; i < HEAD_WORDS; i++) head[i] = i == 16 ? (u32)number : i == 17 ? (u32)(number >> 32) : 0;
    hashed(hash, head, HEAD_WORDS, source + text.source, text.len, first);
#else
    UNROLL for (u32 i = 0; i < 8; i++) head[i] = expanded[8 + i];
    hashed(hash, head, 8, source + text.source, text.len, first);
#endif
    modulo_order(nonce.w, hash);
    field r = encoded(multiplied(nonce, table));
    UNROLL for (u32 i = 0; i < 8; i++) {
        head[i] = r.w[i];
        head[8 + i] = expanded[16 + i];
    }
    hashed(hash, head, 16, source + text.source, text.len, first);
    modulo_order(h, hash);
    multiply_add(s, h, expanded, nonce);
    UNROLL for (u32 i = 0; i < 8; i++) {
        signatures[16 * number + i] = r.w[i];
        signatures[16 * number + 8 + i] = s[i];
    }
}
#endif

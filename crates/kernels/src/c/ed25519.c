// Signatures of Ed25519 under one key (RFC 8032), a thread for each: whether the encoding of [s]B - [h]A is the signature's first half. All inputs are
// public, so the places of table reads may depend on them. MANY: each eight bits of s and of h name an entry of a large table; else each four bits
// of both name one of a small table, and the sum is doubled between them, which takes less for few signatures.

// Windows of the large table, and entries of each.
#define WINDOWS 32u
#define ENTRIES 256u

DEVICE u32 is_below_order(const u32 *x)
{
    const u32 order[8] = {0x5cf5d3edu, 0x5812631au, 0xa2f79cd6u, 0x14def9deu, 0x00000000u, 0x00000000u, 0x00000000u, 0x10000000u};
    i64 borrow = 0;
    UNROLL for (u32 i = 0; i < 8; i++) borrow = (borrow + (i64)x[i] - (i64)order[i]) >> 32;
    return borrow != 0;
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
    u32 head[16], s[8], h[16], half_h[8];
    load_words(head, signature, 8);
    load_words(head + 8, key, 8);
    load_words(s, signature + 32, 8);
    hashed(h, head, 16, source + text.source, text.len, first);
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
    field found = encoded(sum);
    u32 differs = 0;
    UNROLL for (u32 i = 0; i < 8; i++) differs |= found.w[i] ^ head[i];
    verdicts[number] = (u8)(differs == 0 && is_below_order(s));
}

// Signatures of ECDSA under one key (FIPS 186-5), a thread for each: whether the x of [u]G + [v]Q is the signature's r. All inputs are
// public, so the places of table reads may depend on them. TABLE: each eight bits of u and of v name an entry of a table; else the points are
// doubled bit by bit, which takes less for few signatures, and `table` is the key.

// Windows of the table, and entries of each.
#define WINDOWS (CURVE / 8u)
#define ENTRIES 256u

// An INTEGER of DER at the place, which is moved behind it: not negative, in the fewest bytes. Returns 0 if there is none, or if it exceeds NUMBER_BYTES.
DEVICE u32 read_integer(number *result, GLOBAL const u8 *bytes, u32 end, u32 *place)
{
    u32 at = *place;
    if (end - at < 3 || bytes[at] != 2) return 0;
    u32 len = bytes[at + 1];
    at += 2;
    if (len == 0 || len > NUMBER_BYTES + 1 || len > end - at || bytes[at] >= 0x80) return 0;
    *place = at + len;
    if (bytes[at] == 0 && len > 1) {
        if (bytes[at + 1] < 0x80) return 0;
        at++;
        len--;
    }
    if (len > NUMBER_BYTES) return 0;
    *result = number_at(bytes + at, len);
    return 1;
}

// Both numbers of a signature: one behind the other, or a SEQUENCE of DER. No valid SEQUENCE has a length of more than one byte.
DEVICE u32 read_signature(number *r, number *s, GLOBAL const u8 *bytes, u64 len, u32 is_der)
{
    if (!is_der) {
        if (len != 2 * NUMBER_BYTES) return 0;
        *r = number_at(bytes, NUMBER_BYTES);
        *s = number_at(bytes + NUMBER_BYTES, NUMBER_BYTES);
        return 1;
    }
    u32 place = 2, end = (u32)len;
    if (len < 8 || len > 2 * NUMBER_BYTES + 8 || bytes[0] != 0x30 || bytes[1] != end - 2) return 0;
    return read_integer(r, bytes, end, &place) && read_integer(s, bytes, end, &place) && place == end;
}

// Eight bits.
DEVICE u32 digit_of(number a, u32 window)
{
    u32 word = 0;
    // Words at constant places stay in registers.
    UNROLL for (u32 i = 0; i < WORDS; i++) word = window / 4 == i ? a.w[i] : word;
    return word >> (8 * (window % 4)) & 255u;
}

DEVICE u32 is_same(number a, number b)
{
    u32 differs = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) differs |= a.w[i] ^ b.w[i];
    return differs == 0;
}

DEVICE u32 verified(number r, number s, number hash, GLOBAL const affine *table)
{
    number most = order();
    // p less the order.
    const u32 gap[WORDS] = GAP;
    if (is_zero(r) || is_zero(s) || !is_below(r, most.w) || !is_below(s, most.w)) return 0;
    number over = inverse_by_order(entered_by_order(s));
    number u = multiply_by_order(hash, over), v = multiply_by_order(r, over);
    point sum = none();
#if TABLE
    ROLLED for (u32 i = 0; i < 2 * WINDOWS; i++) {
        u32 digit = i < WINDOWS ? digit_of(u, i) : digit_of(v, i - WINDOWS);
        if (digit > 0) sum = added(sum, table[ENTRIES * i + digit]);
    }
#else
    affine base = base_or(table, 0), key = base_or(table, 1);
    ROLLED for (u32 i = CURVE; i > 0; i--) {
        u32 bits = digit_of(u, (i - 1) / 8) >> ((i - 1) % 8) & 1u, other = digit_of(v, (i - 1) / 8) >> ((i - 1) % 8) & 1u;
        sum = doubled(sum);
        if (bits) sum = added(sum, base);
        if (other) sum = added(sum, key);
    }
#endif
    if (is_zero(sum.z)) return 0;
    // x is r, or r and once the order.
    number z2 = multiply(sum.z, sum.z);
    if (is_same(sum.x, multiply(entered(r), z2))) return 1;
    if (!is_below(r, gap)) return 0;
    u64 carry = 0;
    UNROLL for (u32 i = 0; i < WORDS; i++) {
        carry += (u64)r.w[i] + most.w[i];
        r.w[i] = (u32)carry;
        carry >>= 32;
    }
    return is_same(sum.x, multiply(entered(r), z2));
}

// `first` is the state that the hash begins with. Verdicts are 1 or 0.
KERNEL LAUNCH_BOUNDS(64, 2) ecdsa_verify(GLOBAL u8 *RESTRICT verdicts, GLOBAL const u8 *RESTRICT source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const u8 *RESTRICT signatures, GLOBAL const u64 *RESTRICT signature_rows, GLOBAL const affine *RESTRICT table,
    GLOBAL const word *RESTRICT first, FIXED batch all, FIXED batch all_signatures, u32 is_der)
{
    u64 own = (u64)block_x() * block_size_x() + thread_x();
    if (own >= all.count) return;
    message text = message_at(&all, rows, own), given = message_at(&all_signatures, signature_rows, own);
    number r, s;
    u32 is_right = read_signature(&r, &s, signatures + given.source, given.len, is_der);
    if (is_right) is_right = verified(r, s, hashed(source + text.source, text.len, first), table);
    verdicts[own] = (u8)is_right;
}

// AES in counter mode. A thread processes a unit: eight blocks of one message. With `is_masks` there is no text: a unit is eight messages. The kernel
// keeps the encrypted counter one of each message (GCM's mask for tags) and, at the end, the encrypted block of zeros (GCM's hash key).
//
// A nonce of twelve bytes is followed by a counter of 32 bits, which begins with two. A nonce of sixteen bytes is itself the counter, with the highest
// byte first. With a `verdict`, nothing is written unless it lets the messages pass; see `messages.h`.

DEVICE void counter_block(u32 *s, u32 slot, GLOBAL const u8 *nonce, u32 nonce_bytes, u64 number)
{
    u32 words[4];
    UNROLL for (u32 i = 0; i < 3; i++) {
        words[i] = 0;
        UNROLL for (u32 j = 0; j < 4; j++) words[i] |= (u32)nonce[4 * i + j] << (8 * j);
    }
    if (nonce_bytes == 12) {
        words[3] = swap_bytes((u32)number + 2);
    } else {
        words[3] = 0;
        UNROLL for (u32 j = 0; j < 4; j++) words[3] |= (u32)nonce[12 + j] << (8 * j);
        u64 low = (u64)swap_bytes(words[2]) << 32 | swap_bytes(words[3]);
        u64 sum = low + number, high = (u64)swap_bytes(words[0]) << 32 | swap_bytes(words[1]);
        high += sum < low;
        words[0] = swap_bytes((u32)(high >> 32));
        words[1] = swap_bytes((u32)high);
        words[2] = swap_bytes((u32)(sum >> 32));
        words[3] = swap_bytes((u32)sum);
    }
    UNROLL for (u32 i = 0; i < 4; i++) s[8 * i + slot] = words[i];
}

KERNEL LAUNCH_BOUNDS(128, 4) aes_counter(GLOBAL u8 *target, GLOBAL const u8 *source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const u32 *RESTRICT round_keys, GLOBAL const u8 *RESTRICT nonces, u32 nonce_bytes, u32 rounds, FIXED batch all, u64 units,
    u32 is_masks, GLOBAL const u32 *verdict, u32 has_verdict, GLOBAL u64 *complaint)
{
    SHARED u32 keys[KEY_WORDS];
    if (has_verdict && !lets_pass(verdict, all.count, complaint)) return;
    load_keys(keys, round_keys, rounds);
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 unit = (u64)block_x() * block_size_x() + thread_x(); unit < units; unit += step) {
        u32 s[STATE];
        u64 number = 0, first = 0;
        if (is_masks) {
            UNROLL for (u32 slot = 0; slot < 8; slot++) {
                number = 8 * unit + slot;
                UNROLL for (u32 i = 0; i < 4; i++) s[8 * i + slot] = 0;
                if (number < all.count) counter_block(s, slot, nonces + number * nonce_bytes, nonce_bytes, ~(u64)0);
            }
        } else {
            number = message_of(&all, rows, unit, ROW_UNITS, 0, 0);
            first = 8 * (unit - before_message(&all, rows, number, ROW_UNITS));
            UNROLL for (u32 slot = 0; slot < 8; slot++)
                counter_block(s, slot, nonces + number * nonce_bytes, nonce_bytes, first + slot);
        }
        to_bits(s);
        encrypt_state(s, keys, rounds);
        from_bits(s);
        message one;
        if (!is_masks) one = message_at(&all, rows, number);
        UNROLL for (u32 slot = 0; slot < 8; slot++) {
            u32x4 block = {s[slot], s[8 + slot], s[16 + slot], s[24 + slot]};
            if (is_masks) {
                if (8 * unit + slot <= all.count) store_block(target + 16 * (8 * unit + slot), block, 16);
                continue;
            }
            u64 at = 16 * (first + slot);
            if (at >= one.len) break;
            u32x4 text = load_block(source + one.source + at, one.len - at);
            block.x ^= text.x;
            block.y ^= text.y;
            block.z ^= text.z;
            block.w ^= text.w;
            store_block(target + one.target + at, block, one.len - at);
        }
    }
    wipe_words(keys, (rounds + 1) * STATE);
}

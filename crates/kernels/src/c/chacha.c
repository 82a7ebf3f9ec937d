// ChaCha20. A thread processes one block of 64 bytes of one message. With a `verdict`, nothing is written unless
// it lets the messages pass; see `messages.h`.

KERNEL LAUNCH_BOUNDS(256, 4) chacha(GLOBAL u8 *target, GLOBAL const u8 *source, GLOBAL const u64 *RESTRICT rows,
    GLOBAL const u32 *RESTRICT key, GLOBAL const u8 *RESTRICT nonces, FIXED batch all, u64 units, GLOBAL const u32 *verdict,
    u32 has_verdict, GLOBAL u64 *complaint)
{
    if (has_verdict && !lets_pass(verdict, all.count, complaint)) return;
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 unit = (u64)block_x() * block_size_x() + thread_x(); unit < units; unit += step) {
        u64 number = message_of(&all, rows, unit, ROW_UNITS, 0, 0);
        u64 place = unit - before_message(&all, rows, number, ROW_UNITS);
        u32 x[16];
        chacha_block(x, key, nonces + 12 * number, (u32)place + 1);
        message one = message_at(&all, rows, number);
        UNROLL for (u32 i = 0; i < 4; i++) {
            u64 at = 64 * place + 16 * i;
            if (at >= one.len) break;
            u32x4 text = load_block(source + one.source + at, one.len - at);
            text.x ^= x[4 * i];
            text.y ^= x[4 * i + 1];
            text.z ^= x[4 * i + 2];
            text.w ^= x[4 * i + 3];
            store_block(target + one.target + at, text, one.len - at);
        }
    }
}

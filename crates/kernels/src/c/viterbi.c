// The likeliest path through a code of 64 states. 32 threads are a frame: thread l has the states 2l and 2l + 1, which are followed by l and
// l + 32. Costs of all states lie in the block's memory; which of two states came before is a bit of `paths`, 64 for each step.
//
// A frame has `frame_steps` steps, and is gone through until there are `steps`: several times where it ends in the state in which it began, which
// may be any. Of the path the bits from step `first_kept` on are kept. PUNCTURED: of each `period` coded bits those are sent that have a bit in `kept`.

#define FRAMES 4u
#define FAR (1u << 24)

#if WARP >= 32
#define TEAM_BARRIER() WARP_BARRIER()
#else
#define TEAM_BARRIER() BARRIER()
#endif

DEVICE u32 parity_of(u32 bits) { return count_ones(bits) & 1u; }

// The cost of a coded bit that should be `bit`; a byte counts as one of 15 steps.
DEVICE u32 cost_of(u32 bit, u32 soft) { return bit ? 14u - soft : soft; }

// The bits of the threads of a frame that say yes, in the order of the threads.
#if WARP >= 32
DEVICE u32 votes_of(int yes) { return (u32)(ballot(yes) >> (lane() & ~31u)); }
#endif

// A coded bit of a frame; 128 where it was not sent.
DEVICE u32 soft_at(GLOBAL const u8 *softs, u32 at, u32 kept, u32 period)
{
#if PUNCTURED
    u32 turn = at / period, rest = at - turn * period;
    if ((kept >> rest & 1u) == 0) return 128u;
    at = turn * count_ones(kept) + count_ones(kept & ((1u << rest) - 1u));
#endif
    return softs[at];
}

KERNEL LAUNCH_BOUNDS(128, 4) viterbi(GLOBAL u8 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL u32 *paths, u64 frames,
    u32 steps, u32 bits, u32 first_polynomial, u32 second_polynomial, u32 is_terminated, u32 frame_steps, u32 first_kept, u32 coded_bits,
    u32 kept, u32 period)
{
    SHARED u32 costs[FRAMES][2][64];
    SHARED u32 votes[FRAMES][64];
    u32 team = thread_x() / 32, place = thread_x() % 32;
    u64 frame = (u64)block_x() * FRAMES + team;
    u32 is_there = frame < frames;
    GLOBAL const u8 *softs = source + (is_there ? frame : 0) * coded_bits;
    GLOBAL u32 *path = paths + (is_there ? frame : 0) * 2 * steps;
    // What is sent on the way from 2l and from 2l + 1, with a zero and with a one: both coded bits.
    u32 sent[4][2];
    UNROLL for (u32 i = 0; i < 4; i++) {
        u32 bits_of = (i / 2) * 64 + 2 * place + i % 2;
        sent[i][0] = parity_of(bits_of & first_polynomial);
        sent[i][1] = parity_of(bits_of & second_polynomial);
    }
    u32 far = steps > frame_steps ? 0 : FAR, frame_step = 0;
    costs[team][0][place] = place == 0 ? 0 : far;
    costs[team][0][place + 32] = far;
    TEAM_BARRIER();
    for (u32 step = 0; step < steps; step++) {
        u32 now = step % 2;
        u32 first = soft_at(softs, 2 * frame_step, kept, period) * 15u >> 8;
        u32 second = soft_at(softs, 2 * frame_step + 1, kept, period) * 15u >> 8;
        frame_step = frame_step + 1 == frame_steps ? 0 : frame_step + 1;
        u32 low = costs[team][now][2 * place], high = costs[team][now][2 * place + 1];
        u32 totals[4], later[2];
        UNROLL for (u32 i = 0; i < 4; i++)
            totals[i] = (i % 2 ? high : low) + cost_of(sent[i][0], first) + cost_of(sent[i][1], second);
        UNROLL for (u32 i = 0; i < 2; i++) {
            later[i] = totals[2 * i + 1] < totals[2 * i];
            costs[team][1 - now][32 * i + place] = later[i] ? totals[2 * i + 1] : totals[2 * i];
        }
#if WARP >= 32
        u32 zero = votes_of((int)later[0]), one = votes_of((int)later[1]);
        if (place == 0 && is_there) {
            path[2 * step] = zero;
            path[2 * step + 1] = one;
        }
        TEAM_BARRIER();
#else
        votes[team][place] = later[0];
        votes[team][place + 32] = later[1];
        TEAM_BARRIER();
        if (place < 2 && is_there) {
            u32 word = 0;
            for (u32 i = 0; i < 32; i++) word |= votes[team][32 * place + i] << i;
            path[2 * step + place] = word;
        }
        TEAM_BARRIER();
#endif
    }
    // The way back. Threads of a frame read 32 steps at a time, the first of them goes.
    u32 state = 0;
    if (!is_terminated) {
        u32 least = ~0u;
        for (u32 i = 0; i < 64; i++) {
            u32 cost = costs[team][steps % 2][i];
            if (cost < least) least = cost, state = i;
        }
    }
    FENCE();
    BARRIER();
    u32 bytes = (bits + 7) / 8, left = steps, byte = 0;
    while (left > 0) {
        u32 count = left < 32 ? left : 32;
        if (place < count && is_there) {
            u32 step = left - 1 - place;
            votes[team][2 * place] = path[2 * step];
            votes[team][2 * place + 1] = path[2 * step + 1];
        }
        TEAM_BARRIER();
        for (u32 i = 0; i < count; i++) {
            // Steps before the first that is kept have large numbers.
            u32 step = left - 1 - i - first_kept, bit = state >> 5;
            if (step < bits) {
                byte |= bit << (7 - step % 8);
                if (step % 8 == 0) {
                    if (place == 0 && is_there) target[frame * bytes + step / 8] = (u8)byte;
                    byte = 0;
                }
            }
            state = (2 * state & 63u) | (votes[team][2 * i + bit] >> (state & 31u) & 1u);
        }
        TEAM_BARRIER();
        left -= count;
    }
}

// The same for two frames at a time, where both polynomials have the newest and the oldest bit: what is sent on the way from 2l + 1, or with a one,
// is the opposite of what is sent on the way from 2l with a zero. Costs have 16 bits, those of the second frame in the high half of each word;
// now and then the least of them is taken off all. Paths have four words for each step: two for each frame.
#if WARP >= 32
// More than what any state that can be reached has cost when all can.
#define FAR_16 0x04000400u
// No cost has grown beyond 15 bits after so many steps.
#define STEPS_BETWEEN 1024u

// One step of a team: from the costs of 2l and 2l + 1 to those of l and l + 32, and the bits of the path. No cost has its highest bit.
DEVICE void advance(LOCAL u32 *to, LOCAL const u32x2 *from, GLOBAL u32x4 *path, u32 cost, u32 place)
{
    u32x2 own = *from;
    u32 opposite = 0x001c001cu - cost, zero = own.x + cost, one = own.x + opposite;
    u32 zero_least = min2_u16(zero, own.y + opposite), one_least = min2_u16(one, own.y + cost);
    to[place] = zero_least;
    to[place + 32] = one_least;
    zero ^= zero_least;
    one ^= one_least;
    u32x4 votes = {votes_of((zero & 0x7fffu) != 0), votes_of((one & 0x7fffu) != 0), votes_of((zero & 0x7fff0000u) != 0),
        votes_of((one & 0x7fff0000u) != 0)};
    if (place == 0) *path = votes;
    WARP_BARRIER();
}

KERNEL LAUNCH_BOUNDS(128, 8) viterbi_pairs(GLOBAL u8 *RESTRICT target, GLOBAL const u8 *RESTRICT source, GLOBAL u32x4 *paths, u64 frames,
    u32 steps, u32 bits, u32 first_polynomial, u32 second_polynomial, u32 is_terminated, u32 frame_steps, u32 first_kept, u32 coded_bits,
    u32 kept, u32 period)
{
    SHARED u32x2 costs[FRAMES][2][32];
    SHARED u32 votes[FRAMES][4 * 32];
    u32 team = thread_x() / 32, place = thread_x() % 32;
    u64 pair = (u64)block_x() * FRAMES + team, pairs = (frames + 1) / 2;
    if (pair >= pairs) pair = pairs - 1;
    // The last frame is decoded twice where it has no other beside it; both write the same.
    u64 frame_of[2] = {2 * pair, 2 * pair + 1 < frames ? 2 * pair + 1 : 2 * pair};
    GLOBAL const u8 *softs = source + frame_of[0] * coded_bits, *more_softs = source + frame_of[1] * coded_bits;
    GLOBAL u32x4 *path = paths + pair * steps;
    // The cost of a way from 2l with a zero is a sum of both soft bits, or of what they lack to 14.
    u32 first_sent = parity_of(2 * place & first_polynomial), second_sent = parity_of(2 * place & second_polynomial);
    u32 first_factor = first_sent ? ~0u : 1u, second_factor = second_sent ? ~0u : 1u, lacking = 0x000e000eu * (first_sent + second_sent);
    u32 far = steps > frame_steps ? 0 : FAR_16;
    u32x2 own = {place == 0 ? 0 : far, far};
    LOCAL u32 *flat = (LOCAL u32 *)costs[team];
    costs[team][0][place] = own;
    WARP_BARRIER();
    for (u32 base = 0; base < steps; base += 32) {
        // Each thread brings the soft bits of one of 32 steps, those of the second coded bit eight bits higher.
        u32 soft = 0, count = steps - base < 32 ? steps - base : 32, step = 0;
        if (place < count) {
            u32 at = 2 * ((base + place) % frame_steps);
            u32 first_softs = soft_at(softs, at, kept, period) | soft_at(more_softs, at, kept, period) << 16;
            u32 second_softs = soft_at(softs, at + 1, kept, period) | soft_at(more_softs, at + 1, kept, period) << 16;
            soft = (first_softs * 15u >> 8 & 0x000f000fu) | (second_softs * 15u & 0x0f000f00u);
        }
        // Steps by twos, so that it is known which costs are read and which are written.
        for (; step + 2 <= count; step += 2, path += 2) {
            u32 both = shuffle_u32(soft, (lane() & ~31u) + step);
            advance(flat + 64, costs[team][0] + place, path, lacking + (both & 0x000f000fu) * first_factor + (both >> 8 & 0x000f000fu) * second_factor, place);
            both = shuffle_u32(soft, (lane() & ~31u) + step + 1);
            advance(flat, costs[team][1] + place, path + 1, lacking + (both & 0x000f000fu) * first_factor + (both >> 8 & 0x000f000fu) * second_factor, place);
        }
        if (step < count) {
            u32 both = shuffle_u32(soft, (lane() & ~31u) + step);
            advance(flat + 64, costs[team][0] + place, path, lacking + (both & 0x000f000fu) * first_factor + (both >> 8 & 0x000f000fu) * second_factor, place);
        }
        if ((base + 32) % STEPS_BETWEEN == 0 && base + 32 <= steps) {
            own = costs[team][0][place];
            u32 least = min2_u16(own.x, own.y);
            for (u32 mask = 16; mask > 0; mask /= 2) least = min2_u16(least, shuffle_xor_u32(least, mask));
            own.x -= least;
            own.y -= least;
            costs[team][0][place] = own;
            WARP_BARRIER();
        }
    }
    path = paths + pair * steps;
    // The way back: half of the threads are on that of each frame.
    u32 half_of = place / 16, shift = 16 * half_of, state = 0;
    if (!is_terminated) {
        u32 least = ~0u;
        for (u32 i = 0; i < 64; i++) {
            u32 cost = flat[64 * (steps % 2) + i] >> shift & 0xffffu;
            if (cost < least) least = cost, state = i;
        }
    }
    u32 bytes = (bits + 7) / 8;
    GLOBAL u8 *to = target + frame_of[half_of] * bytes;
    // 32 steps at a time, counted from the first that is kept, so that their bits are whole bytes.
    i32 left = (i32)steps - (i32)first_kept;
    while (left > -(i32)first_kept) {
        i32 begin = (left - 1) & ~31;
        if (begin < -(i32)first_kept) begin = -(i32)first_kept;
        u32 count = (u32)(left - begin), word = 0;
        WARP_BARRIER();
        if (place < count) {
            u32x4 four = path[(u32)(begin + (i32)first_kept) + place];
            votes[team][4 * place] = four.x;
            votes[team][4 * place + 1] = four.y;
            votes[team][4 * place + 2] = four.z;
            votes[team][4 * place + 3] = four.w;
        }
        WARP_BARRIER();
        for (u32 i = count; i > 0; i--) {
            u32 bit = state >> 5;
            word |= bit << (32 - i);
            state = (2 * state & 63u) | (votes[team][4 * (i - 1) + 2 * half_of + bit] >> (state & 31u) & 1u);
        }
        // The first step's bit is the highest; what is behind the last bit of a frame is zero.
        u32 byte = place % 16;
        if (begin >= 0 && begin < (i32)bits && byte < 4 && (u32)begin / 8 + byte < bytes) {
            u32 rest = bits - (u32)begin;
            if (rest < 32) word &= ~(~0u >> rest);
            to[(u32)begin / 8 + byte] = (u8)(word >> (24 - 8 * byte));
        }
        left = begin;
    }
}
#endif

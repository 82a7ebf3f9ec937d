// The likeliest path through a code of 64 states. 32 threads are a frame: thread l has the states 2l and 2l + 1, which are followed by l and
// l + 32. Costs of all states lie in the block's memory; which of two states came before is a bit of `paths`, 64 for each step.
//
// A frame has `frame_steps` steps, and is gone through until there are `steps`: several times where it ends in the state in which it began, which
// may be any. Of the path the bits from step `first_kept` on are kept. PUNCTURED: of each `period` coded bits those are sent that have a bit in `kept`.
//
// LOGARITHMS: soft bits are f32 logarithms of how much likelier 0 is than 1, and count in steps of
// 1/64; else they are bytes of 15 steps. CIRCLE: the path ends in the state in which it began, and
// is the cheapest of all that do. The costs from any state are lower bounds of each end. States are
// tried in the order of their bounds, until no bound is below the best cost.

#define FRAMES 4u
#define FAR (1u << 24)

#if WARP >= 32
#define TEAM_BARRIER() WARP_BARRIER()
#else
#define TEAM_BARRIER() BARRIER()
#endif

DEVICE u32 parity_of(u32 bits) { return count_ones(bits) & 1u; }

#if LOGARITHMS
#define SOFT f32
#define FULL 16384u
#define UNKNOWN 0.0f
// A logarithm as its distance from 0, within 128 either way. NaN counts as no information.
DEVICE u32 level_of(f32 soft)
{
    if (!(soft == soft)) return 8192u;
    f32 bounded = soft > 128.0f ? 128.0f : soft < -128.0f ? -128.0f : soft;
    return (u32)(8192.5f - 64.0f * bounded);
}
#else
#define SOFT u8
#define FULL 14u
#define UNKNOWN 128u
// A byte counts as one of 15 steps.
DEVICE u32 level_of(u32 soft) { return soft * 15u >> 8; }
#endif

// The cost of a coded bit that should be `bit`.
DEVICE u32 cost_of(u32 bit, u32 level) { return bit ? FULL - level : level; }

// The bits of the threads of a frame that say yes, in the order of the threads.
#if WARP >= 32
DEVICE u32 votes_of(int yes) { return (u32)(ballot(yes) >> (lane() & ~31u)); }
#endif

// A coded bit of a frame; one that says nothing where it was not sent.
DEVICE SOFT soft_at(GLOBAL const SOFT *softs, u32 at, u32 kept, u32 period)
{
#if PUNCTURED
    u32 turn = at / period, rest = at - turn * period;
    if ((kept >> rest & 1u) == 0) return UNKNOWN;
    at = turn * count_ones(kept) + count_ones(kept & ((1u << rest) - 1u));
#endif
    return softs[at];
}

// The bits of the path of one step: which states have the higher of the two before them as the
// better.
DEVICE void keep_choices(GLOBAL u32 *path, LOCAL u32 *votes, u32 place, u32 is_there, u32 zero_later, u32 one_later)
{
#if WARP >= 32
    u32 zero = votes_of((int)zero_later), one = votes_of((int)one_later);
    if (place == 0 && is_there) {
        path[0] = zero;
        path[1] = one;
    }
    TEAM_BARRIER();
#else
    votes[place] = zero_later;
    votes[place + 32] = one_later;
    TEAM_BARRIER();
    if (place < 2 && is_there) {
        u32 word = 0;
        for (u32 i = 0; i < 32; i++) word |= votes[32 * place + i] << i;
        path[place] = word;
    }
    TEAM_BARRIER();
#endif
}

// All steps of a frame, from the costs in the first half of `costs`; those behind it stand in half
// `steps % 2`.
DEVICE void forward(LOCAL u32 *costs, LOCAL u32 *votes, GLOBAL const SOFT *softs, GLOBAL u32 *path, u32 place, u32 is_there, u32 steps,
    u32 frame_steps, u32 first_polynomial, u32 second_polynomial, u32 kept, u32 period)
{
    // The sent bits on the way from 2l and from 2l + 1, with a zero and with a one: both coded bits.
    u32 sent[4][2], frame_step = 0;
    UNROLL for (u32 i = 0; i < 4; i++) {
        u32 bits_of = (i / 2) * 64 + 2 * place + i % 2;
        sent[i][0] = parity_of(bits_of & first_polynomial);
        sent[i][1] = parity_of(bits_of & second_polynomial);
    }
    for (u32 step = 0; step < steps; step++) {
        u32 now = step % 2;
        u32 first = level_of(soft_at(softs, 2 * frame_step, kept, period));
        u32 second = level_of(soft_at(softs, 2 * frame_step + 1, kept, period));
        frame_step = frame_step + 1 == frame_steps ? 0 : frame_step + 1;
        u32 low = costs[64 * now + 2 * place], high = costs[64 * now + 2 * place + 1];
        u32 totals[4], later[2];
        UNROLL for (u32 i = 0; i < 4; i++)
            totals[i] = (i % 2 ? high : low) + cost_of(sent[i][0], first) + cost_of(sent[i][1], second);
        UNROLL for (u32 i = 0; i < 2; i++) {
            later[i] = totals[2 * i + 1] < totals[2 * i];
            costs[64 * (1 - now) + 32 * i + place] = later[i] ? totals[2 * i + 1] : totals[2 * i];
        }
        keep_choices(path + 2 * step, votes, place, is_there, later[0], later[1]);
    }
}

// Costs before the first step: of paths from one state, or from any where `state` is 64.
DEVICE void begin(LOCAL u32 *costs, u32 place, u32 state)
{
    TEAM_BARRIER();
    u32 far = state < 64 ? FAR : 0;
    costs[place] = place == state ? 0 : far;
    costs[place + 32] = place + 32 == state ? 0 : far;
    TEAM_BARRIER();
}

KERNEL LAUNCH_BOUNDS(128, 4) viterbi(GLOBAL u8 *RESTRICT target, GLOBAL const SOFT *RESTRICT source, GLOBAL u32 *paths, u64 frames,
    u32 steps, u32 bits, u32 first_polynomial, u32 second_polynomial, u32 is_terminated, u32 frame_steps, u32 first_kept, u32 coded_bits,
    u32 kept, u32 period)
{
    SHARED u32 costs[FRAMES][2 * 64];
    SHARED u32 votes[FRAMES][64];
    u32 team = thread_x() / 32, place = thread_x() % 32;
    u64 frame = (u64)block_x() * FRAMES + team;
    u32 is_there = frame < frames;
    GLOBAL const SOFT *softs = source + (is_there ? frame : 0) * coded_bits;
    GLOBAL u32 *path = paths + (is_there ? frame : 0) * 2 * steps;
    u32 state = 0;
#if CIRCLE
    SHARED u32 bounds[FRAMES][64];
    u32 ends = 64 * (steps % 2), best = 0, best_cost = ~0u, tried = ~0u, tried_bound = 0;
    begin(costs[team], place, 64);
    forward(costs[team], votes[team], softs, path, place, is_there, steps, frame_steps, first_polynomial, second_polynomial, kept, period);
    bounds[team][place] = costs[team][ends + place];
    bounds[team][place + 32] = costs[team][ends + place + 32];
    TEAM_BARRIER();
    for (u32 turn = 0; turn < 64; turn++) {
        // The next state by bound and number. Threads of a frame find the same one.
        u32 next = 64, bound = ~0u;
        for (u32 i = 0; i < 64; i++) {
            u32 own = bounds[team][i];
            u32 is_later = tried == ~0u || own > tried_bound || (own == tried_bound && i > tried);
            if (is_later && own < bound) bound = own, next = i;
        }
        u32 is_open = next < 64 && (bound < best_cost || (bound == best_cost && next < best));
#if WARP >= 32
        // Frames that are done wait for the others of their warp.
        if (ballot((int)(is_open && is_there)) == 0) break;
#endif
        begin(costs[team], place, next & 63u);
        forward(costs[team], votes[team], softs, path, place, is_there, steps, frame_steps, first_polynomial, second_polynomial, kept, period);
        u32 cost = costs[team][ends + (next & 63u)];
        if (is_open && (cost < best_cost || (cost == best_cost && next < best))) best_cost = cost, best = next;
        tried = next;
        tried_bound = bound;
    }
    begin(costs[team], place, best);
    forward(costs[team], votes[team], softs, path, place, is_there, steps, frame_steps, first_polynomial, second_polynomial, kept, period);
    state = best;
#else
    begin(costs[team], place, steps > frame_steps ? 64 : 0);
    forward(costs[team], votes[team], softs, path, place, is_there, steps, frame_steps, first_polynomial, second_polynomial, kept, period);
    if (!is_terminated) {
        u32 least = ~0u;
        for (u32 i = 0; i < 64; i++) {
            u32 cost = costs[team][64 * (steps % 2) + i];
            if (cost < least) least = cost, state = i;
        }
    }
#endif
    // The way back. Threads of a frame read 32 steps at a time, the first of them goes.
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
#if WARP >= 32 && !LOGARITHMS && !CIRCLE
// More than what any state that can be reached has cost when all can.
#define FAR_16 0x04000400u
// No cost exceeds 15 bits after this number of steps.
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

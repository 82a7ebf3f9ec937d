// LDPC codes, decoded by min-sum: a block decodes one word at a time. Checks update the beliefs about their bits, group after
// group. The checks of a group share no bit, and each has its own thread.
//
// `groups` has three words for each group: where its edges begin, how many checks it has, and how many bits each of them has at the most. Edge
// `begin + slot * checks + check` of `bits` is a bit of the word, or NONE. `messages` has the last message of each check to each bit, in the same
// order, for each block. SHARED_BELIEFS: the beliefs about the word's bits are in the block's memory.

#define NONE 0xffffffffu
// The most that is believed of a bit that was received, and what a check says counts for so much.
#define BELIEF_MAX 1e6f
#define TRUST 0.75f
// More than anything that is believed.
#define FAR 3e38f

#if SHARED_BELIEFS
#define BELIEFS LOCAL f32
#else
#define BELIEFS GLOBAL f32
#endif

// Whether an odd number of a check's bits are ones.
DEVICE u32 is_odd(BELIEFS *beliefs, GLOBAL const u32 *bits, u32 checks, u32 degree)
{
    u32 odd = 0;
    ROLLED for (u32 slot = 0; slot < degree; slot++) {
        u32 bit = bits[slot * checks];
        if (bit != NONE) odd ^= beliefs[bit] < 0.0f;
    }
    return odd;
}

// Updates one check: sends each of its bits a message that follows from the other bits.
DEVICE void update(BELIEFS *beliefs, GLOBAL f32 *messages, GLOBAL const u32 *bits, u32 checks, u32 degree, u32 is_first)
{
    f32 others[DEGREE_MAX], least = FAR, second = FAR;
    u32 signs = 0;
    UNROLL for (u32 slot = 0; slot < DEGREE_MAX; slot++) {
        others[slot] = FAR;
        if (slot < degree) {
            u32 bit = bits[slot * checks];
            if (bit != NONE) {
                f32 other = beliefs[bit] - (is_first ? 0.0f : messages[slot * checks]), size = fabsf(other);
                second = fminf(second, fmaxf(least, size));
                least = fminf(least, size);
                signs ^= other < 0.0f;
                others[slot] = other;
            }
        }
    }
    UNROLL for (u32 slot = 0; slot < DEGREE_MAX; slot++) {
        if (slot < degree) {
            u32 bit = bits[slot * checks];
            if (bit != NONE) {
                f32 other = others[slot], size = TRUST * (fabsf(other) == least ? second : least);
                f32 message = (signs ^ (u32)(other < 0.0f)) ? -size : size;
                messages[slot * checks] = message;
                beliefs[bit] = other + message;
            }
        }
    }
}

// Where checks have few bits, registers allow for several blocks.
#define BLOCKS (DEGREE_MAX <= 8 ? 1024 / THREADS : 1)

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS) ldpc_decode(GLOBAL u8 *RESTRICT data, GLOBAL i32 *RESTRICT counts, GLOBAL const f32 *RESTRICT source,
    GLOBAL f32 *all_messages, GLOBAL f32 *all_beliefs, GLOBAL const u32 *RESTRICT bits, GLOBAL const u32 *RESTRICT groups, u64 words,
    u32 group_count, u32 edges, u32 word_bits, u32 sent_from, u32 coded_bits, u32 data_bits, u32 iterations)
{
#if SHARED_BELIEFS
    DYNAMIC_SHARED(f32, beliefs);
#else
    GLOBAL f32 *beliefs = all_beliefs + (u64)block_x() * word_bits;
#endif
    SHARED u32 is_open;
    GLOBAL f32 *messages = all_messages + (u64)block_x() * edges;
    u32 bytes = (data_bits + 7) / 8;
    for (u64 word = block_x(); word < words; word += grid_size_x()) {
        for (u32 i = thread_x(); i < word_bits; i += THREADS) {
            f32 received = 0.0f;
            if (i - sent_from < coded_bits) received = source[word * coded_bits + i - sent_from];
            // NaN counts as 0: no information.
            if (received != received) received = 0.0f;
            beliefs[i] = fminf(fmaxf(received, -BELIEF_MAX), BELIEF_MAX);
        }
        i32 taken = -1;
        for (u32 iteration = 0;; iteration++) {
            if (thread_x() == 0) is_open = 0;
            BARRIER();
            u32 wrong = 0;
            // A bit of which nothing is known makes no check hold.
            for (u32 i = thread_x(); i < word_bits; i += THREADS) wrong |= beliefs[i] == 0.0f;
            for (u32 group = 0; group < group_count && !wrong; group++) {
                u32 begin = groups[3 * group], checks = groups[3 * group + 1], degree = groups[3 * group + 2];
                for (u32 i = thread_x(); i < checks; i += THREADS) wrong |= is_odd(beliefs, bits + begin + i, checks, degree);
            }
            if (wrong) is_open = 1;
            BARRIER();
            u32 goes_on = is_open;
            if (!goes_on) taken = (i32)iteration;
            if (!goes_on || iteration == iterations) break;
            for (u32 group = 0; group < group_count; group++) {
                u32 begin = groups[3 * group], checks = groups[3 * group + 1], degree = groups[3 * group + 2];
                for (u32 i = thread_x(); i < checks; i += THREADS)
                    update(beliefs, messages + begin + i, bits + begin + i, checks, degree, iteration == 0);
                BARRIER();
            }
        }
        if (thread_x() == 0) counts[word] = taken;
        for (u32 i = thread_x(); i < bytes; i += THREADS) {
            u32 byte = 0;
            UNROLL for (u32 j = 0; j < 8; j++)
                if (8 * i + j < data_bits && beliefs[8 * i + j] < 0.0f) byte |= 0x80u >> j;
            data[word * bytes + i] = (u8)byte;
        }
        BARRIER();
    }
}

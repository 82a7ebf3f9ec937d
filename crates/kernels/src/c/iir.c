// Recursive filters of SECTIONS sections of second order, in f64, parallel in time: lines are cut into chunks, a thread for each. The state after a
// chunk depends linearly on the state before it, so three passes suffice: each chunk from rest, of which only the state at its end
// is kept; the states at all chunks' beginnings, by a scan with powers of one matrix; and each chunk again from its initial state.
//
// A sample's numbers (one, or two where it is complex) are lines of their own, `step` apart.

#if defined(PANOPLY_NO_F64)
#error "recursive filters are computed in f64; devices without it do not run them"
#endif

#define STATE (2 * SECTIONS)
#define THREADS 128u
// Samples of each chunk that are brought to the block's memory at a time.
#define TILE 32u
#define ROW (TILE + 1)

typedef struct {
    // Lines of numbers, samples of each, numbers of a sample.
    u64 lines, len;
    u64 step;
    // Samples of a chunk, and chunks of a line.
    u64 chunk, chunks;
} cut;

// The weights of all sections: of samples, and of what came out before.
typedef struct {
    f64 b[3 * SECTIONS], a[2 * SECTIONS];
} filter;

KERNEL LAUNCH_BOUNDS(128, 4) iir_chunks(GLOBAL f32 *target, GLOBAL const f32 *source, GLOBAL f64 *states, FIXED filter weights, FIXED cut all,
    u32 has_states, u32 is_last)
{
    SHARED f32 tile[THREADS * ROW];
    // Of each thread's chunk, where it begins and how many samples it has.
    SHARED u64 starts[THREADS], lens[THREADS];
    u64 own = (u64)block_x() * THREADS + thread_x(), count = all.lines * all.chunks;
    u64 line = own / all.chunks, time = (own - line * all.chunks) * all.chunk;
    starts[thread_x()] = ((line / all.step) * all.len + time) * all.step + line % all.step;
    lens[thread_x()] = own >= count ? 0 : all.len - time < all.chunk ? all.len - time : all.chunk;
    f64 z[STATE];
    UNROLL for (u32 i = 0; i < STATE; i++) z[i] = has_states && own < count ? states[own * STATE + i] : 0.0;
    BARRIER();
    // A group of TILE threads brings the samples of its own chunks, one chunk's after the other, and those of the next tile while it computes.
    u32 first = thread_x() / TILE * TILE, place = thread_x() % TILE;
    f32 ahead[TILE];
    UNROLL for (u32 i = 0; i < TILE; i++) ahead[i] = place < lens[first + i] ? source[starts[first + i] + place * all.step] : 0.0f;
    for (u64 begin = 0; begin < all.chunk; begin += TILE) {
        UNROLL for (u32 i = 0; i < TILE; i++) tile[(first + i) * ROW + place] = ahead[i];
        BARRIER();
        u64 next = begin + TILE + place;
        UNROLL for (u32 i = 0; i < TILE; i++) ahead[i] = next < lens[first + i] ? source[starts[first + i] + next * all.step] : 0.0f;
        // Behind a line's end the samples are zero, and the state after them is not used.
        UNROLL_BY_4 for (u32 i = 0; i < TILE; i++) {
            f64 x = (f64)tile[thread_x() * ROW + i];
            UNROLL for (u32 s = 0; s < SECTIONS; s++) {
                f64 y = weights.b[3 * s] * x + z[2 * s];
                z[2 * s] = weights.b[3 * s + 1] * x - weights.a[2 * s] * y + z[2 * s + 1];
                z[2 * s + 1] = weights.b[3 * s + 2] * x - weights.a[2 * s + 1] * y;
                x = y;
            }
            if (is_last) tile[thread_x() * ROW + i] = (f32)x;
        }
        BARRIER();
        if (is_last) {
            UNROLL_BY_4 for (u32 i = 0; i < TILE; i++)
                if (begin + place < lens[first + i]) target[starts[first + i] + (begin + place) * all.step] = tile[(first + i) * ROW + place];
            BARRIER();
        }
    }
    if (!is_last && own < count)
        UNROLL for (u32 i = 0; i < STATE; i++) states[own * STATE + i] = z[i];
}

// Threads of a scan, and matrices that it needs: one, and one for each time that its threads can be halved.
#define SCAN 32u
#define SCAN_LEVELS 6u
// Chunks whose states a thread of a scan reads at once, and once.
#define KEPT 4u

typedef struct {
    // Chunks of a line, parts of it, and chunks of a part.
    u64 chunks, parts, part;
} parting;

// The matrix times a state.
DEVICE void moved(f64 *to, LOCAL const f64 *matrix, const f64 *from)
{
    UNROLL for (u32 i = 0; i < STATE; i++) {
        f64 sum = 0.0;
        UNROLL for (u32 j = 0; j < STATE; j++) sum += matrix[i * STATE + j] * from[j];
        to[i] = sum;
    }
}

// The states at the ends of a line's chunks, each from rest, become those at their beginnings. A block has a part of a line; a thread has `run`
// chunks of it. `matrices`: what a chunk does to a state; what `run` chunks do, twice as many, and so on.
//
// Of a line of many chunks several blocks have a part each, in two rounds. In the first, which is_sum, the state at the part's end is put into
// `parts`; `parts` is then scanned as a separate line; in the second each part continues from its entry there.
KERNEL LAUNCH_BOUNDS(SCAN, 1) iir_scan(GLOBAL f64 *states, GLOBAL const f64 *RESTRICT matrices, GLOBAL f64 *parts, FIXED parting line, u32 run,
    u32 has_parts, u32 is_sum)
{
    SHARED f64 ends[SCAN * STATE];
    SHARED f64 matrix[SCAN_LEVELS * STATE * STATE];
    u32 own = thread_x();
    u64 part = block_x() % line.parts, left = line.chunks - part * line.part;
    u64 count = left < line.part ? left : line.part, begin = (u64)own * run, end = begin + run < count ? begin + run : count;
    GLOBAL f64 *here = states + (block_x() / line.parts * line.chunks + part * line.part) * STATE;
    GLOBAL f64 *whole = parts + (u64)block_x() * STATE;
    f64 sum[STATE], next[STATE];
    UNROLL for (u32 k = 0; k < (SCAN_LEVELS * STATE * STATE + SCAN - 1) / SCAN; k++) {
        u32 i = k * SCAN + own;
        if (i < SCAN_LEVELS * STATE * STATE) matrix[i] = matrices[i];
    }
    f64 kept[KEPT][STATE];
    UNROLL for (u32 k = 0; k < KEPT; k++) {
        UNROLL for (u32 i = 0; i < STATE; i++) kept[k][i] = begin + k < end ? here[(begin + k) * STATE + i] : 0.0;
    }
    UNROLL for (u32 i = 0; i < STATE; i++) sum[i] = has_parts && !is_sum && own == 0 ? whole[i] : 0.0;
    BARRIER();
    UNROLL for (u32 k = 0; k < KEPT; k++) {
        if (begin + k >= end) continue;
        moved(next, matrix, sum);
        UNROLL for (u32 i = 0; i < STATE; i++) sum[i] = next[i] + kept[k][i];
    }
    for (u64 chunk = begin + KEPT; chunk < end; chunk++) {
        moved(next, matrix, sum);
        UNROLL for (u32 i = 0; i < STATE; i++) sum[i] = next[i] + here[chunk * STATE + i];
    }
    UNROLL for (u32 i = 0; i < STATE; i++) ends[i * SCAN + own] = sum[i];
    BARRIER();
    for (u32 back = 1, level = 1; back < SCAN; back *= 2, level++) {
        f64 before[STATE];
        UNROLL for (u32 i = 0; i < STATE; i++) before[i] = own >= back ? ends[i * SCAN + own - back] : 0.0;
        BARRIER();
        moved(next, matrix + level * STATE * STATE, before);
        UNROLL for (u32 i = 0; i < STATE; i++) {
            sum[i] += next[i];
            ends[i * SCAN + own] = sum[i];
        }
        BARRIER();
    }
    if (is_sum) {
        if (own == SCAN - 1)
            UNROLL for (u32 i = 0; i < STATE; i++) whole[i] = sum[i];
        return;
    }
    UNROLL for (u32 i = 0; i < STATE; i++) {
        f64 first = has_parts ? whole[i] : 0.0;
        sum[i] = own > 0 ? ends[i * SCAN + own - 1] : first;
    }
    UNROLL for (u32 k = 0; k < KEPT; k++) {
        if (begin + k >= end) continue;
        moved(next, matrix, sum);
        UNROLL for (u32 i = 0; i < STATE; i++) {
            here[(begin + k) * STATE + i] = sum[i];
            sum[i] = next[i] + kept[k][i];
        }
    }
    for (u64 chunk = begin + KEPT; chunk < end; chunk++) {
        moved(next, matrix, sum);
        UNROLL for (u32 i = 0; i < STATE; i++) {
            f64 rest = here[chunk * STATE + i];
            here[chunk * STATE + i] = sum[i];
            sum[i] = next[i] + rest;
        }
    }
}

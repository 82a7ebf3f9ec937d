// Recursive filters of SECTIONS sections of second order, in f64, parallel in time: lines are cut into chunks, a thread for each. What a chunk
// leaves behind depends linearly on what the one before it left, so three passes do: each chunk from rest, of which only the state at its end
// is kept; the states at all chunks' beginnings, by a scan with powers of one matrix; and each chunk from its own beginning.
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

KERNEL LAUNCH_BOUNDS(128, 4) iir_chunks(GLOBAL f32 *target, GLOBAL const f32 *source, GLOBAL const f64 *RESTRICT weights, GLOBAL f64 *states,
    FIXED cut all, u32 has_states, u32 is_last)
{
    SHARED f32 tile[THREADS * ROW];
    u64 first = (u64)block_x() * THREADS, own = first + thread_x(), count = all.lines * all.chunks;
    f64 b[3 * SECTIONS], a[2 * SECTIONS], z[STATE];
    UNROLL for (u32 i = 0; i < SECTIONS; i++) {
        UNROLL for (u32 j = 0; j < 3; j++) b[3 * i + j] = weights[5 * i + j];
        UNROLL for (u32 j = 0; j < 2; j++) a[2 * i + j] = weights[5 * i + 3 + j];
    }
    UNROLL for (u32 i = 0; i < STATE; i++) z[i] = has_states && own < count ? states[own * STATE + i] : 0.0;
    u64 chunk = own % all.chunks, mine = 0;
    if (own < count) mine = all.len - chunk * all.chunk < all.chunk ? all.len - chunk * all.chunk : all.chunk;
    u32 warp = thread_x() / TILE, place = thread_x() % TILE;
    for (u64 begin = 0; begin < all.chunk; begin += TILE) {
        for (u32 row = warp; row < THREADS; row += THREADS / TILE) {
            u64 number = first + row, line = number / all.chunks, time = (number - line * all.chunks) * all.chunk + begin + place;
            f32 x = 0.0f;
            if (number < count && begin + place < all.chunk && time < all.len)
                x = source[((line / all.step) * all.len + time) * all.step + line % all.step];
            tile[row * ROW + place] = x;
        }
        BARRIER();
        for (u32 i = 0; i < TILE && begin + i < mine; i++) {
            f64 x = (f64)tile[thread_x() * ROW + i];
            UNROLL for (u32 s = 0; s < SECTIONS; s++) {
                f64 y = b[3 * s] * x + z[2 * s];
                z[2 * s] = b[3 * s + 1] * x - a[2 * s] * y + z[2 * s + 1];
                z[2 * s + 1] = b[3 * s + 2] * x - a[2 * s + 1] * y;
                x = y;
            }
            tile[thread_x() * ROW + i] = (f32)x;
        }
        BARRIER();
        if (is_last) {
            for (u32 row = warp; row < THREADS; row += THREADS / TILE) {
                u64 number = first + row, line = number / all.chunks, time = (number - line * all.chunks) * all.chunk + begin + place;
                if (number < count && begin + place < all.chunk && time < all.len)
                    target[((line / all.step) * all.len + time) * all.step + line % all.step] = tile[row * ROW + place];
            }
            BARRIER();
        }
    }
    if (!is_last && own < count)
        UNROLL for (u32 i = 0; i < STATE; i++) states[own * STATE + i] = z[i];
}

// What a state becomes.
DEVICE void moved(f64 *to, GLOBAL const f64 *matrix, const f64 *from)
{
    UNROLL for (u32 i = 0; i < STATE; i++) {
        f64 sum = 0.0;
        UNROLL for (u32 j = 0; j < STATE; j++) sum += matrix[i * STATE + j] * from[j];
        to[i] = sum;
    }
}

// The states at the ends of a line's chunks, each from rest, become those at their beginnings. A block is a line; a thread has `run` chunks.
// `matrices`: what a chunk does to a state; what `run` chunks do, twice as many, and so on.
KERNEL LAUNCH_UP_TO(256) iir_scan(GLOBAL f64 *states, GLOBAL const f64 *RESTRICT matrices, u64 chunks, u32 run)
{
    SHARED f64 ends[256 * STATE];
    GLOBAL f64 *line = states + (u64)block_x() * chunks * STATE;
    u64 begin = (u64)thread_x() * run, end = begin + run < chunks ? begin + run : chunks;
    f64 sum[STATE], next[STATE];
    UNROLL for (u32 i = 0; i < STATE; i++) sum[i] = 0.0;
    for (u64 chunk = begin; chunk < end; chunk++) {
        moved(next, matrices, sum);
        UNROLL for (u32 i = 0; i < STATE; i++) sum[i] = next[i] + line[chunk * STATE + i];
    }
    UNROLL for (u32 i = 0; i < STATE; i++) ends[thread_x() * STATE + i] = sum[i];
    BARRIER();
    u32 level = 1;
    for (u32 back = 1; back < block_size_x(); back *= 2, level++) {
        f64 before[STATE];
        UNROLL for (u32 i = 0; i < STATE; i++) before[i] = thread_x() >= back ? ends[(thread_x() - back) * STATE + i] : 0.0;
        if (thread_x() >= back) {
            moved(next, matrices + level * STATE * STATE, before);
            UNROLL for (u32 i = 0; i < STATE; i++) sum[i] += next[i];
        }
        BARRIER();
        UNROLL for (u32 i = 0; i < STATE; i++) ends[thread_x() * STATE + i] = sum[i];
        BARRIER();
    }
    UNROLL for (u32 i = 0; i < STATE; i++) sum[i] = thread_x() > 0 ? ends[(thread_x() - 1) * STATE + i] : 0.0;
    for (u64 chunk = begin; chunk < end; chunk++) {
        moved(next, matrices, sum);
        UNROLL for (u32 i = 0; i < STATE; i++) {
            f64 own = line[chunk * STATE + i];
            line[chunk * STATE + i] = sum[i];
            sum[i] = next[i] + own;
        }
    }
}

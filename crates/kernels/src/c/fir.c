// Filters of finite response and convolutions along lines: y[t] = Σ taps[k] x[t + first - k], where x is zero outside its line. COMPLEX: samples are
// complex; COMPLEX_TAPS: taps as well.
//
// A block has a tile of outputs, of which each thread makes OUTPUTS neighbours: samples and taps lie in the block's memory, and every
// sample that a thread reads is a term of all its outputs. Taps go by chunks, so there may be any number of them.

#if COMPLEX
typedef complex64 sample;
#else
typedef f32 sample;
#endif
#if COMPLEX_TAPS
typedef complex64 tap;
#else
typedef f32 tap;
#endif

#define THREADS 256u
#define OUTPUTS 8u
#define TILE (THREADS * OUTPUTS)
#define CHUNK 512u
// Four words are left out behind every 32, so that threads whose outputs are OUTPUTS apart read from different banks.
#define PADDED(i) ((i) + ((i) >> 5) * 4)
#define ROOM (PADDED(TILE + CHUNK + OUTPUTS) / 4 + 1)

DEVICE f32 real_of(sample x)
{
#if COMPLEX
    return x.re;
#else
    return x;
#endif
}

// A tap, turned round and conjugated where it is asked for.
DEVICE complex64 tap_at(GLOBAL const tap *taps, u32 count, u32 number, u32 is_turned)
{
    tap one = taps[is_turned ? count - 1 - number : number];
#if COMPLEX_TAPS
    complex64 result = {one.re, is_turned ? -one.im : one.im};
#else
    complex64 result = {one, 0.0f};
#endif
    return result;
}

DEVICE void load_eight(f32 *to, LOCAL const f32x4 *from, u32 place)
{
    f32x4 low = from[PADDED(place) / 4], high = from[PADDED(place + 4) / 4];
    to[0] = low.x;
    to[1] = low.y;
    to[2] = low.z;
    to[3] = low.w;
    to[4] = high.x;
    to[5] = high.y;
    to[6] = high.z;
    to[7] = high.w;
}

DEVICE void add_products(f32 *sums, const f32 *weights, const f32 *window)
{
    UNROLL for (u32 j = 0; j < 8; j++)
        UNROLL for (u32 i = 0; i < OUTPUTS; i++) sums[i] += weights[j] * window[i + j];
}

DEVICE void subtract_products(f32 *sums, const f32 *weights, const f32 *window)
{
    UNROLL for (u32 j = 0; j < 8; j++)
        UNROLL for (u32 i = 0; i < OUTPUTS; i++) sums[i] -= weights[j] * window[i + j];
}

KERNEL LAUNCH_BOUNDS(256, 2) fir_tiles(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT source, GLOBAL const tap *RESTRICT taps,
    u64 lines, u64 len, u64 out_len, u32 tap_count, u64 first, u32 is_turned)
{
    SHARED f32x4 real[ROOM];
    SHARED f32x4 weights[CHUNK / 4];
    LOCAL f32 *reals = (LOCAL f32 *)real, *weight_reals = (LOCAL f32 *)weights;
#if COMPLEX
    SHARED f32x4 imaginary[ROOM];
    LOCAL f32 *imaginaries = (LOCAL f32 *)imaginary;
#endif
#if COMPLEX_TAPS
    SHARED f32x4 more_weights[CHUNK / 4];
    LOCAL f32 *weight_imaginaries = (LOCAL f32 *)more_weights;
#endif
    u64 tiles = (out_len + TILE - 1) / TILE, all = lines * tiles;
    u32 own = thread_x() * OUTPUTS;
    for (u64 tile = block_x(); tile < all; tile += grid_size_x()) {
        u64 line = tile / tiles, begin = (tile - line * tiles) * TILE;
        f32 sums[OUTPUTS];
        UNROLL for (u32 i = 0; i < OUTPUTS; i++) sums[i] = 0.0f;
#if COMPLEX
        f32 other_sums[OUTPUTS];
        UNROLL for (u32 i = 0; i < OUTPUTS; i++) other_sums[i] = 0.0f;
#endif
        for (u32 from = 0; from < tap_count; from += CHUNK) {
            u32 count = tap_count - from < CHUNK ? tap_count - from : CHUNK;
            // The sample that the chunk's last tap meets in the tile's first output.
            i64 start = (i64)(begin + first) - (i64)(from + count - 1);
            for (u32 i = thread_x(); i < TILE + count - 1; i += THREADS) {
                i64 place = start + i;
                f32 re = 0.0f, im = 0.0f;
                if (place >= 0 && place < (i64)len) {
                    sample x = source[line * len + (u64)place];
                    re = real_of(x);
#if COMPLEX
                    im = x.im;
#endif
                }
                reals[PADDED(i)] = re;
#if COMPLEX
                imaginaries[PADDED(i)] = im;
#endif
            }
            for (u32 i = thread_x(); i < count; i += THREADS) {
                complex64 one = tap_at(taps, tap_count, from + count - 1 - i, is_turned);
                weight_reals[i] = one.re;
#if COMPLEX_TAPS
                weight_imaginaries[i] = one.im;
#endif
            }
            BARRIER();
            u32 whole = count & ~7u;
            f32 window[16], w[8];
#if COMPLEX
            f32 other[16];
#endif
#if COMPLEX_TAPS
            f32 v[8];
#endif
            if (whole > 0) {
                load_eight(window, real, own);
#if COMPLEX
                load_eight(other, imaginary, own);
#endif
            }
            ROLLED for (u32 j = 0; j < whole; j += 8) {
                UNROLL for (u32 i = 0; i < 8; i++) w[i] = weight_reals[j + i];
                load_eight(window + 8, real, own + j + 8);
                add_products(sums, w, window);
#if COMPLEX
                load_eight(other + 8, imaginary, own + j + 8);
                add_products(other_sums, w, other);
#endif
#if COMPLEX_TAPS
                UNROLL for (u32 i = 0; i < 8; i++) v[i] = weight_imaginaries[j + i];
                subtract_products(sums, v, other);
                add_products(other_sums, v, window);
#endif
                UNROLL for (u32 i = 0; i < 8; i++) window[i] = window[i + 8];
#if COMPLEX
                UNROLL for (u32 i = 0; i < 8; i++) other[i] = other[i + 8];
#endif
            }
            ROLLED for (u32 j = whole; j < count; j++) {
                f32 weight = weight_reals[j];
                UNROLL for (u32 i = 0; i < OUTPUTS; i++) {
                    sums[i] += weight * reals[PADDED(own + i + j)];
#if COMPLEX
                    other_sums[i] += weight * imaginaries[PADDED(own + i + j)];
#endif
                }
#if COMPLEX_TAPS
                f32 turned = weight_imaginaries[j];
                UNROLL for (u32 i = 0; i < OUTPUTS; i++) {
                    sums[i] -= turned * imaginaries[PADDED(own + i + j)];
                    other_sums[i] += turned * reals[PADDED(own + i + j)];
                }
#endif
            }
            BARRIER();
        }
        UNROLL for (u32 i = 0; i < OUTPUTS; i++) {
            reals[PADDED(own + i)] = sums[i];
#if COMPLEX
            imaginaries[PADDED(own + i)] = other_sums[i];
#endif
        }
        BARRIER();
        for (u32 i = thread_x(); i < TILE && begin + i < out_len; i += THREADS) {
#if COMPLEX
            sample y = {reals[PADDED(i)], imaginaries[PADDED(i)]};
#else
            sample y = reals[PADDED(i)];
#endif
            target[line * out_len + begin + i] = y;
        }
        BARRIER();
    }
}

// The same where each sample stands for `up` and one of `down` outputs is kept. One thread is one output.
KERNEL LAUNCH_BOUNDS(256, 2) fir_rates(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT source, GLOBAL const tap *RESTRICT taps,
    u64 lines, u64 len, u64 out_len, u32 tap_count, u32 up, u32 down)
{
    u64 all = lines * out_len, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < all; i += step) {
        u64 line = i / out_len, time = (i - line * out_len) * down;
        GLOBAL const sample *from = source + line * len;
        u64 place = time / up;
        f32 re = 0.0f, im = 0.0f;
        for (u64 number = time % up; number < tap_count; number += up, place--) {
            if (place < len) {
                sample x = from[place];
                complex64 weight = tap_at(taps, tap_count, (u32)number, 0);
#if COMPLEX
                re += weight.re * x.re - weight.im * x.im;
                im += weight.re * x.im + weight.im * x.re;
#else
                re += weight.re * x;
#endif
            }
            if (place == 0) break;
        }
#if COMPLEX
        sample y = {re, im};
#else
        sample y = re;
#endif
        target[i] = y;
    }
}

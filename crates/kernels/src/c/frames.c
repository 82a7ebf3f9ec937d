// Overlapping frames of signals: cut and weighted before a transform, added up after one, and the power of spectra. COMPLEX: samples are complex.

#if COMPLEX
typedef complex64 sample;
#else
typedef f32 sample;
#endif

// Lines of `len` samples with `silence` zeros before them and behind them, in each of which `frames` frames of `window` samples begin `hop` apart. A frame
// has zeros behind its samples, up to `transform`.
typedef struct {
    u64 lines, len, frames;
    u32 window, hop, transform, silence;
} framing;

DEVICE u64 quotient(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u64)((u32)a / (u32)b) : a / b; }

DEVICE sample scaled(sample x, f32 by)
{
#if COMPLEX
    x.re *= by;
    x.im *= by;
    return x;
#else
    return x * by;
#endif
}

DEVICE sample sum_of(sample x, sample y)
{
#if COMPLEX
    x.re += y.re;
    x.im += y.im;
    return x;
#else
    return x + y;
#endif
}

DEVICE sample none(void)
{
#if COMPLEX
    sample zero = {0.0f, 0.0f};
    return zero;
#else
    return 0.0f;
#endif
}

// A sample of a frame, which is counted over all lines.
DEVICE sample sample_at(GLOBAL const sample *source, const framing *all, u64 frame, u32 within)
{
    u64 line = quotient(frame, all->frames), place = (frame - line * all->frames) * all->hop + within;
    if (place < all->silence || place - all->silence >= all->len) return none();
    return source[line * all->len + place - all->silence];
}

// The mean of each frame's samples: a warp for each.
KERNEL LAUNCH_BOUNDS(256, 1) frame_means(GLOBAL sample *RESTRICT means, GLOBAL const sample *RESTRICT source, FIXED framing all)
{
    u64 count = all.lines * all.frames, step = (u64)grid_size_x() * (block_size_x() / WARP);
    for (u64 frame = (u64)block_x() * (block_size_x() / WARP) + thread_x() / WARP; frame < count; frame += step) {
        sample sum = none();
        for (u32 i = lane(); i < all.window; i += WARP) sum = sum_of(sum, sample_at(source, &all, frame, i));
        UNROLL for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
            sample other;
#if COMPLEX
            other.re = shuffle_xor_f32(sum.re, mask);
            other.im = shuffle_xor_f32(sum.im, mask);
#else
            other = shuffle_xor_f32(sum, mask);
#endif
            sum = sum_of(sum, other);
        }
        if (lane() == 0) means[frame] = scaled(sum, 1.0f / (f32)all.window);
    }
}

// The samples of every frame, without the frame's mean where there are means, times the window.
KERNEL LAUNCH_BOUNDS(256, 4) frame_samples(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT source, GLOBAL const f32 *RESTRICT window,
    GLOBAL const sample *RESTRICT means, FIXED framing all, u32 has_means)
{
    u64 count = all.lines * all.frames * all.transform, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 frame = quotient(i, all.transform);
        u32 within = (u32)(i - frame * all.transform);
        sample value = none();
        if (within < all.window) {
            value = sample_at(source, &all, frame, within);
            if (has_means) value = sum_of(value, scaled(means[frame], -1.0f));
            value = scaled(value, window[within]);
        }
        target[i] = value;
    }
}

// Signals from the samples of their frames: weighted again, added up, and divided by the sum of the squared weights.
KERNEL LAUNCH_BOUNDS(256, 4) frame_overlaps(GLOBAL sample *RESTRICT target, GLOBAL const sample *RESTRICT pieces, GLOBAL const f32 *RESTRICT window,
    FIXED framing all)
{
    u64 count = all.lines * all.len, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = quotient(i, all.len), place = i - line * all.len + all.silence;
        u64 first = place >= all.window ? quotient(place - all.window, all.hop) + 1 : 0, end = quotient(place, all.hop) + 1;
        if (end > all.frames) end = all.frames;
        sample sum = none();
        f32 weight = 0.0f;
        for (u64 frame = first; frame < end; frame++) {
            u32 within = (u32)(place - frame * all.hop);
            f32 own = window[within];
            sum = sum_of(sum, scaled(pieces[(line * all.frames + frame) * all.transform + within], own));
            weight += own * own;
        }
        target[i] = weight < 1e-10f ? none() : scaled(sum, 1.0f / weight);
    }
}

#if !COMPLEX
// The squared absolute values.
KERNEL LAUNCH_BOUNDS(256, 4) frame_powers(GLOBAL f32 *RESTRICT target, GLOBAL const complex64 *RESTRICT source, u64 count)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step)
        target[i] = source[i].re * source[i].re + source[i].im * source[i].im;
}

// The divisor of mean powers: the sum of the squared weights, or the square of their sum. One block of 256.
KERNEL LAUNCH_BOUNDS(256, 1) window_power(GLOBAL f32 *RESTRICT target, GLOBAL const f32 *RESTRICT window, u32 len, u32 of_squares)
{
    SHARED f32 sums[256];
    f32 sum = 0.0f;
    for (u32 i = thread_x(); i < len; i += 256) sum += of_squares ? window[i] * window[i] : window[i];
    sums[thread_x()] = sum;
    BARRIER();
    for (u32 half = 128; half > 0; half /= 2) {
        if (thread_x() < half) sums[thread_x()] += sums[thread_x() + half];
        BARRIER();
    }
    if (thread_x() == 0) target[0] = of_squares ? sums[0] : sums[0] * sums[0];
}

// Divides mean powers, and doubles those of bins whose mirror is left out, with the length of the transform where there are such.
KERNEL LAUNCH_BOUNDS(256, 4) weigh_powers(GLOBAL f32 *RESTRICT powers, GLOBAL const f32 *RESTRICT divisor, u64 count, u32 bins, u32 mirrored)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u32 bin = (u32)(i - quotient(i, bins) * bins);
        powers[i] = powers[i] / divisor[0] * (mirrored && bin != 0 && 2 * bin != mirrored ? 2.0f : 1.0f);
    }
}
#endif

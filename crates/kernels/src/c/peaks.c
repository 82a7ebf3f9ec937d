// Peaks of lines and planes. The kernels compare keys of 32 bits, in the order of the elements' strengths; NaN has the key 0, which is below all others.
// COMPLEX: elements are complex, and their strength is their absolute value.

#if COMPLEX
typedef complex64 element;
#else
typedef f32 element;
#endif

DEVICE f32 strength_of(element x)
{
#if COMPLEX
    // Rounded once.
    return (f32)sqrt((f64)x.re * (f64)x.re + (f64)x.im * (f64)x.im);
#else
    return x;
#endif
}

DEVICE u32 key_of(f32 strength)
{
    if (strength != strength) return 0;
    // Both zeros are the same.
    u32 bits = f32_bits(strength + 0.0f);
    return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

#if ENDS
KERNEL LAUNCH_BOUNDS(256, 4) peak_keys(GLOBAL u32 *RESTRICT keys, GLOBAL const element *RESTRICT source, u64 count)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) keys[i] = key_of(strength_of(source[i]));
}

// `wanted` peaks of each of `lines`, of which `found` were chosen. An entry with the key 0 is not a peak.
KERNEL LAUNCH_BOUNDS(256, 4) write_peaks(GLOBAL f32 *RESTRICT strengths, GLOBAL i32 *RESTRICT places, GLOBAL const element *RESTRICT source,
    GLOBAL const u32 *RESTRICT keys, GLOBAL const u32 *RESTRICT indices, u64 lines, u64 len, u32 found, u32 wanted)
{
    u64 count = lines * wanted, step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < count; i += step) {
        u64 line = i / wanted, at = line * found + i % wanted;
        u32 is_peak = i % wanted < found && keys[at] != 0;
        strengths[i] = is_peak ? strength_of(source[line * len + indices[at]]) : 0.0f;
        places[i] = is_peak ? (i32)indices[at] : -1;
    }
}

#else
// Windows along lines of `len` elements, `stride` apart.
typedef struct {
    u64 count, len, stride;
    // How far a window reaches, and how much of it a sum of the largest has: a power of two that is no more, and more than half of it.
    u64 distance, span;
} windows;

// The largest of each element and the one `by` before it, or behind it.
KERNEL LAUNCH_BOUNDS(256, 4) widen_windows(GLOBAL u32 *RESTRICT target, GLOBAL const u32 *RESTRICT source, FIXED windows all, u64 by, u32 is_before)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < all.count; i += step) {
        u64 place = i / all.stride % all.len;
        u32 key = source[i];
        if (is_before && place >= by) key = larger(key, source[i - by * all.stride]);
        if (!is_before && place + by < all.len) key = larger(key, source[i + by * all.stride]);
        target[i] = key;
    }
}

// The largest before an element, or behind it, as far as the window reaches. `largest` has those of the `span` elements that end, or begin, with each.
DEVICE u32 largest_of(GLOBAL const u32 *largest, const windows *all, u64 i, u32 is_before)
{
    u64 place = i / all->stride % all->len, rest = all->distance - all->span + 1;
    u32 key = 0;
    if (is_before) {
        if (place >= 1) key = largest[i - all->stride];
        if (place >= rest) key = larger(key, largest[i - rest * all->stride]);
    } else {
        if (place + 1 < all->len) key = largest[i + all->stride];
        if (place + rest < all->len) key = larger(key, largest[i + rest * all->stride]);
    }
    return key;
}

// The largest of each element's window to both sides.
KERNEL LAUNCH_BOUNDS(256, 4) join_windows(GLOBAL u32 *RESTRICT target, GLOBAL const u32 *RESTRICT keys, GLOBAL const u32 *RESTRICT before,
    GLOBAL const u32 *RESTRICT behind, FIXED windows all)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < all.count; i += step)
        target[i] = larger(keys[i], larger(largest_of(before, &all, i, 1), largest_of(behind, &all, i, 0)));
}

// Leaves the keys that are at least `least`, larger than any before them and no smaller than any behind: of rows, and where `is_plane` of the rows above
// and below, whose windows are those of joined rows.
KERNEL LAUNCH_BOUNDS(256, 4) mark_peaks(GLOBAL u32 *RESTRICT target, GLOBAL const u32 *RESTRICT keys, GLOBAL const u32 *RESTRICT before,
    GLOBAL const u32 *RESTRICT behind, GLOBAL const u32 *RESTRICT above, GLOBAL const u32 *RESTRICT below, FIXED windows rows, FIXED windows columns,
    u32 is_plane, u32 least)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < rows.count; i += step) {
        u32 key = keys[i], is_peak = key != 0 && key >= least;
        if (is_peak) is_peak = largest_of(before, &rows, i, 1) < key && largest_of(behind, &rows, i, 0) <= key;
        if (is_peak && is_plane) is_peak = largest_of(above, &columns, i, 1) < key && largest_of(below, &columns, i, 0) <= key;
        target[i] = is_peak ? key : 0;
    }
}
#endif

// The maximum or the average of windows of images.
//
// T      the element type
// INDEX  u32 where every output's number fits, else u64
// MAX    1: the largest number, NaN where there is one; 0: the average
// LANES  1: a thread has a window; WARP: a warp has one, for large windows
// LAST   images have their channels last, in whole groups of eight, which a thread has: 16-bit numbers

typedef T_ACC number;

typedef struct {
    i64 in_height, in_width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, padding_y, padding_x;
    // Whether an average divides by the whole window, or by what it covers of the image.
    i64 counts_padding;
} windows;

DEVICE number joined(number a, number b)
{
#if MAX
    return (b > a || b != b) ? b : a;
#else
    return a + b;
#endif
}

#if LANES > 1
DEVICE number from_lane(number x, u32 mask)
{
#if defined(T_IS_f64)
    return shuffle_xor_f64(x, mask);
#else
    return shuffle_xor_f32(x, mask);
#endif
}
#endif

#if defined(LAST)

typedef struct ALIGNED(16) {
    T v[8];
} eight;

KERNEL LAUNCH_BOUNDS(256, 4) pool_last(GLOBAL const eight *RESTRICT input, GLOBAL eight *RESTRICT output, u64 outputs, u32 groups, windows w)
{
    u64 numbered = (u64)block_x() * 256 + thread_x();
    if (numbered >= outputs) return;
    INDEX n = (INDEX)numbered, pixel = n / (INDEX)groups, group = n - pixel * (INDEX)groups;
    INDEX line = pixel / (INDEX)w.out_width, x = pixel - line * (INDEX)w.out_width;
    INDEX image = line / (INDEX)w.out_height, y = line - image * (INDEX)w.out_height;
    i64 top = (i64)y * w.stride_y - w.padding_y, left = (i64)x * w.stride_x - w.padding_x;
    i64 bottom = top + w.kernel_y < w.in_height ? top + w.kernel_y : w.in_height;
    i64 right = left + w.kernel_x < w.in_width ? left + w.kernel_x : w.in_width;
    top = top > 0 ? top : 0;
    left = left > 0 ? left : 0;
    input += (i64)image * w.in_height * w.in_width * groups + group;
    number all[8];
    UNROLL for (u32 c = 0; c < 8; c++) all[c] = MAX ? (number)(-1.0 / 0.0) : (number)0;
    for (i64 r = top; r < bottom; r++) {
        for (i64 c = left; c < right; c++) {
            eight these = input[(r * w.in_width + c) * groups];
            UNROLL for (u32 i = 0; i < 8; i++) all[i] = joined(all[i], T_LOAD(these.v[i]));
        }
    }
    eight result;
    UNROLL for (u32 c = 0; c < 8; c++) {
#if !MAX
        all[c] = all[c] / (number)(w.counts_padding ? w.kernel_y * w.kernel_x : (bottom - top) * (right - left));
#endif
        result.v[c] = T_STORE(all[c]);
    }
    output[n] = result;
}

#else

KERNEL LAUNCH_BOUNDS(256, 4) pool(GLOBAL const T *RESTRICT input, GLOBAL T *RESTRICT output, u64 outputs, windows w)
{
    u64 numbered = ((u64)block_x() * 256 + thread_x()) / LANES;
    // A warp has one window, and so leaves as one.
    if (numbered >= outputs) return;
    INDEX n = (INDEX)numbered, line = n / (INDEX)w.out_width, x = n - line * (INDEX)w.out_width;
    INDEX plane = line / (INDEX)w.out_height, y = line - plane * (INDEX)w.out_height;
    i64 top = (i64)y * w.stride_y - w.padding_y, left = (i64)x * w.stride_x - w.padding_x;
    i64 bottom = top + w.kernel_y < w.in_height ? top + w.kernel_y : w.in_height;
    i64 right = left + w.kernel_x < w.in_width ? left + w.kernel_x : w.in_width;
    top = top > 0 ? top : 0;
    left = left > 0 ? left : 0;
    input += (i64)plane * w.in_height * w.in_width;
#if MAX
    number all = (number)(-1.0 / 0.0);
#else
    number all = (number)0;
#endif
#if LANES > 1
    u32 wide = (u32)(right - left);
    u64 covered = (u64)(bottom - top) * wide;
    // A lane's next element is a warp further on, which may be on a later row.
    u32 rows = WARP / wide, columns = WARP % wide, row = lane() / wide, column = lane() % wide;
    for (u64 i = lane(); i < covered; i += WARP) {
        all = joined(all, T_LOAD(input[(top + row) * w.in_width + left + column]));
        row += rows;
        column += columns;
        if (column >= wide) {
            column -= wide;
            row++;
        }
    }
    UNROLL for (u32 mask = WARP / 2; mask > 0; mask /= 2) all = joined(all, from_lane(all, mask));
    if (lane() > 0) return;
#else
    for (i64 r = top; r < bottom; r++) {
        for (i64 c = left; c < right; c++) all = joined(all, T_LOAD(input[r * w.in_width + c]));
    }
#endif
#if !MAX
    all = all / (number)(w.counts_padding ? w.kernel_y * w.kernel_x : (bottom - top) * (right - left));
#endif
    output[n] = T_STORE(all);
}

#endif

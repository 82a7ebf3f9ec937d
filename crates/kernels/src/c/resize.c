// Images of another height and width: a row has width × channels elements, planes of rows follow one another.
//
// T        the type of an element
// MODE_…   NEAREST, BILINEAR or AREA, as 1
// INDEX    u32 where every number fits, else u64
//
// Threads go along the elements of a row, so that their loads are neighbours. Each makes ROWS rows of its column, one
// below the other: the column's place and weights are found once, and the loads of all rows are under way together.

// A byte is rounded to the nearest, ties to even.
DEVICE T stored(f32 x)
{
#if defined(T_IS_u8)
    return (u8)rintf(x);
#else
    return T_STORE(x);
#endif
}

typedef struct {
    INDEX first, second;
    f32 weight;
} pair;

// The two pixels around an output pixel, and the weight of the second: ((2 i + 1) · input - output) / (2 · output).
DEVICE pair pixels_around(INDEX i, INDEX input, INDEX output)
{
    INDEX numerator = (2 * i + 1) * input, whole = 2 * output;
    INDEX position = numerator > output ? numerator - output : 0, first = position / whole;
    pair p;
    p.weight = (f32)(position - first * whole) / (f32)whole;
    p.first = first < input ? first : input - 1;
    p.second = p.first + 1 < input ? p.first + 1 : p.first;
    return p;
}

// The mean of a box of pixels, each `channels` elements from the next.
DEVICE T box_mean(GLOBAL const T *plane, u64 row_step, INDEX top, INDEX bottom, INDEX left, INDEX right, u32 channels)
{
    u64 count = (u64)(bottom - top) * (right - left);
#if defined(T_IS_u8)
    u64 sum = 0;
#else
    f32 sum = 0;
#endif
    for (INDEX y = top; y < bottom; y++) {
        GLOBAL const T *row = plane + y * row_step;
#if defined(T_IS_u8)
        u64 part = 0;
        for (INDEX x = left; x < right; x++) part += row[(u64)x * channels];
#else
        f32 part = 0;
        for (INDEX x = left; x < right; x++) part += T_LOAD(row[(u64)x * channels]);
#endif
        sum += part;
    }
#if defined(T_IS_u8)
    u64 mean = sum / count, twice = (sum - mean * count) * 2;
    return (u8)(mean + (twice > count || (twice == count && (mean & 1u))));
#else
    return T_STORE(sum / (f32)count);
#endif
}

// `groups` rows of threads for each plane; threads = planes × groups × width × channels.
KERNEL LAUNCH_BOUNDS(256, 4)
resize(GLOBAL const T *RESTRICT input, GLOBAL T *RESTRICT output, u64 threads, u32 groups, u32 channels, u32 in_height,
       u32 in_width, u32 out_height, u32 out_width)
{
    u64 number = (u64)block_x() * block_size_x() + thread_x();
    if (number >= threads) return;
    u32 out_row = out_width * channels;
    u64 in_row = (u64)in_width * channels;
    INDEX row_number = (INDEX)number / out_row;
    u32 element = (u32)((INDEX)number - row_number * out_row), x = element, channel = 0;
    if (channels > 1) {
        x = element / channels;
        channel = element - x * channels;
    }
    INDEX plane = row_number / groups;
    u32 group = (u32)(row_number - plane * groups), top = group * ROWS;
    GLOBAL const T *from = input + plane * (in_row * in_height) + channel;
    GLOBAL T *to = output + (u64)plane * out_height * out_row + element;

#if defined(MODE_BILINEAR)
    pair column = pixels_around(x, in_width, out_width);
    u64 left = (u64)column.first * channels, right = (u64)column.second * channels;
    f32 values[ROWS][4], weights[ROWS];
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        u32 y = top + r < out_height ? top + r : out_height - 1;
        pair row = pixels_around(y, in_height, out_height);
        GLOBAL const T *above = from + row.first * in_row, *below = from + row.second * in_row;
        values[r][0] = (f32)T_LOAD(above[left]);
        values[r][1] = (f32)T_LOAD(above[right]);
        values[r][2] = (f32)T_LOAD(below[left]);
        values[r][3] = (f32)T_LOAD(below[right]);
        weights[r] = row.weight;
    }
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        if (top + r >= out_height) break;
        f32 first = (1.0f - column.weight) * values[r][0] + column.weight * values[r][1];
        f32 second = (1.0f - column.weight) * values[r][2] + column.weight * values[r][3];
        to[(u64)(top + r) * out_row] = stored((1.0f - weights[r]) * first + weights[r] * second);
    }
#elif defined(MODE_NEAREST)
    u64 column = (u64)((INDEX)x * in_width / out_width) * channels;
    T values[ROWS];
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        u32 y = top + r < out_height ? top + r : out_height - 1;
        values[r] = from[(INDEX)y * in_height / out_height * in_row + column];
    }
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        if (top + r < out_height) to[(u64)(top + r) * out_row] = values[r];
    }
#else
    INDEX left = (INDEX)x * in_width / out_width, right = ((INDEX)(x + 1) * in_width + out_width - 1) / out_width;
    for (u32 y = top; y < top + ROWS && y < out_height; y++) {
        INDEX first = (INDEX)y * in_height / out_height, end = ((INDEX)(y + 1) * in_height + out_height - 1) / out_height;
        to[(u64)y * out_row] = box_mean(from, in_row, first, end, left, right, channels);
    }
#endif
}

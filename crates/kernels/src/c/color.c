// Conversion of images between colour formats: one thread for each pixel, or for each 2 × 2 pixels if chroma has half the
// resolution.
//
// T      u8 or f32
// SIDE   2 where a side has half the resolution in chroma, else 1
// INDEX  u32 where every pixel's number fits, else u64

#define RGB 0
#define BGR 1
#define GRAY 2
#define I420 3
#define NV12 4
#define IS_YUV(format) ((format) >= I420)
// The number of elements of an image with this number of pixels.
#define ELEMENTS(format, pixels) (IS_YUV(format) ? (pixels) / 2 * 3 : (format) == GRAY ? (pixels) : (pixels) * 3)

// The weights of luma; the code of black, and the spans of luma and chroma.
typedef struct {
    f32 kr, kg, kb, black, luma_span, chroma_span;
} coding;

typedef struct {
    f32 r, g, b;
} color;

typedef struct {
    f32 u, v;
} chroma;

DEVICE T rounded(f32 x)
{
#if defined(T_IS_u8)
    return (u8)rintf(fminf(fmaxf(x, 0.0f), 255.0f));
#else
    return x;
#endif
}

// Where the chroma of a square lies in an image of `width` × `pixels / width`, and how far on its second number.
DEVICE u64 chroma_at(u32 format, u32 y, u32 x, u32 width, u64 pixels)
{
    return pixels + (format == NV12 ? (u64)(y / 2) * width + x : (u64)(y / 2) * (width / 2) + x / 2);
}
DEVICE u64 chroma_step(u32 format, u64 pixels) { return format == NV12 ? 1 : pixels / 4; }

DEVICE f32 luma_of(color c, const coding *code)
{
    // Equal channels are their own luma, in every rounding.
    if (c.r == c.g && c.g == c.b) return c.r;
    return code->kr * c.r + code->kg * c.g + code->kb * c.b;
}

DEVICE color load_color(GLOBAL const T *image, u64 pixel, chroma stored, u32 from, u32 to, const coding *code)
{
    color c;
    if (from == RGB || from == BGR) {
        c.r = (f32)image[pixel * 3 + (from == RGB ? 0 : 2)];
        c.g = (f32)image[pixel * 3 + 1];
        c.b = (f32)image[pixel * 3 + (from == RGB ? 2 : 0)];
    } else if (from == GRAY) {
        c.r = c.g = c.b = (f32)image[pixel];
    } else {
        f32 luma = ((f32)image[pixel] - code->black) / code->luma_span;
        c.r = c.g = c.b = luma;
        if (to != GRAY) {
            c.r = luma + (2.0f - 2.0f * code->kr) * (stored.v - 128.0f) / code->chroma_span;
            c.b = luma + (2.0f - 2.0f * code->kb) * (stored.u - 128.0f) / code->chroma_span;
            c.g = (luma - code->kr * c.r - code->kb * c.b) / code->kg;
        }
    }
    return c;
}

DEVICE void store_color(GLOBAL T *image, u64 pixel, color c, u32 to, const coding *code)
{
    if (to == RGB || to == BGR) {
        image[pixel * 3 + (to == RGB ? 0 : 2)] = rounded(c.r);
        image[pixel * 3 + 1] = rounded(c.g);
        image[pixel * 3 + (to == RGB ? 2 : 0)] = rounded(c.b);
    } else if (to == GRAY) {
        image[pixel] = rounded(luma_of(c, code));
    } else {
        image[pixel] = rounded(code->black + code->luma_span * luma_of(c, code));
    }
}

// The chroma of four pixels.
DEVICE chroma mean_chroma(const color *square, const coding *code)
{
    color mean;
    mean.r = (square[0].r + square[1].r + square[2].r + square[3].r) * 0.25f;
    mean.g = (square[0].g + square[1].g + square[2].g + square[3].g) * 0.25f;
    mean.b = (square[0].b + square[1].b + square[2].b + square[3].b) * 0.25f;
    f32 luma = luma_of(mean, code);
    chroma c;
    c.u = 128.0f + code->chroma_span * (mean.b - luma) / (2.0f - 2.0f * code->kb);
    c.v = 128.0f + code->chroma_span * (mean.r - luma) / (2.0f - 2.0f * code->kr);
    return c;
}

// The formats are numbered as above.
KERNEL LAUNCH_BOUNDS(256, 4) convert(GLOBAL const T *RESTRICT input, GLOBAL T *RESTRICT output, u64 threads, u32 height,
                                     u32 width, u32 from, u32 to, coding code)
{
    u64 number = (u64)block_x() * 256 + thread_x();
    if (number >= threads) return;
    u32 columns = width / SIDE, rows = height / SIDE;
    INDEX line = (INDEX)number / columns;
    u32 x = (u32)((INDEX)number - line * columns) * SIDE;
    INDEX image = line / rows;
    u32 y = (u32)(line - image * rows) * SIDE;
    u64 pixels = (u64)height * width;
    input += image * ELEMENTS(from, pixels);
    output += image * ELEMENTS(to, pixels);

    chroma stored = {0.0f, 0.0f};
    if (IS_YUV(from)) {
        u64 at = chroma_at(from, y, x, width, pixels);
        stored.u = (f32)input[at];
        stored.v = (f32)input[at + chroma_step(from, pixels)];
    }
    color square[4];
    UNROLL for (u32 i = 0; i < SIDE * SIDE; i++) {
        u64 pixel = (u64)(y + i / SIDE) * width + x + i % SIDE;
        if (IS_YUV(from) && IS_YUV(to)) {
            output[pixel] = input[pixel];
        } else {
            square[i] = load_color(input, pixel, stored, from, to, &code);
            store_color(output, pixel, square[i], to, &code);
        }
    }
    if (SIDE == 2 && IS_YUV(to)) {
        if (!IS_YUV(from)) stored = mean_chroma(square, &code);
        u64 at = chroma_at(to, y, x, width, pixels);
        output[at] = rounded(stored.u);
        output[at + chroma_step(to, pixels)] = rounded(stored.v);
    }
}

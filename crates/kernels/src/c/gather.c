// Elements or rows picked by index. T is a word of the rows, I the type of an index. The target is outer × count × inner words,
// the source outer × len × inner. An index that is out of range is left in `complaint`, below a one in the
// highest bit, and nothing is written for it.

KERNEL LAUNCH_BOUNDS(256, 4) gather(GLOBAL T *RESTRICT target, GLOBAL const T *RESTRICT source, GLOBAL const I *RESTRICT indices,
    u64 words, u32 count, u32 inner, u32 len, u32 is_elementwise, GLOBAL u64 *complaint)
{
    u64 step = (u64)grid_size_x() * block_size_x();
    for (u64 i = (u64)block_x() * block_size_x() + thread_x(); i < words; i += step) {
        u64 line, outer;
        u32 place, nth;
        if (words >> 32) {
            line = i / inner;
            outer = line / count;
        } else {
            line = (u32)i / inner;
            outer = (u32)line / count;
        }
        place = (u32)(i - line * inner);
        nth = (u32)(line - outer * count);
        I raw = indices[is_elementwise ? i : nth];
        i64 index = (i64)raw;
        if (index < 0) index += len;
        if (index < 0 || index >= (i64)len) {
            *(GLOBAL volatile u64 *)complaint = 1ull << 63 | ((u64)(i64)raw & ~(1ull << 63));
            continue;
        }
        target[i] = source[(outer * len + (u64)index) * inner + place];
    }
}

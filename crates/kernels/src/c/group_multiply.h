// Tiles multiplied by four warps together, straight from the block's memory. On CUDA from compute capability 9.0 (sm_90a) on.
//
// A tile is lines of 128 bytes, one for each vector, whose eight pieces of 16 bytes are permuted by the line's number; it begins on
// a boundary of 1024 bytes. One step multiplies 32 bytes of each of 64 vectors with those of 128, and the lanes hold the sums
// as after MULTIPLY_TILE: warp w of the four has the vectors from 16 w on. A weighing step multiplies 16 numbers of each of 64 rows, which
// the lanes hold as they would for MULTIPLY_TILE, with 16 lines of 64 numbers.
//
// The host has all of it too, for tests of kernels: there the products are made at once.

#if defined(PANOPLY_CUDA)
typedef u32 tile_ref;
// The step of a tile's place for this number of bytes.
#define TILE_STEP(bytes) ((bytes) >> 4)
#define GROUP_MULTIPLY(name, shape_and_types, number, letter, scales)                                                 \
    DEVICE void name(number *d, u32 a, u32 b, i32 add)                                                                \
    {                                                                                                                 \
        asm volatile("{ .reg .pred p; .reg .b64 a, b; mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};"    \
            "setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned." shape_and_types " {"                               \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                  \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                        \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                        \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                          \
            "}, a, b, p" scales "; }"                                                                             \
            : "+" letter(d[0]), "+" letter(d[1]), "+" letter(d[2]), "+" letter(d[3]),                                 \
              "+" letter(d[4]), "+" letter(d[5]), "+" letter(d[6]), "+" letter(d[7]),                                 \
              "+" letter(d[8]), "+" letter(d[9]), "+" letter(d[10]), "+" letter(d[11]),                               \
              "+" letter(d[12]), "+" letter(d[13]), "+" letter(d[14]), "+" letter(d[15]),                             \
              "+" letter(d[16]), "+" letter(d[17]), "+" letter(d[18]), "+" letter(d[19]),                             \
              "+" letter(d[20]), "+" letter(d[21]), "+" letter(d[22]), "+" letter(d[23]),                             \
              "+" letter(d[24]), "+" letter(d[25]), "+" letter(d[26]), "+" letter(d[27]),                             \
              "+" letter(d[28]), "+" letter(d[29]), "+" letter(d[30]), "+" letter(d[31]),                             \
              "+" letter(d[32]), "+" letter(d[33]), "+" letter(d[34]), "+" letter(d[35]),                             \
              "+" letter(d[36]), "+" letter(d[37]), "+" letter(d[38]), "+" letter(d[39]),                             \
              "+" letter(d[40]), "+" letter(d[41]), "+" letter(d[42]), "+" letter(d[43]),                             \
              "+" letter(d[44]), "+" letter(d[45]), "+" letter(d[46]), "+" letter(d[47]),                             \
              "+" letter(d[48]), "+" letter(d[49]), "+" letter(d[50]), "+" letter(d[51]),                             \
              "+" letter(d[52]), "+" letter(d[53]), "+" letter(d[54]), "+" letter(d[55]),                             \
              "+" letter(d[56]), "+" letter(d[57]), "+" letter(d[58]), "+" letter(d[59]),                             \
              "+" letter(d[60]), "+" letter(d[61]), "+" letter(d[62]), "+" letter(d[63])                              \
            : "r"(a), "r"(b), "r"(add) : "memory");                                                                   \
    }
GROUP_MULTIPLY(group_multiply_f16, "m64n128k16.f32.f16.f16", f32, "f", ", 1, 1, 0, 0")
GROUP_MULTIPLY(group_multiply_bf16, "m64n128k16.f32.bf16.bf16", f32, "f", ", 1, 1, 0, 0")
GROUP_MULTIPLY(group_multiply_f32, "m64n128k8.f32.tf32.tf32", f32, "f", ", 1, 1")
GROUP_MULTIPLY(group_multiply_i8, "m64n128k32.s32.s8.s8", i32, "r", "")

// Sums of 64 columns, of numbers in registers and lines in the block's memory.
#define GROUP_WEIGH(name, types)                                                                                      \
    DEVICE void name(f32 *d, const u32 *a, tile_ref b)                                                                \
    {                                                                                                                 \
        asm volatile("{ .reg .pred p; .reg .b64 b; mov.b64 b, {%36, 0x40000040}; setp.ne.b32 p, 1, 0;"                \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " {"                                                  \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                  \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                          \
            "}, {%32, %33, %34, %35}, b, p, 1, 1, 1; }"                                                               \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),         \
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),   \
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])  \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b) : "memory");                                         \
    }
GROUP_WEIGH(group_weigh_f16, "f16.f16")
GROUP_WEIGH(group_weigh_bf16, "bf16.bf16")
// Of f32 numbers as the unit takes them, 8 of each row, with those of 64 lines: a tile as for the multiplying steps.
DEVICE void group_weigh_f32(f32 *d, const u32 *a, tile_ref b, i32 add)
{
    asm volatile("{ .reg .pred p; .reg .b64 b; mov.b64 b, {%36, 0x40000040}; setp.ne.b32 p, %37, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, b, p, 1, 1; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add) : "memory");
}
#define GROUP_BEGIN() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define GROUP_COMMIT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define GROUP_WAIT() asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
// Waits for all that was committed but the last.
#define GROUP_WAIT_BUT_LAST() asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory")
// Sums are as the unit left them from here on: nothing that uses them is moved before this.
#define GROUP_SETTLE(sum) asm volatile("" : "+f"(sum)::"memory")

// Four warps give registers away, of the 96 that each thread of 640 has at first, and sixteen warps take them.
#define GROUP_REGISTERS_FEW() asm volatile("setmaxnreg.dec.sync.aligned.u32 24;")
#define GROUP_REGISTERS_MANY() asm volatile("setmaxnreg.inc.sync.aligned.u32 112;")
// The same with other numbers: of all threads' registers at first, some give away what others take.
#define GROUP_REGISTERS_LESS(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count))
#define GROUP_REGISTERS_MORE(count) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count))

// The start of a tile, as the low half of the unit's descriptor. The high half is 0x40000040: groups of eight lines are 1024 bytes apart, and
// pieces are permuted within 128 bytes.
DEVICE u32 tile_place(const u8 *tile) { return ((shared_address(tile) & 0x3ffffu) >> 4) | 1u << 16; }
// Where lines to be weighed begin: groups of eight of them are 1024 bytes apart, whichever of the two distances the unit looks at.
DEVICE u32 lines_place(const u8 *lines) { return ((shared_address(lines) & 0x3ffffu) >> 4) | 64u << 16; }
#else
#define GROUP_REGISTERS_FEW() ((void)0)
#define GROUP_REGISTERS_MANY() ((void)0)
#define GROUP_REGISTERS_LESS(count) ((void)0)
#define GROUP_REGISTERS_MORE(count) ((void)0)
#define GROUP_BEGIN() ((void)0)
#define GROUP_COMMIT() ((void)0)
#define GROUP_WAIT() ((void)0)
#define GROUP_WAIT_BUT_LAST() ((void)0)
#define GROUP_SETTLE(sum) ((void)0)
#define TILE_STEP(bytes) (bytes)
typedef const u8 *tile_ref;
DEVICE tile_ref tile_place(const u8 *tile) { return tile; }
DEVICE tile_ref lines_place(const u8 *lines) { return lines; }

#if WARP == 32
namespace emulation {
// A 16-bit number of a tile: the pieces of a line of 128 bytes are permuted by the address of the line.
static u16 in_tile(const u8 *place, u32 line, u32 number)
{
    uintptr_t at = (uintptr_t)place + line * 128 + number * 2;
    return *(const u16 *)(at ^ ((at >> 7 & 7) << 4));
}
template <class F> static void group_multiply(f32 *d, tile_ref a, tile_ref b, i32 add, F number)
{
    u32 w = current / WARP % 4, g = lane() / 4, t = lane() % 4;
    for (u32 i = 0; i < 64; i++) {
        u32 row = 16 * w + g + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        f32 sum = add ? d[i] : 0.0f;
        for (u32 k = 0; k < 16; k++) sum += number(in_tile(a, row, k)) * number(in_tile(b, column, k));
        d[i] = sum;
    }
}
template <class F> static void group_weigh(f32 *d, const u32 *a, tile_ref b, F number)
{
    u32 base = current / WARP * WARP, g = lane() / 4, t = lane() % 4;
    memcpy(operands[current], a, 16);
    warp_barrier();
    for (u32 i = 0; i < 32; i++) {
        u32 low = i / 2 % 2, column = i / 4 * 8 + 2 * t + i % 2;
        for (u32 k = 0; k < 16; k++) {
            u32 word = operands[base + g * 4 + k / 2 % 4][low + k / 8 * 2];
            d[i] += number((u16)(word >> k % 2 * 16)) * number(in_tile(b, k, column));
        }
    }
    warp_barrier();
}
static void group_weigh_split(f32 *d, const u32 *a, tile_ref b, i32 add)
{
    u32 base = current / WARP * WARP, g = lane() / 4, t = lane() % 4;
    memcpy(operands[current], a, 16);
    warp_barrier();
    for (u32 i = 0; i < 32; i++) {
        u32 low = i / 2 % 2, column = i / 4 * 8 + 2 * t + i % 2;
        f32 sum = add ? d[i] : 0.0f;
        for (u32 k = 0; k < 8; k++) {
            u32 word = operands[base + g * 4 + k % 4][low + k / 4 * 2];
            uintptr_t at = (uintptr_t)b + column * 128 + k * 4;
            u32 other = *(const u32 *)(at ^ ((at >> 7 & 7) << 4));
            sum += bits_f32(word & 0xffffe000u) * bits_f32(other & 0xffffe000u);
        }
        d[i] = sum;
    }
    warp_barrier();
}
} // namespace emulation
DEVICE void group_weigh_f32(f32 *d, const u32 *a, tile_ref b, i32 add) { emulation::group_weigh_split(d, a, b, add); }
DEVICE void group_multiply_f16(f32 *d, tile_ref a, tile_ref b, i32 add) { emulation::group_multiply(d, a, b, add, f16_to_f32); }
DEVICE void group_multiply_bf16(f32 *d, tile_ref a, tile_ref b, i32 add) { emulation::group_multiply(d, a, b, add, bf16_to_f32); }
DEVICE void group_weigh_f16(f32 *d, const u32 *a, tile_ref b) { emulation::group_weigh(d, a, b, f16_to_f32); }
DEVICE void group_weigh_bf16(f32 *d, const u32 *a, tile_ref b) { emulation::group_weigh(d, a, b, bf16_to_f32); }
#endif
#endif

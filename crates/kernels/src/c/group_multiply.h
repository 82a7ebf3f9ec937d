// Tiles multiplied by four warps together, straight from the block's memory. CUDA alone, from compute capability 9.0 (sm_90a) on.
//
// A tile is lines of 128 bytes, one for each vector, whose eight pieces of 16 bytes are permuted by the line's number; it begins on
// a boundary of 1024 bytes. One step multiplies 32 bytes of each of 64 vectors with those of 128, and the lanes hold the sums
// as after MULTIPLY_TILE: warp w of the four has the vectors from 16 w on.

#if defined(PANOPLY_CUDA)
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
#define GROUP_BEGIN() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define GROUP_COMMIT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define GROUP_WAIT() asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")

// Four warps give registers away, of the 96 that each thread of 640 has at first, and sixteen warps take them.
#define GROUP_REGISTERS_FEW() asm volatile("setmaxnreg.dec.sync.aligned.u32 24;")
#define GROUP_REGISTERS_MANY() asm volatile("setmaxnreg.inc.sync.aligned.u32 112;")

// Where a tile begins, as the unit is told. The other half of what it is told is 0x40000040: groups of eight lines are 1024 bytes apart, and
// pieces are permuted within 128 bytes.
DEVICE u32 tile_place(const u8 *tile) { return ((shared_address(tile) & 0x3ffffu) >> 4) | 1u << 16; }
#else
#define GROUP_REGISTERS_FEW() ((void)0)
#define GROUP_REGISTERS_MANY() ((void)0)
#endif

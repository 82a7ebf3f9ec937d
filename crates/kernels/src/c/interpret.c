// Runs an elementwise expression that is too long to be compiled, instruction by instruction. It follows elementwise.h.
//
// An instruction is eight words: the operation, the carrier of its result and what narrows it, the slot of the result, the
// slots of up to three operands, and the two words of a constant. A slot has one 64-bit word for every thread of the grid.
// The numbers of operations and carriers are those of interpret.rs.

// Where inputs lie: bytes from `base`, which is the beginning of all memory where that has addresses.
typedef struct { u64 at[64]; } inputs_t;

enum { CARRIER_F32, CARRIER_F64, CARRIER_I32, CARRIER_U32, CARRIER_COMPLEX64, CARRIER_I8, CARRIER_U8 };
enum { STORED_F32, STORED_F16, STORED_BF16, STORED_F64, STORED_I32, STORED_U32, STORED_I8, STORED_U8, STORED_COMPLEX64 };
enum { CODE_INPUT = 0, CODE_CONSTANT = 1, CODE_CAST = 2, CODE_UNARY = 16, CODE_BINARY = 64, CODE_TERNARY = 128 };

DEVICE u64 complex64_bits(complex64 z) { return (u64)f32_bits(z.im) << 32 | f32_bits(z.re); }
DEVICE complex64 bits_complex64(u64 x) { return complex_of(bits_f32((u32)x), bits_f32((u32)(x >> 32))); }
DEVICE u64 i32_bits(i32 x) { return (u32)x; }
DEVICE i32 bits_i32(u64 x) { return (i32)(u32)x; }
DEVICE u64 u32_bits(u32 x) { return x; }
DEVICE u32 bits_u32(u64 x) { return (u32)x; }

DEVICE u64 load_element(GLOBAL const u8 *input, u32 stored, u64 i)
{
    switch (stored) {
    case STORED_F16: return f32_bits(f16_to_f32(((GLOBAL const u16 *)input)[i]));
    case STORED_BF16: return f32_bits(bf16_to_f32(((GLOBAL const u16 *)input)[i]));
    case STORED_I8: return i32_bits(((GLOBAL const i8 *)input)[i]);
    case STORED_U8: return input[i];
    case STORED_F64:
    case STORED_COMPLEX64: return ((GLOBAL const u64 *)input)[i];
    default: return ((GLOBAL const u32 *)input)[i];
    }
}

DEVICE void store_element(GLOBAL u8 *target, u32 stored, u64 i, u64 value)
{
    switch (stored) {
    case STORED_F16: ((GLOBAL u16 *)target)[i] = f32_to_f16(bits_f32((u32)value)); break;
    case STORED_BF16: ((GLOBAL u16 *)target)[i] = f32_to_bf16(bits_f32((u32)value)); break;
    case STORED_I8:
    case STORED_U8: target[i] = (u8)value; break;
    case STORED_F64:
    case STORED_COMPLEX64: ((GLOBAL u64 *)target)[i] = value; break;
    default: ((GLOBAL u32 *)target)[i] = (u32)value; break;
    }
}

#define CASTS_TO_STORED(S, x)                                                                     \
    switch (stored) {                                                                             \
    case STORED_F32: return f32_bits(cast_##S##_f32(x));                                          \
    case STORED_F16: return f32_bits(cast_##S##_f16(x));                                          \
    case STORED_BF16: return f32_bits(cast_##S##_bf16(x));                                        \
    case STORED_F64: return f64_bits(cast_##S##_f64(x));                                          \
    case STORED_I32: return i32_bits(cast_##S##_i32(x));                                          \
    case STORED_U32: return cast_##S##_u32(x);                                                    \
    case STORED_I8: return i32_bits(cast_##S##_i8(x));                                            \
    case STORED_U8: return cast_##S##_u8(x);                                                      \
    default: return complex64_bits(cast_##S##_c64(x));                                      \
    }

DEVICE u64 cast_value(u32 from, u32 stored, u64 value)
{
    switch (from) {
    case CARRIER_F32: CASTS_TO_STORED(f32, bits_f32((u32)value))
    case CARRIER_F64: CASTS_TO_STORED(f64, bits_f64(value))
    case CARRIER_I32:
    case CARRIER_I8: CASTS_TO_STORED(i32, bits_i32(value))
    case CARRIER_U32:
    case CARRIER_U8: CASTS_TO_STORED(u32, (u32)value)
    default: return value;
    }
}

#define UNARY(number, name) case CODE_UNARY + number: return name(x);
#define BINARY(number, name) case CODE_BINARY + number: return name(x, y);
#define TERNARY(number, name) case CODE_TERNARY + number: return name(x, y, z);

#define SHARED_OPERATIONS(F)                                                                      \
    UNARY(0, neg_##F) UNARY(1, abs_##F) UNARY(10, relu_##F) UNARY(14, floor_##F)                  \
    UNARY(15, ceil_##F) UNARY(16, round_##F) UNARY(19, not_##F)                                   \
    BINARY(0, add_##F) BINARY(1, sub_##F) BINARY(2, mul_##F) BINARY(3, div_##F) BINARY(4, rem_##F) \
    BINARY(5, pow_##F) BINARY(6, min_##F) BINARY(7, max_##F) BINARY(8, eq_##F) BINARY(9, ne_##F)  \
    BINARY(10, lt_##F) BINARY(11, le_##F) BINARY(12, gt_##F) BINARY(13, ge_##F) BINARY(14, and_##F) \
    BINARY(15, or_##F) TERNARY(0, select_##F) TERNARY(1, clamp_##F) TERNARY(2, mul_add_##F)

#define FLOAT_CODE(F)                                                                             \
    NOINLINE F run_##F(u32 code, F x, F y, F z)                                         \
    {                                                                                             \
        switch (code) {                                                                           \
            SHARED_OPERATIONS(F)                                                                  \
            UNARY(2, exp_##F) UNARY(3, log_##F) UNARY(4, sqrt_##F) UNARY(5, rsqrt_##F)            \
            UNARY(6, recip_##F) UNARY(7, tanh_##F) UNARY(8, sigmoid_##F) UNARY(9, erf_##F)        \
            UNARY(11, gelu_##F) UNARY(12, gelu_tanh_##F) UNARY(13, silu_##F)                      \
            UNARY(17, sin_##F) UNARY(18, cos_##F)                                                 \
        default: return x;                                                                        \
        }                                                                                         \
    }
#define INTEGER_CODE(I)                                                                           \
    NOINLINE I run_##I(u32 code, I x, I y, I z)                                         \
    {                                                                                             \
        switch (code) {                                                                           \
            SHARED_OPERATIONS(I)                                                                  \
        default: return x;                                                                        \
        }                                                                                         \
    }
FLOAT_CODE(f32)
FLOAT_CODE(f64)
INTEGER_CODE(i32)
INTEGER_CODE(u32)

NOINLINE complex64 run_complex64(u32 code, complex64 x, complex64 y, complex64 z)
{
    switch (code) {
        UNARY(0, neg_complex64) UNARY(6, recip_complex64) BINARY(0, add_complex64) BINARY(1, sub_complex64)
        BINARY(2, mul_complex64) BINARY(3, div_complex64) TERNARY(2, mul_add_complex64)
    default: return x;
    }
}

DEVICE u64 run_code(u32 code, u32 carrier, u64 x, u64 y, u64 z)
{
    switch (carrier) {
    case CARRIER_F32: return f32_bits(run_f32(code, bits_f32((u32)x), bits_f32((u32)y), bits_f32((u32)z)));
    case CARRIER_F64: return f64_bits(run_f64(code, bits_f64(x), bits_f64(y), bits_f64(z)));
    case CARRIER_I32: return i32_bits(run_i32(code, bits_i32(x), bits_i32(y), bits_i32(z)));
    case CARRIER_I8: return i32_bits((i8)run_i32(code, bits_i32(x), bits_i32(y), bits_i32(z)));
    case CARRIER_U32: return run_u32(code, (u32)x, (u32)y, (u32)z);
    case CARRIER_U8: return (u8)run_u32(code, (u32)x, (u32)y, (u32)z);
    default: return complex64_bits(run_complex64(code, bits_complex64(x), bits_complex64(y), bits_complex64(z)));
    }
}

// `single` has a bit for every input that is one element for all. The last instruction's result is the output.
KERNEL LAUNCH_BOUNDS(256, 1) interpret(GLOBAL u8 *RESTRICT target, GLOBAL const u32 *RESTRICT code, GLOBAL u64 *RESTRICT slots,
    GLOBAL const u8 *base, inputs_t in, u64 single, u32 instructions, u32 stored, u64 count)
{
    u64 threads = (u64)grid_size_x() * block_size_x(), me = (u64)block_x() * block_size_x() + thread_x();
    GLOBAL u64 *own = slots + me;
    for (u64 i = me; i < count; i += threads) {
        u64 result = 0;
        for (u32 step = 0; step < instructions; step++) {
            GLOBAL const u32 *word = code + (u64)step * 8;
            u32 operation = word[0], carrier = word[1];
            if (operation == CODE_INPUT) {
                result = load_element((GLOBAL const u8 *)((u64)base + in.at[word[3]]), carrier, (single >> word[3]) & 1 ? 0 : i);
            } else if (operation == CODE_CONSTANT) {
                result = (u64)word[7] << 32 | word[6];
            } else if (operation == CODE_CAST) {
                result = cast_value(carrier, word[4], own[word[3] * threads]);
            } else {
                u64 x = own[word[3] * threads], y = 0, z = 0;
                if (operation >= CODE_BINARY) y = own[word[4] * threads];
                if (operation >= CODE_TERNARY) z = own[word[5] * threads];
                result = run_code(operation, carrier, x, y, z);
            }
            own[word[2] * threads] = result;
        }
        store_element(target, stored, i, result);
    }
}

// Scores of rows against queries. Part of the units of Search that compute them.
//
// Parameters: T and Q, the types of rows and queries; METRIC; PIECE, the elements of one load (16 bytes of them, or 1).
//
// A row's score is computed by LANES neighbouring lanes: lane l takes the pieces l, l + LANES, …, adds in the order of the
// dimensions, and the lanes' sums are added pairwise, the halves first. Every path of Search that returns a score sums in
// this way, so that a row's score does not depend on how many queries came with it.

#if defined(T_IS_i8) && defined(Q_IS_i8)
#define INTEGER 1
// Four elements, and an exact sum.
typedef u32 value;
typedef u32x4 value4;
typedef i32 sum;
#define VALUES (PIECE == 1 ? 1 : PIECE / 4)
DEVICE sum add_product(value x, value q, sum s) { return dot4_i8(x, q, s); }
DEVICE sum accumulate(value x, value q, sum s) { return dot4_i8(x, q, s); }
DEVICE sum shuffle_xor_sum(sum x, u32 mask) { return (i32)shuffle_xor_u32((u32)x, mask); }
#else
#define INTEGER 0
typedef f32 value;
typedef f32x4 value4;
typedef f32 sum;
#define VALUES PIECE
DEVICE sum add_product(value x, value q, sum s) { return fmaf(x, q, s); }
DEVICE sum accumulate(value x, value q, sum s)
{
    if (METRIC != EUCLIDEAN) return fmaf(x, q, s);
    f32 difference = x - q;
    return fmaf(difference, difference, s);
}
DEVICE sum shuffle_xor_sum(sum x, u32 mask) { return shuffle_xor_f32(x, mask); }
#endif

// Whether the squares of the row's elements are summed beside the products.
#define ROW_SQUARES (METRIC == COSINE || (INTEGER && METRIC == EUCLIDEAN))

#if PIECE == 1
typedef T piece;
DEVICE piece load_piece(GLOBAL const T *p) { return *p; }
DEVICE piece no_piece(void) { return 0; }
DEVICE void unpack(piece p, value *x)
{
#if INTEGER
    x[0] = (u8)p;
#else
    x[0] = (f32)T_LOAD(p);
#endif
}
#else
typedef u32x4 piece;
DEVICE piece load_piece(GLOBAL const T *p) { return load_stream((GLOBAL const u32x4 *)p); }
DEVICE piece no_piece(void)
{
    piece p = {0, 0, 0, 0};
    return p;
}
DEVICE void unpack_word(u32 word, value *x)
{
#if INTEGER
    x[0] = word;
#elif defined(T_IS_f32)
    x[0] = bits_f32(word);
#elif defined(T_IS_i8)
    for (u32 i = 0; i < 4; i++) x[i] = (f32)(i8)(word >> 8 * i);
#else
    x[0] = T_LOAD((u16)word);
    x[1] = T_LOAD((u16)(word >> 16));
#endif
}
DEVICE void unpack(piece p, value *x)
{
    unpack_word(p.x, x);
    unpack_word(p.y, x + VALUES / 4);
    unpack_word(p.z, x + 2 * (VALUES / 4));
    unpack_word(p.w, x + 3 * (VALUES / 4));
}
#endif

// One value of a query, as the sums take it.
DEVICE value query_value(GLOBAL const Q *query, u32 index)
{
#if INTEGER && PIECE > 1
    u32 word = 0;
    for (u32 i = 0; i < 4; i++) word |= (u32)(u8)query[4 * index + i] << 8 * i;
    return word;
#elif INTEGER
    return (u8)query[index];
#else
    return (f32)Q_LOAD(query[index]);
#endif
}

// The values of one piece of a query, from the block's memory.
DEVICE void copy_values(value *y, LOCAL const value *q)
{
    if (VALUES % 4 == 0) {
        UNROLL for (u32 v = 0; v < VALUES; v += 4) {
            value4 four = *(LOCAL const value4 *)(q + v);
            y[v] = four.x, y[v + 1] = four.y, y[v + 2] = four.z, y[v + 3] = four.w;
        }
    } else {
        UNROLL for (u32 v = 0; v < VALUES; v++) y[v] = q[v];
    }
}

// From the sums to the score. `row_length` is looked at by the cosine alone.
DEVICE f32 finish_score(sum s, sum row_square, sum query_square, f32 row_length)
{
#if METRIC == COSINE
    f32 lengths = row_length * sqrtf((f32)query_square);
    return lengths == 0.0f ? 0.0f : (f32)s / lengths;
#elif METRIC == EUCLIDEAN && INTEGER
    return sqrtf((f32)(row_square - 2 * s + query_square));
#elif METRIC == EUCLIDEAN
    return sqrtf(s);
#else
    return (f32)s;
#endif
}

DEVICE int row_allowed(GLOBAL const u32 *filter, u64 row)
{
    return !filter || ((filter[row >> 5] >> (row & 31u)) & 1u);
}

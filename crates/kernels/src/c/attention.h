// Shared by all kernels of attention: the arguments, the keys that a query sees, and scores with their mask.
//
// Parameters: T, the type of queries, keys, values and output; M, that of the mask; MASKED, whether there is one; SCALED_FIRST, whether
// scores are scaled before the largest is looked for, as they must be where there is a mask or the scale is not above zero.

// Scores are taken to the power of two: exp(x) = 2 ^ (x LOG2_E).
#define LOG2_E 1.4426950408889634f
#define LOWEST bits_f32(0xff800000u)

// Queries and keys of a head, elements of a query and of a value; tiles of queries; whether queries see no keys behind their own; and how many
// heads' rows are adjacent in the output, one where each head has its own matrix.
typedef struct { u32 n_q, n_k, d, d_v, tiles, causal; f32 scale; u32 beside; } attention_sizes;
// Elements from row to row, and of the mask also from key to key.
typedef struct { i64 q, k, v, mask, mask_key; } attention_steps;

// The work of a block: the matrices of one head, and its queries from `first` on, which see keys below `end`.
typedef struct {
    GLOBAL T *out;
    GLOBAL const T *q, *k, *v;
    GLOBAL const M *mask;
    u32 first, end;
} attention_work;

DEVICE u32 keys_seen(attention_sizes size, u32 row)
{
    if (!size.causal) return size.n_k;
    i64 seen = (i64)row + 1 + size.n_k - size.n_q;
    return seen < 0 ? 0 : seen < (i64)size.n_k ? (u32)seen : size.n_k;
}

// Where the matrix of a head begins. The first axis needs no division, and most layouts have no other.
DEVICE i64 head_offset(const layout *heads, u32 number)
{
    i64 offset = 0;
    for (u32 axis = 0; axis + 1 < heads->rank; axis++) {
        offset += (i64)(number % heads->size[axis]) * heads->stride[axis];
        number /= heads->size[axis];
    }
    return heads->rank > 0 ? offset + (i64)number * heads->stride[heads->rank - 1] : 0;
}

// A block has a tile of queries. Those that see the most keys come first, so that the last blocks end together.
DEVICE attention_work find_work(GLOBAL T *out, GLOBAL const T *q, GLOBAL const T *k, GLOBAL const T *v, GLOBAL const M *mask,
                                attention_sizes size, const layout *q_heads, const layout *k_heads, const layout *v_heads,
                                const layout *mask_heads, u32 block_rows)
{
    attention_work work;
    u32 head = block_x() / size.tiles, tile = size.tiles - 1 - block_x() % size.tiles;
    work.first = tile * block_rows;
    u32 last = work.first + block_rows < size.n_q ? work.first + block_rows : size.n_q;
    work.end = keys_seen(size, last - 1);
    u32 batch = head / size.beside;
    work.out = out + ((u64)batch * size.n_q * size.beside + (head - batch * size.beside)) * size.d_v;
    work.q = q + head_offset(q_heads, head);
    work.k = k + head_offset(k_heads, head);
    work.v = v + head_offset(v_heads, head);
    work.mask = MASKED ? mask + head_offset(mask_heads, head) : mask;
    return work;
}

// Where a row of the output begins.
DEVICE GLOBAL T *out_row(attention_work work, attention_sizes size, u32 row) { return work.out + (u64)row * size.beside * size.d_v; }

// A product as the softmax takes it.
DEVICE f32 finish_score(f32 product, attention_work work, attention_sizes size, attention_steps step, u32 row, u32 key)
{
    if (SCALED_FIRST) product *= size.scale;
    // Rows and keys behind the last are not looked at, but there is nothing to read either.
    if (MASKED && row < size.n_q && key < size.n_k) {
        product += (f32)M_LOAD(work.mask[(i64)row * step.mask + (i64)key * step.mask_key]);
    }
    return product;
}

// The factor that turns scores into exponents of two.
DEVICE f32 exponent_factor(attention_sizes size) { return SCALED_FIRST ? LOG2_E : size.scale * LOG2_E; }

// The number that is subtracted from exponents, for this largest score; 0 as long as no key was seen.
DEVICE f32 exponent_base(f32 largest, f32 factor) { return largest == LOWEST ? 0.0f : largest * factor; }

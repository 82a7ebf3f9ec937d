// Scores of which a lane has two rows of each tile of 16, and in each two of every eight columns, as matrix units leave them.
//
// Parameters: ROW_TILES of a warp, KEYS of a tile, DV, the elements of a value; MASK_ROWS, whether a mask differs from row to row.

#if defined(T_IS_f16)
#define PACK pack_f16
#else
#define PACK pack_bf16
#endif
#define KEY_TILES (KEYS / 8)
#define VALUE_TILES (DV / 8)

typedef f32 scores_t[ROW_TILES][KEY_TILES][4];
typedef f32 sums_t[ROW_TILES][VALUE_TILES][4];

// An f32 number as the sum of two that the matrix unit takes whole, but for the last bits.
DEVICE void split(u32 x, u32 *high, u32 *low)
{
    *high = (x + 0x1000u) & 0xffffe000u;
    *low = f32_bits(bits_f32(x) - bits_f32(*high));
}

DEVICE void split_words(const u32 *x, u32 *high, u32 *low, u32 count)
{
    UNROLL for (u32 i = 0; i < count; i++) split(x[i], &high[i], &low[i]);
}

// A lane's part of a mask that is the same for every row, for keys from `key` on; nothing of other masks.
typedef M masks_t[KEY_TILES * 2];
DEVICE void load_mask(masks_t held, u32 key, attention_work work, attention_sizes size, attention_steps step)
{
#if MASKED && !MASK_ROWS
    UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
        u32 here = key + i / 2 * 8 + lane() % 4 * 2 + i % 2;
        held[i] = work.mask[(i64)(here < size.n_k ? here : 0) * step.mask_key];
    }
#endif
}

// Makes weights of the scores of keys from `key` on; row is the first of the lane's.
DEVICE void soften(scores_t score, masks_t mask, f32 largest[ROW_TILES][2], f32 total[ROW_TILES][2], f32 correction[ROW_TILES][2],
                   f32 factor, u32 row, u32 key, attention_work work, attention_sizes size, attention_steps step)
{
#if MASKED && !MASK_ROWS
    // Keys behind the last count as taken out.
    UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
        u32 here = key + i / 2 * 8 + lane() % 4 * 2 + i % 2;
        f32 add = (f32)M_LOAD(mask[i]);
        UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) {
            f32 *x = &score[r / 2][i / 2][r % 2 * 2 + i % 2];
            *x = here < size.n_k ? *x * size.scale + add : LOWEST;
        }
    }
    // Later rows see no fewer keys.
    if (size.causal && keys_seen(size, row) < key + KEYS) {
        UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) {
            u32 seen = keys_seen(size, row + r * 8);
            UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
                u32 here = key + i / 2 * 8 + lane() % 4 * 2 + i % 2;
                if (here >= seen) score[r / 2][i / 2][r % 2 * 2 + i % 2] = LOWEST;
            }
        }
    }
#else
    // Later rows see no fewer keys.
    if (SCALED_FIRST || keys_seen(size, row) < key + KEYS) {
        UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) {
            u32 own = row + r * 8, seen = keys_seen(size, own);
            UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
                u32 here = key + i / 2 * 8 + lane() % 4 * 2 + i % 2;
                f32 *x = &score[r / 2][i / 2][r % 2 * 2 + i % 2];
                *x = here < seen ? finish_score(*x, work, size, step, own, here) : LOWEST;
            }
        }
    }
#endif
    f32 now[ROW_TILES * 2];
    UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) {
        // Several maxima and sums at a time: one after the other would be waited for.
        f32 most[4] = {largest[r / 2][r % 2], LOWEST, LOWEST, LOWEST};
        UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) most[i % 4] = fmaxf(most[i % 4], score[r / 2][i / 2][r % 2 * 2 + i % 2]);
        now[r] = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    }
    UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) now[r] = fmaxf(now[r], shuffle_xor_f32(now[r], 1));
    UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) now[r] = fmaxf(now[r], shuffle_xor_f32(now[r], 2));
    UNROLL for (u32 r = 0; r < ROW_TILES * 2; r++) {
        f32 base = exponent_base(now[r], factor), part[2] = {0.0f, 0.0f};
        UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
            f32 *x = &score[r / 2][i / 2][r % 2 * 2 + i % 2];
            *x = exp2_below(fmaf(*x, factor, -base));
            part[i % 2] += *x;
        }
        // Exactly one where the largest score stays: `base` is rounded, and the fused product is not.
        f32 before = largest[r / 2][r % 2], down = before == now[r] ? 1.0f : exp2_below(fmaf(before, factor, -base));
        correction[r / 2][r % 2] = down;
        total[r / 2][r % 2] = total[r / 2][r % 2] * down + (part[0] + part[1]);
        largest[r / 2][r % 2] = now[r];
    }
}

// Of four words in each of four neighbouring lanes: the lane with number l gets the words l of all of them.
DEVICE u32x4 exchange_words(const u32 *word)
{
    u32 odd = lane() & 1u, upper = lane() & 2u;
    u32 a = shuffle_xor_u32(odd ? word[0] : word[1], 1), b = shuffle_xor_u32(odd ? word[2] : word[3], 1);
    u32 low[2] = {odd ? a : word[0], odd ? word[1] : a}, high[2] = {odd ? b : word[2], odd ? word[3] : b};
    u32 c = shuffle_xor_u32(upper ? low[0] : high[0], 2), d = shuffle_xor_u32(upper ? low[1] : high[1], 2);
    u32x4 four = {upper ? c : low[0], upper ? d : low[1], upper ? high[0] : c, upper ? high[1] : d};
    return four;
}

// Divides sums by their totals and writes them; row is the first of the lane's.
DEVICE void write_sums(sums_t sum, f32 total[ROW_TILES][2], u32 row, attention_work work, attention_sizes size)
{
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 half = 0; half < 2; half++) {
            f32 whole = total[m][half];
            whole += shuffle_xor_f32(whole, 1);
            whole += shuffle_xor_f32(whole, 2);
            f32 share = whole == 0.0f ? 0.0f : 1.0f / whole;
            u32 own = row + m * 16 + half * 8;
            GLOBAL T *line = out_row(work, size, own);
#if T_BYTES == 2 && defined(WIDE) && WIDE && DV % 32 == 0
            // Rows are whole words of 16 bytes, and so are the lanes' shares.
            UNROLL for (u32 i = 0; i < DV / 32; i++) {
                u32 word[4];
                UNROLL for (u32 j = 0; j < 4; j++) {
                    const f32 *x = sum[m][i * 4 + j] + half * 2;
                    word[j] = whole == 0.0f ? 0u : PACK(x[0] * share, x[1] * share);
                }
                u32x4 four = exchange_words(word);
                u32 column = i * 32 + lane() % 4 * 8;
                if (own < size.n_q && column < size.d_v) *(GLOBAL u32x4 *)(line + column) = four;
            }
#elif T_BYTES == 2 && defined(WIDE) && WIDE
            // Rows are whole words, so that two neighbours are written at once.
            UNROLL for (u32 i = 0; i < VALUE_TILES; i++) {
                u32 column = i * 8 + lane() % 4 * 2;
                const f32 *x = sum[m][i] + half * 2;
                u32 word = whole == 0.0f ? 0u : PACK(x[0] * share, x[1] * share);
                if (own < size.n_q && column < size.d_v) *(GLOBAL u32 *)(line + column) = word;
            }
#else
            UNROLL for (u32 i = 0; i < VALUE_TILES * 2; i++) {
                u32 column = i / 2 * 8 + lane() % 4 * 2 + i % 2;
                // Without keys there are no sums but zeros, even where values that do not count are NaN.
                f32 x = whole == 0.0f ? 0.0f : sum[m][i / 2][half * 2 + i % 2] * share;
                if (own < size.n_q && column < size.d_v) line[column] = T_STORE(x);
            }
#endif
        }
    }
}

// Scores of which a lane has two rows of each tile of 16, and in each two of every eight columns, as matrix units leave them.
//
// Parameters: ROW_TILES of a warp, KEYS of a tile.

#define KEY_TILES (KEYS / 8)

typedef f32 scores_t[ROW_TILES][KEY_TILES][4];

// Makes weights of the scores of keys from `key` on; row is the first of the lane's.
DEVICE void soften(scores_t score, f32 largest[ROW_TILES][2], f32 total[ROW_TILES][2], f32 correction[ROW_TILES][2], f32 factor, u32 row,
                   u32 key, attention_work work, attention_sizes size, attention_steps step)
{
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 half = 0; half < 2; half++) {
            u32 own = row + m * 16 + half * 8, seen = keys_seen(size, own);
            if (SCALED_FIRST || seen < key + KEYS) {
                UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
                    u32 here = key + i / 2 * 8 + lane() % 4 * 2 + i % 2;
                    f32 *x = &score[m][i / 2][half * 2 + i % 2];
                    *x = here < seen ? finish_score(*x, work, size, step, own, here) : LOWEST;
                }
            }
            f32 now = largest[m][half];
            UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) now = fmaxf(now, score[m][i / 2][half * 2 + i % 2]);
            now = fmaxf(now, shuffle_xor_f32(now, 1));
            now = fmaxf(now, shuffle_xor_f32(now, 2));
            f32 base = exponent_base(now, factor), added = 0.0f;
            UNROLL for (u32 i = 0; i < KEY_TILES * 2; i++) {
                f32 *x = &score[m][i / 2][half * 2 + i % 2];
                *x = exp2_below(fmaf(*x, factor, -base));
                added += *x;
            }
            correction[m][half] = exp2_below(fmaf(largest[m][half], factor, -base));
            total[m][half] = total[m][half] * correction[m][half] + added;
            largest[m][half] = now;
        }
    }
}

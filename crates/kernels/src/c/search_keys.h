// The keys that order neighbours. Part of every unit of Search. METRIC is 0, 1 or 2, as below.

#define DOT 0
#define COSINE 1
#define EUCLIDEAN 2

// The key of a place for which no row is left. Smaller keys are nearer: the score's rank, then the id.
#define MISSING_KEY 0xffffffffffffffffULL

// Nearer scores have smaller ranks; both zeros have the same; NaN comes last.
DEVICE u32 rank_of(f32 score)
{
    if (score != score) return 0xffffffffu;
    u32 bits = f32_bits(score + 0.0f);
    u32 ascending = bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
    return METRIC == EUCLIDEAN ? ascending : ~ascending;
}

DEVICE f32 score_of(u32 rank)
{
    u32 ascending = METRIC == EUCLIDEAN ? rank : ~rank;
    return bits_f32(ascending ^ ((ascending >> 31) ? 0x80000000u : 0xffffffffu));
}

DEVICE u64 key_of(f32 score, u32 row) { return ((u64)rank_of(score) << 32) | row; }

// Writes one place of the result.
DEVICE void write_neighbour(GLOBAL u32 *ids, GLOBAL f32 *scores, u64 place, u64 key)
{
    ids[place] = (u32)key;
    f32 missing = bits_f32(METRIC == EUCLIDEAN ? 0x7f800000u : 0xff800000u);
    scores[place] = key == MISSING_KEY ? missing : score_of((u32)(key >> 32));
}

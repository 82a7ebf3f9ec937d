// Scores from the matrix unit, and what may be concluded from them. Part of the units of Search with many queries.
//
// Parameters besides those of search_score.h: EXACT, whether the matrix unit's sums are the scores themselves.
//
// EXACT sums are those of i8 elements, which are integers, and the products of f16 and bf16 elements, which f32 holds exactly:
// their sum is a sum in f32 like any other. All other scores (f32 elements, and distances of floats, which as differences of
// squares would lose what makes them small) are only bounded here, and computed again for the rows that the bound lets through.
//
// The bound. Let s be the true dot product of q and x, and a the unit's sum. The unit reads f32 elements with 11 significant
// bits; each factor loses at most 2^-10 of itself, a product less than 2^-9 (1 + 2^-11), the sum of products, by
// Cauchy and Schwarz, at most that share of |q||x|. Adding d terms in f32, in any order and rounding in any direction, loses at
// most d 2^-23 of |q||x|, both in the unit and where the score is computed again. So with
//     slack = (d + 16) 2^-22      and      epsilon = slack, plus 2^-9 (1 + 2^-6) for f32 elements,
// |a - s'| <= epsilon |q||x|, where s' is the score computed again. The lengths |q| and |x| are computed to within slack
// themselves, and 1e-20 is added for elements whose squares vanish; epsilon's reserve takes both. A row whose squares overflow or
// are not numbers gets an infinite length, and is always let through.

#define SLACK(dim) (((f32)(dim) + 16.0f) * 2.384185791015625e-7f)
#if defined(T_IS_f32)
#define EPSILON(dim) (SLACK(dim) + 0.00198364f)
#else
#define EPSILON(dim) SLACK(dim)
#endif
#define ALMOST_ONE_SHARE 9.5367431640625e-7f
#define INFINITE bits_f32(0x7f800000u)
#define NOT_A_NUMBER bits_f32(0x7fc00000u)

// Facts about a row. EXACT: its length (cosine), or its square (the distance of i8 elements) as bits. Else `first` is a bound of
// its length, and `second` a further number of the metric.
typedef struct { f32 first, second; } row_facts;

DEVICE row_facts facts_of_row(sum square, u32 dim, GLOBAL const f32 *lengths, u64 row)
{
    row_facts facts = {0.0f, 0.0f};
#if EXACT && INTEGER && METRIC == EUCLIDEAN
    facts.first = bits_f32((u32)square);
#elif EXACT
    facts.first = lengths ? lengths[row] : sqrtf((f32)square);
#else
    f32 length = sqrtf((f32)square);
    facts.first = length < INFINITE ? length * (1.0f + SLACK(dim)) + 1.0e-20f : INFINITE;
    if (METRIC == COSINE) {
        f32 divisor = lengths ? lengths[row] : length;
        // A length of zero makes the score zero: of a zero row it is that anyhow.
        if (!(divisor > 0.0f) && !(divisor == 0.0f && length == 0.0f)) facts.first = INFINITE;
        facts.second = divisor > 0.0f ? divisor : 1.0f;
    }
    if (METRIC == EUCLIDEAN) facts.second = 0.5f * (f32)square * (1.0f - SLACK(dim));
#endif
    return facts;
}

// Facts about a query: the least sum of a candidate, in the metric's form, and the error's share of the row's length.
typedef struct { f32 least, error; } query_facts;

DEVICE f32 lowered(f32 x) { return x - fabsf(x) * ALMOST_ONE_SHARE - 1.0e-30f; }

DEVICE query_facts facts_of_query(sum square, u32 dim, u64 threshold)
{
    u32 rank = (u32)(threshold >> 32);
    int open = rank == 0xffffffffu;
    f32 limit = score_of(rank), length = sqrtf((f32)square);
    query_facts facts = {-INFINITE, 0.0f};
#if EXACT && INTEGER && METRIC == EUCLIDEAN
    facts.least = open ? INFINITE : limit * limit * (1.0f + ALMOST_ONE_SHARE);
    facts.error = bits_f32((u32)square);
#else
    if (!EXACT) facts.error = EPSILON(dim) * (length * (1.0f + SLACK(dim)) + 1.0e-20f);
    if (open) return facts;
    if (METRIC == DOT) facts.least = EXACT ? limit : lowered(limit);
    if (METRIC == COSINE) facts.least = lowered(limit * length);
    if (METRIC == EUCLIDEAN) facts.least = 0.5f * ((f32)square * (1.0f - SLACK(dim)) - limit * limit * (1.0f + SLACK(dim)));
#endif
    return facts;
}

// No row is a candidate.
DEVICE query_facts facts_of_no_query(void)
{
    query_facts facts = {EXACT && INTEGER && METRIC == EUCLIDEAN ? -1.0f : INFINITE, 0.0f};
    return facts;
}

// Whether the row may be among the nearest. A row with NaN always may.
DEVICE int may_be_near(sum a, query_facts query, row_facts row)
{
#if EXACT && INTEGER && METRIC == EUCLIDEAN
    return (f32)((i32)f32_bits(row.first) - 2 * a + (i32)f32_bits(query.error)) <= query.least;
#elif EXACT && METRIC == COSINE
    return !(row.first > 0.0f) || !((f32)a < query.least * row.first);
#elif EXACT
    return !((f32)a < query.least);
#elif METRIC == COSINE
    return !(fmaf(query.error, row.first, a) < query.least * row.second);
#elif METRIC == EUCLIDEAN
    return !(fmaf(query.error, row.first, a) < query.least + row.second);
#else
    return !(fmaf(query.error, row.first, a) < query.least);
#endif
}

// The score, where EXACT; else a score that the row's own is at least as near as.
DEVICE f32 certain_score(sum a, sum query_square, f32 error, row_facts row, u32 dim)
{
#if EXACT
    return finish_score(a, (sum)f32_bits(row.first), query_square, row.first);
#else
    f32 low = a - error * row.first, length = sqrtf(query_square), score = lowered(low);
    if (METRIC == COSINE) score = length == 0.0f && row.first < INFINITE ? 0.0f : lowered(low / (row.second * length));
    if (METRIC == EUCLIDEAN) {
        f32 squares = (2.0f * row.second + query_square) * (1.0f + 4.0f * SLACK(dim)) - 2.0f * low;
        score = sqrtf(squares <= 0.0f ? 0.0f : squares) * (1.0f + ALMOST_ONE_SHARE);
    }
    return fabsf(score) < INFINITE ? score : NOT_A_NUMBER;
#endif
}

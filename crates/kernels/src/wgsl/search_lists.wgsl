// Candidates of a search with many queries: a matrix product by tiles whose sums are not stored. Those whose scores are not worse than
// the query's limit go to its list. Queries are A, rows are B; each query has `wanted` limits, of which the last counts.

alias T = f32;
//# include product_params.wgsl
@group(1) @binding(next) var<storage, read_write> lists: array<vec2<u32>>;
@group(1) @binding(next) var<storage, read_write> counts: array<atomic<u32>>;
@group(1) @binding(next) var<storage, read> a: array<$WORDS_A>;
@group(1) @binding(next) var<storage, read> b: array<$WORDS_B>;
@group(1) @binding(next) var<storage, read> limits: array<vec2<u32>>;
//# if FILTERED
@group(1) @binding(next) var<storage, read> bits: array<u32>;
//# end
//# if METRIC is Cosine
@group(1) @binding(next) var<storage, read> row_norms: array<f32>;
@group(1) @binding(next) var<storage, read> query_norms: array<f32>;
//# end
//# include bits.wgsl
//# include keys.wgsl
//# include score.wgsl
//# if LOAD_A is Single
//# load a TYPE
//# end
//# if LOAD_B is Single
//# load b TYPE
//# end

//# include list_four.wgsl
//# include tile.wgsl

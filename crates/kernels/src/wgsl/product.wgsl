// Matrix products by tiles: `activation(alpha * A B + beta * C + bias)`.

alias T = $CARRIER;
//# include product_params.wgsl
//# if VECTOR_STORE
@group(1) @binding(next) var<storage, read_write> out: array<vec4<T>>;
//# else
@group(1) @binding(next) var<storage, read_write> out: array<T>;
//# end
@group(1) @binding(next) var<storage, read> a: array<$WORDS_A>;
@group(1) @binding(next) var<storage, read> b: array<$WORDS_B>;
//# if WITH_C
@group(1) @binding(next) var<storage, read> c: array<$ADDEND_WORD>;
//# end
//# if BIAS is PerColumn or PerRow
@group(1) @binding(next) var<storage, read> bias: array<$ADDEND_WORD>;
//# end
//# if LOAD_A is Single
//# load a TYPE_A as CARRIER
//# end
//# if LOAD_B is Single
//# load b TYPE_B as CARRIER
//# end
//# include finish.wgsl
//# include tile.wgsl

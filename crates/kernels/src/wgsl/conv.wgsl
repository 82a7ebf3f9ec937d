// Convolutions and their gradients as tiled matrix products whose operands are read through the images.
//
// | pass | rows | columns | inner |
// | --- | --- | --- | --- |
// | forward | filters of a group | outputs of all images | channels of a group x taps |
// | input's gradient | channels of a group | inputs of all images | filters of a group x taps |
// | weights' gradient | filters of a group | channels of a group x taps | outputs of all images |
//
// `a` holds the weights (forward and input) or the output's gradient (weights), `b` the images (forward and weights) or the output's
// gradient (input). A batch is a group. Parameters: offsets of the operands and of the bias, channels and filters of a group and in
// all, height and width of input, kernel and output, stride, dilation, padding at top and left.

alias T = f32;
struct Params {
  m: u32,
  n: u32,
  k: u32,
  tiles_m: u32,
  tiles_n: u32,
  batches: u32,
  ao: u32,
  bo: u32,
  bias_o: u32,
  bias_s: u32,
  gc: i32,
  gf: i32,
  channels: i32,
  filters: i32,
  ih: i32,
  iw: i32,
  kh: i32,
  kw: i32,
  oh: i32,
  ow: i32,
  sh: i32,
  sw: i32,
  dh: i32,
  dw: i32,
  pt: i32,
  pl: i32,
  u0: u32,
  u1: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
@group(1) @binding(next) var<storage, read> a: array<$TYPE_WORD>;
@group(1) @binding(next) var<storage, read> b: array<$TYPE_WORD>;
//# if WITH_C
@group(1) @binding(next) var<storage, read> c: array<$ADDEND_WORD>;
//# end
//# if BIAS is PerColumn or PerRow
@group(1) @binding(next) var<storage, read> bias: array<$ADDEND_WORD>;
//# end
//# load a TYPE
//# load b TYPE
//# include finish.wgsl
//# include tile.wgsl

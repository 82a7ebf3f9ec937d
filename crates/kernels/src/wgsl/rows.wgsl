// Softmax and layer normalisation: a line is read, its totals are computed, and the line is written. `Cached` and `Subgroup` keep
// the line in registers, `CHUNKS` vectors of four in each invocation; the others read it again for each pass.

struct Params {
  outer: u32,
  axis: u32,
  inner: u32,
  o: u32,
  epsilon: f32,
  wo: u32,
  bo: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$ELEMENT>;
@group(1) @binding(next) var<storage, read> source: array<$SOURCE>;
//# if WEIGHT
@group(1) @binding(next) var<storage, read> weight: array<$SOURCE>;
//# end
//# if BIAS
@group(1) @binding(next) var<storage, read> bias: array<$SOURCE>;
//# end
//# include bits.wgsl
//# if OP is Softmax
//# include math.wgsl
fn exp4(x: vec4<f32>) -> vec4<f32> { return vec4<f32>(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w)); }
//# end
//# if not CACHED
//# load source TYPE
//# if WEIGHT
//# load weight TYPE
//# end
//# if BIAS
//# load bias TYPE
//# end
fn place(o: u32, i: u32, k: u32) -> u32 { return (o * p.axis + k) * p.inner + i; }
//# end

//# include row_totals.wgsl

//# if FORM is Subgroup
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32, @builtin(subgroup_id) subgroup: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
  // Lines behind the last are computed like it and not written, so that subgroups stay whole.
  let row = group * $ROWSu + subgroup;
  let line = min(row, p.outer - 1u);
  let start = (p.o + line * p.axis) / 4u;
  let place = line * p.axis / 4u;
  let len = select(0u, p.axis / 4u, row < p.outer);
//# else
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
//# end
//# if FORM is Cached
  if (group >= p.outer) { return; }
  let start = (p.o + group * p.axis) / 4u;
  let place = group * p.axis / 4u;
  let len = p.axis / 4u;
  let lane = lid;
//# end
//# if CACHED
//# for C in CHUNKS
  let k$C = lane + $Cu * $LANESu;
  let in$C = k$C < len;
//# if OP is Softmax
  var x$C = vec4<f32>(-inf_value());
//# else
  var x$C = vec4<f32>(0.0);
//# end
  if (in$C) { x$C = source[start + k$C]; }
//# end
//# if OP is Softmax
//# include row_top.wgsl
  var total = 0.0;
  // A line whose largest is infinite, or that has only -inf, must become NaN: places behind its end do not count.
//# for C in CHUNKS
  if (in$C) {
    let e = exp4(x$C - top);
//# if not LOG
    x$C = e;
//# end
    total = total + ((e.x + e.y) + (e.z + e.w));
  }
//# end
  total = total_sum(total, lid);
//# if LOG
  let log_total = log_(total);
//# else
  let scale = 1.0 / total;
//# end
//# else
//# include row_deviation.wgsl
//# end
//# for C in CHUNKS
  if (in$C) { let x = x$C; let k = k$C * 4u; out[place + k$C] = $WRITTEN; }
//# end
//# else
//# if FORM is Serial
  let t = group * 256u + lid;
  if (t >= p.outer * p.inner) { return; }
  let first = 0u;
  let step = 1u;
//# else
  let t = group;
  if (t >= p.outer * p.inner) { return; }
  let first = lid;
  let step = 256u;
//# end
  let o = t / p.inner;
  let i = t % p.inner;
//# if OP is Softmax
  var top = -inf_value();
  for (var k = first; k < p.axis; k = k + step) {
    let x = ld_source(p.o + place(o, i, k));
    if (x > top) { top = x; }
  }
  top = total_max(top, lid);
  var total = 0.0;
  for (var k = first; k < p.axis; k = k + step) { total = total + exp_(ld_source(p.o + place(o, i, k)) - top); }
  total = total_sum(total, lid);
  let log_total = log_(total);
//# else
  var mean = 0.0;
//# if not RMS
  for (var k = first; k < p.axis; k = k + step) { mean = mean + ld_source(p.o + place(o, i, k)); }
  mean = total_sum(mean, lid) / f32(p.axis);
//# end
  var squares = 0.0;
  for (var k = first; k < p.axis; k = k + step) {
    let d = ld_source(p.o + place(o, i, k)) - mean;
    squares = squares + d * d;
  }
  squares = total_sum(squares, lid);
  let deviation = sqrt(squares / f32(p.axis) + p.epsilon);
//# end
  for (var k = first; k < p.axis; k = k + step) {
    let at = place(o, i, k);
    let x = ld_source(p.o + at);
    out[at] = $WRITTEN;
  }
//# end
}

// A function of lines between two expressions, `before` and `after`. A line of f32 is read once and kept in registers, CHUNKS vectors
// of four in each invocation.
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
  let is_own = row < p.outer;
//# else
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let line = wid.y * nwg.x + wid.x;
  if (line >= p.outer) { return; }
  let is_own = true;
  let lane = lid;
//# end
  let len = p.axis / 4u;
//# for C in CHUNKS
  let k$C = lane + $Cu * $LANESu;
  let in$C = k$C < len;
//# if FUNCTION is Softmax or LogSoftmax
  var x$C = vec4<f32>(-inf_value());
//# else
  var x$C = vec4<f32>(0.0);
//# end
  if (in$C) { x$C = first(line, k$C); }
//# end
//# if FUNCTION is Sum or Mean
  var total = 0.0;
//# for C in CHUNKS
  total = total + ((x$C.x + x$C.y) + (x$C.z + x$C.w));
//# end
  total = total_sum(total, lid);
//# if FUNCTION is Mean
  total = total / f32(p.axis);
//# end
  if (is_own && lane == 0u) { out[line] = last_one(line, total); }
//# else
//# if FUNCTION is Softmax or LogSoftmax
//# include row_top.wgsl
  var total = 0.0;
  // A line whose largest is infinite, or that has only -inf, must become NaN: places behind its end do not count.
//# for C in CHUNKS
  if (in$C) {
    x$C = x$C - top;
    let e = vec4<f32>(exp_(x$C.x), exp_(x$C.y), exp_(x$C.z), exp_(x$C.w));
    total = total + ((e.x + e.y) + (e.z + e.w));
//# if FUNCTION is Softmax
    x$C = e;
//# end
  }
//# end
  total = total_sum(total, lid);
//# if FUNCTION is Softmax
  let scale = 1.0 / total;
//# else
  let shift = log_(total);
//# end
//# else
//# include row_deviation.wgsl
//# end
//# for C in CHUNKS
  if (in$C && is_own) {
//# if FUNCTION is Softmax
    let y = x$C * scale;
//# else
//# if FUNCTION is LogSoftmax
    let y = x$C - shift;
//# else
    let y = (x$C - mean) / deviation;
//# end
//# end
    out[line * len + k$C] = last(line, k$C, y);
  }
//# end
//# end
}

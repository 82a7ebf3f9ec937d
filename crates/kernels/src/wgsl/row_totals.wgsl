// Totals over all invocations that share a line.
//# if FORM is Serial
fn total_max(x: f32, lid: u32) -> f32 { return x; }
fn total_sum(x: f32, lid: u32) -> f32 { return x; }
//# end
//# if FORM is Subgroup
fn total_max(x: f32, lid: u32) -> f32 { return subgroupMax(x); }
fn total_sum(x: f32, lid: u32) -> f32 { return subgroupAdd(x); }
//# end
//# if FORM is Cooperative or Cached
var<workgroup> shared_x: array<f32, 256>;
fn total_max(x: f32, lid: u32) -> f32 {
  shared_x[lid] = x;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s && shared_x[lid + s] > shared_x[lid]) { shared_x[lid] = shared_x[lid + s]; }
    workgroupBarrier();
  }
  let result = shared_x[0];
  workgroupBarrier();
  return result;
}
fn total_sum(x: f32, lid: u32) -> f32 {
  shared_x[lid] = x;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s) { shared_x[lid] = shared_x[lid] + shared_x[lid + s]; }
    workgroupBarrier();
  }
  let result = shared_x[0];
  workgroupBarrier();
  return result;
}
//# end

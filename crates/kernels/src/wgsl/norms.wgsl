// The lengths of vectors. Eight invocations for each.

struct Params {
  count: u32,
  dim: u32,
  o: u32,
  first: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
@group(1) @binding(next) var<storage, read> rows: array<$TYPE_WORD>;
//# load rows TYPE as f32
var<workgroup> partial: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let row = group * 32u + lid / 8u;
  var sum = 0.0;
  if (row < p.count) {
    for (var c = lid % 8u; c < p.dim; c = c + 8u) {
      let x = ld_rows(p.o + row * p.dim + c);
      sum = sum + x * x;
    }
  }
  partial[lid] = sum;
  workgroupBarrier();
  if (row < p.count && lid % 8u == 0u) {
    out[p.first + row] = sqrt(((partial[lid] + partial[lid + 1u]) + (partial[lid + 2u] + partial[lid + 3u]))
      + ((partial[lid + 4u] + partial[lid + 5u]) + (partial[lid + 6u] + partial[lid + 7u])));
  }
}

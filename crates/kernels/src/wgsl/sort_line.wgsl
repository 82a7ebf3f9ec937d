// Short lines: a bitonic sort of keys with their positions in workgroup memory. Positions make it stable.

struct Params {
  lines: u32,
  axis: u32,
  inner: u32,
  o: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
@group(1) @binding(next) var<storage, read> source: array<$TYPE_WORD>;
//# include bits.wgsl
//# include keys.wgsl
//# load source TYPE
var<workgroup> pairs: array<vec2<u32>, $SIZE>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= p.lines) { return; }
  let outer = group / p.inner;
  let i = group % p.inner;
  for (var t = lid; t < $SIZEu; t = t + 256u) {
    var pair = vec2<u32>(0xffffffffu, 0x80000000u + t);
    if (t < p.axis) {
      let key = key_$TYPE_CARRIER(ld_source(p.o + (outer * p.axis + t) * p.inner + i));
//# if DESCENDING
      pair = vec2<u32>(~key, t);
//# else
      pair = vec2<u32>(key, t);
//# end
    }
    pairs[t] = pair;
  }
  workgroupBarrier();
  for (var size = 2u; size <= $SIZEu; size = size << 1u) {
    for (var stride = size >> 1u; stride > 0u; stride = stride >> 1u) {
      for (var t = lid; t < $HALFu; t = t + 256u) {
        let low = 2u * t - (t & (stride - 1u));
        let high = low + stride;
        let a = pairs[low];
        let b = pairs[high];
        let rising = (low & size) == 0u;
        let less = b.x < a.x || (b.x == a.x && b.y < a.y);
        if (less == rising) { pairs[low] = b; pairs[high] = a; }
      }
      workgroupBarrier();
    }
  }
  for (var t = lid; t < p.axis; t = t + 256u) { out[(outer * p.axis + t) * p.inner + i] = pairs[t].y; }
}

// Sums, means, extremes and their positions along one axis, in one stage or in two. `Kept` is what is kept while reducing; a stage may
// read and write it instead of elements. A line is the elements that become one.

alias Kept = $KEPT;

struct Params {
  outer: u32,
  axis: u32,
  inner: u32,
  chunks: u32,
  chunk: u32,
  o: u32,
  count: u32,
  first: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$OUT>;
@group(1) @binding(next) var<storage, read> source: array<$SOURCE>;
//# include bits.wgsl
//# include keys.wgsl

// Sums of 64 bits in two words, and their value as a float.
fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn wide_value(a: vec2<u32>, is_signed: bool) -> f32 {
  if (is_signed && a.y >= 0x80000000u) {
    let low = 0u - a.x;
    let high = ~a.y + select(0u, 1u, a.x == 0u);
    return -(f32(high) * 4294967296.0 + f32(low));
  }
  return f32(a.y) * 4294967296.0 + f32(a.x);
}

fn join(a: Kept, b: Kept) -> Kept {
//# if JOIN is Sum
  return a + b;
//# end
//# if JOIN is WideSum
  return wide_add(a, b);
//# end
//# if JOIN is Max
  return max(a, b);
//# end
//# if JOIN is First
  if (b.x > a.x || (b.x == a.x && b.y < a.y)) { return b; }
  return a;
//# end
}
fn nothing() -> Kept { return $START; }
fn finish(a: Kept) -> $OUT { return $FINISH; }
//# if FROM_PARTIAL
fn take(i: u32, place: u32) -> Kept { return source[i]; }
//# else
fn make(x: $TYPE_CARRIER, place: u32) -> Kept { return $MAKE; }
//# if FORM is Vector
// Four neighbouring elements as one.
fn four(x: vec4<$TYPE_WORD>, k: u32) -> Kept {
  return join(join(make(x.x, k), make(x.y, k + 1u)), join(make(x.z, k + 2u), make(x.w, k + 3u)));
}
//# else
//# load source TYPE
fn take(i: u32, place: u32) -> Kept { return make(ld_source(i), place); }
//# end
//# end
//# if not FORM is Serial
var<workgroup> shared_a: array<Kept, 256>;
//# end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
//# if FORM is Serial
  // One invocation for each line and chunk.
  let t = group * 256u + lid;
  if (t >= p.outer * p.chunks * p.inner) { return; }
  let i = t % p.inner;
  let r = t / p.inner;
  let c = r % p.chunks;
  let o = r / p.chunks;
  let end = min(p.axis, (c + 1u) * p.chunk);
  var a = nothing();
  for (var k = c * p.chunk; k < end; k = k + 1u) {
    a = join(a, take(p.o + (o * p.axis + k) * p.inner + i, k));
  }
  out[(o * p.inner + i) * p.chunks + c] = finish(a);
//# end
//# if FORM is Cooperative
  // One workgroup for each line and chunk.
  if (group >= p.outer * p.inner * p.chunks) { return; }
  let c = group % p.chunks;
  let line = group / p.chunks;
  let i = line % p.inner;
  let o = line / p.inner;
  let end = min(p.axis, (c + 1u) * p.chunk);
  var a = nothing();
  for (var k = c * p.chunk + lid; k < end; k = k + 256u) {
    a = join(a, take(p.o + (o * p.axis + k) * p.inner + i, k));
  }
//# end
//# if FORM is Vector
  // As above, with vectors of four; four are read before any is used, so that their latencies overlap.
  if (group >= p.outer * p.chunks) { return; }
  let c = group % p.chunks;
  let line = group / p.chunks;
  let start = (p.o + line * p.axis) / 4u;
  let end = p.axis / 4u;
  var a = nothing();
  var a1 = nothing();
  var a2 = nothing();
  var a3 = nothing();
  // Neighbouring workgroups read neighbouring vectors, so that all of them sweep over memory together.
  for (var k = c * 1024u + lid; k < end; k = k + p.chunks * 1024u) {
    let x0 = source[start + k];
    let x1 = source[start + min(k + 256u, end - 1u)];
    let x2 = source[start + min(k + 512u, end - 1u)];
    let x3 = source[start + min(k + 768u, end - 1u)];
    a = join(a, four(x0, k * 4u));
    if (k + 256u < end) { a1 = join(a1, four(x1, k * 4u + 1024u)); }
    if (k + 512u < end) { a2 = join(a2, four(x2, k * 4u + 2048u)); }
    if (k + 768u < end) { a3 = join(a3, four(x3, k * 4u + 3072u)); }
  }
  a = join(join(a, a1), join(a2, a3));
//# end
//# if not FORM is Serial
  shared_a[lid] = a;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s) { shared_a[lid] = join(shared_a[lid], shared_a[lid + s]); }
    workgroupBarrier();
  }
  if (lid == 0u) { out[line * p.chunks + c] = finish(shared_a[0]); }
//# end
}

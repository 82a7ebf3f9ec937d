// Running sums, products and extremes along one axis. A line is the elements along the axis; `Kept` is what is kept while scanning.
// `Total` stores the total of each chunk, `Carries` scans the totals, and `Chunks` scans every chunk from its carry.

alias Kept = $KEPT;

struct Params {
  outer: u32,
  axis: u32,
  inner: u32,
  chunks: u32,
  chunk: u32,
  o: u32,
  reversed: u32,
  exclusive: u32,
  first: u32,
  last: u32,
  w: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$OUT>;
@group(1) @binding(next) var<storage, read> source: array<$SOURCE>;
//# if CARRIED
@group(1) @binding(next) var<storage, read> carry: array<Kept>;
//# end
//# include bits.wgsl
//# include keys.wgsl

//# if not VECTOR
//# if FORM is Carries
fn ld_source(i: u32) -> Kept { return source[i]; }
//# else
//# load source TYPE
//# end
//# end
fn make(x: $ELEMENT) -> Kept { return $MAKE; }
fn finish(a: Kept) -> $ELEMENT { return $FINISH; }
fn join(a: Kept, b: Kept) -> Kept { return $JOIN; }
// The neutral element, with which an exclusive scan begins.
fn start() -> Kept { return $START; }
fn place(o: u32, i: u32, k: u32) -> u32 {
  return (o * p.axis + select(k, p.axis - 1u - k, p.reversed == 1u)) * p.inner + i;
}
//# if not FORM is Serial
var<workgroup> sums: array<Kept, 512>;
//# end

//# if SUBGROUPS
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) thread: u32, @builtin(subgroup_id) subgroup: u32,
        @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) lanes: u32) {
  let group = wid.y * nwg.x + wid.x;
  // Invocations are counted subgroup by subgroup, so that the order of sums is that of the elements.
  let lid = subgroup * lanes + lane;
//# else
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
//# end
//# if FORM is Serial
  // One invocation for each line.
  let t = group * 256u + lid;
  if (t >= p.outer * p.inner) { return; }
  let o = t / p.inner;
  let i = t % p.inner;
  var a = start();
  for (var k = 0u; k < p.axis; k = k + 1u) {
    let at = place(o, i, k);
    let before = a;
    a = join(a, make(ld_source(p.o + at)));
    if (p.exclusive == 1u) { out[at] = finish(before); } else { out[at] = finish(a); }
  }
//# else
  // One workgroup for each line and chunk.
  let number = p.first + group;
  if (number >= p.last) { return; }
  let c = number % p.chunks;
  let line = number / p.chunks;
  let o = line / p.inner;
  let i = line % p.inner;
  let end = min(p.axis, (c + 1u) * p.chunk);
//# if FORM is Total
  var a = start();
//# if VECTOR
  // Four vectors are read before any is used, so that their latencies overlap.
  let origin = p.o + line * p.axis;
  var k = c * p.chunk + lid * 4u;
  for (; k + 3072u < end; k = k + 4096u) {
    let f0 = source[(origin + k) / 4u];
    let f1 = source[(origin + k + 1024u) / 4u];
    let f2 = source[(origin + k + 2048u) / 4u];
    let f3 = source[(origin + k + 3072u) / 4u];
    let j0 = join(join(make(f0.x), make(f0.y)), join(make(f0.z), make(f0.w)));
    let j1 = join(join(make(f1.x), make(f1.y)), join(make(f1.z), make(f1.w)));
    let j2 = join(join(make(f2.x), make(f2.y)), join(make(f2.z), make(f2.w)));
    let j3 = join(join(make(f3.x), make(f3.y)), join(make(f3.z), make(f3.w)));
    a = join(a, join(join(j0, j1), join(j2, j3)));
  }
  for (; k < end; k = k + 1024u) {
    let four = source[(p.o + line * p.axis + k) / 4u];
    a = join(a, join(join(make(four.x), make(four.y)), join(make(four.z), make(four.w))));
  }
//# else
  for (var k = c * p.chunk + lid; k < end; k = k + 256u) {
    a = join(a, make(ld_source(p.o + place(o, i, k))));
  }
//# end
  sums[lid] = a;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s) { sums[lid] = join(sums[lid], sums[lid + s]); }
    workgroupBarrier();
  }
  if (lid == 0u) { out[line * p.chunks + c] = sums[0]; }
//# else
  let own = p.exclusive == 0u;
//# if CARRIED
  var running = carry[line * p.chunks + c];
//# else
  var running = start();
//# end
//# if ROWS
  // Four rows of 1024 elements at a time: four vectors are on their way before the first is used, and all rows share two barriers.
  let origin = p.o + line * p.axis;
  for (var base = c * p.chunk; base < end; base = base + 4096u) {
    // Places behind the end are read as the last ones and count as nothing.
//# for R in 4
    let k$R = base + $Ru * 1024u + lid * 4u;
    let raw$R = source[(origin + min(k$R, end - 4u)) / 4u];
    let in$R = k$R < end;
    var a$R = select(start(), make(raw$R.x), in$R);
    var b$R = select(start(), make(raw$R.y), in$R);
    var c$R = select(start(), make(raw$R.z), in$R);
    var d$R = select(start(), make(raw$R.w), in$R);
//# end
//# for R in 4
    b$R = join(a$R, b$R);
    c$R = join(b$R, c$R);
    d$R = join(c$R, d$R);
    let within$R = $WITHIN(d$R);
    if (lane == lanes - 1u) { sums[$Ru * $COUNTu + subgroup] = join(within$R, d$R); }
//# end
    workgroupBarrier();
//# for R in 4
    var before$R = running;
    for (var s = 0u; s < $COUNTu; s = s + 1u) {
      if (s == subgroup) { before$R = join(running, within$R); }
      running = join(running, sums[$Ru * $COUNTu + s]);
    }
//# end
    workgroupBarrier();
//# for R in 4
    if (in$R) {
      let w0 = join(before$R, a$R);
      let w1 = join(before$R, b$R);
      let w2 = join(before$R, c$R);
      let w3 = join(before$R, d$R);
      out[(p.w + line * p.axis + k$R) / 4u] = vec4(finish(select(before$R, w0, own)), finish(select(w0, w1, own)),
        finish(select(w1, w2, own)), finish(select(w2, w3, own)));
    }
//# end
  }
//# else
  // Each invocation keeps four neighbouring elements; a scan over the workgroup joins the totals of the invocations.
  for (var base = c * p.chunk; base < end; base = base + 1024u) {
    let k = base + lid * 4u;
//# if VECTOR
    var x0 = start(); var x1 = start(); var x2 = start(); var x3 = start();
    if (k < end) {
      let four = source[(p.o + line * p.axis + k) / 4u];
      x0 = make(four.x); x1 = make(four.y); x2 = make(four.z); x3 = make(four.w);
    }
//# else
    var x0 = start(); var x1 = start(); var x2 = start(); var x3 = start();
    if (k < end) { x0 = make(ld_source(p.o + place(o, i, k))); }
    if (k + 1u < end) { x1 = make(ld_source(p.o + place(o, i, k + 1u))); }
    if (k + 2u < end) { x2 = make(ld_source(p.o + place(o, i, k + 2u))); }
    if (k + 3u < end) { x3 = make(ld_source(p.o + place(o, i, k + 3u))); }
//# end
    x1 = join(x0, x1);
    x2 = join(x1, x2);
    x3 = join(x2, x3);
//# if SUBGROUPS
    // Each subgroup scans its own values; every invocation then adds up the totals of subgroups.
    let within = $WITHIN(x3);
    let whole = join(within, x3);
    if (lane == lanes - 1u) { sums[subgroup] = whole; }
    workgroupBarrier();
    var before = running;
    for (var s = 0u; s < $COUNTu; s = s + 1u) {
      if (s == subgroup) { before = join(running, within); }
      running = join(running, sums[s]);
    }
    workgroupBarrier();
//# else
    // Each step reads one half of the memory and writes the other.
    sums[lid] = x3;
    workgroupBarrier();
    var half = 0u;
    for (var s = 1u; s < 256u; s = s << 1u) {
      var value = sums[half + lid];
      if (lid >= s) { value = join(sums[half + lid - s], value); }
      half = 256u - half;
      sums[half + lid] = value;
      workgroupBarrier();
    }
    var before = running;
    if (lid > 0u) { before = join(running, sums[half + lid - 1u]); }
    running = join(running, sums[half + 255u]);
    workgroupBarrier();
//# end
    let with0 = join(before, x0);
    let with1 = join(before, x1);
    let with2 = join(before, x2);
    let with3 = join(before, x3);
//# if VECTOR
    if (k < end) {
      out[(p.w + line * p.axis + k) / 4u] = vec4(finish(select(before, with0, own)), finish(select(with0, with1, own)),
        finish(select(with1, with2, own)), finish(select(with2, with3, own)));
    }
//# else
    if (k < end) { out[p.w + place(o, i, k)] = finish(select(before, with0, own)); }
    if (k + 1u < end) { out[p.w + place(o, i, k + 1u)] = finish(select(with0, with1, own)); }
    if (k + 2u < end) { out[p.w + place(o, i, k + 2u)] = finish(select(with1, with2, own)); }
    if (k + 3u < end) { out[p.w + place(o, i, k + 3u)] = finish(select(with2, with3, own)); }
//# end
  }
//# end
//# end
//# end
}

// The best k of every line, by one workgroup for each line and part. Outputs: pairs of key and id, `k` for each line and slot, a part
// taking one slot; or, at last, the ids and the scores.

struct Params {
  lines: u32,
  axis: u32,
  inner: u32,
  parts: u32,
  part: u32,
  k: u32,
  o: u32,
  first: u32,
  fo: u32,
  no: u32,
  qo: u32,
  missing: f32,
  slots: u32,
  slot: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
//# if LAST
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
//# if SCORED
@group(1) @binding(next) var<storage, read_write> scores: array<f32>;
//# end
//# else
@group(1) @binding(next) var<storage, read_write> out: array<vec2<u32>>;
//# end
@group(1) @binding(next) var<storage, read> source: array<$SOURCE_WORD>;
//# if FILTERED
@group(1) @binding(next) var<storage, read> bits: array<u32>;
//# end
//# if SOURCE is Scores
//# if METRIC is Cosine
@group(1) @binding(next) var<storage, read> row_norms: array<f32>;
@group(1) @binding(next) var<storage, read> query_norms: array<f32>;
//# end
//# end
//# if SOURCE is Lists
@group(1) @binding(next) var<storage, read> counts: array<u32>;
//# end
//# include bits.wgsl
//# include keys.wgsl
//# if SOURCE is Elements
//# load source TYPE
//# end
//# if SCORED
//# include score.wgsl
//# end
//# include candidates.wgsl

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= p.lines * p.parts) { return; }
  let part = group % p.parts;
  let line = group / p.parts;
  let outer = line / p.inner;
  let i = line % p.inner;
  let end = min(p.axis, (part + 1u) * p.part);
  clear_list(lid);
  // How many candidates wait behind the first k, the same number in all invocations.
  var count = 0u;
  for (var base = part * p.part; base < end; base = base + $TAKENu * 256u) {
//# for J in TAKEN
    var c$J = vec2<u32>(0u, 0xffffffffu);
    {
      let t = base + $Ju * 256u + lid;
      if (t < end) {
//# if SOURCE is Elements
        let key = key_$TYPE_CARRIER(ld_source(p.o + (outer * p.axis + t) * p.inner + i));
//# if LARGEST
        c$J = vec2<u32>(key, p.first + t);
//# else
        c$J = vec2<u32>(~key, p.first + t);
//# end
//# end
//# if SOURCE is Scores
        let row = p.first + t * p.inner;
//# if FILTERED
        if (((bits[p.fo + (row >> 5u)] >> (row & 31u)) & 1u) == 1u) {
          c$J = vec2<u32>(score_key(finish(source[p.o + line * p.axis + t], t * p.inner, line)), row);
        }
//# else
        c$J = vec2<u32>(score_key(finish(source[p.o + line * p.axis + t], t * p.inner, line)), row);
//# end
//# end
//# if SOURCE is Lists
        // A list that would have more than there is room for is taken for empty.
        let listed = counts[line];
        if (t < select(listed, 0u, listed > p.axis)) { c$J = source[p.o + line * p.axis + t]; }
//# end
//# if SOURCE is Pairs
        c$J = source[p.o + line * p.axis + t];
//# end
      }
    }
//# end
    let worst = best[p.k - 1u];
    var hopeful = 0u;
//# for J in TAKEN
    if (better(c$J, worst)) { hopeful = hopeful + 1u; }
//# end
    if (hopeful > 0u) { atomicAdd(&wanted, hopeful); }
    workgroupBarrier();
    if (lid == 0u) { added_now = atomicLoad(&wanted); }
    let total = workgroupUniformLoad(&added_now);
    if (total > 0u) {
      if (lid == 0u) { atomicStore(&wanted, 0u); }
      if (p.k + count + total <= $LISTu) {
//# for J in TAKEN
        offer(c$J, p.k);
//# end
        count = count + total;
        workgroupBarrier();
      } else {
        if (count > 0u) { settle(p.k, count, lid); }
//# for J in TAKEN
        offer(c$J, p.k);
        count = waiting(lid);
        if (p.k + count + 256u > $LISTu) { settle(p.k, count, lid); count = 0u; }
//# end
      }
    }
  }
  if (count > 0u) { settle(p.k, count, lid); }
  for (var j = lid; j < p.k; j = j + 256u) {
//# if LAST
//# if SCORED
    let at = line * p.k + j;
    out[at] = best[j].y;
    scores[at] = select(key_score(best[j].x), p.missing, best[j].y == 0xffffffffu);
//# else
    out[(outer * p.k + j) * p.inner + i] = best[j].y;
//# end
//# else
    out[(line * p.slots + p.slot + part) * p.k + j] = best[j];
//# end
  }
}

// Elements picked by index along one axis, or each by a separate index. A bad index sets the first word of `status` to one
// more than the index of the offending index.

struct Params {
  n: u32,
  o: u32,
  io: u32,
  len: u32,
  count: u32,
  inner: u32,
  elementwise: u32,
//# if WINDOWED
  first: u32,
  seen: u32,
//# end
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$ELEMENT>;
@group(1) @binding(next) var<storage, read_write> status: array<atomic<u32>>;
@group(1) @binding(next) var<storage, read> source: array<$ELEMENT>;
@group(1) @binding(next) var<storage, read> indices: array<u32>;

fn place(i: u32) -> u32 {
  let last = i % p.inner;
  let rest = i / p.inner;
  let middle = rest % p.count;
  let outer = rest / p.count;
  let which = select(middle, i, p.elementwise == 1u);
  var index = indices[p.io + which];
//# if SIGNED
  if (index >= 0x80000000u) { index = index + p.len; }
//# end
  if (index >= p.len) {
    atomicMax(&status[0], which + 1u);
    index = 0u;
  }
//# if WINDOWED
  // The place behind all others stands for a row that is not seen.
  if (index < p.first || index - p.first >= p.seen) { return 0xffffffffu; }
  return p.o + (index - p.first) * p.inner + last;
//# else
  return p.o + (outer * p.len + index) * p.inner + last;
//# end
}

// An element, bit by bit.
fn element(at: u32) -> $ELEMENT {
//# if LANES is 4
  return extractBits(source[at >> 2u], (at & 3u) * 8u, 8u);
//# end
//# if LANES is 2
  return extractBits(source[at >> 1u], (at & 1u) * 16u, 16u);
//# end
//# if LANES is 1
  return source[at];
//# end
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  // One word each, or one element of eight bytes, so that no two invocations write to one word.
  let w = group * 256u + lid;
  if (w * $LANESu >= p.n) { return; }
//# if WINDOWED
//# if LANES is 1
  let at = place($FIRST + w);
  if (at < $SEEN) { out[w] = element(at); }
//# else
  // Elements outside the window stay unchanged.
  var word = 0u;
  var kept = 0xffffffffu;
//# for J in LANES
  if (w * $LANESu + $Ju < p.n) {
    let at = place($FIRST + w * $LANESu + $Ju);
    if (at < $SEEN) {
      word = word | (element(at) << ($Ju * $BITSu));
      kept = kept & ~($MASKu << ($Ju * $BITSu));
    }
  }
//# end
  if (kept != 0xffffffffu) { out[w] = (out[w] & kept) | word; }
//# end
//# else
//# if LANES is 1
  out[w] = element(place(w));
//# else
  var word = 0u;
//# for J in LANES
  word = word | (element(place(min(w * $LANESu + $Ju, p.n - 1u))) << ($Ju * $BITSu));
//# end
  out[w] = word;
//# end
//# end
}

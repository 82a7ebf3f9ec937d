// A strided view written out contiguously, bit by bit. Through a window only a part of the input is seen, and a part of the output
// is written, from an element on that the parameters name.

struct Params {
  n: u32,
  o: u32,
//# for J in RANK
  d$J: u32,
//# end
//# for J in RANK
  s$J: u32,
//# end
//# if WINDOWED
  first: u32,
  seen: u32,
//# end
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$ELEMENT>;
@group(1) @binding(next) var<storage, read> source: array<$ELEMENT>;

// Where the element `i` of the output lies in the input. The last axis is counted first.
fn place(i: u32) -> u32 {
  var t = i;
  var at = p.o;
//# down J in RANK
  at = at + (t % p.d$J) * p.s$J;
  t = t / p.d$J;
//# end
  return at;
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

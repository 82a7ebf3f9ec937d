// The best k so far, kept in workgroup memory, sorted, with room behind them: candidates better than the worst of the k are appended,
// and when the room is short everything is sorted and cut. Once the k are good, hardly any candidate passes. A candidate is a key
// and an id; the larger key is better, and among equals the smaller id.

var<workgroup> best: array<vec2<u32>, $LIST>;
var<workgroup> added: atomic<u32>;
var<workgroup> added_now: u32;
var<workgroup> wanted: atomic<u32>;

fn better(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

fn clear_list(lid: u32) {
  for (var t = lid; t < $LISTu; t = t + 256u) { best[t] = vec2<u32>(0u, 0xffffffffu); }
  if (lid == 0u) { atomicStore(&added, 0u); atomicStore(&wanted, 0u); }
  workgroupBarrier();
}

fn offer(candidate: vec2<u32>, k: u32) {
  if (better(candidate, best[k - 1u])) {
    let slot = atomicAdd(&added, 1u);
    best[k + slot] = candidate;
  }
}

// Sorts what is there, best first, and empties the room behind the first k.
fn settle(k: u32, count: u32, lid: u32) {
  for (var t = k + count + lid; t < $LISTu; t = t + 256u) { best[t] = vec2<u32>(0u, 0xffffffffu); }
  workgroupBarrier();
  for (var size = 2u; size <= $LISTu; size = size << 1u) {
    for (var stride = size >> 1u; stride > 0u; stride = stride >> 1u) {
      for (var t = lid; t < $LISTu / 2u; t = t + 256u) {
        let low = 2u * t - (t & (stride - 1u));
        let high = low + stride;
        let a = best[low];
        let b = best[high];
        let falling = (low & size) == 0u;
        if (better(b, a) == falling) { best[low] = b; best[high] = a; }
      }
      workgroupBarrier();
    }
  }
  if (lid == 0u) { atomicStore(&added, 0u); }
  workgroupBarrier();
}

// How many candidates wait behind the first k, the same for all invocations.
fn waiting(lid: u32) -> u32 {
  workgroupBarrier();
  if (lid == 0u) { added_now = atomicLoad(&added); }
  return workgroupUniformLoad(&added_now);
}

// Appends those sums of a query with four rows that are good enough to the query's list.
fn list_one(sum: f32, line: u32, t: u32, limit: u32) {
  if (t >= p.n) { return; }
  let key = score_key(finish(sum, t, line));
  if (key < limit) { return; }
//# if FILTERED
  let id = p.first + t;
  if (((bits[p.fo + (id >> 5u)] >> (id & 31u)) & 1u) == 0u) { return; }
//# end
  let place = atomicAdd(&counts[line], 1u);
  if (place < p.places) { lists[line * p.places + place] = vec2<u32>(key, p.first + t); }
}
fn list_four(v: vec4<f32>, line: u32, t: u32) {
//# if TYPE is f16 or bf16
  // A little less than the limit, should matrix units add up in another order than those that have found it.
  let limit = max(limits[line * p.wanted + p.wanted - 1u].x, 16u) - 16u;
//# else
  let limit = limits[line * p.wanted + p.wanted - 1u].x;
//# end
//# if METRIC is Dot
  // Hardly any sum is good enough, which one comparison of numbers shows, as long as the limit is one above minus infinity.
  if (limit > 0x007fffffu && !any(v >= vec4<f32>(unkey_f32(limit)))) { return; }
//# end
  list_one(v.x, line, t, limit);
  list_one(v.y, line, t + 1u, limit);
  list_one(v.z, line, t + 2u, limit);
  list_one(v.w, line, t + 3u, limit);
}

// From sums to scores to keys: the larger key is the nearer row, and NaN is the worst.

//# if NEARER_IS_SMALLER
fn score_key(s: f32) -> u32 { return ~key_f32(s); }
fn key_score(k: u32) -> f32 { return unkey_f32(~k); }
//# else
fn score_key(s: f32) -> u32 {
  let k = key_f32(s);
  if (k == 0xffffffffu) { return 0u; }
  return k;
}
fn key_score(k: u32) -> f32 {
  if (k == 0u) { return nan_value(); }
  return unkey_f32(k);
}
//# end
//# if FINISHES

// The score of the row `p.first + t` and the query `p.qo + line`, from their sum `s`.
fn finish(s: f32, t: u32, line: u32) -> f32 {
//# if METRIC is Dot
  return s;
//# end
//# if METRIC is Euclidean
  return sqrt(s);
//# end
//# if METRIC is Cosine
  let norms = row_norms[p.no + p.first + t] * query_norms[p.qo + line];
  if (norms == 0.0) { return 0.0; }
  return s / norms;
//# end
}
//# end

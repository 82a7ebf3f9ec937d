// One pass of Stockham's algorithm over contiguous lines, as in ../c/fft.c, with one invocation for each element that it writes. A pass over lines of
// `len` sees `stride` interleaved lines of `length` elements (length * stride = len), and makes of every `radix` elements, length / radix
// apart, as many neighbours. `roots` has the len-th roots of one, made on the host: sines of shaders may be too coarse.

struct Params {
  count: u32,
  per_line: u32,
  len: u32,
  length: u32,
  stride: u32,
  radix: u32,
  o: u32,
  inverse: u32,
  scale: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
//# if TO is Real
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
//# else
@group(1) @binding(next) var<storage, read_write> out: array<vec2<f32>>;
//# end
//# if FROM is Real
@group(1) @binding(next) var<storage, read> source: array<f32>;
//# else
@group(1) @binding(next) var<storage, read> source: array<vec2<f32>>;
//# end
@group(1) @binding(next) var<storage, read> roots: array<vec2<f32>>;

fn element(line: u32, place: u32) -> vec2<f32> {
//# if FROM is Real
  return vec2<f32>(source[p.o + line * p.len + place], 0.0);
//# end
//# if FROM is Complex
  return source[p.o + line * p.len + place];
//# end
//# if FROM is Half
  // The other half mirrors the first; of a real signal the outermost have no imaginary parts.
  let half = p.len / 2u + 1u;
  let mirrored = select(p.len - place, place, place < half);
  let value = source[p.o + line * half + mirrored];
  let turned = select(-value.y, value.y, mirrored == place);
  return vec2<f32>(value.x, select(turned, 0.0, place == 0u || 2u * place == p.len));
//# end
}

fn product(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

fn root(place: u32) -> vec2<f32> {
  let w = roots[place];
  return vec2<f32>(w.x, select(w.y, -w.y, p.inverse == 1u));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let t = (wid.y * nwg.x + wid.x) * 256u + lid;
  if (t >= p.count) { return; }
  let line = t / p.per_line;
  let place = t % p.per_line;
  let lane = place % p.stride;
  let rest = place / p.stride;
  let k = rest % p.radix;
  let group = rest / p.radix;
  let apart = p.length / p.radix;
  let step = p.len / p.radix;
  var sum = vec2<f32>(0.0, 0.0);
  var at = 0u;
  // Sixteen at a time, so that long sums lose little.
  for (var first = 0u; first < p.radix; first = first + 16u) {
    var some = vec2<f32>(0.0, 0.0);
    let end = min(first + 16u, p.radix);
    for (var j = first; j < end; j = j + 1u) {
      some = some + product(element(line, lane + p.stride * (group + j * apart)), root(at * step));
      at = at + k;
      if (at >= p.radix) { at = at - p.radix; }
    }
    sum = sum + some;
  }
  let value = product(sum, root(group * k * p.stride)) * bitcast<f32>(p.scale);
//# if TO is Real
  out[t] = value.x;
//# else
  out[t] = value;
//# end
}

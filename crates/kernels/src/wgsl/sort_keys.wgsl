// Keys whose ascending order is the wanted one, line by line. Exact keys distinguish zeros of both signs, so that elements can be
// restored from them. Types of fewer bits have keys of fewer bits, and so fewer digits.

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

fn exact_f32(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) { return 0xffffffffu; }
  return select(~u, u | 0x80000000u, u < 0x80000000u);
}
fn short_key(u: u32, infinity: u32) -> u32 {
  let m = u & 0x7fffu;
  if (m > infinity) { return 0xffffu; }
  if (m == 0u) { return 0x8000u; }
  return select(~u & 0xffffu, u | 0x8000u, u < 0x8000u);
}

fn key_of(x: $TYPE_CARRIER) -> u32 {
//# if TYPE is f32
//# if EXACT
  return exact_f32(x);
//# else
  return key_f32(x);
//# end
//# end
//# if TYPE is f16
  return short_key(half_bits(x), 0x7c00u);
//# end
//# if TYPE is bf16
  return short_key(bf16_bits(x), 0x7f80u);
//# end
//# if TYPE is i8
  return bitcast<u32>(x + 128) & 0xffu;
//# end
//# if TYPE is i32 or u32 or u8
  return key_$TYPE_CARRIER(x);
//# end
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let t = group * 256u + lid;
  if (t >= p.lines * p.axis) { return; }
  let line = t / p.axis;
  let at = (line / p.inner * p.axis + t % p.axis) * p.inner + line % p.inner;
  let key = key_of(ld_source(p.o + at));
//# if DESCENDING
  out[t] = ~key & $MASKu;
//# else
  out[t] = key;
//# end
}

// Carriers packed into elements of 8 or 16 bits, a word of them in each invocation.

struct Params {
  n: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
@group(1) @binding(next) var<storage, read> source: array<$TYPE_CARRIER>;
//# include bits.wgsl

// An element's bits, lowest.
fn packed(x: $TYPE_CARRIER) -> u32 {
//# if TYPE is f16
  return half_bits(x);
//# end
//# if TYPE is bf16
  return bf16_bits(x);
//# end
//# if TYPE is i8
  return bitcast<u32>(x) & 0xffu;
//# end
//# if TYPE is u8
  return x & 0xffu;
//# end
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let w = group * 256u + lid;
  if (w * $LANESu >= p.n) { return; }
  var word = 0u;
//# for J in LANES
  // A word may reach behind the last element: its rest repeats that element.
  word = word | (packed(source[min(w * $LANESu + $Ju, p.n - 1u)]) << ($Ju * $BITSu));
//# end
  out[w] = word;
}

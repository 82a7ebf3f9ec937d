// Matrix products one output at a time, for complex numbers, which have no vectors of four.

alias T = f32;
//# include product_params.wgsl
@group(1) @binding(next) var<storage, read_write> out: array<vec2<f32>>;
@group(1) @binding(next) var<storage, read> a: array<vec2<f32>>;
@group(1) @binding(next) var<storage, read> b: array<vec2<f32>>;
//# if WITH_C
@group(1) @binding(next) var<storage, read> c: array<vec2<f32>>;
//# end
//# if BIAS is PerColumn or PerRow
@group(1) @binding(next) var<storage, read> bias: array<vec2<f32>>;
//# end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.batches * p.m * p.n) { return; }
  let col = i % p.n;
  let row = i / p.n % p.m;
  let batch = i / (p.n * p.m);
//# include batches.wgsl
  var sum = vec2<f32>(0.0, 0.0);
  for (var k = 0u; k < p.k; k = k + 1u) {
    let x = a[a_base + row * p.ars + k * p.acs];
    let y = b[b_base + k * p.brs + col * p.bcs];
    sum = sum + vec2<f32>(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
  }
  var x = sum * p.alpha;
//# if WITH_C
  x = x + p.beta * c[c_base + row * p.crs + col * p.ccs];
//# end
//# if BIAS is PerColumn
  x = x + bias[p.bias_o + col * p.bias_s];
//# end
//# if BIAS is PerRow
  x = x + bias[p.bias_o + row * p.bias_s];
//# end
  out[i] = x;
}

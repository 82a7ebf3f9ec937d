// The epilogue, applied to a sum before it is stored: `activation(alpha * sum + beta * C + bias)`. `T` carries sums.

//# if ACTIVATION is Relu or Gelu or Silu or Sigmoid or Tanh
//# include bits.wgsl
//# end
//# if ACTIVATION is Gelu or Silu or Sigmoid or Tanh
//# include math.wgsl
//# end
//# if WITH_C
//# load c ADDEND
//# end
//# if BIAS is PerColumn or PerRow
//# load bias ADDEND
//# end
fn finish(sum: T, batch: u32, row: u32, col: u32, c_base: u32) -> T {
  var x = sum;
//# if SCALED
  x = x * p.alpha;
//# end
//# if WITH_C
  x = x + p.beta * ld_c(c_base + row * p.crs + col * p.ccs);
//# end
//# if BIAS is PerColumn
  x = x + ld_bias(p.bias_o + col * p.bias_s);
//# end
//# if BIAS is PerRow
//# if KERNEL is Conv
  // A row of the result is a filter of this group; the bias counts all filters.
  x = x + ld_bias(p.bias_o + (batch * u32(p.gf) + row) * p.bias_s);
//# else
  x = x + ld_bias(p.bias_o + row * p.bias_s);
//# end
//# end
//# if ADDEND_CARRIER is f32
//# if ACTIVATION is Relu
  x = relu_(x);
//# end
//# if ACTIVATION is Gelu
  x = gelu_(x);
//# end
//# if ACTIVATION is Silu
  x = silu_(x);
//# end
//# if ACTIVATION is Sigmoid
  x = sigmoid_(x);
//# end
//# if ACTIVATION is Tanh
  x = tanh_(x);
//# end
//# end
//# if ADDEND_CARRIER is i32
//# if ACTIVATION is Relu
  x = max(x, 0i);
//# end
//# end
  return x;
}

// Bounds of numbers may take what is none for one.
fn is_none(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
// Beyond these bounds both functions are at their limits, and exponentials may overflow.
fn sigmoid_of(x: f32) -> f32 { return select(1.0 / (1.0 + exp(clamp(-x, -87.0, 87.0))), x, is_none(x)); }
fn tanh_of(x: f32) -> f32 { return select(tanh(clamp(x, -20.0, 20.0)), x, is_none(x)); }


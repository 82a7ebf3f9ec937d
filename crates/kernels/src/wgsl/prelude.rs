//! What kernels share: how elements are read, packed, ordered and counted. Text with `$NAME` in it is a template.

use std::fmt::Write;

use panoply_core::DType;

/// The element type of a type's carrier.
pub fn carrier_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::I8 => DType::I32,
        DType::U8 => DType::U32,
        same => same,
    }
}

/// The WGSL type that carries elements in registers.
pub fn carrier(dtype: DType) -> &'static str {
    match carrier_dtype(dtype) {
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::F64 => "f64",
        DType::Complex64 => "vec2<f32>",
        _ => "f32",
    }
}

/// The WGSL type of which a buffer of such elements is an array.
pub(super) fn word(dtype: DType) -> &'static str {
    if dtype.size_bytes() < 4 { "u32" } else { carrier(dtype) }
}

/// A zero of the carrier.
pub(super) fn zero(dtype: DType) -> &'static str {
    match carrier(dtype) {
        "i32" => "0i",
        "u32" => "0u",
        "f64" => "0.0lf",
        "vec2<f32>" => "vec2<f32>(0.0, 0.0)",
        _ => "0.0f",
    }
}

/// The template with each `$NAME` replaced. Longer names must stand before their beginnings.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// The declaration of the parameters, all of 32 bits: `name` or `name: type`.
pub(super) fn params(names: &[&str]) -> String {
    let mut text = "struct Params {\n".to_owned();
    for name in names {
        let typed = if name.contains(':') { (*name).to_owned() } else { format!("{name}: u32") };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "  {typed},");
    }
    text.push_str("}\n");
    text.push_str(PARAMS_IN_BUFFER);
    text
}

/// How parameters are declared that come in a buffer, and those that come with the dispatch.
const PARAMS_IN_BUFFER: &str = "@group(0) @binding(0) var<uniform> p: Params;\n";
const PARAMS_IMMEDIATE: &str = "var<immediate> p: Params;\n";

/// A kernel's text with parameters that come with the dispatch, and how many words they are; nothing where they are more
/// than `words_max`.
pub fn with_immediates(source: &str, words_max: usize) -> Option<(String, usize)> {
    let (before, behind) = source.split_once(PARAMS_IN_BUFFER)?;
    let words = before.lines().skip_while(|line| *line != "struct Params {").skip(1).take_while(|line| *line != "}");
    let words = words.map(words_of).sum();
    (words <= words_max).then(|| (format!("{before}{PARAMS_IMMEDIATE}{behind}"), words))
}

/// How a table of four words each begins, in a declaration of parameters; how many follows.
pub(super) const TABLE: &str = "array<vec4<u32>, ";

/// The words of one declared parameter.
fn words_of(line: &str) -> usize {
    let table = line.split_once(TABLE).and_then(|(_, count)| count.trim_end_matches(">,").parse::<usize>().ok());
    table.map_or(1, |count| 4 * count)
}

/// The declarations of storage buffers: the written ones, then those that are read, as `(name, element type)`.
pub(super) fn buffers(writes: &[(&str, &str)], reads: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let all = writes.iter().map(|buffer| (buffer, "read_write")).chain(reads.iter().map(|buffer| (buffer, "read")));
    for (place, ((name, element), access)) in all.enumerate() {
        let _ = writeln!(text, "@group(1) @binding({place}) var<storage, {access}> {name}: array<{element}>;");
    }
    text
}

/// `fn ld_NAME(i: u32)`, which reads one element of the buffer NAME into its carrier.
pub(super) fn load(name: &str, dtype: DType) -> String {
    load_from(name, name, dtype, false)
}

/// As [`load`], from a buffer with another name; with `raw` that buffer is an array of u32 whatever the type.
pub(super) fn load_from(name: &str, buffer: &str, dtype: DType, raw: bool) -> String {
    let carrier = carrier(dtype);
    let body = match dtype {
        DType::F16 => format!("return unpack2x16float({buffer}[i >> 1u] >> ((i & 1u) * 16u)).x;"),
        DType::BF16 => format!("return bitcast<f32>(({buffer}[i >> 1u] >> ((i & 1u) * 16u)) << 16u);"),
        DType::I8 => format!("return extractBits(bitcast<i32>({buffer}[i >> 2u]), (i & 3u) * 8u, 8u);"),
        DType::U8 => format!("return extractBits({buffer}[i >> 2u], (i & 3u) * 8u, 8u);"),
        DType::Complex64 if raw => {
            format!("return vec2<f32>(bitcast<f32>({buffer}[2u * i]), bitcast<f32>({buffer}[2u * i + 1u]));")
        }
        DType::F32 | DType::I32 if raw => format!("return bitcast<{carrier}>({buffer}[i]);"),
        _ => format!("return {buffer}[i];"),
    };
    format!("fn ld_{name}(i: u32) -> {carrier} {{ {body} }}\n")
}

/// How many elements one written word (or the two words of an element of eight bytes) holds.
pub(super) fn elements_per_word(dtype: DType) -> usize {
    (4 / dtype.size_bytes()).max(1)
}

/// The expression that packs carriers named `names` into one word of the buffer.
pub(super) fn pack(dtype: DType, names: &[String]) -> String {
    let joined = |bits: u32, each: &dyn Fn(&String) -> String| {
        let parts =
            names.iter().enumerate().map(|(place, name)| format!("({} << {}u)", each(name), place as u32 * bits));
        parts.collect::<Vec<_>>().join(" | ")
    };
    match dtype {
        DType::F16 => joined(16, &|name| format!("half_bits({name})")),
        DType::BF16 => joined(16, &|name| format!("bf16_bits({name})")),
        DType::I8 => joined(8, &|name| format!("(bitcast<u32>({name}) & 0xffu)")),
        DType::U8 => joined(8, &|name| format!("({name} & 0xffu)")),
        _ => names[0].clone(),
    }
}

/// The signature and the first lines of every kernel: `group` counts workgroups, `lid` the invocations of one.
pub(super) const ENTRY: &str = "
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
";

/// Bits of floats: what NaN is, and the packed forms of f32 rounded to nearest, ties to even.
pub(super) const BITS: &str = "
// Read through variables, because constant expressions may be neither infinite nor NaN.
var<private> nan_bits: u32 = 0x7fc00000u;
var<private> inf_bits: u32 = 0x7f800000u;
fn nan_value() -> f32 { return bitcast<f32>(nan_bits); }
fn inf_value() -> f32 { return bitcast<f32>(inf_bits); }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
// By its bits: drivers make a maximum of comparisons, and lose NaN.
fn relu_(x: f32) -> f32 {
  let u = bitcast<u32>(x);
  return bitcast<f32>(select(u, 0u, u >= 0x80000000u && u <= 0xff800000u));
}

fn half_bits(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  let sign = (u >> 16u) & 0x8000u;
  let m = u & 0x7fffffffu;
  if (m > 0x7f800000u) { return sign | 0x7e00u; }
  if (m >= 0x477ff000u) { return sign | 0x7c00u; }
  if (m >= 0x38800000u) {
    let rounded = m + 0xfffu + ((m >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
  }
  // Subnormal: the mantissa is shifted to units of 2^-24.
  let exponent = m >> 23u;
  if (exponent < 102u) { return sign; }
  let mantissa = (m & 0x7fffffu) | 0x800000u;
  let shift = 126u - exponent;
  let kept = mantissa >> shift;
  let rest = mantissa & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let up = select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u));
  return sign | (kept + up);
}

fn bf16_bits(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) { return (u >> 16u) | 0x40u; }
  return (u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u;
}
";

/// Orders as unsigned integers: the larger number has the larger key, NaN the largest of all, and zeros of both signs
/// have one key. `best_*` is the key for a maximum, `least_*` that for a minimum, in which NaN is the largest as well.
pub(super) const KEYS: &str = "
fn key_f32(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  let m = u & 0x7fffffffu;
  if (m > 0x7f800000u) { return 0xffffffffu; }
  if (m == 0u) { return 0x80000000u; }
  return select(~u, u | 0x80000000u, u < 0x80000000u);
}
fn unkey_f32(k: u32) -> f32 {
  let bits = select(~k, k & 0x7fffffffu, k >= 0x80000000u);
  if (k == 0xffffffffu) { return nan_value(); }
  return bitcast<f32>(bits);
}
fn key_i32(x: i32) -> u32 { return bitcast<u32>(x) ^ 0x80000000u; }
fn unkey_i32(k: u32) -> i32 { return bitcast<i32>(k ^ 0x80000000u); }
fn key_u32(x: u32) -> u32 { return x; }
fn unkey_u32(k: u32) -> u32 { return k; }
fn least_f32(x: f32) -> u32 {
  let k = key_f32(x);
  if (k == 0xffffffffu) { return k; }
  return ~k;
}
fn unleast_f32(k: u32) -> f32 {
  if (k == 0xffffffffu) { return nan_value(); }
  return unkey_f32(~k);
}
fn least_i32(x: i32) -> u32 { return ~key_i32(x); }
fn unleast_i32(k: u32) -> i32 { return unkey_i32(~k); }
fn least_u32(x: u32) -> u32 { return ~x; }
fn unleast_u32(k: u32) -> u32 { return ~k; }
";

/// As [`load`], with the element converted to this type.
pub(super) fn load_as(name: &str, dtype: DType, target: &str) -> String {
    if carrier(dtype) == target {
        return load(name, dtype);
    }
    let inner = load_from(&format!("{name}_own"), name, dtype, false);
    format!("{inner}fn ld_{name}(i: u32) -> {target} {{ return {target}(ld_{name}_own(i)); }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_as_many_words_as_it_has() {
        let text = params(&["n", &format!("table: {TABLE}7>")]);
        assert_eq!(with_immediates(&text, 28), None);
        let (immediate, words) = with_immediates(&text, 29).unwrap();
        assert_eq!(words, 29);
        assert!(immediate.contains(PARAMS_IMMEDIATE) && !immediate.contains(PARAMS_IN_BUFFER));
    }
}

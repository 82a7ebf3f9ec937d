//! Building blocks of generated texts: reading and packing of elements, and declarations of
//! parameters and buffers.

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

/// The WGSL element type of a buffer of such elements.
pub(super) fn word(dtype: DType) -> &'static str {
    if dtype.size_bytes() < 4 { "u32" } else { carrier(dtype) }
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

/// The declarations of parameters in a buffer, and of parameters passed with the dispatch.
const PARAMS_IN_BUFFER: &str = "@group(0) @binding(0) var<uniform> p: Params;\n";
const PARAMS_IMMEDIATE: &str = "var<immediate> p: Params;\n";

/// A kernel's text with parameters passed with the dispatch, and their number of words. `None` if
/// they exceed `words_max`.
pub fn with_immediates(source: &str, words_max: usize) -> Option<(String, usize)> {
    let (before, behind) = source.split_once(PARAMS_IN_BUFFER)?;
    let words = before.lines().skip_while(|line| *line != "struct Params {").skip(1).take_while(|line| *line != "}");
    let words = words.map(words_of).sum();
    (words <= words_max).then(|| (format!("{before}{PARAMS_IMMEDIATE}{behind}"), words))
}

/// The beginning of a declared table of vectors of four words. The length follows.
pub(super) const TABLE: &str = "array<vec4<u32>, ";

/// Number of words of one declared parameter.
fn words_of(line: &str) -> usize {
    let table = line.split_once(TABLE).and_then(|(_, count)| count.trim_end_matches(">,").parse::<usize>().ok());
    table.map_or(1, |count| 4 * count)
}

/// The declarations of storage buffers as `(name, element type)`: the written ones, then those that
/// are read.
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

/// As [`load`], from a buffer with another name. With `raw` the buffer is an array of u32 for any
/// type.
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

/// Number of elements in one written word. 1 for elements of eight bytes.
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

/// The signature and the first lines of a generated kernel: `group` counts workgroups, `lid` the
/// invocations of one.
pub(super) const ENTRY: &str = "
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
";

/// NaN tests, and the packed forms of f32.
pub(super) const BITS: &str = include_str!("bits.wgsl");
/// Division, roots, exponentials and functions derived from them. Needs [`BITS`].
pub(super) const MATH: &str = include_str!("math.wgsl");
/// Sine and cosine. Needs [`MATH`].
pub(super) const CIRCULAR: &str = include_str!("circular.wgsl");
/// Remainders and powers. Needs [`MATH`] and a function `zero_word()` that returns a zero unknown
/// to the compiler.
pub(super) const POWER: &str = include_str!("power.wgsl");
/// Integer operations of expressions.
pub(super) const INTEGERS: &str = include_str!("integers.wgsl");

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

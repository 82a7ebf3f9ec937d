//! Gives the matrices of a kernel their 16-bit element type in SPIR-V.
//!
//! WGSL has only cooperative matrices of the type of the memory that they are loaded from, and no
//! bf16. Kernels for matrix units (`panoply_kernels::wgsl::WideKernel`) move sixteen bytes at a
//! time and call them `vec4<f32>`, so their matrices A and B are f32 in the text. This module
//! changes naga's SPIR-V: it adds the real element type with its capabilities and extension, and
//! replaces one operand in the type of each of the two matrices. Loads, products and stores stay
//! unchanged: SPIR-V can load a matrix from memory of any type. Naga's barriers of subgroups order
//! no workgroup memory; this module extends them to it.

use panoply_core::DType;

/// Number of words before the first instruction, and the index of the bound of ids in them.
pub(crate) const HEADER_WORDS: usize = 5;
const BOUND: usize = 3;

const OP_EXTENSION: u32 = 10;
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_FLOAT: u32 = 22;
const OP_CONSTANT: u32 = 43;
const OP_CONTROL_BARRIER: u32 = 224;
const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;

const FLOAT16: u32 = 9;
const BFLOAT16_TYPE: u32 = 5116;
const BFLOAT16_MATRIX: u32 = 5118;
const BFLOAT16_EXTENSION: &str = "SPV_KHR_bfloat16";
/// The encoding operand of a 16-bit float type; IEEE's own encoding has no such operand.
const BFLOAT16_ENCODING: u32 = 0;
/// The memory semantics of a subgroup barrier: naga's acquire and release of subgroup memory, and
/// the same with workgroup memory.
const SUBGROUP_MEMORY: u32 = 0x88;
const ALSO_WORKGROUP_MEMORY: u32 = 0x188;
/// The use of an accumulator; the uses of A and B are smaller.
const USE_ACCUMULATOR: u32 = 2;

/// The module with `dtype` as the element type of matrices A and B. Fails if the module is not one
/// that naga writes for such a kernel.
pub(crate) fn with_matrices(words: &[u32], dtype: DType) -> Result<Vec<u32>, String> {
    let instructions = instructions(words)?;
    let mut constants = std::collections::HashMap::new();
    // Two new ids: one for the type, one for the memory semantics of subgroup barriers.
    let [bound, wider] = [words[BOUND], words[BOUND] + 1];
    let mut ordered = None;
    let (mut out, mut is_declared, mut is_announced) = (words[..HEADER_WORDS].to_vec(), false, false);
    for instruction in instructions {
        let op = instruction[0] & 0xffff;
        if op != OP_CAPABILITY && !is_announced {
            announce(&mut out, dtype);
            is_announced = true;
        }
        if let (OP_CONSTANT, [_, _, id, value]) = (op, instruction) {
            constants.insert(*id, *value);
            if *value == SUBGROUP_MEMORY && ordered.is_none() {
                ordered = Some(*id);
                out.extend([instruction[0], instruction[1], wider, ALSO_WORKGROUP_MEMORY]);
            }
        }
        match (op, instruction) {
            (OP_TYPE_COOPERATIVE_MATRIX, [head, id, _, scope, rows, columns, role])
                if constants.get(role).is_some_and(|role| *role < USE_ACCUMULATOR) =>
            {
                if !is_declared {
                    out.extend(declared(bound, dtype));
                    is_declared = true;
                }
                out.extend([*head, *id, bound, *scope, *rows, *columns, *role]);
            }
            (OP_CONTROL_BARRIER, [head, scope, memory, order]) if ordered == Some(*order) => {
                out.extend([*head, *scope, *memory, wider]);
            }
            // Naga would have declared this type for a kernel that names it, and SPIR-V allows only
            // one declaration.
            (OP_TYPE_FLOAT, [_, _, 16]) if dtype == DType::F16 => return Err("f16 beside matrices of f16".to_owned()),
            _ => out.extend(instruction),
        }
    }
    if !is_declared {
        return Err("no matrices to change".to_owned());
    }
    out[BOUND] = bound + 2;
    Ok(out)
}

/// The instructions of a module, each with its first word.
pub(crate) fn instructions(words: &[u32]) -> Result<Vec<&[u32]>, String> {
    let mut rest = words.get(HEADER_WORDS..).ok_or("a module without a header")?;
    let mut found = Vec::new();
    while let Some(head) = rest.first() {
        let length = (head >> 16) as usize;
        let instruction = rest.get(..length).filter(|_| length > 0).ok_or("an instruction that is cut")?;
        found.push(instruction);
        rest = &rest[length..];
    }
    Ok(found)
}

/// Adds the capabilities and the extension of the type after the other capabilities.
fn announce(out: &mut Vec<u32>, dtype: DType) {
    let needed: &[u32] = if dtype == DType::BF16 { &[BFLOAT16_TYPE, BFLOAT16_MATRIX] } else { &[FLOAT16] };
    for capability in needed {
        out.extend([2 << 16 | OP_CAPABILITY, *capability]);
    }
    if dtype == DType::BF16 {
        let mut name = BFLOAT16_EXTENSION.as_bytes().to_vec();
        // A SPIR-V string ends with a zero and fills whole words.
        name.resize(name.len() / 4 * 4 + 4, 0);
        out.push((1 + name.len() as u32 / 4) << 16 | OP_EXTENSION);
        out.extend(name.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
    }
}

/// The declaration of the type with its new id.
fn declared(id: u32, dtype: DType) -> Vec<u32> {
    match dtype {
        DType::BF16 => vec![4 << 16 | OP_TYPE_FLOAT, id, 16, BFLOAT16_ENCODING],
        _ => vec![3 << 16 | OP_TYPE_FLOAT, id, 16],
    }
}

/// Emulates matrix units in the text of a kernel, for tests on devices that have none. A load only
/// notes the address, and the matrix is read when it is multiplied. The result is the same if
/// nothing writes to that memory in between. Each of 32 invocations holds eight elements of an
/// accumulator.
#[cfg(test)]
pub(crate) fn emulated(source: &str, dtype: DType) -> String {
    let element = match dtype {
        DType::BF16 => "bitcast<f32>((word >> (16u * (i % 2u))) << 16u)",
        _ => "unpack2x16float(word >> (16u * (i % 2u))).x",
    };
    let functions = format!(
        "var<private> emulated_lane: u32;
struct Address {{ at: u32, line: u32, by_rows: bool }}
fn emulated_element(m: Address, row: u32, column: u32) -> f32 {{
  let i = select(row, column, m.by_rows);
  let eight = bitcast<vec4<u32>>(tile[m.at + select(column, row, m.by_rows) * m.line + i / 8u]);
  let word = eight[i % 8u / 2u];
  return {element};
}}
fn emulated_product(a: Address, b: Address, c: array<f32, 8>) -> array<f32, 8> {{
  var sums = c;
  // To sixteen, as far as compilers know to any number: the loop stays one.
  for (var k = 0u; k < 16u + (p.m >> 31u); k = k + 1u) {{
    for (var e = 0u; e < 8u; e = e + 1u) {{
      let row = (emulated_lane * 8u + e) / 16u;
      let column = (emulated_lane * 8u + e) % 16u;
      sums[e] = sums[e] + emulated_element(a, row, k) * emulated_element(b, k, column);
    }}
  }}
  return sums;
}}
fn emulated_store(c: array<f32, 8>, at: u32, line: u32) {{
  var sums = c;
  for (var e = 0u; e < 8u; e = e + 1u) {{
    let place = emulated_lane * 8u + e;
    tile[at + place / 16u * line + place % 16u / 4u][place % 4u] = sums[e];
  }}
}}
"
    );
    let (builtins, index) = (
        "@builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {",
        "@builtin(local_invocation_index) emulated_index: u32) {
  let subgroup = emulated_index / 32u;
  let lane = emulated_index % 32u;
  emulated_lane = lane;",
    );
    let mut text = source.replace("enable wgpu_cooperative_matrix;", "").replace(builtins, index);
    text = text.replace("coop_mat16x16<f32, C>()", "array<f32, 8>()").replace("coopMultiplyAdd(", "emulated_product(");
    // Subgroups of the test device may be smaller than 32.
    text = text.replace("subgroupBarrier()", "workgroupBarrier()");
    let mut out = String::new();
    for line in text.lines() {
        let parts = line.split_once("(&tile[").and_then(|(before, rest)| Some((before, rest.split_once("], ")?)));
        let is_by_rows = if line.contains("coopLoadT<") { "true" } else { "false" };
        match parts {
            Some((before, (at, stride))) if before.contains("coopLoad") => {
                let name = before.split_once(" = ").map_or("", |(name, _)| name);
                out.push_str(&format!("{name} = Address({at}, {}, {is_by_rows});\n", stride.trim_end_matches(");")));
            }
            _ => match line.trim().strip_prefix("coopStoreT(").and_then(|rest| rest.split_once(", &tile[")) {
                Some((matrix, rest)) => {
                    out.push_str(&format!(
                        "emulated_store({matrix}, {};\n",
                        rest.replacen(']', "", 1).trim_end_matches(';')
                    ));
                }
                None => out.push_str(&format!("{line}\n")),
            },
        }
    }
    out + &functions
}

//! Elementwise expressions as kernels in the C dialect.
//!
//! [`map_kernel`] writes one kernel for a program, the dtypes of its inputs, and the way each input lies in memory; sizes and
//! strides stay arguments, so one text serves every shape of its class. [`activation`] names the function of `elementwise.h`
//! for a matrix product's or a convolution's epilogue.
//!
//! The kernel's entry is `map(target, inputs, count)` where all inputs lie as the output does ([`Reach::Flat`]), or else
//! `map(target, inputs, sizes, strides, count)`. `inputs` is a structure with one pointer for each input, `sizes` one of
//! `rank` u32, the last axis first, and `strides` one of `rank` i64 for each input. A kernel for many maps at once has a
//! table of addresses in place of the first two: for each map the output's, then the inputs'; `block_y` counts the maps.

use std::fmt::Write;

use panoply_core::DType;
use panoply_core::expr::{Node, Program, Types, Value};
use panoply_core::op::compute::Activation;

/// The operations of expressions as functions of the C dialect.
pub const ELEMENTWISE: &str = include_str!("elementwise.h");

/// Threads in a block of a generated kernel.
pub const MAP_BLOCK_THREADS: u32 = 256;

/// Programs with more nodes are interpreted, because compilers take more than linear time for one long function.
pub const GENERATED_NODES_MAX: usize = 256;

/// How a generated kernel reads one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Neighbours in the output are neighbours here: whole vectors are read.
    Vector,
    /// One element for all neighbours of a vector.
    Same,
    /// Element by element, each at its own place.
    Single,
}

/// How a generated kernel goes over the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Inputs are as long as the output, or single elements; each thread takes so many vectors.
    Flat {
        /// Vectors of each thread.
        vectors: u32,
    },
    /// Inputs have strides along this many axes; each thread takes one vector along the last.
    Strided {
        /// Axes, after collapsing.
        rank: u32,
        /// Whether positions need 64 bits.
        is_wide: bool,
    },
}

/// Everything but the program that decides a kernel's text.
#[derive(Clone, Copy, Debug)]
pub struct MapForm<'a> {
    /// The dtypes of the inputs.
    pub dtypes: &'a [DType],
    /// How each is read.
    pub accesses: &'a [Access],
    /// How the output is gone over.
    pub reach: Reach,
    /// Elements of a vector: a power of two.
    pub width: u32,
    /// Whether a launch computes many maps, each with memory of its own.
    pub many: bool,
}

/// The complete text of a program's kernel, entry `map`. `types` are the program's for the form's dtypes.
pub fn map_kernel(program: &Program, types: &Types, form: &MapForm<'_>) -> String {
    let mut text = String::from(ELEMENTWISE);
    // Writing into a string does not fail.
    let _ = write_compute(&mut text, program, types, form.dtypes);
    let _ = write_types(&mut text, types.output(), form);
    let _ = match form.reach {
        Reach::Flat { vectors } => write_flat(&mut text, types.output(), form, vectors),
        Reach::Strided { rank, is_wide } => write_strided(&mut text, types.output(), form, rank, is_wide),
    };
    text
}

/// The function of `elementwise.h` that an activation is, for f32.
pub const fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Relu => "relu_f32",
        Activation::Gelu => "gelu_f32",
        Activation::Silu => "silu_f32",
        Activation::Sigmoid => "sigmoid_f32",
        Activation::Tanh => "tanh_f32",
        _ => "identity_f32",
    }
}

/// What carries a dtype's values from node to node.
pub(super) const fn carrier(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "f32",
        DType::F64 => "f64",
        DType::I32 | DType::I8 => "i32",
        DType::U32 | DType::U8 => "u32",
        DType::Complex64 => "complex64",
    }
}

/// How a dtype is stored, and the functions from there to its carrier and back.
const fn storage(dtype: DType) -> (&'static str, &'static str, &'static str) {
    match dtype {
        DType::F16 => ("u16", "f16_to_f32", "f32_to_f16"),
        DType::BF16 => ("u16", "bf16_to_f32", "f32_to_bf16"),
        DType::I8 => ("i8", "(i32)", "(i8)"),
        DType::U8 => ("u8", "(u32)", "(u8)"),
        _ => (carrier(dtype), "", ""),
    }
}

/// `compute`: the program for one element of each input.
fn write_compute(text: &mut String, program: &Program, types: &Types, dtypes: &[DType]) -> std::fmt::Result {
    let output = types.output();
    write!(text, "DEVICE {} compute(", carrier(output))?;
    for (index, dtype) in dtypes.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(text, "{separator}{} x{index}", carrier(*dtype))?;
    }
    text.push_str(")\n{\n");
    for (id, node) in program.nodes().iter().enumerate() {
        if let Value::Typed(dtype) = types.values()[id] {
            write_node(text, id, *node, types, dtype)?;
        }
    }
    let last = program.nodes().len() - 1;
    write!(text, "    return ")?;
    write_operand(text, types, last as u32, output)?;
    text.push_str(";\n}\n");
    Ok(())
}

/// One node that is not a constant, as a variable of its own.
fn write_node(text: &mut String, id: usize, node: Node, types: &Types, dtype: DType) -> std::fmt::Result {
    let wrap = match dtype {
        DType::I8 => "(i32)(i8)",
        DType::U8 => "(u32)(u8)",
        _ => "",
    };
    write!(text, "    {} v{id} = ", carrier(dtype))?;
    match node {
        Node::Input(index) => write!(text, "x{index}")?,
        Node::Const(constant) => write_constant(text, constant.value(), dtype)?,
        Node::Cast(_, a) => match types.values()[a as usize] {
            Value::Typed(from) if from == dtype => write!(text, "v{a}")?,
            Value::Typed(from) => write!(text, "cast_{}_{dtype}(v{a})", carrier(from))?,
            Value::Constant(value) => write!(text, "cast_f64_{dtype}(bits_f64(0x{:x}ull))", value.to_bits())?,
        },
        Node::Unary(op, _) => write!(text, "{wrap}{}_{}", op.name(), carrier(dtype))?,
        Node::Binary(op, ..) => write!(text, "{wrap}{}_{}", op.name(), carrier(dtype))?,
        Node::Ternary(op, ..) => write!(text, "{wrap}{}_{}", op.name(), carrier(dtype))?,
    }
    if matches!(node, Node::Unary(..) | Node::Binary(..) | Node::Ternary(..)) {
        for (place, operand) in node.operands().enumerate() {
            text.push_str(if place == 0 { "(" } else { ", " });
            write_operand(text, types, operand, dtype)?;
        }
        text.push(')');
    }
    text.push_str(";\n");
    Ok(())
}

/// A node where it is used: its variable, or the constant that it is, rounded to the dtype beside it.
fn write_operand(text: &mut String, types: &Types, id: u32, dtype: DType) -> std::fmt::Result {
    match types.values()[id as usize] {
        Value::Typed(_) => write!(text, "v{id}"),
        Value::Constant(value) => write_constant(text, value, dtype),
    }
}

fn write_constant(text: &mut String, value: f64, dtype: DType) -> std::fmt::Result {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => write!(text, "bits_f32(0x{:x}u)", (value as f32).to_bits()),
        DType::F64 => write!(text, "bits_f64(0x{:x}ull)", value.to_bits()),
        DType::Complex64 => write!(text, "complex_of(bits_f32(0x{:x}u), 0.0f)", (value as f32).to_bits()),
        DType::I32 | DType::I8 => write!(text, "(i32)0x{:x}u", value as i32),
        DType::U32 | DType::U8 => write!(text, "0x{:x}u", value as u32),
    }
}

/// The vectors and the structure of pointers.
fn write_types(text: &mut String, output: DType, form: &MapForm<'_>) -> std::fmt::Result {
    let width = form.width;
    let mut vector = |name: &str, dtype: DType| {
        let bytes = (dtype.size_bytes() * width as usize).min(16);
        writeln!(text, "typedef struct ALIGNED({bytes}) {{ {} at[{width}]; }} {name};", storage(dtype).0)
    };
    vector("vector_out", output)?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        vector(&format!("vector_{index}"), *dtype)?;
    }
    text.push_str("typedef struct {");
    for (index, dtype) in form.dtypes.iter().enumerate() {
        write!(text, " GLOBAL const {} *p{index};", storage(*dtype).0)?;
    }
    // A program of constants alone has no inputs, and C has no empty structures.
    text.push_str(if form.dtypes.is_empty() { " u64 none; } inputs_t;\n" } else { " } inputs_t;\n" });
    Ok(())
}

/// The entry up to the place where its output and its inputs are known; `further` are its parameters after those.
fn write_entry(text: &mut String, output: DType, form: &MapForm<'_>, further: &str) -> std::fmt::Result {
    let (threads, stored) = (MAP_BLOCK_THREADS, storage(output).0);
    write!(text, "KERNEL LAUNCH_BOUNDS({threads}, 1) map(")?;
    if !form.many {
        return writeln!(text, "GLOBAL {stored} *RESTRICT target, inputs_t in, {further})\n{{");
    }
    writeln!(text, "GLOBAL const u64 *RESTRICT table, {further})\n{{")?;
    writeln!(text, "    GLOBAL const u64 *row = table + (u64)block_y() * {};", form.dtypes.len() + 1)?;
    writeln!(text, "    GLOBAL {stored} *RESTRICT target = (GLOBAL {stored} *)row[0];\n    inputs_t in;")?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        writeln!(text, "    in.p{index} = (GLOBAL const {} *)row[{}];", storage(*dtype).0, index + 1)?;
    }
    Ok(())
}

/// `compute` of what `element` says for each input, as it is stored.
fn write_result(
    text: &mut String,
    output: DType,
    form: &MapForm<'_>,
    element: impl Fn(usize) -> String,
) -> std::fmt::Result {
    write!(text, "{}(compute(", storage(output).2)?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(text, "{separator}{}({})", storage(*dtype).1, element(index))?;
    }
    text.push_str("))");
    Ok(())
}

fn write_flat(text: &mut String, output: DType, form: &MapForm<'_>, vectors: u32) -> std::fmt::Result {
    let (width, threads) = (form.width, MAP_BLOCK_THREADS);
    write_entry(text, output, form, "u64 count")?;
    writeln!(text, "    u64 first = ((u64)block_x() * {} + thread_x()) * {width};", threads * vectors)?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        if form.accesses[index] != Access::Vector {
            writeln!(text, "    {} s{index} = *in.p{index};", storage(*dtype).0)?;
        }
    }
    let last = (vectors - 1) * threads * width + width;
    writeln!(text, "    if (first + {last} <= count) {{")?;
    for index in vector_inputs(form) {
        writeln!(text, "        vector_{index} a{index}[{vectors}];")?;
    }
    let step = threads * width;
    writeln!(text, "        UNROLL\n        for (u32 u = 0; u < {vectors}; u++) {{")?;
    for index in vector_inputs(form) {
        writeln!(
            text,
            "            a{index}[u] = *(GLOBAL const vector_{index} *)(in.p{index} + first + u * {step});"
        )?;
    }
    writeln!(text, "        }}\n        UNROLL\n        for (u32 u = 0; u < {vectors}; u++) {{")?;
    writeln!(text, "            vector_out r;\n            UNROLL\n            for (u32 e = 0; e < {width}; e++) {{")?;
    text.push_str("                r.at[e] = ");
    write_result(text, output, form, |index| match form.accesses[index] {
        Access::Vector => format!("a{index}[u].at[e]"),
        _ => format!("s{index}"),
    })?;
    writeln!(
        text,
        ";\n            }}\n            *(GLOBAL vector_out *)(target + first + u * {step}) = r;\n        }}"
    )?;
    text.push_str("        return;\n    }\n");
    // The last vectors, element by element, which is rare: one copy of the expression is enough.
    writeln!(text, "    ROLLED\n    for (u32 u = 0; u < {vectors}; u++) {{")?;
    writeln!(text, "        ROLLED\n        for (u32 e = 0; e < {width}; e++) {{")?;
    writeln!(text, "            u64 i = first + u * {step} + e;\n            if (i < count) target[i] = ")?;
    write_result(text, output, form, |index| match form.accesses[index] {
        Access::Vector => format!("in.p{index}[i]"),
        _ => format!("s{index}"),
    })?;
    text.push_str(";\n        }\n    }\n}\n");
    Ok(())
}

fn vector_inputs(form: &MapForm<'_>) -> impl Iterator<Item = usize> {
    form.accesses.iter().enumerate().filter(|(_, access)| **access == Access::Vector).map(|(index, _)| index)
}

fn write_strided(text: &mut String, output: DType, form: &MapForm<'_>, rank: u32, is_wide: bool) -> std::fmt::Result {
    let (width, threads, inputs) = (form.width, MAP_BLOCK_THREADS, form.dtypes.len().max(1));
    let index_type = if is_wide { "u64" } else { "u32" };
    writeln!(text, "typedef struct {{ u32 at[{rank}]; }} sizes_t;")?;
    writeln!(text, "typedef struct {{ i64 at[{inputs}][{rank}]; }} strides_t;")?;
    write_entry(text, output, form, "sizes_t size, strides_t stride, u64 count")?;
    writeln!(text, "    u64 first = ((u64)block_x() * {threads} + thread_x()) * {width};")?;
    text.push_str("    if (first >= count) return;\n");
    writeln!(text, "    {index_type} rest = ({index_type})first, place;")?;
    for input in 0..form.dtypes.len() {
        writeln!(text, "    i64 o{input} = 0;")?;
    }
    for axis in 0..rank {
        if axis + 1 < rank {
            writeln!(text, "    place = rest % size.at[{axis}];\n    rest /= size.at[{axis}];")?;
        } else {
            text.push_str("    place = rest;\n");
        }
        for input in 0..form.dtypes.len() {
            writeln!(text, "    o{input} += (i64)place * stride.at[{input}][{axis}];")?;
        }
    }
    for (index, access) in form.accesses.iter().enumerate() {
        match access {
            Access::Vector => {
                writeln!(
                    text,
                    "    vector_{index} a{index} = *(GLOBAL const vector_{index} *)(in.p{index} + o{index});"
                )?;
            }
            Access::Same => writeln!(text, "    {} s{index} = in.p{index}[o{index}];", storage(form.dtypes[index]).0)?,
            Access::Single => {
                writeln!(text, "    vector_{index} a{index};\n    UNROLL")?;
                write!(text, "    for (u32 e = 0; e < {width}; e++) a{index}.at[e] = ")?;
                writeln!(text, "in.p{index}[o{index} + (i64)e * stride.at[{index}][0]];")?;
            }
        }
    }
    writeln!(text, "    vector_out r;\n    UNROLL\n    for (u32 e = 0; e < {width}; e++) {{\n        r.at[e] = ")?;
    write_result(text, output, form, |index| match form.accesses[index] {
        Access::Same => format!("s{index}"),
        _ => format!("a{index}.at[e]"),
    })?;
    text.push_str(";\n    }\n    *(GLOBAL vector_out *)(target + first) = r;\n}\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use panoply_core::expr::Expr;

    use super::*;

    fn text(expr: &Expr, form: &MapForm<'_>) -> String {
        let program = expr.finish().unwrap();
        let types = program.types(form.dtypes).unwrap();
        map_kernel(&program, &types, form)
    }

    #[test]
    fn a_program_becomes_one_function() {
        let (x, y) = (Expr::input(0), Expr::input(1));
        let form = MapForm {
            dtypes: &[DType::F32, DType::F32],
            accesses: &[Access::Vector, Access::Vector],
            reach: Reach::Flat { vectors: 2 },
            width: 4,
            many: false,
        };
        let expr = (x * 2.0 + y).relu();
        let one = text(&expr, &form);
        for line in ["mul_f32(v0, bits_f32(0x40000000u))", "relu_f32(v", "vector_1 a1[2]", "in.p0 + first + u * 1024"] {
            assert!(one.contains(line), "{line} is not in\n{one}");
        }
        let many = text(&expr, &MapForm { many: true, ..form });
        for line in ["block_y() * 3;", "target = (GLOBAL f32 *)row[0];", "in.p1 = (GLOBAL const f32 *)row[2];"] {
            assert!(many.contains(line) && !one.contains(line), "{line} is not in\n{many}");
        }
    }

    #[test]
    fn narrow_integers_wrap_after_every_operation() {
        let form = MapForm {
            dtypes: &[DType::I8],
            accesses: &[Access::Single],
            reach: Reach::Strided { rank: 2, is_wide: true },
            width: 1,
            many: false,
        };
        let text = text(&(Expr::input(0) * 3.0).cast(DType::F16), &form);
        assert!(text.contains("(i32)(i8)mul_i32(v0, (i32)0x3u)"), "{text}");
        assert!(text.contains("cast_i32_f16(v"), "{text}");
        assert!(text.contains("u64 rest = (u64)first"), "{text}");
    }
}

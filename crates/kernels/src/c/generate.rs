//! Elementwise expressions as kernels in the C dialect.
//!
//! [`map_kernel`] writes one kernel for a program, the dtypes of its inputs, and the layout of each
//! input. Sizes, strides and constants stay arguments, so one text serves every shape of its class,
//! and all expressions that differ in their constants only. [`activation`] names the function of
//! `elementwise.h` for the epilogue of a matrix product or a convolution.
//!
//! The kernel's entry is `map(target, inputs…, constants, count)` if all inputs have the layout of
//! the output ([`Reach::Flat`]), otherwise `map(target, inputs…, sizes, strides, constants,
//! count)`. Each input is a pointer. `sizes` is a structure of `rank` u32, the last axis first, and
//! `strides` one of `rank` i64 for each input. `constants` is a structure of 64-bit words for up to
//! [`ARGUMENT_CONSTANTS_MAX`] constants, a pointer to them for more, and omitted without constants.
//! A kernel for many maps has a table of addresses instead of target and inputs: for each map the
//! output's address, followed by the inputs'. `block_y` is the index of the map. If the table is an
//! argument, each map's count precedes its addresses, and the last argument is the number of maps.

use std::fmt::Write;

use panoply_core::DType;
use panoply_core::expr::{BinaryOp, Node, Program, Types, UnaryOp, Value};
use panoply_core::op::compute::Activation;

/// The operations of expressions as functions of the C dialect.
pub const ELEMENTWISE: &str = include_str!("elementwise.h");

/// Threads in a block of a generated kernel.
pub const MAP_BLOCK_THREADS: u32 = 256;

/// Programs with more nodes are interpreted, because compilers take more than linear time for one
/// long function.
pub const GENERATED_NODES_MAX: usize = 256;

/// The access pattern of one input in a generated kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Consecutive elements of the output are consecutive here: whole vectors are read.
    Vector,
    /// One element for all elements of a vector.
    Same,
    /// Element by element, each at its own place.
    Single,
}

/// The iteration of a generated kernel over the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Inputs have the output's length, or are single elements. Each thread processes several
    /// vectors.
    Flat {
        /// Vectors per thread.
        vectors: u32,
    },
    /// Inputs have strides along this many axes. Each thread processes one vector along the last
    /// axis.
    Strided {
        /// Axes, after collapsing.
        rank: u32,
        /// Whether element offsets need 64 bits.
        is_wide: bool,
    },
}

/// The number of maps of a launch, and the source of their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Together {
    /// One map.
    One,
    /// Many maps of one shape, with a table in memory.
    Table,
    /// At most this many maps, each with its own length, with a table as an argument. The reach
    /// must be flat.
    Listed(u32),
}

/// All properties besides the program that determine a kernel's text.
#[derive(Clone, Copy, Debug)]
pub struct MapForm<'a> {
    /// The dtypes of the inputs.
    pub dtypes: &'a [DType],
    /// The access pattern of each input.
    pub accesses: &'a [Access],
    /// The iteration over the output.
    pub reach: Reach,
    /// Elements of a vector: a power of two.
    pub width: u32,
    /// The number of maps of a launch.
    pub together: Together,
}

/// With more constants than this, a kernel reads them from memory.
pub const ARGUMENT_CONSTANTS_MAX: usize = 32;

/// A kernel for expressions of one form, and the constants of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapKernel {
    /// The complete text, entry `map`.
    pub text: String,
    /// The content of the argument `constants`.
    pub constants: Vec<u64>,
}

/// The kernel of a program. `types` are the program's types for the form's dtypes.
pub fn map_kernel(program: &Program, types: &Types, form: &MapForm<'_>) -> MapKernel {
    let mut constants = Vec::new();
    let compute = compute_function("compute", program, types, form.dtypes, &mut constants);
    let mut text = String::from(ELEMENTWISE);
    let _ = write_constants_type(&mut text, constants.len());
    text.push_str(&compute);
    let _ = write_types(&mut text, types.output(), form);
    let _ = match form.reach {
        Reach::Flat { vectors } => write_flat(&mut text, types.output(), form, vectors),
        Reach::Strided { rank, is_wide } => write_strided(&mut text, types.output(), form, rank, is_wide),
    };
    MapKernel { text, constants }
}

/// A function `name` that evaluates the program for one element of each input. Its constants are
/// appended to `constants`.
pub(super) fn compute_function(
    name: &str,
    program: &Program,
    types: &Types,
    dtypes: &[DType],
    constants: &mut Vec<u64>,
) -> String {
    let mut compute = Compute { text: String::new(), types, names: Vec::new(), constants };
    // Writing into a string does not fail.
    let _ = compute.write(name, program, dtypes);
    compute.text
}

/// Writes the macros for constants: the parameter, its forwarding, and the access to one constant.
pub(super) fn write_constants_type(text: &mut String, count: usize) -> std::fmt::Result {
    match count {
        0 => writeln!(text, "#define CONSTANTS\n#define CONSTANTS_HERE"),
        1..=ARGUMENT_CONSTANTS_MAX => {
            writeln!(text, "typedef struct {{ u64 at[{count}]; }} constants_t;")?;
            writeln!(text, "#define CONSTANTS constants_t constants,\n#define CONSTANTS_HERE constants,")?;
            writeln!(text, "#define CONSTANT(i) constants.at[i]")
        }
        _ => {
            writeln!(text, "#define CONSTANTS GLOBAL const u64 *RESTRICT constants,")?;
            writeln!(text, "#define CONSTANTS_HERE constants,\n#define CONSTANT(i) constants[i]")
        }
    }
}

/// The function of `elementwise.h` for an activation of f32.
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

/// The C type that carries a dtype's values between nodes.
pub(super) const fn carrier(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "f32",
        DType::F64 => "f64",
        DType::I32 | DType::I8 => "i32",
        DType::U32 | DType::U8 => "u32",
        DType::Complex64 => "complex64",
    }
}

/// The storage type of a dtype, and the functions that convert to its carrier and back.
pub(super) const fn storage(dtype: DType) -> (&'static str, &'static str, &'static str) {
    match dtype {
        DType::F16 => ("u16", "f16_to_f32", "f32_to_f16"),
        DType::BF16 => ("u16", "bf16_to_f32", "f32_to_bf16"),
        DType::I8 => ("i8", "(i32)", "(i8)"),
        DType::U8 => ("u8", "(u32)", "(u8)"),
        _ => (carrier(dtype), "", ""),
    }
}

/// Exponents for which compilers replace the power by cheaper operations.
const PLAIN_EXPONENTS: [f64; 5] = [2.0, 3.0, 0.5, -0.5, -1.0];

/// A function under construction that evaluates the program for one element of each input.
struct Compute<'a> {
    text: String,
    types: &'a Types,
    /// The number of each node's variable. Constants have no number, so that the text does not
    /// depend on whether two constants share a node.
    names: Vec<usize>,
    constants: &'a mut Vec<u64>,
}

impl Compute<'_> {
    fn write(&mut self, name: &str, program: &Program, dtypes: &[DType]) -> std::fmt::Result {
        let output = self.types.output();
        write!(self.text, "DEVICE {} {name}(CONSTANTS ", carrier(output))?;
        for (index, dtype) in dtypes.iter().enumerate() {
            write!(self.text, "{} x{index}, ", carrier(*dtype))?;
        }
        self.text.push_str(
            "u32 unused)
{
",
        );
        let mut variables = 0;
        for (id, node) in program.nodes().iter().enumerate() {
            self.names.push(variables);
            if let Value::Typed(dtype) = self.types.values()[id] {
                self.node(id, *node, dtype)?;
                variables += 1;
            }
        }
        let last = program.nodes().len() - 1;
        self.text.push_str("    return ");
        self.operand(last as u32, output)?;
        self.text.push_str(
            ";
}
",
        );
        Ok(())
    }

    /// Writes a node as a variable. Constants have no variable.
    fn node(&mut self, id: usize, node: Node, dtype: DType) -> std::fmt::Result {
        let wrap = match dtype {
            DType::I8 => "(i32)(i8)",
            DType::U8 => "(u32)(u8)",
            _ => "",
        };
        write!(self.text, "    {} v{} = ", carrier(dtype), self.names[id])?;
        match node {
            Node::Input(index) => write!(self.text, "x{index}")?,
            Node::Const(constant) => self.constant(constant.value(), dtype)?,
            Node::Cast(_, a) => match self.types.values()[a as usize] {
                Value::Typed(from) if from == dtype => write!(self.text, "v{}", self.names[a as usize])?,
                Value::Typed(from) => write!(self.text, "cast_{}_{dtype}(v{})", carrier(from), self.names[a as usize])?,
                Value::Constant(value) => {
                    write!(self.text, "cast_f64_{dtype}(")?;
                    self.constant(value, DType::F64)?;
                    self.text.push(')');
                }
            },
            Node::Unary(UnaryOp::Gelu, _) if dtype == DType::F16 => write!(self.text, "{wrap}gelu_half")?,
            Node::Unary(op, _) => write!(self.text, "{wrap}{}_{}", op.name(), carrier(dtype))?,
            Node::Binary(op, ..) => write!(self.text, "{wrap}{}_{}", op.name(), carrier(dtype))?,
            Node::Ternary(op, ..) => write!(self.text, "{wrap}{}_{}", op.name(), carrier(dtype))?,
        }
        if matches!(node, Node::Unary(..) | Node::Binary(..) | Node::Ternary(..)) {
            for (place, operand) in node.operands().enumerate() {
                self.text.push_str(if place == 0 { "(" } else { ", " });
                match self.types.values()[operand as usize] {
                    Value::Constant(value) if place == 1 && is_plain_power(node, value, dtype) => {
                        write!(self.text, "({}){value:?}", carrier(dtype))?;
                    }
                    _ => self.operand(operand, dtype)?,
                }
            }
            self.text.push(')');
        }
        self.text.push_str(
            ";
",
        );
        Ok(())
    }

    /// Writes the use of a node: its variable, or its constant, rounded to `dtype`.
    fn operand(&mut self, id: u32, dtype: DType) -> std::fmt::Result {
        match self.types.values()[id as usize] {
            Value::Typed(_) => write!(self.text, "v{}", self.names[id as usize]),
            Value::Constant(value) => self.constant(value, dtype),
        }
    }

    /// Writes the read of a constant of this dtype from the kernel's arguments.
    fn constant(&mut self, value: f64, dtype: DType) -> std::fmt::Result {
        let (bits, read) = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => (u64::from((value as f32).to_bits()), "bits_f32((u32)"),
            DType::F64 => (value.to_bits(), "bits_f64("),
            DType::Complex64 => (u64::from((value as f32).to_bits()), "complex_of_real((u32)"),
            DType::I32 | DType::I8 => (u64::from(value as i32 as u32), "(i32)(u32)("),
            DType::U32 | DType::U8 => (u64::from(value as u32), "(u32)("),
        };
        let place = self.constants.len();
        self.constants.push(bits);
        write!(self.text, "{read}CONSTANT({place}))")
    }
}

/// Whether an operand is an exponent that should be known at compile time.
fn is_plain_power(node: Node, value: f64, dtype: DType) -> bool {
    matches!(node, Node::Binary(BinaryOp::Pow, ..))
        && matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
        && PLAIN_EXPONENTS.contains(&value)
}

/// Writes the vector types and the structure of input pointers.
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
    // A program of constants only has no inputs, and C has no empty structures.
    text.push_str(if form.dtypes.is_empty() { " u64 none; } inputs_t;\n" } else { " } inputs_t;\n" });
    Ok(())
}

/// Writes the entry up to the point where its output and inputs are known. `further` are its other
/// parameters.
fn write_entry(text: &mut String, output: DType, form: &MapForm<'_>, further: &str) -> std::fmt::Result {
    let (threads, stored, inputs) = (MAP_BLOCK_THREADS, storage(output).0, form.dtypes.len());
    let entry = format!("KERNEL LAUNCH_BOUNDS({threads}, 1) map(");
    let word: fn(usize) -> String = match form.together {
        Together::One => {
            write!(text, "{entry}GLOBAL {stored} *RESTRICT target, ")?;
            for (index, dtype) in form.dtypes.iter().enumerate() {
                write!(text, "GLOBAL const {} *p{index}, ", storage(*dtype).0)?;
            }
            writeln!(text, "{further})\n{{\n    inputs_t in;")?;
            return (0..inputs).try_for_each(|index| writeln!(text, "    in.p{index} = p{index};"));
        }
        Together::Table => {
            writeln!(text, "{entry}GLOBAL u8 *base, GLOBAL const u64 *RESTRICT table, {further})\n{{")?;
            writeln!(text, "    GLOBAL const u64 *row = table + (u64)block_y() * {};", inputs + 1)?;
            |place| format!("PLACE(base, row[{place}])")
        }
        Together::Listed(maps) => {
            writeln!(text, "typedef struct {{ u64 at[{}]; }} list_t;", maps as usize * (inputs + 2))?;
            writeln!(text, "{entry}list_t list, {further})\n{{\n    if (block_y() >= maps) return;")?;
            writeln!(text, "    u32 row = block_y() * {};\n    u64 count = list.at[row];", inputs + 2)?;
            |place| format!("PLACE(0, list.at[row + {}])", place + 1)
        }
    };
    writeln!(text, "    GLOBAL {stored} *RESTRICT target = (GLOBAL {stored} *){};\n    inputs_t in;", word(0))?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        writeln!(text, "    in.p{index} = (GLOBAL const {} *){};", storage(*dtype).0, word(index + 1))?;
    }
    Ok(())
}

/// Writes the call of `compute` with the stored element of each input given by `element`.
fn write_result(
    text: &mut String,
    output: DType,
    form: &MapForm<'_>,
    element: impl Fn(usize) -> String,
) -> std::fmt::Result {
    write!(text, "{}(compute(CONSTANTS_HERE ", storage(output).2)?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        write!(text, "{}({}), ", storage(*dtype).1, element(index))?;
    }
    text.push_str("0u))");
    Ok(())
}

fn write_flat(text: &mut String, output: DType, form: &MapForm<'_>, vectors: u32) -> std::fmt::Result {
    let (width, threads) = (form.width, MAP_BLOCK_THREADS);
    let counted = if let Together::Listed(_) = form.together { "CONSTANTS u32 maps" } else { "CONSTANTS u64 count" };
    write_entry(text, output, form, counted)?;
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
    // The last vectors go element by element. This is rare, so one copy of the expression is
    // enough.
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
    write_entry(text, output, form, "sizes_t size, strides_t stride, CONSTANTS u64 count")?;
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
        map_kernel(&program, &types, form).text
    }

    #[test]
    fn a_program_becomes_one_function() {
        let (x, y) = (Expr::input(0), Expr::input(1));
        let form = MapForm {
            dtypes: &[DType::F32, DType::F32],
            accesses: &[Access::Vector, Access::Vector],
            reach: Reach::Flat { vectors: 2 },
            width: 4,
            together: Together::One,
        };
        let expr = (x * 2.0 + y).relu();
        let one = text(&expr, &form);
        for line in
            ["mul_f32(v0, bits_f32((u32)CONSTANT(0)))", "relu_f32(v", "vector_1 a1[2]", "in.p0 + first + u * 1024"]
        {
            assert!(one.contains(line), "{line} is not in\n{one}");
        }
        let many = text(&expr, &MapForm { together: Together::Table, ..form });
        for line in [
            "block_y() * 3;",
            "target = (GLOBAL f32 *)PLACE(base, row[0]);",
            "(GLOBAL const f32 *)PLACE(base, row[2]);",
        ] {
            assert!(many.contains(line) && !one.contains(line), "{line} is not in\n{many}");
        }
    }

    #[test]
    fn expressions_that_differ_in_their_numbers_share_a_text() {
        let form = MapForm {
            dtypes: &[DType::F32],
            accesses: &[Access::Vector],
            reach: Reach::Flat { vectors: 1 },
            width: 4,
            together: Together::One,
        };
        let kernel = |expr: &Expr| {
            let program = expr.finish().unwrap();
            map_kernel(&program, &program.types(form.dtypes).unwrap(), &form)
        };
        let of = |scale: f64, shift: f64| kernel(&(Expr::input(0) * scale + shift));
        let (one, other) = (of(3.0, -0.5), of(f64::NAN, f64::INFINITY));
        assert_eq!(one.text, other.text);
        assert_eq!(one.constants, [3.0_f32, -0.5].map(|value| u64::from(value.to_bits())));
        assert_ne!(one.constants, other.constants);
        assert_eq!(one.text, of(2.0, 2.0).text, "one node or two");
        // Constants that do not fit into the arguments are read from memory.
        let many = |first: f64| kernel(&(0..40).fold(Expr::input(0), |sum, i| sum * (first + f64::from(i)) + 1.0));
        assert!(many(2.0).text.contains("GLOBAL const u64 *RESTRICT constants,"));
        assert_eq!((many(2.0).text, many(2.0).constants.len()), (many(100.5).text, 80));
        // A square is compiled as a constant exponent, because it needs no general power.
        assert!(kernel(&Expr::input(0).pow(2.0)).text.contains("pow_f32(v0, (f32)2.0)"));
        assert_eq!(kernel(&Expr::input(0).pow(2.5)).text, kernel(&Expr::input(0).pow(7.0)).text);
    }

    #[test]
    fn narrow_integers_wrap_after_every_operation() {
        let form = MapForm {
            dtypes: &[DType::I8],
            accesses: &[Access::Single],
            reach: Reach::Strided { rank: 2, is_wide: true },
            width: 1,
            together: Together::One,
        };
        let text = text(&(Expr::input(0) * 3.0).cast(DType::F16), &form);
        assert!(text.contains("(i32)(i8)mul_i32(v0, (i32)(u32)(CONSTANT(0)))"), "{text}");
        assert!(text.contains("cast_i32_f16(v"), "{text}");
        assert!(text.contains("u64 rest = (u64)first"), "{text}");
    }
}

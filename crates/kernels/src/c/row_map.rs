//! Row functions between two elementwise expressions, as kernels in the C dialect: `row_map.c`,
//! preceded by the expressions as functions and the reads of the inputs as macros.
//!
//! The kernel's entry is `row_map(target, inputs…, sizes, strides, constants, rows, len, epsilon)`.
//! `sizes` is a structure of u32 with the axes before the rows, the last first. `strides` is a
//! structure of i64: for each input its stride along the row, followed by its strides along those
//! axes. `constants` is as in [`generate`](super::generate). The kernel also has the parameters of
//! `rows.h`.

use std::fmt::Write;
use std::sync::Arc;

use panoply_core::DType;
use panoply_core::expr::{Program, Types};
use panoply_core::op::compute::RowFunction;

use super::Kernel;
use super::generate::{Access, ELEMENTWISE, carrier, compute_function, storage, write_constants_type};

const ROWS: &str = include_str!("rows.h");
const ROW_MAP: &str = include_str!("row_map.c");

/// All properties besides the expressions that determine the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowForm {
    /// The function's name; see [`RowFunction::name`].
    pub function: &'static str,
    /// The inputs' element types: those of the first expression, followed by those of the second
    /// from input 1 on.
    pub dtypes: Vec<DType>,
    /// The access pattern of each input along the row.
    pub accesses: Vec<Access>,
    /// Number of inputs of the first expression.
    pub before: usize,
    /// The element type of a row before and after the function.
    pub row: DType,
    /// The element type of the output.
    pub output: DType,
    /// Number of axes before the rows, after collapsing; at least one.
    pub rank: usize,
    /// Threads per row, vectors per thread, elements per vector.
    pub shares: [usize; 3],
    /// Whether the threads' elements cover the row exactly.
    pub is_full: bool,
}

/// A kernel and the constants of its expressions.
#[derive(Clone, Debug)]
pub struct RowKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// The content of its argument `constants`.
    pub constants: Vec<u64>,
}

/// The kernel for a row function between two expressions with these types.
pub fn row_kernel(
    function: RowFunction,
    (before, before_types): (&Program, &Types),
    (after, after_types): (&Program, &Types),
    form: &RowForm,
) -> RowKernel {
    let mut constants = Vec::new();
    let (inputs, more) = form.dtypes.split_at(form.before);
    let first = compute_function("before", before, before_types, inputs, &mut constants);
    let after_dtypes: Vec<DType> = std::iter::once(form.row).chain(more.iter().copied()).collect();
    let second = compute_function("after", after, after_types, &after_dtypes, &mut constants);
    let mut text = String::from(ELEMENTWISE);
    // Writing into a string does not fail.
    let _ = write_constants_type(&mut text, constants.len());
    text.push_str(&first);
    text.push_str(&second);
    text.push_str(ROWS);
    let _ = write_function(&mut text, function);
    let _ = write_macros(&mut text, form, function.is_reduction());
    text.push_str(ROW_MAP);
    let [group, items, vector] = form.shares;
    let kernel = Kernel::generated("row_map", Arc::from(text), "row_map")
        .dtype("T", form.row)
        .integer("GROUP", group as i64)
        .integer("ITEMS", items as i64)
        .integer("VECTOR", vector as i64)
        .integer("VECTOR_BYTES", (vector * form.row.size_bytes()).min(16) as i64);
    RowKernel { kernel, constants }
}

fn write_function(text: &mut String, function: RowFunction) -> std::fmt::Result {
    let (words, fill): (&[&str], &str) = match function {
        RowFunction::Sum => (&["FUNCTION_REDUCES"], "(REAL)0"),
        RowFunction::Mean => (&["FUNCTION_REDUCES", "FUNCTION_MEAN"], "(REAL)0"),
        RowFunction::Max => (&["FUNCTION_REDUCES", "FUNCTION_MAX", "FUNCTION_EXTREME REAL_MAX"], "REAL_LOWEST"),
        RowFunction::Min => (&["FUNCTION_REDUCES", "FUNCTION_MIN", "FUNCTION_EXTREME REAL_MIN"], "(-REAL_LOWEST)"),
        RowFunction::Softmax => (&["FUNCTION_SOFT", "IS_LOG 0"], "REAL_LOWEST"),
        RowFunction::LogSoftmax => (&["FUNCTION_SOFT", "IS_LOG 1"], "REAL_LOWEST"),
        RowFunction::Norm { is_rms: true, .. } => (&["FUNCTION_RMS"], "(REAL)0"),
        _ => (&[], "(REAL)0"),
    };
    words.iter().try_for_each(|word| writeln!(text, "#define {word}"))?;
    writeln!(text, "#define REAL_MIN(a, b) (-REAL_MAX(-(a), -(b)))\n#define FILL {fill}")
}

fn write_macros(text: &mut String, form: &RowForm, reduces: bool) -> std::fmt::Result {
    let [_, _, vector] = form.shares;
    let mut vectors = |name: &str, dtype: DType| {
        let bytes = (dtype.size_bytes() * vector).min(16);
        writeln!(text, "typedef struct ALIGNED({bytes}) {{ {} at[{vector}]; }} {name};", storage(dtype).0)
    };
    vectors("vector_out", form.output)?;
    for (index, dtype) in form.dtypes.iter().enumerate() {
        vectors(&format!("vector_{index}"), *dtype)?;
    }
    let (count, rank) = (form.dtypes.len().max(1), form.rank.max(1));
    writeln!(text, "typedef struct {{ u32 at[{}]; }} sizes_t;", rank.next_multiple_of(2))?;
    writeln!(text, "typedef struct {{ i64 at[{count}][{}]; }} strides_t;", rank + 1)?;
    writeln!(text, "#define OUT {}\n#define OUT_STORE(x) {}(x)", storage(form.output).0, storage(form.output).2)?;
    writeln!(text, "#define IS_FULL {}", u32::from(form.is_full))?;
    text.push_str("#define INPUTS");
    for (index, dtype) in form.dtypes.iter().enumerate() {
        write!(text, " GLOBAL const {} *p{index},", storage(*dtype).0)?;
    }
    text.push_str("\n#define OFFSETS \\\n    u64 rest = row; \\\n");
    for index in 0..form.dtypes.len() {
        writeln!(text, "    i64 o{index} = 0; \\")?;
    }
    for axis in 0..rank {
        // The remainder is the index along the outermost axis.
        let last = axis + 1 == rank;
        let place = if last { "rest".to_owned() } else { format!("rest % size.at[{axis}]") };
        writeln!(text, "    i64 at{axis} = (i64)({place}); \\")?;
        if !last {
            writeln!(text, "    rest /= size.at[{axis}]; \\")?;
        }
        for index in 0..form.dtypes.len() {
            writeln!(text, "    o{index} += at{axis} * stride.at[{index}][{}]; \\", axis + 1)?;
        }
    }
    text.push('\n');
    let all = 0..form.dtypes.len();
    write_loads(text, "LOAD_INPUTS", form, all.start..form.before, false)?;
    write_loads(text, "LOAD_MORE", form, form.before..all.end, reduces)?;
    write_call(text, "BEFORE", "before", form, 0..form.before, false)?;
    write_call(text, "AFTER", "after", form, form.before..all.end, reduces)
}

/// Writes a macro that reads the vectors at index `i` of the row. With `alone`, a row is one
/// number, and the macro reads that element.
fn write_loads(
    text: &mut String,
    name: &str,
    form: &RowForm,
    inputs: std::ops::Range<usize>,
    alone: bool,
) -> std::fmt::Result {
    writeln!(text, "#define {name} \\")?;
    for index in inputs {
        let stored = storage(form.dtypes[index]).0;
        match form.accesses[index] {
            _ if alone => writeln!(text, "    {stored} a{index} = p{index}[o{index}]; \\")?,
            Access::Same => writeln!(text, "    {stored} a{index} = p{index}[o{index}]; \\")?,
            Access::Vector => {
                writeln!(
                    text,
                    "    vector_{index} a{index} = *(GLOBAL const vector_{index} *)(p{index} + o{index} + i); \\"
                )?;
            }
            Access::Single => {
                writeln!(text, "    vector_{index} a{index}; \\\n    UNROLL \\")?;
                writeln!(
                    text,
                    "    for (u32 e = 0; e < VECTOR; e++) a{index}.at[e] = p{index}[o{index} + (i64)(i + e) * stride.at[{index}][0]]; \\"
                )?;
            }
        }
    }
    text.push('\n');
    Ok(())
}

/// Writes a macro that applies an expression to element `e` of the inputs read. The second
/// expression takes the function's result `value` first.
fn write_call(
    text: &mut String,
    name: &str,
    function: &str,
    form: &RowForm,
    inputs: std::ops::Range<usize>,
    alone: bool,
) -> std::fmt::Result {
    write!(text, "#define {name} {function}(CONSTANTS_HERE ")?;
    if function == "after" {
        write!(text, "({})value, ", carrier(form.row))?;
    }
    for index in inputs {
        let element = if alone || form.accesses[index] == Access::Same { "" } else { ".at[e]" };
        write!(text, "{}(a{index}{element}), ", storage(form.dtypes[index]).1)?;
    }
    text.push_str("0u)\n");
    Ok(())
}

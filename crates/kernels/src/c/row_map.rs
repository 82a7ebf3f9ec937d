//! Functions of rows between two elementwise expressions, as kernels in the C dialect: `row_map.c` with the expressions as
//! functions and the reading of the inputs as macros in front of it.
//!
//! The kernel's entry is `row_map(target, inputs…, sizes, strides, constants, rows, len, epsilon)`. `sizes` is a structure of the
//! axes before the rows, the last first, as u32; `strides` one of i64: for each input its step along the row, then its steps
//! along those axes. `constants` is as in [`generate`](super::generate). The parameters of `rows.h` are the kernel's.

use std::fmt::Write;
use std::sync::Arc;

use panoply_core::DType;
use panoply_core::expr::{Program, Types};
use panoply_core::op::compute::RowFunction;

use super::Kernel;
use super::generate::{Access, ELEMENTWISE, carrier, compute_function, storage, write_constants_type};

const ROWS: &str = include_str!("rows.h");
const ROW_MAP: &str = include_str!("row_map.c");

/// Everything that decides the text, beside the expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowForm {
    /// The function's kind; see [`RowFunction::name`].
    pub function: &'static str,
    /// The inputs' element types: of the expression before the function, then of the one after it from 1 on.
    pub dtypes: Vec<DType>,
    /// How each is read along the row.
    pub accesses: Vec<Access>,
    /// How many of them are of the expression before the function.
    pub before: usize,
    /// The element type of a row, and of the output.
    pub row: DType,
    /// The output's.
    pub output: DType,
    /// Axes before the rows, after collapsing; at least one.
    pub rank: usize,
    /// Threads of a row, vectors of a thread, elements of a vector.
    pub shares: [usize; 3],
    /// Whether the threads' elements are the row exactly.
    pub is_full: bool,
}

/// A kernel and the constants of its expressions.
#[derive(Clone, Debug)]
pub struct RowKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// What its argument `constants` holds.
    pub constants: Vec<u64>,
}

/// The kernel for a function of rows between two expressions with these types.
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
        // What is left is the place along the outermost axis.
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

/// Reads the vectors at place `i` of the row; of one number for a row the element alone.
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

/// The expression of element `e` of what was read; of the second one the function's result comes first, as `value`.
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

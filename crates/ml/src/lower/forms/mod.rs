//! Kernels of our own in the languages of devices. A text is the same for every shape, so that each is compiled once; what differs comes
//! as scalars and tables. Places are numbers of 32 bits: larger tensors have no such form, and stay on the CPU.

use std::fmt::Write;

use panoply_core::DType;
use panoply_core::op::compute::{KernelBuilder, LaunchSize, ScalarType};

use crate::ops::recurrent::Gates;

/// The threads of a block.
const THREADS: u32 = 256;
/// The most blocks of a launch whose threads take several elements.
const BLOCKS_MAX: usize = 1 << 14;
/// The most elements whose places these kernels count.
const PLACES_MAX: usize = 1 << 31;
/// The most sums of one step of a recurrent layer and the most units, which lie in a block's memory.
const WIDTH_MAX: usize = 2048;
const HIDDEN_MAX: usize = 1024;

/// Whether tensors of so many elements can have a form for devices.
pub(super) fn fits(elements: &[usize]) -> bool {
    elements.iter().all(|count| *count < PLACES_MAX)
}

/// Threads for so many elements, each of which takes several where there are many.
pub(super) fn over(elements: usize) -> LaunchSize {
    LaunchSize::over(elements.min(BLOCKS_MAX * THREADS as usize), THREADS)
}

/// Tensors one behind the other, of runs that scalars say: `count`, `width`, and `run0` and further ones.
pub(super) fn concat(program: KernelBuilder, sources: usize, dtype: DType, runs: &[usize]) -> KernelBuilder {
    let Some((stored, bits)) = stored(dtype) else { return with_runs(program, sources) };
    let (mut parameters, mut takes) = (String::new(), String::new());
    for place in 0..sources {
        // Writing to a String cannot fail.
        let _ = write!(parameters, "GLOBAL const {stored} *x{place}, ");
        let _ = writeln!(takes, "        if (at < run{place}) {{ y[i] = x{place}[row * run{place} + at]; continue; }}");
        let _ = writeln!(takes, "        at -= run{place};");
    }
    let scalars: String = (0..sources).map(|place| format!(", u32 run{place}")).collect();
    let c = format!(
        "KERNEL concat({parameters}GLOBAL {stored} *y, u32 count, u32 width{scalars})
{{
    for (u32 i = block_x() * block_size_x() + thread_x(); i < count; i += grid_size_x() * block_size_x()) {{
        u32 row = i / width, at = i % width;
{takes}    }}
}}"
    );
    let program = with_runs(program, sources).c(c, "concat");
    // WGSL has words: runs of smaller elements have to be made of whole ones.
    let pack = 32 / bits;
    if runs.iter().any(|run| !run.is_multiple_of(pack)) {
        return program;
    }
    let mut takes = String::new();
    for place in 0..sources {
        let run = format!("(scalars.run{place} / {pack}u)");
        let _ = writeln!(takes, "        if at < {run} {{ y[i] = x{place}[row * {run} + at]; continue; }}");
        let _ = writeln!(takes, "        at -= {run};");
    }
    let wgsl = format!(
        "@compute @workgroup_size(BLOCK_X)
fn concat(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let width = scalars.width / {pack}u;
    for (var i = id.x; i < scalars.count / {pack}u; i += groups.x * BLOCK_X) {{
        let row = i / width;
        var at = i % width;
{takes}    }}
}}"
    );
    program.wgsl(wgsl, "concat")
}

fn with_runs(program: KernelBuilder, sources: usize) -> KernelBuilder {
    let program = program.scalar("count", ScalarType::U32).scalar("width", ScalarType::U32);
    (0..sources).fold(program, |program, place| program.scalar(&format!("run{place}"), ScalarType::U32))
}

/// How elements are stored in C, and their bits, where there is a form for them.
fn stored(dtype: DType) -> Option<(&'static str, usize)> {
    Some(match dtype {
        DType::F32 => ("f32", 32),
        DType::I32 => ("i32", 32),
        DType::U32 => ("u32", 32),
        DType::F16 | DType::BF16 => ("u16", 16),
        DType::I8 => ("i8", 8),
        DType::U8 => ("u8", 8),
        _ => return None,
    })
}

/// Planes of other sizes, by a table of places and weights for each axis.
pub(super) fn resample(program: KernelBuilder) -> KernelBuilder {
    let program = program.c(include_str!("resample.c"), "resample").wgsl(include_str!("resample.wgsl"), "resample");
    let counts = ["count", "height", "width", "rows", "columns", "row_entries", "column_entries"];
    counts
        .into_iter()
        .fold(program, |program, name| program.scalar(name, ScalarType::U32))
        .scalar("fill", ScalarType::F32)
}

/// The scalars of a recurrent layer.
pub(super) const RECURRENT_SCALARS: [&str; 6] = ["steps", "batch", "directions", "hidden", "reversed", "wants_all"];

/// Whether a block's memory has room for a layer.
pub(super) fn recurrent_fits(gates: Gates, hidden: usize) -> bool {
    gates.count() * hidden <= WIDTH_MAX && hidden <= HIDDEN_MAX
}

/// A block for each row and direction.
pub(super) fn recurrent_launch(batch: usize, directions: usize) -> LaunchSize {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    LaunchSize::new([count(batch), count(directions), 1], [THREADS, 1, 1])
}

/// The steps of a layer with these states given at first.
pub(super) fn recurrent(program: KernelBuilder, gates: Gates, [has_hidden, has_cells]: [bool; 2]) -> KernelBuilder {
    let has_last_cells = gates == Gates::Lstm;
    let (mut states, [mut hidden, mut cells]) = (String::new(), ["0.0", "0.0"]);
    if has_hidden {
        states.push_str("GLOBAL const f32 *first_hidden, ");
        hidden = "first_hidden[own + unit]";
    }
    if has_cells {
        states.push_str("GLOBAL const f32 *first_cells, ");
        cells = "first_cells[own + unit]";
    }
    let last = if has_last_cells { "y[all + last + own + unit] = cells[unit];" } else { "" };
    let common = [("WIDTH_MAX", WIDTH_MAX.to_string()), ("HIDDEN_MAX", HIDDEN_MAX.to_string())];
    let fill = |text: &str, own: &[(&str, &str)]| {
        let text = own.iter().fold(text.to_owned(), |text, (word, by)| text.replace(word, by));
        common.iter().fold(text, |text, (word, by)| text.replace(word, by))
    };
    let (count, threads) = (gates.count().to_string(), THREADS.to_string());
    let in_c = |state: &str| if state == "0.0" { "0.0f".to_owned() } else { state.to_owned() };
    let c = fill(
        include_str!("recurrent.c"),
        &[
            ("STATES ", &states),
            ("FIRST_HIDDEN", &in_c(hidden)),
            ("FIRST_CELLS", &in_c(cells)),
            ("LAST_CELLS", last),
            ("CELL\n", &format!("{}\n", cell_in_c(gates))),
            ("GATES", &count),
            ("THREADS", &threads),
        ],
    );
    let wgsl = fill(
        include_str!("recurrent.wgsl"),
        &[
            ("FIRST_HIDDEN", hidden),
            ("FIRST_CELLS", cells),
            ("LAST_CELLS", last),
            ("CELL\n", &format!("{}\n", cell_in_wgsl(gates))),
            ("GATES", &count),
        ],
    );
    let program = program.c(c, "recurrent").wgsl(wgsl, "recurrent");
    RECURRENT_SCALARS.into_iter().fold(program, |program, name| program.scalar(name, ScalarType::U32))
}

/// What a unit becomes, of the sums `input` and `products`, gate by gate.
fn cell_in_c(gates: Gates) -> String {
    let of = |gate: usize| format!("(input[{gate} * hidden + unit] + products[{gate} * hidden + unit])");
    match gates {
        Gates::Lstm => format!(
            "cells[unit] = sigmoid_of{} * cells[unit] + sigmoid_of{} * tanhf{};
            made = sigmoid_of{} * tanhf(cells[unit]);",
            of(2),
            of(0),
            of(3),
            of(1)
        ),
        Gates::Gru => format!(
            "f32 kept = sigmoid_of{}, reset = sigmoid_of{};
            f32 fresh = tanhf(input[2 * hidden + unit] + reset * products[2 * hidden + unit]);
            made = (1.0f - kept) * fresh + kept * state[unit];",
            of(0),
            of(1)
        ),
        Gates::Tanh => format!("made = tanhf{};", of(0)),
        Gates::Relu => format!("made = {0} < 0.0f ? 0.0f : {0};", of(0)),
    }
}

fn cell_in_wgsl(gates: Gates) -> String {
    let of = |gate: usize| format!("(sums[input + {gate}u * hidden + unit] + products[{gate}u * hidden + unit])");
    match gates {
        Gates::Lstm => format!(
            "cells[unit] = sigmoid_of{} * cells[unit] + sigmoid_of{} * tanh_of{};
            made = sigmoid_of{} * tanh_of(cells[unit]);",
            of(2),
            of(0),
            of(3),
            of(1)
        ),
        Gates::Gru => format!(
            "let kept = sigmoid_of{};
            let reset = sigmoid_of{};
            let fresh = tanh_of(sums[input + 2u * hidden + unit] + reset * products[2u * hidden + unit]);
            made = (1.0 - kept) * fresh + kept * state[unit];",
            of(0),
            of(1)
        ),
        Gates::Tanh => format!("made = tanh_of{};", of(0)),
        Gates::Relu => format!("let sum = {}; made = select(sum, 0.0, sum < 0.0);", of(0)),
    }
}

//! Custom kernels in the languages of devices. A source is the same for every shape, so that each
//! is compiled once; scalars and tables carry the differences. Indices are 32-bit numbers. Larger
//! tensors have no device code and stay on the CPU.

use std::fmt::Write;

use panoply_core::DType;
use panoply_core::op::compute::{KernelBuilder, LaunchSize, ScalarType};

use crate::ops::recurrent::Gates;

/// Threads per block.
const THREADS: u32 = 256;
/// The most blocks of a launch whose threads process several elements.
const BLOCKS_MAX: usize = 1 << 14;
/// The most elements that these kernels can index.
const PLACES_MAX: usize = 1 << 31;
/// The most sums of one step of a recurrent layer, and the most units. Both lie in a block's shared
/// memory.
const WIDTH_MAX: usize = 2048;
const HIDDEN_MAX: usize = 1024;

/// Whether tensors of these sizes can have device code.
pub(super) fn fits(elements: &[usize]) -> bool {
    elements.iter().all(|count| *count < PLACES_MAX)
}

/// Threads for `elements` elements. If there are many, each thread processes several.
pub(super) fn over(elements: usize) -> LaunchSize {
    LaunchSize::over(elements.min(BLOCKS_MAX * THREADS as usize), THREADS)
}

/// Concatenates tensors. Scalars give the runs: `count`, `width`, and `run0` and further ones.
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
    let program = with_runs(program, sources).c(c, "concat").writes_all();
    // WGSL stores words. If runs consist of whole words, words are copied; otherwise each word is
    // assembled from its elements.
    let pack = 32 / bits;
    let wgsl = match runs.iter().all(|run| run.is_multiple_of(pack)) {
        true => concat_words(sources, pack),
        false => concat_parts(sources, pack),
    };
    program.wgsl(wgsl, "concat")
}

/// WGSL source for runs of whole words with `pack` elements each.
fn concat_words(sources: usize, pack: usize) -> String {
    let mut takes = String::new();
    for place in 0..sources {
        let run = format!("(scalars.run{place} / {pack}u)");
        // Writing to a String cannot fail.
        let _ = writeln!(takes, "        if at < {run} {{ y[i] = x{place}[row * {run} + at]; continue; }}");
        let _ = writeln!(takes, "        at -= {run};");
    }
    format!(
        "@compute @workgroup_size(BLOCK_X)
fn concat(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let width = scalars.width / {pack}u;
    for (var i = id.x; i < scalars.count / {pack}u; i += groups.x * BLOCK_X) {{
        let row = i / width;
        var at = i % width;
{takes}    }}
}}"
    )
}

/// WGSL source for runs that end inside words of `pack` elements.
fn concat_parts(sources: usize, pack: usize) -> String {
    let mut takes = String::new();
    for place in 0..sources {
        let run = format!("scalars.run{place}");
        let from = part_of(&format!("x{place}"), &format!("row * {run} + at"), pack);
        // Writing to a String cannot fail.
        let _ = writeln!(takes, "    if at < {run} {{ return {from}; }}");
        let _ = writeln!(takes, "    at -= {run};");
    }
    let element = format!(
        "fn element(i: u32) -> u32 {{
    let row = i / scalars.width;
    var at = i % scalars.width;
{takes}    return 0u;
}}"
    );
    format!("{element}\n\n{}", by_words("concat", pack))
}

/// A small element as a number, from words of `pack` elements.
fn part_of(words: &str, place: &str, pack: usize) -> String {
    let (bits, mask) = (32 / pack, (1u64 << (32 / pack)) - 1);
    format!("({words}[({place}) / {pack}u] >> (({place}) % {pack}u * {bits}u)) & {mask}u")
}

/// A WGSL entry point whose invocations assemble whole words from the results of `element`, `pack`
/// per word.
fn by_words(entry: &str, pack: usize) -> String {
    let bits = 32 / pack;
    format!(
        "@compute @workgroup_size(BLOCK_X)
fn {entry}(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    for (var word = id.x; word < (scalars.count + {last}u) / {pack}u; word += groups.x * BLOCK_X) {{
        var made = 0u;
        for (var part = 0u; part < {pack}u; part++) {{
            let i = word * {pack}u + part;
            if i < scalars.count {{ made |= element(i) << (part * {bits}u); }}
        }}
        y[word] = made;
    }}
}}",
        last = pack - 1
    )
}

/// Whether planes of this element type have device code.
pub(super) fn has_frames(dtype: DType) -> bool {
    stored(dtype).is_some()
}

/// Planes with other elements along their axes, by a table of source indices for each axis.
pub(super) fn frame(program: KernelBuilder, dtype: DType) -> KernelBuilder {
    let Some((stored, bits)) = stored(dtype) else { return program };
    let fill = if dtype == DType::F32 { "bits_f32(fill)".to_owned() } else { format!("({stored})fill") };
    let c = include_str!("frame.c").replace("STORED", stored).replace("FILL", &fill);
    let source = "(plane * scalars.height + u32(from_row)) * scalars.width + u32(from_column)";
    let element = |kind: &str, fill: &str, source: &str| {
        let text = include_str!("frame.wgsl").replace("KIND", kind);
        text.replace("FILL", fill).replace("SOURCE", source)
    };
    let whole = format!("x[{source}]");
    let wgsl = match dtype {
        DType::F32 => element("f32", "bitcast<f32>(scalars.fill)", &whole),
        DType::I32 => element("i32", "bitcast<i32>(scalars.fill)", &whole),
        DType::U32 => element("u32", "scalars.fill", &whole),
        _ => element("u32", "scalars.fill", &part_of("x", source, 32 / bits)),
    };
    let entry = if bits == 32 { FRAME_ENTRY.to_owned() } else { by_words("frame", 32 / bits) };
    let program = program.c(c, "frame").wgsl(format!("{wgsl}\n{entry}"), "frame").writes_all();
    FRAME_SCALARS.into_iter().fold(program, |program, name| program.scalar(name, ScalarType::U32))
}

/// The scalars of [`frame`].
const FRAME_SCALARS: [&str; 8] =
    ["count", "height", "width", "rows", "columns", "row_entries", "column_entries", "fill"];

const FRAME_ENTRY: &str = "@compute @workgroup_size(BLOCK_X)
fn frame(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < scalars.count; i += groups.x * BLOCK_X) { y[i] = element(i); }
}";

fn with_runs(program: KernelBuilder, sources: usize) -> KernelBuilder {
    let program = program.scalar("count", ScalarType::U32).scalar("width", ScalarType::U32);
    (0..sources).fold(program, |program, place| program.scalar(&format!("run{place}"), ScalarType::U32))
}

/// The C type and the number of bits of a stored element. `None` if there is no device code for it.
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

/// Resampled planes, by a table of source indices and weights for each axis.
pub(super) fn resample(program: KernelBuilder) -> KernelBuilder {
    let program = program.c(include_str!("resample.c"), "resample").wgsl(include_str!("resample.wgsl"), "resample");
    let program = program.writes_all();
    let counts = ["count", "height", "width", "rows", "columns", "row_entries", "column_entries"];
    counts.into_iter().fold(program, |program, name| program.scalar(name, ScalarType::U32))
}

/// Elements combined with updates. The expressions of `old` and `given` in C and in WGSL define the
/// combination.
pub(super) fn scatter(program: KernelBuilder, [c, wgsl]: [&str; 2]) -> KernelBuilder {
    let program = program.c(include_str!("scatter.c").replace("JOIN", c), "scatter");
    let program = program.wgsl(include_str!("scatter.wgsl").replace("JOIN", wgsl), "scatter").writes_all();
    let sizes = ["elements", "len", "inner", "count"];
    sizes.into_iter().fold(program, |program, name| program.scalar(name, ScalarType::U32))
}

/// The scalars of a recurrent layer.
pub(super) const RECURRENT_SCALARS: [&str; 6] = ["steps", "batch", "directions", "hidden", "reversed", "wants_all"];

/// Whether a block's shared memory has no room for the states of a layer. The output then has room
/// for one more copy of the states at its end.
pub(super) fn recurrent_is_wide(gates: Gates, hidden: usize) -> bool {
    gates.count() * hidden > WIDTH_MAX || hidden > HIDDEN_MAX
}

/// One block for each row and direction.
pub(super) fn recurrent_launch(batch: usize, directions: usize) -> LaunchSize {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    LaunchSize::new([count(batch), count(directions), 1], [THREADS, 1, 1])
}

/// The steps of a layer with the given initial states, for few or many units.
pub(super) fn recurrent(program: KernelBuilder, gates: Gates, has_states: [bool; 2], is_wide: bool) -> KernelBuilder {
    let (mut states, mut firsts) = (String::new(), ["0.0", "0.0"]);
    let names = ["GLOBAL const f32 *first_hidden, ", "GLOBAL const f32 *first_cells, "];
    let given = ["first_hidden[own + unit]", "first_cells[own + unit]"];
    for place in (0..2).filter(|place| has_states[*place]) {
        states.push_str(names[place]);
        firsts[place] = given[place];
    }
    let has_cells = gates == Gates::Lstm;
    let in_c = firsts.map(|first| if first == "0.0" { "0.0f".to_owned() } else { first.to_owned() });
    let c = match is_wide {
        true => include_str!("recurrent_wide.c"),
        false => include_str!("recurrent.c"),
    };
    let c = c.replace("STATES ", &states).replace("THREADS", &THREADS.to_string());
    let c = filled(
        c,
        gates,
        [&in_c[0], &in_c[1]],
        &cell_in_c(gates, is_wide),
        (is_wide && has_cells).then_some("cells[unit]"),
    );
    let wgsl = match is_wide {
        true => include_str!("recurrent_wide.wgsl"),
        false => include_str!("recurrent.wgsl"),
    };
    let kept = (is_wide && has_cells).then_some("y[cells + unit]");
    let wgsl = [include_str!("recurrent_functions.wgsl"), wgsl].concat();
    let wgsl = filled(wgsl, gates, firsts, &cell_in_wgsl(gates, is_wide), kept);
    let program = program.c(c, "recurrent").wgsl(wgsl, "recurrent");
    RECURRENT_SCALARS.into_iter().fold(program, |program, name| program.scalar(name, ScalarType::U32))
}

/// Fills the layer's code into a template. Cells of layers with many units are initialised in the
/// buffer that keeps them.
fn filled(text: String, gates: Gates, [hidden, cells]: [&str; 2], cell: &str, kept: Option<&str>) -> String {
    let has_cells = gates == Gates::Lstm;
    let first_cells = match (text.contains("cells[unit] = FIRST_CELLS"), kept) {
        (true, _) => cells.to_owned(),
        (false, Some(place)) => format!("{place} = {cells};"),
        (false, None) => String::new(),
    };
    let own = [
        ("FIRST_HIDDEN", hidden),
        ("FIRST_CELLS", &first_cells),
        ("LAST_CELLS", if has_cells { "y[all + last + own + unit] = cells[unit];" } else { "" }),
        ("KEPT", if has_cells { "2" } else { "1" }),
        ("CELL\n", &format!("{cell}\n")),
        ("GATES", &gates.count().to_string()),
        ("WIDTH_MAX", &WIDTH_MAX.to_string()),
        ("HIDDEN_MAX", &HIDDEN_MAX.to_string()),
    ];
    own.iter().fold(text, |text, (word, by)| text.replace(word, by))
}

/// The new state of a unit, from the sums `input` and `products` of each gate.
fn cell_in_c(gates: Gates, is_wide: bool) -> String {
    let product = |gate: usize| match is_wide {
        true => format!("products[{gate}]"),
        false => format!("products[{gate} * hidden + unit]"),
    };
    let state = if is_wide { "before[unit]" } else { "state[unit]" };
    let of = |gate: usize| format!("(input[{gate} * hidden + unit] + {})", product(gate));
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
            f32 fresh = tanhf(input[2 * hidden + unit] + reset * {});
            made = (1.0f - kept) * fresh + kept * {state};",
            of(0),
            of(1),
            product(2)
        ),
        Gates::Tanh => format!("made = tanhf{};", of(0)),
        Gates::Relu => format!("made = {0} < 0.0f ? 0.0f : {0};", of(0)),
    }
}

fn cell_in_wgsl(gates: Gates, is_wide: bool) -> String {
    let product = |gate: usize| match is_wide {
        true => format!("products[{gate}]"),
        false => format!("products[{gate}u * hidden + unit]"),
    };
    let [state, cell] = if is_wide { ["y[before + unit]", "y[cells + unit]"] } else { ["state[unit]", "cells[unit]"] };
    let of = |gate: usize| format!("(sums[input + {gate}u * hidden + unit] + {})", product(gate));
    match gates {
        Gates::Lstm => format!(
            "{cell} = sigmoid_of{} * {cell} + sigmoid_of{} * tanh_of{};
            made = sigmoid_of{} * tanh_of({cell});",
            of(2),
            of(0),
            of(3),
            of(1)
        ),
        Gates::Gru => format!(
            "let kept = sigmoid_of{};
            let reset = sigmoid_of{};
            let fresh = tanh_of(sums[input + 2u * hidden + unit] + reset * {});
            made = (1.0 - kept) * fresh + kept * {state};",
            of(0),
            of(1),
            product(2)
        ),
        Gates::Tanh => format!("made = tanh_of{};", of(0)),
        Gates::Relu => format!("let sum = {}; made = select(sum, 0.0, sum < 0.0);", of(0)),
    }
}

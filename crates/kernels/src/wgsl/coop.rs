//! Products of f16 on a device's matrix units, summed up in f32: `activation(alpha · A·B + beta · C + bias)`.
//!
//! Four subgroups of 32 invocations make a tile of 128 × 128 outputs, a quarter each, as four by four matrices that live in
//! the registers of a subgroup. Tiles of both operands, 32 steps of the inner dimension deep, go through workgroup memory in
//! the arrangement that they have in memory; while one is multiplied the next is on its way into registers. Where something
//! is done to the sums, or tiles are not whole, they go through workgroup memory once more, and from there one by one.
//!
//! Parameters and buffers are those of [`super::gemm`]. (Indices of the matrices' own loads and stores are named first: naga
//! 30 does not compile expressions inside of them.)

use std::fmt::Write;

use super::gemm::{BATCH_SETUP, Epilogue, Load, PARAMS, addend_buffers, epilogue, epilogue_math, store};
use super::prelude::{buffers, fill, params};

/// Rows and columns of a workgroup's tile.
pub const COOP_TILE: usize = 128;
/// Invocations of a workgroup.
const THREADS: usize = 128;
/// Steps of the inner dimension in a tile.
pub const COOP_DEPTH: usize = 32;
/// Elements that are read at once: both operands' strides, offsets and contiguous lengths are multiples of it.
pub const COOP_STEP: usize = 8;
/// Vectors of so many elements that an invocation fetches of each operand's tile.
const FETCHES: usize = COOP_TILE * COOP_DEPTH / COOP_STEP / THREADS;
/// Matrices of a subgroup along each dimension, of 16 × 16.
const MATRICES: usize = 4;
/// Vectors of four from one line of a tile to the next: two more than a line has, so that banks of memory take turns.
const LONG_LINE: usize = COOP_TILE / 4 + 2;
const SHORT_LINE: usize = COOP_DEPTH / 4 + 2;

/// A product of f16 on matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopKernel {
    /// Whether the left operand is contiguous along the inner dimension ([`Load::AlongInner`]) or along its rows.
    pub load_a: Load,
    /// The same of the right operand.
    pub load_b: Load,
    /// What happens to the sums.
    pub epilogue: Epilogue,
    /// Stores vectors of four: n is a multiple of four.
    pub vector_store: bool,
    /// All tiles are whole: m and n are multiples of [`COOP_TILE`], and k of [`COOP_DEPTH`].
    pub whole: bool,
}

impl CoopKernel {
    /// Workgroup memory that a kernel takes, in bytes.
    pub fn workgroup_bytes() -> u32 {
        let tile = (COOP_TILE * SHORT_LINE).max(COOP_DEPTH * LONG_LINE);
        (2 * tile * 8 + 4 * 16 * 16 * MATRICES * 4) as u32
    }

    pub(super) fn source(&self) -> String {
        let mut text = "enable f16;\nenable wgpu_cooperative_matrix;\nalias T = f32;\n".to_owned();
        text.push_str("struct Eight { low: vec4<f16>, high: vec4<f16> }\n");
        text.push_str(&params(&PARAMS));
        let mut reads = vec![("a", "Eight"), ("b", "Eight")];
        addend_buffers(&self.epilogue, &mut reads);
        let output = if self.vector_store && !self.is_direct() { "vec4<T>" } else { "T" };
        text.push_str(&buffers(&[("out", output)], &reads));
        text.push_str(&epilogue_math(&self.epilogue));
        text.push_str(&epilogue(&self.epilogue));
        for (name, load) in [("a", self.load_a), ("b", self.load_b)] {
            let _ = writeln!(text, "var<workgroup> tile_{name}: array<vec4<f16>, {}>;", tile_vectors(load));
        }
        if !self.is_direct() {
            text.push_str("var<workgroup> sums: array<f32, 4096>;\n");
        }
        text.push_str(HEAD);
        text.push_str(BATCH_SETUP);
        text.push_str(&each_sum("  var c$I_$J = coop_mat16x16<f32, C>();\n"));
        text.push_str(&place('a', self.load_a));
        text.push_str(&place('b', self.load_b));
        text.push_str("  var kf = 0u;\n");
        text.push_str(&fetch('a', self.load_a, self.whole));
        text.push_str(&fetch('b', self.load_b, self.whole));
        let _ = writeln!(text, "  for (var k0 = 0u; k0 < p.k; k0 = k0 + {COOP_DEPTH}u) {{");
        text.push_str(&put('a', self.load_a));
        text.push_str(&put('b', self.load_b));
        // Behind the last tile, whole ones fetch it once more, which is not used.
        let next = if self.whole { "min(k0 + $Du, p.k - $Du)" } else { "k0 + $Du" };
        let next = next.replace("$D", &COOP_DEPTH.to_string());
        let _ = writeln!(text, "    workgroupBarrier();\n    kf = {next};");
        text.push_str(&fetch('a', self.load_a, self.whole));
        text.push_str(&fetch('b', self.load_b, self.whole));
        for step in 0..COOP_DEPTH / 16 {
            text.push_str("    {\n");
            text.push_str(&matrices('a', self.load_a, step));
            text.push_str(&matrices('b', self.load_b, step));
            text.push_str(&each_sum("      c$I_$J = coopMultiplyAdd(a$I, b$J, c$I_$J);\n"));
            text.push_str("    }\n");
        }
        text.push_str("    workgroupBarrier();\n  }\n");
        if self.is_direct() {
            text.push_str(&each_sum(DIRECT));
        } else {
            (0..MATRICES).for_each(|row| text.push_str(&stored(row, &store(self.vector_store))));
        }
        text.push_str("}\n");
        text
    }

    /// Whether sums go to memory as they are.
    fn is_direct(&self) -> bool {
        self.whole && self.epilogue == Epilogue::none(self.epilogue.addend_dtype)
    }
}

/// Vectors of four in a tile, with what lies between its lines.
fn tile_vectors(load: Load) -> usize {
    if load == Load::AlongInner { COOP_TILE * SHORT_LINE } else { COOP_DEPTH * LONG_LINE }
}

/// Eights in a line of a tile, lines between two eights of one invocation, and vectors of four from a line to the next.
fn lines(load: Load) -> (usize, usize, usize) {
    let (eights, length) = match load {
        Load::AlongInner => (COOP_DEPTH / COOP_STEP, SHORT_LINE),
        _ => (COOP_TILE / COOP_STEP, LONG_LINE),
    };
    (eights, THREADS / eights, length)
}

/// The text once for each of a subgroup's sums.
fn each_sum(text: &str) -> String {
    let places = (0..MATRICES).flat_map(|row| (0..MATRICES).map(move |column| (row, column)));
    places.map(|(row, column)| fill(text, &[("$I", &row.to_string()), ("$J", &column.to_string())])).collect()
}

/// The lines that say which eights of an operand's tile this invocation fetches, and where it puts them: the first one's
/// place along m or n (`outer`), along k (`inner`) and in the tile (`slot`).
fn place(name: char, load: Load) -> String {
    let origin = if name == 'a' { "m0" } else { "n0" };
    let (eights, _, length) = lines(load);
    let (line, along) = (format!("lid / {eights}u"), format!("lid % {eights}u"));
    let (outer, inner) = match load {
        Load::AlongInner => (line.clone(), format!("{along} * {COOP_STEP}u")),
        _ => (format!("{along} * {COOP_STEP}u"), line.clone()),
    };
    let mut text = format!("  let {name}_outer = {origin} + {outer};\n  let {name}_inner = {inner};\n");
    let _ = writeln!(text, "  let {name}_slot = {line} * {length}u + {along} * 2u;");
    for item in 0..FETCHES {
        let _ = writeln!(text, "  var {name}_next{item} = Eight();");
    }
    text
}

/// The lines that fetch this invocation's eights of an operand, from the inner step `kf` on; zeros behind the edges.
fn fetch(name: char, load: Load, whole: bool) -> String {
    let (limit, outer, inner) = if name == 'a' { ("m", "ars", "acs") } else { ("n", "bcs", "brs") };
    let (_, apart, _) = lines(load);
    let (row, step, at) = match load {
        Load::AlongInner => {
            ("$N_outer + $Ou", "kf + $N_inner", format!("($N_outer + $Ou) * p.{outer} + kf + $N_inner"))
        }
        _ => ("$N_outer", "kf + $N_inner + $Ou", format!("$N_outer + (kf + $N_inner + $Ou) * p.{inner}")),
    };
    let read = format!("$N_next$L = $N[($N_base + {at}) / {COOP_STEP}u];");
    let one = if whole {
        format!("    {read}\n")
    } else {
        format!("    $N_next$L = Eight();\n    if ({row} < p.{limit} && {step} < p.k) {{ {read} }}\n")
    };
    let each = |item: usize| {
        let (offset, item) = ((item * apart).to_string(), item.to_string());
        fill(&one, &[("$N", &name.to_string()), ("$O", &offset), ("$L", &item)])
    };
    (0..FETCHES).map(each).collect()
}

/// The lines that put what was fetched into the tile.
fn put(name: char, load: Load) -> String {
    let (_, apart, length) = lines(load);
    let one = "    tile_$N[$N_slot + $Ou] = $N_next$L.low;\n    tile_$N[$N_slot + $Ou + 1u] = $N_next$L.high;\n";
    let each = |item: usize| {
        let (offset, item) = ((item * apart * length).to_string(), item.to_string());
        fill(one, &[("$N", &name.to_string()), ("$O", &offset), ("$L", &item)])
    };
    (0..FETCHES).map(each).collect()
}

/// The lines that load a subgroup's matrices of sixteen inner steps.
fn matrices(name: char, load: Load, step: usize) -> String {
    let (role, origin) = if name == 'a' { ("A", "rows") } else { ("B", "columns") };
    let (at, line) = match load {
        Load::AlongInner => (format!("({origin} + $Fu) * {SHORT_LINE}u + {}u", 4 * step), SHORT_LINE),
        _ => (format!("{}u + ({origin} + $Fu) / 4u", 16 * step * LONG_LINE), LONG_LINE),
    };
    // Rows of A and of B lie one after the other where A is contiguous along k, and B along n.
    let by_rows = (name == 'a') == (load == Load::AlongInner);
    let call = if by_rows { "coopLoadT" } else { "coopLoad" };
    let one = format!(
        "      let {name}_at$I = {at};
      let {name}$I = {call}<coop_mat16x16<f16, {role}>>(&tile_{name}[{name}_at$I], {line}u);\n"
    );
    (0..MATRICES).map(|item| fill(&one, &[("$F", &(16 * item).to_string()), ("$I", &item.to_string())])).collect()
}

/// The lines that store one row of a subgroup's matrices, by way of workgroup memory.
fn stored(row: usize, store: &str) -> String {
    let mut text = String::new();
    for column in 0..MATRICES {
        let _ = writeln!(
            text,
            "  let s{row}_{column} = subgroup * 1024u + {}u;\n  coopStoreT(c{row}_{column}, &sums[s{row}_{column}], 64u);",
            16 * column
        );
    }
    text.push_str(&fill(STORED, &[("$ROW", &(16 * row).to_string()), ("$STORE", store)]));
    text
}

const DIRECT: &str = "
  let o$I_$J = (batch * p.m + m0 + rows + 16u * $Iu) * p.n + n0 + columns + 16u * $Ju;
  let w$I_$J = p.n;
  coopStoreT(c$I_$J, &out[o$I_$J], w$I_$J);
";

const STORED: &str = "
  workgroupBarrier();
  for (var t = lane; t < 256u; t = t + 32u) {
    let at = subgroup * 1024u + t * 4u;
    let v = vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
    let row = m0 + rows + $ROWu + t / 16u;
    let col = n0 + columns + t % 16u * 4u;
$STORE
  }
  workgroupBarrier();
";

/// Workgroups walk the output in bands of eight tiles.
const HEAD: &str = "
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
  let lid = subgroup * 32u + lane;
  let per_batch = p.tiles_m * p.tiles_n;
  if (group >= per_batch * p.batches) { return; }
  let batch = group / per_batch;
  let tile = group % per_batch;
  let band_width = 8u * p.tiles_n;
  let band_first = tile / band_width * 8u;
  let band_rows = min(p.tiles_m - band_first, 8u);
  let m0 = (band_first + tile % band_width % band_rows) * 128u;
  let n0 = (tile % band_width / band_rows) * 128u;
  let rows = subgroup / 2u * 64u;
  let columns = subgroup % 2u * 64u;
";

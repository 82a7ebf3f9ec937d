//! Matrix products by tiles: `activation(alpha · A·B + beta · C + bias)`.
//!
//! A workgroup of 16 × 16 invocations makes a tile of `64 · rows` × `64 · columns` outputs; an invocation holds blocks of
//! 4 × 4 of them in registers. Tiles of both operands, sixteen steps of the inner dimension deep, go through workgroup
//! memory; while one is multiplied the next is on its way into registers. Workgroups walk the output in bands of eight
//! tiles, so that neighbours in time share operands in the cache.
//!
//! Parameters: m, n, k, tiles along m and n, batches, then offset, row stride and column stride of A and of B, six
//! dimensions of the batch with the strides of A and of B for each, offset, row and column stride and six batch strides of
//! C, offset and stride of the bias, alpha and beta in the output's carrier.

use std::fmt::Write;

use panoply_core::DType;
use panoply_core::op::compute::{Activation, Metric};

use super::math::MATH;
use super::prelude::{BITS, ENTRY, buffers, carrier, fill, load, load_as, params, word, zero};

/// How many steps of the inner dimension a tile is deep.
pub(super) const TILE_DEPTH: u32 = 16;

/// The size of a workgroup's tile, in units of 64 outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// 64 rows each: 1 or 2.
    pub rows: u8,
    /// 64 columns each: 1 or 2.
    pub columns: u8,
    /// Two tiles of each operand in workgroup memory: twice the memory, half the barriers.
    pub double: bool,
    /// The steps through a tile are written out: faster on hardware, slower to compile.
    pub unrolled: bool,
}

impl Tile {
    /// Rows of the tile.
    pub fn m(&self) -> usize {
        64 * usize::from(self.rows)
    }

    /// Columns of the tile.
    pub fn n(&self) -> usize {
        64 * usize::from(self.columns)
    }

    /// Bytes of workgroup memory that the tile takes.
    pub fn workgroup_bytes(&self) -> u32 {
        let single = (self.m() + self.n()) as u32 * TILE_DEPTH * 4;
        if self.double { 2 * single } else { single }
    }
}

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// Vectors of four along the inner dimension, which is contiguous and a multiple of four, as are all strides.
    AlongInner,
    /// Vectors of four along the outer dimension (m or n), under the same conditions.
    AlongOuter,
    /// Element by element, by strides.
    Single,
}

/// How products are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// `a · b`.
    Product,
    /// `(a - b)²`.
    SquaredDifference,
}

impl Accumulate {
    /// What the scores of a search under this metric are made of.
    pub fn of(metric: Metric) -> Accumulate {
        match metric {
            Metric::Euclidean => Accumulate::SquaredDifference,
            Metric::Dot | Metric::Cosine => Accumulate::Product,
        }
    }
}

/// A tensor that is added to the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addend {
    /// Nothing.
    None,
    /// One number for each column.
    PerColumn,
    /// One number for each row.
    PerRow,
}

/// What happens to a sum before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Multiplied by alpha.
    pub scaled: bool,
    /// With `beta · C`.
    pub with_c: bool,
    /// With a bias.
    pub bias: Addend,
    /// The type of C and of the bias.
    pub addend_dtype: DType,
    /// Applied last.
    pub activation: Activation,
}

impl Epilogue {
    /// Nothing at all.
    pub fn none(dtype: DType) -> Epilogue {
        let (bias, activation) = (Addend::None, Activation::None);
        Epilogue { scaled: false, with_c: false, bias, addend_dtype: dtype, activation }
    }
}

/// A matrix product of f32, f16, bf16 or integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmKernel {
    /// The type of the left operand.
    pub a: DType,
    /// The type of the right operand, with the same carrier.
    pub b: DType,
    /// How the left operand is read.
    pub load_a: Load,
    /// How the right operand is read.
    pub load_b: Load,
    /// How products are added up.
    pub accumulate: Accumulate,
    /// What happens to the sums.
    pub epilogue: Epilogue,
    /// The size of a workgroup's tile.
    pub tile: Tile,
    /// Stores vectors of four: n is a multiple of four.
    pub vector_store: bool,
}

/// The names of the parameters; `T` is the output's carrier.
pub(super) const PARAMS: [&str; 48] = [
    "m", "n", "k", "tiles_m", "tiles_n", "batches", "ao", "ars", "acs", "bo", "brs", "bcs", "d0", "d1", "d2", "d3",
    "d4", "d5", "as0", "as1", "as2", "as3", "as4", "as5", "bs0", "bs1", "bs2", "bs3", "bs4", "bs5", "co", "crs", "ccs",
    "cs0", "cs1", "cs2", "cs3", "cs4", "cs5", "bias_o", "bias_s", "alpha: T", "beta: T", "u0", "u1", "u2", "u3", "u4",
];

impl GemmKernel {
    /// What sums are kept in. Bytes of either sort are added up as signed integers.
    fn carrier(&self) -> &'static str {
        if self.a == DType::U8 { "i32" } else { carrier(self.a) }
    }

    pub(super) fn source(&self) -> String {
        let carrier = self.carrier();
        let mut text = format!("alias T = {carrier};\n");
        text.push_str(&params(&PARAMS));
        let whole = |dtype, load| match load {
            Load::Single => word(dtype).to_owned(),
            _ => format!("vec4<{}>", word(dtype)),
        };
        let (a, b) = (whole(self.a, self.load_a), whole(self.b, self.load_b));
        let output = if self.vector_store { "vec4<T>" } else { "T" };
        let mut reads = vec![("a", a.as_str()), ("b", b.as_str())];
        addend_buffers(&self.epilogue, &mut reads);
        text.push_str(&buffers(&[("out", output)], &reads));
        text.push_str(&epilogue_math(&self.epilogue));
        if self.load_a == Load::Single {
            text.push_str(&load_as("a", self.a, carrier));
        }
        if self.load_b == Load::Single {
            text.push_str(&load_as("b", self.b, carrier));
        }
        text.push_str(&epilogue(&self.epilogue));
        let hooks = Hooks {
            zero: if carrier == "i32" { "0i" } else { zero(self.a) },
            setup: BATCH_SETUP.to_owned(),
            order_a: self.load_a,
            order_b: self.load_b,
            fetch_a: fetch(self.load_a, 'a', "m", self.tile.unrolled),
            fetch_b: fetch(self.load_b, 'b', "n", self.tile.unrolled),
            store: store(self.vector_store),
        };
        text.push_str(&tile_kernel(self.tile, carrier, self.accumulate, &hooks));
        text
    }
}

/// What a tiled kernel needs to be told.
pub(super) struct Hooks {
    pub zero: &'static str,
    /// Lines run once, after `batch`, `m0` and `n0` are known.
    pub setup: String,
    /// Which neighbours lie along the inner dimension, so that neighbouring invocations read neighbouring memory.
    pub order_a: Load,
    pub order_b: Load,
    /// Lines that set `g0` to `g3`, the vectors along the outer dimension for four inner steps from `kf` on; `outer` is
    /// the first row (or column) of the four.
    pub fetch_a: String,
    pub fetch_b: String,
    /// Lines that store the vector `v` of four outputs of `row`, from `col` on.
    pub store: String,
}

/// The tiled kernel around its hooks.
pub(super) fn tile_kernel(tile: Tile, carrier: &str, accumulate: Accumulate, hooks: &Hooks) -> String {
    let (rows, columns) = (u32::from(tile.rows), u32::from(tile.columns));
    let (wide_m, wide_n) = (16 * rows, 16 * columns);
    let copies = if tile.double { 2 } else { 1 };
    let mut text = format!(
        "var<workgroup> tile_a: array<vec4<{carrier}>, {}>;\nvar<workgroup> tile_b: array<vec4<{carrier}>, {}>;\n",
        TILE_DEPTH * wide_m * copies,
        TILE_DEPTH * wide_n * copies,
    );
    text.push_str(ENTRY);
    tile_head(&mut text, tile, carrier, hooks);
    let fetch = format!("if (loads_a) {{\n{}\n}} else if (loads_b) {{\n{}\n}}", hooks.fetch_a, hooks.fetch_b);
    let (flip, at_a, at_b) = if tile.double {
        (
            "stage = 1u - stage;",
            format!("stage * {}u + ", TILE_DEPTH * wide_m),
            format!("stage * {}u + ", TILE_DEPTH * wide_n),
        )
    } else {
        ("workgroupBarrier();", String::new(), String::new())
    };
    if tile.unrolled {
        let _ = writeln!(text, "  {{ let kf = inner;\n{fetch} }}");
    }
    let _ = writeln!(text, "  var stage = 0u;\n  for (var k0 = 0u; k0 < p.k; k0 = k0 + {TILE_DEPTH}u) {{");
    if !tile.unrolled {
        // Without the next tile on its way, the text that fetches stands only once.
        let _ = writeln!(text, "    {{ let kf = k0 + inner;\n{fetch} }}");
    }
    for (name, wide, at, condition) in [("a", wide_m, &at_a, "loads_a"), ("b", wide_n, &at_b, "loads_b")] {
        let _ = writeln!(text, "    if ({condition}) {{");
        for step in 0..4 {
            let _ = writeln!(text, "      tile_{name}[{at}slot + {}u] = g{step};", step * wide);
        }
        text.push_str("    }\n");
    }
    text.push_str("    workgroupBarrier();\n");
    if tile.unrolled {
        let _ = writeln!(text, "    if (k0 + {TILE_DEPTH}u < p.k) {{ let kf = k0 + {TILE_DEPTH}u + inner;\n{fetch} }}");
    }
    let mixed = [hooks.order_a, hooks.order_b].map(|order| order == Load::AlongInner);
    multiply(&mut text, tile, accumulate, carrier, [&at_a, &at_b], mixed);
    let _ = writeln!(text, "    {flip}\n  }}");
    store_tile(&mut text, tile, carrier, &hooks.store);
    text.push_str("}\n");
    text
}

/// The first lines: which tile this is, empty sums, and which part of which operand an invocation fetches.
fn tile_head(text: &mut String, tile: Tile, carrier: &str, hooks: &Hooks) {
    let (rows, columns) = (u32::from(tile.rows), u32::from(tile.columns));
    let (wide_m, wide_n) = (16 * rows, 16 * columns);
    let order = |load: Load, index: &str, wide: u32| match load {
        Load::AlongInner => format!("let outer_quad = {index} / 4u; let inner_quad = {index} % 4u;"),
        _ => format!("let outer_quad = {index} % {wide}u; let inner_quad = {index} / {wide}u;"),
    };
    let threads_a = 64 * rows;
    let threads_b = 64 * columns;
    text.push_str(&fill(
        HEAD,
        &[
            ("$TILE_M", &(64 * rows).to_string()),
            ("$TILE_N", &(64 * columns).to_string()),
            ("$SETUP", &hooks.setup),
            ("$ZERO", hooks.zero),
        ],
    ));
    for row in 0..8 * rows / 2 {
        for column in 0..columns {
            let _ = writeln!(text, "  var c{row}_{column} = vec4<{carrier}>({0}, {0}, {0}, {0});", hooks.zero);
        }
    }
    // Four invocations that fetch along the inner dimension would write to the same banks of memory: the places of each
    // quad of steps are mixed in another way.
    let mixed = |load: Load| if load == Load::AlongInner { " ^ (inner_quad * 2u)" } else { "" };
    // The quads of an invocation are fixed; which operand it fetches is too.
    let _ = writeln!(
        text,
        "  let loads_a = lid < {threads_a}u;\n  let loads_b = lid >= {threads_a}u && lid < {}u;",
        threads_a + threads_b
    );
    let _ = writeln!(
        text,
        "  var slot = 0u;\n  var outer = 0u;\n  var inner = 0u;\n  if (loads_a) {{ {} slot = inner_quad * 4u * {wide_m}u + (outer_quad{}); outer = m0 + outer_quad * 4u; inner = inner_quad * 4u; }}",
        order(hooks.order_a, "lid", wide_m),
        mixed(hooks.order_a)
    );
    let _ = writeln!(
        text,
        "  if (loads_b) {{ let l = lid - {threads_a}u; {} slot = inner_quad * 4u * {wide_n}u + (outer_quad{}); outer = n0 + outer_quad * 4u; inner = inner_quad * 4u; }}",
        order(hooks.order_b, "l", wide_n),
        mixed(hooks.order_b)
    );
}

/// The lines that store an invocation's outputs, written out or in a loop over its rows.
fn store_tile(text: &mut String, tile: Tile, carrier: &str, store: &str) {
    let (rows, columns) = (u32::from(tile.rows), u32::from(tile.columns));
    if !tile.unrolled {
        for column in 0..columns {
            let sums: Vec<String> = (0..4 * rows).map(|row| format!("c{row}_{column}")).collect();
            let _ = writeln!(
                text,
                "  var sums{column} = array<vec4<{carrier}>, {0}>({1});\n  for (var line = 0u; line < {0}u / 4u * four; line = line + 1u) {{\n\
                 let row = m0 + line / 4u * 64u + ty * 4u + line % 4u; let col = n0 + {2}u + tx * 4u; let v = sums{column}[line];\n{store}\n  }}",
                4 * rows,
                sums.join(", "),
                column * 64
            );
        }
        return;
    }
    for line in 0..4 * rows {
        for column in 0..columns {
            let _ = writeln!(
                text,
                "  {{ let row = m0 + {}u + ty * 4u; let col = n0 + {}u + tx * 4u; let v = c{line}_{column};\n{store} }}",
                line / 4 * 64 + line % 4,
                column * 64
            );
        }
    }
}

/// Sixteen steps of the inner dimension.
fn multiply(text: &mut String, tile: Tile, accumulate: Accumulate, carrier: &str, at: [&str; 2], mixed: [bool; 2]) {
    if !tile.unrolled {
        let _ = writeln!(
            text,
            "    let depth = min({TILE_DEPTH}u, p.k - k0);\n    for (var step = 0u; step < depth; step = step + 1u) {{"
        );
        multiply_step(
            text,
            tile,
            accumulate,
            carrier,
            at,
            ("step", mixed.map(|mixed| mixed.then(|| "(step / 4u * 2u)".to_owned()))),
        );
        text.push_str("    }\n");
        return;
    }
    for step in 0..TILE_DEPTH {
        text.push_str("    {\n");
        let mixed = mixed.map(|mixed| mixed.then(|| format!("{}u", step / 4 * 2)));
        multiply_step(text, tile, accumulate, carrier, at, (&format!("{step}u"), mixed));
        text.push_str("    }\n");
    }
}

/// One step of the inner dimension: a column of A's tile times a row of B's. Beside the step stands what the places of
/// either tile are mixed with, where they are.
fn multiply_step(
    text: &mut String,
    tile: Tile,
    accumulate: Accumulate,
    carrier: &str,
    at: [&str; 2],
    (step, mixed): (&str, [Option<String>; 2]),
) {
    let (rows, columns) = (u32::from(tile.rows), u32::from(tile.columns));
    let [mixed_a, mixed_b] = mixed;
    for (name, count, thread, at, mixed) in [("a", rows, "ty", at[0], mixed_a), ("b", columns, "tx", at[1], mixed_b)] {
        let thread = mixed.map_or_else(|| thread.to_owned(), |mixed| format!("({thread} ^ {mixed})"));
        for half in 0..count {
            let wide = 16 * count;
            let _ = writeln!(
                text,
                "      let {name}{half} = tile_{name}[{at}{step} * {wide}u + {}u + {thread}];",
                half * 16
            );
        }
    }
    for half in 0..rows {
        for (line, lane) in ["x", "y", "z", "w"].into_iter().enumerate() {
            for column in 0..columns {
                let sum = format!("c{}_{column}", half * 4 + line as u32);
                let _ = match (accumulate, carrier) {
                    (Accumulate::Product, "f32") => {
                        writeln!(text, "      {sum} = fma(vec4<f32>(a{half}.{lane}), b{column}, {sum});")
                    }
                    (Accumulate::Product, _) => writeln!(text, "      {sum} = {sum} + a{half}.{lane} * b{column};"),
                    (Accumulate::SquaredDifference, _) => writeln!(
                        text,
                        "      {{ let d = b{column} - vec4<f32>(a{half}.{lane}); {sum} = fma(d, d, {sum}); }}"
                    ),
                };
            }
        }
    }
}

const HEAD: &str = "
  let per_batch = p.tiles_m * p.tiles_n;
  if (group >= per_batch * p.batches) { return; }
  let batch = group / per_batch;
  let t = group % per_batch;
  let band_width = 8u * p.tiles_n;
  let band_first = t / band_width * 8u;
  let band_rows = min(p.tiles_m - band_first, 8u);
  let m0 = (band_first + t % band_width % band_rows) * $TILE_Mu;
  let n0 = (t % band_width / band_rows) * $TILE_Nu;
  let tx = lid % 16u;
  let ty = lid / 16u;
  // Four, as far as compilers know any number: a loop to it stays a loop.
  let four = 4u + (p.m >> 31u);
$SETUP
  var g0 = vec4<T>($ZERO, $ZERO, $ZERO, $ZERO);
  var g1 = g0;
  var g2 = g0;
  var g3 = g0;
";

pub(super) const BATCH_SETUP: &str = "
  var a_base = p.ao;
  var b_base = p.bo;
  var c_base = p.co;
  {
    var r = batch;
    var c = r % p.d5; r = r / p.d5; a_base += c * p.as5; b_base += c * p.bs5; c_base += c * p.cs5;
    c = r % p.d4; r = r / p.d4; a_base += c * p.as4; b_base += c * p.bs4; c_base += c * p.cs4;
    c = r % p.d3; r = r / p.d3; a_base += c * p.as3; b_base += c * p.bs3; c_base += c * p.cs3;
    c = r % p.d2; r = r / p.d2; a_base += c * p.as2; b_base += c * p.bs2; c_base += c * p.cs2;
    c = r % p.d1; r = r / p.d1; a_base += c * p.as1; b_base += c * p.bs1; c_base += c * p.cs1;
    a_base += r * p.as0; b_base += r * p.bs0; c_base += r * p.cs0;
  }
";

/// The lines that fetch four inner steps of an operand.
pub(super) fn fetch(load: Load, name: char, limit: &str, unrolled: bool) -> String {
    // `ars` and `acs` are the strides along the outer and the inner dimension; for B it is the other way round.
    let (outer, inner) = if name == 'a' { ("ars", "acs") } else { ("bcs", "brs") };
    let mut text = String::new();
    match load {
        Load::AlongInner => {
            for line in 0..4 {
                let _ = writeln!(
                    text,
                    "      var q{line} = vec4<T>();\n      if (outer + {line}u < p.{limit} && kf < p.k) {{ q{line} = {name}[({name}_base + (outer + {line}u) * p.{outer} + kf) / 4u]; }}"
                );
            }
            for (step, lane) in ["x", "y", "z", "w"].into_iter().enumerate() {
                let _ = writeln!(text, "      g{step} = vec4<T>(q0.{lane}, q1.{lane}, q2.{lane}, q3.{lane});");
            }
        }
        Load::AlongOuter => {
            for step in 0..4 {
                let _ = writeln!(
                    text,
                    "      g{step} = vec4<T>();\n      if (outer < p.{limit} && kf + {step}u < p.k) {{ g{step} = {name}[({name}_base + (kf + {step}u) * p.{inner} + outer) / 4u]; }}"
                );
            }
        }
        Load::Single if !unrolled => {
            let value = format!(
                "fetched[step][place] = ld_{name}({name}_base + (kf + step) * p.{inner} + (outer + place) * p.{outer});"
            );
            text.push_str(&fetch_loop(limit, "", &value));
        }
        Load::Single => {
            for step in 0..4 {
                let _ = writeln!(
                    text,
                    "      g{step} = vec4<T>();\n      if (kf + {step}u < p.k) {{\n        let line = {name}_base + (kf + {step}u) * p.{inner};"
                );
                for (place, lane) in ["x", "y", "z", "w"].into_iter().enumerate() {
                    let _ = writeln!(
                        text,
                        "        if (outer + {place}u < p.{limit}) {{ g{step}.{lane} = ld_{name}(line + (outer + {place}u) * p.{outer}); }}"
                    );
                }
                text.push_str("      }\n");
            }
        }
    }
    text
}

/// Sets `g0` to `g3` in a loop over four inner steps and four places of the outer dimension: `inner` runs once for each
/// step, `value` sets `fetched[step][place]`.
pub(super) fn fetch_loop(limit: &str, inner: &str, value: &str) -> String {
    format!(
        "      var fetched = array<vec4<T>, 4>();
      for (var step = 0u; step < four; step = step + 1u) {{
        if (kf + step < p.k) {{
          let kk = i32(kf + step);
          {inner}
          for (var place = 0u; place < four; place = place + 1u) {{
            if (outer + place < p.{limit}) {{ {value} }}
          }}
        }}
      }}
      g0 = fetched[0]; g1 = fetched[1]; g2 = fetched[2]; g3 = fetched[3];
"
    )
}

/// The lines that store four outputs of one row.
pub(super) fn store(vector: bool) -> String {
    let each = |lane: &str, place: u32| format!("finish(v.{lane}, batch, row, col + {place}u, c_base)");
    if vector {
        let lanes = ["x", "y", "z", "w"].into_iter().zip(0..).map(|(lane, place)| each(lane, place));
        let joined = lanes.collect::<Vec<_>>().join(", ");
        return format!(
            "    if (row < p.m && col < p.n) {{ out[((batch * p.m + row) * p.n + col) / 4u] = vec4<T>({joined}); }}"
        );
    }
    let mut text = "    if (row < p.m) { let at = (batch * p.m + row) * p.n + col;\n".to_owned();
    for (lane, place) in ["x", "y", "z", "w"].into_iter().zip(0..) {
        let _ = writeln!(text, "      if (col + {place}u < p.n) {{ out[at + {place}u] = {}; }}", each(lane, place));
    }
    text.push_str("    }");
    text
}

/// The buffers of C and of the bias, where there are any.
pub(super) fn addend_buffers<'a>(epilogue: &Epilogue, reads: &mut Vec<(&'a str, &'a str)>) {
    if epilogue.with_c {
        reads.push(("c", word(epilogue.addend_dtype)));
    }
    if epilogue.bias != Addend::None {
        reads.push(("bias", word(epilogue.addend_dtype)));
    }
}

/// What the activation needs.
pub(super) fn epilogue_math(epilogue: &Epilogue) -> String {
    match epilogue.activation {
        Activation::None => String::new(),
        Activation::Relu => BITS.to_owned(),
        _ => format!("{BITS}{MATH}"),
    }
}

/// `fn finish(sum, batch, row, col, c_base)`.
pub(super) fn epilogue(epilogue: &Epilogue) -> String {
    let mut text = String::new();
    if epilogue.with_c {
        text.push_str(&load("c", epilogue.addend_dtype));
    }
    if epilogue.bias != Addend::None {
        text.push_str(&load("bias", epilogue.addend_dtype));
    }
    text.push_str("fn finish(sum: T, batch: u32, row: u32, col: u32, c_base: u32) -> T {\n  var x = sum;\n");
    if epilogue.scaled {
        text.push_str("  x = x * p.alpha;\n");
    }
    if epilogue.with_c {
        text.push_str("  x = x + p.beta * ld_c(c_base + row * p.crs + col * p.ccs);\n");
    }
    match epilogue.bias {
        Addend::None => {}
        Addend::PerColumn => text.push_str("  x = x + ld_bias(p.bias_o + col * p.bias_s);\n"),
        Addend::PerRow => text.push_str("  x = x + ld_bias(p.bias_o + row * p.bias_s);\n"),
    }
    let activated = match (epilogue.activation, carrier(epilogue.addend_dtype)) {
        (Activation::Relu, "i32") => "max(x, 0i)",
        (Activation::Relu, "f32") => "relu_(x)",
        (Activation::Gelu, "f32") => "gelu_(x)",
        (Activation::Silu, "f32") => "silu_(x)",
        (Activation::Sigmoid, "f32") => "sigmoid_(x)",
        (Activation::Tanh, "f32") => "tanh_(x)",
        _ => "x",
    };
    let _ = writeln!(text, "  return {activated};\n}}");
    text
}

//! Scan: running values along one axis.
//!
//! A line is the elements along the axis. Parameters: `outer`, the axis' length, `inner`, chunks per line, elements per
//! chunk, the input's offset, 1 to go from the last element to the first, 1 to leave each place's own element out; then the
//! first chunk of all lines' chunks to work on and the one behind the last, and what is added to the output's indices. Both
//! offsets count from the line's start and may be below zero, modulo 2³²: buffers then begin in the middle of a line.
//! [`ScanForm::Total`] leaves what each chunk comes to, in one word per line and chunk;
//! [`ScanForm::Chunks`] scans every chunk, from the carry in the second buffer where `carried`. Totals are scanned, without
//! their own chunk, as lines of `chunks` words.

use panoply_core::DType;
use panoply_core::op::compute::ScanKind;

use super::prelude::{BITS, ENTRY, KEYS, buffers, carrier, fill, load, params, word};

/// What one kernel of a scan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanForm {
    /// One invocation for each line.
    Serial,
    /// One workgroup for each line and chunk.
    Chunks,
    /// As `Chunks`, but only what each chunk comes to.
    Total,
    /// One workgroup for each line of totals, exclusive.
    Carries,
}

/// One kernel of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanKernel {
    /// The type of the elements.
    pub dtype: DType,
    /// What is accumulated.
    pub kind: ScanKind,
    /// What this kernel does.
    pub form: ScanForm,
    /// Whether chunks start from a carry.
    pub carried: bool,
    /// Reads and writes vectors of four: types of four bytes, `inner` of one, forwards, everything a multiple of four.
    pub vector: bool,
    /// Sums over subgroups of so many invocations, and few barriers; only for sums and products.
    pub lanes: Option<u8>,
}

impl ScanKernel {
    pub(super) fn source(&self) -> String {
        let carrier = carrier(self.dtype);
        let (key, unkey) = if self.kind == ScanKind::Min { ("least", "unleast") } else { ("key", "unkey") };
        let by_key = matches!(self.kind, ScanKind::Max | ScanKind::Min);
        let kept = if by_key { "u32" } else { carrier };
        let mut text =
            params(&["outer", "axis", "inner", "chunks", "chunk", "o", "reversed", "exclusive", "first", "last", "w"]);
        let carries = self.form == ScanForm::Carries;
        let output = if carries || self.form == ScanForm::Total { kept } else { carrier };
        let four = |kind: &str| if self.vector { format!("vec4<{kind}>") } else { kind.to_owned() };
        let source = four(if carries { kept } else { word(self.dtype) });
        let output = if self.form == ScanForm::Total { output.to_owned() } else { four(output) };
        let mut reads = vec![("source", source.as_str())];
        if self.carried {
            reads.push(("carry", kept));
        }
        text.push_str(&buffers(&[("out", &output)], &reads));
        text.push_str(BITS);
        text.push_str(KEYS);
        text.push_str(if carries && !self.vector { "fn ld_source(i: u32) -> $A { return source[i]; }\n" } else { "" });
        if !carries && !self.vector {
            text.push_str(&load("source", self.dtype));
        }
        let make = if by_key && !carries { format!("{key}_{carrier}(x)") } else { "x".to_owned() };
        let finish = if by_key && !carries { format!("{unkey}_{carrier}(a)") } else { "a".to_owned() };
        let made_of = if carries { kept } else { carrier };
        text.push_str(&format!("fn make(x: {made_of}) -> $A {{ return {make}; }}\n"));
        text.push_str(&format!("fn finish(a: $A) -> {made_of} {{ return {finish}; }}\n"));
        text.push_str("fn join(a: $A, b: $A) -> $A { return $JOIN; }\n");
        // The running value starts with what changes nothing and what an exclusive scan begins with.
        text.push_str("fn start() -> $A { return $START; }\n");
        text.push_str(PLACE);
        if self.form != ScanForm::Serial {
            text.push_str("var<workgroup> sums: array<$A, 512>;\n");
        }
        text.push_str(if self.lanes.is_some() { SUBGROUP_ENTRY } else { ENTRY });
        let first = if self.carried { "carry[line * p.chunks + c]" } else { "start()" };
        text.push_str(&match self.form {
            ScanForm::Serial => SERIAL.to_owned(),
            ScanForm::Total => TOTAL.replace("$GATHER", if self.vector { GATHER_FOUR } else { GATHER }),
            ScanForm::Chunks | ScanForm::Carries if self.vector && self.lanes.is_some() => {
                fill(&self.four_rows(), &[("$FIRST", first)])
            }
            ScanForm::Chunks | ScanForm::Carries => fill(
                CHUNKS,
                &[
                    ("$FIRST", first),
                    ("$READ", if self.vector { READ_FOUR } else { READ }),
                    ("$WRITE", if self.vector { WRITE_FOUR } else { WRITE }),
                    ("$ACROSS", &self.across()),
                ],
            ),
        });
        fill(&text, &[("$JOIN", self.join()), ("$START", &self.start(carrier)), ("$A", kept)])
    }

    /// As `CHUNKS`, four rows of 1024 elements at a time: four vectors are on their way before the first is used, and all
    /// rows share two barriers.
    fn four_rows(&self) -> String {
        let lanes = u32::from(self.lanes.unwrap_or(1));
        let within = if self.kind == ScanKind::Sum { "subgroupExclusiveAdd" } else { "subgroupExclusiveMul" };
        let each = |text: &str| {
            let row = |row: u32| {
                let first = (256 / lanes * row).to_string();
                let offset = (1024 * row).to_string();
                fill(text, &[("$FROM", &first), ("$OFFSET", &offset), ("$R", &row.to_string())])
            };
            (0..4).map(row).collect::<String>()
        };
        let count = (256 / lanes).to_string();
        let parts = [ROWS_HEAD, &each(ROWS_READ), &each(ROWS_WITHIN), "    workgroupBarrier();\n", &each(ROWS_ACROSS)];
        let text = format!("{}    workgroupBarrier();\n{}  }}\n}}\n", parts.concat(), each(ROWS_WRITE));
        fill(&text, &[("$WITHIN", within), ("$COUNT", &count)])
    }

    /// The scan over the workgroup: sets `before`, what comes before this invocation, and advances `running`.
    fn across(&self) -> String {
        let Some(lanes) = self.lanes else { return TREE.to_owned() };
        let within = if self.kind == ScanKind::Sum { "subgroupExclusiveAdd" } else { "subgroupExclusiveMul" };
        fill(SUBGROUPS, &[("$WITHIN", within), ("$COUNT", &(256 / u32::from(lanes)).to_string())])
    }

    fn join(&self) -> &'static str {
        match self.kind {
            ScanKind::Sum => "a + b",
            ScanKind::Product => "a * b",
            ScanKind::Max | ScanKind::Min => "max(a, b)",
        }
    }

    fn start(&self, carrier: &str) -> String {
        let lowest = match (self.kind, self.dtype) {
            (ScanKind::Sum, _) => return if carrier == "f32" { "0.0".to_owned() } else { format!("{carrier}(0)") },
            (ScanKind::Product, _) => return if carrier == "f32" { "1.0".to_owned() } else { format!("{carrier}(1)") },
            (ScanKind::Max, DType::I8) => "key_i32(-128)",
            (ScanKind::Min, DType::I8) => "least_i32(127)",
            (ScanKind::Min, DType::U8) => "least_u32(255u)",
            (ScanKind::Max, _) if carrier == "f32" => "key_f32(-inf_value())",
            (ScanKind::Min, _) if carrier == "f32" => "least_f32(inf_value())",
            _ => "0u",
        };
        lowest.to_owned()
    }
}

const PLACE: &str = "
fn place(o: u32, i: u32, k: u32) -> u32 {
  return (o * p.axis + select(k, p.axis - 1u - k, p.reversed == 1u)) * p.inner + i;
}
";

const SERIAL: &str = "
  let t = group * 256u + lid;
  if (t >= p.outer * p.inner) { return; }
  let o = t / p.inner;
  let i = t % p.inner;
  var a = start();
  for (var k = 0u; k < p.axis; k = k + 1u) {
    let at = place(o, i, k);
    let before = a;
    a = join(a, make(ld_source(p.o + at)));
    if (p.exclusive == 1u) { out[at] = finish(before); } else { out[at] = finish(a); }
  }
}
";

const TOTAL: &str = "
  let number = p.first + group;
  if (number >= p.last) { return; }
  let c = number % p.chunks;
  let line = number / p.chunks;
  let o = line / p.inner;
  let i = line % p.inner;
  let end = min(p.axis, (c + 1u) * p.chunk);
  var a = start();
$GATHER
  sums[lid] = a;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s) { sums[lid] = join(sums[lid], sums[lid + s]); }
    workgroupBarrier();
  }
  if (lid == 0u) { out[line * p.chunks + c] = sums[0]; }
}
";

/// Each invocation keeps four neighbouring elements; a scan over the workgroup joins what the invocations come to.
const CHUNKS: &str = "
  let number = p.first + group;
  if (number >= p.last) { return; }
  let c = number % p.chunks;
  let line = number / p.chunks;
  let o = line / p.inner;
  let i = line % p.inner;
  let end = min(p.axis, (c + 1u) * p.chunk);
  var running = $FIRST;
  for (var base = c * p.chunk; base < end; base = base + 1024u) {
    let k = base + lid * 4u;
$READ
    x1 = join(x0, x1);
    x2 = join(x1, x2);
    x3 = join(x2, x3);
$ACROSS
    let with0 = join(before, x0);
    let with1 = join(before, x1);
    let with2 = join(before, x2);
    let with3 = join(before, x3);
    let own = p.exclusive == 0u;
$WRITE
  }
}
";

const ROWS_HEAD: &str = "
  let number = p.first + group;
  if (number >= p.last) { return; }
  let c = number % p.chunks;
  let line = number / p.chunks;
  let end = min(p.axis, (c + 1u) * p.chunk);
  let own = p.exclusive == 0u;
  let origin = p.o + line * p.axis;
  var running = $FIRST;
  for (var base = c * p.chunk; base < end; base = base + 4096u) {
";

/// Places behind the end are read as the last ones and count as nothing.
const ROWS_READ: &str = "
    let k$R = base + $OFFSETu + lid * 4u;
    let raw$R = source[(origin + min(k$R, end - 4u)) / 4u];
    let in$R = k$R < end;
    var a$R = select(start(), make(raw$R.x), in$R);
    var b$R = select(start(), make(raw$R.y), in$R);
    var c$R = select(start(), make(raw$R.z), in$R);
    var d$R = select(start(), make(raw$R.w), in$R);
";

const ROWS_WITHIN: &str = "
    b$R = join(a$R, b$R);
    c$R = join(b$R, c$R);
    d$R = join(c$R, d$R);
    let within$R = $WITHIN(d$R);
    if (lane == lanes - 1u) { sums[$FROMu + subgroup] = join(within$R, d$R); }
";

const ROWS_ACROSS: &str = "
    var before$R = running;
    for (var s = 0u; s < $COUNTu; s = s + 1u) {
      if (s == subgroup) { before$R = join(running, within$R); }
      running = join(running, sums[$FROMu + s]);
    }
";

const ROWS_WRITE: &str = "
    if (in$R) {
      let w0 = join(before$R, a$R);
      let w1 = join(before$R, b$R);
      let w2 = join(before$R, c$R);
      let w3 = join(before$R, d$R);
      out[(p.w + line * p.axis + k$R) / 4u] = vec4(finish(select(before$R, w0, own)), finish(select(w0, w1, own)),
        finish(select(w1, w2, own)), finish(select(w2, w3, own)));
    }
";

const READ: &str = "
    var x0 = start(); var x1 = start(); var x2 = start(); var x3 = start();
    if (k < end) { x0 = make(ld_source(p.o + place(o, i, k))); }
    if (k + 1u < end) { x1 = make(ld_source(p.o + place(o, i, k + 1u))); }
    if (k + 2u < end) { x2 = make(ld_source(p.o + place(o, i, k + 2u))); }
    if (k + 3u < end) { x3 = make(ld_source(p.o + place(o, i, k + 3u))); }
";

const READ_FOUR: &str = "
    var x0 = start(); var x1 = start(); var x2 = start(); var x3 = start();
    if (k < end) {
      let four = source[(p.o + line * p.axis + k) / 4u];
      x0 = make(four.x); x1 = make(four.y); x2 = make(four.z); x3 = make(four.w);
    }
";

const WRITE: &str = "
    if (k < end) { out[p.w + place(o, i, k)] = finish(select(before, with0, own)); }
    if (k + 1u < end) { out[p.w + place(o, i, k + 1u)] = finish(select(with0, with1, own)); }
    if (k + 2u < end) { out[p.w + place(o, i, k + 2u)] = finish(select(with1, with2, own)); }
    if (k + 3u < end) { out[p.w + place(o, i, k + 3u)] = finish(select(with2, with3, own)); }
";

const WRITE_FOUR: &str = "
    if (k < end) {
      out[(p.w + line * p.axis + k) / 4u] = vec4(finish(select(before, with0, own)), finish(select(with0, with1, own)),
        finish(select(with1, with2, own)), finish(select(with2, with3, own)));
    }
";

/// Each step reads one half of the memory and writes the other.
const TREE: &str = "
    sums[lid] = x3;
    workgroupBarrier();
    var half = 0u;
    for (var s = 1u; s < 256u; s = s << 1u) {
      var value = sums[half + lid];
      if (lid >= s) { value = join(sums[half + lid - s], value); }
      half = 256u - half;
      sums[half + lid] = value;
      workgroupBarrier();
    }
    var before = running;
    if (lid > 0u) { before = join(running, sums[half + lid - 1u]); }
    running = join(running, sums[half + 255u]);
    workgroupBarrier();
";

/// Subgroups scan by themselves; what whole subgroups come to is added up by everyone.
const SUBGROUPS: &str = "
    let within = $WITHIN(x3);
    let whole = join(within, x3);
    if (lane == lanes - 1u) { sums[subgroup] = whole; }
    workgroupBarrier();
    var before = running;
    for (var s = 0u; s < $COUNTu; s = s + 1u) {
      if (s == subgroup) { before = join(running, within); }
      running = join(running, sums[s]);
    }
    workgroupBarrier();
";

const SUBGROUP_ENTRY: &str = "
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) thread: u32, @builtin(subgroup_id) subgroup: u32,
        @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) lanes: u32) {
  let group = wid.y * nwg.x + wid.x;
  // Invocations are counted subgroup by subgroup, so that the order of sums is that of the elements.
  let lid = subgroup * lanes + lane;
";

const GATHER: &str = "
  for (var k = c * p.chunk + lid; k < end; k = k + 256u) {
    a = join(a, make(ld_source(p.o + place(o, i, k))));
  }
";

/// Four vectors are read before any is used, so that their latencies overlap.
const GATHER_FOUR: &str = "
  let origin = p.o + line * p.axis;
  var k = c * p.chunk + lid * 4u;
  for (; k + 3072u < end; k = k + 4096u) {
    let f0 = source[(origin + k) / 4u];
    let f1 = source[(origin + k + 1024u) / 4u];
    let f2 = source[(origin + k + 2048u) / 4u];
    let f3 = source[(origin + k + 3072u) / 4u];
    let j0 = join(join(make(f0.x), make(f0.y)), join(make(f0.z), make(f0.w)));
    let j1 = join(join(make(f1.x), make(f1.y)), join(make(f1.z), make(f1.w)));
    let j2 = join(join(make(f2.x), make(f2.y)), join(make(f2.z), make(f2.w)));
    let j3 = join(join(make(f3.x), make(f3.y)), join(make(f3.z), make(f3.w)));
    a = join(a, join(join(j0, j1), join(j2, j3)));
  }
  for (; k < end; k = k + 1024u) {
    let four = source[(p.o + line * p.axis + k) / 4u];
    a = join(a, join(join(make(four.x), make(four.y)), join(make(four.z), make(four.w))));
  }
";

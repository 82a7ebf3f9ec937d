//! Search for one query: every row is scored and the best k are kept, in one pass over the rows.
//!
//! A workgroup takes 256 rows at a time. Eight invocations share eight rows: each reads every eighth vector of four of all
//! of them, so that eight loads are on their way at once and neighbours read neighbouring memory; their partial sums meet in
//! workgroup memory, and each invocation ends up with the score of one row. The best k are kept as in [`super::select`].
//!
//! Parameters as in [`super::select`], with the rows as the axis and the query's line in place of the query norms' offset,
//! then the vectors' length and the offsets of the query and of its norm. Reads rows, query (f32), then filter bits, row norms and the
//! query's norm where they are needed.
//!
//! Of queries with lists, those whose list ran over are searched: workgroups are counted query by query, and the places of a
//! list are one more parameter. Reads how many each list would have behind the query. Others get nothing.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::prelude::{BITS, ENTRY, KEYS, buffers, fill, load_as, params, word};
use super::select::{list, list_entries, score_keys, written};

/// A pass over all rows for one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SearchKernel {
    /// The type of the rows: f32, f16, bf16 or i8.
    pub rows: DType,
    /// How scores are made.
    pub metric: Metric,
    /// Only rows whose bit is set.
    pub filtered: bool,
    /// Row norms are given; else cosine computes them on the way.
    pub norms_given: bool,
    /// Rows and query are read in vectors of four: lengths and offsets are multiples of four.
    pub quads: bool,
    /// Rows of f16 or bf16 are read eight at a time: their lengths and offset are multiples of eight, the query's of four.
    pub octs: bool,
    /// Writes results instead of pairs.
    pub last: bool,
    /// Queries whose lists ran over.
    pub listed: bool,
    list: u16,
}

/// The lengths of vectors. Parameters: rows, their length, the offset, and the place
/// of the first length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormKernel {
    /// The type of the vectors.
    pub dtype: DType,
}

impl SearchKernel {
    /// The kernel for a k of at most 256. The vectors' length and the rows' offset are multiples of `aligned_to`, and so is
    /// the query's offset, at least of the four of it.
    pub fn new(
        rows: DType,
        metric: Metric,
        filtered: bool,
        norms_given: bool,
        aligned_to: usize,
        last: bool,
    ) -> SearchKernel {
        let octs = aligned_to.is_multiple_of(8) && rows.size_bytes() == 2;
        let quads = aligned_to.is_multiple_of(4);
        SearchKernel { rows, metric, filtered, norms_given, quads, octs, last, listed: false, list: list_entries(1) }
    }

    pub(super) fn source(&self) -> String {
        let mut names = vec![
            "lines",
            "axis",
            "inner",
            "parts",
            "part",
            "k",
            "o",
            "first",
            "fo",
            "no",
            "qo",
            "missing: f32",
            "slots",
            "slot",
            "dim",
            "query_o",
            "query_norm_o",
        ];
        if self.listed {
            names.push("places");
        }
        let mut text = params(&names);
        let row_words = match (self.quads, self.rows) {
            _ if self.octs => "vec4<u32>",
            (true, DType::F32) => "vec4<f32>",
            (true, DType::F16 | DType::BF16) => "vec2<u32>",
            (_, dtype) => word(dtype),
        };
        let mut reads = vec![("rows", row_words), ("query", if self.quads { "vec4<f32>" } else { "f32" })];
        let cosine = self.metric == Metric::Cosine;
        if self.listed {
            reads.push(("counts", "u32"));
        }
        if self.filtered {
            reads.push(("bits", "u32"));
        }
        if cosine && self.norms_given {
            reads.push(("row_norms", "f32"));
        }
        if cosine {
            reads.push(("query_norms", "f32"));
        }
        let mut writes = vec![("out", if self.last { "u32" } else { "vec2<u32>" })];
        if self.last {
            writes.push(("scores", "f32"));
        }
        text.push_str(&buffers(&writes, &reads));
        text.push_str(BITS);
        text.push_str(KEYS);
        text.push_str(&score_keys(self.metric));
        text.push_str(&self.reading());
        text.push_str(&list(self.list));
        text.push_str("var<workgroup> partial: array<f32, 2056>;\n");
        text.push_str(if self.listed { "var<private> asked: u32;\n" } else { "const asked = 0u;\n" });
        text.push_str(ENTRY);
        text.push_str(if self.listed { LISTED } else { ALONE });
        text.push_str(&self.body());
        text.push_str(&written(self.last, true));
        text
    }

    /// `row4` and `query4`, which read the quad `c` of a row and of the query as f32.
    fn reading(&self) -> String {
        if self.octs {
            let four = if self.rows == DType::F16 {
                "vec4<f32>(unpack2x16float(a), unpack2x16float(b))"
            } else {
                "bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u))"
            };
            return format!(
                "fn row8(row: u32, c: u32) -> vec4<u32> {{ return rows[(p.o + row * p.dim) / 8u + c]; }}
fn four(a: u32, b: u32) -> vec4<f32> {{ return {four}; }}
fn query4(c: u32) -> vec4<f32> {{ return query[(p.query_o + asked * p.dim) / 4u + c]; }}\n"
            );
        }
        let row = match (self.quads, self.rows) {
            (true, DType::F32) => "return rows[(p.o + row * p.dim) / 4u + c];".to_owned(),
            (true, DType::F16) => "let w = rows[(p.o + row * p.dim) / 4u + c]; \
                 return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));"
                .to_owned(),
            (true, DType::BF16) => "let w = rows[(p.o + row * p.dim) / 4u + c]; \
                 return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));"
                .to_owned(),
            (true, _) => "let w = bitcast<i32>(rows[(p.o + row * p.dim) / 4u + c]); return vec4<f32>(vec4<i32>(\
                 extractBits(w, 0u, 8u), extractBits(w, 8u, 8u), extractBits(w, 16u, 8u), extractBits(w, 24u, 8u)));"
                .to_owned(),
            (false, _) => "let at = p.o + row * p.dim; var v = vec4<f32>();
  if (c * 4u < p.dim) { v.x = ld_rows(at + c * 4u); }
  if (c * 4u + 1u < p.dim) { v.y = ld_rows(at + c * 4u + 1u); }
  if (c * 4u + 2u < p.dim) { v.z = ld_rows(at + c * 4u + 2u); }
  if (c * 4u + 3u < p.dim) { v.w = ld_rows(at + c * 4u + 3u); }
  return v;"
                .to_owned(),
        };
        let query = if self.quads {
            "return query[(p.query_o + asked * p.dim) / 4u + c];"
        } else {
            "var v = vec4<f32>();
  if (c * 4u < p.dim) { v.x = query[p.query_o + asked * p.dim + c * 4u]; }
  if (c * 4u + 1u < p.dim) { v.y = query[p.query_o + asked * p.dim + c * 4u + 1u]; }
  if (c * 4u + 2u < p.dim) { v.z = query[p.query_o + asked * p.dim + c * 4u + 2u]; }
  if (c * 4u + 3u < p.dim) { v.w = query[p.query_o + asked * p.dim + c * 4u + 3u]; }
  return v;"
        };
        let singles = if self.quads { String::new() } else { load_as("rows", self.rows, "f32") };
        format!(
            "{singles}fn row4(row: u32, c: u32) -> vec4<f32> {{ {row} }}\nfn query4(c: u32) -> vec4<f32> {{ {query} }}\n"
        )
    }

    fn body(&self) -> String {
        let own_norms = self.metric == Metric::Cosine && !self.norms_given;
        let each = |line: &str| (0..8).map(|row| line.replace("$R", &row.to_string())).collect::<String>();
        let step = match self.metric {
            Metric::Euclidean => "      { let d = x$R - q; s$R = s$R + dot(d, d); }\n",
            Metric::Dot | Metric::Cosine => "      s$R = s$R + dot(x$R, q);\n",
        };
        let squares = if own_norms { "      n$R = n$R + dot(x$R, x$R);\n" } else { "" };
        // Rows behind the end are read as the last one and not counted.
        let head = each("    let r$R = min(row0 + $Ru, end - 1u);\n    var s$R = 0.0;\n");
        let norm_head = if own_norms { each("    var n$R = 0.0;\n") } else { String::new() };
        let (loads, sums) = if self.octs {
            let both = |text: &str| {
                each(&format!("{text}{}", text.replace("x$R", "y$R").replace(" q)", " q2)").replace("- q;", "- q2;")))
            };
            let halves = "      let x$R = four(w$R.x, w$R.y);\n      let y$R = four(w$R.z, w$R.w);\n";
            let loads = format!("{}{}", each("      let w$R = row8(r$R, c);\n"), each(halves));
            (loads, format!("{}{}", both(step), both(squares)))
        } else {
            (each("      let x$R = row4(r$R, c);\n"), format!("{}{}", each(step), each(squares)))
        };
        let query =
            if self.octs { "let q = query4(2u * c); let q2 = query4(2u * c + 1u);" } else { "let q = query4(c);" };
        let chunk = if self.octs { "8" } else { "4" };
        let meet = |name: &str| {
            let stores = each(&format!("    partial[$Ru * 257u + lid] = {name}$R;\n"));
            fill(MEET, &[("$STORES", &stores)])
        };
        let norms = if own_norms {
            format!("    workgroupBarrier();\n{}    let row_norm = sqrt(met);\n", meet("n"))
        } else if self.metric == Metric::Cosine {
            "    let row_norm = row_norms[p.no + p.first + min(t, end - 1u)];\n".to_owned()
        } else {
            String::new()
        };
        let score = match self.metric {
            Metric::Dot => "let score = sum;",
            Metric::Euclidean => "let score = sqrt(sum);",
            Metric::Cosine => {
                "let norms = row_norm * query_norms[p.query_norm_o + asked]; var score = 0.0; if (!(norms == 0.0)) { score = sum / norms; }"
            }
        };
        let taken = if self.filtered {
            "t < end && ((bits[p.fo + ((p.first + t) >> 5u)] >> ((p.first + t) & 31u)) & 1u) == 1u"
        } else {
            "t < end"
        };
        let norms = norms.replace("let met ", "let met2 ").replace("sqrt(met)", "sqrt(met2)");
        fill(
            BODY,
            &[
                ("$HEADS", &format!("{head}{norm_head}")),
                ("$LOADS", &loads),
                ("$QUERY", query),
                ("$CHUNK", chunk),
                ("$SUMS", &sums),
                ("$MEET", &meet("s")),
                ("$NORMS", &norms),
                ("$SCORE", score),
                ("$TAKEN", taken),
                ("$LIST", &self.list.to_string()),
            ],
        )
    }
}

/// Sums over the eight invocations that share a row: `met` is that of this invocation's own row.
const MEET: &str = "
$STORES
    workgroupBarrier();
    let at = (lid % 8u) * 257u + lid / 8u * 8u;
    let met = ((partial[at] + partial[at + 1u]) + (partial[at + 2u] + partial[at + 3u]))
      + ((partial[at + 4u] + partial[at + 5u]) + (partial[at + 6u] + partial[at + 7u]));
";

/// Which part of the rows this is, where they end, and for which query, counted from the first that is asked.
const ALONE: &str = "
  if (group >= p.parts) { return; }
  let part = group;
  let line = p.qo;
  let end = p.axis;
";
const LISTED: &str = "
  if (group >= p.parts * p.lines) { return; }
  let part = group % p.parts;
  asked = group / p.parts;
  let line = asked;
  let end = select(0u, p.axis, counts[line] > p.places);
";

const BODY: &str = "
  let chunks = (p.dim + $CHUNKu - 1u) / $CHUNKu;
  let lane = lid % 8u;
  clear_list(lid);
  // Neighbouring workgroups read neighbouring rows, so that all of them sweep over memory together.
  for (var base = part * 256u; base < end; base = base + p.parts * 256u) {
    let row0 = base + lid / 8u * 8u;
$HEADS
    for (var c = lane; c < chunks; c = c + 8u) {
      $QUERY
$LOADS
$SUMS
    }
$MEET
    let sum = met;
    let t = base + lid;
    {
$NORMS
      $SCORE
      var candidate = vec2<u32>(0u, 0xffffffffu);
      if ($TAKEN) { candidate = vec2<u32>(score_key(score), p.first + t); }
      offer(candidate, p.k);
    }
    let count = waiting(lid);
    if (p.k + count + 256u > $LISTu) { settle(p.k, count, lid); }
  }
  let count = waiting(lid);
  if (count > 0u) { settle(p.k, count, lid); }
";

impl NormKernel {
    pub(super) fn source(&self) -> String {
        let mut text = params(&["count", "dim", "o", "first"]);
        text.push_str(&buffers(&[("out", "f32")], &[("rows", word(self.dtype))]));
        text.push_str(&load_as("rows", self.dtype, "f32"));
        text.push_str("var<workgroup> partial: array<f32, 256>;\n");
        text.push_str(ENTRY);
        text.push_str(NORMS);
        text
    }
}

/// Eight invocations for each vector.
const NORMS: &str = "
  let row = group * 32u + lid / 8u;
  var sum = 0.0;
  if (row < p.count) {
    for (var c = lid % 8u; c < p.dim; c = c + 8u) {
      let x = ld_rows(p.o + row * p.dim + c);
      sum = sum + x * x;
    }
  }
  partial[lid] = sum;
  workgroupBarrier();
  if (row < p.count && lid % 8u == 0u) {
    out[p.first + row] = sqrt(((partial[lid] + partial[lid + 1u]) + (partial[lid + 2u] + partial[lid + 3u]))
      + ((partial[lid + 4u] + partial[lid + 5u]) + (partial[lid + 6u] + partial[lid + 7u])));
  }
}
";

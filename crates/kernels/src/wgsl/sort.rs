//! Sorting lines: short ones in workgroup memory, long ones by radix, four bits at a time. Everything is stable.
//!
//! | step | writes | reads | parameters |
//! | --- | --- | --- | --- |
//! | `Line` | positions | elements | lines, axis, inner, offset |
//! | `Keys` | keys, line by line | elements | lines, axis, inner, offset |
//! | `Count` | for each line, digit and block, how many | keys | lines, axis, blocks, shift |
//! | `Scatter` | keys, positions | keys, counts (scanned), positions unless `first` | lines, axis, blocks, shift |
//! | `Values` | carriers | keys | lines, axis, inner |
//! | `Positions` | positions in the tensor's layout | positions, line by line | lines, axis, inner |
//! | `Rank` | for each key of a piece, how many keys come before it | the piece's keys, another's | keys of both, 1 the first time |
//! | `Place` | positions in a window of a line | places, positions in a piece | keys, start and size of the window, start of the piece |

use panoply_core::DType;

use super::prelude::{BITS, ENTRY, KEYS, buffers, carrier, fill, load, params, word};

/// The longest line that is sorted in workgroup memory.
pub const SORT_LINE_MAX: usize = 2048;

/// Keys that one workgroup counts and scatters.
pub const SORT_BLOCK: usize = 2048;

/// One step of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortKernel {
    /// Whole lines of at most `size` elements, a power of two.
    Line {
        /// The type of the elements.
        dtype: DType,
        /// The largest first.
        falls: bool,
        /// Places in workgroup memory.
        size: u16,
    },
    /// Keys whose rising order is the wanted one.
    Keys {
        /// The type of the elements.
        dtype: DType,
        /// The largest first.
        falls: bool,
        /// Zeros of both signs have two keys, so that elements can be made of keys again.
        exact: bool,
    },
    /// How often each digit occurs.
    Count,
    /// Keys to their places, with their positions where `positions`.
    Scatter {
        /// Positions are moved along.
        positions: bool,
        /// Positions are those of the keys themselves: nothing was moved before.
        first: bool,
    },
    /// Elements made of exact keys.
    Values {
        /// The type of the elements, of four bytes.
        dtype: DType,
        /// The largest first.
        falls: bool,
    },
    /// Positions from line by line to the tensor's layout.
    Positions,
    /// Keys counted that come before those of a sorted piece, in another sorted piece of the same line.
    Rank {
        /// The other piece lies before this one, so that equals in it come first.
        before: bool,
    },
    /// Positions to their places among all of a line.
    Place,
}

impl SortKernel {
    /// Bits of this type's keys: a multiple of four.
    pub fn key_bits(dtype: DType) -> u32 {
        8 * dtype.size_bytes() as u32
    }

    pub(super) fn source(&self) -> String {
        match *self {
            SortKernel::Line { dtype, falls, size } => line(dtype, falls, size),
            SortKernel::Keys { dtype, falls, exact } => keys(dtype, falls, exact),
            SortKernel::Count => {
                let mut text = params(&["lines", "axis", "blocks", "shift"]);
                text.push_str(&buffers(&[("counts", "u32")], &[("keys", "u32")]));
                text.push_str("var<workgroup> found: array<atomic<u32>, 16>;\n");
                text.push_str(ENTRY);
                text.push_str(COUNT);
                text
            }
            SortKernel::Scatter { positions, first } => scatter(positions, first),
            SortKernel::Values { dtype, falls } => {
                let mut text = params(&["lines", "axis", "inner"]);
                text.push_str(&buffers(&[("out", carrier(dtype))], &[("keys", "u32")]));
                text.push_str(BITS);
                text.push_str(KEYS);
                text.push_str(ENTRY);
                let key = if falls { "~keys[t]" } else { "keys[t]" };
                let value = format!("out[at] = unkey_{}({key});", carrier(dtype));
                text.push_str(&fill(RELAY, &[("$STORE", &value)]));
                text
            }
            SortKernel::Rank { before } => {
                let mut text = params(&["n", "others_n", "first"]);
                text.push_str(&buffers(&[("ranks", "u32")], &[("keys", "u32"), ("others", "u32")]));
                text.push_str(ENTRY);
                text.push_str(&fill(RANK, &[("$BEFORE", if before { "<=" } else { "<" })]));
                text
            }
            SortKernel::Place => {
                let mut text = params(&["n", "start", "seen", "base"]);
                text.push_str(&buffers(&[("out", "u32")], &[("ranks", "u32"), ("positions", "u32")]));
                text.push_str(ENTRY);
                text.push_str(PLACE);
                text
            }
            SortKernel::Positions => {
                let mut text = params(&["lines", "axis", "inner"]);
                text.push_str(&buffers(&[("out", "u32")], &[("positions", "u32")]));
                text.push_str(ENTRY);
                text.push_str(&fill(RELAY, &[("$STORE", "out[at] = positions[t];")]));
                text
            }
        }
    }
}

const RANK: &str = "
  let i = group * 256u + lid;
  if (i >= p.n) { return; }
  let key = keys[i];
  var low = 0u;
  var high = p.others_n;
  while (low < high) {
    let middle = (low + high) / 2u;
    if (others[middle] $BEFORE key) { low = middle + 1u; } else { high = middle; }
  }
  if (p.first == 1u) { ranks[i] = i + low; } else { ranks[i] = ranks[i] + low; }
}
";

const PLACE: &str = "
  let i = group * 256u + lid;
  if (i >= p.n) { return; }
  let at = ranks[i] - p.start;
  if (at < p.seen) { out[at] = p.base + positions[i]; }
}
";

/// From line by line to the tensor's layout.
const RELAY: &str = "
  let t = group * 256u + lid;
  if (t >= p.lines * p.axis) { return; }
  let line = t / p.axis;
  let at = (line / p.inner * p.axis + t % p.axis) * p.inner + line % p.inner;
  $STORE
}
";

fn keys(dtype: DType, falls: bool, exact: bool) -> String {
    let mut text = params(&["lines", "axis", "inner", "o"]);
    text.push_str(&buffers(&[("out", "u32")], &[("source", word(dtype))]));
    text.push_str(BITS);
    text.push_str(KEYS);
    text.push_str(&load("source", dtype));
    text.push_str(EXACT);
    text.push_str(ENTRY);
    let x = "ld_source(p.o + at)";
    // Types of fewer bits have keys of fewer bits, and so fewer digits.
    let key = match dtype {
        DType::F32 if exact => format!("exact_f32({x})"),
        DType::F16 => format!("short_key(half_bits({x}), 0x7c00u)"),
        DType::BF16 => format!("short_key(bf16_bits({x}), 0x7f80u)"),
        DType::I8 => format!("(bitcast<u32>({x} + 128) & 0xffu)"),
        other => format!("key_{}({x})", carrier(other)),
    };
    let mask = match dtype.size_bytes() {
        1 => " & 0xffu",
        2 => " & 0xffffu",
        _ => "",
    };
    let store = if falls { format!("out[t] = (~{key}){mask};") } else { format!("out[t] = {key};") };
    text.push_str(&fill(RELAY, &[("$STORE", &store)]));
    text
}

/// Keys that keep zeros apart, and keys of sixteen bits.
const EXACT: &str = "
fn exact_f32(x: f32) -> u32 {
  let u = bitcast<u32>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) { return 0xffffffffu; }
  return select(~u, u | 0x80000000u, u < 0x80000000u);
}
fn short_key(u: u32, infinity: u32) -> u32 {
  let m = u & 0x7fffu;
  if (m > infinity) { return 0xffffu; }
  if (m == 0u) { return 0x8000u; }
  return select(~u & 0xffffu, u | 0x8000u, u < 0x8000u);
}
";

/// A bitonic sort of keys with their positions, which makes it stable.
fn line(dtype: DType, falls: bool, size: u16) -> String {
    let mut text = params(&["lines", "axis", "inner", "o"]);
    text.push_str(&buffers(&[("out", "u32")], &[("source", word(dtype))]));
    text.push_str(BITS);
    text.push_str(KEYS);
    text.push_str(&load("source", dtype));
    text.push_str(&format!("var<workgroup> pairs: array<vec2<u32>, {size}>;\n"));
    text.push_str(ENTRY);
    let key = format!("key_{}(ld_source(p.o + (outer * p.axis + t) * p.inner + i))", carrier(dtype));
    let key = if falls { format!("~{key}") } else { key };
    text.push_str(&fill(LINE, &[("$KEY", &key), ("$HALF", &(size / 2).to_string()), ("$SIZE", &size.to_string())]));
    text
}

const LINE: &str = "
  if (group >= p.lines) { return; }
  let outer = group / p.inner;
  let i = group % p.inner;
  for (var t = lid; t < $SIZEu; t = t + 256u) {
    var pair = vec2<u32>(0xffffffffu, 0x80000000u + t);
    if (t < p.axis) { pair = vec2<u32>($KEY, t); }
    pairs[t] = pair;
  }
  workgroupBarrier();
  for (var size = 2u; size <= $SIZEu; size = size << 1u) {
    for (var stride = size >> 1u; stride > 0u; stride = stride >> 1u) {
      for (var t = lid; t < $HALFu; t = t + 256u) {
        let low = 2u * t - (t & (stride - 1u));
        let high = low + stride;
        let a = pairs[low];
        let b = pairs[high];
        let rising = (low & size) == 0u;
        let less = b.x < a.x || (b.x == a.x && b.y < a.y);
        if (less == rising) { pairs[low] = b; pairs[high] = a; }
      }
      workgroupBarrier();
    }
  }
  for (var t = lid; t < p.axis; t = t + 256u) { out[(outer * p.axis + t) * p.inner + i] = pairs[t].y; }
}
";

const COUNT: &str = "
  if (group >= p.lines * p.blocks) { return; }
  let block = group % p.blocks;
  let line = group / p.blocks;
  if (lid < 16u) { atomicStore(&found[lid], 0u); }
  workgroupBarrier();
  let end = min(p.axis, (block + 1u) * 2048u);
  for (var t = block * 2048u + lid; t < end; t = t + 256u) {
    atomicAdd(&found[(keys[line * p.axis + t] >> p.shift) & 15u], 1u);
  }
  workgroupBarrier();
  if (lid < 16u) { counts[(line * 16u + lid) * p.blocks + block] = atomicLoad(&found[lid]); }
}
";

/// What a pass writes and reads: keys with where each block's digits start, and positions where they travel along. The first
/// pass makes positions up.
pub(super) fn scatter_buffers(positions: bool, first: bool) -> String {
    let mut writes = vec![("out_keys", "u32")];
    let mut reads = vec![("keys", "u32"), ("starts", "u32")];
    if positions {
        writes.push(("out_positions", "u32"));
        if !first {
            reads.push(("positions", "u32"));
        }
    }
    buffers(&writes, &reads)
}

/// Each invocation owns eight neighbouring keys and a counter for each digit; two counters of sixteen bits share a word,
/// digits below eight the lower half. A scan of the counters gives every key its place in the block; keys are put in
/// order in workgroup memory first, so that they leave it in runs.
fn scatter(positions: bool, first: bool) -> String {
    let mut text = params(&["lines", "axis", "blocks", "shift"]);
    text.push_str(&scatter_buffers(positions, first));
    text.push_str(
        "var<workgroup> moved: array<u32, 2048>;\nvar<workgroup> counters: array<u32, 2048>;\nvar<workgroup> sums: array<u32, 256>;\n",
    );
    text.push_str(ENTRY);
    text.push_str(SCATTER_HEAD);
    let each = |line: &str| (0..8).map(|item| line.replace("$J", &item.to_string())).collect::<String>();
    text.push_str(&each("  let key$J = keys[min(base + lid * 8u + $Ju, last)];\n"));
    text.push_str(&each(SCATTER_RANK));
    text.push_str(SCATTER_SCAN);
    text.push_str(&each("  let rank$J = place_of(digit$J, lid, low_total) + before$J;\n"));
    text.push_str(&each("  moved[rank$J] = key$J;\n"));
    text.push_str("  workgroupBarrier();\n");
    text.push_str(&offsets(&each(SCATTER_STORE)));
    if positions {
        text.push_str("  workgroupBarrier();\n");
        if first {
            text.push_str(&each("  moved[rank$J] = start + lid * 8u + $Ju;\n"));
        } else {
            text.push_str(&each("  let position$J = positions[min(base + lid * 8u + $Ju, last)];\n"));
            text.push_str(&each("  moved[rank$J] = position$J;\n"));
        }
        text.push_str("  workgroupBarrier();\n");
        text.push_str(&offsets(&each(
            "  if (lid + $J00u_ < count) { out_positions[target$J] = moved[lid + $J00u_]; }\n",
        )));
    }
    text.push_str("}\n");
    text.push_str(PLACE_OF);
    text
}

/// The text with `$J00u_`, in which an item's number has been filled in, replaced by 256 times that number.
fn offsets(text: &str) -> String {
    (0..8).fold(text.to_owned(), |text, item| text.replace(&format!("{item}00u_"), &format!("{}u", item * 256)))
}

const SCATTER_HEAD: &str = "
  if (group >= p.lines * p.blocks) { return; }
  let block = group % p.blocks;
  let line = group / p.blocks;
  let start = block * 2048u;
  let base = line * p.axis + start;
  let last = line * p.axis + p.axis - 1u;
  let count = min(p.axis - start, 2048u);
  for (var t = 0u; t < 8u; t = t + 1u) { counters[t * 256u + lid] = 0u; }
";

/// Keys behind the end count as the largest digit; they come last and are never stored.
const SCATTER_RANK: &str = "
  let digit$J = select(15u, (key$J >> p.shift) & 15u, lid * 8u + $Ju < count);
  let word$J = (digit$J & 7u) * 256u + lid;
  let half$J = (digit$J >> 3u) * 16u;
  let before$J = (counters[word$J] >> half$J) & 0xffffu;
  counters[word$J] = counters[word$J] + (1u << half$J);
";

const SCATTER_SCAN: &str = "
  workgroupBarrier();
  var own = 0u;
  for (var t = 0u; t < 8u; t = t + 1u) { own = own + counters[lid * 8u + t]; }
  sums[lid] = own;
  workgroupBarrier();
  for (var s = 1u; s < 256u; s = s << 1u) {
    var value = sums[lid];
    if (lid >= s) { value = value + sums[lid - s]; }
    workgroupBarrier();
    sums[lid] = value;
    workgroupBarrier();
  }
  var running = sums[lid] - own;
  for (var t = 0u; t < 8u; t = t + 1u) {
    let here = counters[lid * 8u + t];
    counters[lid * 8u + t] = running;
    running = running + here;
  }
  let low_total = sums[255] & 0xffffu;
  workgroupBarrier();
";

const SCATTER_STORE: &str = "
  var target$J = 0u;
  if (lid + $J00u_ < count) {
    let key = moved[lid + $J00u_];
    let digit = (key >> p.shift) & 15u;
    target$J = line * p.axis + starts[(line * 16u + digit) * p.blocks + block] + (lid + $J00u_ - place_of(digit, 0u, low_total));
    out_keys[target$J] = key;
  }
";

const PLACE_OF: &str = "
fn place_of(digit: u32, lid: u32, low_total: u32) -> u32 {
  let word = counters[(digit & 7u) * 256u + lid];
  return select(word & 0xffffu, (word >> 16u) + low_total, digit >= 8u);
}
";

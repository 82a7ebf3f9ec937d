//! Moves: elements copied bit by bit to other places. An invocation writes one word, or one element of eight bytes.
//!
//! Parameters of [`MoveKernel`]: elements, offset, then `rank` dimensions of the output and `rank` strides of the input;
//! through a window, the index of the first element to write and the number of elements that the input's window holds.
//! Parameters of [`GatherKernel`]: elements, the input's offset, the indices' offset, the axis' length, the picked count,
//! the elements behind the axis (`inner`), and 1 where every element has its own index. A bad index sets the first word
//! of the second written buffer to one more than the index of the offending index.

use std::fmt::Write;

use panoply_core::DType;

use super::prelude::{BITS, ENTRY, buffers, carrier, elements_per_word, fill, pack, params};

/// A strided view written out contiguously.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoveKernel {
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element_bytes: u8,
    /// Dimensions of the view.
    pub rank: u8,
    /// Only a window of the input is seen, and a part of the output is written, from an element on that the parameters
    /// name. What lies outside the window stays as it is.
    pub windowed: bool,
}

/// Elements picked along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherKernel {
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element_bytes: u8,
    /// Whether indices may be negative, and then count from the end.
    pub signed: bool,
    /// Only some rows are seen: two more parameters say which is the first and how many there are. Elements of others stay
    /// as they are.
    pub windowed: bool,
}

impl MoveKernel {
    pub(super) fn source(&self) -> String {
        let mut names = vec!["n".to_owned(), "o".to_owned()];
        names.extend((0..self.rank).map(|axis| format!("d{axis}")));
        names.extend((0..self.rank).map(|axis| format!("s{axis}")));
        if self.windowed {
            names.extend(["first".to_owned(), "seen".to_owned()]);
        }
        let mut text = params(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let element = raw(self.element_bytes);
        text.push_str(&buffers(&[("out", element)], &[("source", element)]));
        text.push_str("fn place(i: u32) -> u32 {\n  var t = i;\n  var at = p.o;\n");
        for axis in (0..self.rank).rev() {
            let _ = writeln!(text, "  at = at + (t % p.d{axis}) * p.s{axis}; t = t / p.d{axis};");
        }
        text.push_str("  return at;\n}\n");
        text.push_str(&if self.windowed {
            write_seen(self.element_bytes, "p.first", "p.seen")
        } else {
            write_words(self.element_bytes)
        });
        text
    }
}

impl GatherKernel {
    pub(super) fn source(&self) -> String {
        let mut names = vec!["n", "o", "io", "len", "count", "inner", "elementwise"];
        if self.windowed {
            names.extend(["first", "seen"]);
        }
        let mut text = params(&names);
        let element = raw(self.element_bytes);
        text.push_str(&buffers(
            &[("out", element), ("status", "atomic<u32>")],
            &[("source", element), ("indices", "u32")],
        ));
        let negative = if self.signed { "if (index >= 0x80000000u) { index = index + p.len; }" } else { "" };
        let found = if self.windowed { WINDOW_PLACE } else { "return p.o + (outer * p.len + index) * p.inner + last;" };
        text.push_str(&fill(GATHER_PLACE, &[("$NEGATIVE", negative), ("$FOUND", found)]));
        text.push_str(&if self.windowed {
            write_seen(self.element_bytes, "0u", "0xffffffffu")
        } else {
            write_words(self.element_bytes)
        });
        text
    }
}

const GATHER_PLACE: &str = "
fn place(i: u32) -> u32 {
  let last = i % p.inner;
  let rest = i / p.inner;
  let middle = rest % p.count;
  let outer = rest / p.count;
  let which = select(middle, i, p.elementwise == 1u);
  var index = indices[p.io + which];
  $NEGATIVE
  if (index >= p.len) {
    atomicMax(&status[0], which + 1u);
    index = 0u;
  }
  $FOUND
}
";

/// The place behind all others stands for a row that is not seen.
const WINDOW_PLACE: &str = "
  if (index < p.first || index - p.first >= p.seen) { return 0xffffffffu; }
  return p.o + (index - p.first) * p.inner + last;
";

/// Packs carriers into elements of 8 or 16 bits. Parameters: the number of elements.
pub(super) fn narrow(dtype: DType) -> String {
    let lanes = elements_per_word(dtype);
    let mut text = params(&["n"]);
    text.push_str(&buffers(&[("out", "u32")], &[("source", carrier(dtype))]));
    text.push_str(BITS);
    text.push_str(ENTRY);
    let _ = writeln!(text, "  let w = group * 256u + lid;\n  if (w * {lanes}u >= p.n) {{ return; }}");
    let names: Vec<String> = (0..lanes).map(|lane| format!("source[min(w * {lanes}u + {lane}u, p.n - 1u)]")).collect();
    let _ = writeln!(text, "  out[w] = {};\n}}", pack(dtype, &names));
    text
}

/// The WGSL type of raw elements of so many bytes.
fn raw(element_bytes: u8) -> &'static str {
    if element_bytes == 8 { "vec2<u32>" } else { "u32" }
}

/// How many elements a written word holds, and how the element at `$AT` is read.
fn lanes_and_read(element_bytes: u8) -> (u32, &'static str) {
    match element_bytes {
        1 => (4, "extractBits(source[$AT >> 2u], ($AT & 3u) * 8u, 8u)"),
        2 => (2, "extractBits(source[$AT >> 1u], ($AT & 1u) * 16u, 16u)"),
        _ => (1, "source[$AT]"),
    }
}

/// The entry point that writes `source[place(first + i)]` for every element whose place is below `seen`, and keeps the others.
fn write_seen(element_bytes: u8, first: &str, seen: &str) -> String {
    let (lanes, read) = lanes_and_read(element_bytes);
    let mut text = ENTRY.to_owned();
    let _ = writeln!(text, "  let w = group * 256u + lid;\n  if (w * {lanes}u >= p.n) {{ return; }}");
    if lanes == 1 {
        let value = read.replace("$AT", "at");
        let _ = writeln!(text, "  let at = place({first} + w);\n  if (at < {seen}) {{ out[w] = {value}; }}\n}}");
        return text;
    }
    let bits = 32 / lanes;
    text.push_str("  var word = 0u;\n  var kept = 0xffffffffu;\n");
    for lane in 0..lanes {
        let value = read.replace("$AT", "at");
        let (shift, mask) = (lane * bits, (1_u32 << bits) - 1);
        let _ = writeln!(
            text,
            "  if (w * {lanes}u + {lane}u < p.n) {{\n    let at = place({first} + w * {lanes}u + {lane}u);\n    \
             if (at < {seen}) {{ word = word | ({value} << {shift}u); kept = kept & ~({mask}u << {shift}u); }}\n  }}"
        );
    }
    text.push_str("  if (kept != 0xffffffffu) { out[w] = (out[w] & kept) | word; }\n}\n");
    text
}

/// The entry point that writes `source[place(i)]` for every element, in whole words.
fn write_words(element_bytes: u8) -> String {
    let (lanes, read) = lanes_and_read(element_bytes);
    let mut text = ENTRY.to_owned();
    let _ = writeln!(text, "  let w = group * 256u + lid;\n  if (w * {lanes}u >= p.n) {{ return; }}");
    let mut parts = Vec::new();
    for lane in 0..lanes {
        let _ = writeln!(text, "  let at{lane} = place(min(w * {lanes}u + {lane}u, p.n - 1u));");
        let value = read.replace("$AT", &format!("at{lane}"));
        parts.push(if lanes == 1 { value } else { format!("({value} << {}u)", lane * (32 / lanes)) });
    }
    let _ = writeln!(text, "  out[w] = {};\n}}", parts.join(" | "));
    text
}

//! Rewrites kernels' parameters for OpenCL. OpenCL's memory has no addresses, the size of an
//! argument must match exactly, and dynamic shared memory is an argument. The text of every entry
//! is therefore rewritten:
//!
//! * a pointer becomes a buffer and a byte offset,
//! * a value becomes a union with 64-bit words, the form in which a launch holds it,
//! * the entry's name gets a prefix, because OpenCL has many built-in functions,
//! * an entry that uses `DYNAMIC_SHARED` gets one more parameter, the last.
//!
//! The body stays unchanged after definitions of variables with the names of the original
//! parameters.

use std::fmt::Write;

use super::OPENCL_ENTRY_PREFIX;

/// The text with the parameters of each of its entries rewritten.
pub(super) fn with_plain_parameters(text: &str) -> String {
    let mut rewritten = String::with_capacity(text.len() + 4096);
    let mut rest = text;
    let mut entries = 0;
    while let Some(at) = next_entry(rest) {
        let done = text.len() - rest.len();
        let (before, from) = rest.split_at(at);
        match KernelEntry::read(from, &text[..done + at]) {
            None => {
                rewritten.push_str(before);
                rewritten.push_str(KEYWORD);
                rest = &from[KEYWORD.len()..];
            }
            Some(entry) => {
                rewritten.push_str(before);
                // Writing into a string does not fail.
                let _ = entry.write(&mut rewritten, entries);
                entries += 1;
                rest = &from[entry.len..];
            }
        }
    }
    rewritten.push_str(rest);
    rewritten
}

/// The types of an entry's parameters as written. `None` if there is no such entry.
pub(super) fn parameter_types(text: &str, entry: &str) -> Option<Vec<String>> {
    let mut rest = text;
    while let Some(at) = next_entry(rest) {
        let from = &rest[at..];
        if let Some(found) = KernelEntry::read(from, "").filter(|found| found.name == entry) {
            return Some(found.parameters.iter().map(|parameter| plain(&parameter.kind)).collect());
        }
        rest = &from[KEYWORD.len()..];
    }
    None
}

/// The keyword that begins an entry.
const KEYWORD: &str = "KERNEL";
/// The macros that may stand between the keyword and the name.
const BOUNDS: [&str; 2] = ["LAUNCH_BOUNDS", "LAUNCH_UP_TO"];
const DYNAMIC: &str = "DYNAMIC_SHARED";

/// An entry up to the brace that opens its body.
struct KernelEntry<'a> {
    /// `LAUNCH_BOUNDS(…)` or a similar macro. Empty if there is none.
    bounds: &'a str,
    name: &'a str,
    parameters: Vec<Parameter>,
    is_dynamic: bool,
    /// Length of the entry in bytes.
    len: usize,
}

struct Parameter {
    kind: String,
    name: String,
}

impl<'a> KernelEntry<'a> {
    /// Parses an entry from its first word on. `before` is the text that may define macros of its
    /// parameters.
    fn read(text: &'a str, before: &str) -> Option<KernelEntry<'a>> {
        let mut rest = text[KEYWORD.len()..].trim_start();
        let mut bounds = "";
        if let Some(word) = BOUNDS.iter().find(|word| rest.starts_with(**word)) {
            let after = &rest[word.len()..];
            let end = closing(after.trim_start())? + (after.len() - after.trim_start().len()) + 1;
            bounds = &rest[..word.len() + end];
            rest = after[end..].trim_start();
        }
        let name_end = rest.find(|c: char| !is_word(c)).filter(|end| *end > 0)?;
        let (name, after) = rest.split_at(name_end);
        let list = after.trim_start();
        let end = closing(list)?;
        let body = list[end + 1..].trim_start();
        let opened = body.strip_prefix('{')?;
        let own_text = &opened[..next_entry(opened).unwrap_or(opened.len())];
        Some(KernelEntry {
            bounds,
            name,
            parameters: parameters(&list[1..end], before)?,
            is_dynamic: own_text.contains(DYNAMIC),
            len: text.len() - opened.len(),
        })
    }

    fn write(&self, text: &mut String, number: usize) -> std::fmt::Result {
        let KernelEntry { bounds, name, parameters, is_dynamic, .. } = self;
        for (place, Parameter { kind, .. }) in parameters.iter().enumerate().filter(|(_, one)| !one.is_pointer()) {
            let kind = plain(kind);
            let words = format!("u64 words[(sizeof({kind}) + 7) / 8]");
            writeln!(text, "typedef union {{ {kind} value; {words}; }} panoply_{number}_{place};")?;
        }
        write!(text, "{KEYWORD} {bounds} {OPENCL_ENTRY_PREFIX}{name}(")?;
        for (place, parameter) in parameters.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            match parameter.is_pointer() {
                true => write!(text, "{comma}{} u8 *panoply_of_{place}, u64 panoply_at_{place}", parameter.space())?,
                false => write!(text, "{comma}panoply_{number}_{place} panoply_of_{place}")?,
            }
        }
        if *is_dynamic {
            let comma = if parameters.is_empty() { "" } else { ", " };
            write!(text, "{comma}LOCAL uint4 *panoply_shared")?;
        }
        // The body continues on its original line, so that line numbers in messages stay correct.
        text.push_str(") {");
        for (place, Parameter { kind, name }) in parameters.iter().enumerate() {
            match kind.contains('*') {
                true => write!(text, " {kind} {name} = ({})(panoply_of_{place} + panoply_at_{place});", plain(kind))?,
                // A launch holds the bits of an f64, even if the device computes in f32.
                false if kind == "f64" => write!(text, " f64 {name} = bits_f64(panoply_of_{place}.words[0]);")?,
                false => write!(text, " {} {name} = panoply_of_{place}.value;", plain(kind))?,
            }
        }
        Ok(())
    }
}

impl Parameter {
    fn is_pointer(&self) -> bool {
        self.kind.contains('*')
    }

    fn space(&self) -> &'static str {
        if self.kind.contains("const") { "GLOBAL const" } else { "GLOBAL" }
    }
}

/// A type without the qualifiers that only parameters have.
fn plain(kind: &str) -> String {
    let words = kind.replace('*', " * ");
    let words = words.split_whitespace().filter(|word| !matches!(*word, "RESTRICT" | "FIXED"));
    words.collect::<Vec<_>>().join(" ")
}

/// The start of the next entry: the keyword as a whole word, outside of comments and definitions.
fn next_entry(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text[from..].find(KEYWORD) {
        let at = from + found;
        let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line = &text[line_start..at];
        let alone = !line.ends_with(is_word) && !text[at + KEYWORD.len()..].starts_with(is_word);
        if alone && !line.contains("//") && !line.trim_start().starts_with('#') {
            return Some(at);
        }
        from = at + KEYWORD.len();
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The index of the parenthesis that closes the first one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at).filter(|at| *at > 0);
        }
    }
    None
}

/// The parameters of a list. A macro that is itself a list of parameters is expanded.
fn parameters(list: &str, before: &str) -> Option<Vec<Parameter>> {
    let list = written_out(list, before);
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty() && *part != "void");
    let parameter = |part: &str| {
        let name_start = part.rfind(|c| !is_word(c))? + 1;
        let (kind, name) = part.split_at(name_start);
        Some(Parameter { kind: kind.trim().to_owned(), name: name.to_owned() })
    };
    parts.map(parameter).collect()
}

/// Expands the macros of a list that are empty or end with a comma.
fn written_out(list: &str, before: &str) -> String {
    let mut text = String::new();
    for word in list.split_inclusive(|c: char| !is_word(c)) {
        let name = word.trim_end_matches(|c: char| !is_word(c));
        match definition(name, before).filter(|body| body.is_empty() || body.ends_with(',')) {
            Some(body) => {
                text.push_str(body);
                text.push(' ');
            }
            None => text.push_str(word),
        }
    }
    text
}

/// The body of a macro without arguments.
fn definition<'a>(name: &str, text: &'a str) -> Option<&'a str> {
    if name.is_empty() {
        return None;
    }
    let named =
        |line: &'a str| line.strip_prefix("#define ")?.strip_prefix(name).filter(|body| !body.starts_with(is_word));
    text.lines().rev().find_map(named).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_buffers_with_offsets_and_values_are_whole_words() {
        let text = "typedef struct { u32 n; } sizes;\n\
            // A KERNEL in a comment is none.\n\
            KERNEL LAUNCH_BOUNDS(256, 2) f(GLOBAL const T *RESTRICT x, GLOBAL f32 *y,\n  FIXED sizes size, u64 n)\n{\n    DYNAMIC_SHARED(f32, m);\n}\n\
            KERNEL g(void) { return; }\n";
        let got = with_plain_parameters(text);
        for part in [
            "typedef union { sizes value; u64 words[(sizeof(sizes) + 7) / 8]; } panoply_0_2;",
            "KERNEL LAUNCH_BOUNDS(256, 2) panoply_entry_f(GLOBAL const u8 *panoply_of_0, u64 panoply_at_0, GLOBAL u8 *panoply_of_1, u64 panoply_at_1, \
             panoply_0_2 panoply_of_2, panoply_0_3 panoply_of_3, LOCAL uint4 *panoply_shared) {",
            "GLOBAL const T *RESTRICT x = (GLOBAL const T *)(panoply_of_0 + panoply_at_0);",
            "sizes size = panoply_of_2.value; u64 n = panoply_of_3.value;\n    DYNAMIC_SHARED(f32, m);",
            "KERNEL  panoply_entry_g() { return; }",
        ] {
            assert!(got.contains(part), "{part} is not in\n{got}");
        }
    }

    #[test]
    fn macros_in_a_list_are_written_out() {
        let text = "#define CONSTANTS constants_t constants,\n#define INPUTS\nKERNEL map(GLOBAL OUT *target, INPUTS CONSTANTS u64 n) {}";
        let got = with_plain_parameters(text);
        assert!(got.contains("constants_t constants = panoply_of_1.value; u64 n = panoply_of_2.value;"), "{got}");
    }

    #[test]
    fn an_entry_says_what_it_takes() {
        let text = "KERNEL f(GLOBAL const u16 *x, GLOBAL f32 * RESTRICT y, u64 n) {}";
        assert_eq!(parameter_types(text, "f").unwrap(), ["GLOBAL const u16 *", "GLOBAL f32 *", "u64"]);
        assert_eq!(parameter_types(text, "g"), None);
    }

    #[test]
    fn what_is_no_entry_stays_as_it_is() {
        for text in [
            "KERNEL",
            "KERNEL f",
            "KERNEL f(",
            "KERNEL f(GLOBAL T *x);",
            "KERNEL 1",
            "MY_KERNEL f(u32 x) {}",
            "KERNEL LAUNCH_BOUNDS(",
        ] {
            assert_eq!(with_plain_parameters(text), text);
        }
    }
}

//! Kernels' parameters as OpenCL takes them. OpenCL's memory has no addresses, a value's size is checked to the byte, and the block's
//! memory that a launch asks for is an argument of its own. So the text of every entry is rewritten:
//!
//! * a pointer becomes a buffer and a number of bytes from its beginning,
//! * a value becomes a union with whole words of 64 bits, which is how a launch has it,
//! * its name gets a prefix, since OpenCL has functions of many names,
//! * an entry that has `DYNAMIC_SHARED` gets one more parameter, the last.
//!
//! The body is as it was: it begins with variables of the names that the parameters had.

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
        match Entry::read(from, &text[..done + at]) {
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

/// The parameters of an entry as they are written, without their names; `None` where there is no such entry.
pub(super) fn parameter_types(text: &str, entry: &str) -> Option<Vec<String>> {
    let mut rest = text;
    while let Some(at) = next_entry(rest) {
        let from = &rest[at..];
        if let Some(found) = Entry::read(from, "").filter(|found| found.name == entry) {
            return Some(found.parameters.iter().map(|parameter| plain(&parameter.kind)).collect());
        }
        rest = &from[KEYWORD.len()..];
    }
    None
}

/// What an entry begins with.
const KEYWORD: &str = "KERNEL";
/// What may stand between that and its name.
const BOUNDS: [&str; 2] = ["LAUNCH_BOUNDS", "LAUNCH_UP_TO"];
const DYNAMIC: &str = "DYNAMIC_SHARED";

/// An entry up to the brace that opens its body.
struct Entry<'a> {
    /// `LAUNCH_BOUNDS(…)` or its like, where there is one.
    bounds: &'a str,
    name: &'a str,
    parameters: Vec<Parameter>,
    is_dynamic: bool,
    /// Bytes of the text that it takes.
    len: usize,
}

struct Parameter {
    kind: String,
    name: String,
}

impl<'a> Entry<'a> {
    /// Reads an entry from its first word on. `before` is the text in which macros of its parameters are defined.
    fn read(text: &'a str, before: &str) -> Option<Entry<'a>> {
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
        Some(Entry {
            bounds,
            name,
            parameters: parameters(&list[1..end], before)?,
            is_dynamic: own_text.contains(DYNAMIC),
            len: text.len() - opened.len(),
        })
    }

    fn write(&self, text: &mut String, number: usize) -> std::fmt::Result {
        let Entry { bounds, name, parameters, is_dynamic, .. } = self;
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
        // The body goes on in the line that it was on, for messages.
        text.push_str(") {");
        for (place, Parameter { kind, name }) in parameters.iter().enumerate() {
            match kind.contains('*') {
                true => write!(text, " {kind} {name} = ({})(panoply_of_{place} + panoply_at_{place});", plain(kind))?,
                // A launch has the bits of an f64, also where the device computes with less.
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

/// A type without the words that only a parameter has.
fn plain(kind: &str) -> String {
    let words = kind.replace('*', " * ");
    let words = words.split_whitespace().filter(|word| !matches!(*word, "RESTRICT" | "FIXED"));
    words.collect::<Vec<_>>().join(" ")
}

/// Where the next entry begins: the keyword as a word of its own, outside of comments and definitions.
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

/// Where the parenthesis closes that the text begins with.
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

/// The parameters of a list. A macro that is a list of parameters itself is written out.
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

/// A list with the macros in it that are nothing, or end with a comma.
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

/// What a macro without arguments stands for.
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

//! Templates: WGSL files with a few directives, which are special comments.
//!
//! * `$NAME`, `${NAME}`: the value set by the kernel's Rust file: a number, a type, an expression.
//! * `//# if NAME`, `//# if not NAME`, `//# if NAME is A or B`, `//# else`, `//# end`: lines that
//!   are kept if the condition holds. A name holds if its value is set and is not `0`.
//! * `//# for J in COUNT`, `//# end`: lines that are repeated for each number below the count,
//!   which is a number or a value's name. `$J` is the number. `//# down J in COUNT` counts down.
//! * `//# include FILE`, `//# include FILE with NAME=VALUE …`: another file of this folder, with
//!   values of its own.
//! * `//# load NAME TYPE`: `fn ld_NAME(i: u32)`, which reads an element of the buffer `NAME` into
//!   its carrier.
//! * `@binding(next)`: the next number. Bindings that a kernel does not need leave no gap.
//!
//! A type set as `TYPE` also defines `$TYPE_WORD` (the element type of a buffer of such elements)
//! and `$TYPE_CARRIER` (the type of one element in registers).

use panoply_core::DType;

use super::prelude::{carrier, load, load_as, word};

/// A file with its values.
pub(super) struct Template {
    text: &'static str,
    values: Vec<(String, String)>,
    dtypes: Vec<(&'static str, DType)>,
}

impl Template {
    pub(super) fn new(text: &'static str) -> Template {
        Template { text, values: Vec::new(), dtypes: Vec::new() }
    }

    /// Sets a value.
    pub(super) fn set(mut self, name: &str, value: impl ToString) -> Template {
        self.values.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets a boolean value.
    pub(super) fn flag(self, name: &str, holds: bool) -> Template {
        self.set(name, u8::from(holds))
    }

    /// Sets an element type.
    pub(super) fn dtype(mut self, name: &'static str, dtype: DType) -> Template {
        self.dtypes.push((name, dtype));
        self.set(name, dtype.name())
            .set(&format!("{name}_WORD"), word(dtype))
            .set(&format!("{name}_CARRIER"), carrier(dtype))
    }

    /// The kernel's text.
    pub(super) fn text(mut self) -> String {
        let mut out = String::with_capacity(2 * self.text.len());
        let lines: Vec<&'static str> = self.text.lines().collect();
        self.expand(&lines, &mut out);
        numbered(&out)
    }

    /// Appends the expansion of these lines.
    fn expand(&mut self, lines: &[&'static str], out: &mut String) {
        let mut at = 0;
        while let Some(line) = lines.get(at) {
            at += 1;
            let Some(directive) = line.trim_start().strip_prefix("//# ") else {
                self.fill(line, out);
                out.push('\n');
                continue;
            };
            let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
            match word {
                "if" => {
                    let (middle, end) = block(lines, at);
                    let holds = self.holds(rest);
                    let kept = if holds { &lines[at..middle] } else { lines.get(middle + 1..end).unwrap_or_default() };
                    self.expand(kept, out);
                    at = end + 1;
                }
                "for" | "down" => {
                    let (_, end) = block(lines, at);
                    let (name, count) = rest.split_once(" in ").unwrap_or((rest, "0"));
                    let count = self.value(count).unwrap_or(count).parse().unwrap_or(0_u32);
                    for number in 0..count {
                        let number = if word == "for" { number } else { count - 1 - number };
                        self.values.push((name.to_owned(), number.to_string()));
                        self.expand(&lines[at..end], out);
                        self.values.pop();
                    }
                    at = end + 1;
                }
                "include" => {
                    let (file, given) = rest.split_once(" with ").unwrap_or((rest, ""));
                    let before = self.values.len();
                    let given = given.split_whitespace().filter_map(|value| value.split_once('='));
                    self.values.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
                    self.expand(&included(file).lines().collect::<Vec<_>>(), out);
                    self.values.truncate(before);
                }
                "load" => out.push_str(&self.load(rest)),
                // An unknown directive becomes text that does not compile.
                _ => out.push_str(&line.replace("//#", "#")),
            }
        }
    }

    /// The value with this name. A value of the form `$OTHER` is resolved to the value of `OTHER`.
    fn value(&self, name: &str) -> Option<&str> {
        let value = self.values.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value.as_str())?;
        match value.strip_prefix('$') {
            Some(other) if other != name && !other.contains('.') => self.value(other),
            _ => Some(value),
        }
    }

    fn holds(&self, condition: &str) -> bool {
        if let Some(name) = condition.strip_prefix("not ") {
            return !self.holds(name);
        }
        match condition.split_once(" is ") {
            Some((name, values)) => values.split(" or ").any(|value| self.value(name) == Some(value)),
            None => self.value(condition).is_some_and(|value| value != "0"),
        }
    }

    /// Expands `NAME TYPE`, or `NAME TYPE as OTHER` for an element that is converted to another
    /// type.
    fn load(&self, rest: &str) -> String {
        let words: Vec<&str> = rest.split(' ').collect();
        let dtype = |name: &str| self.dtypes.iter().find(|(own, _)| *own == name).map(|(_, dtype)| *dtype);
        match words.as_slice() {
            [name, of] => dtype(of).map(|dtype| load(name, dtype)),
            [name, of, "as", target] => {
                dtype(of).map(|dtype| load_as(name, dtype, self.value(target).unwrap_or(target)))
            }
            _ => None,
        }
        .unwrap_or_default()
    }

    /// Appends a line with its values filled in.
    fn fill(&self, line: &str, out: &mut String) {
        let mut rest = line;
        while let Some((before, behind)) = rest.split_once('$') {
            out.push_str(before);
            let (name, after) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
                Some((name, after)) => (name, after),
                None => {
                    let is_name =
                        |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
                    behind.split_at(behind.find(|letter| !is_name(letter)).unwrap_or(behind.len()))
                }
            };
            match self.value(name) {
                // A value may contain references to values.
                Some(value) if value.contains('$') => self.fill(value, out),
                Some(value) => out.push_str(value),
                // An unset value becomes text that does not compile.
                None => out.push_str(&format!("$[{name}]")),
            }
            rest = after;
        }
        out.push_str(rest);
    }
}

/// The index of a block's `else` (or its end if it has none), and the index of its end.
fn block(lines: &[&str], start: usize) -> (usize, usize) {
    let (mut depth, mut middle) = (0, None);
    for (at, line) in lines.iter().enumerate().skip(start) {
        match line.trim_start().strip_prefix("//# ").map(|directive| directive.split(' ').next().unwrap_or_default()) {
            Some("if" | "for" | "down") => depth += 1,
            Some("end") if depth == 0 => return (middle.unwrap_or(at), at),
            Some("end") => depth -= 1,
            Some("else") if depth == 0 => middle = Some(at),
            _ => {}
        }
    }
    (middle.unwrap_or(lines.len()), lines.len())
}

/// The text with every `@binding(next)` numbered.
fn numbered(text: &str) -> String {
    let mut parts = text.split("@binding(next)");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for (number, part) in parts.enumerate() {
        out.push_str(&format!("@binding({number}){part}"));
    }
    out
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// A file of this folder.
        fn included(name: &str) -> &'static str {
            match name {
                $($name => include_str!($name),)*
                // A missing file becomes text that does not compile.
                _ => "# include",
            }
        }
    };
}

files![
    "batches.wgsl",
    "bits.wgsl",
    "candidates.wgsl",
    "conv_column.wgsl",
    "coop_fetch.wgsl",
    "coop_place.wgsl",
    "conv_fetch.wgsl",
    "conv_inner.wgsl",
    "conv_value.wgsl",
    "finish.wgsl",
    "keys.wgsl",
    "list_four.wgsl",
    "math.wgsl",
    "product_fetch.wgsl",
    "product_params.wgsl",
    "row_deviation.wgsl",
    "row_top.wgsl",
    "row_totals.wgsl",
    "score.wgsl",
    "tile.wgsl",
    "tile_fetch.wgsl",
    "tile_step.wgsl",
    "tile_store.wgsl",
    "wide_fetch.wgsl",
    "wide_fetch_both.wgsl",
    "wide_multiply.wgsl",
    "wide_place.wgsl",
    "wide_put.wgsl",
    "wide_window_params.wgsl",
    "wide_windows.wgsl",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_do_what_the_table_says() {
        let text = "//# for J in COUNT\n//# if WIDE\nlet a$J = $Ju;\n//# else\nlet b${J}_c = 1;\n//# end\n//# end\n@binding(next) @binding(next)\n";
        let made = Template::new(text).set("COUNT", 2).flag("WIDE", true).text();
        assert_eq!(made, "let a0 = 0u;\nlet a1 = 1u;\n@binding(0) @binding(1)\n");
        let made = Template::new(text).set("COUNT", 1).flag("WIDE", false).text();
        assert_eq!(made, "let b0_c = 1;\n@binding(0) @binding(1)\n");
    }

    #[test]
    fn conditions_name_values() {
        let text = "//# if FORM is Serial or Vector\nyes\n//# end\n//# if not FORM is Vector\nother\n//# end\n";
        assert_eq!(Template::new(text).set("FORM", "Vector").text(), "yes\n");
        assert_eq!(Template::new(text).set("FORM", "Serial").text(), "yes\nother\n");
        assert_eq!(Template::new(text).text(), "other\n");
    }

    #[test]
    fn what_nobody_set_does_not_compile() {
        assert_eq!(Template::new("let x = $MISSING;").text(), "let x = $[MISSING];\n");
    }

    #[test]
    fn types_are_words_and_carriers() {
        let text = "//# load source TYPE\n$TYPE_WORD $TYPE_CARRIER\n";
        let made = Template::new(text).dtype("TYPE", DType::I8).text();
        assert!(made.starts_with("fn ld_source(i: u32) -> i32") && made.ends_with("u32 i32\n"), "{made}");
    }
}

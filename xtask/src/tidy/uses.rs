//! Reads the paths that a Rust file mentions, and the names that it defines and imports.
//!
//! Works on blanked code (see [`super::Source`]), without parsing it fully: paths inside macros
//! count, methods do not.

use std::collections::{HashMap, HashSet};

use super::source::is_word;

/// The paths, imports and definitions of one file, without those that only tests compile.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The imports, in order.
    pub imports: Vec<Import>,
    /// Paths of at least two segments outside `use`.
    pub paths: Vec<Path>,
    /// Names of the items that the file defines.
    pub defined: HashSet<String>,
    /// Number of times that each word occurs outside `use`.
    pub words: HashMap<String, usize>,
}

/// A path, and the inline modules around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub inside: Vec<String>,
    pub segments: Vec<String>,
}

/// One name of a `use`.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    pub path: Path,
    /// The name that it gets here; `*` imports all names.
    pub name: String,
    /// Whether it is a re-export.
    pub is_public: bool,
}

impl Uses {
    /// Reads blanked code.
    pub fn read(code: &str) -> Uses {
        let tokens = without_tests(&tokens(code));
        let mut reader = UseReader { tokens: &tokens, at: 0, depth: 0, inside: Vec::new(), uses: Uses::default() };
        while reader.at < tokens.len() {
            reader.step();
        }
        reader.uses
    }
}

/// Keywords before the name of an item.
const DEFINING: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];

struct UseReader<'a> {
    tokens: &'a [&'a str],
    at: usize,
    depth: usize,
    /// The inline modules around, and the depth of their contents.
    inside: Vec<(String, usize)>,
    uses: Uses,
}

impl<'a> UseReader<'a> {
    fn token(&self, at: usize) -> &'a str {
        self.tokens.get(at).copied().unwrap_or_default()
    }

    fn step(&mut self) {
        let (at, token) = (self.at, self.token(self.at));
        self.at += 1;
        match token {
            "{" => self.depth += 1,
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                self.inside.retain(|(_, depth)| *depth <= self.depth);
            }
            "use" if self.token(at + 1) != "<" => self.imports(at),
            "mod" if self.token(at + 2) == "{" => {
                let name = self.token(at + 1).to_owned();
                self.inside.push((name, self.depth + 1));
                self.at += 1;
            }
            word if word.bytes().all(is_word) => {
                *self.uses.words.entry(word.to_owned()).or_default() += 1;
                if DEFINING.contains(&word) {
                    let after = if self.token(at + 1) == "!" { at + 2 } else { at + 1 };
                    self.uses.defined.insert(self.token(after).to_owned());
                }
                if !matches!(self.token(at.wrapping_sub(1)), "::" | ".") {
                    self.path(at);
                }
            }
            _ => {}
        }
    }

    fn here(&self) -> Vec<String> {
        self.inside.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Adds the path that begins at a token, if it has several segments.
    fn path(&mut self, start: usize) {
        let mut segments = vec![self.token(start).to_owned()];
        let mut at = start + 1;
        while self.token(at) == "::" && self.token(at + 1).bytes().next().is_some_and(is_word) {
            segments.push(self.token(at + 1).to_owned());
            at += 2;
        }
        if segments.len() > 1 {
            let inside = self.here();
            self.uses.paths.push(Path { inside, segments });
        }
    }

    /// Reads a `use` up to its semicolon.
    fn imports(&mut self, at: usize) {
        let is_public = match self.token(at.wrapping_sub(1)) {
            "pub" => true,
            // `pub(crate)`, `pub(super)`, `pub(in …)`.
            ")" => (0..at).rev().take(12).take_while(|at| self.token(*at) != ";").any(|at| self.token(at) == "pub"),
            _ => false,
        };
        let mut found = Vec::new();
        self.tree(&mut Vec::new(), &mut found);
        let inside = self.here();
        for (segments, name) in found {
            self.uses.imports.push(Import { path: Path { inside: inside.clone(), segments }, name, is_public });
        }
    }

    /// Reads one branch of a `use` below `prefix`, and stops at the token after it.
    fn tree(&mut self, prefix: &mut Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
        let known = prefix.len();
        while self.at < self.tokens.len() {
            let token = self.token(self.at).to_owned();
            self.at += 1;
            match token.as_str() {
                "::" => {}
                "{" => {
                    while self.at < self.tokens.len() && self.token(self.at) != "}" {
                        self.tree(prefix, found);
                        self.at += usize::from(self.token(self.at) == ",");
                    }
                    self.at += 1;
                    break;
                }
                "," | "}" | ";" => {
                    self.at -= 1;
                    break;
                }
                "as" => self.at += 1,
                "self" if !prefix.is_empty() => {}
                _ => prefix.push(token),
            }
            if matches!(self.token(self.at), "," | "}" | ";" | "as") {
                let is_renamed = self.token(self.at) == "as";
                let name = if is_renamed { Some(self.token(self.at + 1).to_owned()) } else { prefix.last().cloned() };
                self.at += 2 * usize::from(is_renamed);
                found.extend(name.map(|name| (prefix.clone(), name)));
                break;
            }
        }
        prefix.truncate(known);
        self.at += usize::from(known == 0 && self.token(self.at) == ";");
    }
}

/// Splits code into words, `::`, and single other characters. Raw identifiers lose their prefix.
pub fn tokens(code: &str) -> Vec<&str> {
    let bytes = code.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            byte if is_word(byte) => (at..bytes.len()).find(|&end| !is_word(bytes[end])).unwrap_or(bytes.len()),
            b':' if bytes.get(at + 1) == Some(&b':') => at + 2,
            _ => at + 1,
        };
        let token = &code[at..end];
        let is_raw = token == "r" && bytes.get(end) == Some(&b'#');
        if !token.trim().is_empty() && !is_raw {
            tokens.push(token);
        }
        at = end + usize::from(is_raw);
    }
    tokens
}

/// Leaves out items that only tests compile.
pub fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let is_test = rest.starts_with(&["#", "[", "cfg", "(", "test", ")"])
            || rest.starts_with(&["#", "[", "cfg", "(", "all", "(", "test"])
            || rest.starts_with(&["#", "[", "test", "]"]);
        if is_test {
            at += item_len(rest);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Number of tokens of an item with its attributes: up to a semicolon, or to the brace that closes
/// its body.
fn item_len(tokens: &[&str]) -> usize {
    let (mut depth, mut is_use) = (0_usize, false);
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                // An attribute on the last item of a block.
                if depth == 0 {
                    return at;
                }
                depth -= 1;
                if depth == 0 && *token == "}" && !is_use {
                    return at + 1;
                }
            }
            "use" if depth == 0 => is_use = true,
            ";" | "," if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Source;

    fn read(text: &str) -> Uses {
        Uses::read(&Source::scan(text).code)
    }

    fn imports(text: &str) -> Vec<(String, String, bool)> {
        let imports = read(text).imports;
        imports.into_iter().map(|import| (import.path.segments.join("::"), import.name, import.is_public)).collect()
    }

    fn paths(text: &str) -> Vec<String> {
        let paths = read(text).paths;
        paths.iter().map(|path| [path.inside.join("/"), path.segments.join("::")].join(":")).collect()
    }

    fn import(path: &str, name: &str, is_public: bool) -> (String, String, bool) {
        (path.to_owned(), name.to_owned(), is_public)
    }

    #[test]
    fn imports_are_expanded() {
        let text = "use crate::a::{self, b::{C, D as E}, f};\npub(crate) use super::*;\npub use g::H;\nfn i() {}";
        let expected = [
            import("crate::a", "a", false),
            import("crate::a::b::C", "C", false),
            import("crate::a::b::D", "E", false),
            import("crate::a::f", "f", false),
            import("super::*", "*", true),
            import("g::H", "H", true),
        ];
        assert_eq!(imports(text), expected);
        assert_eq!(read(text).defined, HashSet::from(["i".to_owned()]));
    }

    #[test]
    fn paths_outside_imports_are_found() {
        assert_eq!(paths("fn a() -> impl B + use<'_> { crate::c::d(e.f()) }"), [":crate::c::d"]);
        assert_eq!(paths("pub(in crate::a) struct B(super::super::c::D<u8>);"), [":crate::a", ":super::super::c::D"]);
        assert_eq!(paths("fn a() { Vec::<b::C>::new(); x.d::<u8>() }"), [":b::C"]);
        assert_eq!(paths("// crate::a::B\nlet c = \"crate::d::E\";"), [] as [&str; 0]);
    }

    #[test]
    fn inline_modules_are_noted() {
        let text = "mod a { mod b { fn c() { super::d::e(); } } fn f() { super::g(); } } fn h() { self::i(); }";
        assert_eq!(paths(text), ["a/b:super::d::e", "a:super::g", ":self::i"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "#[cfg(test)]\nuse crate::a::{B, C};\nuse crate::d::E;\n#[cfg(test)]\n#[path = \"x.rs\"]\nmod f;\n\
                    #[cfg(all(test, unix))]\nmod tests {\n    use crate::g::H;\n}\nfn i() { crate::j::k() }\n\
                    #[test]\nfn l() { crate::m::n() }";
        assert_eq!(imports(text), [import("crate::d::E", "E", false)]);
        assert_eq!(paths(text), [":crate::j::k"]);
        assert_eq!(paths("#[cfg(not(test))]\nfn a() { crate::b::c() }"), [":crate::b::c"]);
    }

    #[test]
    fn broken_code_gives_an_answer() {
        for text in ["use a::{b", "use", "use {", "mod a {", "} } use ;", "#[cfg(test)]", "a::", "use a as"] {
            read(text);
        }
    }
}

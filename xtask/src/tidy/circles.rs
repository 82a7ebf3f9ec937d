//! Finds circles of files: files of one crate of which each uses all others, directly or through
//! others. A change to one file of a circle requires understanding all of them.
//!
//! 1. A file uses another one if it names an item of it: by a path, or by an import. Methods are
//!    not followed.
//! 2. An item counts for the file that defines it. A file that only re-exports it is not used, and
//!    does not use the item's file.
//! 3. Code that only tests compile does not count.
//! 4. A file that names a macro of [`DISPATCHERS`] uses each module that it declares or imports
//!    under a domain's name: the macro expands to paths into these modules, which the text of the
//!    file does not have.

use std::collections::{HashMap, HashSet};

use super::report::Report;
use super::source::Source;
use super::uses::{Path, Uses, tokens};

/// A larger circle fails.
const FILES_MAX: usize = 8;

/// The macros of the core crate that expand to paths into one module per domain.
const DISPATCHERS: [&str; 3] = ["for_each_domain", "domain_modules", "by_domain"];

/// The file that names every domain.
const DOMAINS_FILE: &str = "crates/core/src/op/list.rs";

/// The names of the domains' modules, from [`DOMAINS_FILE`]. It is a failure if there are none,
/// because then no circle through a macro is found. `files` are the Rust files of the repository
/// with their text.
pub fn domains(files: &[(String, String)], report: &mut Report) -> Vec<String> {
    let text = files.iter().find(|(name, _)| name == DOMAINS_FILE).map_or("", |(_, text)| text.as_str());
    let domains = domains_in(text);
    if domains.is_empty() {
        report.fail("circle", DOMAINS_FILE, 0, "names no domain as `Name(Family) in module {`".to_owned());
    }
    domains
}

/// The modules of all blocks of the form `Name(Family) in module {`.
fn domains_in(text: &str) -> Vec<String> {
    let code = Source::scan(text).code;
    let module = |tokens: &[&str]| match tokens {
        [_, "(", _, ")", "in", module, "{"] => Some((*module).to_owned()),
        _ => None,
    };
    tokens(&code).windows(7).filter_map(module).collect()
}

/// Checks the crate in `folder`. `files` are the Rust files of the repository with their text, and
/// `domains` the names of the domains' modules.
pub fn check(folder: &str, files: &[(String, String)], domains: &[String], report: &mut Report) {
    let source = format!("{folder}/src/");
    let own = files.iter().filter(|(name, _)| name.starts_with(&source));
    let own: Vec<(&str, &str)> = own.map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let circles = Crate::new(&source, &own, domains).circles();
    for circle in circles.iter().filter(|circle| circle.len() > FILES_MAX) {
        let names: Vec<&str> = circle.iter().filter_map(|name| name.strip_prefix(&source)).collect();
        let text = format!("{} files use each other, at most {FILES_MAX}: {}", circle.len(), names.join(", "));
        report.fail("circle", circle[0], 0, text);
    }
}

/// The files of one crate.
struct Crate<'a> {
    names: Vec<&'a str>,
    /// The module of each file.
    modules: Vec<Vec<String>>,
    uses: Vec<Uses>,
    /// The file of each module.
    file_of: HashMap<Vec<String>, usize>,
    /// The names of the domains' modules.
    domains: &'a [String],
}

impl<'a> Crate<'a> {
    /// `source` is the crate's `src/`, with which the names of all `files` begin.
    fn new(source: &str, files: &[(&'a str, &str)], domains: &'a [String]) -> Crate<'a> {
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        let modules: Vec<Vec<String>> = names.iter().map(|name| module_of(&name[source.len()..])).collect();
        let uses = files.iter().map(|(_, text)| Uses::read(&Source::scan(text).code)).collect();
        let mut file_of: HashMap<Vec<String>, usize> = HashMap::new();
        for (file, module) in modules.iter().enumerate() {
            // `main.rs` beside `lib.rs` is a crate of its own, which nothing uses.
            if !(names[file].ends_with("src/main.rs") && file_of.contains_key(module)) {
                file_of.insert(module.clone(), file);
            }
        }
        Crate { names, modules, uses, file_of, domains }
    }

    /// The circles, with their files in the crate's order.
    fn circles(&self) -> Vec<Vec<&'a str>> {
        let used: Vec<HashSet<usize>> = (0..self.names.len()).map(|file| self.used_by(file)).collect();
        let reached: Vec<HashSet<usize>> = (0..used.len()).map(|file| reached(&used, file)).collect();
        let mut seen = HashSet::new();
        let mut circles = Vec::new();
        for file in 0..used.len() {
            let circle: Vec<usize> = (0..used.len())
                .filter(|other| reached[file].contains(other) && reached[*other].contains(&file))
                .collect();
            if circle.len() > 1 && seen.insert(circle[0]) {
                circles.push(circle.into_iter().map(|file| self.names[file]).collect());
            }
        }
        circles
    }

    /// The other files of which this file names an item.
    fn used_by(&self, file: usize) -> HashSet<usize> {
        let uses = &self.uses[file];
        let mut paths: Vec<Path> = Vec::new();
        for import in &uses.imports {
            // A re-export is a use only if the name also occurs elsewhere.
            if !import.is_public || uses.words.contains_key(&import.name) {
                paths.push(import.path.clone());
            }
        }
        for path in uses.paths.iter().chain(&self.dispatched(uses)) {
            // The first segment may be an imported module.
            let import = uses.imports.iter().find(|import| import.name == path.segments[0]);
            paths.push(match import {
                Some(import) => {
                    let segments = import.path.segments.iter().chain(&path.segments[1..]).cloned().collect();
                    Path { inside: import.path.inside.clone(), segments }
                }
                None => path.clone(),
            });
        }
        let items = paths
            .iter()
            .filter_map(|path| self.absolute(file, path))
            .filter_map(|path| self.item(&path, &mut HashSet::new()));
        items.filter(|used| *used != file).collect()
    }

    /// The paths to which the macros in a file expand. The names of the items behind the modules
    /// are not known, so each path has a `*` in their place.
    fn dispatched(&self, uses: &Uses) -> Vec<Path> {
        if !DISPATCHERS.iter().any(|name| uses.words.contains_key(*name)) {
            return Vec::new();
        }
        let all_of = |domain: &String| Path { inside: Vec::new(), segments: vec![domain.clone(), "*".to_owned()] };
        self.domains.iter().map(all_of).collect()
    }

    /// A path from the crate's root; `None` if it leads to another crate.
    fn absolute(&self, file: usize, Path { inside, segments }: &Path) -> Option<Vec<String>> {
        let mut module: Vec<String> = self.modules[file].iter().chain(inside).cloned().collect();
        let mut rest = segments.as_slice();
        match rest.first()?.as_str() {
            "crate" => {
                module.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while let Some(("super", more)) = rest.split_first().map(|(first, more)| (first.as_str(), more)) {
                    module.pop()?;
                    rest = more;
                }
            }
            first => {
                module.push(first.to_owned());
                self.file_of.get(&module)?;
                rest = &rest[1..];
            }
        }
        module.extend_from_slice(rest);
        Some(module)
    }

    /// The file that defines the item of a path; `None` if the path is a module. `seen` has the
    /// names that were followed so far, because files can import each other's names.
    fn item(&self, path: &[String], seen: &mut HashSet<(usize, String)>) -> Option<usize> {
        let (file, rest) =
            (0..=path.len()).rev().find_map(|len| Some((*self.file_of.get(&path[..len])?, &path[len..])))?;
        let name = rest.first()?;
        let uses = &self.uses[file];
        if uses.defined.contains(name) || name == "*" || !seen.insert((file, name.clone())) {
            return Some(file);
        }
        let follow = |path: &Path, rest: &[String]| -> Option<Vec<String>> {
            let mut path = self.absolute(file, path)?;
            path.extend_from_slice(rest);
            Some(path)
        };
        if let Some(import) = uses.imports.iter().find(|import| import.name == *name) {
            // An item of another crate has no file.
            return self.item(&follow(&import.path, &rest[1..])?, seen);
        }
        for import in uses.imports.iter().filter(|import| import.name == "*") {
            let Some(mut path) = follow(&import.path, &[]) else { continue };
            path.pop();
            path.extend_from_slice(rest);
            let found = self.item(&path, seen);
            if let Some(found) = found.filter(|found| self.uses[*found].defined.contains(name)) {
                return Some(found);
            }
        }
        Some(file)
    }
}

/// All files that a file uses, directly or through others.
fn reached(used: &[HashSet<usize>], file: usize) -> HashSet<usize> {
    let mut reached = HashSet::new();
    let mut left = vec![file];
    while let Some(next) = left.pop() {
        left.extend(used[next].iter().copied().filter(|used| reached.insert(*used)));
    }
    reached
}

/// The module of a file below `src/`.
fn module_of(file: &str) -> Vec<String> {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let mut parts: Vec<String> = stem.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate, each as the names of its files below `src/`.
    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let named: Vec<(String, &str)> = files.iter().map(|(name, text)| (format!("a/src/{name}"), *text)).collect();
        let files: Vec<(&str, &str)> = named.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        let domains = ["compute".to_owned(), "signal".to_owned()];
        let circles = Crate::new("a/src/", &files, &domains).circles();
        let sorted = |circle: &Vec<&str>| {
            let mut circle = circle.clone();
            circle.sort_unstable();
            circle.join(" ").replace("a/src/", "")
        };
        circles.iter().map(sorted).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn b() { super::c::d::run(); }"),
            ("c/mod.rs", "pub mod d;"),
            ("c/d.rs", "use super::super::a; pub fn run() -> a::A {}"),
            ("d.rs", "use crate::a::A; pub fn d(a: A) {}"),
        ];
        assert_eq!(circles(&files), ["a.rs b.rs c/d.rs"]);
    }

    #[test]
    fn a_state_that_names_its_ops_makes_a_circle_and_a_typed_one_does_not() {
        let op = "use crate::context::Context; pub struct Maps; pub fn run(context: &mut Context) {}";
        let named = ("context.rs", "use crate::ops::map::Maps; pub struct Context { maps: Maps }");
        let typed = ("context.rs", "pub struct Context { states: Vec<Box<dyn Any>> }");
        let with = |context| circles(&[("lib.rs", ""), ("ops/mod.rs", "pub mod map;"), ("ops/map.rs", op), context]);
        assert_eq!(with(named), ["context.rs ops/map.rs"]);
        assert_eq!(with(typed), [] as [&str; 0]);
    }

    #[test]
    fn reexports_lead_to_the_file_that_defines_the_item() {
        let files = [
            ("lib.rs", "pub mod a; pub use a::A; pub use b::*;"),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "use crate::A; pub struct B;"),
        ];
        assert_eq!(circles(&files), ["a.rs b.rs"]);
        let files = [("lib.rs", "mod a; pub use a::A; pub struct B;"), ("a.rs", "pub struct A(crate::B);")];
        assert_eq!(circles(&files), [] as [&str; 0]);
        let files = [("lib.rs", "mod a; pub use a::A; pub struct B(A);"), ("a.rs", "pub struct A(crate::B);")];
        assert_eq!(circles(&files), ["a.rs lib.rs"]);
    }

    #[test]
    fn other_crates_and_tests_do_not_count() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; use other::Thing; pub struct A;"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use super::B; use crate::a::A; }"),
            ("c.rs", "pub use other::a::D; fn e() { super::c::D::new(); }"),
        ];
        assert_eq!(circles(&files), [] as [&str; 0]);
        let inline = [("a.rs", "pub struct A; mod b { use super::A; }"), ("lib.rs", "mod a; pub fn f(a: a::A) {}")];
        assert_eq!(circles(&inline), [] as [&str; 0]);
    }

    #[test]
    fn macros_over_the_domains_use_the_domains_modules() {
        let cases = |child: &'static str, parent: &'static str| {
            circles(&[
                ("lib.rs", "mod cases;"),
                ("cases/mod.rs", parent),
                ("cases/compute/mod.rs", child),
                ("cases/signal.rs", child),
                ("cases/others.rs", child),
                ("cases/case.rs", "pub struct Case;"),
            ])
        };
        let (up, aside) = ("use super::Case;", "use super::case::Case;");
        let declares = "mod case; mod compute; mod others; mod signal; pub struct Case;";
        let each = "macro_rules! of_each { () => {} } pub struct Case; fn all() { core::for_each_domain!(of_each) }";
        let some = "core::domain_modules! { Compute in compute; } pub struct Case;";
        let by = "pub struct Case; fn run(op: &Op) { by_domain!(op => run(op), ()) }";
        assert_eq!(cases(up, declares), [] as [&str; 0]);
        for parent in [each, some, by] {
            assert_eq!(cases(up, parent), ["cases/compute/mod.rs cases/mod.rs cases/signal.rs"], "{parent}");
            assert_eq!(cases(aside, parent), [] as [&str; 0], "{parent}");
        }
        let in_tests = "pub struct Case; #[cfg(test)] mod tests { fn all() { core::for_each_domain!(of_each) } }";
        assert_eq!(cases(up, in_tests), [] as [&str; 0]);
    }

    #[test]
    fn macros_over_the_domains_use_imported_and_skip_inline_modules() {
        let with = |text| {
            circles(&[
                ("lib.rs", "mod ops; mod dispatch;"),
                ("ops/mod.rs", "pub mod compute;"),
                ("ops/compute.rs", "use crate::dispatch::Context; pub fn run(context: Context) {}"),
                ("dispatch.rs", text),
            ])
        };
        let imported = "use crate::ops::compute; pub struct Context; fn run(op: &Op) { by_domain!(op => run(op), ()) }";
        let inline = "mod compute {} pub struct Context; fn run(op: &Op) { by_domain!(op => run(op), ()) }";
        assert_eq!(with(imported), ["dispatch.rs ops/compute.rs"]);
        assert_eq!(with(inline), [] as [&str; 0]);
    }

    #[test]
    fn the_domains_are_read_from_their_list() {
        let list = "macro_rules! domains { ($($domain:ident($family:ident) in $module:ident { })*) => { } }\n\
                    domains! {\n    /// Arithmetic.\n    Compute(ComputeOp) in compute {\n        Map(secret) => T, V;\n\
                    }\n    Signal(SignalOp) in signal { }\n}";
        assert_eq!(domains_in(list), ["compute", "signal"]);
        let files = |name: &str, text: &str| [(name.to_owned(), text.to_owned())];
        let failures = |files: &[(String, String)]| {
            let mut report = Report::default();
            domains(files, &mut report);
            report.failures()
        };
        assert_eq!(failures(&files(DOMAINS_FILE, list)), 0);
        assert_eq!(failures(&files(DOMAINS_FILE, "domains! {}")), 1);
        assert_eq!(failures(&files("crates/core/src/lib.rs", list)), 1);
    }

    #[test]
    fn a_circle_of_too_many_files_fails() {
        let ring = |count: usize| -> Vec<(String, String)> {
            let file = |at: usize| {
                let next = (at + 1) % count;
                (format!("crates/x/src/m{at}.rs"), format!("use crate::m{next}::M; pub struct M;"))
            };
            (0..count).map(file).collect()
        };
        let failures = |count: usize| {
            let mut report = Report::default();
            check("crates/x", &ring(count), &[], &mut report);
            check("crates/y", &ring(count), &[], &mut report);
            report.findings.into_iter().map(|finding| format!("{}: {}", finding.file, finding.text)).collect::<Vec<_>>()
        };
        assert_eq!(failures(FILES_MAX), [] as [&str; 0]);
        let failed = failures(FILES_MAX + 1);
        assert_eq!(failed.len(), 1);
        assert!(
            failed[0].starts_with("crates/x/src/m0.rs: 9 files use each other, at most 8: m0.rs, m1.rs"),
            "{failed:?}"
        );
    }
}

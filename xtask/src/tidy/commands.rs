//! The commands that documents may name: those of `cargo xtask`, of `panoply` and of the bundle's
//! script, and cargo's targets.
//!
//! The commands are read from the source text that defines them, so that tidy needs no build of
//! `panoply`.

use std::collections::BTreeMap;

/// The files that define the arguments of `panoply`.
const ARGUMENTS: [&str; 5] = [
    "crates/app/src/arguments.rs",
    "crates/app/src/arguments/vectors.rs",
    "crates/app/src/arguments/store.rs",
    "crates/app/src/arguments/signal.rs",
    "crates/app/src/arguments/models.rs",
];
const SCRIPT: &str = "xtask/src/bundle.sh";
/// Flags that every command of `panoply` has.
const HELP: [&str; 4] = ["--help", "--version", "-h", "-V"];

/// All known commands and flags.
#[derive(Default)]
pub struct Commands {
    /// The usage text of `cargo xtask`.
    usage: String,
    /// The flags of each command of `panoply`, by the command's words, such as `bench` or `vectors
    /// search`.
    panoply: BTreeMap<String, Vec<String>>,
    /// The text of the bundle's script.
    script: String,
    packages: Vec<String>,
    files: Vec<String>,
}

impl Commands {
    /// Reads the definitions. `read` returns the text of a file of the repository.
    pub fn new(
        usage: &str,
        packages: Vec<String>,
        files: Vec<String>,
        read: impl Fn(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<Commands> {
        let mut text = String::new();
        for file in ARGUMENTS {
            text += &read(file)?;
        }
        Ok(Commands { usage: usage.to_owned(), panoply: panoply(&text), script: read(SCRIPT)?, packages, files })
    }

    /// Returns the problem of a command line. `None` if the line is correct or not a known kind of
    /// command.
    pub fn problem_of(&self, line: &str) -> Option<String> {
        let line = line.split(['|', '>']).next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().skip_while(|word| word.contains('=')).collect();
        let behind = |separator: &str| words.iter().position(|word| *word == separator).map(|at| &words[at + 1..]);
        match words.as_slice() {
            ["cargo", "xtask", rest @ ..] => self.of_xtask(rest),
            ["cargo", "run", ..] if words.contains(&"panoply") => self.of_panoply(behind("--").unwrap_or_default()),
            ["cargo", "+nightly", "fuzz", "run", target, ..] => self.target("fuzz_targets", target),
            ["cargo", "test" | "bench", ..] => self.of_cargo(&words),
            ["panoply", rest @ ..] => self.of_panoply(rest),
            ["sh", "run.sh", what, rest @ ..] => self.of_script(what, rest),
            _ => None,
        }
    }

    fn of_xtask(&self, words: &[&str]) -> Option<String> {
        let (command, rest) = words.split_first()?;
        let known = self.usage.lines().any(|line| line.split_whitespace().next() == Some(*command));
        if self.usage.is_empty() || command.starts_with('<') {
            return None;
        }
        if !known {
            return Some(format!("`cargo xtask {command}` does not exist"));
        }
        // The arguments after `bench` are passed to `panoply bench`.
        let flags = rest.iter().filter(|word| *command != "bench" && word.starts_with("--"));
        flags
            .into_iter()
            .find(|flag| !self.usage.contains(**flag))
            .map(|flag| format!("`cargo xtask {command}` has no {flag}"))
    }

    fn of_panoply(&self, words: &[&str]) -> Option<String> {
        let (command, rest) = words.split_first().filter(|(word, _)| !word.starts_with('-'))?;
        if self.panoply.is_empty() {
            return None;
        }
        let nested = rest.first().map(|word| format!("{command} {word}"));
        let name = nested.filter(|name| self.panoply.contains_key(name)).unwrap_or_else(|| (*command).to_owned());
        let Some(flags) = self.panoply.get(&name) else {
            return Some(format!("`panoply {name}` does not exist"));
        };
        let asked = rest.iter().filter(|word| word.starts_with('-') && word.len() > 1);
        let asked = asked.map(|word| word.split('=').next().unwrap_or(word));
        let mut unknown = asked.filter(|flag| !HELP.contains(flag) && !flags.iter().any(|known| known == flag));
        unknown.next().map(|flag| format!("`panoply {name}` has no {flag}"))
    }

    fn of_script(&self, what: &str, rest: &[&str]) -> Option<String> {
        let known =
            |line: &str| line.split(')').next().is_some_and(|names| names.split(" | ").any(|name| name == what));
        if !self.script.is_empty() && !self.script.lines().any(known) {
            return Some(format!("`sh run.sh {what}` does not exist"));
        }
        if what == "bench" { self.of_panoply(&[&["bench"], rest].concat()) } else { None }
    }

    fn of_cargo(&self, words: &[&str]) -> Option<String> {
        let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        words[..end].windows(2).find_map(|pair| match pair {
            ["-p" | "--package", package] if !self.packages.iter().any(|known| known == package) => {
                Some(format!("there is no package `{package}`"))
            }
            ["--test", target] => self.target("tests", target),
            ["--bench", target] => self.target("benches", target),
            _ => None,
        })
    }

    fn target(&self, folder: &str, target: &str) -> Option<String> {
        let file = format!("/{folder}/{target}.rs");
        let missing = !self.files.iter().any(|name| name.ends_with(&file));
        missing.then(|| format!("there is no `{}`", &file[1..]))
    }
}

/// Parses the commands of `panoply` and their flags from the structs and enums that define them.
fn panoply(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut commands = BTreeMap::new();
    for (name, arguments) in variants(text, "CommandArguments") {
        for (nested, arguments) in variants(text, &arguments.replace("Arguments", "Command")) {
            commands.insert(format!("{name} {nested}"), flags(text, &arguments));
        }
        commands.insert(name, flags(text, &arguments));
    }
    commands
}

/// Returns the variants of an enum of commands: the typed name, and the struct of its arguments.
fn variants(text: &str, name: &str) -> Vec<(String, String)> {
    let lines = block(text, &format!("pub enum {name} {{"));
    let lines = lines.lines().map(str::trim).filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    let split = |line: &str| {
        let line = line.trim_end_matches(',').trim_end_matches(')');
        let (name, arguments) = line.split_once('(').unwrap_or((line, ""));
        (name.to_lowercase(), arguments.to_owned())
    };
    lines.map(split).collect()
}

/// Returns the flags of a struct of arguments.
fn flags(text: &str, name: &str) -> Vec<String> {
    let mut flags = Vec::new();
    let (mut long, mut short, mut flattened) = (false, false, false);
    for line in block(text, &format!("pub struct {name} {{")).lines().map(str::trim) {
        if line.starts_with("#[arg(") {
            (long, short) = (line.contains("long"), line.contains("short"));
        } else if line == "#[command(flatten)]" {
            flattened = true;
        } else if let Some((field, kind)) = line.strip_prefix("pub ").and_then(|field| field.split_once(':')) {
            if flattened {
                flags.extend(self::flags(text, kind.trim().trim_end_matches(',')));
            }
            flags.extend(long.then(|| format!("--{}", field.replace('_', "-"))));
            flags.extend(field.chars().next().filter(|_| short).map(|letter| format!("-{letter}")));
            (long, short, flattened) = (false, false, false);
        }
    }
    flags
}

/// Returns the text between a line and the brace that closes the block.
fn block<'a>(text: &'a str, start: &str) -> &'a str {
    let Some((_, rest)) = text.split_once(start) else { return "" };
    rest.split_once("\n}").map_or(rest, |(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS_TEXT: &str = "
pub enum CommandArguments {
    /// Measures
    Bench(BenchArguments),
    /// Vectors
    Vectors(VectorsArguments),
    Man,
}
pub struct BenchArguments {
    #[arg(value_name = \"CASE\")]
    pub prefixes: Vec<String>,
    #[arg(long, value_name = \"N\")]
    pub trace_ops: usize,
}
pub struct VectorsArguments {
    #[command(subcommand)]
    pub command: VectorsCommand,
}
pub enum VectorsCommand {
    Search(SearchArguments),
}
pub struct SearchArguments {
    #[arg(short, long)]
    pub k: usize,
    #[arg(long)]
    pub hits: usize,
    #[command(flatten)]
    pub key: KeyArguments,
}
pub struct KeyArguments {
    #[arg(long)]
    pub key_file: usize,
}
";

    fn commands() -> Commands {
        let read = |file: &str| {
            Ok(match file {
                "xtask/src/bundle.sh" => {
                    "case $what in\ndevices) x ;;\ncheck-vulkan | check-wgpu) y ;;\nbench) z ;;\n".to_owned()
                }
                "crates/app/src/arguments.rs" => ARGUMENTS_TEXT.to_owned(),
                _ => String::new(),
            })
        };
        let files = ["crates/a/tests/conformance.rs", "fuzz/fuzz_targets/arrow.rs"].map(str::to_owned).to_vec();
        let usage = "Usage:\n\n  test [--keep-going]   runs\n  bench [ARGUMENT]...   measures\n";
        Commands::new(usage, vec!["panoply-a".to_owned()], files, read).expect("readable")
    }

    #[test]
    fn commands_that_exist_are_fine() {
        let commands = commands();
        for line in [
            "cargo xtask test --keep-going",
            "cargo xtask bench --seconds 1",
            "cargo xtask",
            "panoply bench matmul --trace-ops=5",
            "panoply vectors search here -k 3 --hits 4 | head --lines 3",
            "panoply vectors search here --key-file x",
            "panoply --help",
            "panoply man > panoply.1",
            "cargo run --release --bin panoply -- bench --trace-ops 4",
            "X=1 cargo test -p panoply-a --test conformance -- --test other",
            "cargo +nightly fuzz run arrow",
            "sh run.sh check-wgpu",
            "git log --oneline",
        ] {
            assert_eq!(commands.problem_of(line), None, "{line}");
        }
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        let commands = commands();
        for (line, problem) in [
            ("cargo xtask tset", "`cargo xtask tset` does not exist"),
            ("cargo xtask test --quick", "`cargo xtask test` has no --quick"),
            ("panoply juggle", "`panoply juggle` does not exist"),
            ("panoply bench --hits 4", "`panoply bench` has no --hits"),
            ("panoply vectors search -x", "`panoply vectors search` has no -x"),
            ("cargo run --bin panoply -- juggle", "`panoply juggle` does not exist"),
            ("cargo test -p panoply-b", "there is no package `panoply-b`"),
            ("cargo bench --bench conformance", "there is no `benches/conformance.rs`"),
            ("cargo +nightly fuzz run parrot", "there is no `fuzz_targets/parrot.rs`"),
            ("sh run.sh dance", "`sh run.sh dance` does not exist"),
            ("sh run.sh bench --hits", "`panoply bench` has no --hits"),
        ] {
            assert_eq!(commands.problem_of(line).as_deref(), Some(problem), "{line}");
        }
    }
}

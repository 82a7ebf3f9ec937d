//! Modules know the modules below them and none above, so that each can be read, and changed,
//! without its users.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeSet;
use std::path::Path;

/// The layers, from the lowest to the highest. Modules of one layer do not know each other, unless
/// they are in one group.
const LAYERS: [&[&[&str]]; 12] = [
    &[&["time"], &["process"], &["partition"], &["address_space"]],
    &[&["threads"], &["room"]],
    &[&["timers"], &["errands"], &["claims"]],
    &[&["options"], &["batcher"], &["health"], &["learned"], &["metrics"], &["verify"]],
    &[&["domain_pools"]],
    &[&["lane"], &["worker", "pool"]],
    &[&["router"], &["device_worker"]],
    &[&["relay"], &["pending"], &["telemetry"]],
    &[&["verifier"], &["read_back"], &["pending_many"], &["task"]],
    &[&["runtime"], &["stepped"]],
    &[&["accelerated"]],
    &[&["simulation"]],
];

/// The layer of a module, and its group in it.
fn place(module: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, groups)| {
        let group = groups.iter().position(|group| group.contains(&module))?;
        Some((layer, group))
    })
}

/// Every module of the crate that a source text names, outside its tests.
fn named(text: &str) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]").next().unwrap_or(text).split("\n#[cfg(all(test").next().unwrap_or(text);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = lines.flat_map(|line| {
        line.split("crate::").skip(1).map(|rest| {
            rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect::<String>()
        })
    });
    names.filter(|name| !name.is_empty()).collect()
}

fn visit(folder: &Path, found: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn modules_know_those_below_them_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    visit(&root, &mut |path, text| {
        let relative = path.strip_prefix(&root).unwrap();
        let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = first.strip_suffix(".rs").unwrap_or(first);
        if module == "lib" || relative.components().any(|part| part.as_os_str() == "tests") {
            return;
        }
        let Some(here) = place(module) else {
            wrong.push(format!("{module} stands in no layer"));
            return;
        };
        for other in named(text) {
            seen += 1;
            match place(&other) {
                None => wrong.push(format!("{}: what is crate::{other}?", relative.display())),
                Some(there) if there.0 < here.0 || there == here => {}
                Some(_) => wrong.push(format!("{} knows {other}", relative.display())),
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "{seen}");
}

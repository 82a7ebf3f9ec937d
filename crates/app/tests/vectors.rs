//! `panoply vectors` as users run it: as a process, without a terminal.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

mod odd_input;
mod queries;
mod repair;

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("panoply-vectors-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }

    /// Creates a collection of three-dimensional vectors with these rows.
    fn collection(&self, rows: &str) -> String {
        let path = self.path("collection");
        printed(&["vectors", "create", &path, "--dimension", "3", "--metric", "euclidean"]);
        printed(&["vectors", "import", &path, &self.write("rows.jsonl", rows)]);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const COLOURS: &str = r#"{"id": "red", "vector": [1, 0, 0], "metadata": {"warm": true, "rank": 1}}
{"id": "orange", "vector": [1, 0.5, 0], "warm": true, "rank": 2}
{"id": "blue", "vector": [0, 0, 1], "warm": false, "rank": 3}
{"id": "black", "vector": [0, 0, 0]}
"#;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_SIMD");
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.as_str()), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).unwrap()
}

fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), printed.as_str()), (Some(code), ""), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn ids(results: &Value) -> Vec<&str> {
    results["hits"].as_array().unwrap().iter().map(|hit| hit["id"].as_str().unwrap()).collect()
}

fn records(path: &str) -> u64 {
    json_of(&["vectors", "info", path, "--json"])["records"].as_u64().unwrap()
}

/// Makes a NumPy array of f32.
fn npy(rows: usize, dimension: usize, value: impl Fn(usize) -> f32) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimension}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{text:<117}\n").bytes());
    bytes.extend((0..rows * dimension).flat_map(|index| value(index).to_le_bytes()));
    bytes
}

#[test]
fn a_collection_is_created_filled_searched_exported_and_deleted() {
    let folder = Folder::new("whole-life");
    let path = folder.path("colours");
    let created = json_of(&["vectors", "create", &path, "--dimension", "3", "--metric", "euclidean", "--json"]);
    assert_eq!((created["name"].as_str(), created["storage"].as_str()), (Some("colours"), Some("f32")));
    let file = folder.write("colours.jsonl", COLOURS);
    let imported = json_of(&["vectors", "import", &path, &file, "--json"]);
    assert_eq!((imported["rows"].as_u64(), imported["records"].as_u64()), (Some(4), Some(4)));

    let found = json_of(&["vectors", "search", &path, "--vector", "[0.9, 0.1, 0]", "-k", "2", "--json"]);
    assert_eq!(ids(&found["results"][0]), ["red", "orange"]);
    assert_eq!(found["results"][0]["hits"][0]["metadata"], json!({"warm": true, "rank": 1}));
    assert_eq!(found["devices"], json!(["cpu:0"]));
    let table = printed(&["vectors", "search", &path, "--id", "red", "-k", "2"]);
    assert!(table.contains("orange") && table.contains("on cpu:0, in ") && !table.contains(" red "), "{table}");

    let exported = folder.path("copy.parquet");
    printed(&["vectors", "export", &path, &exported]);
    let message = printed(&["vectors", "delete", &path, "--id", "red", "--id", "green"]);
    assert_eq!(message, "1 record deleted; 3 records left.\n");
    printed(&["vectors", "import", &path, &exported, "--replace"]);
    assert_eq!(records(&path), 4);
    let info = json_of(&["vectors", "info", &path, "--verify", "--json"]);
    assert_eq!((info["fields"].clone(), info["verified"].clone()), (json!(["rank", "warm"]), json!(true)));

    let message = refused(&["vectors", "delete", &path], 2);
    assert!(message.contains("--yes"), "{message}");
    assert!(printed(&["vectors", "delete", &path, "--yes"]).ends_with("is deleted.\n"));
    assert!(!Path::new(&path).exists());
    let message = refused(&["vectors", "info", &path], 1);
    assert!(message.contains(&path), "{message}");
}

/// Regression: both files were written into one, which then was neither.
#[test]
fn one_file_is_not_written_twice() {
    let folder = Folder::new("one-file");
    let (path, file) = (folder.collection(COLOURS), folder.path("p.npy"));
    printed(&["vectors", "export", &path, &file]);
    let before = fs::read(&file).unwrap();
    for records in [file.clone(), folder.path("./p.npy")] {
        let message = refused(&["vectors", "export", &path, &file, "--records", &records, "--overwrite"], 2);
        assert!(message.contains("--records: expected another file"), "{message}");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    printed(&["vectors", "export", &path, &file, "--records", &folder.path("p.jsonl"), "--overwrite"]);
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn a_folder_with_other_files_stays_and_that_is_said() {
    let folder = Folder::new("other-files");
    let path = folder.collection(COLOURS);
    let message = refused(&["vectors", "snapshot", &path, &format!("{path}/inner")], 1);
    assert!(message.contains("outside the collection"), "{message}");
    assert!(!Path::new(&path).join("inner").exists());
    fs::write(Path::new(&path).join("notes.txt"), "mine").unwrap();
    let message = printed(&["vectors", "delete", &path, "--yes"]);
    assert!(message.contains("stays, since it holds other files"), "{message}");
    assert_eq!(fs::read(Path::new(&path).join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn filters_choose_among_records() {
    let folder = Folder::new("filters");
    let path = folder.collection(COLOURS);
    let search = |filter: &str| {
        let found = json_of(&["vectors", "search", &path, "--vector", "[0,0,0]", "--filter", filter, "--json"]);
        ids(&found["results"][0]).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(search("warm = true and rank < 2"), ["red"]);
    assert_eq!(search("{\"rank\": {\"in\": [2, 3]}}"), ["blue", "orange"]);
    assert_eq!(search("rank = null"), ["black"]);
    let with = |filter: &str| run(&["vectors", "search", &path, "--vector", "[0,0,0]", "--filter", filter]);
    let syntax = with("warm =");
    assert_eq!(syntax.status.code(), Some(2));
    assert!(String::from_utf8(syntax.stderr).unwrap().contains("at character 7: expected a value"));
    let unknown = with("colour = red");
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        String::from_utf8(unknown.stderr)
            .unwrap()
            .contains("no record has a metadata field `colour`; there are: rank, warm")
    );
}

#[test]
fn every_format_comes_back_as_it_was() {
    let folder = Folder::new("formats");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "4", "--metric", "dot", "--storage", "f32"]);
    let lines: String =
        (1..=50).map(|row| format!("{{\"id\": \"r{row}\", \"vector\": [{row}, 2, 3, 4], \"n\": {row}}}\n")).collect();
    printed(&["vectors", "import", &path, &folder.write("in.jsonl", lines)]);
    let original = printed(&["vectors", "export", &path, "-"]);
    assert_eq!(original.lines().count(), 50);
    for name in ["out.npy", "out.fvecs", "out.bvecs", "out.ivecs", "out.jsonl", "out.parquet", "out.arrow"] {
        let (file, records) = (folder.path(name), folder.path(&format!("{name}.records.jsonl")));
        printed(&["vectors", "export", &path, &file, "--records", &records]);
        let copy = folder.path(&format!("copy of {name}"));
        printed(&["vectors", "create", &copy, "--dimension", "4", "--metric", "dot"]);
        printed(&["vectors", "import", &copy, &file, "--records", &records]);
        assert_eq!(printed(&["vectors", "export", &copy, "-"]), original, "{name}");
        let message = refused(&["vectors", "export", &path, &file], 1);
        assert!(message.contains("--overwrite"), "{message}");
    }
    let alone = printed(&["vectors", "export", &path, &folder.path("alone.npy")]);
    assert!(alone.contains("--records"), "{alone}");
    let left: Vec<_> = fs::read_dir(&folder.0)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".partial"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn several_queries_come_from_a_file() {
    let folder = Folder::new("queries");
    let path = folder.collection(COLOURS);
    let file = folder.write("queries.npy", npy(2, 3, |index| if index == 0 || index == 5 { 1.0 } else { 0.0 }));
    let found = json_of(&["vectors", "search", &path, "--vector", &format!("@{file}"), "-k", "1", "--json"]);
    assert_eq!((ids(&found["results"][0]), ids(&found["results"][1])), (vec!["red"], vec!["blue"]));
    let file = folder.write("query.json", "[0, 0, 0.9]");
    let found = json_of(&["vectors", "search", &path, "--vector", &format!("@{file}"), "-k", "1", "--json"]);
    assert_eq!(ids(&found["results"][0]), ["blue"]);
}

#[test]
fn the_index_is_built_and_measured() {
    let folder = Folder::new("tune");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "8", "--metric", "euclidean"]);
    let file = folder.write("rows.npy", npy(600, 8, |index| ((index * 7919) % 613) as f32));
    printed(&["vectors", "import", &path, &file]);
    let table = printed(&["vectors", "tune", &path, "--lists", "8", "-k", "5"]);
    assert!(table.contains("8 lists of 600 rows, built in") && table.contains("RECALL@5"), "{table}");
    let measured = json_of(&["vectors", "tune", &path, "--nprobe", "1,8", "--json"]);
    assert_eq!((measured["built"].as_bool(), measured["lists"].as_u64()), (Some(false), Some(8)));
    assert_eq!(measured["rows"][1]["recall"], 1.0);
    let found = json_of(&["vectors", "search", &path, "--id", "7", "--nprobe", "8", "-k", "3", "--json"]);
    assert_eq!(ids(&found["results"][0]).len(), 3);
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let folder = Folder::new("bad-input");
    let path = folder.collection(COLOURS);
    let claims = npy(1, 3, |_| 0.0);
    let claims = String::from_utf8_lossy(&claims).replace("(1, 3), }", "(1152921504606846976, 3)}");
    let cut = npy(4, 3, |_| 1.0);
    for (name, bytes, word) in [
        ("dimension.npy", npy(2, 4, |_| 1.0), "has vectors of 4 components, the collection of 3"),
        ("nan.npy", npy(2, 3, |index| if index == 4 { f32::NAN } else { 1.0 }), "component 1 of row 1 is NaN"),
        ("cut.npy", cut[..cut.len() - 5].to_vec(), "cut short: expected 176 bytes, got 171"),
        ("other.npy", b"PAR1".to_vec(), "not a readable npy file"),
        ("claims.npy", claims.into_bytes(), "npy file"),
        ("torn.jsonl", b"{\"vector\": [1, 2".to_vec(), "line 1: the line ends before its object does"),
        ("exists.jsonl", b"{\"id\": \"red\", \"vector\": [1, 2, 3]}".to_vec(), "there is a record `red` already"),
        ("twice.jsonl", [&b"{\"id\":\"n\",\"vector\":[1,2,3]}\n"[..]; 2].concat(), "appears twice"),
        ("empty.parquet", Vec::new(), "not a readable Parquet file"),
        ("torn.arrow", b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(), "a message's header of"),
    ] {
        let message = refused(&["vectors", "import", &path, &folder.write(name, bytes)], 1);
        assert!(message.contains(word), "{name}: {message}");
        assert_eq!(records(&path), 4, "{name}");
    }
    let message = refused(&["vectors", "import", &path, &folder.write("rows.csv", "1,2,3")], 2);
    assert!(message.contains("expected a name that ends in npy"), "{message}");
    let message = refused(&["vectors", "import", &path, &folder.path("nowhere.npy")], 1);
    assert!(message.contains("nowhere.npy cannot be read") && message.contains("help: check the path"), "{message}");
    assert_eq!(message.matches("os error").count(), 1, "{message}");
    let message = refused(&["vectors", "import", &folder.path("nothing"), &folder.path("rows.jsonl")], 1);
    assert!(message.contains("there is nothing at this path") && message.contains("vectors create "), "{message}");
    let message = refused(&["vectors", "info", &folder.path("rows.jsonl")], 1);
    assert!(message.contains("it is a file; a collection is a folder"), "{message}");
}

/// A batch has 512 rows at this dimension. The first batch is taken, the second has an error.
#[test]
fn an_import_that_ends_early_says_how_far_it_came_and_how_to_go_on() {
    let folder = Folder::new("early");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "4096", "--metric", "dot"]);
    let mended = npy(600, 4096, |index| index as f32);
    let mut broken = mended.clone();
    let at = broken.len() - 4;
    broken[at..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let file = folder.write("rows.npy", broken);
    let message = refused(&["vectors", "import", &path, &file], 1);
    assert!(message.contains("(512 rows taken; import it again with --replace"), "{message}");
    assert!(message.contains("component 4095 of row 599 is inf") && message.contains("help: mend"), "{message}");
    assert_eq!(records(&path), 512);
    let file = folder.write("rows.npy", mended);
    assert!(refused(&["vectors", "import", &path, &file], 1).contains("help: import with --replace"));
    printed(&["vectors", "import", &path, &file, "--replace"]);
    assert_eq!(records(&path), 600);
}

#[test]
fn searches_that_make_no_sense_are_refused() {
    let folder = Folder::new("bad-search");
    let path = folder.collection(COLOURS);
    for (arguments, code, word) in [
        (&["--vector", "[1, 2]"][..], 1, "holds vectors of 3 components, got 2"),
        (&["--vector", "1, 2, 3"], 2, "expected a JSON list of numbers"),
        (&["--vector", "[1, 2, 1e99]"], 1, "finite"),
        (&["--id", "green"], 1, "no record `green`"),
        (&["--id", "red", "--k", "0"], 2, "--k: expected 1 to"),
        (&["--id", "red", "--nprobe", "0"], 2, "--nprobe: expected 1 to"),
        (&["--id", "red", "--device", "abacus"], 2, "--device: expected"),
        (&["--id", "red", "--device", "cpu:77"], 2, "--device: expected one of cpu:0"),
        (&["--id", "red", "--vector", "[1, 2, 3]"], 2, "cannot be used with"),
        (&[], 2, "required"),
    ] {
        let message = refused(&[&["vectors", "search", &path], arguments].concat(), code);
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
    let output = run(&["vectors", "search", &path, "--id", "red", "--nprobe", "2"]);
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && warning.starts_with("warning: --nprobe: there is no index"), "{warning}");
    assert!(refused(&["vectors", "tune", &path, "--lists", "0"], 2).contains("--lists: expected 1 to 1048576, got 0"));
    let message = refused(&["vectors", "create", &path, "--dimension", "3"], 1);
    assert!(message.contains("exists already"), "{message}");
    assert!(refused(&["vectors", "create", "x", "--dimension", "0"], 2).contains("--dimension: expected 1 to"));
    assert!(refused(&["vectors", "create", "x", "--dimension", "3", "--metric", "near"], 2).contains("one of dot"));
    let message = refused(&["vectors", "delete", &folder.path("."), "--yes"], 1);
    assert!(message.contains("does not hold a vector collection"), "{message}");
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let folder = Folder::new("pipe");
    let path = folder.collection(COLOURS);
    for arguments in [&["vectors", "export", &path, "-"][..], &["vectors", "search", &path, "--id", "red"]] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{arguments:?}");
    }
}

/// The import reads from a pipe that stays open, so that it is still in progress when the signal
/// comes.
#[cfg(unix)]
#[test]
fn ctrl_c_during_an_import_leaves_what_was_taken() {
    let folder = Folder::new("interrupt");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "4096", "--metric", "dot"]);
    let pipe = folder.path("pipe.jsonl");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = command(&["vectors", "import", &path, &pipe]).stderr(Stdio::piped()).spawn().unwrap();
    let mut feed = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    let vector = vec!["1"; 4096].join(",");
    // A batch has 512 rows at this dimension. Two batches are taken and the third is incomplete.
    for row in 0..1100 {
        writeln!(feed, "{{\"id\": \"{row}\", \"vector\": [{vector}]}}").unwrap();
    }
    feed.flush().unwrap();
    let log = Path::new(&path);
    let bytes_now = || -> u64 {
        let files = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        files.sum()
    };
    while bytes_now() < 1024 * 4096 * 4 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(feed);
    let mut complaint = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut complaint).unwrap();
    let rows = complaint.split("interrupted; ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let said: u64 = rows.replace(',', "").parse().unwrap();
    assert!(complaint.contains("are committed and durable; --replace takes them again"), "{complaint}");
    let there = records(&path);
    assert!(there == said && there >= 512 && there.is_multiple_of(512), "{there} records, {said} said");
    printed(&["vectors", "info", &path, "--verify"]);
}

#[test]
fn records_are_shown_counted_listed_and_updated() {
    let folder = Folder::new("records");
    let path = folder.collection(COLOURS);
    let got = json_of(&["vectors", "get", &path, "red", "green", "--json"]);
    assert_eq!(
        got["records"],
        json!([{"id": "red", "vector": [1.0, 0.0, 0.0], "metadata": {"warm": true, "rank": 1}}])
    );
    assert_eq!(got["missing"], json!(["green"]));
    let missing = run(&["vectors", "get", &path, "red", "green"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8(missing.stdout).unwrap().contains("[1, 0, 0]"));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("there is no record green"));
    assert_eq!(printed(&["vectors", "count", &path]), "4 records\n");
    assert_eq!(json_of(&["vectors", "count", &path, "--filter", "warm = true", "--json"])["records"], 2);
    assert_eq!(printed(&["vectors", "ids", &path]), "black\nblue\norange\nred\n");
    let page = json_of(&["vectors", "ids", &path, "--after", "black", "--limit", "2", "--json"]);
    assert_eq!(page, json!({"ids": ["blue", "orange"], "next": "orange"}));
    assert_eq!(printed(&["vectors", "ids", &path, "--filter", "rank >= 2"]), "blue\norange\n");
    printed(&["vectors", "update", &path, "red", "--metadata", "{\"rank\": 9}"]);
    printed(&["vectors", "update", &path, "blue", "--vector", "[0, 0.5, 1]", "--json"]);
    let got = json_of(&["vectors", "get", &path, "red", "blue", "--json"]);
    assert_eq!(got["records"][0], json!({"id": "red", "vector": [1.0, 0.0, 0.0], "metadata": {"rank": 9}}));
    assert_eq!(got["records"][1]["vector"], json!([0.0, 0.5, 1.0]));
    assert!(refused(&["vectors", "update", &path, "red"], 2).contains("required"));
    assert!(refused(&["vectors", "update", &path, "red", "--metadata", "[1]"], 2).contains("expected a JSON object"));
    assert!(refused(&["vectors", "update", &path, "pink", "--metadata", "null"], 1).contains("no record `pink`"));
    assert_eq!(printed(&["vectors", "delete", &path, "--filter", "rank = 9"]), "1 record deleted; 3 records left.\n");
    let compacted = json_of(&["vectors", "compact", &path, "--json"]);
    assert!(compacted["rows_reclaimed"].as_u64().unwrap() >= 1, "{compacted}");
    let copy = folder.path("copy");
    assert_eq!(json_of(&["vectors", "snapshot", &path, &copy, "--json"])["records"], 3);
    assert_eq!(records(&copy), 3);
    assert!(refused(&["vectors", "snapshot", &path, &copy], 1).contains("exists already"));
}

#[test]
fn hits_are_ranked_again_paged_and_bounded() {
    let folder = Folder::new("pages");
    let path = folder.path("collection");
    printed(&["vectors", "create", &path, "--dimension", "1", "--metric", "euclidean"]);
    let lines: String = (0..50).map(|row| format!("{{\"id\": \"{row}\", \"vector\": [{row}]}}\n")).collect();
    let mut child = command(&["vectors", "import", &path, "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let imported: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), imported["rows"].as_u64()), (Some(0), Some(50)));
    let search = |more: &[&str]| {
        let found = json_of(&[&["vectors", "search", &path, "--vector", "[0]", "--json"], more].concat());
        ids(&found["results"][0]).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(search(&["-k", "3", "--rerank"]), ["0", "1", "2"]);
    assert_eq!(search(&["-k", "2", "--rerank", "8", "--offset", "4"]), ["4", "5"]);
    assert_eq!(search(&["-k", "40", "--within", "2.5"]), ["0", "1", "2"]);
    assert_eq!(
        json_of(&["vectors", "search", &path, "--id", "7", "-k", "2", "--offset", "2", "--json"])["results"][0]["hits"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert!(
        refused(&["vectors", "search", &path, "--vector", "[0]", "--rerank", "0"], 2)
            .contains("--rerank: expected 1 to")
    );
    assert!(
        refused(&["vectors", "import", &path, "-", "--format", "parquet"], 1).contains("cannot be read from a stream")
    );
    assert!(refused(&["vectors", "import", &path, "-", "--format", "xml"], 2).contains("--format"));
}

/// Regression: a search had to wait until an import had ended.
#[cfg(unix)]
#[test]
fn a_collection_is_searched_while_another_process_writes() {
    let folder = Folder::new("beside");
    let path = folder.collection(COLOURS);
    let import = || {
        let import = &["vectors", "import", &path, "-"];
        let mut child = command(import).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut feed = child.stdin.take().unwrap();
        // An import that did not get the lock has ended before it reads the line.
        let _ = writeln!(feed, "{}", json!({"id": "pink", "vector": [1, 0.7, 0.7]})).and_then(|()| feed.flush());
        (child, feed)
    };
    let (mut child, mut feed) = import();
    // The import has the lock once it has read a line, unless `delete` held the lock when the
    // import tried.
    let start = std::time::Instant::now();
    while run(&["vectors", "delete", &path, "--id", "nothing"]).status.success() {
        assert!(start.elapsed().as_secs() < 20);
        if child.try_wait().unwrap().is_some() {
            (child, feed) = import();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    for arguments in [
        &["vectors", "search", &path, "--id", "red"][..],
        &["vectors", "info", &path, "--verify"],
        &["vectors", "export", &path, "-"],
        &["vectors", "count", &path],
    ] {
        printed(arguments);
    }
    assert!(refused(&["vectors", "delete", &path, "--id", "red"], 1).contains("one writer at a time"));
    drop(feed);
    assert!(child.wait().unwrap().success());
    assert_eq!(records(&path), 5);
}

/// An encrypted collection opens for every command with its key, and for none without it.
#[test]
fn an_encrypted_collection_opens_with_its_key_alone() {
    let folder = Folder::new("encrypted");
    let (path, key, rows) = (folder.path("collection"), folder.path("key"), folder.write("rows.jsonl", COLOURS));
    let keyed = |arguments: &[&str]| printed(&[&["vectors"], arguments, &["--key-file", &key]].concat());
    let made = keyed(&["create", &path, "--dimension", "3", "--metric", "euclidean", "--generate"]);
    assert!(made.contains("encrypted"), "{made}");
    keyed(&["import", &path, &rows]);
    assert!(keyed(&["search", &path, "--vector", "[1, 0, 0]"]).contains("red"));
    keyed(&["tune", &path, "--lists", "2"]);
    keyed(&["update", &path, "blue", "--metadata", r#"{"rank": 9}"#]);
    keyed(&["snapshot", &path, &folder.path("copy")]);
    keyed(&["compact", &path]);
    assert!(keyed(&["info", &path, "--verify"]).contains("4"));
    assert!(keyed(&["repair", &path]).contains("Nothing is damaged"));
    assert!(keyed(&["get", &folder.path("copy"), "blue"]).contains("\"rank\":9"));
    for file in fs::read_dir(&path).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()) {
        assert!(!file.windows(6).any(|window| window == b"orange" || window == b"euclid"));
    }
    let digits = fs::read_to_string(&key).unwrap();
    let count = command(&["vectors", "count", &path]).env("PANOPLY_STORE_KEY", digits.trim()).output().unwrap();
    assert!(count.status.success(), "the environment has the key");
    let without = command(&["vectors", "count", &path]).env_remove("PANOPLY_STORE_KEY").output().unwrap();
    assert!(String::from_utf8(without.stderr).unwrap().contains("there is no key"));
    let wrong =
        command(&["vectors", "count", &path, "--key-env", "MINE"]).env("MINE", "ab".repeat(32)).output().unwrap();
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("does not open"));
    let again =
        refused(&["vectors", "create", &folder.path("other"), "--dimension", "3", "--key-file", &key, "--generate"], 1);
    assert!(again.contains("could not create") && fs::read_to_string(&key).unwrap() == digits, "{again}");
    let both = refused(&["vectors", "count", &path, "--key-file", &key, "--key-env", "MINE"], 2);
    assert!(both.contains("expected one of them"), "{both}");
    keyed(&["delete", &path, "--yes"]);
}

/// Regression: an export to the path of a collection's own file, its key or a store's anchor
/// replaced that file.
#[test]
fn an_export_replaces_neither_the_collection_nor_keys_nor_anchors() {
    let folder = Folder::new("own-files");
    let path = folder.path("collection");
    let key = folder.write("words", "open sesame");
    #[cfg(unix)]
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let keyed = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.args(["--passphrase-file", &key]).env("XDG_STATE_HOME", folder.path("state"));
        command.output().unwrap()
    };
    assert!(keyed(&["vectors", "create", &path, "--dimension", "3"]).status.success());
    let rows = folder.write("rows.jsonl", "{\"id\": \"a\", \"vector\": [1, 0, 0]}\n");
    assert!(keyed(&["vectors", "import", &path, &rows]).status.success());
    fs::create_dir_all(folder.path("state/panoply/stores")).unwrap();
    let anchor = folder.write("state/panoply/stores/anchor.jsonl", "anchor");
    let key_again = folder.path("key.jsonl");
    fs::hard_link(&key, &key_again).unwrap();
    let inside = format!("{path}/copy.jsonl");
    let out = folder.path("out.npy");
    for target in [&inside, &anchor, &key_again] {
        for arguments in [&[target][..], &[&out, &"--records".to_owned(), target]] {
            let arguments: Vec<&str> = arguments.iter().map(|text| text.as_str()).collect();
            let output = keyed(&[&["vectors", "export", &path, "--overwrite"][..], &arguments].concat());
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && complaint.contains("outside of the"), "{target}: {complaint}");
        }
    }
    assert!(!Path::new(&out).exists() && !Path::new(&inside).exists());
    assert_eq!(fs::read(&anchor).unwrap(), b"anchor");
    assert_eq!(fs::read(&key).unwrap(), b"open sesame");
}

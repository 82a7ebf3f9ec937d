//! The final message of every command that writes, when a signal ends it: what is known of its
//! change.
//!
//! The tables name every command that the help lists. A new command fails the test until it is in
//! one of them; one that writes then needs a message of its own.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::models::{RELU, counting};
use crate::store_safety::{full_pipe, signal, told};

/// A command that writes. It is interrupted after its change, when it prints into a full pipe.
struct Writing {
    /// The words of the command and its arguments.
    line: &'static str,
    /// Commands that run before.
    before: &'static [&'static str],
    /// Whether the change was made.
    is_done: fn(&Place) -> bool,
    /// Parts of the final message, of which one must be there.
    told: &'static [&'static str],
}

const SAFE: &[&str] = &["store init safe --key-file key --generate", "store put safe first --key-file key"];
const WORDS: &[&str] = &["vectors create words --dimension 3", "vectors import words rows.jsonl"];
const RECORDED: &[&str] = &["signal record two.wav --packet first"];

const WRITING: &[Writing] = &[
    // Its rows are printed before the file is written, so it never comes to that here.
    Writing {
        line: "bench add/f32/64 --api cpu --seconds 0.01 --plot out",
        before: &[],
        is_done: |place| !place.has("out"),
        told: &["interrupted; nothing was changed"],
    },
    Writing { line: "explain map 64 --api cpu --plot out", before: &[], is_done: has_out, told: ONE_FILE },
    Writing { line: "graph relu.graph --svg out", before: &[], is_done: has_out, told: ONE_FILE },
    Writing {
        line: "vectors create words --dimension 3",
        before: &[],
        is_done: |place| place.records() == Some(0),
        told: &["the new collection is there"],
    },
    Writing {
        line: "vectors import words rows.jsonl",
        before: &["vectors create words --dimension 3"],
        is_done: |place| place.records() == Some(3),
        told: &["3 rows of the file are committed and durable; --replace takes them again"],
    },
    Writing {
        line: "vectors tune words --lists 2 -k 1",
        before: WORDS,
        is_done: |place| !place.info()["index"].is_null(),
        told: &["no record is changed, and the new index is in use"],
    },
    Writing {
        line: "vectors export words out.npy",
        before: WORDS,
        is_done: |place| place.has("out.npy"),
        told: ONE_FILE,
    },
    Writing {
        line: "vectors delete words --id red",
        before: WORDS,
        is_done: |place| place.records() == Some(2),
        told: &["what was to be deleted is deleted"],
    },
    Writing {
        line: "vectors delete words --yes",
        before: WORDS,
        is_done: |place| !place.has("words"),
        told: &["what was to be deleted is deleted"],
    },
    Writing {
        line: "vectors update words red --metadata {\"new\":1}",
        before: WORDS,
        is_done: |place| place.printed("vectors get words red --json").contains("new"),
        told: &["the record is updated"],
    },
    Writing {
        line: "vectors snapshot words copy",
        before: WORDS,
        is_done: |place| place.run("vectors info copy").status.success(),
        told: &["copy is complete"],
    },
    Writing {
        line: "vectors compact words",
        before: &[WORDS[0], WORDS[1], "vectors delete words --id red"],
        is_done: |place| place.info()["dead_rows"] == 0,
        told: &["no record is changed, and the space of deleted ones is free"],
    },
    Writing {
        line: "vectors repair words --apply",
        before: WORDS,
        is_done: |_| true,
        told: &["nothing was repaired", "the collection is repaired"],
    },
    Writing {
        line: "store init safe --key-file key --generate",
        before: &[],
        is_done: |place| place.has("safe/HEAD"),
        told: &["the new store is there"],
    },
    Writing {
        line: "store put safe second --key-file key",
        before: SAFE,
        is_done: Place::has_new_head,
        told: &["1 object stored, the last one `second` of now 7 bytes; nothing else has changed"],
    },
    Writing { line: "store get safe first --to out --key-file key", before: SAFE, is_done: has_out, told: ONE_FILE },
    Writing {
        line: "store repair safe --apply --key-file key",
        before: SAFE,
        is_done: |_| true,
        told: &["nothing was repaired", "the store is repaired"],
    },
    Writing {
        line: "store rotate safe --key-file key --new-key-file other --generate",
        before: SAFE,
        is_done: Place::has_new_head,
        told: &["the store opens with the new key alone"],
    },
    Writing {
        line: "store rm safe first --key-file key",
        before: SAFE,
        is_done: Place::has_new_head,
        told: &["the objects are removed"],
    },
    Writing { line: "signal spectrum two.wav --iq --svg out", before: RECORDED, is_done: has_out, told: ONE_FILE },
    Writing { line: "signal waterfall two.wav --iq --png out", before: RECORDED, is_done: has_out, told: ONE_FILE },
    Writing {
        line: "signal ber --from 0 --to 0 --bits 50000 --svg out",
        before: &[],
        is_done: has_out,
        told: ONE_FILE,
    },
    Writing {
        line: "signal record two.sigmf-meta --packet first",
        before: &[],
        is_done: |place| place.has("two.sigmf-meta"),
        told: &["2 files complete"],
    },
    Writing {
        line: "train --network mlp --device cpu:0 --epochs 1 --save out --curve out.svg --checkpoints kept",
        before: &[],
        is_done: |place| place.has("out.svg"),
        told: &["out is written; out.svg is written; kept has a checkpoint of step"],
    },
    Writing { line: "infer relu.onnx --input x=x.npy --output y=out", before: &[], is_done: has_out, told: ONE_FILE },
    Writing {
        line: "embed counting.onnx --text hello --text world --into words",
        before: &[],
        is_done: |place| place.records() == Some(2),
        told: &["2 rows are committed and durable in words, with the ids `1` to `2`: do not repeat the command"],
    },
];

const ONE_FILE: &[&str] = &["1 file complete"];

fn has_out(place: &Place) -> bool {
    place.has("out")
}

/// Commands that print, and write nothing but scratch folders that they remove.
const READING: &[&str] = &[
    "devices",
    "plan",
    "vectors search",
    "vectors info",
    "vectors get",
    "vectors count",
    "vectors ids",
    "store ls",
    "store cat",
    "store verify",
    "store bench",
    "signal decode",
    "signal realtime",
    "demo",
    "completions",
    "man",
];

/// Options of commands that write. A command that reads has none of them.
const WRITING_OPTIONS: [&str; 15] = [
    "--apply",
    "--boxes",
    "--checkpoints",
    "--curve",
    "--generate",
    "--into",
    "--output",
    "--overwrite",
    "--plot",
    "--png",
    "--replace",
    "--save",
    "--svg",
    "--to ",
    "--yes",
];

/// A folder with the input of the commands, removed at the end.
struct Place {
    path: PathBuf,
    /// The inode of the store's head before the command.
    head: Option<u64>,
}

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("panoply-last-words-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(path.join(name), bytes).unwrap();
        let row = |id: &str| format!("{{\"id\": \"{id}\", \"vector\": [1, {}, 0]}}\n", id.len());
        write("rows.jsonl", ["red", "green", "orange"].map(row).concat().as_bytes());
        write("relu.graph", b"graph relu\ninput x f32 [2]\ny = relu(x)\noutput y\n");
        write("first", b"content");
        write("second", b"content");
        write("relu.onnx", RELU);
        write("counting.onnx", &counting());
        write("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld\n");
        let header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
        let array = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header, &[0; 8]].concat();
        write("x.npy", &array);
        Place { path, head: None }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
        command.args(line.split(' ')).current_dir(&self.path).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.path.join("state")).env("PANOPLY_CACHE", self.path.join("cache"));
        command.env_remove("COLUMNS").env_remove("PANOPLY_CONFIG").env_remove("PANOPLY_STORE_KEY");
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn printed(&self, line: &str) -> String {
        String::from_utf8(self.run(line).stdout).unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    fn info(&self) -> Value {
        serde_json::from_str(&self.printed("vectors info words --json")).unwrap_or_default()
    }

    fn records(&self) -> Option<u64> {
        self.info()["records"].as_u64()
    }

    fn head_now(&self) -> Option<u64> {
        fs::metadata(self.path.join("safe/HEAD")).ok().map(|head| head.ino())
    }

    fn has_new_head(&self) -> bool {
        self.head_now().is_some_and(|now| Some(now) != self.head)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Waits until the process has not run for a while: it waits for its full output.
fn wait_until_quiet(child: &Child) {
    const QUIET: Duration = Duration::from_millis(400);
    // The fields are the state, and the times in user and system mode.
    let busy = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let fields: Vec<String> = stat.rsplit(')').next().unwrap_or("").split(' ').map(str::to_owned).collect();
        fields.get(12..14).map(<[String]>::to_vec)
    };
    let (mut since, mut before) = (Instant::now(), busy());
    while since.elapsed() < QUIET {
        std::thread::sleep(Duration::from_millis(20));
        let now = busy();
        if now != before {
            (since, before) = (Instant::now(), now);
        }
    }
}

/// Runs a command into a full pipe, and interrupts it after its change. Returns the exit code and
/// the final message.
fn interrupted(place: &Place, writing: &Writing) -> (Option<i32>, String) {
    let (_reader, writer) = full_pipe();
    let mut child = place.command(writing.line).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() && !(writing.is_done)(place) {
        assert!(start.elapsed() < Duration::from_secs(300), "`{}` is not done", writing.line);
        std::thread::sleep(Duration::from_millis(5));
    }
    #[cfg(target_os = "linux")]
    while child.try_wait().unwrap().is_none() && !crate::store_safety::listens(child.id()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_until_quiet(&child);
    if child.try_wait().unwrap().is_none() {
        signal(&child, Signal::TERM);
    }
    told(&child.wait_with_output().unwrap())
}

/// Regression: `embed --into` said that nothing was changed when its rows were committed, and a
/// repetition doubled them. `train` did not say which of its files are written.
#[test]
fn a_command_that_writes_says_what_is_known_after_a_signal() {
    for (number, writing) in WRITING.iter().enumerate() {
        let mut place = Place::new(&number.to_string());
        for line in writing.before {
            let output = place.run(line);
            assert!(output.status.success(), "{line}: {output:?}");
        }
        place.head = place.head_now();
        let (code, words) = interrupted(&place, writing);
        let is_told = writing.told.iter().any(|told| words.contains(told));
        assert!(code == Some(143) && is_told, "`{}`: {code:?}: {words}", writing.line);
    }
}

/// The commands without further commands below them, as the help lists them.
fn leaves(place: &Place, words: &str) -> Vec<String> {
    let help = place.printed(&format!("{words} --help").trim_start().replace("  ", " "));
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![words.to_owned()] };
    let names = list.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then_some(name)
    });
    names.flat_map(|name| leaves(place, format!("{words} {name}").trim_start())).collect()
}

#[test]
fn every_command_is_known_to_write_or_to_read() {
    let place = Place::new("commands");
    let all = leaves(&place, "");
    assert!(all.len() > 30 && all.iter().any(|words| words == "vectors import"), "{all:?}");
    let is_of = |line: &str, words: &str| line == words || line.starts_with(&format!("{words} "));
    for words in &all {
        let writes = WRITING.iter().any(|writing| is_of(writing.line, words));
        let reads = READING.contains(&words.as_str());
        assert!(writes != reads, "`{words}` must be in one of the tables WRITING and READING");
        let help = place.printed(&format!("{words} --help"));
        let option = WRITING_OPTIONS.iter().find(|option| reads && help.lines().any(|line| is_option(line, option)));
        assert!(option.is_none(), "`{words}` has {option:?}, so it belongs into the table WRITING");
    }
    let unknown: Vec<&str> = READING.iter().copied().filter(|words| !all.iter().any(|known| known == words)).collect();
    assert!(unknown.is_empty(), "there are no commands {unknown:?}");
}

/// Whether a line of the help describes this option.
fn is_option(line: &str, option: &str) -> bool {
    line.trim_start().starts_with(option)
}

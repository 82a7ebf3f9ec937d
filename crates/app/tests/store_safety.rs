//! `panoply store` under accidents and attacks: signals, files that appear while it runs, links,
//! pipes, weak passphrases.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::store::support::{Folder, private, with_input};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Bytes that do not compress.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..len / 4).flat_map(|_| next().to_le_bytes()).collect()
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn put(folder: &Folder, arguments: &[&str], input: &[u8]) -> Output {
    with_input(folder.command(&Folder::keyed(&[&["put", "safe", "-"], arguments].concat())), input)
}

pub fn told(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A caller that does not know whether an append was made repeats it with the earlier size. The
/// bytes are appended once.
#[test]
fn an_append_at_a_place_is_made_once() {
    let folder = Folder::new("append-at");
    assert!(put(&folder, &["--name", "log"], b"one\n").status.success());
    let append = |at: &str, input: &[u8]| put(&folder, &["--name", "log", "--append", "--at", at], input);
    let content = || folder.bytes(&Folder::keyed(&["cat", "safe", "log"]));
    let first = append("4", b"two\n");
    assert!(first.status.success() && String::from_utf8_lossy(&first.stdout).contains("1 object stored"), "{first:?}");
    let again = append("4", b"two\n");
    assert!(again.status.success() && String::from_utf8_lossy(&again.stdout).contains("Already there"), "{again:?}");
    assert_eq!(content(), b"one\ntwo\n");
    // Other bytes, more, fewer and none, and places beyond the end.
    for (at, input) in
        [("4", &b"owt\n"[..]), ("4", b"two\nmore"), ("4", b"two"), ("4", b""), ("0", b"one\n"), ("9", b"x")]
    {
        let (code, complaint) = told(&append(at, input));
        assert!(code == Some(1) && complaint.contains("nothing was appended"), "{at}: {complaint}");
    }
    assert!(append("0", b"one\ntwo\n").status.success() && append("8", b"").status.success());
    assert_eq!(content(), b"one\ntwo\n");
    // Longer than the piece that is compared at once.
    let long = noise(3_000_000);
    for count in ["objects", "already_there"] {
        let output = put(&folder, &["--name", "log", "--append", "--at", "8", "--json"], &long);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), found[count].as_array().unwrap().len()), (Some(0), 1), "{found}");
        assert_eq!(found[count][0]["bytes"].as_u64(), Some(3_000_008));
    }
    let (code, complaint) = told(&put(&folder, &["--name", "other", "--append", "--at", "0"], b"x"));
    assert!(code == Some(1) && complaint.contains("there is no object `other`"), "{complaint}");
    assert_eq!(told(&put(&folder, &["--name", "log", "--at", "0"], b"x")).0, Some(2), "--at needs --append");
    folder.write("a", "a");
    folder.write("b", "b");
    let several = folder.refused(&Folder::keyed(&["put", "safe", "a", "b", "--append", "--at", "0"]), 2);
    assert!(several.contains("expected one file, got 2 files"), "{several}");
}

/// A full pipe that is never read, as the output of a command that must not end before it is
/// interrupted. A signal sent after the commit then always arrives before the end, however slow the
/// machine is.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    for piece in [&[b' '; 4096][..], b" "] {
        while writer.write(piece).is_ok() {}
    }
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Sends a signal, as soon as `is_due`, to a command that prints into a full pipe. Returns the exit
/// code and the error output.
fn interrupted(mut command: Command, input: &[u8], is_due: impl Fn() -> bool) -> (Option<i32>, String) {
    let (_reader, writer) = full_pipe();
    let mut child = command.stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    while !is_due() && child.try_wait().unwrap().is_none() {}
    if child.try_wait().unwrap().is_none() {
        signal(&child, Signal::INT);
    }
    told(&child.wait_with_output().unwrap())
}

/// In every second round the signal comes when the new head exists, else at any moment before or
/// after.
fn due(round: u64, is_changed: impl Fn() -> bool) -> impl Fn() -> bool {
    let start = Instant::now();
    move || match round % 2 {
        0 => is_changed(),
        _ => start.elapsed() > Duration::from_micros(800 * round),
    }
}

/// Whether a command that a signal ended reported a change. `None` if it reported that the result
/// is unknown, because the disk did not answer for seconds. A command without any output was ended
/// before it handled signals, and has changed nothing.
fn has_said((code, complaint): &(Option<i32>, String), before: &str, after: &str) -> Option<bool> {
    match code {
        None if complaint.is_empty() => Some(false),
        Some(130) if complaint.contains("interrupted; nothing was changed") => Some(false),
        Some(130) if complaint.contains("it is unknown") => None,
        Some(130) if complaint.contains(after) => Some(true),
        Some(130) if complaint.contains(before) => Some(false),
        _ => panic!("{code:?}: {complaint}"),
    }
}

/// A signal during the commit: the command's report agrees with the store afterwards.
#[test]
fn the_last_words_of_an_interrupted_put_are_true() {
    let folder = Folder::new("last-words");
    assert!(put(&folder, &["--name", "log"], b"").status.success());
    let (mut len, mut counts) = (0, [0; 3]);
    for round in 0..40_u64 {
        let head = || fs::metadata(folder.path("safe/HEAD")).map(|metadata| metadata.ino());
        let before = head().unwrap();
        let command = folder.command(&Folder::keyed(&["put", "safe", "-", "--name", "log", "--append"]));
        let end = interrupted(command, b"some", due(round, || head().is_ok_and(|now| now != before)));
        let listed = folder.json(&["ls", "safe"]);
        let len_now = listed["objects"][0]["bytes"].as_u64().unwrap();
        let after = format!("1 object stored, the last one `log` of now {} bytes", len + 4);
        let said = has_said(&end, "0 objects stored; nothing else has changed", &after);
        let is_stored = len_now == len + 4;
        assert!(is_stored || len_now == len, "round {round}: {end:?}");
        assert!(said.is_none_or(|said| said == is_stored), "round {round}: {end:?}");
        assert!(round % 2 == 1 || said != Some(false), "the head was there: {end:?}");
        counts[said.map_or(2, usize::from)] += 1;
        len = len_now;
    }
    println!("not stored, stored, unknown: {counts:?}");
}

/// As above, for the other commands that change a store.
#[test]
fn the_last_words_of_other_commands_are_true() {
    let folder = Folder::new("other-words");
    let head = |store: &str| fs::metadata(folder.path(store).join("HEAD")).map(|metadata| metadata.ino()).ok();
    let opens = |store: &str, key: &str| folder.run(&["ls", store, "--key-file", key]).status.success();
    let mut counts = [[0; 3]; 4];
    // Interrupts a command that replaces the head of `store`, then compares its report with
    // `is_done`.
    let mut judge =
        |kind: usize, round, store: &str, command: &[&str], words: [&str; 2], is_done: &dyn Fn() -> bool| {
            let before = head(store);
            let is_changed = || head(store).is_some_and(|now| Some(now) != before);
            let end = interrupted(folder.command(command), b"", due(round, is_changed));
            let (said, is_done) = (has_said(&end, words[0], words[1]), is_done());
            assert!(said.is_none_or(|said| said == is_done), "{command:?}, round {round}: {end:?}");
            assert!(round % 2 == 1 || said != Some(false), "the head was there: {end:?}");
            counts[kind][said.map_or(2, usize::from)] += 1;
            is_done
        };
    fs::copy(folder.path("safe.key"), folder.path("first.key")).unwrap();
    let mut key = "first.key".to_owned();
    for round in 0..10 {
        let name = format!("object{round}");
        let put = folder.command(&["put", "safe", "-", "--name", &name, "--key-file", &key]);
        assert!(with_input(put, b"x").status.success());
        let list = || String::from_utf8(folder.run(&["ls", "safe", "--key-file", &key]).stdout).unwrap();
        let words = ["nothing was removed", "the objects are removed"];
        judge(0, round, "safe", &["rm", "safe", &name, "--key-file", &key], words, &|| !list().contains(&name));

        let new = format!("key{round}");
        let rotate = ["rotate", "safe", "--key-file", &key, "--new-key-file", &new, "--generate"];
        let words = ["opens with the old key", "opens with the new key alone"];
        let is_new = || folder.path(&new).exists() && opens("safe", &new);
        let is_rotated = judge(1, round, "safe", &rotate, words, &is_new);
        assert_eq!(opens("safe", &key), !is_rotated);
        key = if is_rotated { new } else { key };

        let (store, own) = (format!("store{round}"), format!("own{round}.key"));
        let init = ["init", &store, "--key-file", &own, "--generate"];
        let words = ["there is no new store", "the new store is there"];
        judge(2, round, &store, &init, words, &|| opens(&store, &own));

        let path = folder.path("safe/HEAD");
        let mut bytes = fs::read(&path).unwrap();
        // In both copies of the state, or of the root keys.
        let second = bytes.len() / 2 + 200;
        [200, second].into_iter().for_each(|place| bytes[place] ^= 1);
        fs::write(&path, bytes).unwrap();
        let repair = ["repair", "safe", "--apply", "--key-file", &key];
        let words = ["nothing was repaired", "the store is repaired"];
        judge(3, round, "safe", &repair, words, &|| opens("safe", &key));
        let _ = folder.run(&["repair", "safe", "--apply", "--new-anchor", "--key-file", &key]);
        assert!(opens("safe", &key));
    }
    println!("rm, rotate, init and repair had not changed something, had, or did not know: {counts:?}");
}

/// The output's disk is full: the change counts, and the error says that it does.
#[test]
#[cfg(target_os = "linux")]
fn a_change_that_cannot_be_printed_is_told_nevertheless() {
    let folder = Folder::new("no-output");
    folder.write("file", "content");
    folder.write("words", "open sesame");
    private(&folder.path("words"));
    let unprinted = |arguments: &[&str], told: &str| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = folder.command(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let (code, complaint) = self::told(&output);
        let told = format!("{told}, but this could not be printed: the output could not be written");
        assert!(code == Some(1) && complaint.contains(&told), "{arguments:?}: {code:?} {complaint}");
    };
    let keyed = |arguments: &[&'static str], told| unprinted(&Folder::keyed(arguments), told);
    keyed(&["put", "safe", "file"], "1 object stored, the last one `file` of now 7 bytes");
    keyed(&["put", "safe", "file", "--append", "--json"], "1 object stored, the last one `file` of now 14 bytes");
    keyed(&["put", "safe", "file", "--append", "--at", "7"], "`file` had these bytes before");
    assert_eq!(folder.json(&["ls", "safe"])["objects"][0]["bytes"].as_u64(), Some(14), "each append counts once");
    keyed(&["get", "safe", "file", "--to", "copy"], "1 file is written");
    keyed(&["get", "safe", "--all", "--to", "copies"], "1 file is written");
    assert!(folder.path("copy").exists() && folder.path("copies/file").exists());
    let head = folder.path("safe/HEAD");
    let mut bytes = fs::read(&head).unwrap();
    let second = bytes.len() / 2 + 200;
    [200, second].into_iter().for_each(|place| bytes[place] ^= 1);
    fs::write(&head, bytes).unwrap();
    keyed(&["repair", "safe", "--apply"], "the store is repaired");
    keyed(&["rm", "safe", "file"], "the objects are removed");
    keyed(&["rotate", "safe", "--new-passphrase-file", "words"], "the store opens with the new key alone");
    unprinted(&["init", "new", "--passphrase-file", "words"], "the new store is there");
    folder.printed(&["ls", "new", "--passphrase-file", "words"]);
    // A reader that closes the pipe early is no error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let put = ["put", "safe", "file", "--passphrase-file", "words"];
    assert!(folder.command(&put).stdout(writer).status().unwrap().success());
    assert!(folder.printed(&["ls", "safe", "--passphrase-file", "words"]).contains("file"));
}

/// The user sets the memory that trying a passphrase takes.
#[test]
fn a_costlier_passphrase_opens_where_it_was_asked_for() {
    let folder = Folder::new("memory");
    folder.write("words", "open sesame");
    private(&folder.path("words"));
    let memory = |command: &str, mib: Option<&str>| {
        let mut arguments = vec![command, "costly", "--passphrase-file", "words"];
        arguments.extend(mib.into_iter().flat_map(|mib| ["--passphrase-memory", mib]));
        told(&folder.run(&arguments))
    };
    assert_eq!(memory("init", Some("300")), (Some(0), String::new()));
    let (code, complaint) = memory("ls", None);
    assert!(code == Some(1) && complaint.contains("--passphrase-memory"), "{complaint}");
    assert_eq!(memory("ls", Some("300")), (Some(0), String::new()));
    for mib in ["0", "2049"] {
        let (code, complaint) = memory("ls", Some(mib));
        assert!(code == Some(2) && complaint.contains("expected 1 to 2048 MiB"), "{complaint}");
    }
}

/// Whether the process has handlers for INT and TERM.
#[cfg(target_os = "linux")]
pub fn listens(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    [Signal::INT, Signal::TERM].iter().all(|signal| caught >> (signal.as_raw() - 1) & 1 == 1)
}

/// Regression: after a signal the process ended with the exit handlers of every loaded library,
/// while other threads were still inside these libraries. Some of these ends were crashes.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_ends_the_process_without_the_exit_handlers_of_libraries() {
    let folder = Folder::new("exit-handlers");
    folder.write("crash.c", "#include <stdlib.h>\n__attribute__((destructor)) static void end(void) { abort(); }\n");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", "crash.so", "crash.c"]).current_dir(folder.path(""));
    if !compiler.status().is_ok_and(|status| status.success()) {
        return println!("skipped: no C compiler");
    }
    let held = File::open(folder.path("safe")).unwrap();
    held.lock().unwrap();
    let mut command = folder.command(&Folder::keyed(&["rm", "safe", "file", "--wait", "3600"]));
    command.env("LD_PRELOAD", folder.path("crash.so")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while !listens(child.id()) {
        assert!(child.try_wait().unwrap().is_none());
    }
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.as_str()), (Some(130), "error: interrupted; nothing was changed\n"));
}

/// Regression: a signal before a command's first change ended it without a message. Here the
/// command waits for the store.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_before_the_first_change_is_answered() {
    let folder = Folder::new("nothing-yet");
    folder.write("file", "content");
    let held = File::open(folder.path("safe")).unwrap();
    held.lock().unwrap();
    for command in [&["put", "safe", "file"][..], &["rm", "safe", "file"], &["ls", "safe"]] {
        for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let command = Folder::keyed(&[command, &["--wait", "3600"]].concat());
            let mut child = folder.command(&command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            while !listens(child.id()) {
                assert!(child.try_wait().unwrap().is_none());
            }
            signal(&child, sent);
            let output = child.wait_with_output().unwrap();
            assert!(output.stdout.is_empty());
            let complaint = "error: interrupted; nothing was changed\n".to_owned();
            assert_eq!(told(&output), (Some(code), complaint), "{command:?}, {sent:?}");
        }
    }
}

/// Each signal has its own exit code in every subcommand, and `nohup` is respected.
#[test]
fn signals_have_their_own_exit_codes() {
    let folder = Folder::new("signals");
    let waiting = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_panoply"), "store"]);
        command.args(Folder::keyed(&["put", "safe", "-", "--name", "endless"])).current_dir(&folder.0);
        command.env("XDG_STATE_HOME", folder.path("state")).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // More bytes than a pipe holds, so the command has begun to read.
        input.write_all(&[7; 3_000_000]).unwrap();
        (child, input)
    };
    let plain = "exec \"$@\"";
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (child, _input) = waiting(plain);
        signal(&child, sent);
        let (got, complaint) = told(&child.wait_with_output().unwrap());
        assert_eq!(got, Some(code), "{sent:?}: {complaint}");
        assert!(complaint.contains("interrupted; 0 objects stored; nothing else has changed"), "{complaint}");
    }
    let (mut child, input) = waiting("trap '' HUP; exec \"$@\"");
    signal(&child, Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "it was begun with HUP ignored");
    drop(input);
    assert!(child.wait().unwrap().success());
    // A command other than `store`.
    let mut bench = Command::new(env!("CARGO_BIN_EXE_panoply"));
    let arguments = ["bench", "add/", "--json", "--seconds", "5"];
    let mut bench = bench.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let _ = bench.stdout.as_mut().unwrap().read(&mut [0]).unwrap();
    signal(&bench, Signal::TERM);
    assert_eq!(bench.wait().unwrap().code(), Some(143));
}

/// Regression: the name was checked when the command began, and given by a call that replaces any
/// file of this name.
#[test]
fn a_file_that_appears_while_an_object_is_read_stays() {
    let folder = Folder::new("meanwhile");
    assert!(put(&folder, &["--name", "big"], &noise(48 << 20)).status.success());
    let mut hits = 0;
    for delay_ms in (0..240).step_by(20) {
        let arguments = Folder::keyed(&["get", "safe", "big", "--to", "out"]);
        let child = folder.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        let made = File::create_new(folder.path("out")).and_then(|mut file| file.write_all(b"theirs"));
        let (code, complaint) = told(&child.wait_with_output().unwrap());
        match made {
            Ok(()) => {
                let is_theirs = fs::read(folder.path("out")).unwrap() == b"theirs";
                assert!(is_theirs, "replaced after {delay_ms} ms: {complaint}");
                assert!(code == Some(1) && complaint.contains("exists already"), "{complaint}");
                hits += usize::from(complaint.contains("meanwhile"));
            }
            Err(_) => assert_eq!((code, fs::metadata(folder.path("out")).unwrap().len()), (Some(0), 48 << 20)),
        }
        fs::remove_file(folder.path("out")).unwrap();
    }
    println!("{hits} files appeared while the object was read");
    // A dangling link also takes the name.
    symlink("nowhere", folder.path("out")).unwrap();
    let refused = folder.refused(&Folder::keyed(&["get", "safe", "big", "--to", "out", "--range", "0..9"]), 1);
    assert!(refused.contains("exists already") && !folder.path("nowhere").exists(), "{refused}");
}

#[test]
fn no_link_inside_the_target_is_followed() {
    let folder = Folder::new("links-inside");
    folder.write("letters/first.txt", "meet me at noon");
    folder.write("letters/deep/second.txt", "at the bridge");
    folder.printed(&Folder::keyed(&["put", "safe", "letters"]));
    fs::create_dir_all(folder.path("outside")).unwrap();
    fs::create_dir_all(folder.path("copy")).unwrap();
    let get = |more: &[&str]| folder.run(&Folder::keyed(&[&["get", "safe", "--all", "--to", "copy"], more].concat()));
    for more in [&[][..], &["--overwrite"]] {
        symlink("../outside", folder.path("copy/letters")).unwrap();
        let (code, complaint) = told(&get(more));
        assert!(code == Some(1) && complaint.contains("links are not followed"), "{complaint}");
        assert_eq!(names(&folder.path("outside")), [""; 0], "nothing was written there");
        fs::remove_file(folder.path("copy/letters")).unwrap();
        let _ = fs::remove_dir_all(folder.path("copy/letters"));
    }
    // The link itself is replaced, and only with `--overwrite`.
    folder.write("outside/first.txt", "theirs");
    fs::create_dir_all(folder.path("copy/letters")).unwrap();
    symlink("../../outside/first.txt", folder.path("copy/letters/first.txt")).unwrap();
    assert!(told(&get(&[])).1.contains("exists already"));
    assert!(get(&["--overwrite"]).status.success());
    assert_eq!(fs::read(folder.path("outside/first.txt")).unwrap(), b"theirs");
    assert_eq!(fs::read(folder.path("copy/letters/first.txt")).unwrap(), b"meet me at noon");
    // The target folder is the user's own argument, so it may be a link.
    symlink("real", folder.path("linked")).unwrap();
    fs::create_dir(folder.path("real")).unwrap();
    folder.printed(&Folder::keyed(&["get", "safe", "--all", "--to", "linked"]));
    assert_eq!(fs::read(folder.path("real/letters/deep/second.txt")).unwrap(), b"at the bridge");
}

#[test]
fn neither_the_key_nor_the_anchor_nor_the_store_is_written_to() {
    let folder = Folder::new("own-files");
    assert!(put(&folder, &["--name", "safe.key"], b"no key").status.success());
    assert!(put(&folder, &["--name", "object"], b"no anchor").status.success());
    let key = fs::read(folder.path("safe.key")).unwrap();
    fs::hard_link(folder.path("safe.key"), folder.path("second-name")).unwrap();
    symlink(folder.path("state/panoply"), folder.path("way")).unwrap();
    let anchor = format!("state/panoply/stores/{}", names(&folder.path("state/panoply/stores"))[0]);
    let other_anchor = anchor.replace("state/panoply", "way");
    for target in ["safe.key", "./safe.key", "second-name", &anchor, &other_anchor, "safe/HEAD", "new/../safe/data/x"] {
        let arguments = ["get", "safe", "object", "--overwrite", "--to", target];
        let refused = folder.refused(&Folder::keyed(&arguments), 2);
        assert!(refused.contains("expected a place outside of the "), "{target}: {refused}");
    }
    let refused = folder.refused(&Folder::keyed(&["get", "safe", "--all", "--overwrite", "--to", "."]), 2);
    assert!(refused.contains("outside of the store's key"), "{refused}");
    assert!(!folder.path("object").exists(), "nothing was written");
    let refused =
        folder.refused(&Folder::keyed(&["get", "safe", "object", "--overwrite", "--to", "own", "--anchor", "own"]), 2);
    assert!(refused.contains("outside of the store's anchor"), "{refused}");
    assert_eq!(fs::read(folder.path("safe.key")).unwrap(), key);
    folder.printed(&Folder::keyed(&["verify", "safe"]));
    // A new store's anchor replaces no file that is not an anchor.
    folder.write("precious", "precious");
    for file in ["precious", "new.key", "safe.key"] {
        let refused = folder.refused(&["init", "other", "--key-file", "new.key", "--generate", "--anchor", file], 2);
        assert!(refused.contains("--anchor: expected"), "{refused}");
    }
    assert!(!folder.path("other").exists() && !folder.path("new.key").exists());
    assert_eq!(fs::read(folder.path("precious")).unwrap(), b"precious");
}

/// `kill -9` during `get` leaves no file. The next command removes the files that older commands
/// left.
#[test]
fn a_killed_command_leaves_no_plain_text() {
    let folder = Folder::new("killed");
    assert!(put(&folder, &["--name", "big"], &noise(48 << 20)).status.success());
    fs::create_dir(folder.path("there")).unwrap();
    let arguments = Folder::keyed(&["get", "safe", "big", "--to", "there/out"]);
    for delay_ms in (0..200).step_by(20) {
        let mut child = folder.command(&arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        for name in names(&folder.path("there")) {
            let path = folder.path("there").join(&name);
            assert_eq!((name.as_str(), fs::metadata(&path).unwrap().len()), ("out", 48 << 20), "after {delay_ms} ms");
            fs::remove_file(path).unwrap();
        }
    }
    folder.write("there/out.panoply-1-0.partial", "secret");
    let held = File::create(folder.path("there/out.panoply-1-1.partial")).unwrap();
    held.lock().unwrap();
    folder.printed(&arguments);
    assert_eq!(names(&folder.path("there")), ["out", "out.panoply-1-1.partial"]);
}

/// The output of a password manager is read from a pipe.
#[test]
fn keys_come_through_pipes() {
    let folder = Folder::new("pipes");
    assert!(put(&folder, &["--name", "a"], b"a").status.success());
    let run = |line: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", line, "bash", env!("CARGO_BIN_EXE_panoply")]).current_dir(&folder.0);
        command.env("XDG_STATE_HOME", folder.path("state")).output()
    };
    let Ok(output) = run("$1 store cat safe a --key-file <(cat safe.key)") else {
        println!("skipped: there is no bash");
        return;
    };
    assert_eq!((&output.stdout[..], told(&output)), (&b"a"[..], (Some(0), String::new())));
    // A slow writer, a writer that has ended already, the standard input, and a named pipe.
    for line in [
        "$1 store cat safe a --key-file <(head -c 10 safe.key; sleep 0.3; tail -c +11 safe.key)",
        "exec 9< <(cat safe.key); sleep 0.3; $1 store cat safe a --key-file /dev/fd/9",
        "cat safe.key | $1 store cat safe a --key-file /dev/stdin",
        "mkfifo -m 600 named; (sleep 0.3; cat safe.key > named) & $1 store cat safe a --key-file named",
    ] {
        let output = run(line).unwrap();
        assert_eq!((&output.stdout[..], told(&output)), (&b"a"[..], (Some(0), String::new())), "{line}");
    }
    for (line, reason) in [
        ("$1 store cat safe a --key-file <(true)", "64 hexadecimal digits"),
        ("$1 store cat safe a --key-file <(yes)", "expected a shorter file"),
        ("$1 store cat safe a --key-file /dev/null", "expected a regular file or a pipe"),
        ("$1 store cat safe a --key-file .", "expected a regular file or a pipe"),
        ("mkfifo -m 644 open; $1 store cat safe a --key-file open", "can be read or written by others"),
    ] {
        let start = Instant::now();
        let (code, complaint) = told(&run(line).unwrap());
        assert!(code == Some(1) && complaint.contains(reason), "{line}: {complaint}");
        assert!(start.elapsed() < Duration::from_secs(20), "{line} waited");
    }
    let output = run("$1 store init other --passphrase-file <(echo open sesame)").unwrap();
    assert!(output.status.success(), "{output:?}");
    folder.write("words", "open sesame");
    private(&folder.path("words"));
    folder.printed(&["ls", "other", "--passphrase-file", "words"]);
}

#[test]
fn what_is_left_out_of_a_folder_is_told() {
    let folder = Folder::new("left-out");
    folder.write("letters/first.txt", "dear");
    fs::create_dir_all(folder.path("letters/empty/inner")).unwrap();
    symlink("first.txt", folder.path("letters/link")).unwrap();
    symlink("/", folder.path("letters/up")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path("letters/pipe")).status().unwrap().success());
    let output = folder.run(&Folder::keyed(&["put", "safe", "letters", "--json"]));
    let (code, warning) = told(&output);
    assert_eq!(code, Some(0), "{warning}");
    assert!(warning.contains("2 links and 1 empty folder and 1 special file are left out"), "{warning}");
    for name in ["letters/empty/inner", "letters/link", "letters/up", "letters/pipe"] {
        assert!(warning.contains(name), "{name}: {warning}");
    }
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = &found["left_out"];
    assert_eq!((left["links"].as_u64(), left["empty_folders"].as_u64()), (Some(2), Some(1)), "{found}");
    assert_eq!((left["special_files"].as_u64(), left["names"].as_array().unwrap().len()), (Some(1), 4));
    assert_eq!(found["objects"].as_array().unwrap().len(), 1);
    fs::create_dir(folder.path("nothing")).unwrap();
    let (code, warning) = told(&folder.run(&Folder::keyed(&["put", "safe", "nothing"])));
    assert!(code == Some(0) && warning.contains("1 empty folder is left out"), "{warning}");
}

#[test]
fn weak_passphrases_need_a_word_more() {
    let folder = Folder::new("weak");
    let mut words: Vec<(&str, &str)> = vec![("short", "a"), ("same", "aaaaaaaaaaaa"), ("good", "open sesame")];
    for (name, text) in &words {
        folder.write(name, text);
        private(&folder.path(name));
    }
    words.pop();
    for (name, _) in &words {
        let refused = folder.refused(&["init", "other", "--passphrase-file", name], 1);
        assert!(refused.contains("weak") && refused.contains("--weak-passphrase"), "{refused}");
        assert!(!folder.path("other").exists() && !refused.contains("aaa"));
        let refused = folder.refused(&Folder::keyed(&["rotate", "safe", "--new-passphrase-file", name]), 1);
        assert!(refused.contains("weak"), "{refused}");
    }
    folder.printed(&Folder::keyed(&["ls", "safe"]));
    let (code, warning) = told(&folder.run(&["init", "other", "--passphrase-file", "short", "--weak-passphrase"]));
    assert!(code == Some(0) && warning.contains("weak: expected at least 8 characters, got 1"), "{warning}");
    folder.printed(&["ls", "other", "--passphrase-file", "short"]);
    folder.printed(&["rotate", "other", "--passphrase-file", "short", "--new-passphrase-file", "good"]);
}

//! `panoply store` as users run it: as a process, without a terminal.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

pub(crate) mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Folder, private, with_input};

#[test]
fn files_are_stored_listed_read_and_removed() {
    let folder = Folder::new("whole-life");
    let long: Vec<u8> = (0..700_000_u32).flat_map(|number| (number / 3).to_le_bytes()).collect();
    folder.write("letters/first.txt", "meet me at noon");
    folder.write("letters/deep/second.bin", &long);
    folder.write("letters/empty", "");
    let put = folder.json(&["put", "safe", "letters"]);
    assert_eq!((put["objects"].as_array().unwrap().len(), put["bytes"].as_u64()), (3, Some(long.len() as u64 + 15)));
    assert!(put["stored"].as_u64().unwrap() < long.len() as u64 / 2, "it was compressed: {put}");

    let listed = folder.json(&["ls", "safe"]);
    let names: Vec<&str> = listed["objects"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["letters/deep/second.bin", "letters/empty", "letters/first.txt"]);
    assert_eq!(folder.json(&["ls", "safe", "letters/d"])["objects"].as_array().unwrap().len(), 1);
    let table = folder.printed(&Folder::keyed(&["ls", "safe"]));
    assert!(table.contains("letters/first.txt") && table.contains("3 objects: "), "{table}");

    assert_eq!(folder.bytes(&Folder::keyed(&["cat", "safe", "letters/first.txt"])), b"meet me at noon");
    assert_eq!(folder.bytes(&Folder::keyed(&["cat", "safe", "letters/first.txt", "--range", "8..10"])), b"at");
    let second = "letters/deep/second.bin";
    assert!(
        folder.bytes(&Folder::keyed(&["get", "safe", second, "--to", "-", "--range", "1000000.."]))
            == long[1_000_000..]
    );
    folder.printed(&Folder::keyed(&["get", "safe", second]));
    assert!(fs::read(folder.path("second.bin")).unwrap() == long);
    let there = folder.refused(&Folder::keyed(&["get", "safe", second]), 1);
    assert!(there.contains("exists already"), "{there}");
    folder.printed(&Folder::keyed(&["get", "safe", "--all", "--to", "copy"]));
    assert!(fs::read(folder.path("copy/letters/deep/second.bin")).unwrap() == long);
    assert_eq!(fs::read(folder.path("copy/letters/empty")).unwrap(), b"");

    assert_eq!(folder.json(&["verify", "safe"])["intact"].as_u64(), Some(3));
    let removed = folder.printed(&Folder::keyed(&["rm", "safe", "letters/empty", second]));
    assert_eq!(removed, "2 objects removed; 1 object left.\n");
    let unknown = folder.refused(&Folder::keyed(&["rm", "safe", "letters/first.txt", "nothing"]), 1);
    assert!(unknown.contains("there is no object `nothing`"), "{unknown}");
    assert_eq!(folder.json(&["ls", "safe"])["objects"].as_array().unwrap().len(), 1, "all or none");
}

#[test]
fn the_store_itself_is_neither_stored_nor_written_to() {
    let folder = Folder::new("itself");
    folder.write("all/letter.txt", "dear");
    fs::rename(folder.path("safe"), folder.path("all/safe")).unwrap();
    let output = folder.run(&Folder::keyed(&["put", "all/safe", "all"]));
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && warning.contains("is the store itself, and is left out"), "{warning}");
    assert_eq!(folder.json(&["ls", "all/safe"])["objects"].as_array().unwrap().len(), 1);
    let refused = folder.refused(&Folder::keyed(&["get", "all/safe", "--all", "--to", "all/safe/data"]), 2);
    assert!(refused.contains("outside of the store"), "{refused}");
    // The same store by another path has the same anchor.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.path("all"), folder.path("link")).unwrap();
        folder.printed(&Folder::keyed(&["ls", "link/safe"]));
        let anchors = fs::read_dir(folder.path("state/panoply/stores")).unwrap().count();
        assert_eq!(anchors, 3, "of both places so far, and the folder of ids");
        // A link to the store also leads to the same anchor.
        std::os::unix::fs::symlink(folder.path("all/safe"), folder.path("shortcut")).unwrap();
        folder.printed(&Folder::keyed(&["ls", "shortcut"]));
        assert_eq!(fs::read_dir(folder.path("state/panoply/stores")).unwrap().count(), 3);
    }
}

#[test]
fn streams_are_put_and_appended() {
    let folder = Folder::new("streams");
    let put = |arguments: &[&str], input: &[u8]| {
        let output = with_input(folder.command(&Folder::keyed(arguments)), input);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(put(&["put", "safe", "-", "--name", "log"], b"one\n"), (Some(0), String::new()));
    let (code, complaint) = put(&["put", "safe", "-", "--name", "log"], b"two\n");
    assert!(code == Some(1) && complaint.contains("--replace"), "{complaint}");
    assert_eq!(put(&["put", "safe", "-", "--name", "log", "--append"], b"two\n"), (Some(0), String::new()));
    assert_eq!(folder.bytes(&Folder::keyed(&["cat", "safe", "log", "log"])), b"one\ntwo\none\ntwo\n");
    let (code, complaint) = put(&["put", "safe", "-"], b"x");
    assert!(code == Some(2) && complaint.contains("--name"), "{complaint}");
    let (code, complaint) = put(&["put", "safe", "-", "--name", "../escape"], b"x");
    assert!(code == Some(1) && complaint.contains("name of an object"), "{complaint}");
}

#[test]
fn keys_come_from_files_variables_and_passphrases() {
    let folder = Folder::new("keys");
    folder.write("a.txt", "a");
    folder.printed(&Folder::keyed(&["put", "safe", "a.txt"]));
    let digits = fs::read_to_string(folder.path("safe.key")).unwrap();
    let from_variable = folder.command(&["cat", "safe", "a.txt"]).env("PANOPLY_STORE_KEY", digits.trim()).output();
    assert_eq!(from_variable.unwrap().stdout, b"a");
    let own = folder.command(&["cat", "safe", "a.txt", "--key-env", "MINE"]).env("MINE", digits.trim()).output();
    assert_eq!(own.unwrap().stdout, b"a");

    let nobody = folder.refused(&["cat", "safe", "a.txt"], 1);
    assert!(nobody.contains("no terminal") && nobody.contains("--key-file"), "{nobody}");
    let bad = folder.command(&["cat", "safe", "a.txt", "--key-env", "MINE"]).env("MINE", "hunter2").output().unwrap();
    let complaint = String::from_utf8(bad.stderr).unwrap();
    assert!(complaint.contains("64 hexadecimal digits") && !complaint.contains("hunter2"), "{complaint}");

    folder.write("words", "correct horse battery staple\n");
    private(&folder.path("words"));
    folder.printed(&Folder::keyed(&["rotate", "safe", "--new-passphrase-file", "words"]));
    let old = folder.refused(&Folder::keyed(&["ls", "safe"]), 1);
    assert!(old.contains("opens with a passphrase") && old.contains("--passphrase"), "{old}");
    assert_eq!(folder.bytes(&["cat", "safe", "a.txt", "--passphrase-file", "words"]), b"a");
    let wrong = folder.command(&["ls", "safe"]).env("PANOPLY_STORE_PASSPHRASE", "wrong horse").output().unwrap();
    let complaint = String::from_utf8(wrong.stderr).unwrap();
    assert!(complaint.contains("does not open") && !complaint.contains("wrong horse"), "{complaint}");
    let both = folder.refused(&["ls", "safe", "--passphrase-file", "words", "--key-file", "safe.key"], 2);
    assert!(both.contains("cannot be used with"), "{both}");
}

#[test]
#[cfg(unix)]
fn a_key_file_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("exposed");
    assert_eq!(folder.path("safe.key").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for mode in [0o640, 0o604, 0o620, 0o666] {
        fs::set_permissions(folder.path("safe.key"), fs::Permissions::from_mode(mode)).unwrap();
        let refused = folder.refused(&Folder::keyed(&["ls", "safe"]), 1);
        assert!(refused.contains("can be read or written by others") && refused.contains("chmod 600"), "{refused}");
    }
    private(&folder.path("safe.key"));
    folder.printed(&Folder::keyed(&["ls", "safe"]));
    let again = folder.refused(&["init", "other", "--key-file", "safe.key", "--generate"], 1);
    assert!(again.contains("could not create") && !folder.path("other").exists(), "{again}");
}

#[test]
fn damage_and_older_copies_are_told() {
    let folder = Folder::new("damage");
    folder.write("a.txt", "a".repeat(1000));
    folder.printed(&Folder::keyed(&["put", "safe", "a.txt"]));
    copy(&folder.path("safe"), &folder.path("old"));
    folder.write("b.txt", "b");
    folder.printed(&Folder::keyed(&["put", "safe", "b.txt"]));
    let mut data = fs::read_dir(folder.path("old/data")).unwrap().map(|entry| entry.unwrap().file_name());
    let file = data.find(|file| file != "KEYS").unwrap();
    let file = folder.path("safe/data").join(file);
    let whole = fs::read(&file).unwrap();
    let mut altered = whole.clone();
    altered[60] ^= 4;
    fs::write(&file, altered).unwrap();
    let output = folder.run(&Folder::keyed(&["verify", "safe", "--json"]));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), found["intact"].as_u64()), (Some(1), Some(1)));
    assert_eq!(found["damaged"][0]["name"].as_str(), Some("a.txt"));
    let refused = folder.refused(&Folder::keyed(&["cat", "safe", "a.txt"]), 1);
    assert!(refused.contains("is damaged") && refused.contains("store verify"), "{refused}");
    let refused = folder.refused(&Folder::keyed(&["get", "safe", "a.txt", "--to", "out.txt"]), 1);
    assert!(refused.contains("was not written") && !folder.path("out.txt").exists(), "{refused}");
    fs::write(&file, whole).unwrap();

    fs::remove_dir_all(folder.path("safe")).unwrap();
    copy(&folder.path("old"), &folder.path("safe"));
    let refused = folder.refused(&Folder::keyed(&["ls", "safe"]), 1);
    assert!(refused.contains("an older copy was put back") && refused.contains("--new-anchor"), "{refused}");
    // Regression: a repair of an older copy ended with success, though the anchor knows of a loss.
    let repair = folder.run(&Folder::keyed(&["repair", "safe"]));
    let complaint = String::from_utf8(repair.stderr).unwrap();
    assert!(repair.status.code() == Some(1) && complaint.contains("does not contain"), "{complaint}");
    folder.printed(&Folder::keyed(&["ls", "safe", "--no-anchor"]));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// `get` writes files that only their owner may read. Names that cannot exist beside each other are
/// refused before any file is written.
#[test]
#[cfg(unix)]
fn files_that_are_read_back_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("modes");
    let long = "n".repeat(250);
    folder.write("letters/first.txt", "meet me at noon");
    folder.write(&format!("letters/{long}"), "long");
    folder.printed(&Folder::keyed(&["put", "safe", "letters"]));
    folder.printed(&Folder::keyed(&["get", "safe", "--all", "--to", "copy/deep"]));
    let mode = |name: &str| fs::metadata(folder.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("copy/deep/letters/first.txt"), mode("copy"), mode("copy/deep/letters")), (0o600, 0o700, 0o700));
    assert_eq!(fs::read(folder.path("copy/deep/letters").join(&long)).unwrap(), b"long");
    for name in ["both", "both/inner"] {
        let output = with_input(folder.command(&Folder::keyed(&["put", "safe", "-", "--name", name])), b"x");
        assert!(output.status.success());
    }
    let refused = folder.refused(&Folder::keyed(&["get", "safe", "--all", "--to", "other"]), 1);
    assert!(refused.contains("`both` and `both/inner` cannot both be files"), "{refused}");
    assert!(!folder.path("other").exists(), "nothing was written");
    folder.printed(&Folder::keyed(&["get", "safe", "both/inner", "--to", "inner"]));
}

/// A store whose head and log are gone is recovered from its data. The anchor still refuses it
/// until the user asks for a new anchor.
#[test]
fn a_store_is_repaired_from_its_data() {
    let folder = Folder::new("repair");
    folder.write("a.txt", "meet me at noon");
    folder.printed(&Folder::keyed(&["put", "safe", "a.txt"]));
    let whole = folder.printed(&Folder::keyed(&["repair", "safe"]));
    assert!(whole.contains("are in order") && whole.contains("1 object"), "{whole}");
    // A damaged copy of two is reported, and loses nothing.
    let head = fs::read(folder.path("safe/HEAD")).unwrap();
    let mut altered = head.clone();
    altered[100] ^= 1;
    fs::write(folder.path("safe/HEAD"), altered).unwrap();
    let output = folder.run(&Folder::keyed(&["cat", "safe", "a.txt"]));
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout == b"meet me at noon" && warning.contains("nothing is lost"), "{warning}");

    let files: Vec<PathBuf> = fs::read_dir(folder.path("safe")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.iter().filter(|file| file.is_file()).for_each(|file| fs::remove_file(file).unwrap());
    let refused = folder.refused(&Folder::keyed(&["ls", "safe"]), 1);
    assert!(refused.contains("HEAD is damaged: it is missing") && refused.contains("store repair"), "{refused}");
    let looked = folder.json(&["repair", "safe"]);
    assert_eq!((looked["applied"].as_bool(), looked["objects"].as_u64()), (Some(false), Some(1)), "{looked}");
    // The store is repaired, but the anchor refuses it: that is no success.
    let repaired = folder.run(&Folder::keyed(&["repair", "safe", "--apply"]));
    let told = String::from_utf8(repaired.stdout).unwrap();
    assert!(repaired.status.code() == Some(1) && told.contains("1 object is saved"), "{told}");
    assert!(told.contains("Nobody can tell") && told.contains("--new-anchor"), "{told}");
    let refused = folder.refused(&Folder::keyed(&["cat", "safe", "a.txt"]), 1);
    assert!(refused.contains("--new-anchor"), "{refused}");
    folder.printed(&Folder::keyed(&["repair", "safe", "--apply", "--new-anchor"]));
    assert_eq!(folder.bytes(&Folder::keyed(&["cat", "safe", "a.txt"])), b"meet me at noon");
}

/// Regression: a repair that could not save an object ended with success.
#[test]
fn a_repair_that_loses_something_fails_and_names_it() {
    let folder = Folder::new("lossy-repair");
    let repair = |arguments: &[&str]| {
        let output = folder.run(&Folder::keyed(&[&["repair", "safe"], arguments].concat()));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let data = || {
        let names = fs::read_dir(folder.path("safe/data")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = names.filter(|path| path.file_name().unwrap().len() == 64).collect();
        files.sort();
        files
    };
    folder.write("kept", "kept");
    folder.printed(&Folder::keyed(&["put", "safe", "kept"]));
    let kept = data();
    folder.write("gone", "gone");
    folder.printed(&Folder::keyed(&["put", "safe", "gone"]));
    let gone = data().into_iter().find(|file| !kept.contains(file)).unwrap();
    let bytes = fs::read(&gone).unwrap();
    fs::remove_file(&gone).unwrap();
    // Head and log are intact: the object is known, and cannot be recovered.
    for arguments in [&[][..], &["--apply"], &["--json"]] {
        let (code, printed, complaint) = repair(arguments);
        assert!(code == Some(1) && complaint.contains("cannot be saved whole: `gone`"), "{code:?} {complaint}");
        assert!(printed.contains("gone") && !complaint.contains("kept"), "{printed}");
    }
    fs::write(&gone, &bytes).unwrap();
    assert_eq!(repair(&[]).0, Some(0));
    // Head and log are lost. A damaged file then loses the name of its object too.
    let files: Vec<PathBuf> = fs::read_dir(folder.path("safe")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.iter().filter(|file| file.is_file()).for_each(|file| fs::remove_file(file).unwrap());
    assert_eq!(repair(&[]).0, Some(0), "all of it can be saved");
    fs::write(&gone, &bytes[..40]).unwrap();
    let (code, printed, complaint) = repair(&["--json"]);
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, found["files_unreadable"].as_u64(), found["objects"].as_u64()), (Some(1), Some(1), Some(1)));
    assert!(complaint.contains("1 data file cannot be read"), "{complaint}");
    let (code, printed, complaint) = repair(&["--apply", "--new-anchor"]);
    assert!(code == Some(1) && printed.contains("1 object is saved"), "{printed}{complaint}");
    assert_eq!(repair(&[]).0, Some(0), "what is left is in order");
    assert_eq!(folder.bytes(&Folder::keyed(&["cat", "safe", "kept"])), b"kept");
}

/// Regression: an anchor inside of the store was accepted, and an older copy of the folder put it
/// back as well.
#[test]
fn an_anchor_in_the_store_or_in_the_place_of_its_key_is_refused() {
    let folder = Folder::new("anchor-inside");
    for anchor in ["safe/anchor", "safe/HEAD", "safe/../safe/data/abc"] {
        for command in ["ls", "verify", "repair"] {
            let refused = folder.refused(&Folder::keyed(&[command, "safe", "--anchor", anchor]), 2);
            assert!(refused.contains("outside of the store's folder"), "{command} {anchor}: {refused}");
        }
    }
    let inside = ["init", "new", "--anchor", "new/anchor", "--key-file", "new.key", "--generate"];
    assert!(folder.refused(&inside, 2).contains("outside of the store's folder"));
    assert!(!folder.path("new").exists() && !folder.path("new.key").exists());
}

/// The command warns if there is no place for the anchor, or no anchor so far: it cannot notice an
/// older copy then.
#[test]
fn an_anchor_that_is_not_there_is_told() {
    let folder = Folder::new("no-home");
    folder.write("a.txt", "a");
    folder.printed(&Folder::keyed(&["put", "safe", "a.txt"]));
    let told = |arguments: &[&str], home: Option<&str>| {
        let mut command = folder.command(&Folder::keyed(arguments));
        command.env_remove("XDG_STATE_HOME").env_remove("HOME");
        if let Some(home) = home {
            command.env("HOME", folder.path(home));
        }
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"a"[..]));
        String::from_utf8(output.stderr).unwrap()
    };
    let cat = ["cat", "safe", "a.txt"];
    let warning = told(&cat, None);
    assert!(
        warning.contains("a rollback to an older copy of the store cannot be detected")
            && warning.contains("--no-anchor"),
        "{warning}"
    );
    assert_eq!(told(&["cat", "safe", "a.txt", "--no-anchor"], None), "");
    let warning = told(&cat, Some("home"));
    assert!(warning.contains("whether it is an older copy cannot be told"), "{warning}");
    assert_eq!(told(&cat, Some("home")), "", "from now on it can");
    folder.write("file", "no folder");
    assert!(told(&cat, Some("file")).contains("cannot be made"));
}

/// The terminal does not echo a passphrase, and echoes again afterwards, also after Ctrl-C.
#[test]
#[cfg(target_os = "linux")]
fn a_passphrase_is_not_shown_and_the_terminal_is_left_as_it_was() {
    use std::io::Read;
    let folder = Folder::new("terminal");
    let program = env!("CARGO_BIN_EXE_panoply");
    // A shell on a terminal of its own. It prints the command's exit code and the terminal's
    // settings.
    let on_terminal = |arguments: &str, typed: &[(&str, &[u8])]| {
        let line = format!("trap : INT; {program} store {arguments}; echo code $?; stty -a");
        let mut command = Command::new("script");
        command.args(["-qfec", &line, "/dev/null"]).current_dir(&folder.0).env("XDG_STATE_HOME", folder.path("state"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shown = Vec::new();
        for (prompt, text) in typed {
            while !shown.ends_with(prompt.as_bytes()) {
                let mut byte = [0];
                assert_eq!(output.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&shown));
                shown.push(byte[0]);
            }
            input.write_all(text).unwrap();
        }
        output.read_to_end(&mut shown).unwrap();
        child.wait().unwrap();
        Some(String::from_utf8(shown).unwrap())
    };
    let twice: [(&str, &[u8]); 2] = [("New passphrase: ", b"open sesame\n"), ("The same again: ", b"open sesame\n")];
    let Some(shown) = on_terminal("init other --passphrase", &twice) else {
        println!("skipped: there is no `script`, which gives a process a terminal");
        return;
    };
    assert!(shown.contains("code 0") && shown.contains(" echo ") && !shown.contains("sesame"), "{shown}");
    let shown = on_terminal("ls other --passphrase", &[("Passphrase: ", b"\x03")]).unwrap();
    assert!(shown.contains("code 130"), "{shown}");
    assert!(shown.contains(" echo "), "Ctrl-C at the prompt left the terminal silent: {shown}");
    folder.write("words", "open sesame");
    private(&folder.path("words"));
    folder.printed(&["ls", "other", "--passphrase-file", "words"]);
}

/// Ctrl-C in the middle of a stream changes nothing, and the store can be used at once. While the
/// stream lasts, another process is refused.
#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_put_changes_nothing() {
    let folder = Folder::new("interrupt");
    folder.write("a.txt", "a");
    folder.printed(&Folder::keyed(&["put", "safe", "a.txt"]));
    let arguments = Folder::keyed(&["put", "safe", "-", "--name", "endless"]);
    let mut child = folder.command(&arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    (0..200).for_each(|_| input.write_all(&[7; 100_000]).unwrap());
    let refused = folder.refused(&Folder::keyed(&["ls", "safe"]), 1);
    assert!(refused.contains("in use by another process") && refused.contains("--wait"), "{refused}");
    // The process leaves no core dump, and its arguments do not contain the key.
    let pid = child.id();
    let status = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = status.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let key = fs::read(folder.path("safe.key")).unwrap();
    assert!(!arguments.windows(32).any(|window| window == &key[..32]));
    Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{complaint}");
    assert!(complaint.contains("nothing else has changed"), "{complaint}");
    assert_eq!(folder.json(&["ls", "safe"])["objects"].as_array().unwrap().len(), 1);
    folder.write("b.txt", "b");
    folder.printed(&Folder::keyed(&["put", "safe", "b.txt"]));
    assert_eq!(folder.json(&["verify", "safe"])["intact"].as_u64(), Some(2));
    assert_eq!(fs::read_dir(folder.path("safe/data")).unwrap().count(), 3, "what was left over is gone");
}

#[test]
fn a_store_does_not_hold_itself() {
    let folder = Folder::new("own-files");
    let file = fs::read_dir(folder.path("safe")).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    for path in ["safe", "./safe/../safe", &format!("safe/{file}")] {
        assert!(folder.refused(&Folder::keyed(&["put", "safe", path]), 2).contains("outside"), "{path}");
    }
    assert_eq!(folder.json(&["ls", "safe"])["objects"].as_array().unwrap().len(), 0);
}

/// An older HEAD beside a newer log loses no commit: neither opening, nor a repair, nor a new
/// anchor drops one.
#[test]
fn an_older_head_loses_nothing() {
    let folder = Folder::new("older-head");
    let put = |name: &str| {
        folder.write(name, name);
        folder.printed(&Folder::keyed(&["put", "safe", name]));
    };
    put("first");
    fs::copy(folder.path("safe/HEAD"), folder.path("older")).unwrap();
    put("second");
    put("third");
    let count = || {
        let listed = folder.run(&Folder::keyed(&["ls", "safe", "--json"])).stdout;
        serde_json::from_slice::<Value>(&listed).unwrap()["objects"].as_array().unwrap().len()
    };
    let put_back = || fs::copy(folder.path("older"), folder.path("safe/HEAD")).map(drop).unwrap();
    let steps: [(&[&str], usize); 4] = [
        (&["ls", "safe"], 3),
        (&["repair", "safe", "--apply"], 3),
        (&["repair", "safe", "--apply", "--new-anchor"], 3),
        (&["put", "safe", "-", "--name", "more"], 4),
    ];
    for (step, expected) in steps {
        put_back();
        let output = folder.run(&[&Folder::keyed(step)[..], &["--json"]].concat());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{step:?}: {said}");
        assert!(said.contains("is an older copy") && said.contains("the log goes on to generation"), "{said}");
        assert_eq!(count(), expected, "{step:?}");
        // A repair writes the log again, to other files.
        if step[0] == "repair" {
            fs::copy(folder.path("safe/HEAD"), folder.path("older")).unwrap();
            put("again");
            folder.printed(&Folder::keyed(&["rm", "safe", "again"]));
        }
    }
    // `rotate` writes the log again.
    folder.printed(&Folder::keyed(&["rotate", "safe", "--new-key-file", "safe.key"]));
    put("last");
    put_back();
    let output = folder.run(&Folder::keyed(&["put", "safe", "first", "--replace"]));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("store repair"), "{complaint}");
    folder.json(&["repair", "safe", "--apply"]);
    assert_eq!(count(), 5);
}

/// Ctrl-C during a measurement leaves no files.
#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_bench_leaves_nothing() {
    let folder = Folder::new("stopped-bench");
    fs::create_dir(folder.path("there")).unwrap();
    let mut child = folder.command(&["bench", "there", "--mib", "4096"]).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while fs::read_dir(folder.path("there")).unwrap().next().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(folder.path("there")).unwrap().count(), 0);
}

#[test]
fn the_bench_measures_and_leaves_nothing() {
    let folder = Folder::new("bench");
    let printed = folder.printed(&["bench", ".", "--mib", "20", "--json"]);
    let figures: Value = serde_json::from_str(&printed).unwrap();
    for name in ["disk_mb_per_s", "zstd1_mb_per_s", "put_mb_per_s", "get_mb_per_s", "verify_mb_per_s", "put_ratio"] {
        assert!(figures[name].as_f64().unwrap() > 0.0, "{name}: {figures}");
    }
    let stored = figures["stored"].as_u64().unwrap();
    assert!(stored < 18 << 20 && stored > 5 << 20, "half of it is worth compressing: {figures}");
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "the store, its key and the anchor's folder: {left:?}");
}

/// Regression: a warning promised that an older copy will be noticed, beside one that it will not.
#[test]
fn an_anchor_that_cannot_be_written_promises_nothing() {
    let folder = Folder::new("no-anchor-yet");
    let warned = |anchor: &str| {
        let output = folder.run(&Folder::keyed(&["ls", "safe", "--anchor", anchor]));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let warning = warned("missing/anchor");
    assert!(
        warning.contains("a rollback to an older copy of the store cannot be detected")
            && warning.contains("cannot be told\n"),
        "{warning}"
    );
    assert!(!warning.contains("from now on"), "{warning}");
    assert!(warned("anchor").contains("cannot be told; from now on it can\n"));
    assert_eq!(warned("anchor"), "");
}

//! Shared by the tests of `panoply store`: a folder with a store, and the command run in it.
#![allow(dead_code)] // Each test file uses a part of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder of one test's own, removed at its end, with a store and its key.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("panoply-store-app-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        folder.printed(&["init", "safe", "--key-file", "safe.key", "--generate"]);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
    }

    /// `panoply store` in this folder, without the user's own settings and state.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
        command.arg("store").args(arguments).current_dir(&self.0).env("XDG_STATE_HOME", self.path("state"));
        command.env_remove("PANOPLY_STORE_KEY").env_remove("PANOPLY_STORE_PASSPHRASE").env_remove("COLUMNS");
        command.stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn printed(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.bytes(arguments)).unwrap()
    }

    pub fn bytes(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.as_str()), (Some(0), ""), "{arguments:?}");
        output.stdout
    }

    /// Adds the key of the store to the arguments.
    pub fn keyed<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--key-file", "safe.key"]].concat()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.printed(&[&Folder::keyed(arguments)[..], &["--json"]].concat())).unwrap()
    }

    pub fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!((output.status.code(), printed.as_str()), (Some(code), ""), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a command with `input` on its standard input.
pub fn with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Gives only the owner access to a file.
#[cfg(unix)]
pub fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[cfg(not(unix))]
pub fn private(_: &Path) {}

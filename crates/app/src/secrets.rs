//! Secrets in environment variables. They are copied into memory that is wiped, and overwritten in
//! place, so that neither `/proc/PID/environ` nor a child process shows them.
//!
//! A copy does not live as long as the process: the last read that was announced moves it out, and
//! [`wipe_unannounced`] drops all that nothing will read.
//!
//! Concurrency: [`take`] is called first, while the process has one thread; a lock guards the
//! copies.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;

/// The variables with secrets.
pub const STORE_KEY: &str = "PANOPLY_STORE_KEY";
pub const STORE_PASSPHRASE: &str = "PANOPLY_STORE_PASSPHRASE";
/// The options that name further variables with secrets.
const OPTIONS: [&str; 2] = ["--key-env", "--new-key-env"];

/// The secrets that were taken, by the names of their variables.
static TAKEN: Mutex<BTreeMap<String, Secret>> = Mutex::new(BTreeMap::new());

struct Secret {
    text: Zeroizing<Vec<u8>>,
    /// Number of reads that are announced and still to come.
    reads: u32,
}

fn all() -> MutexGuard<'static, BTreeMap<String, Secret>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves the secrets out of the environment: those of the variables above, and of the variables
/// named in the arguments.
pub fn take(arguments: impl Iterator<Item = OsString>) {
    let arguments: Vec<String> = arguments.filter_map(|argument| argument.into_string().ok()).collect();
    let mut names = vec![STORE_KEY.to_owned(), STORE_PASSPHRASE.to_owned()];
    for (place, argument) in arguments.iter().enumerate() {
        let (option, value) = match argument.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (argument.as_str(), arguments.get(place + 1).cloned()),
        };
        names.extend(value.filter(|_| OPTIONS.contains(&option)));
    }
    names.sort();
    names.dedup();
    for name in names {
        take_one(name);
    }
}

/// Announces that the secret of this variable will be read once, or once more.
pub fn announce(name: &str) {
    if let Some(secret) = all().get_mut(name) {
        secret.reads += 1;
    }
}

/// The secret that was in a variable. Unless further reads are announced, this is the only copy.
pub fn taken(name: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut all = all();
    match all.get_mut(name) {
        Some(secret) if secret.reads > 1 => {
            secret.reads -= 1;
            Some(secret.text.clone())
        }
        _ => all.remove(name).map(|secret| secret.text),
    }
}

/// Wipes the secrets of which no read is announced.
pub fn wipe_unannounced() {
    all().retain(|_, secret| secret.reads > 0);
}

/// Whether a variable has a value, in the environment or taken from it.
pub fn is_set(name: &str) -> bool {
    all().contains_key(name) || std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

#[cfg(unix)]
#[allow(unsafe_code)] // Overwrites the environment.
fn take_one(name: String) {
    use std::ffi::{CStr, c_char};
    unsafe extern "C" {
        static environ: *const *mut c_char;
    }
    if name.is_empty() || name.contains('=') {
        return;
    }
    // A name may occur several times; the first occurrence counts, and all are overwritten.
    let mut first: Option<Zeroizing<Vec<u8>>> = None;
    // SAFETY: the environment does not change meanwhile: `main` calls this while there is one
    // thread.
    let mut entry = unsafe { environ };
    // SAFETY: as above; the list ends with a null pointer.
    while !entry.is_null() && !unsafe { *entry }.is_null() {
        // SAFETY: as above; each string of the list ends with a zero byte.
        let (start, text) = unsafe { (*entry, CStr::from_ptr(*entry)) };
        let value = text.to_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(secret) = value.map(|value| Zeroizing::new(value.to_vec())) {
            for place in 0..secret.len() {
                // SAFETY: this many bytes were just read there, and no reference to them is left.
                unsafe { start.add(name.len() + 1 + place).write_volatile(0) };
            }
            first.get_or_insert(secret);
        }
        // SAFETY: the end of the list was not reached.
        entry = unsafe { entry.add(1) };
    }
    let Some(secret) = first else { return };
    // SAFETY: as above; there is one thread.
    unsafe { std::env::remove_var(&name) };
    if !secret.is_empty() {
        all().insert(name, Secret { text: secret, reads: 0 });
    }
}

/// This system's copy of the environment cannot be reached: the secrets stay there.
#[cfg(not(unix))]
fn take_one(_: String) {}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use std::process::Command;

    use super::*;

    /// The test starts this program again with a list of variables that contains a name twice,
    /// which only the raw system call accepts.
    #[allow(unsafe_code)] // Replaces a process.
    #[test]
    fn a_name_that_stands_twice_is_overwritten_twice() {
        use std::ffi::CString;
        use std::os::unix::process::CommandExt;
        if std::env::var_os(TWICE).is_some() {
            let shown = || String::from_utf8_lossy(&std::fs::read("/proc/self/environ").unwrap()).into_owned();
            assert!(shown().contains("one-secret") && shown().contains("two-secret"), "they were there");
            take(["store", "get", "--key-env=OTHER_KEY"].map(OsString::from).into_iter());
            assert!(!shown().contains("secret"), "{}", shown());
            assert_eq!(taken(STORE_KEY).unwrap().as_slice(), b"one-secret");
            assert!(taken("OTHER_KEY").is_none() && std::env::var_os("OTHER_KEY").is_none(), "the first is empty");
            return println!("nothing is left");
        }
        let text = |text: &str| CString::new(text).unwrap();
        let program = std::env::current_exe().unwrap();
        let path = text(program.to_str().unwrap());
        let test = "secrets::tests::a_name_that_stands_twice_is_overwritten_twice";
        let arguments = ["program", test, "--exact", "--nocapture", "--test-threads=1"].map(text);
        let variables = [
            format!("{STORE_KEY}=one-secret"),
            "OTHER_KEY=".to_owned(),
            format!("{TWICE}=1"),
            format!("{STORE_KEY}=two-secret"),
            "OTHER_KEY=three-secret".to_owned(),
        ]
        .map(|variable| text(&variable));
        let mut child = Command::new(&program);
        // SAFETY: between `fork` and `exec` the closure allocates only two short lists.
        unsafe {
            child.pre_exec(move || {
                let list = |texts: &[CString]| {
                    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
                };
                libc::execve(path.as_ptr(), list(&arguments).as_ptr(), list(&variables).as_ptr());
                Err(std::io::Error::last_os_error())
            });
        }
        let child = child.output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("nothing is left"), "{said}");
    }

    #[test]
    fn a_secret_that_nothing_will_read_is_wiped() {
        let names = ["PANOPLY_TEST_READ", "PANOPLY_TEST_UNREAD"];
        for name in names {
            all().insert(name.to_owned(), Secret { text: Zeroizing::new(vec![1]), reads: 0 });
        }
        announce(names[0]);
        wipe_unannounced();
        assert!(is_set(names[0]) && !is_set(names[1]));
        assert!(taken(names[0]).is_some() && all().is_empty());
    }

    const TWICE: &str = "PANOPLY_TEST_TWICE_CHILD";
    const CHILD: &str = "PANOPLY_TEST_SECRETS_CHILD";
    const SECRETS: [(&str, &str); 3] =
        [(STORE_KEY, "0123-first-secret"), (STORE_PASSPHRASE, "second-secret"), ("OTHER_KEY", "third-secret")];

    /// Runs in a process of its own, which starts with the variables set.
    #[test]
    fn no_secret_is_left_in_the_environment() {
        if std::env::var_os(CHILD).is_some() {
            return check_as_child();
        }
        let test = "secrets::tests::no_secret_is_left_in_the_environment";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .envs(SECRETS)
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("nothing is left"), "{said}");
    }

    fn check_as_child() {
        let shown = || String::from_utf8_lossy(&std::fs::read("/proc/self/environ").unwrap()).into_owned();
        assert!(SECRETS.iter().all(|(_, secret)| shown().contains(secret)), "they were there");
        take(["store", "get", "--key-env=OTHER_KEY"].map(OsString::from).into_iter());
        let after = shown();
        for (name, secret) in SECRETS {
            assert!(!after.contains(secret), "{name}");
            assert!(is_set(name) && std::env::var_os(name).is_none());
            // Two keys may come from one variable.
            announce(name);
            announce(name);
            assert_eq!(taken(name).unwrap().as_slice(), secret.as_bytes());
            assert_eq!(taken(name).unwrap().as_slice(), secret.as_bytes());
            assert!(taken(name).is_none() && !is_set(name), "the last read leaves no copy");
        }
        let inherited = Command::new("env").output().unwrap();
        let inherited = String::from_utf8_lossy(&inherited.stdout).into_owned();
        assert!(SECRETS.iter().all(|(_, secret)| !inherited.contains(secret)), "a child process sees none");
        println!("nothing is left");
    }
}

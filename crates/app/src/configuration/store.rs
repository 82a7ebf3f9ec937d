//! Validates the arguments of `panoply store`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use panoply::DeviceId;
use panoply::store::Compression;

use super::{Format, format};
use crate::arguments::store::{
    CatArguments, InitArguments, KeyArguments, NewKeyArguments, PlaceArguments, PutArguments, RmArguments,
    RotateArguments, StoreArguments, StoreBenchArguments, StoreCommand, StoreGetArguments,
};
use crate::failure::Failure;
use crate::store::names;

/// The longest time to wait for another process, in seconds.
const WAIT_SECONDS_MAX: f64 = 86_400.0;
/// The most memory for a passphrase, in MiB.
const PASSPHRASE_MIB_MAX: u32 = 2048;
/// The highest compression level.
const LEVEL_MAX: i32 = 19;
/// The largest amount of data to measure, in MiB.
const BENCH_MIB_MAX: u64 = 1 << 20;

/// The `panoply store` command to run, with its options.
#[derive(Debug)]
pub enum StoreOptions {
    Init(InitOptions),
    Put(PutOptions),
    Get(GetOptions),
    Ls(LsOptions),
    Cat(CatOptions),
    Verify(VerifyOptions),
    Repair(StoreRepairOptions),
    Rotate(RotateOptions),
    Rm(RmOptions),
    Bench(StoreBenchOptions),
}

/// A store, and how it is opened.
#[derive(Debug)]
pub struct StorePlace {
    pub path: PathBuf,
    pub anchor: AnchorPlace,
    pub wait: Duration,
    /// Memory that Argon2id takes for a passphrase; `None`: as usual.
    pub passphrase_memory_mib: Option<u32>,
}

/// The location of the anchor.
#[derive(Debug)]
pub enum AnchorPlace {
    None,
    /// Files in the user's state folder, named after the store's path and after its id.
    StateFolder,
    File(PathBuf),
}

/// The source of a key.
#[derive(Debug)]
pub enum KeySource {
    File(PathBuf),
    Environment(String),
    PassphraseFile(PathBuf),
    PassphraseEnvironment(String),
    /// The terminal asks for the passphrase, twice if it is a new one.
    Terminal,
    /// A new key, which is written to this file.
    Generated(PathBuf),
}

impl KeySource {
    /// Refuses a key from the standard input, which `other` reads as well: one of them would be
    /// empty.
    pub fn expect_no_input(&self, other: &str) -> Result<(), Failure> {
        const INPUT: [&str; 3] = ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
        match self {
            KeySource::File(file) | KeySource::PassphraseFile(file)
                if INPUT.iter().any(|input| file.as_os_str() == *input) =>
            {
                let file = file.display();
                Err(Failure::Usage(format!("{file}: expected another source of the key, since {other} is read there")))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
pub struct InitOptions {
    pub place: StorePlace,
    pub key: KeySource,
    /// Whether a passphrase that is easily guessed is accepted.
    pub weak_passphrase: bool,
    pub compression: Compression,
    pub format: Format,
}

#[derive(Debug)]
pub struct PutOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub source: PutSource,
    pub mode: PutMode,
    pub compression: Compression,
    /// The only device that compresses.
    pub device: Option<DeviceId>,
    /// `None` does not compress.
    pub level: Option<i32>,
    pub format: Format,
}

/// The data to store.
#[derive(Debug)]
pub enum PutSource {
    /// The standard input, under this name.
    Input(String),
    /// One file, under another name.
    Named(PathBuf, String),
    /// Files and folders, under their own names.
    Paths(Vec<PathBuf>),
}

/// The treatment of objects that exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    Refuse,
    Replace,
    Append,
    /// Appends to an object of exactly this many bytes. Does nothing if that append was done
    /// already.
    AppendAt(u64),
}

#[derive(Debug)]
pub struct GetOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub what: ReadSelection,
    pub overwrite: bool,
    /// The only device that decompresses.
    pub device: Option<DeviceId>,
    pub format: Format,
}

/// The objects to read, and where they go.
#[derive(Debug)]
pub enum ReadSelection {
    /// All objects, into a folder.
    All(PathBuf),
    ToFile {
        name: String,
        range: ByteRange,
        file: PathBuf,
    },
    ToOutput {
        name: String,
        range: ByteRange,
    },
}

/// A range of an object's bytes. Without `end` the range ends where the object ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    pub start: u64,
    pub end: Option<u64>,
}

#[derive(Debug)]
pub struct LsOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub prefix: String,
    pub format: Format,
}

#[derive(Debug)]
pub struct CatOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub names: Vec<String>,
    pub range: ByteRange,
}

#[derive(Debug)]
pub struct VerifyOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub format: Format,
}

#[derive(Debug)]
pub struct StoreRepairOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub apply: bool,
    pub new_anchor: bool,
    pub format: Format,
}

#[derive(Debug)]
pub struct RotateOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub new_key: KeySource,
    /// Whether a new passphrase that is easily guessed is accepted.
    pub weak_passphrase: bool,
    pub compression: Compression,
    pub format: Format,
}

#[derive(Debug)]
pub struct RmOptions {
    pub place: StorePlace,
    pub key: KeySource,
    pub what: Removed,
    pub format: Format,
}

/// The objects to remove.
#[derive(Debug)]
pub enum Removed {
    Named(Vec<String>),
    /// Every object whose name begins with this text, which is not empty.
    Prefix(String),
}

#[derive(Debug)]
pub struct StoreBenchOptions {
    pub path: PathBuf,
    pub bytes: u64,
    pub format: Format,
}

impl StoreOptions {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: StoreArguments) -> Result<StoreOptions, Failure> {
        Ok(match arguments.command {
            StoreCommand::Init(arguments) => StoreOptions::Init(init(arguments)?),
            StoreCommand::Put(arguments) => StoreOptions::Put(put(arguments)?),
            StoreCommand::Get(arguments) => StoreOptions::Get(get(arguments)?),
            StoreCommand::Ls(arguments) => StoreOptions::Ls(LsOptions {
                place: place(arguments.place)?,
                key: key(arguments.key),
                prefix: arguments.prefix,
                format: format(arguments.json),
            }),
            StoreCommand::Cat(arguments) => StoreOptions::Cat(cat(arguments)?),
            StoreCommand::Verify(arguments) => StoreOptions::Verify(VerifyOptions {
                place: place(arguments.place)?,
                key: key(arguments.key),
                format: format(arguments.json),
            }),
            StoreCommand::Repair(arguments) => StoreOptions::Repair(StoreRepairOptions {
                place: place(arguments.place)?,
                key: key(arguments.key),
                apply: arguments.apply,
                new_anchor: arguments.new_anchor,
                format: format(arguments.json),
            }),
            StoreCommand::Rotate(arguments) => StoreOptions::Rotate(rotate(arguments)?),
            StoreCommand::Rm(arguments) => StoreOptions::Rm(rm(arguments)?),
            StoreCommand::Bench(arguments) => StoreOptions::Bench(bench(arguments)?),
        })
    }
}

fn init(arguments: InitArguments) -> Result<InitOptions, Failure> {
    let InitArguments { place: where_, key: from, generate, weak_passphrase, compression, json } = arguments;
    let (key, compression) = (generated(generate, key(from)), compression_of(&compression));
    Ok(InitOptions { place: place(where_)?, key, weak_passphrase, compression, format: format(json) })
}

fn put(arguments: PutArguments) -> Result<PutOptions, Failure> {
    let PutArguments { place: where_, files, key: from, name, replace, append, at, compression, level, device, json } =
        arguments;
    if !(0..=LEVEL_MAX).contains(&level) {
        return Err(Failure::Usage(format!("--level: expected 0 to {LEVEL_MAX}, got {level}")));
    }
    let source = match (name, files.as_slice()) {
        (Some(name), [file]) if is_stream(file) => PutSource::Input(name),
        (Some(name), [file]) => PutSource::Named(file.clone(), name),
        (Some(_), files) => {
            return Err(Failure::Usage(format!("--name: expected one file beside it, got {}", files.len())));
        }
        (None, files) if files.iter().any(|file| is_stream(file)) => {
            return Err(Failure::Usage("-: expected --name NAME for the standard input, and no other file".to_owned()));
        }
        (None, _) => PutSource::Paths(files),
    };
    let mode = match (replace, append, at) {
        (true, ..) => PutMode::Replace,
        (_, true, Some(at)) => PutMode::AppendAt(at),
        (_, true, None) => PutMode::Append,
        _ => PutMode::Refuse,
    };
    let level = Some(level).filter(|level| *level > 0);
    let key = key(from);
    if matches!(source, PutSource::Input(_)) {
        key.expect_no_input("the object")?;
    }
    let (compression, device) = (compression_of(&compression), device_of(device)?);
    Ok(PutOptions { place: place(where_)?, key, source, mode, compression, device, level, format: format(json) })
}

/// The format of this name. The parser of the command line accepts no other names.
fn compression_of(name: &str) -> Compression {
    Compression::ALL.into_iter().find(|known| known.name() == name).unwrap_or_default()
}

fn device_of(text: Option<String>) -> Result<Option<DeviceId>, Failure> {
    let wrong = |text: &str| Failure::Usage(format!("--device: expected an id such as qat:0, got {text}"));
    text.map(|text| text.parse().map_err(|_| wrong(&text))).transpose()
}

fn get(arguments: StoreGetArguments) -> Result<GetOptions, Failure> {
    let StoreGetArguments { place: where_, name, key: from, all: _, to, range, overwrite, device, json } = arguments;
    let device = device_of(device)?;
    let range = byte_range(range.as_deref())?;
    let what = match (name, to) {
        (None, Some(to)) if is_stream(&to) => {
            return Err(Failure::Usage("--to: expected a folder with --all, got -".to_owned()));
        }
        (None, to) => ReadSelection::All(to.unwrap_or_else(|| PathBuf::from("."))),
        (Some(name), Some(to)) if is_stream(&to) => ReadSelection::ToOutput { name, range },
        (Some(name), Some(file)) => ReadSelection::ToFile { name, range, file },
        (Some(name), None) => {
            let parts = names::parts(&name, cfg!(windows)).map_err(|reason| {
                Failure::Usage(format!("`{name}` is no name of a file here: {reason}; --to names one"))
            })?;
            let file = PathBuf::from(parts.last().copied().unwrap_or_default());
            ReadSelection::ToFile { name, range, file }
        }
    };
    Ok(GetOptions { place: place(where_)?, key: key(from), what, overwrite, device, format: format(json) })
}

fn cat(arguments: CatArguments) -> Result<CatOptions, Failure> {
    let range = byte_range(arguments.range.as_deref())?;
    Ok(CatOptions { place: place(arguments.place)?, key: key(arguments.key), names: arguments.names, range })
}

fn rotate(arguments: RotateArguments) -> Result<RotateOptions, Failure> {
    let RotateArguments { place: where_, key: from, new_key, generate, weak_passphrase, compression, json } = arguments;
    let NewKeyArguments { new_key_file, new_key_env, new_passphrase_file, new_passphrase } = new_key;
    let to = KeyArguments {
        key_file: new_key_file,
        key_env: new_key_env,
        passphrase_file: new_passphrase_file,
        passphrase: new_passphrase,
    };
    let (key, new_key) = (key(from), generated(generate, key(to)));
    if key.expect_no_input("it").is_err() {
        new_key.expect_no_input("the present key")?;
    }
    let compression = compression_of(&compression);
    Ok(RotateOptions { place: place(where_)?, key, new_key, weak_passphrase, compression, format: format(json) })
}

fn rm(arguments: RmArguments) -> Result<RmOptions, Failure> {
    let what = match arguments.prefix {
        None => Removed::Named(arguments.names),
        Some(prefix) if prefix.is_empty() => {
            return Err(Failure::Usage("--prefix: expected the beginning of a name, got an empty text".to_owned()));
        }
        Some(prefix) => Removed::Prefix(prefix),
    };
    Ok(RmOptions { place: place(arguments.place)?, key: key(arguments.key), what, format: format(arguments.json) })
}

fn bench(arguments: StoreBenchArguments) -> Result<StoreBenchOptions, Failure> {
    if !(1..=BENCH_MIB_MAX).contains(&arguments.mib) {
        return Err(Failure::Usage(format!("--mib: expected 1 to {BENCH_MIB_MAX}, got {}", arguments.mib)));
    }
    Ok(StoreBenchOptions { path: arguments.path, bytes: arguments.mib << 20, format: format(arguments.json) })
}

fn place(arguments: PlaceArguments) -> Result<StorePlace, Failure> {
    let PlaceArguments { path, anchor, no_anchor, wait, passphrase_memory } = arguments;
    if !(0.0..=WAIT_SECONDS_MAX).contains(&wait) {
        return Err(Failure::Usage(format!("--wait: expected 0 to {WAIT_SECONDS_MAX} seconds, got {wait}")));
    }
    if let Some(mib) = passphrase_memory.filter(|mib| !(1..=PASSPHRASE_MIB_MAX).contains(mib)) {
        return Err(Failure::Usage(format!("--passphrase-memory: expected 1 to {PASSPHRASE_MIB_MAX} MiB, got {mib}")));
    }
    let anchor = match (anchor, no_anchor) {
        (Some(file), _) => AnchorPlace::File(file),
        (None, true) => AnchorPlace::None,
        (None, false) => AnchorPlace::StateFolder,
    };
    Ok(StorePlace { path, anchor, wait: Duration::from_secs_f64(wait), passphrase_memory_mib: passphrase_memory })
}

/// Returns the key source that the environment gives, else the terminal.
pub fn key_of_environment() -> KeySource {
    key(KeyArguments { key_file: None, key_env: None, passphrase_file: None, passphrase: false })
}

/// Returns the key source from the arguments, else from the environment, else the terminal. The
/// caller must read a secret of the environment once.
pub fn key(arguments: KeyArguments) -> KeySource {
    use crate::secrets::{STORE_KEY as KEY, STORE_PASSPHRASE as PASSPHRASE, announce, is_set};
    let source = match arguments {
        KeyArguments { key_file: Some(file), .. } => KeySource::File(file),
        KeyArguments { key_env: Some(name), .. } => KeySource::Environment(name),
        KeyArguments { passphrase_file: Some(file), .. } => KeySource::PassphraseFile(file),
        KeyArguments { passphrase: true, .. } => KeySource::Terminal,
        _ if is_set(KEY) => KeySource::Environment(KEY.to_owned()),
        _ if is_set(PASSPHRASE) => KeySource::PassphraseEnvironment(PASSPHRASE.to_owned()),
        _ => KeySource::Terminal,
    };
    if let KeySource::Environment(name) | KeySource::PassphraseEnvironment(name) = &source {
        announce(name);
    }
    source
}

pub fn generated(generate: bool, source: KeySource) -> KeySource {
    match source {
        KeySource::File(file) if generate => KeySource::Generated(file),
        source => source,
    }
}

fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn byte_range(text: Option<&str>) -> Result<ByteRange, Failure> {
    let Some(text) = text else { return Ok(ByteRange::default()) };
    let number = |digits: &str, missing: Option<u64>| match digits {
        "" => Some(missing),
        digits => digits.parse().ok().map(Some),
    };
    let parsed = text.split_once("..").and_then(|(start, end)| {
        let (start, end) = (number(start, Some(0))??, number(end, None)?);
        (end.is_none_or(|end| start <= end)).then_some(ByteRange { start, end })
    });
    parsed.ok_or_else(|| {
        Failure::Usage(format!("--range: expected START..END, START.. or ..END with START ≤ END, got {text}"))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        let range = |text| byte_range(Some(text)).ok().map(|range| (range.start, range.end));
        assert_eq!(range("5..9"), Some((5, Some(9))));
        assert_eq!((range("5.."), range("..9"), range("..")), (Some((5, None)), Some((0, Some(9))), Some((0, None))));
        for bad in ["", "5", "9..5", "a..b", "-1..2", "1...2", "1..99999999999999999999"] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}

//! The master key, which opens a store.
//!
//! It is 32 random bytes, or a passphrase from which Argon2id derives 32 bytes. It encrypts only
//! the store's root keys, so it can be replaced without rewriting data. Its bytes lie in memory
//! that is wiped with the last handle, and are never shown.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use panoply_core::Bytes;
use panoply_core::op::crypto::{HashAlgorithm, Key};
use zeroize::{Zeroize, Zeroizing};

use crate::encode::{Fields, from_hex, hex_digits};
use crate::error::{Error, Result};
use crate::pipe;
use crate::randomness::random;
use crate::temporary;

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 32;
/// Maximal length of a passphrase in bytes.
pub const PASSPHRASE_BYTES_MAX: usize = 1024;
/// A passphrase with fewer characters, or with fewer distinct ones, is weak.
pub const PASSPHRASE_CHARACTERS_MIN: usize = 8;
const PASSPHRASE_DISTINCT_MIN: usize = 4;
/// Limits for the Argon2id cost of a store: memory, memory times passes, and lanes. A higher cost
/// is treated as damage.
const MEMORY_KIB_MAX: u32 = 2 << 20;
const WORK_KIB_MAX: u64 = 8 << 20;
const LANES_MAX: u32 = 64;
/// Limit of the work for a head before anything in it is authenticated, unless the owner's options
/// ask for more: four times the default cost. An attacker who alters a head can cause at most this
/// much work.
const UNASKED_MEMORY_KIB_MAX: u32 = 256 << 10;
const UNASKED_WORK_KIB_MAX: u64 = 768 << 10;

const KEY_FORM: &str = "32 bytes, or 64 hexadecimal digits";

/// The key that opens a store.
#[derive(Clone)]
pub struct MasterKey {
    secret: Bytes,
    is_passphrase: bool,
}

/// The cost of deriving a key from a passphrase, for the owner and for an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassphraseCost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes that can be filled in parallel.
    pub lanes: u32,
}

/// Why a passphrase is easily guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Weakness {
    /// It has too few characters.
    #[error("expected at least {PASSPHRASE_CHARACTERS_MIN} characters, got {characters}")]
    Short {
        /// The number of characters.
        characters: usize,
    },
    /// It has too few distinct characters.
    #[error("expected at least {PASSPHRASE_DISTINCT_MIN} different characters, got {distinct}")]
    Monotonous {
        /// The number of distinct characters.
        distinct: usize,
    },
}

impl Default for PassphraseCost {
    /// The second choice of RFC 9106: 64 MiB, three passes, four lanes.
    fn default() -> PassphraseCost {
        PassphraseCost { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl MasterKey {
    /// Makes a random key.
    pub fn generate() -> Result<MasterKey> {
        let bytes = Zeroizing::new(random::<KEY_BYTES>()?);
        MasterKey::of(&bytes[..], false)
    }

    /// A key of 32 bytes. The vector is wiped.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<MasterKey> {
        let bytes = Zeroizing::new(bytes);
        match bytes.len() {
            KEY_BYTES => MasterKey::of(&bytes, false),
            _ => Err(Error::InvalidKey { origin: "the key".to_owned(), expected: "32 bytes" }),
        }
    }

    /// The key in a file that only its owner may read or write: 32 bytes, or 64 hexadecimal digits.
    /// The file may be a pipe, such as the `/dev/fd/63` that a shell makes of `<(…)`.
    pub fn from_file(path: &Path) -> Result<MasterKey> {
        MasterKey::parse(&read_private(path, 2 * KEY_BYTES + 2)?, || path.display().to_string())
    }

    /// The key in an environment variable: 64 hexadecimal digits.
    ///
    /// The variable stays set: `/proc/PID/environ` and child processes show it. Changing the
    /// environment is unsound while other threads may read it, and a library cannot know those
    /// threads. A program that begins with one thread can remove the variable itself and pass its
    /// value to [`MasterKey::from_text`], as the `panoply` command does, or use
    /// [`MasterKey::from_file`].
    pub fn from_environment(name: &str) -> Result<MasterKey> {
        MasterKey::parse(&environment(name)?, || format!("the environment variable {name}"))
    }

    /// The key as text: 64 hexadecimal digits. `origin` names its source in errors.
    pub fn from_text(text: &[u8], origin: &str) -> Result<MasterKey> {
        MasterKey::parse(text, || origin.to_owned())
    }

    /// The passphrase in the first line of a text.
    pub fn passphrase_from_text(text: &[u8]) -> Result<MasterKey> {
        MasterKey::passphrase(first_line(text))
    }

    /// A passphrase of at least one byte. The vector is wiped.
    pub fn passphrase(text: Vec<u8>) -> Result<MasterKey> {
        let text = Zeroizing::new(text);
        match text.len() {
            1..=PASSPHRASE_BYTES_MAX => MasterKey::of(&text, true),
            _ => Err(Error::InvalidKey { origin: "the passphrase".to_owned(), expected: "1 to 1024 bytes" }),
        }
    }

    /// The passphrase in the first line of a file or pipe that only its owner may read or write.
    pub fn passphrase_from_file(path: &Path) -> Result<MasterKey> {
        MasterKey::passphrase(first_line(&read_private(path, PASSPHRASE_BYTES_MAX + 2)?))
    }

    /// The passphrase in an environment variable, which stays set: see
    /// [`MasterKey::from_environment`].
    pub fn passphrase_from_environment(name: &str) -> Result<MasterKey> {
        MasterKey::passphrase(first_line(&environment(name)?))
    }

    /// Why a passphrase is too easily guessed for a new store; `None` for keys and for acceptable
    /// passphrases. Argon2id makes each guess slow, which does not help if few guesses suffice.
    pub fn weakness(&self) -> Option<Weakness> {
        let text = self.secret.as_slice().ok().filter(|_| self.is_passphrase)?;
        let chars = text.utf8_chunks().flat_map(|chunk| chunk.valid().chars());
        let broken = text.utf8_chunks().map(|chunk| chunk.invalid().len()).sum::<usize>();
        let (characters, mut distinct) =
            (chars.clone().count() + broken, Zeroizing::new(Vec::with_capacity(text.len())));
        chars.for_each(|character| {
            if !distinct.contains(&character) {
                distinct.push(character)
            }
        });
        match (characters, distinct.len() + broken) {
            (characters, _) if characters < PASSPHRASE_CHARACTERS_MIN => Some(Weakness::Short { characters }),
            (_, distinct) if distinct < PASSPHRASE_DISTINCT_MIN => Some(Weakness::Monotonous { distinct }),
            _ => None,
        }
    }

    /// Writes a key as hexadecimal digits into a new file that is private to its owner. The file
    /// has its name only once it is complete and durable, so a kill leaves no short key.
    /// Leftovers of killed writers of this file are removed. Passphrases are refused.
    pub fn write_new_file(&self, path: &Path) -> Result<()> {
        if self.is_passphrase {
            return Err(Error::invalid("key to be written", "a key", "a passphrase"));
        }
        temporary::remove_leftovers(path);
        // Allocated at full length: a string that grows leaves copies of the key behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
        text.extend(hex_digits(self.secret.as_slice()?).chain(['\n']));
        temporary::write(path, text.as_bytes(), temporary::rename_new)
    }

    /// The kind of key, for errors.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_passphrase { "a passphrase" } else { "a key" }
    }

    /// The slot of a store that is being locked with this key.
    pub(crate) fn new_slot(&self, cost: PassphraseCost) -> Result<KeySlot> {
        match self.is_passphrase {
            true => cost.params().map(|_| ()).and_then(|()| Ok(KeySlot::Passphrase { cost, salt: random()? })),
            false => Ok(KeySlot::Key),
        }
    }

    /// The secret from which the key for the root keys is derived; `None` if the store needs the
    /// other kind of key.
    pub(crate) fn unlock(&self, slot: &KeySlot) -> Result<Option<Key>> {
        match (slot, self.is_passphrase) {
            (KeySlot::Key, false) => Ok(Some(Key::hkdf(HashAlgorithm::Sha256, self.secret.as_slice()?)?)),
            (KeySlot::Passphrase { cost, salt }, true) => stretched(self.secret.as_slice()?, *cost, salt).map(Some),
            _ => Ok(None),
        }
    }

    fn of(secret: &[u8], is_passphrase: bool) -> Result<MasterKey> {
        Ok(MasterKey { secret: Bytes::secret(secret.to_vec())?, is_passphrase })
    }

    fn parse(text: &[u8], origin: impl Fn() -> String) -> Result<MasterKey> {
        if text.len() == KEY_BYTES {
            return MasterKey::of(text, false);
        }
        match from_hex::<KEY_BYTES>(text.trim_ascii()) {
            Some(bytes) => MasterKey::of(&bytes[..], false),
            None => Err(Error::InvalidKey { origin: origin(), expected: KEY_FORM }),
        }
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_passphrase { "MasterKey(a passphrase)" } else { "MasterKey(a key)" })
    }
}

/// How a store derives a secret from its master key. It is public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySlot {
    Key,
    Passphrase { cost: PassphraseCost, salt: [u8; 16] },
}

impl KeySlot {
    pub(crate) const BYTES: usize = 1 + 3 * 4 + 16;

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            KeySlot::Key => "a key",
            KeySlot::Passphrase { .. } => "a passphrase",
        }
    }

    /// The Argon2id work that the slot asks for, in KiB.
    pub(crate) fn work_kib(&self) -> u64 {
        match self {
            KeySlot::Key => 0,
            KeySlot::Passphrase { cost, .. } => cost.work_kib(),
        }
    }

    /// Refuses a head that asks for more work than both the default limit and the owner's cost.
    /// Work spent on another copy counts too, unless this copy asks for exactly the owner's cost.
    pub(crate) fn expect_cost(&self, path: &Path, asked: PassphraseCost, spent_kib: u64) -> Result<()> {
        let KeySlot::Passphrase { cost, .. } = self else { return Ok(()) };
        let spent_kib = if *cost == asked { 0 } else { spent_kib };
        let memory_kib_max = asked.memory_kib.max(UNASKED_MEMORY_KIB_MAX);
        let work_kib_max = asked.work_kib().max(UNASKED_WORK_KIB_MAX);
        if cost.memory_kib <= memory_kib_max && cost.work_kib() + spent_kib <= work_kib_max {
            return Ok(());
        }
        let text = |memory_kib, work_kib| format!("{memory_kib} KiB, and {work_kib} KiB over all passes");
        let (expected, got) = (text(memory_kib_max, work_kib_max), text(cost.memory_kib, cost.work_kib()));
        Err(Error::CostlyPassphrase { path: path.to_owned(), expected, got })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, cost, salt) = match self {
            KeySlot::Key => (0, PassphraseCost { memory_kib: 0, passes: 0, lanes: 0 }, [0; 16]),
            KeySlot::Passphrase { cost, salt } => (1, *cost, *salt),
        };
        out.push(kind);
        [cost.memory_kib, cost.passes, cost.lanes].iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(salt);
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Option<KeySlot> {
        let kind = fields.u8()?;
        let cost = PassphraseCost { memory_kib: fields.u32()?, passes: fields.u32()?, lanes: fields.u32()? };
        let salt = fields.array()?;
        match kind {
            0 => Some(KeySlot::Key),
            1 if cost.params().is_ok() => Some(KeySlot::Passphrase { cost, salt }),
            _ => None,
        }
    }
}

impl PassphraseCost {
    fn work_kib(self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }

    fn params(self) -> Result<Params> {
        let PassphraseCost { memory_kib, passes, lanes } = self;
        let bounded = memory_kib <= MEMORY_KIB_MAX && self.work_kib() <= WORK_KIB_MAX && lanes <= LANES_MAX;
        let params = Params::new(memory_kib, passes, lanes, Some(KEY_BYTES)).ok().filter(|_| bounded);
        params.ok_or_else(|| {
            let expected = format!(
                "8 KiB for each of at most {LANES_MAX} lanes, at most {MEMORY_KIB_MAX} KiB, and {WORK_KIB_MAX} over all passes"
            );
            Error::invalid("cost of a passphrase", expected, format!("{self:?}"))
        })
    }
}

/// Derives a key from a passphrase with Argon2id. All memory that it used is wiped.
fn stretched(passphrase: &[u8], cost: PassphraseCost, salt: &[u8]) -> Result<Key> {
    let params = cost.params()?;
    let out_of_memory = || {
        let (place, asked) = ("the host".to_owned(), u64::from(cost.memory_kib) << 10);
        Error::Device(panoply_core::Error::OutOfMemory { place, asked, free: 0, largest: 0 })
    };
    let mut blocks: Vec<Block> = Vec::new();
    blocks.try_reserve_exact(params.block_count()).map_err(|_| out_of_memory())?;
    blocks.resize(params.block_count(), Block::default());
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let made = argon2.hash_password_into_with_memory(passphrase, salt, &mut key[..], &mut blocks[..]);
    blocks.iter_mut().for_each(Zeroize::zeroize);
    match made {
        Ok(()) => Ok(Key::hkdf(HashAlgorithm::Sha256, &key[..])?),
        Err(error) => Err(Error::invalid("passphrase", "one that Argon2id takes", error)),
    }
}

fn environment(name: &str) -> Result<Zeroizing<Vec<u8>>> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let missing = || Error::InvalidKey { origin: format!("the environment variable {name}"), expected: "to be set" };
    value.map(|value| Zeroizing::new(value.into_encoded_bytes())).ok_or_else(missing)
}

fn first_line(text: &[u8]) -> Vec<u8> {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line).to_vec()
}

/// Reads a short file or pipe that only its owner may read or write.
fn read_private(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    // Non-blocking: opening a pipe would otherwise wait for its other end without a limit.
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| Error::io("open", path, error))?;
    let metadata = file.metadata().map_err(|error| Error::io("open", path, error))?;
    let bad = |expected| Error::InvalidKey { origin: path.display().to_string(), expected };
    if !metadata.is_file() && !pipe::is_pipe(&metadata) {
        return Err(bad("a regular file or a pipe"));
    }
    expect_private(path, &metadata)?;
    let mut bytes = Zeroizing::new(vec![0; bytes_max + 1]);
    let read =
        if metadata.is_file() { read_up_to(&file, &mut bytes) } else { pipe::read_up_to(path, &file, &mut bytes) };
    let len = read.map_err(|error| Error::io("read", path, error))?;
    if len > bytes_max {
        return Err(bad("a shorter file"));
    }
    bytes[len..].zeroize();
    bytes.truncate(len);
    Ok(bytes)
}

/// Reads until the end or until the buffer is full. Returns the number of bytes.
fn read_up_to(mut file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

#[cfg(unix)]
fn expect_private(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let exposed = |reason: String| Err(Error::ExposedKeyFile { path: path.to_owned(), reason });
    // SAFETY: `geteuid` takes no arguments, changes nothing and cannot fail.
    #[allow(unsafe_code)]
    let user = unsafe { libc::geteuid() };
    match metadata.mode() & 0o777 {
        mode if mode & 0o077 != 0 => exposed(format!("can be read or written by others (mode {mode:03o})")),
        _ if metadata.uid() != user && metadata.uid() != 0 => exposed(format!("belongs to user {}", metadata.uid())),
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn expect_private(_: &Path, _: &std::fs::Metadata) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::encode::hex;

    const CHEAP: PassphraseCost = PassphraseCost { memory_kib: 8, passes: 1, lanes: 1 };

    /// From the reference implementation, through Python's argon2-cffi:
    /// `hash_secret_raw(b"password", b"somesaltsomesalt", 2, 256, 1, 32, Type.ID)`.
    #[test]
    fn a_passphrase_becomes_what_argon2id_makes_of_it() {
        let cost = PassphraseCost { memory_kib: 256, passes: 2, lanes: 1 };
        let key = stretched(b"password", cost, b"somesaltsomesalt").unwrap();
        assert_eq!(
            hex(key.material().as_slice().unwrap()),
            "cab746b4621993fdc91ec50787980b414a90a692f0bc68dfe19f9c25b3cba9ec"
        );
    }

    #[test]
    fn keys_are_read_in_both_forms_and_nothing_else_is_one() {
        let secret = |text: &[u8]| MasterKey::parse(text, || "test".to_owned()).map(|key| key.secret);
        let digits = "0123456789abcdef".repeat(4);
        assert_eq!(secret(format!("{digits}\n").as_bytes()).unwrap().as_slice().unwrap()[..2], [1, 0x23]);
        assert_eq!(secret(&[9; 32]).unwrap().as_slice().unwrap(), [9; 32]);
        for bad in [&[9; 31][..], &[9; 33], &digits.as_bytes()[1..], b"", format!("{digits}00").as_bytes()] {
            let error = secret(bad).unwrap_err();
            assert!(matches!(error, Error::InvalidKey { .. }) && error.to_string().contains("hexadecimal"), "{error}");
        }
        assert_eq!(first_line(b"open sesame\r\nand more"), b"open sesame");
        assert!(MasterKey::passphrase(Vec::new()).is_err() && MasterKey::from_bytes(vec![1; 31]).is_err());
    }

    #[test]
    fn short_and_monotonous_passphrases_are_weak() {
        let weakness = |text: &str| MasterKey::passphrase(text.as_bytes().to_vec()).unwrap().weakness();
        assert_eq!(weakness("a"), Some(Weakness::Short { characters: 1 }));
        assert_eq!(weakness("äöüßéèà"), Some(Weakness::Short { characters: 7 }), "characters, not bytes");
        assert_eq!(weakness("aaaaaaaaaaaaaaaa"), Some(Weakness::Monotonous { distinct: 1 }));
        assert_eq!((weakness("open sesame"), weakness("äöüßéèàâ")), (None, None));
        let raw = MasterKey::passphrase(vec![0xff, 1, 2, 3, 4, 5, 0xfe, 9]).unwrap();
        assert_eq!((raw.weakness(), MasterKey::generate().unwrap().weakness()), (None, None));
    }

    #[test]
    fn slots_come_back_and_absurd_costs_are_refused() {
        let passphrase = MasterKey::passphrase(b"hunter2".to_vec()).unwrap();
        let slot = passphrase.new_slot(CHEAP).unwrap();
        let mut bytes = Vec::new();
        slot.encode(&mut bytes);
        assert_eq!((bytes.len(), KeySlot::decode(&mut Fields::new(&bytes))), (KeySlot::BYTES, Some(slot.clone())));
        bytes[4] = 0xff;
        assert_eq!(KeySlot::decode(&mut Fields::new(&bytes)), None, "64 GiB of memory");
        for absurd in [(1, 1, 1), (3 << 20, 1, 1), (1 << 20, 9, 1), (1 << 10, 1, 65), (8, 0, 1)] {
            let (memory_kib, passes, lanes) = absurd;
            assert!(passphrase.new_slot(PassphraseCost { memory_kib, passes, lanes }).is_err(), "{absurd:?}");
        }
        assert!(MasterKey::generate().unwrap().unlock(&slot).unwrap().is_none());
        assert!(!format!("{passphrase:?}").contains("hunter2"));
    }

    /// Regression: an altered head made Argon2id take 2 GiB before anything was authenticated.
    #[test]
    fn a_head_may_not_ask_for_more_than_its_owner() {
        let cost = |memory_kib, passes| PassphraseCost { memory_kib, passes, lanes: 1 };
        let expect = |asked, owner| {
            let slot = KeySlot::Passphrase { cost: asked, salt: [0; 16] };
            slot.expect_cost(Path::new("HEAD"), owner, 0)
        };
        let default = PassphraseCost::default();
        for fair in [CHEAP, default, cost(256 << 10, 3)] {
            expect(fair, CHEAP).unwrap();
        }
        for costly in [cost(2 << 20, 1), cost(64 << 10, 13), cost((256 << 10) + 1, 1)] {
            assert!(matches!(expect(costly, default), Err(Error::CostlyPassphrase { .. })), "{costly:?}");
            expect(costly, costly).unwrap();
        }
        assert!(matches!(expect(cost(2 << 20, 4), cost(2 << 20, 3)), Err(Error::CostlyPassphrase { .. })));
    }
}

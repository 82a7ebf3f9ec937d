//! The master key: what a store is opened with.
//!
//! It is 32 random bytes, or a passphrase of which Argon2id makes as many. It encrypts nothing but the store's root keys, so another one
//! can take its place without rewriting data. Its bytes lie in memory that is wiped with the last handle; they are never shown.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use panoply_core::Bytes;
use panoply_core::op::crypto::{HashAlgorithm, Key};
use zeroize::{Zeroize, Zeroizing};

use crate::encode::{Fields, from_hex, hex_digits};
use crate::error::{Error, Result};
use crate::folder::sync_folder;

/// How long a key is.
pub const KEY_BYTES: usize = 32;
/// The longest passphrase.
pub const PASSPHRASE_BYTES_MAX: usize = 1024;
/// The most that a store may ask Argon2id for: memory, the sum of memory over all passes, and lanes. Whoever alters a head can cost its
/// owner no more than some seconds and this memory; more is taken for damage.
const MEMORY_KIB_MAX: u32 = 2 << 20;
const WORK_KIB_MAX: u64 = 8 << 20;
const LANES_MAX: u32 = 64;

const KEY_FORM: &str = "32 bytes, or 64 hexadecimal digits";

/// The key that opens a store.
#[derive(Clone)]
pub struct MasterKey {
    secret: Bytes,
    is_passphrase: bool,
}

/// What deriving a key from a passphrase costs, whoever tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassphraseCost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes that could be filled at the same time.
    pub lanes: u32,
}

impl Default for PassphraseCost {
    /// The second choice of RFC 9106: 64 MiB, three passes, four lanes.
    fn default() -> PassphraseCost {
        PassphraseCost { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl MasterKey {
    /// A new key of the system's randomness.
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

    /// The key in a file that nobody but its owner may read or write: 32 bytes, or 64 hexadecimal digits.
    pub fn from_file(path: &Path) -> Result<MasterKey> {
        MasterKey::parse(&read_private(path, 2 * KEY_BYTES + 2)?, || path.display().to_string())
    }

    /// The key in an environment variable: 64 hexadecimal digits.
    pub fn from_environment(name: &str) -> Result<MasterKey> {
        MasterKey::parse(&environment(name)?, || format!("the environment variable {name}"))
    }

    /// A passphrase, one character at least. The vector is wiped.
    pub fn passphrase(text: Vec<u8>) -> Result<MasterKey> {
        let text = Zeroizing::new(text);
        match text.len() {
            1..=PASSPHRASE_BYTES_MAX => MasterKey::of(&text, true),
            _ => Err(Error::InvalidKey { origin: "the passphrase".to_owned(), expected: "1 to 1024 bytes" }),
        }
    }

    /// The passphrase in the first line of a file that nobody but its owner may read or write.
    pub fn passphrase_from_file(path: &Path) -> Result<MasterKey> {
        MasterKey::passphrase(first_line(&read_private(path, PASSPHRASE_BYTES_MAX + 2)?))
    }

    /// The passphrase in an environment variable.
    pub fn passphrase_from_environment(name: &str) -> Result<MasterKey> {
        MasterKey::passphrase(first_line(&environment(name)?))
    }

    /// Writes a key into a new file that is its owner's alone, as hexadecimal digits. A passphrase is not written.
    pub fn write_new_file(&self, path: &Path) -> Result<()> {
        if self.is_passphrase {
            return Err(Error::invalid("key to be written", "a key", "a passphrase"));
        }
        // Its whole length at once: what grows leaves copies behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
        text.extend(hex_digits(self.secret.as_slice()?).chain(['\n']));
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(|error| Error::io("create", path, error))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| Error::io("write", path, error))?;
        // Its name too, before anything depends on it.
        sync_folder(path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")))
    }

    /// What it is.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_passphrase { "a passphrase" } else { "a key" }
    }

    /// How a store that is locked with it from now on makes a key of it.
    pub(crate) fn new_slot(&self, cost: PassphraseCost) -> Result<Slot> {
        match self.is_passphrase {
            true => cost.params().map(|_| ()).and_then(|()| Ok(Slot::Passphrase { cost, salt: random()? })),
            false => Ok(Slot::Key),
        }
    }

    /// The secret from which the key for the root keys is derived; `None` where the store needs the other kind.
    pub(crate) fn unlock(&self, slot: &Slot) -> Result<Option<Key>> {
        match (slot, self.is_passphrase) {
            (Slot::Key, false) => Ok(Some(Key::hkdf(HashAlgorithm::Sha256, self.secret.as_slice()?)?)),
            (Slot::Passphrase { cost, salt }, true) => stretched(self.secret.as_slice()?, *cost, salt).map(Some),
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

/// How a store makes a key of its master key. It is no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Key,
    Passphrase { cost: PassphraseCost, salt: [u8; 16] },
}

impl Slot {
    pub(crate) const BYTES: usize = 1 + 3 * 4 + 16;

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Slot::Key => "a key",
            Slot::Passphrase { .. } => "a passphrase",
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, cost, salt) = match self {
            Slot::Key => (0, PassphraseCost { memory_kib: 0, passes: 0, lanes: 0 }, [0; 16]),
            Slot::Passphrase { cost, salt } => (1, *cost, *salt),
        };
        out.push(kind);
        [cost.memory_kib, cost.passes, cost.lanes].iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(salt);
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Option<Slot> {
        let kind = fields.u8()?;
        let cost = PassphraseCost { memory_kib: fields.u32()?, passes: fields.u32()?, lanes: fields.u32()? };
        let salt = fields.array()?;
        match kind {
            0 => Some(Slot::Key),
            1 if cost.params().is_ok() => Some(Slot::Passphrase { cost, salt }),
            _ => None,
        }
    }
}

impl PassphraseCost {
    fn params(self) -> Result<Params> {
        let PassphraseCost { memory_kib, passes, lanes } = self;
        let work_kib = u64::from(memory_kib) * u64::from(passes);
        let bounded = memory_kib <= MEMORY_KIB_MAX && work_kib <= WORK_KIB_MAX && lanes <= LANES_MAX;
        let params = Params::new(memory_kib, passes, lanes, Some(KEY_BYTES)).ok().filter(|_| bounded);
        params.ok_or_else(|| {
            let expected = format!(
                "8 KiB for each of at most {LANES_MAX} lanes, at most {MEMORY_KIB_MAX} KiB, and {WORK_KIB_MAX} over all passes"
            );
            Error::invalid("cost of a passphrase", expected, format!("{self:?}"))
        })
    }
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::NoRandomness { reason: error.to_string() }),
    }
}

/// What Argon2id makes of a passphrase. All memory that it used is wiped.
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

/// The whole of a short file that nobody but its owner may read or write.
fn read_private(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    // Without blocking: a pipe would wait for its other end.
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| Error::io("open", path, error))?;
    let metadata = file.metadata().map_err(|error| Error::io("open", path, error))?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    expect_private(path, &metadata)?;
    let mut bytes = Zeroizing::new(vec![0; bytes_max + 1]);
    let mut len = 0;
    while len < bytes.len() {
        match (&file).read(&mut bytes[len..]).map_err(|error| Error::io("read", path, error))? {
            0 => break,
            read => len += read,
        }
    }
    if len > bytes_max {
        return Err(Error::InvalidKey { origin: path.display().to_string(), expected: "a shorter file" });
    }
    bytes[len..].zeroize();
    bytes.truncate(len);
    Ok(bytes)
}

#[cfg(unix)]
fn expect_private(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let exposed = |reason: String| Err(Error::ExposedKeyFile { path: path.to_owned(), reason });
    // SAFETY: `geteuid` takes nothing, changes nothing and cannot fail.
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
    fn slots_come_back_and_absurd_costs_are_refused() {
        let passphrase = MasterKey::passphrase(b"hunter2".to_vec()).unwrap();
        let slot = passphrase.new_slot(CHEAP).unwrap();
        let mut bytes = Vec::new();
        slot.encode(&mut bytes);
        assert_eq!((bytes.len(), Slot::decode(&mut Fields::new(&bytes))), (Slot::BYTES, Some(slot.clone())));
        bytes[4] = 0xff;
        assert_eq!(Slot::decode(&mut Fields::new(&bytes)), None, "64 GiB of memory");
        for absurd in [(1, 1, 1), (3 << 20, 1, 1), (1 << 20, 9, 1), (1 << 10, 1, 65), (8, 0, 1)] {
            let (memory_kib, passes, lanes) = absurd;
            assert!(passphrase.new_slot(PassphraseCost { memory_kib, passes, lanes }).is_err(), "{absurd:?}");
        }
        assert!(MasterKey::generate().unwrap().unlock(&slot).unwrap().is_none());
        assert!(!format!("{passphrase:?}").contains("hunter2"));
    }
}

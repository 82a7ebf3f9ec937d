//! The head: the small file with a store's identity, root keys and current state.
//!
//! ```text
//! magic        16 bytes
//! store's id   16
//! slot         29   how the master key opens the keyring: as it is, or through Argon2id with this cost and salt
//! check        16   derived from the master key, to tell a wrong one from damage
//! keyring      4 + n   the root keys, sealed with the master key
//! state        4 + n   generation, log, its length, records and last tag; sealed with the newest root key
//! ```
//!
//! Each sealed part authenticates everything in front of it. Root keys are random. The newest seals
//! new data; older ones open data from before a key rotation.
//!
//! A store's head is in its file twice, each copy in blocks of its own, so that one damaged block
//! leaves the other copy intact. `data/KEYS` is such a head without a state: it is written when
//! the root keys change, and opens the extents if HEAD is lost.

use std::path::Path;

use panoply_core::Bytes;
use panoply_core::op::crypto::{HashAlgorithm, Key, TAG_BYTES};
use panoply_runtime::Runtime;
use zeroize::{Zeroize, Zeroizing};

use crate::encode::{Fields, put_counted};
use crate::error::{Error, Result};
use crate::key::{KEY_BYTES, KeySlot, MasterKey, PassphraseCost};
use crate::options::Compression;
use crate::randomness::random;
use crate::sealing::{Label, derive, open_once, seal_once};

/// The first bytes of a store's head.
pub(crate) const MAGIC: &[u8; 16] = b"panoply store 2\n";
/// The same of a store that may have chunks in other formats than Zstandard's. Earlier versions of
/// this crate cannot read those.
pub(crate) const MAGIC_3: &[u8; 16] = b"panoply store 3\n";
/// Length of the prefix that the magics of all versions share.
const MAGIC_NAME_BYTES: usize = 14;
/// Each copy of a head begins at a multiple of this.
const BLOCK_BYTES: usize = 4096;
/// Maximal length of the file of a head.
pub(crate) const HEAD_BYTES_MAX: u64 = 1 << 20;
/// Maximal number of root keys: one for each rotation that left older data behind.
const EPOCHS_MAX: usize = 4096;
/// The last generation. The limit exists because someone who had a key could have sealed a number
/// that has no successor.
pub(crate) const GENERATION_MAX: u64 = 1 << 62;
const CHECK_BYTES: usize = 16;
const KEYRING_BYTES_MAX: usize = 1 << 19;
/// Limit of the content behind the root keys. A store's state is short; other folders have longer
/// contents.
const CONTENT_BYTES_MAX: usize = 1 << 25;

/// The part of a head that changes only when keys are rotated.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) store: [u8; 16],
    /// Everything in front of the state, as it is in the file.
    front: Vec<u8>,
    pub(crate) keyring: Keyring,
}

/// The root keys by epoch, oldest first. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Keyring {
    keys: Vec<(u32, Key)>,
}

/// A head that was read.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) identity: Identity,
    pub(crate) state: State,
    /// Whether both copies are intact.
    pub(crate) is_whole: bool,
}

/// Where a head comes from, and how to open it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadSource<'a> {
    /// The folder and the file, for errors.
    pub(crate) folder: &'a Path,
    pub(crate) path: &'a Path,
    pub(crate) master: &'a MasterKey,
    /// The cost that the owner has configured for passphrases. If it exceeds the default limit, as
    /// much may be spent before anything is authenticated.
    pub(crate) cost: PassphraseCost,
    /// Work already spent on other copies of this head, in KiB.
    pub(crate) spent_kib: u64,
}

impl<'a> HeadSource<'a> {
    pub(crate) fn new(folder: &'a Path, path: &'a Path, master: &'a MasterKey, cost: PassphraseCost) -> HeadSource<'a> {
        HeadSource { folder, path, master, cost, spent_kib: 0 }
    }
}

/// The current state of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Number of commits.
    pub(crate) generation: u64,
    pub(crate) log: [u8; 16],
    pub(crate) log_bytes: u64,
    pub(crate) records: u64,
    /// The tag of the log's last record; zeros if the log is empty.
    pub(crate) last_tag: [u8; TAG_BYTES],
}

impl Identity {
    /// Makes a new identity with a first root key.
    pub(crate) fn create(
        runtime: &Runtime,
        magic: &[u8; 16],
        master: &MasterKey,
        cost: PassphraseCost,
    ) -> Result<Identity> {
        Identity::lock(runtime, magic, random()?, Keyring { keys: vec![(1, new_root()?)] }, master, cost)
    }

    /// The same store locked with another master key, with a new root key. Root keys that no data
    /// uses any more are dropped.
    pub(crate) fn rotated(
        &self,
        runtime: &Runtime,
        master: &MasterKey,
        cost: PassphraseCost,
        magic: &[u8; 16],
        is_used: impl Fn(u32) -> bool,
    ) -> Result<Identity> {
        let (newest, _) = self.keyring.newest()?;
        let next = newest.checked_add(1).filter(|_| self.keyring.keys.len() < EPOCHS_MAX);
        let next = next.ok_or_else(|| Error::invalid("rotations", "fewer", "put old objects anew first"))?;
        let kept = self.keyring.keys.iter().filter(|(epoch, _)| is_used(*epoch)).cloned();
        let keys = kept.chain([(next, new_root()?)]).collect();
        let magic = if self.has_any_compression() { MAGIC_3 } else { magic };
        Identity::lock(runtime, magic, self.store, Keyring { keys }, master, cost)
    }

    fn lock(
        runtime: &Runtime,
        magic: &[u8; 16],
        store: [u8; 16],
        keyring: Keyring,
        master: &MasterKey,
        cost: PassphraseCost,
    ) -> Result<Identity> {
        let slot = master.new_slot(cost)?;
        let wrong = || Error::invalid("master key", slot.kind(), master.kind());
        let secret = master.unlock(&slot)?.ok_or_else(wrong)?;
        let mut front = [&magic[..], &store].concat();
        slot.encode(&mut front);
        front.extend(check(runtime, &secret, &front)?);
        let sealed = seal_once(runtime, &secret, Label::Keyring, &front, keyring.encode()?)?;
        put_counted(&mut front, &sealed);
        Ok(Identity { store, front, keyring })
    }

    /// Whether the store may have chunks in other formats than Zstandard's.
    pub(crate) fn has_any_compression(&self) -> bool {
        self.front.starts_with(MAGIC_3)
    }

    /// The content of HEAD: two copies.
    pub(crate) fn encode(&self, runtime: &Runtime, state: &State) -> Result<Vec<u8>> {
        Ok(twice(&self.encode_content(runtime, state.encode())?))
    }

    /// The content of `data/KEYS`: two copies of a head without a state.
    pub(crate) fn encode_keys(&self, runtime: &Runtime) -> Result<Vec<u8>> {
        Ok(twice(&self.encode_content(runtime, Vec::new())?))
    }

    /// A head with any content behind the root keys.
    pub(crate) fn encode_content(&self, runtime: &Runtime, content: Vec<u8>) -> Result<Vec<u8>> {
        let (_, root) = self.keyring.newest()?;
        let sealed = seal_once(runtime, root, Label::State, &self.front, Bytes::from_vec(content))?;
        let mut bytes = self.front.clone();
        put_counted(&mut bytes, &sealed);
        Ok(bytes)
    }

    /// Whether `data/KEYS` has these root keys in both copies.
    pub(crate) fn is_kept_in(&self, runtime: &Runtime, path: &Path, keys: &[u8]) -> bool {
        let copy = copies(keys).first().copied().unwrap_or_default();
        keys == twice(copy) && self.decode_again(runtime, path, copy).is_ok()
    }

    /// Whether both copies in `data/KEYS` are the same.
    pub(crate) fn is_twice(keys: &[u8]) -> bool {
        copies(keys).first().is_some_and(|copy| keys == twice(copy))
    }

    /// Fails if `data/KEYS` is that of another store in all its copies: then HEAD or `data/KEYS`
    /// was copied here, and nothing may be written before the right one is back.
    pub(crate) fn expect_keys_of_this_store(&self, path: &Path, keys: &[u8]) -> Result<()> {
        // The root keys of two stores have nothing in common but by chance. So a copy that shares
        // most of its bytes with HEAD's is this store's, and its id is damaged.
        let start = MAGIC.len() + self.store.len();
        let own = self.front.get(start..).unwrap_or_default();
        let is_own = |copy: &&[u8]| {
            let same = own.iter().zip(copy.get(start..).unwrap_or_default()).filter(|(own, other)| own == other);
            same.count() * 2 > own.len()
        };
        if copies(keys).iter().any(is_own) {
            return Ok(());
        }
        let id = |copy: &[u8]| Some(*copy.strip_prefix(magic_of(copy))?.first_chunk::<16>()?);
        let mut ids: Vec<Option<[u8; 16]>> = copies(keys).into_iter().map(id).collect();
        ids.dedup();
        match ids[..] {
            // Ids are random, so zeros are a hole in the file.
            [Some(other)] if other != self.store && other != [0; 16] => Err(Error::damaged(
                path,
                "it belongs to another store than HEAD; put back the right HEAD or KEYS, or remove the wrong one",
            )),
            _ => Ok(()),
        }
    }

    /// Reads HEAD from the first intact copy.
    pub(crate) fn decode(runtime: &Runtime, from: &HeadSource<'_>, bytes: &[u8]) -> Result<Head> {
        first_of(from, bytes, |from, copy| {
            let (identity, content) = Identity::unlock(runtime, magic_of(copy), from, copy)?;
            let state = State::decode(content.as_slice()?);
            let state = state.ok_or_else(|| Error::damaged(from.path, "its state makes no sense"))?;
            Ok(Head { identity, state, is_whole: bytes == twice(copy) })
        })
    }

    /// Reads the root keys of HEAD or `data/KEYS`, and ignores the content behind them.
    pub(crate) fn decode_front(runtime: &Runtime, from: &HeadSource<'_>, bytes: &[u8]) -> Result<Identity> {
        first_of(from, bytes, |from, copy| Ok(Identity::unlock_front(runtime, magic_of(copy), from, copy)?.0))
    }

    /// Reads one copy of a head and its content behind the root keys.
    pub(crate) fn unlock(
        runtime: &Runtime,
        magic: &[u8; 16],
        from: &HeadSource<'_>,
        bytes: &[u8],
    ) -> Result<(Identity, Bytes)> {
        let (identity, sealed) = Identity::unlock_front(runtime, magic, from, bytes)?;
        let content = identity.open_content(runtime, from.path, sealed)?;
        Ok((identity, content))
    }

    /// The root keys of a head, and the sealed rest.
    fn unlock_front<'a>(
        runtime: &Runtime,
        magic: &[u8; 16],
        from: &HeadSource<'_>,
        bytes: &'a [u8],
    ) -> Result<(Identity, &'a [u8])> {
        let damaged = |reason| Error::damaged(from.path, reason);
        if !bytes.starts_with(magic) {
            let version = |bytes: &[u8]| bytes.get(MAGIC_NAME_BYTES).copied().map_or('?', char::from);
            let is_other = bytes.starts_with(&magic[..MAGIC_NAME_BYTES]) && version(bytes).is_ascii_digit();
            let (path, got) = (from.path.to_owned(), version(bytes));
            let expected = if magic == MAGIC { "2 and 3".to_owned() } else { version(magic).to_string() };
            let other = Error::UnknownFormat { path, expected, got };
            return Err(if is_other { other } else { damaged("it is no head of a store") });
        }
        let cut = || damaged("it is cut short, or too long");
        let mut fields = Fields::new(&bytes[magic.len()..]);
        let store = fields.array().ok_or_else(cut)?;
        let slot = KeySlot::decode(&mut fields).ok_or_else(|| damaged("its slot makes no sense"))?;
        let told: [u8; CHECK_BYTES] = fields.array().ok_or_else(cut)?;
        let sealed_keys = fields.counted(KEYRING_BYTES_MAX).ok_or_else(cut)?;
        let sealed_content = fields.counted(CONTENT_BYTES_MAX).ok_or_else(cut)?;
        fields.end().ok_or_else(cut)?;

        let folder = || from.folder.to_owned();
        slot.expect_cost(from.path, from.cost, from.spent_kib)?;
        let kind = || Error::KeyKind { path: folder(), expected: slot.kind(), got: from.master.kind() };
        let secret = from.master.unlock(&slot)?.ok_or_else(kind)?;
        let keys_start = magic.len() + store.len() + KeySlot::BYTES + CHECK_BYTES;
        if check(runtime, &secret, &bytes[..keys_start - CHECK_BYTES])? != told {
            return Err(Error::WrongKey { path: folder() });
        }
        let keys = open_once(runtime, &secret, Label::Keyring, &bytes[..keys_start], sealed_keys)?;
        let keys = keys.ok_or_else(|| damaged("its root keys are not authentic"))?;
        let keyring = Keyring::decode(keys.as_slice()?).ok_or_else(|| damaged("its root keys make no sense"))?;
        let front = bytes[..keys_start + 4 + sealed_keys.len()].to_vec();
        Ok((Identity { store, front, keyring }, sealed_content))
    }

    /// Decodes the content of a later head with the same identity. The part that needs the master
    /// key must be unchanged.
    pub(crate) fn decode_again(&self, runtime: &Runtime, path: &Path, bytes: &[u8]) -> Result<Bytes> {
        let behind = bytes.strip_prefix(&self.front[..]);
        let mut fields = Fields::new(behind.ok_or_else(|| Error::damaged(path, "it belongs to something else"))?);
        let sealed = fields.counted(CONTENT_BYTES_MAX).filter(|_| fields.end().is_some());
        self.open_content(runtime, path, sealed.ok_or_else(|| Error::damaged(path, "it is cut short, or too long"))?)
    }

    fn open_content(&self, runtime: &Runtime, path: &Path, sealed: &[u8]) -> Result<Bytes> {
        let (_, root) = self.keyring.newest()?;
        let content = open_once(runtime, root, Label::State, &self.front, sealed)?;
        content.ok_or_else(|| Error::damaged(path, "its state is not authentic"))
    }
}

impl Keyring {
    /// The key that seals new data, and its epoch.
    pub(crate) fn newest(&self) -> Result<(u32, &Key)> {
        let none = || Error::invalid("root keys", "one", "none");
        self.keys.last().map(|(epoch, key)| (*epoch, key)).ok_or_else(none)
    }

    pub(crate) fn get(&self, epoch: u32) -> Option<&Key> {
        self.keys.iter().find(|(known, _)| *known == epoch).map(|(_, key)| key)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    fn encode(&self) -> Result<Bytes> {
        // Allocated at full length: a buffer that grows leaves copies of the keys behind.
        let mut bytes = Vec::with_capacity(4 + self.keys.len() * (4 + KEY_BYTES));
        bytes.extend((self.keys.len() as u32).to_le_bytes());
        for (epoch, key) in &self.keys {
            bytes.extend(epoch.to_le_bytes());
            match key.material().as_slice() {
                Ok(material) => bytes.extend(material),
                Err(error) => {
                    bytes.zeroize();
                    return Err(error.into());
                }
            }
        }
        Ok(Bytes::secret(bytes)?)
    }

    fn decode(bytes: &[u8]) -> Option<Keyring> {
        let mut fields = Fields::new(bytes);
        let count = fields.u32().filter(|count| (1..=EPOCHS_MAX as u32).contains(count))?;
        let mut keys: Vec<(u32, Key)> = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let epoch = fields.u32().filter(|epoch| keys.last().is_none_or(|(before, _)| before < epoch))?;
            keys.push((epoch, Key::hkdf(HashAlgorithm::Sha256, fields.bytes(KEY_BYTES)?).ok()?));
        }
        fields.end().map(|()| Keyring { keys })
    }
}

impl State {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.log_bytes, self.records];
        let mut bytes = self.generation.to_le_bytes().to_vec();
        bytes.extend(self.log);
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(self.last_tag);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<State> {
        let mut fields = Fields::new(bytes);
        let (generation, log) = (fields.u64()?, fields.array()?);
        let (log_bytes, records, last_tag) = (fields.u64()?, fields.u64()?, fields.array()?);
        fields.end().map(|()| State { generation, log, log_bytes, records, last_tag })
    }
}

/// The magic of a store that this copy of a head begins with, or else the usual one.
fn magic_of(copy: &[u8]) -> &'static [u8; 16] {
    if copy.starts_with(MAGIC_3) { MAGIC_3 } else { MAGIC }
}

/// The magic of a head: a store with chunks in other formats than Zstandard's is marked, so that
/// earlier versions refuse it.
pub(crate) fn magic_for(compression: Compression) -> &'static [u8; 16] {
    if compression == Compression::Zstd { MAGIC } else { MAGIC_3 }
}

/// Two copies, each in blocks of its own.
fn twice(copy: &[u8]) -> Vec<u8> {
    let mut bytes = copy.to_vec();
    bytes.resize(copy.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes.extend_from_within(..);
    bytes
}

/// The candidates for copies of a head: at the beginning, and at the last block that begins with
/// the magic.
fn copies(bytes: &[u8]) -> Vec<&[u8]> {
    let is_head = |start: &usize| bytes[*start..].starts_with(&MAGIC[..MAGIC_NAME_BYTES]);
    let last = (BLOCK_BYTES..bytes.len()).step_by(BLOCK_BYTES).rfind(is_head);
    let mut found: Vec<&[u8]> = [Some(0), last].into_iter().flatten().map(|start| measured(&bytes[start..])).collect();
    found.dedup();
    found
}

/// One copy without its padding zeros, according to its own lengths; all bytes if these do not fit.
fn measured(bytes: &[u8]) -> &[u8] {
    let mut fields = Fields::new(bytes);
    let len = fields.bytes(MAGIC.len() + 16 + KeySlot::BYTES + CHECK_BYTES).and_then(|front| {
        let (keys, content) = (fields.counted(KEYRING_BYTES_MAX)?, fields.counted(CONTENT_BYTES_MAX)?);
        Some(front.len() + 4 + keys.len() + 4 + content.len())
    });
    len.map_or(bytes, |len| &bytes[..len])
}

/// The Argon2id work that a copy of a head asks for, in KiB.
fn work_kib(copy: &[u8]) -> u64 {
    let mut fields = Fields::new(copy.get(MAGIC.len() + 16..).unwrap_or_default());
    KeySlot::decode(&mut fields).map_or(0, |slot| slot.work_kib())
}

/// Reads the first intact copy. If there is none, the error is that of a wrong key (or kind of key)
/// if any copy reports it, else that of the copy read first. The copy that asks for less work is
/// read first, and the work spent on it counts for the other. An error of a device is returned at
/// once.
fn first_of<T>(from: &HeadSource<'_>, bytes: &[u8], read: impl Fn(&HeadSource<'_>, &[u8]) -> Result<T>) -> Result<T> {
    let (mut first, mut from) = (None, *from);
    let mut copies = copies(bytes);
    copies.sort_by_key(|copy| work_kib(copy));
    for copy in copies {
        let read = read(&from, copy);
        from.spent_kib += work_kib(copy);
        match read {
            Ok(found) => return Ok(found),
            Err(error @ Error::Device(_)) => return Err(error),
            Err(error) => {
                let is_key = matches!(error, Error::WrongKey { .. } | Error::KeyKind { .. });
                first = Some(if is_key { error } else { first.unwrap_or(error) });
            }
        }
    }
    Err(first.unwrap_or_else(|| Error::invalid("head", "bytes", "none")))
}

fn new_root() -> Result<Key> {
    let bytes = Zeroizing::new(random::<KEY_BYTES>()?);
    Ok(Key::hkdf(HashAlgorithm::Sha256, &bytes[..])?)
}

/// A check value that tells a wrong master key from damage. It reveals nothing about the key.
fn check(runtime: &Runtime, secret: &Key, front: &[u8]) -> Result<[u8; CHECK_BYTES]> {
    let bytes = derive(runtime, secret, Label::Check, &[front])?;
    let short = || Error::invalid("derived key", "32 bytes", "fewer");
    bytes.as_slice()?.first_chunk().copied().ok_or_else(short)
}

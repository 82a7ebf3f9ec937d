//! The head: the one small file that says what counts.
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
//! Each sealed part authenticates everything in front of it. Root keys are random; the newest seals what is written now, older ones
//! open what was written before the key was rotated.

use std::path::Path;

use panoply_core::Bytes;
use panoply_core::op::crypto::{HashAlgorithm, Key, TAG_BYTES};
use panoply_runtime::Runtime;
use zeroize::{Zeroize, Zeroizing};

use crate::encode::{Fields, put_counted};
use crate::error::{Error, Result};
use crate::key::{KEY_BYTES, MasterKey, PassphraseCost, Slot, random};
use crate::sealing::{Label, derive, open_once, seal_once};

/// What a head of a store begins with.
pub(crate) const MAGIC: &[u8; 16] = b"panoply store 1\n";
/// Of a magic, what those of every version begin with.
const MAGIC_NAME_BYTES: usize = 14;
/// A longer file is no head.
pub(crate) const HEAD_BYTES_MAX: u64 = 1 << 20;
/// The most root keys: one for each rotation after which something is left that was written before it.
const EPOCHS_MAX: usize = 4096;
const CHECK_BYTES: usize = 16;
const KEYRING_BYTES_MAX: usize = 1 << 19;
/// What is sealed behind the root keys. A store's state is short; other folders have more to say.
const CONTENT_BYTES_MAX: usize = 1 << 25;

/// What does not change until keys are rotated.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) store: [u8; 16],
    /// Everything in front of the state, as it is in the file.
    front: Vec<u8>,
    pub(crate) keyring: Keyring,
}

/// The root keys, by their epochs, oldest first. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Keyring {
    keys: Vec<(u32, Key)>,
}

/// What counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Counts commits.
    pub(crate) generation: u64,
    pub(crate) log: [u8; 16],
    pub(crate) log_bytes: u64,
    pub(crate) records: u64,
    /// The tag of the log's last record; zeroes where it has none.
    pub(crate) last_tag: [u8; TAG_BYTES],
}

impl Identity {
    /// A store of its own, with a first root key.
    pub(crate) fn create(
        runtime: &Runtime,
        magic: &[u8; 16],
        master: &MasterKey,
        cost: PassphraseCost,
    ) -> Result<Identity> {
        Identity::lock(runtime, magic, random()?, Keyring { keys: vec![(1, new_root()?)] }, master, cost)
    }

    /// The same store, locked with another master key, and with one more root key. Root keys that nothing is sealed with any more are
    /// forgotten.
    pub(crate) fn rotated(
        &self,
        runtime: &Runtime,
        master: &MasterKey,
        cost: PassphraseCost,
        is_used: impl Fn(u32) -> bool,
    ) -> Result<Identity> {
        let (newest, _) = self.keyring.newest()?;
        let next = newest.checked_add(1).filter(|_| self.keyring.keys.len() < EPOCHS_MAX);
        let next = next.ok_or_else(|| Error::invalid("rotations", "fewer", "put old objects anew first"))?;
        let kept = self.keyring.keys.iter().filter(|(epoch, _)| is_used(*epoch)).cloned();
        let keys = kept.chain([(next, new_root()?)]).collect();
        Identity::lock(runtime, MAGIC, self.store, Keyring { keys }, master, cost)
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

    /// The content of the file.
    pub(crate) fn encode(&self, runtime: &Runtime, state: &State) -> Result<Vec<u8>> {
        self.encode_content(runtime, state.encode())
    }

    /// The same with whatever is to be said behind the root keys.
    pub(crate) fn encode_content(&self, runtime: &Runtime, content: Vec<u8>) -> Result<Vec<u8>> {
        let (_, root) = self.keyring.newest()?;
        let sealed = seal_once(runtime, root, Label::State, &self.front, Bytes::from_vec(content))?;
        let mut bytes = self.front.clone();
        put_counted(&mut bytes, &sealed);
        Ok(bytes)
    }

    /// Reads the file's content. `folder` and `path` are for errors.
    pub(crate) fn decode(
        runtime: &Runtime,
        folder: &Path,
        path: &Path,
        bytes: &[u8],
        master: &MasterKey,
    ) -> Result<(Identity, State)> {
        let (identity, content) = Identity::unlock(runtime, MAGIC, folder, path, bytes, master)?;
        let state = State::decode(content.as_slice()?);
        state.map(|state| (identity, state)).ok_or_else(|| Error::damaged(path, "its state makes no sense"))
    }

    /// The same with whatever is said behind the root keys.
    pub(crate) fn unlock(
        runtime: &Runtime,
        magic: &[u8; 16],
        folder: &Path,
        path: &Path,
        bytes: &[u8],
        master: &MasterKey,
    ) -> Result<(Identity, Bytes)> {
        let damaged = |reason| Error::damaged(path, reason);
        if !bytes.starts_with(magic) {
            let newer = bytes.starts_with(&magic[..MAGIC_NAME_BYTES]);
            return Err(damaged(if newer { "its version is not known here" } else { "it is no head of a store" }));
        }
        let cut = || damaged("it is cut short, or too long");
        let mut fields = Fields::new(&bytes[magic.len()..]);
        let store = fields.array().ok_or_else(cut)?;
        let slot = Slot::decode(&mut fields).ok_or_else(|| damaged("its slot makes no sense"))?;
        let told: [u8; CHECK_BYTES] = fields.array().ok_or_else(cut)?;
        let sealed_keys = fields.counted(KEYRING_BYTES_MAX).ok_or_else(cut)?;
        let sealed_content = fields.counted(CONTENT_BYTES_MAX).ok_or_else(cut)?;
        fields.end().ok_or_else(cut)?;

        let kind = || Error::KeyKind { path: folder.to_owned(), expected: slot.kind(), got: master.kind() };
        let secret = master.unlock(&slot)?.ok_or_else(kind)?;
        let keys_start = magic.len() + store.len() + Slot::BYTES + CHECK_BYTES;
        if check(runtime, &secret, &bytes[..keys_start - CHECK_BYTES])? != told {
            return Err(Error::WrongKey { path: folder.to_owned() });
        }
        let keys = open_once(runtime, &secret, Label::Keyring, &bytes[..keys_start], sealed_keys)?;
        let keys = keys.ok_or_else(|| damaged("its root keys are not authentic"))?;
        let keyring = Keyring::decode(keys.as_slice()?).ok_or_else(|| damaged("its root keys make no sense"))?;
        let front = bytes[..keys_start + 4 + sealed_keys.len()].to_vec();
        let identity = Identity { store, front, keyring };
        let content = identity.open_content(runtime, path, sealed_content)?;
        Ok((identity, content))
    }

    /// What a later head of the same identity says: nothing that a master key would be needed for has changed.
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
    /// The key that seals what is written now, and its epoch.
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
        // Its whole length at once: what grows leaves copies behind.
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

fn new_root() -> Result<Key> {
    let bytes = Zeroizing::new(random::<KEY_BYTES>()?);
    Ok(Key::hkdf(HashAlgorithm::Sha256, &bytes[..])?)
}

/// What tells a wrong master key from damage. Nothing about the key follows from it.
fn check(runtime: &Runtime, secret: &Key, front: &[u8]) -> Result<[u8; CHECK_BYTES]> {
    let bytes = derive(runtime, secret, Label::Check, &[front])?;
    let short = || Error::invalid("derived key", "32 bytes", "fewer");
    bytes.as_slice()?.first_chunk().copied().ok_or_else(short)
}

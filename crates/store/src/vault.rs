//! A vault: the keys of a store, and its sealing, for files of another folder that grow at their
//! ends.
//!
//! A [`Vault`] has a head, which is locked with a master key and contains a short text of its
//! owner (a manifest). It also seals the owner's files. A sealed file is a sequence of frames:
//!
//! ```text
//! mark    8   where a frame may begin
//! salt   32   random bytes of the writer
//! number  8   counted by the writer, also for frames whose writing failed
//! start   8   where the content belongs in the plain file
//! kind    1   0: the plain file ends with the content; 1: what follows the content stays
//! bytes   4   of the content
//! text    n   the content, sealed, with the tag
//! ```
//!
//! 1. A writer draws its random bytes when it begins with a file, and counts from zero. So no pair
//!    of key and number ever seals two frames, even after a truncation, an overwrite or a retry.
//! 2. A frame authenticates its own front, the name of its file and its position there. So it
//!    cannot be moved within a file, or to another.
//! 3. The content of a file results from applying its frames, in order, to an empty file. Bytes
//!    without an authentic frame are skipped up to the next frame; lost content reads as zeros,
//!    and [`UnsealedFile::first_bad`] gives its position. Whether a crash may have caused this, and
//!    whether the last frames are there, the owner must know: a file does not contain its own
//!    length.

use std::path::Path;
use std::sync::Arc;

use panoply_core::Bytes;
use panoply_core::op::crypto::{Key, Messages, Nonces, Open, Seal, TAG_BYTES};
use panoply_core::process::Process;
use panoply_runtime::Runtime;

use crate::encode::Fields;
use crate::error::{Error, Result};
use crate::head::{HeadSource, Identity};
use crate::key::{MasterKey, PassphraseCost};
use crate::lock::expect_process;
use crate::randomness::random;
use crate::sealing::{Label, SALT_BYTES, derive_seal};

const MAGIC: &[u8; 16] = b"panoply vault 1\n";
const MARK: &[u8; 8] = b"PNPLSEAL";
const PREFIX: [u8; 4] = *b"frms";
/// Bytes in front of a frame's text.
pub const FRONT_BYTES: usize = 8 + SALT_BYTES + 8 + 8 + 1 + 4;
/// Maximal content of a frame.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of text that are opened at once.
const OPEN_BYTES: usize = 8 << 20;
/// The most bytes of failed openings when candidates for frames are tried, or four times the file's
/// length if that is more.
const TRIED_BYTES_MIN: usize = 64 << 20;
/// A failed opening counts as at least this many bytes: it derives a key, however short the text
/// is.
const TRY_BYTES_MIN: usize = 16 << 10;

/// Keys that seal the files of a folder. A clone is another handle to the same keys.
#[derive(Clone)]
pub struct Vault {
    runtime: Arc<Runtime>,
    identity: Arc<Identity>,
}

impl Vault {
    /// Makes new keys, locked with a master key.
    pub fn create(runtime: impl Into<Arc<Runtime>>, key: &MasterKey, cost: PassphraseCost) -> Result<Vault> {
        let runtime = runtime.into();
        let identity = Arc::new(Identity::create(&runtime, MAGIC, key, cost)?);
        Ok(Vault { runtime, identity })
    }

    /// Whether this is the head of a vault, of any version.
    pub fn is_head(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC[..14])
    }

    /// Opens a head, and returns the keys and the text. `folder` and `path` are for errors. `cost`
    /// is the cost that the owner has configured for passphrases: a head may ask for up to that
    /// cost or four times the default, whichever is more.
    pub fn open(
        runtime: impl Into<Arc<Runtime>>,
        folder: &Path,
        path: &Path,
        head: &[u8],
        key: &MasterKey,
        cost: PassphraseCost,
    ) -> Result<(Vault, Vec<u8>)> {
        let runtime = runtime.into();
        let from = HeadSource::new(folder, path, key, cost);
        let (identity, text) = Identity::unlock(&runtime, MAGIC, &from, head)?;
        let text = text.as_slice()?.to_vec();
        Ok((Vault { runtime, identity: Arc::new(identity) }, text))
    }

    /// The text of a later head of this vault.
    pub fn open_again(&self, path: &Path, head: &[u8]) -> Result<Vec<u8>> {
        Ok(self.identity.decode_again(&self.runtime, path, head)?.as_slice()?.to_vec())
    }

    /// A head with this text.
    pub fn seal_head(&self, text: &[u8]) -> Result<Vec<u8>> {
        self.identity.encode_content(&self.runtime, text.to_vec())
    }

    /// Seals frames of the file of this name.
    pub fn sealer(&self, name: &str) -> Result<Sealer> {
        let salt = random()?;
        let key = self.frame_key(&salt)?;
        Ok(Sealer {
            runtime: Arc::clone(&self.runtime),
            name: name.to_owned(),
            key,
            salt,
            next_number: 0,
            process: Process::current(),
        })
    }

    /// Reads the content of the file of this name.
    pub fn unseal(&self, path: &Path, name: &str, file: &[u8]) -> Result<UnsealedFile> {
        let tries = TRIED_BYTES_MIN.max(file.len().saturating_mul(4));
        let mut reading =
            Reading { vault: self, path, name, file, tries, room: OPEN_BYTES, found: UnsealedFile::default() };
        reading.run()?;
        Ok(reading.found)
    }

    fn frame_key(&self, salt: &[u8; SALT_BYTES]) -> Result<Key> {
        let (_, root) = self.identity.keyring.newest()?;
        derive_seal(&self.runtime, root, Label::Frames, &[&self.identity.store, salt])
    }
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault")
    }
}

/// How a frame changes the plain file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The plain file ends with this content.
    Last,
    /// Content behind it stays.
    Patch,
}

/// Seals frames of one file, for one writer.
pub struct Sealer {
    runtime: Arc<Runtime>,
    name: String,
    key: Key,
    salt: [u8; SALT_BYTES],
    next_number: u64,
    /// A forked process would count from the same number under the same key.
    process: Process,
}

impl Sealer {
    /// Seals content for `start` of the plain file as frames that will stand at `place` of the
    /// sealed file. Empty content makes one frame, which ends the plain file there.
    pub fn seal(&mut self, place: u64, start: u64, kind: Kind, content: &[u8]) -> Result<Vec<u8>> {
        expect_process(self.process)?;
        let (mut fronts, mut plain, mut associated) = (Vec::new(), Vec::new(), Vec::new());
        let first = self.next_number;
        let (mut place, mut start) = (place, start);
        let pieces = if content.is_empty() { vec![content] } else { content.chunks(FRAME_BYTES_MAX).collect() };
        for piece in pieces {
            let front = self.front(start, kind, piece.len());
            associated.push(Bytes::from_vec(associate(&self.name, place, &front)));
            plain.push(Bytes::from_vec(piece.to_vec()));
            place += (FRONT_BYTES + piece.len() + TAG_BYTES) as u64;
            start += piece.len() as u64;
            fronts.push(front);
        }
        let seal = Seal::new(&self.key, Nonces::Counted { prefix: PREFIX, first }, plain);
        let sealed = self.runtime.run(seal.associated(Messages::from(associated))).wait()?.text;
        let mut frames =
            Vec::with_capacity(fronts.iter().map(|front| front.len()).sum::<usize>() + sealed.lens().sum::<usize>());
        for (front, text) in fronts.iter().zip(sealed.slices()?) {
            frames.extend(front);
            frames.extend(text);
        }
        Ok(frames)
    }

    fn front(&mut self, start: u64, kind: Kind, bytes: usize) -> Vec<u8> {
        let mut front = Vec::with_capacity(FRONT_BYTES);
        front.extend(MARK);
        front.extend(self.salt);
        front.extend(self.next_number.to_le_bytes());
        front.extend(start.to_le_bytes());
        front.push(u8::from(kind == Kind::Patch));
        front.extend((bytes as u32).to_le_bytes());
        self.next_number += 1;
        front
    }
}

/// Associated data of a frame: its position, its front, and the name of its file.
fn associate(name: &str, place: u64, front: &[u8]) -> Vec<u8> {
    [&place.to_le_bytes()[..], front, name.as_bytes()].concat()
}

/// Content of a sealed file.
#[derive(Debug, Default)]
pub struct UnsealedFile {
    /// The plain file; lost parts are zeros.
    pub content: Vec<u8>,
    /// Its frames, in order.
    pub frames: Vec<Frame>,
    /// Offset in the sealed file of the first bytes that are not an authentic frame.
    pub first_bad: Option<u64>,
}

/// A frame that was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Start of its content in the plain file.
    pub start: u64,
    /// Length of the plain file after this frame.
    pub len_after: u64,
    /// Offset of the next frame in the sealed file.
    pub end: u64,
}

/// The front of a candidate for a frame.
struct Front {
    salt: [u8; SALT_BYTES],
    number: u64,
    start: u64,
    kind: Kind,
    place: usize,
    text: std::ops::Range<usize>,
}

struct Reading<'a> {
    vault: &'a Vault,
    path: &'a Path,
    name: &'a str,
    file: &'a [u8],
    /// Bytes of failed openings that are still permitted.
    tries: usize,
    /// Number of bytes that are opened at once: a single frame after a failure, then twice as much
    /// as succeeded. So, apart from the bad frames themselves, failed openings have at most twice
    /// the bytes of successful ones.
    room: usize,
    found: UnsealedFile,
}

impl Reading<'_> {
    fn run(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.file.len() {
            let run = self.run_at(at);
            let contents = self.open_first(&run)?;
            for (front, content) in run.iter().zip(&contents) {
                self.apply(front, content.as_slice()?)?;
                at = front.text.end;
            }
            match run.is_empty() || contents.len() < run.len() {
                true => (at, self.room) = (self.next_mark(at), 0),
                false => self.room = self.room.max(2 * text_bytes(&run)).min(OPEN_BYTES),
            }
        }
        Ok(())
    }

    /// Opens frames of one writer, up to the first that is not authentic.
    fn open_first(&mut self, mut run: &[Front]) -> Result<Vec<Bytes>> {
        loop {
            match self.open(run)? {
                Ok(contents) => return Ok(contents),
                Err(bad) => {
                    let before = &run[..bad.min(run.len() - 1)];
                    self.spend(text_bytes(&run[before.len()..]))?;
                    run = before;
                }
            }
        }
    }

    /// Consecutive fronts of one writer, as many as are opened at once.
    fn run_at(&self, at: usize) -> Vec<Front> {
        let (mut run, mut at, mut bytes): (Vec<Front>, usize, usize) = (Vec::new(), at, 0);
        while let Some(front) =
            self.front_at(at).filter(|front| run.first().is_none_or(|first| first.salt == front.salt))
        {
            if bytes > 0 && bytes + front.text.len() > self.room {
                break;
            }
            bytes += front.text.len();
            at = front.text.end;
            run.push(front);
        }
        run
    }

    fn front_at(&self, place: usize) -> Option<Front> {
        let mut fields = Fields::new(self.file.get(place..)?);
        if fields.bytes(MARK.len())? != MARK {
            return None;
        }
        let (salt, number, start) = (fields.array()?, fields.u64()?, fields.u64()?);
        let kind = match fields.u8()? {
            0 => Kind::Last,
            1 => Kind::Patch,
            _ => return None,
        };
        let bytes = usize::try_from(fields.u32()?).ok().filter(|bytes| *bytes <= FRAME_BYTES_MAX)?;
        let text = place + FRONT_BYTES..place + FRONT_BYTES + bytes + TAG_BYTES;
        (text.end <= self.file.len()).then_some(Front { salt, number, start, kind, place, text })
    }

    /// Opens frames of one writer; on failure, the index of the frame that is not authentic.
    fn open(&self, run: &[Front]) -> Result<Result<Vec<Bytes>, usize>> {
        let Some(first) = run.first() else { return Ok(Ok(Vec::new())) };
        let key = self.vault.frame_key(&first.salt)?;
        let mut nonces = Vec::with_capacity(run.len() * 12);
        for front in run {
            nonces.extend(PREFIX);
            nonces.extend(front.number.to_be_bytes());
        }
        let texts: Vec<Bytes> =
            run.iter().map(|front| Bytes::from_vec(self.file[front.text.clone()].to_vec())).collect();
        let told = |front: &Front| {
            Bytes::from_vec(associate(self.name, front.place as u64, &self.file[front.place..front.text.start]))
        };
        let associated: Vec<Bytes> = run.iter().map(told).collect();
        let open = Open::new(&key, Nonces::Given(nonces.into()), texts).associated(Messages::from(associated));
        match self.vault.runtime.run(open).wait() {
            Ok(opened) => Ok(Ok(opened.into_list()?)),
            Err(panoply_core::Error::Rejected { index, .. }) => Ok(Err(index)),
            Err(error) => Err(error.into()),
        }
    }

    fn apply(&mut self, front: &Front, content: &[u8]) -> Result<()> {
        let damaged = || Error::damaged(self.path, "a frame belongs where nothing can be");
        let plain = &mut self.found.content;
        let start = usize::try_from(front.start).map_err(|_| damaged())?;
        // Lost content cannot be longer than the sealed file, so an authentic frame never asks for
        // more memory than that.
        if start > plain.len() && start - plain.len() > self.file.len() {
            return Err(damaged());
        }
        if front.kind == Kind::Last {
            plain.truncate(start);
        }
        plain.resize(plain.len().max(start + content.len()), 0);
        plain[start..start + content.len()].copy_from_slice(content);
        let (len_after, end) = (plain.len() as u64, front.text.end as u64);
        self.found.frames.push(Frame { start: front.start, len_after, end });
        Ok(())
    }

    /// The next offset behind `at` at which a frame may begin; the file's end if there is none.
    /// Zeros at the end of a file are ignored.
    fn next_mark(&mut self, at: usize) -> usize {
        if self.file[at..].iter().any(|byte| *byte != 0) {
            self.found.first_bad.get_or_insert(at as u64);
        }
        let behind = &self.file[(at + 1).min(self.file.len())..];
        behind.windows(MARK.len()).position(|window| window == MARK).map_or(self.file.len(), |place| at + 1 + place)
    }

    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.tries = self
            .tries
            .checked_sub(bytes.max(TRY_BYTES_MIN))
            .ok_or_else(|| Error::damaged(self.path, "too much of it looks like frames, and is not authentic"))?;
        Ok(())
    }
}

/// Total bytes of the frames' texts.
fn text_bytes(run: &[Front]) -> usize {
    run.iter().map(|front| front.text.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_cpu::CpuBackend;

    fn vault() -> Result<Vault> {
        let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build();
        let runtime = Arc::new(runtime.map_err(|error| Error::invalid("runtime", "one", error))?);
        Vault::create(runtime, &MasterKey::from_bytes(vec![1; 32])?, PassphraseCost::default())
    }

    fn unseal(vault: &Vault, file: &[u8]) -> UnsealedFile {
        vault.unseal(Path::new("folder/name"), "name", file).unwrap()
    }

    #[test]
    fn frames_make_the_file_that_they_were_made_of() {
        let vault = vault().unwrap();
        let mut sealer = vault.sealer("name").unwrap();
        let mut file = Vec::new();
        let mut add = |sealer: &mut Sealer, start, kind, content: &[u8]| {
            let frames = sealer.seal(file.len() as u64, start, kind, content).unwrap();
            file.extend(frames);
        };
        add(&mut sealer, 0, Kind::Last, b"hello, world");
        add(&mut sealer, 5, Kind::Last, b"");
        add(&mut sealer, 5, Kind::Last, b" there");
        add(&mut vault.sealer("name").unwrap(), 0, Kind::Patch, b"J");
        let long = vec![7; FRAME_BYTES_MAX + 10];
        add(&mut sealer, 11, Kind::Last, &long);
        file.extend([0; 100]);
        let found = unseal(&vault, &file);
        assert!(found.content == [b"Jello there", &long[..]].concat() && found.first_bad.is_none());
        assert_eq!((found.frames.len(), found.frames[5].end), (6, file.len() as u64 - 100));
        let head = vault.seal_head(b"text").unwrap();
        assert!(Vault::is_head(&head) && vault.open_again(Path::new("head"), &head).unwrap() == b"text");
    }

    /// Regression: opening used the default cost, so a vault with a higher cost never opened.
    #[test]
    fn a_vault_opens_with_the_cost_that_it_was_made_with() {
        let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build();
        let runtime = Arc::new(runtime.map_err(|error| Error::invalid("runtime", "one", error)).unwrap());
        let key = MasterKey::passphrase(b"open sesame".to_vec()).unwrap();
        // More work than is permitted by default, in little memory.
        let cost = PassphraseCost { memory_kib: 8, passes: 100_000, lanes: 1 };
        let head = Vault::create(Arc::clone(&runtime), &key, cost).unwrap().seal_head(b"text").unwrap();
        let open = |cost| Vault::open(Arc::clone(&runtime), Path::new("f"), Path::new("f/h"), &head, &key, cost);
        assert_eq!(open(cost).unwrap().1, b"text");
        assert!(matches!(open(PassphraseCost::default()), Err(Error::CostlyPassphrase { .. })));
    }

    /// However a file is altered, only written content is handed out; everything else is zeros and
    /// reported.
    #[test]
    fn frames_that_are_altered_cut_moved_or_of_another_file_are_none() {
        let vault = vault().unwrap();
        let mut sealer = vault.sealer("name").unwrap();
        let mut file = Vec::new();
        for number in 0..5_u8 {
            let frame =
                sealer.seal(file.len() as u64, file.len() as u64 / 87 * 10, Kind::Last, &[number + 1; 10]).unwrap();
            assert_eq!(frame.len(), 87);
            file.extend(frame);
        }
        for place in 0..file.len() {
            let mut altered = file.clone();
            altered[place] ^= 1 << (place % 8);
            let found = unseal(&vault, &altered);
            assert_eq!(found.first_bad, Some((place / 87 * 87) as u64), "byte {place}");
            let lost = place / 87;
            let expected = (0..5_u8).flat_map(|number| [if usize::from(number) == lost { 0 } else { number + 1 }; 10]);
            let expected: Vec<u8> = expected.take(if lost == 4 { 40 } else { 50 }).collect();
            assert_eq!(found.content, expected, "byte {place}");
            let cut = unseal(&vault, &file[..place]);
            assert_eq!((cut.content.len(), cut.first_bad.is_some()), (place / 87 * 10, place % 87 != 0));
        }
        let mut swapped = file.clone();
        swapped[..174].rotate_left(87);
        assert_eq!(unseal(&vault, &swapped).content[..20], [0; 20]);
        assert!(vault.unseal(Path::new("folder/other"), "other", &file).unwrap().content.is_empty());
        assert!(unseal(&self::vault().unwrap(), &file).content.is_empty());
    }

    /// Regression: each damaged frame used up sixteen megabytes of the budget for failed openings,
    /// so that five of them were too many.
    #[test]
    fn many_damaged_frames_leave_the_others() {
        const FRAMES: usize = 400;
        const BYTES: usize = 40_000;
        let vault = vault().unwrap();
        let mut sealer = vault.sealer("name").unwrap();
        let mut file = Vec::new();
        for number in 0..FRAMES {
            let (place, start) = (file.len() as u64, (number * BYTES) as u64);
            file.extend(sealer.seal(place, start, Kind::Last, &[number as u8 | 1; BYTES]).unwrap());
        }
        let frame_bytes = file.len() / FRAMES;
        let is_lost = |number: usize| number % 10 == 7 || number == 8;
        for number in (0..FRAMES).filter(|number| is_lost(*number)) {
            file[number * frame_bytes + FRONT_BYTES + 5] ^= 1;
        }
        let found = unseal(&vault, &file);
        assert_eq!(found.first_bad, Some(7 * frame_bytes as u64));
        for (number, content) in found.content.chunks(BYTES).enumerate() {
            let expected = if is_lost(number) { 0 } else { number as u8 | 1 };
            assert!(content.iter().all(|byte| *byte == expected), "frame {number}");
        }
        assert_eq!((found.content.len(), found.frames.len()), (FRAMES * BYTES, FRAMES - 41));
    }

    /// Many imitated frames do not take unbounded time.
    #[test]
    fn imitated_frames_are_given_up() {
        let vault = vault().unwrap();
        let front = vault.sealer("name").unwrap().front(0, Kind::Last, FRAME_BYTES_MAX);
        let mut file = front.repeat(1000);
        file.resize(file.len() + FRAME_BYTES_MAX + 16, 0);
        assert!(matches!(vault.unseal(Path::new("name"), "name", &file), Err(Error::Damaged { .. })));
    }

    /// Regression: each mark costs a key derivation; a few megabytes of marks took a minute, and a
    /// file of gigabytes hours.
    #[test]
    fn a_file_of_nothing_but_marks_is_given_up_soon() {
        let marks: Vec<u8> = [*MARK, [0; 8]].concat().repeat(8192);
        assert!(vault().unwrap().unseal(Path::new("folder/name"), "name", &marks).is_err());
    }
}

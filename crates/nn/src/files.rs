//! Parameters in `safetensors` files, with PyTorch's names.
//!
//! A file from elsewhere is untrusted data: its header is bounded, its offsets must cover the file
//! without gaps, and every defect is an error. Writing is atomic: the new file replaces the old one
//! completely or not at all.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use panoply_core::{DType, HostBufferMut, Shape, Tensor, bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::error::{Error, Result};
use crate::parameters::Parameters;

/// The largest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 30;

/// Ending of the temporary name of a file that is being written.
pub(crate) const UNFINISHED: &str = ".tmp";
/// Number of attempts to lock a temporary file, and the pause between two.
const ATTEMPTS_MAX: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The contents of a file.
#[derive(Clone, Debug, Default)]
pub struct ParameterFile {
    /// The tensors.
    pub parameters: Parameters,
    /// The notes: the metadata of the file's header.
    pub notes: HashMap<String, String>,
    /// Names of tensors whose element type is not supported, such as the counters that PyTorch's
    /// batch norm keeps.
    pub skipped: Vec<String>,
}

/// Writes parameters, which must be on the host, and notes. A file that [`load`] would refuse as
/// too large is not written.
pub fn save(path: &Path, parameters: &Parameters, notes: HashMap<String, String>) -> Result<()> {
    let bytes = to_bytes(parameters, notes).map_err(|reason| Error::file(path, reason))?;
    replace(path, &bytes)
}

/// Reads a file.
pub fn load(path: &Path) -> Result<ParameterFile> {
    let refused = |reason: String| Error::file(path, reason);
    let mut file = open(path)?;
    let length = file.metadata().map_err(|error| refused(error.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(refused(format!("it has {length} bytes, more than the {FILE_BYTES_MAX} that are read")));
    }
    let mut bytes = Vec::new();
    // If the file grows meanwhile, the new part is not read.
    Read::by_ref(&mut file).take(length).read_to_end(&mut bytes).map_err(|error| refused(error.to_string()))?;
    from_bytes(&bytes).map_err(refused)
}

/// Opens a file to read it. Anything but a regular file is refused: opening a pipe without a writer
/// would block.
pub(crate) fn open(path: &Path) -> Result<File> {
    let refused = |error: std::io::Error| Error::file(path, error);
    match std::fs::metadata(path).map_err(refused)?.is_file() {
        true => File::open(path).map_err(refused),
        false => Err(Error::file(path, "it is no file")),
    }
}

/// Parses the contents of a file. The error describes the defect.
pub fn from_bytes(bytes: &[u8]) -> Result<ParameterFile, String> {
    let (_, head) = SafeTensors::read_metadata(bytes).map_err(|error| format!("not a safetensors file: {error}"))?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| format!("not a safetensors file: {error}"))?;
    let notes = head.metadata().iter().flatten().map(|(name, note)| (name.clone(), note.clone())).collect();
    let mut loaded = ParameterFile { notes, ..ParameterFile::default() };
    for (name, view) in file.iter() {
        match dtype_of(view.dtype()) {
            Some(dtype) => {
                let made = tensor(dtype, &view).map_err(|error| format!("tensor {name:?}: {error}"))?;
                loaded.parameters.insert(name, made);
            }
            None => loaded.skipped.push(name.to_owned()),
        }
    }
    loaded.skipped.sort();
    Ok(loaded)
}

/// The contents of a file with these parameters and notes.
pub fn to_bytes(parameters: &Parameters, notes: HashMap<String, String>) -> Result<Vec<u8>, String> {
    check_size(parameters)?;
    let mut whole = Vec::new();
    for (name, tensor) in parameters.iter() {
        let tensor = tensor.contiguous().map_err(|error| format!("tensor {name:?}: {error}"))?;
        whole.push((name, tensor));
    }
    let mut views = Vec::new();
    for (name, tensor) in &whole {
        let dtype =
            file_dtype(tensor.dtype()).ok_or_else(|| format!("tensor {name:?}: no {} in files", tensor.dtype()))?;
        let bytes = tensor.as_bytes().map_err(|error| format!("tensor {name:?}: {error}"))?;
        let view = TensorView::new(dtype, tensor.shape().to_vec(), bytes).map_err(|error| error.to_string())?;
        views.push((*name, view));
    }
    let notes = if notes.is_empty() { None } else { Some(notes.into_iter().collect()) };
    safetensors::serialize(views, notes).map_err(|error| error.to_string())
}

/// Refuses parameters that [`load`] would refuse, before anything is copied. The estimate adds the
/// names and shapes to the tensors' bytes.
fn check_size(parameters: &Parameters) -> Result<(), String> {
    const HEAD_OF_EACH: u64 = 512;
    let bytes = parameters.iter().map(|(name, tensor)| {
        let bytes = (tensor.elements() as u64).saturating_mul(tensor.dtype().size_bytes() as u64);
        bytes.saturating_add(name.len() as u64 + HEAD_OF_EACH)
    });
    let bytes = bytes.fold(0, u64::saturating_add);
    match bytes <= FILE_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("it would have {bytes} bytes, more than the {FILE_BYTES_MAX} that are read")),
    }
}

/// Writes a temporary file beside the path, syncs it to the disk and renames it to the path. The
/// temporary file is locked meanwhile, so two writers of one path do not mix their bytes. If a
/// writer is killed, the next one of this path overwrites its temporary file.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let refused = |error: std::io::Error| Error::file(path, error);
    // If the path is a link, the file that it points to is replaced, and not the link. Devices,
    // pipes and folders are refused.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(Error::file(path, "it is there, and is no file"));
    }
    let mut beside: OsString = path.as_os_str().to_owned();
    beside.push(UNFINISHED);
    let beside = Path::new(&beside);
    let mut file = unfinished(beside).map_err(refused)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| std::fs::rename(beside, path)) {
        // Remove the incomplete file; it would only take space, possibly on a full disk.
        let _ = std::fs::remove_file(beside);
        return Err(refused(error));
    }
    // The name itself must reach the disk, so the folder is synced. Only Unix can open folders.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = if cfg!(unix) { File::open(folder).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    synced.map_err(refused)
}

/// Opens, locks and empties a temporary file.
fn unfinished(beside: &Path) -> io::Result<File> {
    for _ in 0..ATTEMPTS_MAX {
        let file = File::options().write(true).create(true).truncate(false).open(beside)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            // Another writer may have renamed the file, or removed it, before it was locked here.
            _ if !is_same_file(&file, beside) => {}
            // A file system without locks is no error.
            _ => return file.set_len(0).map(|()| file),
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "another process is writing it"))
}

/// Removes the temporary file of a killed writer. One that is being written stays.
pub(crate) fn remove_unfinished(beside: &Path) {
    // Opening a pipe would wait for its other end.
    if !std::fs::symlink_metadata(beside).is_ok_and(|metadata| metadata.is_file()) {
        return;
    }
    let Ok(file) = File::options().write(true).open(beside) else { return };
    // The lock is held until the name is gone, so that no writer takes the file meanwhile.
    if file.try_lock().is_ok() && is_same_file(&file, beside) {
        let _ = std::fs::remove_file(beside);
    }
}

/// Whether the path names the open file.
#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (own, other) = (file.metadata().map(place), std::fs::symlink_metadata(path).map(place));
    own.is_ok_and(|own| other.is_ok_and(|other| own == other))
}

/// On other systems an open file cannot be renamed or removed by others.
#[cfg(not(unix))]
fn is_same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

impl Parameters {
    /// Casts all floats to f32, from any float type in which they were saved.
    pub fn to_f32(&self) -> Result<Parameters> {
        let wide = |tensor: &Tensor| -> panoply_core::Result<Tensor> {
            let dims = tensor.shape();
            match tensor.dtype() {
                DType::F16 => Tensor::from_vec(tensor.to_vec::<f16>()?.iter().map(|v| v.to_f32()).collect(), dims),
                DType::BF16 => Tensor::from_vec(tensor.to_vec::<bf16>()?.iter().map(|v| v.to_f32()).collect(), dims),
                DType::F64 => Tensor::from_vec(tensor.to_vec::<f64>()?.iter().map(|v| *v as f32).collect(), dims),
                _ => Ok(tensor.clone()),
            }
        };
        self.iter().map(|(name, tensor)| Ok((name.to_owned(), wide(tensor)?))).collect()
    }
}

fn tensor(dtype: DType, view: &TensorView<'_>) -> panoply_core::Result<Tensor> {
    let shape = Shape::new(view.shape())?;
    let expected = shape.elements() * dtype.size_bytes();
    if expected != view.data().len() {
        return Err(panoply_core::Error::invalid("its bytes", expected.to_string(), view.data().len()));
    }
    // Copies the data, because tensors in a file are not aligned.
    let mut buffer = HostBufferMut::zeroed(expected)?;
    buffer.bytes_mut().copy_from_slice(view.data());
    Tensor::from_host(dtype, shape, buffer.freeze())
}

fn dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F64 => DType::F64,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        _ => return None,
    })
}

fn file_dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Parameters {
        let mut parameters = Parameters::new();
        parameters
            .insert("fc1.weight", Tensor::from_vec(vec![1.0_f32, -2.0, 3.5, 0.0, 1e-30, f32::MAX], [2, 3]).unwrap());
        parameters.insert("fc1.bias", Tensor::from_vec(vec![f16::from_f32(0.5); 3], [3]).unwrap());
        parameters.insert("0.index", Tensor::from_vec(vec![7_u8, 8, 9], [3]).unwrap());
        parameters.insert("nothing", Tensor::zeros(DType::F32, [0, 4]).unwrap());
        parameters
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let notes = HashMap::from([("step".to_owned(), "12".to_owned())]);
        let bytes = to_bytes(&sample(), notes.clone()).unwrap();
        let loaded = from_bytes(&bytes).unwrap();
        assert_eq!((loaded.notes, loaded.skipped.len(), loaded.parameters.len()), (notes, 0, 4));
        for (name, tensor) in sample().iter() {
            let got = loaded.parameters.get(name).unwrap();
            assert_eq!((got.dtype(), got.shape(), got.as_bytes()), (tensor.dtype(), tensor.shape(), tensor.as_bytes()));
        }
        let wide = loaded.parameters.to_f32().unwrap();
        assert_eq!(wide.get("fc1.bias").unwrap().to_vec::<f32>().unwrap(), [0.5; 3]);
    }

    #[test]
    #[cfg(unix)]
    fn links_are_followed_and_what_is_no_file_stays() {
        let folder = std::env::temp_dir().join(format!("panoply-nn-files-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("folder")).unwrap();
        assert!(replace(&folder.join("folder"), b"1").unwrap_err().to_string().contains("no file"));
        let (file, link) = (folder.join("file"), folder.join("link"));
        std::fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_could_not_be_read_is_not_written() {
        let mut parameters = Parameters::new();
        // One element broadcast to eight billion: no memory is used for it.
        let huge = Tensor::scalar(1.0_f32).unwrap().broadcast_to([1 << 16, 1 << 17]).unwrap();
        parameters.insert("huge", huge);
        assert!(to_bytes(&parameters, HashMap::new()).unwrap_err().contains("more than the"));
    }

    #[test]
    fn a_file_that_is_not_written_leaves_nothing_beside_it() {
        let folder = std::env::temp_dir().join(format!("panoply-nn-files-{}", std::process::id()));
        // A folder has the name that the file should get.
        let path = folder.join("parameters");
        std::fs::create_dir_all(path.join("inside")).unwrap();
        assert!(save(&path, &sample(), HashMap::new()).is_err());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Regression: two writers of one path wrote into the same temporary file.
    #[test]
    fn the_temporary_file_of_a_living_writer_is_not_touched() {
        let folder = std::env::temp_dir().join(format!("panoply-nn-unfinished-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, beside) = (folder.join("file"), folder.join("file.tmp"));
        let held = unfinished(&beside).unwrap();
        remove_unfinished(&beside);
        assert!(beside.exists());
        assert!(replace(&path, b"theirs").unwrap_err().to_string().contains("another process"));
        // A killed writer leaves its file, without a lock.
        drop(held);
        std::fs::write(&beside, b"longer than what follows").unwrap();
        replace(&path, b"whole").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), beside.exists()), (b"whole".to_vec(), false));
        std::fs::write(&beside, b"left").unwrap();
        remove_unfinished(&beside);
        assert!(!beside.exists() && path.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("panoply-nn-pipes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        let pipe = if made.is_ok_and(|status| status.success()) { pipe } else { folder.clone() };
        for path in [&pipe, &folder, &folder.join("nothing")] {
            assert!(load(path).is_err(), "{}", path.display());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn hostile_files_are_refused() {
        let head = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        let with_data = |text: &str, bytes: usize| [head(text), vec![0; bytes]].concat();
        let cases = [
            Vec::new(),
            vec![0; 7],
            u64::MAX.to_le_bytes().to_vec(),
            (1_u64 << 40).to_le_bytes().to_vec(),
            head("{"),
            head("[]"),
            head(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#),
            with_data(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4),
            with_data(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4),
            with_data(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 8),
            with_data(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8),
            with_data(
                r#"{"a":{"dtype":"F32","shape":[18446744073709551615,18446744073709551615],"data_offsets":[0,4]}}"#,
                4,
            ),
            with_data(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, 0),
            with_data(r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#, 4),
            with_data(r#"{"a":{"dtype":"X","shape":[1],"data_offsets":[0,4]}}"#, 4),
            with_data(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#,
                6,
            ),
        ];
        for (number, case) in cases.iter().enumerate() {
            assert!(from_bytes(case).is_err(), "case {number}");
        }
    }

    #[test]
    fn no_change_of_a_byte_causes_a_panic() {
        let bytes = to_bytes(&sample(), HashMap::new()).unwrap();
        for place in 0..bytes.len() {
            for flip in [0x01, 0x20, 0xff] {
                let mut changed = bytes.clone();
                changed[place] ^= flip;
                let _ = from_bytes(&changed);
            }
            let _ = from_bytes(&bytes[..place]);
        }
    }
}

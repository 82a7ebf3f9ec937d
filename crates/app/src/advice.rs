//! What a user can do about an error, in the words of the command line.

use std::io;

use panoply::store;
use panoply::vector::Error;
use panoply::vector::formats::FormatError;

/// Advice that goes beyond what the error says itself.
pub fn about(error: &anyhow::Error) -> Option<String> {
    let own = error.chain().find_map(|cause| cause.downcast_ref::<Error>()).and_then(of_collection);
    let own = own.or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<store::Error>()).and_then(of_store));
    own.or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<FormatError>()).and_then(of_file))
}

fn of_collection(error: &Error) -> Option<String> {
    match error {
        Error::NotACollection { path, .. } => {
            Some(format!("`panoply vectors create {} --dimension N` makes a collection", path.display()))
        }
        Error::AlreadyExists { path } => Some(format!(
            "import into it if it is a collection, or delete that first: `panoply vectors delete {} --yes`",
            path.display()
        )),
        Error::IdExists { .. } => Some("import with --replace to replace records that are there already".to_owned()),
        Error::NotFinite { value, .. } if value.is_finite() => {
            Some("a collection that was made with --storage f32 holds larger numbers".to_owned())
        }
        Error::ZeroVector { .. } => {
            Some("leave it out, or make the collection with --metric dot or --metric euclidean".to_owned())
        }
        Error::InUse { .. } => Some("wait until the other command has ended; searching does not need to".to_owned()),
        Error::Corrupt { path, .. } | Error::NotAFile { path } => path.parent().map(|folder| {
            let folder = folder.display();
            format!("`panoply vectors repair {folder}` says what can be saved, and changes nothing without --apply")
        }),
        Error::LengthOutOfRange { .. } => {
            Some("scale the vectors; under cosine their lengths do not matter".to_owned())
        }
        Error::Format(error) => of_file(error),
        _ => None,
    }
}

fn of_store(error: &store::Error) -> Option<String> {
    match error {
        store::Error::NotAStore { path, .. } => {
            let path = path.display();
            Some(format!("`panoply store init {path} --key-file FILE --generate` makes a store, and a key for it"))
        }
        store::Error::ObjectExists { .. } => {
            Some("put it with --replace to replace it, or with --append to add to it".to_owned())
        }
        store::Error::NoObject { .. } => {
            Some("`panoply store ls` names the objects that are there; `put` without --append makes one".to_owned())
        }
        store::Error::InUse { .. } => Some("--wait 60 waits for up to a minute".to_owned()),
        store::Error::KeyKind { expected: "a key", .. } => {
            Some("name the key's origin: --key-file or --key-env".to_owned())
        }
        store::Error::KeyKind { .. } => {
            Some("--passphrase asks for it, --passphrase-file names a file with it".to_owned())
        }
        store::Error::RolledBack { anchor, .. } => {
            Some(format!("if you put the copy back yourself, delete {}, which knows the newer one", anchor.display()))
        }
        store::Error::Damaged { path, .. } => path.parent().map(|folder| {
            let store = if folder.ends_with("data") { folder.parent().unwrap_or(folder) } else { folder };
            format!("`panoply store verify {}` names every object that is damaged", store.display())
        }),
        _ => None,
    }
}

fn of_file(error: &FormatError) -> Option<String> {
    match error {
        FormatError::Io { source } if source.kind() == io::ErrorKind::NotFound => {
            let here = std::env::current_dir().ok()?;
            Some(format!("check the path; unless it begins with a slash it counts from {}", here.display()))
        }
        FormatError::NotFinite { .. } => {
            Some("mend or leave out such rows, with NumPy: array[numpy.isfinite(array).all(axis=1)]".to_owned())
        }
        FormatError::CountMismatch { .. } => {
            Some("--records needs one line for each vector, in their order".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn advice_is_found_below_what_was_added_to_an_error() {
        let exists = Err::<(), _>(Error::IdExists { id: "a".to_owned() }).context("the import ended");
        assert!(about(&exists.unwrap_err()).unwrap().contains("--replace"));
        let missing = FormatError::Io { source: io::Error::from(io::ErrorKind::NotFound).into() };
        let missing = Err::<(), _>(Error::Format(missing)).context("x.npy cannot be read");
        assert!(about(&missing.unwrap_err()).unwrap().contains("check the path"));
        assert_eq!(about(&anyhow::anyhow!("something else")), None);
    }
}

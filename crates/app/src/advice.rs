//! Advice about errors, in terms of the command line.

use std::io;
use std::path::Path;

use panoply::BuildError;
use panoply::settings::{Settings, SettingsError};
use panoply::spelling::nearest;
use panoply::store;
use panoply::vector::Error;
use panoply::vector::formats::FormatError;

use crate::missing_model::MissingModel;

/// Advice beyond the error's own text.
pub fn about(error: &anyhow::Error) -> Option<String> {
    let own = error.chain().find_map(|cause| cause.downcast_ref::<Error>()).and_then(of_collection);
    let own = own.or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<store::Error>()).and_then(of_store));
    let own = own.or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<FormatError>()).and_then(of_file));
    let own =
        own.or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<MissingModel>()).map(MissingModel::advice));
    own.or_else(|| error.chain().any(is_without_device).then(of_settings).flatten())
}

fn is_without_device(cause: &(dyn std::error::Error + 'static)) -> bool {
    let in_settings = || matches!(cause.downcast_ref(), Some(SettingsError::Build(BuildError::NoDevice { .. })));
    matches!(cause.downcast_ref(), Some(BuildError::NoDevice { .. })) || in_settings()
}

/// Advice if the settings may be the reason that there is no device.
fn of_settings() -> Option<String> {
    let settings = Settings::load().ok()?;
    let leave_some_out =
        settings.only.is_some() || !settings.leave_out.is_empty() || !settings.selection.pick.is_empty();
    let advice = "the settings leave devices out (`[devices]` in panoply.toml, or PANOPLY_DEVICES_*): `panoply devices` shows which";
    leave_some_out.then(|| advice.to_owned())
}

fn of_collection(error: &Error) -> Option<String> {
    match error {
        Error::NotACollection { path, .. } if is_free(path) => {
            Some(format!("`panoply vectors create {} --dimension N` makes a collection", path.display()))
        }
        Error::NotACollection { .. } => {
            Some("name the folder of a collection, or of a new one for `panoply vectors create`".to_owned())
        }
        Error::AlreadyExists { path } => Some(format!(
            "if it is a collection, `panoply vectors info {}` shows it; a new one needs another folder",
            path.display()
        )),
        Error::IdExists { .. } => Some(
            "import with --replace to replace records that are there already; \
             where ids are the numbers of rows, --id-prefix keeps files apart"
                .to_owned(),
        ),
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
        Error::UnknownField { field, known } => {
            // The list of fields may end in "and 3 more".
            let known: Vec<&str> = known.split(", ").map(|name| name.split(" and ").next().unwrap_or(name)).collect();
            nearest(field, &known).map(|name| format!("did you mean `{name}`?"))
        }
        Error::OtherModel { expected, .. } => {
            Some(format!("use the model {}, or make another collection for the new one", expected.file))
        }
        _ => None,
    }
}

fn of_store(error: &store::Error) -> Option<String> {
    match error {
        store::Error::NotAStore { path, .. } if is_free(path) => {
            let path = path.display();
            Some(format!("`panoply store init {path} --key-file FILE --generate` makes a store, and a key for it"))
        }
        store::Error::NotAStore { .. } => {
            Some("name the folder of a store, or a new folder for `panoply store init`".to_owned())
        }
        store::Error::ObjectExists { .. } => {
            Some("put it with --replace to replace it, or with --append to add to it".to_owned())
        }
        store::Error::NoObject { .. } => Some("`panoply store ls` names the objects that are there".to_owned()),
        store::Error::InUse { .. } => Some("--wait 60 waits for up to a minute".to_owned()),
        store::Error::KeyKind { expected: "a key", .. } => {
            Some("name the key's origin: --key-file or --key-env".to_owned())
        }
        store::Error::KeyKind { .. } => {
            Some("--passphrase asks for it, --passphrase-file names a file with it".to_owned())
        }
        store::Error::RolledBack { path, .. } | store::Error::AnchorTooOld { path, .. } => {
            let path = path.display();
            Some(format!(
                "if you put the copy back yourself, `panoply store repair {path} --apply --new-anchor` takes it for the newest state"
            ))
        }
        // The store is intact, or nothing is known about it: its anchor is of no use.
        store::Error::DamagedAnchor { path, anchor, .. } => {
            let (path, anchor) = (path.display(), anchor.display());
            Some(format!(
                "if you trust the store as it is, remove {anchor}; then `panoply store repair {path} --apply --new-anchor` makes a new one"
            ))
        }
        store::Error::OlderHead { path, .. } => store_of(path).map(|store| {
            let store = store.display();
            format!("`panoply store repair {store} --apply` takes the store up to the newest commit in its log")
        }),
        store::Error::WrongKey { path } => {
            let path = path.display();
            Some(format!(
                "if you are sure of the key, the head is damaged: `panoply store repair {path}` says what can be saved, and changes nothing without --apply"
            ))
        }
        store::Error::UnknownFormat { path, .. } => store_of(path).map(|store| {
            let store = store.display();
            format!(
                "another version of panoply opens it; if it was never of that format, `panoply store repair {store}` says what can be saved"
            )
        }),
        store::Error::CostlyPassphrase { .. } => {
            Some("if you have asked for so much yourself, --passphrase-memory MIB allows it".to_owned())
        }
        // An extent belongs to one object: the rest of the store is intact.
        store::Error::Damaged { path, .. } if is_extent(path) => store_of(path)
            .map(|store| format!("`panoply store verify {}` names every object that is damaged", store.display())),
        store::Error::Damaged { path, .. } => store_of(path).map(|store| {
            let store = store.display();
            format!("`panoply store repair {store}` says what can be saved, and changes nothing without --apply")
        }),
        _ => None,
    }
}

/// Whether a new store or collection can be made at this path: it does not exist, or is an empty
/// folder.
fn is_free(path: &Path) -> bool {
    match path.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The folder of the store that a file belongs to. A store itself may be called `data`.
fn store_of(file: &Path) -> Option<&Path> {
    let folder = file.parent()?;
    let is_in_data = folder.ends_with("data") && (file.ends_with("KEYS") || has_name_of_extent(file));
    if is_in_data { folder.parent() } else { Some(folder) }
}

fn is_extent(file: &Path) -> bool {
    file.parent().is_some_and(|folder| folder.ends_with("data")) && has_name_of_extent(file)
}

/// Whether a file's name is 64 hexadecimal digits.
fn has_name_of_extent(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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

    /// Regression: for a folder such as /etc the advice was to make a store of it.
    #[test]
    fn only_a_free_path_is_offered_for_a_new_store_or_collection() {
        let store = |path: &str| of_store(&store::Error::NotAStore { path: path.into(), reason: "" }).unwrap();
        let collection =
            |path: &str| of_collection(&Error::NotACollection { path: path.into(), reason: String::new() }).unwrap();
        let taken = std::env::temp_dir().join(format!("panoply-advice-{}", std::process::id()));
        std::fs::create_dir_all(&taken).unwrap();
        let free = taken.join("new").display().to_string();
        std::fs::write(taken.join("file"), "").unwrap();
        let taken = taken.display().to_string();
        assert!(store(&free).contains(&format!("store init {free}")));
        assert!(collection(&free).contains(&format!("vectors create {free}")));
        assert!(!store(&taken).contains(&taken) && !collection(&taken).contains(&taken));
        std::fs::remove_dir_all(&taken).unwrap();
    }

    /// Regression: the advice for a damaged anchor named the folder of anchors, the advice for a
    /// damaged head of a store called `data` named its objects, and a head with another key or
    /// format got no advice.
    #[test]
    fn the_store_that_is_to_be_repaired_is_named() {
        let damaged = |path: &str| store::Error::Damaged { path: path.into(), reason: "it is cut short" };
        let extent = format!("/a/data/data/{}", "0a".repeat(32));
        let other = format!("/a/data/{}", "0g".repeat(32));
        let anchor = store::Error::DamagedAnchor {
            path: "/a/safe".into(),
            anchor: "/home/state/0123".into(),
            reason: "it is no anchor of a store",
        };
        let format =
            store::Error::UnknownFormat { path: "/a/data/HEAD".into(), expected: "2 and 3".to_owned(), got: '1' };
        let older = store::Error::OlderHead { path: "/a/data/HEAD".into(), expected: 5, got: 2 };
        for (error, expected) in [
            (damaged("/a/data/HEAD"), "store repair /a/data`"),
            (damaged("/a/data/catalog-00"), "store repair /a/data`"),
            (damaged("/a/data/data"), "store repair /a/data`"),
            (damaged("/a/data/data/KEYS"), "store repair /a/data`"),
            (damaged("/a/safe/HEAD"), "store repair /a/safe`"),
            (damaged(&extent), "store verify /a/data`"),
            (damaged(&other), "store repair /a/data`"),
            (anchor, "store repair /a/safe --apply --new-anchor`"),
            (store::Error::WrongKey { path: "/a/data".into() }, "store repair /a/data`"),
            (format, "store repair /a/data`"),
            (older, "store repair /a/data --apply`"),
        ] {
            let advice = of_store(&error).unwrap();
            assert!(advice.contains(expected), "{error}: {advice}");
        }
    }
}

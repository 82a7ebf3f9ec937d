//! The sources of keys.

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context, anyhow};
use panoply::store::MasterKey;
use panoply::store::key::PASSPHRASE_BYTES_MAX;
use zeroize::Zeroizing;

use crate::configuration::store::KeySource;
use crate::failure::{Failure, warn};
use crate::secrets;
use crate::terminal::hidden_line;

/// The key of an existing store.
pub fn read(source: &KeySource) -> Result<MasterKey, Failure> {
    match source {
        KeySource::Terminal => ask("Passphrase: "),
        source => read_silently(source),
    }
}

/// The key for a new store, or a new key for a store: a passphrase is asked for twice, and a key
/// may be generated. A weak passphrase is refused, or only warned about if `may_be_weak` is set.
pub fn read_new(source: &KeySource, may_be_weak: bool) -> Result<MasterKey, Failure> {
    let key = read_any_new(source)?;
    match key.weakness() {
        Some(weakness) if may_be_weak => warn(format!("the passphrase is weak: {weakness}")),
        Some(weakness) => {
            let advice = "choose a longer one, or insist with --weak-passphrase";
            return Err(anyhow!("the passphrase is weak: {weakness}; {advice}").into());
        }
        None => {}
    }
    Ok(key)
}

fn read_any_new(source: &KeySource) -> Result<MasterKey, Failure> {
    match source {
        KeySource::Terminal => {
            let (first, second) = (secret_line("New passphrase: ")?, secret_line("The same again: ")?);
            if first != second {
                return Err(anyhow!("the two passphrases are not the same").into());
            }
            passphrase(first)
        }
        KeySource::Generated(file) => {
            let key = MasterKey::generate()?;
            let there_before = file.symlink_metadata().is_ok();
            match key.write_new_file(file) {
                Err(error) if there_before => {
                    let advice = "if an earlier attempt made this key and failed, leave --generate out to take it";
                    Err(anyhow!("{error}; {advice}").into())
                }
                written => Ok(written.map(|()| key)?),
            }
        }
        KeySource::File(file) if is_missing(file) => {
            let file = file.display();
            Err(anyhow!("{file} does not exist; --generate makes a new key and this file for it").into())
        }
        source => read_silently(source),
    }
}

fn is_missing(file: &Path) -> bool {
    file.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read_silently(source: &KeySource) -> Result<MasterKey, Failure> {
    Ok(match source {
        KeySource::File(file) | KeySource::Generated(file) => MasterKey::from_file(file),
        KeySource::Environment(name) => match secrets::taken(name) {
            Some(text) => MasterKey::from_text(&text, &format!("the environment variable {name}")),
            None => MasterKey::from_environment(name),
        },
        KeySource::PassphraseFile(file) => MasterKey::passphrase_from_file(file),
        KeySource::PassphraseEnvironment(name) => match secrets::taken(name) {
            Some(text) => MasterKey::passphrase_from_text(&text),
            None => MasterKey::passphrase_from_environment(name),
        },
        KeySource::Terminal => return ask("Passphrase: "),
    }?)
}

fn ask(prompt: &str) -> Result<MasterKey, Failure> {
    passphrase(secret_line(prompt)?)
}

/// Makes a key from a passphrase; the text is wiped.
fn passphrase(mut text: Zeroizing<Vec<u8>>) -> Result<MasterKey, Failure> {
    Ok(MasterKey::passphrase(std::mem::take(&mut *text))?)
}

/// Reads a line from the terminal without echo.
fn secret_line(prompt: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    if !io::stderr().is_terminal() {
        let advice = "name its origin: --key-file, --key-env or --passphrase-file";
        return Err(anyhow!("there is no key, and no terminal to ask for a passphrase; {advice}").into());
    }
    Ok(hidden_line(prompt, PASSPHRASE_BYTES_MAX).context("the passphrase cannot be read")?)
}

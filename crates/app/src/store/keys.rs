//! Where keys come from.

use std::io::{self, IsTerminal};

use anyhow::{Context, anyhow};
use panoply::store::MasterKey;
use panoply::store::key::PASSPHRASE_BYTES_MAX;
use zeroize::Zeroizing;

use crate::configuration::store::KeySource;
use crate::failure::Failure;
use crate::terminal::hidden_line;

/// The key of a store that is there.
pub fn read(source: &KeySource) -> Result<MasterKey, Failure> {
    match source {
        KeySource::Terminal => ask("Passphrase: "),
        source => read_silently(source),
    }
}

/// The key for a new store, or a new key for one: a passphrase is asked for twice, and what is to be generated is.
pub fn read_new(source: &KeySource) -> Result<MasterKey, Failure> {
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
            key.write_new_file(file)?;
            Ok(key)
        }
        source => read_silently(source),
    }
}

fn read_silently(source: &KeySource) -> Result<MasterKey, Failure> {
    Ok(match source {
        KeySource::File(file) | KeySource::Generated(file) => MasterKey::from_file(file),
        KeySource::Environment(name) => MasterKey::from_environment(name),
        KeySource::PassphraseFile(file) => MasterKey::passphrase_from_file(file),
        KeySource::PassphraseEnvironment(name) => MasterKey::passphrase_from_environment(name),
        KeySource::Terminal => return ask("Passphrase: "),
    }?)
}

fn ask(prompt: &str) -> Result<MasterKey, Failure> {
    passphrase(secret_line(prompt)?)
}

/// The text is wiped, wherever it goes.
fn passphrase(mut text: Zeroizing<Vec<u8>>) -> Result<MasterKey, Failure> {
    Ok(MasterKey::passphrase(std::mem::take(&mut *text))?)
}

/// A line that is not shown while it is typed.
fn secret_line(prompt: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    if !io::stderr().is_terminal() {
        let advice = "name its origin: --key-file, --key-env or --passphrase-file";
        return Err(anyhow!("there is no key, and no terminal to ask for a passphrase; {advice}").into());
    }
    Ok(hidden_line(prompt, PASSPHRASE_BYTES_MAX).context("the passphrase cannot be read")?)
}

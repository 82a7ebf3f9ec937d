//! The message about a command's commit if a signal ends the command: made, not made, or unknown.
//! See [`crate::gate`].

use std::sync::Arc;

use panoply::store::{Error, Store};

use crate::failure::{Failure, say_on_interrupt};
use crate::gate::Gate;

/// The final messages of a command that makes one commit.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Nothing was committed.
    pub before: &'static str,
    /// The commit was made.
    pub after: &'static str,
    /// It is unknown whether the commit was made.
    pub unknown: &'static str,
}

/// The known state of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Made {
    #[default]
    No,
    Yes,
    /// It failed in a way that leaves the outcome unclear.
    Unknown,
}

/// The one commit of a command.
pub struct Commit(Arc<Gate<Made>>);

impl Commit {
    /// From now on a signal prints the message for the current state.
    pub fn announced(words: Words) -> Commit {
        let gate: Arc<Gate<Made>> = Arc::default();
        let seen = Arc::clone(&gate);
        say_on_interrupt(move |_| {
            let text = seen.close(|made| match made {
                Made::No => words.before,
                Made::Yes => words.after,
                Made::Unknown => words.unknown,
            });
            format!("interrupted; {}", text.unwrap_or(words.unknown))
        });
        Commit(gate)
    }

    /// Makes the commit. `commit` returns with its error whether the outcome is unclear.
    pub fn make<T, E>(&self, commit: impl FnOnce() -> Result<T, (E, bool)>) -> Result<T, (E, bool)> {
        let mut made = self.0.pass();
        let outcome = commit();
        *made = match &outcome {
            Ok(_) => Made::Yes,
            Err((_, true)) => Made::Unknown,
            Err((_, false)) => Made::No,
        };
        outcome
    }
}

/// Whether the state of the disk is unclear after a failed commit.
pub fn is_unclear(store: &mut Store) -> bool {
    matches!(store.batch(), Err(Error::WritesStopped { .. }))
}

/// The failure of a commit; `unknown` is added if the outcome is unclear.
pub fn failure(error: impl Into<anyhow::Error>, is_unclear: bool, unknown: &'static str) -> Failure {
    let error: anyhow::Error = error.into();
    if is_unclear { error.context(unknown).into() } else { error.into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;

    /// Regression: a failure with an unclear outcome was reported as one after which nothing has
    /// changed.
    #[test]
    fn a_commit_that_may_have_been_made_is_neither_made_nor_not() {
        let commit = Commit(Arc::default());
        let known = || *commit.0.pass();
        assert_eq!(known(), Made::No);
        for (outcome, expected) in [(Err(((), true)), Made::Unknown), (Err(((), false)), Made::No), (Ok(()), Made::Yes)]
        {
            let _ = commit.make(|| outcome);
            assert_eq!(known(), expected);
        }
    }
}

//! The message about a command's commit if a signal ends the command: made, not made, or unknown.
//! See [`crate::gate`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
pub enum CommitState {
    #[default]
    No,
    Yes,
    /// It failed in a way that leaves the outcome unclear.
    Unknown,
}

/// The one commit of a command.
pub struct Commit(Arc<Gate<CommitState>>);

impl Commit {
    /// From now on a signal prints the message for the current state.
    pub fn announced(words: Words) -> Commit {
        Commit::announced_by(move |made| match made {
            CommitState::No => words.before.to_owned(),
            CommitState::Yes => words.after.to_owned(),
            CommitState::Unknown => words.unknown.to_owned(),
        })
    }

    /// The same with messages that are made when they are needed.
    pub fn announced_by(say: impl Fn(CommitState) -> String + Send + 'static) -> Commit {
        let gate: Arc<Gate<CommitState>> = Arc::default();
        let seen = Arc::clone(&gate);
        say_on_interrupt(move |_| {
            let made = seen.close(|made| *made).unwrap_or(CommitState::Unknown);
            format!("interrupted; {}", say(made))
        });
        Commit(gate)
    }

    /// Makes the commit. `commit` returns with its error whether the outcome is unclear.
    pub fn make<T, E>(&self, commit: impl FnOnce() -> Result<T, (E, bool)>) -> Result<T, (E, bool)> {
        let mut made = self.0.pass();
        let outcome = commit();
        *made = match &outcome {
            Ok(_) => CommitState::Yes,
            Err((_, true)) => CommitState::Unknown,
            Err((_, false)) => CommitState::No,
        };
        outcome
    }
}

/// A step that may take long. A signal does not wait for its end.
pub struct Step(Arc<AtomicBool>);

impl Step {
    /// From now on a signal prints one of these messages. `before` must be true at every moment of
    /// the step, also at its end.
    pub fn announced(before: impl Into<String>, after: impl Into<String>) -> Step {
        let (before, after, done) = (before.into(), after.into(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&done);
        say_on_interrupt(move |_| {
            let known = if seen.load(Ordering::Acquire) { &after } else { &before };
            format!("interrupted; {known}")
        });
        Step(done)
    }

    /// Call after the step.
    pub fn end(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Whether it is unclear if a commit that failed with this error was made. It was not made if
/// another writer was the cause, although nothing more can be written then.
pub fn is_unclear(error: &Error, store: &mut Store) -> bool {
    !matches!(error, Error::Overtaken { .. }) && matches!(store.batch(), Err(Error::WritesStopped { .. }))
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
        assert_eq!(known(), CommitState::No);
        for (outcome, expected) in
            [(Err(((), true)), CommitState::Unknown), (Err(((), false)), CommitState::No), (Ok(()), CommitState::Yes)]
        {
            let _ = commit.make(|| outcome);
            assert_eq!(known(), expected);
        }
    }
}

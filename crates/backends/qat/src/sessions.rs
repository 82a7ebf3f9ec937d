//! Sessions that are kept for further ops: beginning one costs the library and the device more than
//! a small message does.
//!
//! 1. A session belongs to an instance, a mode, a length of associated data, and a key. Keys differ
//!    by their numbers, so no copy of a key is kept here.
//! 2. At most [`SESSIONS_MAX`] sessions that no op uses are kept; the one that was used least
//!    recently ends first.
//! 3. A session ends, and the data that the device derived from its key is wiped, when no handle to
//!    its key is left, or when no op has used it between two looks at the engine's health. The
//!    worker looks at an idle engine until then.

use std::rc::Rc;

use panoply_core::op::crypto::{Key, WeakKey};

use crate::instance::{Mode, OpenInstance, Session, Setup};
use crate::library::QatError;

/// Maximum number of sessions that are kept although no op uses them.
pub(crate) const SESSIONS_MAX: usize = 64;

/// The properties that requests with one session have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionKind {
    /// The index of the instance.
    pub(crate) place: usize,
    /// The length of the associated data.
    pub(crate) aad_len: usize,
    work: WorkKind,
}

/// The work of a session. The number is that of the key, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkKind {
    Symmetric(Mode, Option<u64>),
    Pack { compresses: bool, level: u32, checksum: u32 },
}

impl SessionKind {
    /// `None` if no session is needed.
    pub(crate) fn new(place: usize, aad_len: usize, setup: &Setup<'_>, key: Option<&Key>) -> Option<SessionKind> {
        let work = match *setup {
            Setup::None => return None,
            Setup::Symmetric(mode, _) => WorkKind::Symmetric(mode, key.map(Key::number)),
            Setup::Pack { compresses, level, checksum } => WorkKind::Pack { compresses, level, checksum },
        };
        Some(SessionKind { place, aad_len, work })
    }
}

/// A session, and when it ends.
struct KeptSession {
    kind: SessionKind,
    session: Rc<Session>,
    key: Option<WeakKey>,
    /// Whether an op has used it since the last look.
    is_fresh: bool,
}

/// The sessions of one engine. The last one was used most recently.
#[derive(Default)]
pub(crate) struct Sessions(Vec<KeptSession>);

impl Sessions {
    /// The session of this kind: a kept one, or a new one.
    pub(crate) fn get(
        &mut self,
        kind: SessionKind,
        instance: &Rc<OpenInstance>,
        setup: Setup<'_>,
        key: Option<&Key>,
    ) -> Result<Option<Rc<Session>>, QatError> {
        let kept = match self.0.iter().position(|kept| kept.kind == kind) {
            Some(index) => KeptSession { is_fresh: true, ..self.0.remove(index) },
            None => {
                let Some(session) = Session::begin(instance, setup, kind.aad_len)? else { return Ok(None) };
                KeptSession { kind, session: Rc::new(session), key: key.map(Key::downgrade), is_fresh: true }
            }
        };
        let session = Rc::clone(&kept.session);
        self.0.push(kept);
        Ok(Some(session))
    }

    /// Ends sessions of keys that are gone, and those beyond the bound. Called between ops.
    pub(crate) fn trim(&mut self) {
        self.0.retain(|kept| kept.is_used() || kept.key.as_ref().is_none_or(WeakKey::is_alive));
        let mut surplus = self.0.iter().filter(|kept| !kept.is_used()).count().saturating_sub(SESSIONS_MAX);
        self.0.retain(|kept| {
            let ends = surplus > 0 && !kept.is_used();
            surplus -= usize::from(ends);
            !ends
        });
    }

    /// Ends sessions that no op has used since the last look.
    pub(crate) fn look(&mut self) {
        self.trim();
        self.0.retain_mut(|kept| kept.is_used() || std::mem::take(&mut kept.is_fresh));
    }

    /// Takes all sessions out.
    pub(crate) fn take(&mut self) -> Vec<Rc<Session>> {
        self.0.drain(..).map(|kept| kept.session).collect()
    }
}

impl KeptSession {
    fn is_used(&self) -> bool {
        Rc::strong_count(&self.session) > 1
    }
}

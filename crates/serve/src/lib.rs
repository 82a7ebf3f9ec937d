//! Models for many callers, and the tasks that models are used for.
//!
//! 1. [`Server`] joins the requests of many callers into batches.
//! 2. [`Repository`] keeps a folder of models ready, each with a server.
//! 3. [`Ensemble`] chains models and the stages around them.
//! 4. [`tasks`] classifies and detects objects in pictures, and embeds pictures and texts.
//!
//! Models come from `panoply-models`, pictures and texts from `panoply-inputs`.

mod ensemble;
mod error;
mod repository;
mod server;
pub mod tasks;

pub use ensemble::{Ensemble, Member, Stage};
pub use error::{Error, Result};
pub use repository::{ModelState, Repository, RepositoryOptions};
pub use server::{ServeOptions, Server, Ticket};

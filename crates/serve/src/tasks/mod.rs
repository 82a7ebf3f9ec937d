//! Common tasks: a model runs on a picture or a text, and its output becomes classes, boxes, a
//! vector or a score.
//!
//! The types of the answers are those of [`panoply_inputs::tasks`].

pub(crate) mod boxes;
mod classify;
mod detect;
mod embed;
mod frame;

pub use classify::{classify, classify_with};
pub use detect::{Detector, OPEN_SIDE, detect};
pub use embed::{embed_pictures, embed_texts, score, text_inputs};
pub use frame::frame_of;

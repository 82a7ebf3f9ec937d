//! Common tasks on top of models: classes, boxes, embeddings and scores.

pub(crate) mod boxes;
mod classify;
pub(crate) mod detect;
mod embed;

pub use classify::{Class, Labels, classes, classify, classify_with};
pub use detect::{DetectOptions, Detection, Detector, boxes, detect, suppress};
pub use embed::{embed_pictures, embed_texts, score, text_inputs};

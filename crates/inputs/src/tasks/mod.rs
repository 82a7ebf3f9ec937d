//! The outputs of classifiers, detectors and embedding models as classes, boxes and unit vectors.

mod classify;
mod detect;
mod embed;

pub use classify::{Class, Labels, classes};
pub use detect::{BoxForm, BoxLayout, CANDIDATES_MAX, DetectOptions, Detection, boxes, in_picture, suppress};
pub use embed::{text_vectors, unit};

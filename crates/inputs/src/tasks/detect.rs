//! Objects in pictures, as boxes.

use crate::error::{Error, Result};
use crate::picture::{Normalisation, Placement};

/// The most candidates compared with each other. Candidates with lower scores are dropped.
pub const CANDIDATES_MAX: usize = 4096;

/// An object in a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Left, top, right and bottom in pixels of the picture.
    pub corners: [f32; 4],
    /// The index of its class.
    pub class: usize,
    /// The name of its class, if labels are known.
    pub label: Option<String>,
    /// Its score, 0 to 1.
    pub score: f32,
}

/// The options of detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectOptions {
    /// The lowest score of an object.
    pub score_min: f32,
    /// The largest overlap (intersection over union) of two boxes of a class. If two boxes overlap
    /// more, only the one with the higher score is kept.
    pub overlap_max: f32,
    /// The most objects.
    pub count_max: usize,
    /// The conversion from bytes to the model's numbers.
    pub normalisation: Normalisation,
}

impl Default for DetectOptions {
    fn default() -> DetectOptions {
        DetectOptions { score_min: 0.25, overlap_max: 0.45, count_max: 300, normalisation: Normalisation::Unit }
    }
}

/// The layout of a detector's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BoxLayout {
    /// `[1, 4 + classes, boxes]`: centre and size, then a score for each class.
    Across,
    /// `[1, boxes, 5 + classes]`: centre and size, an objectness score, then a score for each
    /// class.
    Down,
    /// `[1, boxes, 6]`: corners, score, class.
    Corners,
}

/// The form of a detector's output: its layout, the number of boxes, and the numbers per box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoxForm {
    /// The layout.
    pub layout: BoxLayout,
    /// Number of boxes.
    pub count: usize,
    /// Numbers per box.
    pub width: usize,
    /// Whether the output has a leading dimension of one.
    pub is_batch: bool,
}

impl BoxForm {
    /// The form of an output with these dimensions. Fails if the output does not hold boxes.
    pub fn of(dims: &[usize]) -> Result<BoxForm> {
        let refused = || Error::unsupported(format!("boxes in an output of the shape {dims:?}"));
        let (rows, columns) = match *dims {
            [1, rows, columns] | [rows, columns] => (rows, columns),
            _ => return Err(refused()),
        };
        // There are more boxes than numbers per box. This decides the direction.
        let (layout, count, width) = match (rows, columns) {
            (_, 6) if rows != 6 => (BoxLayout::Corners, rows, 6),
            _ if columns > rows => (BoxLayout::Across, columns, rows),
            _ => (BoxLayout::Down, rows, columns),
        };
        let form = BoxForm { layout, count, width, is_batch: dims.len() == 3 };
        if form.width < 5 { Err(refused()) } else { Ok(form) }
    }
}

/// Converts corners from the model's pixels to those of the picture, clamped to its width and
/// height `sizes`.
pub fn in_picture(corners: [f32; 4], placement: &Placement, sizes: [f32; 2]) -> [f32; 4] {
    let mut place = 0;
    corners.map(|corner| {
        let axis = place % 2;
        place += 1;
        ((corner - placement.start[axis]) / placement.scale[axis]).clamp(0.0, sizes[axis].max(0.0))
    })
}

/// The boxes of one picture in the model's pixels, from the elements of an output with these
/// dimensions. [`BoxLayout`] lists the outputs that are understood.
pub fn boxes(dims: &[usize], values: &[f64], score_min: f32) -> Result<Vec<Detection>> {
    let BoxForm { layout, count, width, .. } = BoxForm::of(dims)?;
    if count.checked_mul(width) != Some(values.len()) {
        return Err(Error::invalid("boxes", format!("the numbers of {dims:?}"), values.len()));
    }
    if layout == BoxLayout::Corners {
        let objects = values.chunks_exact(6).map(|row| Detection {
            corners: [row[0] as f32, row[1] as f32, row[2] as f32, row[3] as f32],
            class: row[5].max(0.0) as usize,
            label: None,
            score: row[4] as f32,
        });
        return Ok(objects.filter(|object| object.score >= score_min).collect());
    }
    let across = layout == BoxLayout::Across;
    let at = |object: usize, place: usize| {
        if across { values[place * count + object] } else { values[object * width + place] }
    };
    let (first, certain) = if across { (4, false) } else { (5, true) };
    let mut found = Vec::new();
    for object in 0..count {
        let likely = |class: usize| at(object, class) * if certain { at(object, 4) } else { 1.0 };
        let best = (first..width).max_by(|a, b| likely(*a).total_cmp(&likely(*b)));
        let (class, score) = best.map_or((0, at(object, 4)), |best| (best - first, likely(best)));
        if score as f32 >= score_min {
            let [x, y, w, h] = [0, 1, 2, 3].map(|place| at(object, place) as f32);
            let corners = [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
            found.push(Detection { corners, class, label: None, score: score as f32 });
        }
    }
    Ok(found)
}

/// Non-maximum suppression: of overlapping boxes the one with the highest score is kept. Results
/// are in descending order of score.
pub fn suppress(mut found: Vec<Detection>, options: &DetectOptions) -> Vec<Detection> {
    found.retain(|object| object.corners.iter().all(|corner| corner.is_finite()));
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(CANDIDATES_MAX);
    let mut kept: Vec<Detection> = Vec::new();
    for object in found {
        let hidden = kept
            .iter()
            .any(|other| other.class == object.class && overlaps(&other.corners, &object.corners, options.overlap_max));
        if !hidden && kept.len() < options.count_max {
            kept.push(object);
        }
    }
    kept
}

/// Whether the intersection over union of two boxes exceeds `overlap_max`.
fn overlaps(a: &[f32; 4], b: &[f32; 4], overlap_max: f32) -> bool {
    let area = |corners: &[f32; 4]| (corners[2] - corners[0]).max(0.0) * (corners[3] - corners[1]).max(0.0);
    let shared = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let covered = area(a) + area(b) - shared;
    shared > covered * overlap_max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_of_a_class_hide_each_other() {
        let object =
            |left: f32, class, score| Detection { corners: [left, 0.0, left + 10.0, 10.0], class, label: None, score };
        let options = DetectOptions::default();
        let kept = suppress(
            vec![object(1.0, 0, 0.5), object(0.0, 0, 0.9), object(1.0, 1, 0.6), object(50.0, 0, 0.3)],
            &options,
        );
        let left: Vec<(f32, usize)> = kept.iter().map(|object| (object.corners[0], object.class)).collect();
        assert_eq!(left, [(0.0, 0), (1.0, 1), (50.0, 0)]);
        assert!(suppress(vec![object(f32::NAN, 0, 0.9)], &options).is_empty());
    }

    #[test]
    fn all_three_layouts_are_read() {
        // Two classes, seven boxes; one box has a high score.
        let mut across = vec![0.0; 6 * 7];
        for (place, value) in [10.0, 20.0, 4.0, 6.0, 0.1, 0.8].into_iter().enumerate() {
            across[place * 7 + 3] = value;
        }
        let found = boxes(&[1, 6, 7], &across, 0.25).unwrap();
        assert_eq!((found.len(), found[0].class, found[0].corners), (1, 1, [8.0, 17.0, 12.0, 23.0]));
        let mut down = vec![0.0; 9 * 7];
        down[14..21].copy_from_slice(&[10.0, 20.0, 4.0, 6.0, 0.5, 0.1, 0.9]);
        let found = boxes(&[1, 9, 7], &down, 0.25).unwrap();
        assert_eq!((found.len(), found[0].class, (found[0].score * 100.0).round()), (1, 1, 45.0));
        let corners = [1.0, 2.0, 3.0, 4.0, 0.9, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let found = boxes(&[1, 2, 6], &corners, 0.25).unwrap();
        assert_eq!((found.len(), found[0].class, found[0].corners), (1, 7, [1.0, 2.0, 3.0, 4.0]));
        assert!(boxes(&[2, 2], &[0.0; 4], 0.25).is_err());
    }
}

//! Resizes pictures with a triangle filter: bilinear where a picture grows, and an average of all
//! covered pixels where it shrinks.

use super::Picture;

/// The source pixels of one output pixel along an axis, and their weights, which add up to 1.
struct Window {
    start: usize,
    weights: Vec<f32>,
}

/// The picture at another size. Both sides of the picture are at least 1.
pub(super) fn resized(picture: &Picture, width: u32, height: u32) -> Picture {
    if (width, height) == (picture.width, picture.height) {
        return picture.clone();
    }
    let (across, down) = (windows(picture.width, width), windows(picture.height, height));
    let mut bytes = Vec::with_capacity(width as usize * height as usize * 3);
    let mut row = vec![0.0_f32; picture.width as usize * 3];
    for window in &down {
        row.fill(0.0);
        for (y, weight) in (window.start as u32..).zip(&window.weights) {
            row.iter_mut().zip(picture.row(y)).for_each(|(sum, byte)| *sum += f32::from(*byte) * weight);
        }
        let (pixels, _) = row.as_chunks::<3>();
        bytes.extend(across.iter().flat_map(|window| mixed(&pixels[window.start..], &window.weights)));
    }
    Picture { width, height, bytes }
}

fn mixed(pixels: &[[f32; 3]], weights: &[f32]) -> [u8; 3] {
    let mut sums = [0.0_f32; 3];
    for (pixel, weight) in pixels.iter().zip(weights) {
        sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += value * weight);
    }
    sums.map(|sum| sum.clamp(0.0, 255.0).round() as u8)
}

/// The windows of an axis of `from` pixels that becomes one of `to` pixels.
fn windows(from: u32, to: u32) -> Vec<Window> {
    let ratio = from as f32 / to as f32;
    // A filter narrower than one source pixel would skip pixels.
    let reach = ratio.max(1.0);
    let window = |at: u32| {
        let centre = (at as f32 + 0.5) * ratio;
        let start = ((centre - reach).floor() as i64).clamp(0, i64::from(from) - 1);
        let end = ((centre + reach).ceil() as i64).clamp(start + 1, i64::from(from));
        let distance = |source: i64| (source as f32 - (centre - 0.5)) / reach;
        let mut weights: Vec<f32> = (start..end).map(|source| (1.0 - distance(source).abs()).max(0.0)).collect();
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Window { start: start as usize, weights }
    };
    (0..to).map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shrunk_picture_averages_all_pixels_and_a_grown_one_interpolates() {
        let picture = Picture::from_rgb(4, 1, [0, 80, 160, 240].iter().flat_map(|byte| [*byte; 3]).collect()).unwrap();
        // The left pixel is (3/4 × 0 + 3/4 × 80 + 1/4 × 160) / (7/4).
        assert_eq!(resized(&picture, 2, 1).bytes, [[57; 3], [183; 3]].concat());
        let pair = Picture::from_rgb(2, 1, vec![0, 0, 0, 100, 100, 100]).unwrap();
        assert_eq!(resized(&pair, 4, 2).bytes, [[0; 3], [25; 3], [75; 3], [100; 3]].concat().repeat(2));
    }

    #[test]
    fn one_colour_stays_one_colour_at_any_size() {
        let picture = Picture::from_rgb(37, 23, [9, 130, 255].repeat(37 * 23)).unwrap();
        for (width, height) in [(1, 1), (5, 300), (111, 7), (74, 46)] {
            assert_eq!(resized(&picture, width, height).bytes, [9, 130, 255].repeat((width * height) as usize));
        }
    }
}

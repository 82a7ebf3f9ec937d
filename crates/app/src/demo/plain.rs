//! A plain loop on one thread: a dot product with every row, then the best few. Every device must
//! find the same hits, and the loop's time is the baseline for the devices.

use std::time::{Duration, Instant};

use super::data::{Data, Question};

/// Returns for each question the row indices and scores of the best packages, and the median time
/// of a question.
pub fn answers(data: &Data, hits: usize) -> (Vec<Vec<(usize, f32)>>, Duration) {
    let mut times = Vec::new();
    let answer = |question: &Question| {
        let start = Instant::now();
        let answer = search(data, question, hits);
        times.push(start.elapsed());
        answer
    };
    let answers = data.questions.iter().map(answer).collect();
    times.sort_unstable();
    (answers, times.get(times.len() / 2).copied().unwrap_or_default())
}

fn search(data: &Data, question: &Question, hits: usize) -> Vec<(usize, f32)> {
    let mut scores: Vec<(usize, f32)> = Vec::with_capacity(data.ids.len());
    for (row, vector) in data.vectors.chunks_exact(data.dimension).enumerate() {
        if let Some(filter) = &question.filter
            && !filter.matches(&data.metadata[row])
        {
            continue;
        }
        let (mut product, mut length) = (0.0, 0.0);
        for (a, b) in vector.iter().zip(&question.vector) {
            product += a * b;
            length += a * a;
        }
        scores.push((row, product / length.sqrt()));
    }
    let own = question.vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    scores.iter_mut().for_each(|(_, score)| *score /= own);
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    scores.truncate(hits);
    scores
}

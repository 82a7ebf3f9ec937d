//! The name that somebody meant who misspelt it.

/// The known name that is most similar to `wrong`; `None` if none is similar enough.
///
/// ```
/// use panoply::spelling::nearest;
///
/// assert_eq!(nearest("matmull", &["map", "matmul"]), Some("matmul"));
/// assert_eq!(nearest("x", &["map", "matmul"]), None);
/// ```
pub fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    let nearest = known.iter().map(|name| (distance(&wrong, &name.to_lowercase()), *name)).min()?;
    let (distance, name) = nearest;
    // A short name has few letters in common with anything.
    let distance_max = (name.chars().count().max(wrong.chars().count()) / 3).clamp(1, 4);
    (distance <= distance_max).then_some(name)
}

/// The edit distance (Levenshtein) of two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

//! Huffman codes of limited length, built from symbol counts.

/// Maximal number of symbols of a code: literals, the end of the block, and lengths.
pub const SYMBOLS_MAX: usize = 288;
/// Maximal length of a code.
pub const BITS_MAX: usize = 15;
/// Counts are capped at this, so that two passes sort them.
const COUNT_MAX: u32 = u16::MAX as u32;
/// Maximal depth of a tree with capped counts.
const DEPTH_MAX: usize = 31;

/// Computes the code lengths for `counts`, at most `limit` bits; zero for a symbol that does not
/// occur. There are always at least two codes, so that the set of codes is complete.
pub fn lengths_of(counts: &[u32], limit: usize, lengths: &mut [u8]) {
    debug_assert!(limit <= BITS_MAX && counts.len() <= SYMBOLS_MAX && counts.len() == lengths.len());
    lengths.fill(0);
    let mut sorted = [0_u32; SYMBOLS_MAX];
    let used = sort(counts, &mut sorted);
    let sorted = &sorted[..used];
    let symbol = |entry: u32| (entry & 0xffff) as usize;
    if used < 2 {
        let only = sorted.first().map_or(0, |entry| symbol(*entry));
        lengths[only] = 1;
        lengths[usize::from(only == 0)] = 1;
        return;
    }
    let mut of_length = depths(sorted);
    cut(&mut of_length, limit);
    // The rarest symbols get the longest codes.
    let mut rest = sorted;
    for (length, count) in of_length.iter().enumerate().rev() {
        let (these, others) = rest.split_at((*count as usize).min(rest.len()));
        these.iter().for_each(|entry| lengths[symbol(*entry)] = length as u8);
        rest = others;
    }
}

/// The codes of these lengths, with their first bit lowest.
pub fn codes_of(lengths: &[u8], codes: &mut [u16]) {
    let mut of_length = [0_u16; BITS_MAX + 1];
    for length in lengths {
        of_length[usize::from(*length) & BITS_MAX] += 1;
    }
    of_length[0] = 0;
    let mut next = [0_u16; BITS_MAX + 1];
    for length in 1..=BITS_MAX {
        next[length] = (next[length - 1] + of_length[length - 1]) << 1;
    }
    for (code, length) in codes.iter_mut().zip(lengths) {
        let length = usize::from(*length) & BITS_MAX;
        // A symbol without a code is shifted by sixteen, which leaves zero.
        *code = (u32::from(next[length].reverse_bits()) >> (16 - length)) as u16;
        next[length] += 1;
    }
}

/// Sorts the symbols that occur, rarest first. An entry has the count and, in its lower half, the
/// symbol. Returns the number of entries.
fn sort(counts: &[u32], sorted: &mut [u32; SYMBOLS_MAX]) -> usize {
    let mut entries = [0_u32; SYMBOLS_MAX];
    let (mut used, mut low, mut high) = (0, [0_u16; 256], [0_u16; 256]);
    for (symbol, count) in counts.iter().enumerate() {
        let count = (*count).min(COUNT_MAX);
        entries[used] = count << 16 | symbol as u32;
        low[(count & 0xff) as usize] += u16::from(count > 0);
        high[(count >> 8) as usize] += u16::from(count > 0);
        used += usize::from(count > 0);
    }
    let mut between = [0_u32; SYMBOLS_MAX];
    pass(&entries[..used], &mut low, 16, &mut between);
    pass(&between[..used], &mut high, 24, sorted);
    used
}

/// A stable counting sort by one byte; `places` has the number of entries with each byte.
fn pass(entries: &[u32], places: &mut [u16; 256], shift: u32, sorted: &mut [u32; SYMBOLS_MAX]) {
    let mut begin = 0;
    for place in places.iter_mut() {
        let count = *place;
        *place = begin;
        begin += count;
    }
    for entry in entries {
        let place = &mut places[(entry >> shift & 0xff) as usize];
        if let Some(to) = sorted.get_mut(usize::from(*place)) {
            *to = *entry;
        }
        *place += 1;
    }
}

/// Number of leaves of the optimal tree at each depth. Sums are created in ascending order, so the
/// smallest node is always at the head of one of two queues.
fn depths(sorted: &[u32]) -> [u32; DEPTH_MAX + 1] {
    let (mut leaves, mut sums) = ([u32::MAX; SYMBOLS_MAX + 1], [u32::MAX; SYMBOLS_MAX + 1]);
    for (leaf, entry) in leaves.iter_mut().zip(sorted) {
        *leaf = entry >> 16;
    }
    let mut parents = [0_u16; SYMBOLS_MAX + 1];
    let (mut leaf, mut node, last) = (0, 0, sorted.len() - 2);
    for made in 0..=last {
        let mut sum = 0;
        for _ in 0..2 {
            let takes_leaf = leaves[leaf] <= sums[node];
            sum += leaves[leaf].min(sums[node]);
            // Overwritten later if the node is not taken now.
            parents[node] = made as u16;
            leaf = (leaf + usize::from(takes_leaf)).min(SYMBOLS_MAX);
            node = (node + usize::from(!takes_leaf)).min(SYMBOLS_MAX);
        }
        sums[made] = sum;
    }
    let (mut depth_of, mut inner) = ([0_u8; SYMBOLS_MAX + 1], [0_u32; DEPTH_MAX + 1]);
    inner[0] = 1;
    for node in (0..last).rev() {
        let depth = (depth_of[usize::from(parents[node])] + 1).min(DEPTH_MAX as u8);
        depth_of[node] = depth;
        inner[usize::from(depth)] += 1;
    }
    let mut leaves_at = [0; DEPTH_MAX + 1];
    for depth in 1..=DEPTH_MAX {
        leaves_at[depth] = 2 * inner[depth - 1] - inner[depth];
    }
    leaves_at
}

/// Moves leaves that are deeper than the limit up to it, and makes room there by moving others
/// down.
fn cut(of_length: &mut [u32; DEPTH_MAX + 1], limit: usize) {
    let deeper: u32 = of_length[limit + 1..].iter().sum();
    if deeper == 0 {
        return;
    }
    of_length[limit + 1..].fill(0);
    of_length[limit] += deeper;
    let taken: u32 = (1..=limit).map(|length| of_length[length] << (limit - length)).sum();
    for _ in (1 << limit)..taken {
        // A shorter code becomes two codes that are a bit longer: its own, and one for a leaf that
        // was at the limit.
        let Some(shorter) = (1..limit).rev().find(|length| of_length[*length] > 0) else { return };
        of_length[shorter] -= 1;
        of_length[shorter + 1] += 2;
        of_length[limit] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Total cost of all occurrences, in bits.
    fn cost(counts: &[u32], lengths: &[u8]) -> u64 {
        counts.iter().zip(lengths).map(|(count, length)| u64::from(*count) * u64::from(*length)).sum()
    }

    /// Cost of the optimal code without a limit: the sum of all inner nodes.
    fn best_cost(counts: &[u32]) -> u64 {
        let mut heap: std::collections::BinaryHeap<_> =
            counts.iter().filter(|count| **count > 0).map(|count| std::cmp::Reverse(u64::from(*count))).collect();
        let mut cost = 0;
        while let (Some(first), Some(second)) = (heap.pop(), heap.pop()) {
            cost += first.0 + second.0;
            heap.push(std::cmp::Reverse(first.0 + second.0));
        }
        cost
    }

    #[test]
    fn codes_are_complete_limited_and_as_short_as_can_be() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for round in 0..2000 {
            let symbols = [2, 19, 30, 286][round % 4];
            let counts: Vec<u32> = (0..symbols)
                .map(|symbol| match round % 5 {
                    0 => random() % 60_000,
                    1 => random() >> (8 + random() % 23),
                    2 => u32::from(random() % 7 == 0),
                    3 => [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181][symbol % 18],
                    _ => 0,
                })
                .map(|count| count.min(COUNT_MAX))
                .collect();
            let limit = if symbols == 19 { 7 } else { 14 };
            let mut lengths = vec![0; symbols];
            lengths_of(&counts, limit, &mut lengths);
            let taken: u32 =
                lengths.iter().filter(|length| **length > 0).map(|length| 1 << (limit - usize::from(*length))).sum();
            assert_eq!(taken, 1 << limit, "{counts:?} {lengths:?}");
            let used = counts.iter().filter(|count| **count > 0).count();
            assert!(counts.iter().zip(&lengths).all(|(count, length)| *count == 0 || *length > 0));
            if used >= 2 {
                assert!(counts.iter().zip(&lengths).all(|(count, length)| *count > 0 || *length == 0));
                let longest = usize::from(lengths.iter().copied().max().unwrap_or(0));
                let (cost, best) = (cost(&counts, &lengths), best_cost(&counts));
                assert!(
                    longest < limit && cost == best || longest == limit && cost <= best + best / 4,
                    "{cost} {best}"
                );
            }
        }
    }

    #[test]
    fn codes_are_those_of_the_format() {
        // The example of RFC 1951, 3.2.2, bit-reversed.
        let mut codes = [0; 8];
        codes_of(&[3, 3, 3, 3, 3, 2, 4, 4], &mut codes);
        assert_eq!(codes, [0b010, 0b110, 0b001, 0b101, 0b011, 0b00, 0b0111, 0b1111]);
    }
}

//! Lists of numbers, one for each step or slot, in two blocks of memory.

/// A fixed number of lists of small numbers.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// By list: the place of its first number; and the end of the last list.
    starts: Vec<u32>,
    numbers: Vec<u32>,
}

impl Lists {
    /// Makes `count` lists. `for_each` is called twice, and must pass the same pairs of a list and
    /// a number both times. The numbers of a list keep their order.
    pub(crate) fn new(count: usize, for_each: impl Fn(&mut dyn FnMut(usize, usize))) -> Lists {
        let mut starts = vec![0_u32; count + 1];
        for_each(&mut |list, _| starts[list + 1] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut numbers = vec![0; sum as usize];
        // Entering a number moves the start of its list, and in the end to the next list's start.
        for_each(&mut |list, number| {
            numbers[starts[list] as usize] = number as u32;
            starts[list] += 1;
        });
        starts.rotate_right(1);
        starts[0] = 0;
        Lists { starts, numbers }
    }

    /// The numbers of a list. `None` if there is no such list.
    pub fn get(&self, list: usize) -> Option<&[u32]> {
        let (start, end) = (*self.starts.get(list)?, *self.starts.get(list + 1)?);
        self.numbers.get(start as usize..end as usize)
    }

    /// The numbers of a list, in order.
    pub fn of(&self, list: usize) -> impl Iterator<Item = usize> {
        self.get(list).unwrap_or_default().iter().map(|number| *number as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_lists_and_in_order() {
        let pairs = [(2, 7), (0, 5), (2, 1), (4, 9), (2, 3)];
        let lists = Lists::new(6, |enter| pairs.iter().for_each(|(list, number)| enter(*list, *number)));
        let all: Vec<Vec<usize>> = (0..7).map(|list| lists.of(list).collect()).collect();
        assert_eq!(all, [vec![5], vec![], vec![7, 1, 3], vec![], vec![9], vec![], vec![]]);
        assert_eq!((lists.get(5), lists.get(6)), (Some(&[][..]), None));
    }
}

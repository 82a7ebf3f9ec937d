//! A vendor library's plans, kept by problem.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

/// Plans by problem, and the problems for which there is no plan. When the table is full it is
/// emptied.
#[derive(Debug)]
pub struct KeptPlans<K, P> {
    plans: RefCell<HashMap<K, Option<Rc<P>>>>,
    plans_max: usize,
}

impl<K: Eq + Hash, P> KeptPlans<K, P> {
    /// An empty table that holds at most `plans_max` plans.
    pub fn new(plans_max: usize) -> KeptPlans<K, P> {
        KeptPlans { plans: RefCell::default(), plans_max }
    }

    /// The plan for a problem. `make` makes it on first use, or returns `None` if the library has
    /// none.
    pub fn get(&self, problem: K, make: impl FnOnce() -> Option<P>) -> Option<Rc<P>> {
        if let Some(plan) = self.plans.borrow().get(&problem) {
            return plan.clone();
        }
        let plan = make().map(Rc::new);
        let mut plans = self.plans.borrow_mut();
        if plans.len() >= self.plans_max {
            plans.clear();
        }
        plans.insert(problem, plan.clone());
        plan
    }

    /// Drops all plans.
    pub fn clear(&self) {
        self.plans.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_refusals_are_made_once_until_the_table_is_full() {
        let (kept, made) = (KeptPlans::new(2), std::cell::Cell::new(0));
        let get = |problem: u32| {
            kept.get(problem, || {
                made.set(made.get() + 1);
                (problem != 1).then_some(problem * 10)
            })
        };
        for _ in 0..2 {
            assert_eq!((get(0).as_deref(), get(1)), (Some(&0), None));
        }
        assert_eq!(made.get(), 2);
        // The third problem empties the table.
        assert_eq!((get(2).as_deref(), made.get()), (Some(&20), 3));
        assert_eq!((get(2).as_deref(), made.get()), (Some(&20), 3));
        assert_eq!((get(0).as_deref(), made.get()), (Some(&0), 4));
        kept.clear();
        assert_eq!((get(0).as_deref(), made.get()), (Some(&0), 5));
    }
}

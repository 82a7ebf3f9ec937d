//! The report of a run: each stage's counts and times, and where the run was held up.

use std::fmt;
use std::time::Duration;

use panoply_lockfree::ring::Ring;

/// A run as it is now, or as it was when it ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// How long it has been running.
    pub wall: Duration,
    /// How many threads it has.
    pub threads: usize,
    /// Every stage, from the source to the sink.
    pub stages: Vec<StageReport>,
    /// The run's progress.
    pub progress: Progress,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Items that the source has given.
    pub taken: u64,
    /// Items that have arrived at the end.
    pub arrived: u64,
    /// The total number of the source's items, if known.
    pub total: Option<u64>,
}

impl Progress {
    /// The fraction of items taken, from 0 to 1, if the total is known.
    pub fn fraction(&self) -> Option<f64> {
        let total = self.total?;
        Some(if total == 0 { 1.0 } else { (self.taken as f64 / total as f64).min(1.0) })
    }
}

/// One stage of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// How many items it may work on at the same time.
    pub parallelism: usize,
    /// Items it took.
    pub taken: u64,
    /// Items it output.
    pub given: u64,
    /// Items it left out, because they failed or because it filtered them.
    pub skipped: u64,
    /// Items it put into the dead letters.
    pub dead: u64,
    /// Attempts after the first.
    pub retried: u64,
    /// Items that were restarted elsewhere after a device had failed.
    pub replaced: u64,
    /// Items it held, or that waited for it, when the run ended early.
    pub dropped: u64,
    /// Time in which it worked on at least one item.
    pub busy: Duration,
    /// Time in which there was no room for its output.
    pub blocked: Duration,
    /// Time in which there was no input.
    pub starved: Duration,
    /// Time in which there was work but no thread for it, or the run was paused.
    pub held: Duration,
    /// Time spent on items, summed over those that were worked on at the same time.
    pub work: Duration,
    /// Items that wait for it now, plus positions reserved for items in flight to it.
    pub queued: usize,
    /// The largest value of `queued` so far.
    pub queued_max: usize,
    /// The capacity of its queue.
    pub queue_depth: usize,
    /// For a stage that is a link of a chain: how many items may be in flight in the chain, the
    /// work of the whole chain, and the work of the link with the most. Links share their lanes.
    pub(crate) chain: Option<(usize, Duration, Duration)>,
}

impl StageReport {
    /// The fraction of its capacity for simultaneous work that the stage used, from 0 to 1.
    pub fn occupancy(&self) -> f64 {
        let time = (self.busy + self.blocked + self.starved + self.held).as_secs_f64();
        let share = |work: f64, most: f64| if most > 0.0 { (work / most).min(1.0) } else { 0.0 };
        let work = self.work.as_secs_f64();
        match self.chain {
            // The link with the most work is as occupied as its chain.
            Some((lanes, all, most)) => share(all.as_secs_f64(), time * lanes as f64) * share(work, most.as_secs_f64()),
            None => share(work, time * self.parallelism.max(1) as f64),
        }
    }

    pub(crate) fn queue<T>(&mut self, ring: &Ring<T>) {
        (self.queued, self.queued_max, self.queue_depth) = (ring.used(), ring.used_max(), ring.capacity());
    }
}

impl Report {
    /// The stage that held up the others: the one with the highest occupancy.
    pub fn bottleneck(&self) -> Option<&StageReport> {
        let worked = self.stages.iter().filter(|stage| !stage.work.is_zero());
        worked.max_by(|a, b| a.occupancy().total_cmp(&b.occupancy()))
    }

    /// The bottleneck of the run, in one sentence.
    pub fn sentence(&self) -> String {
        let Some(stage) = self.bottleneck() else { return "No stage has done anything yet.".to_owned() };
        let percent = |part: f64| (100.0 * part).round();
        let share = |time: Duration| percent(time.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)).min(100.0);
        let busiest = percent(stage.occupancy());
        let held = self.stages.iter().max_by_key(|stage| stage.held);
        if let Some(held) = held.filter(|held| busiest < 70.0 && share(held.held) > busiest) {
            return format!(
                "The {} threads are the bottleneck: stage {} had work and waited for a thread {} % of the time.",
                self.threads,
                held.name,
                share(held.held)
            );
        }
        let lanes = match stage.parallelism {
            1 => String::new(),
            count => format!(" of its {count} lanes"),
        };
        format!(
            "Stage {} is the bottleneck: {busiest} %{lanes} occupied, {} items in {:.3} s, blocked {} % and starved {} % of \
             the time.",
            stage.name,
            stage.taken,
            self.wall.as_secs_f64(),
            share(stage.blocked),
            share(stage.starved),
        )
    }

    /// The stage with this name.
    pub fn stage(&self, name: &str) -> Option<&StageReport> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.stages.iter().map(|stage| stage.name.chars().count()).max().unwrap_or(0).max(5);
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / self.wall.as_secs_f64().max(1e-9);
        writeln!(f, "{:width$}  lanes   taken   given  busy %  blocked %  starved %  held %   queue", "stage")?;
        for stage in &self.stages {
            writeln!(
                f,
                "{:width$}  {:5} {:7} {:7}  {:6.1}  {:9.1}  {:9.1}  {:6.1}  {:2} of {}",
                stage.name,
                stage.parallelism,
                stage.taken,
                stage.given,
                percent(stage.busy),
                percent(stage.blocked),
                percent(stage.starved),
                percent(stage.held),
                stage.queued_max,
                stage.queue_depth,
            )?;
        }
        f.write_str(&self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, parallelism: usize, work_ms: u64, busy_ms: u64, held_ms: u64) -> StageReport {
        let times = super::super::meter::Times {
            busy: Duration::from_millis(busy_ms),
            starved: Duration::from_millis(100 - busy_ms - held_ms),
            held: Duration::from_millis(held_ms),
            work: Duration::from_millis(work_ms),
            ..Default::default()
        };
        super::super::stage::summary(name, &Default::default(), times, parallelism)
    }

    fn report(stages: Vec<StageReport>) -> Report {
        Report { wall: Duration::from_millis(100), threads: 2, stages, progress: Progress::default() }
    }

    #[test]
    fn the_most_occupied_stage_is_the_bottleneck() {
        let report =
            report(vec![stage("read", 1, 30, 30, 0), stage("decode", 4, 380, 98, 0), stage("write", 1, 60, 60, 0)]);
        assert_eq!(report.bottleneck().unwrap().name, "decode");
        assert!(
            report.sentence().starts_with("Stage decode is the bottleneck: 95 % of its 4 lanes occupied"),
            "{report}"
        );
        assert!(report.to_string().lines().count() == 5);
    }

    #[test]
    fn threads_that_lack_are_told() {
        let report = report(vec![stage("a", 1, 40, 40, 60), stage("b", 1, 30, 30, 20)]);
        assert!(report.sentence().starts_with("The 2 threads are the bottleneck"), "{}", report.sentence());
    }
}

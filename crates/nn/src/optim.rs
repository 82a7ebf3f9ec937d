//! Optimisers as nodes of a graph, schedules of the learning rate, and clipping of gradients.
//!
//! The numbers that change from step to step (the learning rate, Adam's corrections) are a small
//! input of the graph, so one graph serves all steps.

use panoply_core::expr::Expr;
use panoply_core::graph::{GraphBuilder, NodeId};
use panoply_core::op::compute::Reduction;

use crate::error::{Error, Result};

/// The update rule of a parameter. The formulas are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// The share of the last step that is kept.
        momentum: f64,
        /// Whether Nesterov's variant is used, which looks ahead of the step.
        nesterov: bool,
    },
    /// Adam: running means of the gradients and of their squares. Weight decay is added to the
    /// gradient.
    Adam {
        /// The shares of the running mean and of the running variance that are kept.
        betas: [f64; 2],
        /// Added to the standard deviation.
        epsilon: f64,
    },
    /// As Adam, but with weight decay applied to the parameter and not to the gradient.
    AdamW {
        /// The shares of the running mean and of the running variance that are kept.
        betas: [f64; 2],
        /// Added to the standard deviation.
        epsilon: f64,
    },
    /// RMSProp: the running mean of squared gradients.
    RmsProp {
        /// The share of the running mean that is kept.
        alpha: f64,
        /// Added to the square root.
        epsilon: f64,
        /// The share of the last step that is kept.
        momentum: f64,
    },
    /// Lion: the sign of a running mean. Weight decay is applied to the parameter and not to the
    /// gradient.
    Lion {
        /// The shares of the running mean that are kept: for the sign, and for the next step.
        betas: [f64; 2],
    },
}

/// The limit of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Clip {
    /// No limit.
    #[default]
    None,
    /// The norm of all gradients together is at most this.
    Norm(f64),
    /// The absolute value of each element is at most this.
    Value(f64),
}

/// An optimiser.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimiser {
    /// The update rule.
    pub rule: Rule,
    /// The learning rate, before its schedule.
    pub rate: f64,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// The weight decay: each step takes away this share of a parameter, times the learning rate.
    pub weight_decay: f64,
    /// The limit of gradients.
    pub clip: Clip,
}

impl Optimiser {
    /// Plain stochastic gradient descent.
    pub fn sgd(rate: f64) -> Optimiser {
        Optimiser::new(Rule::Sgd { momentum: 0.0, nesterov: false }, rate)
    }

    /// Stochastic gradient descent with momentum, in Nesterov's variant if `nesterov` is set.
    pub fn momentum(rate: f64, momentum: f64, nesterov: bool) -> Optimiser {
        Optimiser::new(Rule::Sgd { momentum, nesterov }, rate)
    }

    /// Adam with betas of 0.9 and 0.999.
    pub fn adam(rate: f64) -> Optimiser {
        Optimiser::new(Rule::Adam { betas: [0.9, 0.999], epsilon: 1e-8 }, rate)
    }

    /// AdamW with betas of 0.9 and 0.999 and a weight decay of 0.01.
    pub fn adamw(rate: f64) -> Optimiser {
        Optimiser::new(Rule::AdamW { betas: [0.9, 0.999], epsilon: 1e-8 }, rate).weight_decay(0.01)
    }

    /// RMSProp with an alpha of 0.99.
    pub fn rmsprop(rate: f64) -> Optimiser {
        Optimiser::new(Rule::RmsProp { alpha: 0.99, epsilon: 1e-8, momentum: 0.0 }, rate)
    }

    /// Lion with betas of 0.9 and 0.99.
    pub fn lion(rate: f64) -> Optimiser {
        Optimiser::new(Rule::Lion { betas: [0.9, 0.99] }, rate)
    }

    /// An optimiser with this rule and this learning rate, without weight decay and clipping.
    pub fn new(rule: Rule, rate: f64) -> Optimiser {
        Optimiser { rule, rate, schedule: Schedule::Constant, weight_decay: 0.0, clip: Clip::None }
    }

    /// Sets the weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Optimiser {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets the limit of gradients.
    pub fn clip(mut self, clip: Clip) -> Optimiser {
        self.clip = clip;
        self
    }

    /// Sets the schedule of the learning rate.
    pub fn schedule(mut self, schedule: Schedule) -> Optimiser {
        self.schedule = schedule;
        self
    }

    /// Number of state tensors for each parameter.
    pub fn state_count(&self) -> usize {
        match self.rule {
            Rule::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Rule::Adam { .. } | Rule::AdamW { .. } => 2,
            Rule::RmsProp { momentum, .. } => 1 + usize::from(momentum != 0.0),
            Rule::Lion { .. } => 1,
        }
    }

    /// The numbers that change from step to step, for step `step` (from 0): the learning rate and
    /// Adam's corrections. The corrections depend on `applied`, the number of earlier steps that
    /// changed the parameters.
    pub(crate) fn hyper(&self, step: u64, applied: u64) -> [f32; HYPER] {
        let rate = self.rate * self.schedule.factor(step);
        let correction = |beta: f64| 1.0 / (1.0 - beta.powf(applied as f64 + 1.0));
        let [first, second] = match self.rule {
            Rule::Adam { betas, .. } | Rule::AdamW { betas, .. } => betas.map(correction),
            _ => [1.0, 1.0],
        };
        [rate as f32, first as f32, second as f32]
    }

    /// Checks that the numbers are in range.
    pub(crate) fn check(&self) -> Result<()> {
        let in_unit = |what, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(Error::invalid(what, "at least 0 and below 1", value)),
        };
        if !(self.rate.is_finite() && self.rate >= 0.0) {
            return Err(Error::invalid("optimiser: rate", "a finite number, not negative", self.rate));
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return Err(Error::invalid("optimiser: weight decay", "a finite number, not negative", self.weight_decay));
        }
        match self.rule {
            Rule::Sgd { momentum, .. } => in_unit("optimiser: momentum", momentum),
            Rule::RmsProp { alpha, momentum, .. } => {
                in_unit("optimiser: alpha", alpha)?;
                in_unit("optimiser: momentum", momentum)
            }
            Rule::Adam { betas, .. } | Rule::AdamW { betas, .. } | Rule::Lion { betas } => {
                betas.into_iter().try_for_each(|beta| in_unit("optimiser: beta", beta))
            }
        }
    }

    /// Records one step. Returns the new parameter and the new state.
    pub(crate) fn step(&self, g: &mut GraphBuilder, inputs: &ParameterStep<'_>) -> Result<(NodeId, Vec<NodeId>)> {
        let ParameterStep { parameter, gradient, state, hyper } = *inputs;
        let decay = self.weight_decay;
        let beside = matches!(self.rule, Rule::AdamW { .. } | Rule::Lion { .. });
        let gradient = match decay != 0.0 && !beside {
            true => g.map(&[gradient, parameter], |v| v[0].clone() + v[1].clone() * decay)?,
            false => gradient,
        };
        let [rate, first, second] = hyper;
        let mut make = |nodes: &[NodeId], expr: &dyn Fn(&[Expr]) -> Expr| g.map(nodes, |v| expr(v));
        let decayed = |p: &Expr, rate: &Expr| p.clone() * (1.0 - rate.clone() * decay);
        Ok(match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => {
                (make(&[parameter, gradient, rate], &|v| v[0].clone() - v[1].clone() * v[2].clone())?, Vec::new())
            }
            Rule::Sgd { momentum, nesterov } => {
                let kept = make(&[state[0], gradient], &|v| v[0].clone() * momentum + v[1].clone())?;
                // Only the running sum reads the gradient, so the matrix product that makes the
                // gradient can add the sum in its epilogue.
                let new = match nesterov {
                    true => make(&[parameter, gradient, kept, rate], &|v| {
                        v[0].clone() - (v[1].clone() + v[2].clone() * momentum) * v[3].clone()
                    })?,
                    false => make(&[parameter, kept, rate], &|v| v[0].clone() - v[1].clone() * v[2].clone())?,
                };
                (new, vec![kept])
            }
            Rule::Adam { betas: [b1, b2], epsilon } | Rule::AdamW { betas: [b1, b2], epsilon } => {
                let mean = make(&[state[0], gradient], &|v| v[0].clone() * b1 + v[1].clone() * (1.0 - b1))?;
                let variance =
                    make(&[state[1], gradient], &|v| v[0].clone() * b2 + v[1].clone() * v[1].clone() * (1.0 - b2))?;
                let new = make(&[parameter, mean, variance, rate, first, second], &|v| {
                    let deviation = (v[2].clone() * v[5].clone()).sqrt() + epsilon;
                    let start = if beside { decayed(&v[0], &v[3]) } else { v[0].clone() };
                    start - v[3].clone() * (v[1].clone() * v[4].clone()) / deviation
                })?;
                (new, vec![mean, variance])
            }
            Rule::RmsProp { alpha, epsilon, momentum } => {
                let squares = make(&[state[0], gradient], &|v| {
                    v[0].clone() * alpha + v[1].clone() * v[1].clone() * (1.0 - alpha)
                })?;
                let step = make(&[gradient, squares], &|v| v[0].clone() / (v[1].clone().sqrt() + epsilon))?;
                let kept = match state.get(1) {
                    Some(kept) => Some(make(&[*kept, step], &|v| v[0].clone() * momentum + v[1].clone())?),
                    None => None,
                };
                let new =
                    make(&[parameter, kept.unwrap_or(step), rate], &|v| v[0].clone() - v[1].clone() * v[2].clone())?;
                (new, [squares].into_iter().chain(kept).collect())
            }
            Rule::Lion { betas: [b1, b2] } => {
                let new = make(&[parameter, state[0], gradient, rate], &|v| {
                    let mean = v[1].clone() * b1 + v[2].clone() * (1.0 - b1);
                    let sign = mean.clone().gt(0.0) - mean.lt(0.0);
                    decayed(&v[0], &v[3]) - sign * v[3].clone()
                })?;
                let mean = make(&[state[0], gradient], &|v| v[0].clone() * b2 + v[1].clone() * (1.0 - b2))?;
                (new, vec![mean])
            }
        })
    }
}

/// Number of inputs that change from step to step.
pub(crate) const HYPER: usize = 3;

/// The nodes that the step of one parameter reads.
#[derive(Clone, Copy)]
pub(crate) struct ParameterStep<'a> {
    pub(crate) parameter: NodeId,
    pub(crate) gradient: NodeId,
    pub(crate) state: &'a [NodeId],
    pub(crate) hyper: [NodeId; HYPER],
}

/// The learning rate's schedule: a factor for each step.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The rate is constant.
    #[default]
    Constant,
    /// Multiplies the rate by `factor` every `every` steps.
    Stairs {
        /// Number of steps between two changes.
        every: u64,
        /// The factor.
        factor: f64,
    },
    /// Decreases to `last` along half a cosine over `steps` steps.
    Cosine {
        /// Number of steps until the end.
        steps: u64,
        /// The factor at the end.
        last: f64,
    },
    /// Decreases linearly to `last` over `steps` steps.
    Linear {
        /// Number of steps until the end.
        steps: u64,
        /// The factor at the end.
        last: f64,
    },
    /// Increases linearly from zero over `steps` steps, then follows another schedule.
    WarmUp {
        /// Number of steps until the full rate.
        steps: u64,
        /// The schedule that follows.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// The factor of the learning rate in step `step`, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        let part = |steps: u64| (step as f64 / steps.max(1) as f64).min(1.0);
        match self {
            Schedule::Constant => 1.0,
            Schedule::Stairs { every, factor } => factor.powf((step / (*every).max(1)) as f64),
            Schedule::Cosine { steps, last } => {
                last + (1.0 - last) * 0.5 * (1.0 + (std::f64::consts::PI * part(*steps)).cos())
            }
            Schedule::Linear { steps, last } => 1.0 + (last - 1.0) * part(*steps),
            Schedule::WarmUp { steps, .. } if step < *steps => (step + 1) as f64 / *steps as f64,
            Schedule::WarmUp { steps, then } => then.factor(step - steps),
        }
    }
}

/// The sum of the squares of the elements of all gradients.
pub(crate) fn square_norm(g: &mut GraphBuilder, gradients: &[NodeId]) -> Result<NodeId> {
    let mut sums = Vec::new();
    for gradient in gradients {
        let axes: Vec<usize> = (0..g.type_of(*gradient)?.1.len()).collect();
        let squares = g.mul(*gradient, *gradient)?;
        sums.push(g.reduce(Reduction::Sum, squares, &axes)?);
    }
    let mut sums = sums.into_iter();
    let first = sums.next().ok_or_else(|| Error::invalid("training: parameters", "at least one", "none"))?;
    sums.try_fold(first, |sum, next| g.add(sum, next)).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_follow_their_curves() {
        let warm = Schedule::WarmUp { steps: 4, then: Box::new(Schedule::Cosine { steps: 10, last: 0.1 }) };
        let factors: Vec<f64> = [0, 3, 4, 9, 14, 100].map(|step| warm.factor(step)).to_vec();
        for (got, expected) in factors.iter().zip([0.25, 1.0, 1.0, 0.55, 0.1, 0.1]) {
            assert!((got - expected).abs() < 1e-9, "{factors:?}");
        }
        assert_eq!(Schedule::Stairs { every: 3, factor: 0.5 }.factor(7), 0.25);
        assert_eq!(Schedule::Linear { steps: 10, last: 0.0 }.factor(5), 0.5);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(Optimiser::adam(f64::NAN).check().is_err());
        assert!(Optimiser::momentum(0.1, 1.0, false).check().is_err());
        assert!(Optimiser::lion(1e-3).weight_decay(-1.0).check().is_err());
        assert!(Optimiser::adamw(1e-3).check().is_ok());
    }
}

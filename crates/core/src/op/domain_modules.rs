//! Macros for code that has one module for each domain. Such code neither repeats the list of
//! domains nor writes a `match` over them.

/// Names the modules that hold a crate's code for domains, one module per domain. Defines
/// `DOMAINS`, the domains with a module, and the macro `by_domain!`, which calls a function of the
/// module of an op's domain:
///
/// ```
/// use panoply_core::{Domain, Op};
///
/// mod compute {
///     pub fn is_slow(op: &panoply_core::op::compute::ComputeOp, limit: u64) -> bool {
///         op.describe().work() > limit
///     }
/// }
///
/// panoply_core::domain_modules! {
///     Compute in compute;
/// }
///
/// fn is_slow(op: &Op) -> bool {
///     by_domain!(op => is_slow(op, 1000), false)
/// }
///
/// assert_eq!(DOMAINS, [Domain::Compute]);
/// ```
///
/// In the call, `op` is the enum of the domain, such as `ComputeOp`. The last argument is the value
/// for ops of other domains; there `op` is the [`Op`](crate::Op).
///
/// Code with a module for every domain passes this macro to
/// [`for_each_domain!`](crate::for_each_domain).
#[macro_export]
macro_rules! domain_modules {
    ($($domain:ident in $module:ident;)*) => {
        $crate::domain_modules! { @ ($) $($domain in $module;)* }
    };
    (@ ($d:tt) $($domain:ident in $module:ident;)*) => {
        /// The domains whose ops run here.
        pub const DOMAINS: &[$crate::Domain] = &[$($crate::Domain::$domain),*];

        #[allow(unused_macros)] // Some crates need only the list.
        macro_rules! by_domain {
            ($d op:ident => $d function:ident($d($d argument:expr),* $d(,)?), $d other:expr) => {
                match $d op {
                    $($crate::Op::$domain($d op) => $module::$d function($d($d argument),*),)*
                    #[allow(unreachable_patterns, unused_variables)]
                    $d op => $d other,
                }
            };
        }
    };
}

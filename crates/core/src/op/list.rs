//! The list of all domains and their ops. `Domain`, `Op`, each domain's enum and each op's typed
//! output follow from it: a new op is one line here, a new domain one block, beside the folder that
//! holds its structs. The element types and shapes of an op's outputs stand in the op's own file
//! ([`Describe::answer_types`]). Other crates choose the module of a domain by
//! [`for_each_domain!`](crate::for_each_domain) and [`domain_modules!`](crate::domain_modules). In
//! that module they write a `match` over the domain's enum, whose arms the compiler demands.

use super::compute::*;
use super::crypto::*;
use super::extension::Extension;
use super::graph::*;
use super::signal::*;
use super::{Describe, Value};
use crate::object::Object;
use crate::tensor::Tensor;

/// Generates everything that follows from the list. For each op the list gives its struct, the type
/// of its output, and the function that makes the output from a [`Value`]. An op marked `(secret)`
/// takes secret parts: each engine that runs it wipes its copies of them. All other ops refuse
/// them.
macro_rules! domains {
    ($(
        $(#[$doc:meta])*
        $domain:ident($family:ident) in $module:ident {
            $($name:ident $(($secret:ident))? => $output:ty, $from_value:expr;)*
        }
    )*) => {
        /// A family of ops. Each domain is a folder of this name on every layer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Domain {
            $($(#[$doc])* $domain,)*
            /// Ops that a backend outside this workspace defines.
            Extension,
            /// A domain outside this workspace, by its name, with ops that bring
            /// [code for the host](crate::op::HostOp).
            Outside(&'static str),
        }

        impl Domain {
            /// Every domain of the list, and the extensions.
            pub const ALL: &[Domain] = &[$(Domain::$domain,)* Domain::Extension];

            /// The name used in modules, on the command line and in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Domain::$domain => stringify!($module),)*
                    Domain::Extension => "extension",
                    Domain::Outside(name) => name,
                }
            }
        }

        /// An op of any domain, ready for a queue. Code that handles only some domains has a `_`
        /// arm for the others: a backend answers [`Support::unknown`](crate::Support::unknown)
        /// there.
        #[derive(Clone, Debug)]
        #[allow(clippy::large_enum_variant)] // An op lives in its task record, never in a Vec.
        pub enum Op {
            $($(#[$doc])* $domain($family),)*
            /// An op that is defined outside this workspace.
            Extension(Extension),
        }

        impl Op {
            /// The types of the ops in the list, such as `MatMul`.
            pub const TYPES: &[&str] = &[$($(stringify!($name),)*)*];

            /// Number of ops in the list.
            pub const COUNT: usize = Op::TYPES.len();

            /// The op's type as in [`Op::TYPES`]. `None` for an extension.
            pub fn type_name(&self) -> Option<&'static str> {
                match self {
                    $($(Op::$domain($family::$name(_)) => Some(stringify!($name)),)*)*
                    Op::Extension(_) => None,
                }
            }

            /// The domain.
            pub fn domain(&self) -> Domain {
                match self {
                    $(Op::$domain(_) => Domain::$domain,)*
                    Op::Extension(op) => op.domain(),
                }
            }

            /// Whether the op may have secret parts.
            pub fn takes_secrets(&self) -> bool {
                match self {
                    $($(Op::$domain($family::$name(_)) => is_marked(&[$(stringify!($secret))?]),)*)*
                    Op::Extension(op) => op.takes_secrets(),
                }
            }

            pub(super) fn describe(&self) -> &dyn Describe {
                match self {
                    $(Op::$domain(op) => op.describe(),)*
                    Op::Extension(op) => op.describe(),
                }
            }

            pub(super) fn describe_mut(&mut self) -> &mut dyn Describe {
                match self {
                    $($(Op::$domain($family::$name(op)) => op,)*)*
                    Op::Extension(op) => op.describe_mut(),
                }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            #[allow(clippy::large_enum_variant)] // A box would allocate per op.
            #[allow(missing_docs)] // The structs of the same names are documented.
            pub enum $family {
                $($name($name),)*
            }

            impl $family {
                /// The op's description.
                pub fn describe(&self) -> &dyn Describe {
                    match self {
                        $($family::$name(op) => op,)*
                    }
                }
            }

            $(
                impl super::Operation for $name {
                    type Output = $output;

                    fn into_op(self) -> crate::Result<Op> {
                        self.validate()?;
                        Op::$domain($family::$name(self)).checked()
                    }

                    fn output(value: Value) -> crate::Result<$output> {
                        $from_value(value)
                    }
                }
            )*
        )*

        /// Every op of every domain.
        pub mod all {
            $(pub use crate::op::$module::*;)*
        }

        /// Calls a macro with all domains and their modules: `Compute in compute; …`. See
        /// [`domain_modules!`](crate::domain_modules).
        #[macro_export]
        macro_rules! for_each_domain {
            ($callback:ident) => {
                $callback! { $($domain in $module;)* }
            };
            ($library:ident::$callback:ident) => {
                $library::$callback! { $($domain in $module;)* }
            };
        }
    };
}

/// Whether an op of the list has a mark.
const fn is_marked(marks: &[&str]) -> bool {
    !marks.is_empty()
}

domains! {
    /// Arithmetic on tensors.
    Compute(ComputeOp) in compute {
        ArgSort => Tensor, Value::into_tensor;
        Attention => Tensor, Value::into_tensor;
        ColorConvert => Tensor, Value::into_tensor;
        Conv2d => Tensor, Value::into_tensor;
        Conv2dBackwardInput => Tensor, Value::into_tensor;
        Conv2dBackwardWeight => Tensor, Value::into_tensor;
        Gather => Tensor, Value::into_tensor;
        Kernel => Vec<Tensor>, Kernel::tensors;
        LayerNorm => Tensor, Value::into_tensor;
        Map => Tensor, Value::into_tensor;
        MatMul => Tensor, Value::into_tensor;
        Normalize => Tensor, Value::into_tensor;
        Pool2d => Tensor, Value::into_tensor;
        Reduce => Tensor, Value::into_tensor;
        Resize => Tensor, Value::into_tensor;
        RowMap => Tensor, Value::into_tensor;
        Scan => Tensor, Value::into_tensor;
        Search => Neighbors, Neighbors::from_value;
        Softmax => Tensor, Value::into_tensor;
        Sort => Tensor, Value::into_tensor;
        SortPairs => (Tensor, Tensor), Value::into_pair;
        TopK => (Tensor, Tensor), Value::into_pair;
        Transfer => Tensor, Value::into_tensor;
        Transpose => Tensor, Value::into_tensor;
    }
    /// Ciphers, hashes, signatures and compression.
    Crypto(CryptoOp) in crypto {
        Compress => Messages, Messages::from_value;
        Decompress => Messages, Messages::from_value;
        Decrypt(secret) => Messages, Messages::from_value;
        Encrypt(secret) => Messages, Messages::from_value;
        Hash(secret) => Messages, Messages::from_value;
        Hkdf(secret) => Messages, Messages::from_value;
        Hmac(secret) => Messages, Messages::from_value;
        Open(secret) => Messages, Messages::from_value;
        Seal(secret) => SealedMessages, SealedMessages::from_value;
        Sign(secret) => Messages, Messages::from_value;
        Verify(secret) => Vec<bool>, Verify::verdicts;
    }
    /// Sampled signals, modems and codes.
    Signal(SignalOp) in signal {
        Adapt => (Tensor, Tensor), Value::into_pair;
        Channelize => Tensor, Value::into_tensor;
        ConvolutionalEncode => Tensor, Value::into_tensor;
        Convolve => Tensor, Value::into_tensor;
        Convolve2 => Tensor, Value::into_tensor;
        Crc => Vec<u64>, Crc::checks;
        Dct => Tensor, Value::into_tensor;
        Demodulate => Tensor, Value::into_tensor;
        DemodulateWave => Tensor, Value::into_tensor;
        ErasureEncode => Tensor, Value::into_tensor;
        ErasureRebuild => Tensor, Value::into_tensor;
        Fft => Tensor, Value::into_tensor;
        Fft2 => Tensor, Value::into_tensor;
        FindPeaks => (Tensor, Tensor), Value::into_pair;
        Fir => Tensor, Value::into_tensor;
        Hilbert => Tensor, Value::into_tensor;
        Ifft => Tensor, Value::into_tensor;
        Iir => Tensor, Value::into_tensor;
        Interleave => Tensor, Value::into_tensor;
        Istft => Tensor, Value::into_tensor;
        LdpcDecode => (Tensor, Tensor), Value::into_pair;
        LdpcEncode => Tensor, Value::into_tensor;
        Mix => Tensor, Value::into_tensor;
        Modulate => Tensor, Value::into_tensor;
        ModulateWave => Tensor, Value::into_tensor;
        Psd => Tensor, Value::into_tensor;
        ReadSamples => Tensor, Value::into_tensor;
        RsDecode => (Tensor, Tensor), Value::into_pair;
        RsEncode => Tensor, Value::into_tensor;
        Scramble => Tensor, Value::into_tensor;
        StartFilter => Object, Value::into_object;
        Stft => Tensor, Value::into_tensor;
        StreamFilter => Tensor, Value::into_tensor;
        Track => Tensor, Value::into_tensor;
        Viterbi => Tensor, Value::into_tensor;
    }
    /// Many ops that run as one.
    Graph(GraphOp) in graph {
        RunGraph => Vec<Tensor>, RunGraph::from_value;
    }
}

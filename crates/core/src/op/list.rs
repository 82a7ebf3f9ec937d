//! The list of all domains and their ops. `Domain`, `Op`, each domain's enum and each op's typed output follow from it:
//! a new op is one line here, a new domain one block, beside the folder that holds its structs.

use super::compute::*;
use super::crypto::*;
use super::extension::Extension;
use super::graph::*;
use super::signal::*;
use super::{Describe, Value};
use crate::object::Object;
use crate::tensor::Tensor;

/// Makes everything that follows from the list. Of each op: its struct, its output's type, and how that is made of a
/// [`Value`].
macro_rules! domains {
    ($(
        $(#[$doc:meta])*
        $domain:ident($family:ident) in $module:ident {
            $($name:ident => $output:ty, $from_value:expr;)*
        }
    )*) => {
        /// A family of ops. Each is a folder of this name on every layer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Domain {
            $($(#[$doc])* $domain,)*
            /// Ops that a backend outside this workspace brings along.
            Extension,
        }

        impl Domain {
            /// Every domain.
            pub const ALL: &[Domain] = &[$(Domain::$domain,)* Domain::Extension];

            /// The name used in modules, on the command line and in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Domain::$domain => stringify!($module),)*
                    Domain::Extension => "extension",
                }
            }
        }

        /// An op of any domain, ready for a queue. Whoever handles some domains leaves the others to a `_` arm: a backend
        /// answers [`Support::unknown`](crate::Support::unknown) there.
        #[derive(Clone, Debug)]
        #[allow(clippy::large_enum_variant)] // An op lives in its task record, never in a Vec.
        pub enum Op {
            $($(#[$doc])* $domain($family),)*
            /// An op that a backend outside this workspace brings along.
            Extension(Extension),
        }

        impl Op {
            /// How many ops the list has.
            pub const COUNT: usize = [$($(stringify!($name),)*)*].len();

            /// The domain.
            pub fn domain(&self) -> Domain {
                match self {
                    $(Op::$domain(_) => Domain::$domain,)*
                    Op::Extension(_) => Domain::Extension,
                }
            }

            pub(super) fn describe(&self) -> &dyn Describe {
                match self {
                    $($(Op::$domain($family::$name(op)) => op,)*)*
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
            #[allow(clippy::large_enum_variant)] // An op lives in its task record; a box would be an allocation per op.
            #[allow(missing_docs)] // Each variant holds the struct of the same name, which is documented.
            pub enum $family {
                $($name($name),)*
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
    };
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
        Decrypt => Messages, Messages::from_value;
        Encrypt => Messages, Messages::from_value;
        Hash => Messages, Messages::from_value;
        Hkdf => Messages, Messages::from_value;
        Hmac => Messages, Messages::from_value;
        Open => Messages, Messages::from_value;
        Seal => Sealed, Sealed::from_value;
        Sign => Messages, Messages::from_value;
        Verify => Vec<bool>, Verify::verdicts;
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

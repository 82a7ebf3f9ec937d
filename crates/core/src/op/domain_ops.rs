//! How a domain lists its ops: one line per op struct, from which the domain's enum and each op's typed output follow.

/// Declares the enum of a domain, such as `ComputeOp` for the variant `Compute` of [`super::Op`]: one variant per op
/// struct, each with its typed output and how that is made of a [`super::Value`].
macro_rules! domain_ops {
    (
        $(#[$doc:meta])*
        $family:ident in $domain:ident;
        $($name:ident => $output:ty, $from_value:expr;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[allow(clippy::large_enum_variant)] // An op lives in its task record; a box would be an allocation per op.
        #[allow(missing_docs)] // Each variant holds the struct of the same name, which is documented.
        pub enum $family {
            $($name($name),)*
        }

        impl $family {
            pub(crate) fn describe(&self) -> &dyn $crate::op::Describe {
                match self {
                    $($family::$name(op) => op,)*
                }
            }

            pub(crate) fn describe_mut(&mut self) -> &mut dyn $crate::op::Describe {
                match self {
                    $($family::$name(op) => op,)*
                }
            }
        }

        $(
            impl $crate::op::Operation for $name {
                type Output = $output;

                fn into_op(self) -> $crate::Result<$crate::Op> {
                    $crate::op::Describe::validate(&self)?;
                    Ok($crate::Op::$domain($family::$name(self)))
                }

                fn output(value: $crate::op::Value) -> $crate::Result<$output> {
                    $from_value(value)
                }
            }
        )*
    };
}

pub(super) use domain_ops;

//! A macro for kernels that are generic over the element type.

/// Declares a trait with one function for each entry point, and implements it for every element
/// type by calling the generic function. Rust compiles a generic function again in every crate that
/// calls it, which takes minutes for some kernels; the functions of the trait are compiled once, in
/// the crate of the kernel.
#[doc(hidden)]
#[macro_export]
macro_rules! compile_once {
    ($(#[$meta:meta])* $vis:vis trait $trait:ident: $bound:ident $functions:tt for $($element:ty),+) => {
        $(#[$meta])*
        #[doc(hidden)]
        $vis trait $trait: Sized {
            $crate::compile_once!(@declare $bound $functions);
        }
        $(
            impl $trait for $element {
                $crate::compile_once!(@implement $bound $functions);
            }
        )+
    };
    (@declare $bound:ident {$(fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $generic:path;)*}) => {
        $(
            #[allow(clippy::too_many_arguments)] // They are those of the generic function.
            fn $name($($arg: $type),*) where Self: $bound;
        )*
    };
    (@implement $bound:ident {$(fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $generic:path;)*}) => {
        $(
            #[inline(never)]
            fn $name($($arg: $type),*) where Self: $bound {
                $generic($($arg),*)
            }
        )*
    };
}

//! What is not recorded: run on the host by Burn's own CPU backend, and counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn_backend::ops::{AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions, InterpolateOptions};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Distribution, Scalar, Shape};
use burn_flex::{FlexDevice, FlexTensor};
use burn_std::{BoolDType, FloatDType, IntDType};

use crate::array::Array;
use crate::device::PanoplyDevice;

static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// The ops that were run on the host since the program began, by Burn's names, and how often.
pub fn counts() -> BTreeMap<&'static str, u64> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn count(name: &'static str) {
    *COUNTS.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(0) += 1;
}

/// An argument of an op, as Burn's CPU backend takes it.
pub(crate) trait ToHost {
    type Host;
    fn to_host(self) -> Self::Host;
    /// Where it belongs, if anywhere.
    fn place(&self) -> Option<PanoplyDevice> {
        None
    }
}

/// What Burn's CPU backend answers, as a device's.
pub(crate) trait OfHost<T> {
    fn of_host(answer: T, device: PanoplyDevice) -> Self;
}

impl ToHost for Array {
    type Host = FlexTensor;

    fn to_host(self) -> FlexTensor {
        match Array::to_host(&self) {
            Ok(tensor) => tensor,
            // The way in which Burn's ops fail: the server ends the session and says why.
            Err(cause) => panic!("{cause}"),
        }
    }

    fn place(&self) -> Option<PanoplyDevice> {
        Some(self.device())
    }
}

impl OfHost<FlexTensor> for Array {
    fn of_host(answer: FlexTensor, device: PanoplyDevice) -> Array {
        Array::from_host(answer, device)
    }
}

impl ToHost for &PanoplyDevice {
    type Host = &'static FlexDevice;

    fn to_host(self) -> &'static FlexDevice {
        &FlexDevice
    }

    fn place(&self) -> Option<PanoplyDevice> {
        Some(**self)
    }
}

impl<T: ToHost> ToHost for Option<T> {
    type Host = Option<T::Host>;

    fn to_host(self) -> Option<T::Host> {
        self.map(T::to_host)
    }

    fn place(&self) -> Option<PanoplyDevice> {
        self.as_ref().and_then(T::place)
    }
}

impl<T: ToHost> ToHost for Vec<T> {
    type Host = Vec<T::Host>;

    fn to_host(self) -> Vec<T::Host> {
        self.into_iter().map(T::to_host).collect()
    }

    fn place(&self) -> Option<PanoplyDevice> {
        self.iter().find_map(T::place)
    }
}

macro_rules! as_it_is {
    ($($ty:ty),* $(,)?) => {
        $(impl ToHost for $ty {
            type Host = $ty;
            fn to_host(self) -> $ty {
                self
            }
        })*
    };
}

as_it_is! {
    usize, bool, Scalar, Shape, FloatDType, IntDType, BoolDType, Distribution, IndexingUpdateOp, [usize; 2], [usize; 3],
    ConvOptions<2>, ConvOptions<3>, ConvTransposeOptions<2>, ConvTransposeOptions<3>, DeformConvOptions<2>, InterpolateOptions, AttentionModuleOptions,
}

impl<'a, T> ToHost for &'a [T] {
    type Host = &'a [T];

    fn to_host(self) -> &'a [T] {
        self
    }
}

/// Methods of a trait of Burn's that its CPU backend runs.
macro_rules! on_host {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) -> $answer:ty;)*) => {
        $(fn $name($($argument: $ty),*) -> $answer {
            $crate::host::count(stringify!($name));
            let device = [$($crate::host::ToHost::place(&$argument)),*].into_iter().flatten().next().unwrap_or_default();
            let answer = burn_flex::Flex::$name($($crate::host::ToHost::to_host($argument)),*);
            $crate::host::OfHost::of_host(answer, device)
        })*
    };
}
pub(crate) use on_host;

//! `loom`'s atomics, with sequential consistency.
//!
//! `loom` takes `SeqCst` for `AcqRel`, under which "say what I wait for, then look" and "change it,
//! then look who waits" may miss each other, and models fail that hold. It does know fences: each
//! `SeqCst` operation has one before and one after it here. That is a little more than the
//! language promises (a fence orders what stands around it, too), and exact for the two patterns.
//!
//! A store is a swap here: of a store that meets another thread's swap, loom also tries the order in
//! which it came first and nobody saw it, which the language rules out.

pub(crate) use loom::sync::atomic::Ordering;
use loom::sync::atomic::fence;

/// Runs an operation between the fences that its order asks for.
fn ordered<T>(order: Ordering, operation: impl FnOnce() -> T) -> T {
    if order != Ordering::SeqCst {
        return operation();
    }
    fence(Ordering::SeqCst);
    let result = operation();
    fence(Ordering::SeqCst);
    result
}

macro_rules! atomics {
    ($($name:ident($value:ty): $($method:ident),*;)*) => { $(
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                ordered(order, || self.0.load(order))
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                if order == Ordering::SeqCst {
                    ordered(order, || self.0.swap(value, order));
                } else {
                    self.0.store(value, order);
                }
            }

            $(pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.0.$method(value, order))
            })*
        }
    )* };
}

atomics! {
    AtomicBool(bool): swap;
    AtomicU8(u8): fetch_max;
    AtomicU64(u64): fetch_add, fetch_or;
    AtomicUsize(usize): fetch_add, fetch_sub;
}

impl AtomicU8 {
    pub(crate) fn compare_exchange(
        &self,
        from: u8,
        to: u8,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u8, u8> {
        ordered(success, || self.0.compare_exchange(from, to, success, failure))
    }
}

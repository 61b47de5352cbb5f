//! Makes listeners out of closures and of instances.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use keylane_source::Message;

use super::{Batch, BatchListener, Context, Factory, IntoListener, Listener, PerBatch, PerMessage};
use crate::outcome::{BatchHandled, Handled};

/// A closure that is called for each message, from all shards at the same time.
///
/// Any error is a failed attempt; the return type is fixed, so that `?` needs no annotation.
///
/// ```
/// use keylane::{listen, Outcome};
///
/// let listener = listen::each(|message, _context| {
///     let text = std::str::from_utf8(message.payload().unwrap_or_default())?;
///     println!("{}: {text}", message.offset());
///     Ok(Outcome::Done)
/// });
/// # drop(listener);
/// ```
pub fn each<F>(handle: F) -> Each<F>
where
    F: Fn(&Message, &mut Context<'_>) -> Handled + Send + Sync + 'static,
{
    Each(Arc::new(handle))
}

/// A closure that is called for up to `batch_max` messages, from all shards at the same time.
///
/// ```
/// use keylane::{listen, BatchOutcome};
///
/// let listener = listen::batches(|batch| {
///     for (index, message) in batch.iter().enumerate() {
///         if message.payload().is_none() {
///             return Ok(BatchOutcome::FailedAt { index, error: "a tombstone".into() });
///         }
///     }
///     Ok(BatchOutcome::Done)
/// });
/// # drop(listener);
/// ```
pub fn batches<F>(handle: F) -> Batches<F>
where
    F: Fn(&Batch<'_>) -> BatchHandled + Send + Sync + 'static,
{
    Batches(Arc::new(handle))
}

/// One [`Listener`] per shard, made by `make` (which is told the shard's index) on the shard's
/// thread; made anew after a panic.
///
/// ```
/// use keylane::{listen, Context, Handled, Listener, Message, Outcome};
///
/// struct Count(u64);
///
/// impl Listener for Count {
///     fn on_message(&mut self, _message: &Message, _context: &mut Context<'_>) -> Handled {
///         self.0 += 1; // no lock: this shard's thread alone calls it
///         Ok(Outcome::Done)
///     }
/// }
///
/// let listener = listen::per_shard(|_shard| Count(0));
/// # drop(listener);
/// ```
pub fn per_shard<L, F>(make: F) -> PerShard<L, F>
where
    L: Listener,
    F: Fn(usize) -> L + Send + Sync + 'static,
{
    PerShard(make, PhantomData)
}

/// One [`BatchListener`] per shard, as [`per_shard`] makes listeners for single messages.
pub fn per_shard_batches<L, F>(make: F) -> PerShardBatches<L, F>
where
    L: BatchListener,
    F: Fn(usize) -> L + Send + Sync + 'static,
{
    PerShardBatches(make, PhantomData)
}

/// Made by [`each`].
pub struct Each<F>(Arc<F>);

/// Made by [`batches`].
pub struct Batches<F>(Arc<F>);

/// Made by [`per_shard`].
pub struct PerShard<L, F>(F, PhantomData<fn() -> L>);

/// Made by [`per_shard_batches`].
pub struct PerShardBatches<L, F>(F, PhantomData<fn() -> L>);

impl<F> Listener for Each<F>
where
    F: Fn(&Message, &mut Context<'_>) -> Handled + Send + Sync + 'static,
{
    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) -> Handled {
        (self.0)(message, context)
    }
}

impl<F> BatchListener for Batches<F>
where
    F: Fn(&Batch<'_>) -> BatchHandled + Send + Sync + 'static,
{
    fn on_batch(&mut self, batch: &Batch<'_>) -> BatchHandled {
        (self.0)(batch)
    }
}

impl<F> IntoListener for Each<F>
where
    F: Fn(&Message, &mut Context<'_>) -> Handled + Send + Sync + 'static,
{
    fn into_factory(self) -> Factory {
        Factory::per_message(move |_| Box::new(PerMessage(Self(Arc::clone(&self.0)))))
    }
}

impl<F> IntoListener for Batches<F>
where
    F: Fn(&Batch<'_>) -> BatchHandled + Send + Sync + 'static,
{
    fn into_factory(self) -> Factory {
        Factory::per_batch(move |_| Box::new(PerBatch(Self(Arc::clone(&self.0)))))
    }
}

impl<L, F> IntoListener for PerShard<L, F>
where
    L: Listener,
    F: Fn(usize) -> L + Send + Sync + 'static,
{
    fn into_factory(self) -> Factory {
        Factory::per_message(move |shard| Box::new(PerMessage((self.0)(shard))))
    }
}

impl<L, F> IntoListener for PerShardBatches<L, F>
where
    L: BatchListener,
    F: Fn(usize) -> L + Send + Sync + 'static,
{
    fn into_factory(self) -> Factory {
        Factory::per_batch(move |shard| Box::new(PerBatch((self.0)(shard))))
    }
}

macro_rules! opaque_debug {
    ($($name:ident<$($parameter:ident),*>)*) => {$(
        impl<$($parameter),*> fmt::Debug for $name<$($parameter),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

opaque_debug!(Each<F> Batches<F> PerShard<L, F> PerShardBatches<L, F>);

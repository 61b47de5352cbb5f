//! Makes listeners out of closures and of instances.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use keylane_source::Message;

use super::orderly::SUSPEND_DEFAULT;
use super::{
    Batch, BatchListener, Context, Factory, IntoListener, Listener, OrderlyContext,
    OrderlyListener, OrderlyStatus, PerBatch, PerMessage, PerOrderly,
};
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

/// A closure in the shape of RocketMQ's MessageListenerOrderly.
///
/// ```
/// use keylane::{listen, OrderlyStatus};
///
/// let listener = listen::orderly(|messages, context| {
///     context.set_auto_commit(false);
///     let last = messages.iter().any(|message| message.payload() == Some(b"commit"));
///     if last { OrderlyStatus::Commit } else { OrderlyStatus::Success }
/// });
/// # drop(listener);
/// ```
pub fn orderly<F>(consume: F) -> Orderly<F>
where
    F: Fn(&[Message], &mut OrderlyContext) -> OrderlyStatus + Send + Sync + 'static,
{
    Orderly { consume: Arc::new(consume), suspend: SUSPEND_DEFAULT }
}

/// One [`OrderlyListener`] per shard (per queue in queue-locked mode), as [`per_shard`] makes
/// listeners for single messages. The suspend time is RocketMQ's: 1 s.
pub fn per_shard_orderly<L, F>(make: F) -> PerShardOrderly<L, F>
where
    L: OrderlyListener,
    F: Fn(usize) -> L + Send + Sync + 'static,
{
    PerShardOrderly(make, PhantomData)
}

/// Made by [`orderly`].
pub struct Orderly<F> {
    consume: Arc<F>,
    suspend: Duration,
}

impl<F> Orderly<F> {
    /// How long a lane is suspended where the call does not say otherwise (RocketMQ's
    /// suspendCurrentQueueTimeMillis). Default 1 s; held to 10 ms to 30 s.
    #[must_use]
    pub fn suspend_current_queue_time(mut self, suspend: Duration) -> Self {
        self.suspend = suspend;
        self
    }
}

/// Made by [`per_shard_orderly`].
pub struct PerShardOrderly<L, F>(F, PhantomData<fn() -> L>);

struct OrderlyClosure<F>(Arc<F>);

impl<F> OrderlyListener for OrderlyClosure<F>
where
    F: Fn(&[Message], &mut OrderlyContext) -> OrderlyStatus + Send + Sync + 'static,
{
    fn consume(&mut self, messages: &[Message], context: &mut OrderlyContext) -> OrderlyStatus {
        (self.0)(messages, context)
    }
}

impl<F> IntoListener for Orderly<F>
where
    F: Fn(&[Message], &mut OrderlyContext) -> OrderlyStatus + Send + Sync + 'static,
{
    fn into_factory(self) -> Factory {
        Factory::orderly(move |_| {
            let listener = OrderlyClosure(Arc::clone(&self.consume));
            Box::new(PerOrderly::new(listener, self.suspend))
        })
    }
}

impl<L, F> IntoListener for PerShardOrderly<L, F>
where
    L: OrderlyListener,
    F: Fn(usize) -> L + Send + Sync + 'static,
{
    fn into_factory(self) -> Factory {
        Factory::orderly(move |shard| Box::new(PerOrderly::new((self.0)(shard), SUSPEND_DEFAULT)))
    }
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

opaque_debug!(
    Each<F> Batches<F> PerShard<L, F> PerShardBatches<L, F> Orderly<F> PerShardOrderly<L, F>
);

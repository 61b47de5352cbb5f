//! Destroys messages that have been copied, on a thread of its own.
//!
//! librdkafka allocates each message on the thread that fetches, and `free` on another thread takes
//! the lock of the heap that this thread allocates from. Spread over the work on each message, the
//! reading thread and the fetching one meet at that lock all the time, and whoever has to wait is put
//! to sleep. Freed in one go, thousands of messages are through while the other sleeps once; freed
//! elsewhere, they cost the reading thread nothing (`docs/performance.md` has the figures).
//!
//! # Invariants
//!
//! 1. A batch is destroyed before the client: it comes with a reference to it.
//! 2. At most [`WAITING_MAX`] batches wait; what comes beyond that is destroyed by the reader.
//! 3. Once a `Destroyer` has been dropped all that it was given is destroyed.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::Handle;
use super::batch::Raw;

/// Fewer than this are destroyed where they are: waking a thread costs about as much.
const WORTH_A_WAKE: usize = 256;
/// Batches that wait to be destroyed.
const WAITING_MAX: usize = 2;

/// See the module's description.
pub(super) struct Destroyer {
    /// None once it is being dropped.
    batches: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

/// The fields are dropped in this order: messages, client.
struct Batch {
    _messages: Vec<Raw>,
    _client: Arc<Handle>,
}

impl Destroyer {
    pub(super) fn new() -> io::Result<Self> {
        let (sender, batches) = sync_channel(WAITING_MAX);
        let thread = Builder::new()
            .name("keylane-destroy".to_owned())
            .spawn(move || batches.into_iter().for_each(|batch: Batch| drop(batch)))?;
        Ok(Self { batches: Some(sender), thread: Some(thread) })
    }

    /// Destroys these messages of the client's, by and by.
    pub(super) fn destroy(&self, messages: &mut [Option<Raw>], client: &Arc<Handle>) {
        if messages.len() < WORTH_A_WAKE {
            messages.fill_with(|| None);
            return;
        }
        let messages = messages.iter_mut().filter_map(Option::take).collect();
        let batch = Batch { _messages: messages, _client: Arc::clone(client) };
        if let Some(batches) = &self.batches {
            // What does not fit comes back, and is dropped here.
            drop(batches.try_send(batch));
        }
    }
}

impl Drop for Destroyer {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            log::error!("kafka: the thread that destroys messages panicked");
        }
    }
}

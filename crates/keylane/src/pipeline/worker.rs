//! The thread of a shard: takes chunks from the channel, calls the listener, settles the call. The
//! listener is the only thing that it may wait for; it never ends before the consumer does,
//! whatever the listener does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::shard::{Call, Effects, Next, Shard, Verdict, Verdicts};
use super::shared::{GateState, Item, ShardCell, Shared, panic_text};
use crate::listener::{Env, Factory, Work};
use crate::observer::Event;

thread_local! {
    static IN_LISTENER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether the current thread is in a listener call.
pub(crate) fn is_in_listener() -> bool {
    IN_LISTENER.get()
}

/// See the module's description.
pub(crate) struct Worker {
    receiver: Receiver<Item>,
    factory: Factory,
    /// Absent after a panic, until it is made anew.
    work: Option<Box<dyn Work>>,
    env: Env,
    call: Arc<Call>,
    verdicts: Verdicts,
    out: Effects,
}

impl Worker {
    pub(crate) fn new(
        cell: Arc<ShardCell>,
        shared: Arc<Shared>,
        receiver: Receiver<Item>,
        factory: Factory,
    ) -> Self {
        Self {
            receiver,
            factory,
            work: None,
            env: Env { cell, shared },
            call: Arc::default(),
            verdicts: Verdicts::default(),
            out: Effects::default(),
        }
    }

    /// Runs until the consumer stops.
    pub(crate) fn run(mut self) {
        self.make_work();
        while let Some(next) = self.look() {
            self.carry_out();
            match next {
                Next::Call => self.handle(),
                Next::Wait(until) => self.wait(until),
            }
        }
        self.carry_out();
        self.hook("on_stop", |work| work.on_stop());
        self.env.cell.exit();
        self.env.shared.signals.wake();
    }

    /// Takes in what is there and finds out what to do; `None` when it is over.
    fn look(&mut self) -> Option<Next> {
        self.run_revoked_hooks();
        // Before the channel is looked at: what was sent before the gate moved is seen below.
        let gate = self.env.shared.gate.state();
        let cell = Arc::clone(&self.env.cell);
        let mut shard = cell.shard.lock();
        let mut empty = false;
        while !empty && shard.room() > 0 {
            match self.receiver.try_recv() {
                Ok(item) => take(&cell, &self.env.shared, &mut shard, item),
                Err(_) => empty = true,
            }
        }
        match gate {
            GateState::Closed => None,
            GateState::Paused => Some(Next::Wait(None)),
            GateState::Open | GateState::Draining => {
                let now = self.env.shared.clock.now();
                let next = shard.next_call(now, &mut self.call, &mut self.out);
                let over = gate == GateState::Draining && empty && shard.is_drained();
                if over && next != Next::Call { None } else { Some(next) }
            }
        }
    }

    /// Waits for the channel, or until the time given.
    fn wait(&mut self, until: Option<std::time::Instant>) {
        self.env.shared.signals.idle();
        let item = match until {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => self.receiver.recv_deadline(until),
        };
        if let Ok(item) = item {
            let cell = &self.env.cell;
            take(cell, &self.env.shared, &mut cell.shard.lock(), item);
        }
    }

    /// Calls the listener, and settles what it says.
    fn handle(&mut self) {
        let mut from = 0;
        while from < self.call.len() {
            self.make_work();
            let Some(work) = &mut self.work else {
                // There is no instance: whatever was not looked at has failed.
                self.fail_rest(from);
                break;
            };
            let (call, env, verdicts) = (&self.call, &self.env, &mut self.verdicts);
            let per_message = work.is_per_message();
            IN_LISTENER.set(true);
            let ran = catch_unwind(AssertUnwindSafe(|| work.run(call, from, env, verdicts)));
            IN_LISTENER.set(false);
            let Err(panic) = ran else { break };
            let error = panic_text(&*panic);
            drop_quietly(panic);
            self.drop_work();
            if !per_message {
                self.verdicts.clear();
                self.verdicts.failed_whole(&self.call, &error, true);
                break;
            }
            let at = self.call.cursor();
            self.verdicts.decide(&self.call, at, Verdict::panicked(&error));
            from = at + 1;
        }
        let now = self.env.shared.clock.now();
        let mut shard = self.env.cell.shard.lock();
        shard.settle(&mut self.call, &mut self.verdicts, now, &mut self.out);
        drop(shard);
        self.carry_out();
        self.env.shared.signals.settled();
    }

    fn fail_rest(&mut self, from: usize) {
        for index in from..self.call.len() {
            if self.verdicts.admits(&self.call, index) {
                let error = "the listener's factory panicked: there is no instance to call";
                self.verdicts.decide(&self.call, index, Verdict::panicked(error));
            }
        }
    }

    fn carry_out(&mut self) {
        self.env.shared.carry_out(&self.env.cell, &mut self.out);
    }

    /// Makes the listener's instance, if there is none.
    fn make_work(&mut self) {
        if self.work.is_some() {
            return;
        }
        let (factory, shard) = (&self.factory, self.env.cell.index);
        match catch_unwind(AssertUnwindSafe(|| (factory.0)(shard))) {
            Ok(work) => self.work = Some(work),
            Err(panic) => self.report_panic("the listener's factory", panic),
        }
    }

    /// Drops an instance whose state a panic may have torn.
    fn drop_work(&mut self) {
        let work = self.work.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(work))) {
            self.report_panic("dropping the listener", panic);
        }
    }

    fn run_revoked_hooks(&mut self) {
        loop {
            let queue = self.env.cell.shard.lock().next_revoked();
            let Some(queue) = queue else { return };
            self.hook("on_revoked", |work| work.on_revoked(queue));
        }
    }

    fn hook(&mut self, what: &'static str, hook: impl FnOnce(&mut dyn Work)) {
        let Some(work) = &mut self.work else { return };
        IN_LISTENER.set(true);
        let ran = catch_unwind(AssertUnwindSafe(|| hook(work.as_mut())));
        IN_LISTENER.set(false);
        if let Err(panic) = ran {
            self.drop_work();
            self.report_panic(what, panic);
        }
    }

    fn report_panic(&self, what: &'static str, panic: Box<dyn std::any::Any + Send>) {
        let error = panic_text(&*panic);
        drop_quietly(panic);
        self.env.shared.report(&Event::HookPanicked { what, error });
    }
}

fn take(cell: &ShardCell, shared: &Shared, shard: &mut Shard, item: Item) {
    if let Item::Chunk(chunk) = item {
        cell.taken(chunk.len(), &shared.signals);
        shard.offer(chunk);
    }
}

/// A panic's payload may be any value, also one whose drop panics.
fn drop_quietly(panic: Box<dyn std::any::Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

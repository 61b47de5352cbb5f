//! Runs a shard's calls: begins one, hands it to the listener, settles it. Which thread does so is
//! somebody else's question; whoever it is, a listener's panic ends here.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::shard::{Call, Effects, Next, Shard, Verdict, Verdicts};
use super::shared::panic_text;
#[cfg(keylane_bug)]
use crate::bug::bug;
use crate::listener::{Env, Factory, Work};
use crate::observer::Event;

thread_local! {
    static WAITED_FOR: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether the current thread is one that a stop waits for: in a listener call, or the consumer's
/// own. It must not wait for a stop.
pub(crate) fn is_waited_for() -> bool {
    WAITED_FOR.get()
}

/// Marks the current thread as one that a stop waits for: user code (an observer, a sink) runs on
/// it.
pub(super) fn mark_own_thread() {
    WAITED_FOR.set(true);
}

/// Lets user code run, and catches its panic.
fn in_listener<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = WAITED_FOR.replace(true);
    let ran = catch_unwind(AssertUnwindSafe(run));
    WAITED_FOR.set(before);
    ran
}

/// See the module's description.
pub(crate) struct Runner {
    factory: Factory,
    /// Absent after a panic, until it is made anew.
    work: Option<Box<dyn Work>>,
    pub(crate) env: Env,
    pub(crate) call: Arc<Call>,
    verdicts: Verdicts,
    out: Effects,
    /// When the last call began: for a planted bug.
    #[cfg(keylane_bug)]
    began: Option<Instant>,
}

impl Runner {
    pub(crate) fn new(env: Env, factory: Factory) -> Self {
        let (call, verdicts, out) = (Arc::default(), Verdicts::default(), Effects::default());
        Self {
            factory,
            work: None,
            env,
            call,
            verdicts,
            out,
            #[cfg(keylane_bug)]
            began: None,
        }
    }

    /// Begins the next call of the shard, if there is one. To be followed by
    /// [`carry_out`](Self::carry_out), outside of the shard's mutex.
    pub(crate) fn begin(&mut self, shard: &mut Shard, now: Instant) -> Next {
        if shard.has_revoked() {
            // A tenure has ended since the listener was told: first that, then what came after.
            return Next::Wait(Some(now));
        }
        #[cfg(keylane_bug)]
        let now = self.began.take().filter(|_| bug!("time_before_call")).unwrap_or(now);
        let next = shard.next_call(now, &mut self.call, &mut self.out);
        #[cfg(keylane_bug)]
        if next == Next::Call {
            self.began = Some(now);
        }
        next
    }

    /// Calls the listener for what [`begin`](Self::begin) has begun.
    pub(crate) fn call_listener(&mut self) {
        self.call_listener_for(0..self.call.len());
    }

    /// Calls the listener for some of the call's messages: all of them, where it takes batches.
    pub(crate) fn call_listener_for(&mut self, messages: Range<usize>) {
        let Range { start: mut from, end } = messages;
        while from < end {
            self.make_work();
            let Some(work) = &mut self.work else {
                return self.fail(from..end); // There is no instance that could be called.
            };
            let (call, env, verdicts) = (&self.call, &self.env, &mut self.verdicts);
            let run = || work.run(call, from..end, env, verdicts);
            let Err(panic) = in_listener(run) else { return };
            let error = panic_text(panic);
            let again_from = work.blame(call, &error, verdicts);
            self.drop_work();
            let Some(index) = again_from else { return };
            from = index;
        }
    }

    fn fail(&mut self, messages: Range<usize>) {
        for index in messages {
            if self.verdicts.admits(&self.call, index) {
                let error = "the listener's factory panicked: there is no instance to call";
                self.verdicts.decide(&self.call, index, Verdict::panicked(error));
            }
        }
    }

    /// Settles the call. To be followed by [`carry_out_settled`](Self::carry_out_settled).
    pub(crate) fn settle(&mut self, now: Instant) {
        let mut shard = self.env.cell.shard.lock();
        shard.settle(&mut self.call, &mut self.verdicts, now, &mut self.out);
    }

    /// Does what follows from a call's end.
    pub(crate) fn carry_out_settled(&mut self) {
        self.carry_out();
        self.env.shared.signals.settled();
    }

    /// Does what a step of the shard asks for. Not to be called under the shard's mutex.
    pub(crate) fn carry_out(&mut self) {
        self.env.shared.carry_out(&self.env.cell, &mut self.out);
    }

    /// Makes the listener's instance, if there is none.
    pub(crate) fn make_work(&mut self) {
        if self.work.is_some() {
            return;
        }
        let (factory, shard) = (&self.factory, self.env.cell.index);
        match in_listener(|| (factory.make)(shard)) {
            Ok(work) => self.work = Some(work),
            Err(panic) => self.report_panic("the listener's factory", panic),
        }
    }

    /// Drops an instance whose state a panic may have torn.
    fn drop_work(&mut self) {
        let work = self.work.take();
        if let Err(panic) = in_listener(|| drop(work)) {
            self.report_panic("dropping the listener", panic);
        }
    }

    /// Tells the listener of tenures that have ended.
    pub(crate) fn tell_revoked(&mut self) {
        loop {
            let queue = self.env.cell.shard.lock().next_revoked();
            let Some(queue) = queue else { return };
            self.hook("on_revoked", |work| work.on_revoked(queue));
        }
    }

    /// Tells the listener that this was all.
    pub(crate) fn tell_stop(&mut self) {
        self.hook("on_stop", |work| work.on_stop());
    }

    fn hook(&mut self, what: &'static str, hook: impl FnOnce(&mut dyn Work)) {
        let Some(work) = &mut self.work else { return };
        if let Err(panic) = in_listener(|| hook(work.as_mut())) {
            self.drop_work();
            self.report_panic(what, panic);
        }
    }

    fn report_panic(&self, what: &'static str, panic: Box<dyn std::any::Any + Send>) {
        let error = panic_text(panic);
        self.env.shared.report(&Event::HookPanicked { what, error });
    }
}

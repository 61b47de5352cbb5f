//! What is seen while it runs, on standard error: a bar per phase on a terminal, a line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::outcome::say;

const BAR: &str = "{msg:28} {bar:32} {human_pos:>9} of {human_len}  {human_per_sec:>12}  {elapsed_precise} eta {eta}";

/// How often a line says how far it is, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// One phase.
pub(super) struct Phase {
    bar: ProgressBar,
    what: String,
    messages: u64,
    next_line: Option<Instant>,
    shown: Shown,
}

/// Whether, and how, phases are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Bars,
    Lines,
    /// Somebody else shows how far it is.
    Hidden,
}

impl Shown {
    /// As fits where standard error goes to.
    pub(super) fn here() -> Self {
        if std::io::stderr().is_terminal() { Self::Bars } else { Self::Lines }
    }
}

impl Phase {
    pub(super) fn begin(shown: Shown, what: impl Into<String>, messages: u64) -> Self {
        let what = what.into();
        let target = match shown {
            Shown::Bars => ProgressDrawTarget::stderr_with_hz(10),
            Shown::Lines | Shown::Hidden => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(messages), target);
        let style =
            ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
        bar.set_message(what.clone());
        let mut next_line = None;
        if shown == Shown::Lines {
            say(&format!("{what}: {messages} messages"));
            next_line = Some(Instant::now() + LINE_EVERY);
        }
        Self { bar, what, messages, next_line, shown }
    }

    pub(super) fn at(&self, messages: u64) {
        self.bar.set_position(messages);
    }

    /// The same, and how many are committed.
    pub(super) fn at_with(&mut self, messages: u64, committed: u64) {
        self.bar.set_position(messages);
        let now = Instant::now();
        if self.next_line.is_some_and(|next| now >= next) {
            self.next_line = Some(now + LINE_EVERY);
            let Self { what, messages: all, .. } = self;
            say(&format!("{what}: {messages} of {all}, {committed} committed"));
        }
    }

    /// Something worth a line of its own.
    pub(super) fn note(&self, line: &str) {
        self.bar.suspend(|| say(line));
    }

    pub(super) fn end(self, messages: u64, took: Duration) {
        self.bar.set_position(messages);
        match self.shown {
            Shown::Bars => self.bar.finish(),
            Shown::Lines => say(&format!("{}: {messages} messages in {took:.1?}", self.what)),
            Shown::Hidden => {}
        }
    }
}

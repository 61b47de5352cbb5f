//! What is seen while it runs, on standard error: a bar per phase on a terminal, a line elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::outcome::say;

const BAR: &str = "{msg:28} {bar:32} {human_pos:>9} of {human_len}  {human_per_sec:>12}  {elapsed_precise} eta {eta}";

/// One phase.
pub(super) struct Phase {
    bar: ProgressBar,
    what: String,
}

impl Phase {
    pub(super) fn begin(what: impl Into<String>, messages: u64) -> Self {
        let what = what.into();
        let bar =
            ProgressBar::with_draw_target(Some(messages), ProgressDrawTarget::stderr_with_hz(10));
        let style =
            ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
        bar.set_message(what.clone());
        if !std::io::stderr().is_terminal() {
            say(&format!("{what}: {messages} messages"));
        }
        Self { bar, what }
    }

    pub(super) fn at(&self, messages: u64) {
        self.bar.set_position(messages);
    }

    /// Something worth a line of its own.
    pub(super) fn note(&self, line: &str) {
        self.bar.suspend(|| say(line));
    }

    pub(super) fn end(self, messages: u64, took: Duration) {
        self.bar.set_position(messages);
        if std::io::stderr().is_terminal() {
            self.bar.finish();
        } else {
            say(&format!("{}: {messages} messages in {took:.1?}", self.what));
        }
    }
}

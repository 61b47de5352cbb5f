//! The engine as its users have it: threads, a scripted source, and what must hold.
//!
//! One binary; a module is a theme. Tests named `scenario_NN_…` retell what has gone wrong in other
//! consumers. Nothing here sleeps: a test waits for what it waits for ([`support`]), and fails after
//! half a minute without it.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod support;

mod assignment;
mod budget;
mod commits;
mod concurrent;
mod config;
mod dead_letters;
mod listeners;
mod locks;
mod modes;
mod observe;
mod order;
mod orderly;
mod panics;
mod queue_locked;
mod reset;
mod retry;
mod routing;
mod scale;
mod source;
mod stop;
mod stoppers;
mod tickets;

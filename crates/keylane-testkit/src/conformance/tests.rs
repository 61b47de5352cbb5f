//! The suite passes for the sources of this crate, and fails for sources that are wrong.

mod broken;
mod memory;
mod scripted;

#![forbid(unsafe_code)]
//! The project's tasks.
fn main() {}

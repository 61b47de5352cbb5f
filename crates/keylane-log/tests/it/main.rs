//! The one integration binary of the log.

mod basic;
mod support;

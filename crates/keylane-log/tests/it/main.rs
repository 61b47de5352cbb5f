//! The one integration binary of the log.

mod basic;
mod conformance;
mod crash;
mod damage;
mod lifecycle;
mod retention;
mod source;
mod support;

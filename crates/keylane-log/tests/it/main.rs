//! The one integration binary of the log.

mod basic;
mod crash;
mod damage;
mod lifecycle;
mod retention;
mod source;
mod support;

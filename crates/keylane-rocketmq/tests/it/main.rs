//! The adaptor against brokers: one in this process, and a real one where there is one.

mod broker;
mod client;
mod faults;
mod group;
mod locks;
mod member;
mod reading;

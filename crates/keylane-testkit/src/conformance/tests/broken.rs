//! Sources that are wrong are caught.

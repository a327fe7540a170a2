//! links.

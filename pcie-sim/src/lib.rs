//! How long a collective takes on a topology, and which transfers slow each other down.

pub mod box_spec;
pub mod catalog;

//! `predict`: joins bytes, links, steps and chances into one answer.

pub(crate) mod answer;
mod flags;
pub(crate) mod text;

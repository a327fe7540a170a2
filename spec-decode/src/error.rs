//! The one error type: an input that no acceptance can have.

use std::fmt;

/// An input that cannot be an acceptance figure. The text says what to give instead.
#[derive(Debug, Clone, PartialEq)]
pub enum AcceptanceError {
    /// An accept length outside `1 ..= depth + 1` (bonus token included).
    AcceptLength {
        /// The value given, tokens per verify.
        accept_length: f64,
        /// Drafted tokens per cycle.
        depth: u32,
    },
    /// An accept length below 1, which every verify makes by its bonus token.
    BelowOne {
        /// What the figure stands for, tokens per verify.
        accept_length: f64,
    },
    /// A rate or probability outside `0 ..= 1`, or not a number.
    Rate {
        /// Position in the list, from 1.
        position: usize,
        /// The value given.
        rate: f64,
    },
    /// Cumulative rates that rise: they were probably conditional ones.
    RatesRise {
        /// Position from 1 whose rate exceeds the one before.
        position: usize,
    },
    /// Counts that grow along the positions, or exceed the cycles.
    Counts {
        /// Position from 1.
        position: usize,
    },
    /// Nothing was given where at least one value is needed.
    Empty(&'static str),
    /// A number that must be positive and finite is not.
    NotPositive {
        /// What it is.
        what: &'static str,
        /// The value given.
        value: f64,
    },
    /// A name that is not known, with the known ones.
    Unknown {
        /// What kind of name.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names that are known.
        known: &'static str,
    },
}

impl fmt::Display for AcceptanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcceptLength {
                accept_length,
                depth,
            } => write!(
                f,
                "accept length {} at depth {depth} is impossible: with the bonus token it lies \
                 between 1 and {}",
                rounded(*accept_length),
                u64::from(*depth) + 1
            ),
            Self::BelowOne { accept_length } => write!(
                f,
                "stands for accept length {}, but every verify makes at least the bonus token: 1; \
                 is it a figure of this form?",
                rounded(*accept_length)
            ),
            Self::Rate { position, rate } => write!(
                f,
                "rate {rate} at position {position} is not a probability; give fractions from 0 to 1"
            ),
            Self::RatesRise { position } => write!(
                f,
                "rate at position {position} is above the one before; cumulative rates fall along \
                 the positions (conditional ones must be multiplied up first)"
            ),
            Self::Counts { position } => write!(
                f,
                "count at position {position} exceeds the one before; a position is reached only \
                 after the earlier ones are accepted"
            ),
            Self::Empty(what) => write!(f, "{what} is empty; give at least one value"),
            Self::NotPositive { what, value } => {
                write!(f, "{what} is {value}; give a positive number")
            }
            Self::Unknown { what, name, known } => {
                write!(f, "unknown {what} '{name}'; known: {known}")
            }
        }
    }
}

impl std::error::Error for AcceptanceError {}

/// To four digits after the point: what is computed from a printed figure has no more.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

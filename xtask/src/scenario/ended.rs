//! How a log's server ended, and what that says of the room on its card.

use super::ran::{OWN_POOL, Ran};

impl Ran {
    /// How its start ended, where it ended badly for what a card has room for.
    pub(crate) fn ended_badly(&self) -> Option<String> {
        let at = self.ran_out.as_ref();
        let out = at.zip(self.fraction).map(|(at, fraction)| {
            format!("the log's server ran out of memory at {fraction:.3} ({at})")
        });
        out.or_else(|| self.held_by_others())
    }

    /// A start that was refused for what else holds the card.
    pub(crate) fn held_by_others(&self) -> Option<String> {
        let little = self.too_little_free;
        let (free, total, line) = little.filter(|(free, total, _)| 0.0 < *free && free < total)?;
        let most = (free / total * 100.0).floor() / 100.0;
        Some(format!(
            "{}:{line}: {free:.2} of {total:.2} GiB were free, where fractions above {most:.2} are refused: this \
             answer is of a card that nothing else holds",
            self.file
        ))
    }

    /// How it ended, as evidence of the room beside its pool: a pool of a size that was set says nothing
    /// of the fraction, and a draft that is not the one asked for took what nobody knows.
    pub(crate) fn fate(&self) -> Option<kvplan::Fate> {
        let flags = &self.carried.flags;
        let mut words = flags.iter().filter_map(|flag| flag.first());
        let sized = words.any(|word| OWN_POOL.contains(&word.as_str()));
        let out = self.ran_out.is_some() && !self.of_another_draft;
        let known = self.proves_room && (out || self.stayed_up && !sized);
        known.then_some(kvplan::Fate {
            fraction: self.fraction,
            drafted: self.speculates && !self.of_another_draft,
            stayed_up: !out,
        })
    }
}

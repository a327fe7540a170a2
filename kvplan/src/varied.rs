//! A setup with one thing changed.

use crate::setup::Setup;

impl Setup<'_> {
    /// The same without speculation.
    pub fn plain(&self) -> Self {
        Self {
            speculation: None,
            ..self.clone()
        }
    }

    /// The same server told to take requests of so many tokens.
    pub fn told_length(&self, tokens: u64) -> Self {
        Self {
            context_tokens: Some(tokens),
            served_context: Some(tokens),
            ..self.clone()
        }
    }
}

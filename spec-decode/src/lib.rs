//! Acceptance, draft trees, speculative sampling, and when speculation pays.

//! How much memory everything takes: weights, KV cache, state, buffers, for every engine and version.

//! How many requests a pool holds.

use crate::groups::Groups;

/// Blocks of a pool beside the requests that each want one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateBlocks {
    /// Requests at once that the engine is told to run, or takes by itself.
    pub requests: u64,
    /// Blocks of the pool.
    pub blocks: u64,
    /// The same at the low end of the pool's band.
    pub surely: u64,
    /// The least fraction whose pool has as many blocks as requests.
    pub fraction_min: f64,
}

impl StateBlocks {
    /// As many requests as surely have a block, or have one at all, as they are typed: two leading digits of a
    /// figure that rests on an estimate.
    pub fn advised(&self) -> u64 {
        let held = match self.surely {
            0 => self.blocks,
            surely => surely,
        };
        let step = 10_u64.pow(held.max(1).ilog10().saturating_sub(1));
        held - held % step
    }
}

/// A sized KV pool. Engines count a request's share in tokens, or (vLLM) in blocks of groups of
/// layers, where a window or a state takes less or more than its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Tokens(u64),
    Blocks {
        groups: Box<Groups>,
        blocks: u64,
        /// Tokens of one pass: a window keeps as many more.
        batched: u64,
        /// Decode-context ranks that a request's tokens are spread over.
        dcp: u64,
    },
}

impl Pool {
    /// A pool of tokens that any request can take.
    pub(crate) fn of_tokens(tokens: u64) -> Self {
        Self(Kind::Tokens(tokens))
    }

    /// A pool cut into blocks.
    pub(crate) fn of_blocks(groups: Groups, blocks: u64, batched: u64, dcp: u64) -> Self {
        Self(Kind::Blocks {
            groups: Box::new(groups),
            blocks,
            batched,
            dcp: dcp.max(1),
        })
    }

    /// A pool like it of another size.
    pub(crate) fn scaled(&self, share: f64) -> Self {
        let of = |count: u64| (count as f64 * share).round() as u64;
        let mut scaled = self.clone();
        match &mut scaled.0 {
            Kind::Tokens(tokens) => *tokens = of(*tokens),
            Kind::Blocks { blocks, .. } => *blocks = of(*blocks),
        }
        scaled
    }

    /// Requests of `context` tokens that it holds at once.
    pub fn requests(&self, context: u64) -> f64 {
        let context = context.max(1);
        match &self.0 {
            Kind::Tokens(tokens) => *tokens as f64 / context as f64,
            Kind::Blocks {
                groups,
                blocks,
                batched,
                dcp,
            } => groups.concurrency(*blocks, context.div_ceil(*dcp), *batched),
        }
    }

    /// Tokens of a pool of padded groups as vLLM to 0.20.0 prints them: blocks over groups, times the
    /// tokens of a block.
    pub(crate) fn tokens_by_blocks(&self) -> Option<u64> {
        match &self.0 {
            Kind::Blocks {
                groups,
                blocks,
                dcp,
                ..
            } if groups.hybrid() => Some(groups.tokens(*blocks).saturating_mul(*dcp)),
            _ => None,
        }
    }

    /// Whether it counts layers in padded groups: then pool / tokens is not the bytes of a token.
    pub fn grouped(&self) -> bool {
        matches!(&self.0, Kind::Blocks { groups, .. } if groups.hybrid())
    }
}

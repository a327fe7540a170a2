//! Kinds of draft heads. The kind decides how acceptance changes along the drafted positions.

use crate::error::AcceptanceError;

/// How the draft tokens are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HeadKind {
    /// EAGLE-3 and 3.1: one layer fed with its own states, trained on them ("training-time test").
    Eagle3,
    /// EAGLE-1 and 2: one layer fed with its own states, never trained on them.
    Eagle,
    /// One multi-token-prediction module used again for every position (MTP, NEXTN).
    Mtp,
    /// One separately trained module per position.
    MtpModules,
    /// All positions in one pass (DSpark, P-EAGLE, DFlash, Medusa).
    Parallel,
    /// A separate small language model.
    DraftModel,
    /// Copying from the context (n-gram, suffix): no model at all.
    NGram,
}

impl HeadKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Eagle3,
        Self::Eagle,
        Self::Mtp,
        Self::MtpModules,
        Self::Parallel,
        Self::DraftModel,
        Self::NGram,
    ];

    /// The name in flags and catalogues.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eagle3 => "eagle3",
            Self::Eagle => "eagle",
            Self::Mtp => "mtp",
            Self::MtpModules => "mtp-modules",
            Self::Parallel => "parallel",
            Self::DraftModel => "draft-model",
            Self::NGram => "ngram",
        }
    }

    /// Reads a kind from a flag, an engine's method name, or a data file's free text such as
    /// `mtp (NEXTN)` or `dspark (probabilistic draft + block verify)`.
    ///
    /// # Errors
    /// [`AcceptanceError::Unknown`] with the known names.
    pub fn parse(name: &str) -> Result<Self, AcceptanceError> {
        let lower = name.trim().to_ascii_lowercase().replace('_', "-");
        let word = lower.split([' ', '(', '@']).next().unwrap_or_default();
        let many = |s: &str| s.contains("modules") || s.contains("heads)");
        match word {
            "eagle3" | "eagle-3" | "eagle3.1" | "eagle-3.1" | "eagle3.1-like" => Ok(Self::Eagle3),
            "eagle" | "eagle1" | "eagle2" | "eagle-1" | "eagle-2" => Ok(Self::Eagle),
            "mtp-modules" => Ok(Self::MtpModules),
            "mtp" | "nextn" | "deepseek-mtp" if many(&lower) => Ok(Self::MtpModules),
            "mtp" | "nextn" | "deepseek-mtp" => Ok(Self::Mtp),
            "parallel" | "dspark" | "p-eagle" | "peagle" | "dflash" | "medusa" => {
                Ok(Self::Parallel)
            }
            "draft" | "draft-model" | "standalone" => Ok(Self::DraftModel),
            "ngram" | "n-gram" | "suffix" => Ok(Self::NGram),
            _ => Err(AcceptanceError::Unknown {
                what: "head kind",
                name: name.to_string(),
                known: "eagle3, eagle, mtp, mtp-modules, parallel, draft-model, ngram",
            }),
        }
    }
}

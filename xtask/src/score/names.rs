//! `names.tsv`: catalogue names of the models and cards in the data.

use std::collections::BTreeMap;
use std::path::Path;

/// Names as the data spell them, to catalogue name and precision.
#[derive(Debug, Default)]
pub(crate) struct Names {
    models: BTreeMap<String, (String, Option<String>)>,
    gpus: BTreeMap<String, String>,
}

impl Names {
    /// Reads `names.tsv`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn load(data: &Path) -> anyhow::Result<Self> {
        let text = crate::input::read_text(&data.join("names.tsv"))?;
        let mut names = Self::default();
        for line in text.lines() {
            let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
            match cells.as_slice() {
                ["model", in_data, name, rest @ ..] => {
                    let quant = rest.first().filter(|q| !q.is_empty());
                    let entry = ((*name).to_string(), quant.map(|q| (*q).to_string()));
                    names.models.insert((*in_data).to_string(), entry);
                }
                ["gpu", in_data, name, ..] => {
                    names
                        .gpus
                        .insert((*in_data).to_string(), (*name).to_string());
                }
                _ => {}
            }
        }
        Ok(names)
    }

    /// Catalogue name and precision of a model; the name itself where the table lacks it.
    pub(crate) fn model<'a>(&'a self, in_data: &'a str) -> (&'a str, Option<&'a str>) {
        self.models
            .get(in_data)
            .map_or((in_data, None), |(name, quant)| (name, quant.as_deref()))
    }

    /// Catalogue name of a card; the name itself where the table lacks it.
    pub(crate) fn gpu<'a>(&'a self, in_data: &'a str) -> &'a str {
        self.gpus.get(in_data).map_or(in_data, String::as_str)
    }
}

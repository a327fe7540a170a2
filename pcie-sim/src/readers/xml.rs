//! A small scanner for the XML that NCCL and hwloc write: elements and attributes. Entities are
//! left as they stand, DTDs are skipped, depth and element count are bounded.

use super::ReadError;

/// One element; children by index into the document.
#[derive(Debug)]
pub(super) struct Element<'a> {
    pub(super) name: &'a str,
    pub(super) attributes: Vec<(&'a str, &'a str)>,
    pub(super) children: Vec<usize>,
    pub(super) line: usize,
    pub(super) text: &'a str,
}

/// Elements in document order; the first is the root.
#[derive(Debug)]
pub(super) struct Document<'a> {
    pub(super) elements: Vec<Element<'a>>,
}

/// Deepest nesting read. NCCL reaches about 10, hwloc about 20.
const DEPTH_MAX: usize = 128;
/// Most elements read. A large hwloc export has some 10,000.
const ELEMENTS_MAX: usize = 200_000;

impl<'a> Element<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.attributes
            .iter()
            .find(|(have, _)| *have == name)
            .map(|(_, value)| *value)
    }
}

impl<'a> Document<'a> {
    /// Adds an element under the open ones.
    fn add(
        &mut self,
        open: &[usize],
        name: &'a str,
        attributes: Vec<(&'a str, &'a str)>,
        line: usize,
    ) -> Result<usize, ReadError> {
        if open.len() >= DEPTH_MAX || self.elements.len() >= ELEMENTS_MAX {
            let what = "nested or large beyond any topology";
            return Err(ReadError::new(Some(line), what, super::GIVE));
        }
        let id = self.elements.len();
        if let Some(top) = open.last().and_then(|i| self.elements.get_mut(*i)) {
            top.children.push(id);
        }
        let children = Vec::new();
        self.elements.push(Element {
            name,
            attributes,
            children,
            line,
            text: "",
        });
        Ok(id)
    }

    pub(super) fn children<'d>(
        &'d self,
        of: usize,
    ) -> impl Iterator<Item = (usize, &'d Element<'a>)> {
        let ids = self
            .elements
            .get(of)
            .map(|e| e.children.as_slice())
            .unwrap_or_default();
        ids.iter()
            .filter_map(|i| Some((*i, self.elements.get(*i)?)))
    }
}

/// Name of the first element, skipping comments, declarations and text in front of it.
pub(super) fn root_name(text: &str) -> Option<&str> {
    let mut rest = text;
    // Prose in front of a pasted file is skipped too, so a stray '<' must not end the search.
    for _ in 0..10_000 {
        let open = rest.find('<')?;
        rest = rest.get(open + 1..)?;
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.get(comment.find("-->")? + 3..)?;
            continue;
        }
        if rest.starts_with(['!', '?', '/']) {
            continue;
        }
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        match rest.get(..end) {
            Some(name @ ("system" | "topology" | "nvidia_smi_log" | "graphs")) => {
                return Some(name);
            }
            _ => continue,
        }
    }
    None
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
}

/// Reads from the first element called `root` to its end tag.
pub(super) fn parse<'a>(text: &'a str, root: &str) -> Result<Document<'a>, ReadError> {
    let mut scan = Scan {
        text,
        at: 0,
        line: 1,
        counted: 0,
    };
    let mut doc = Document {
        elements: Vec::new(),
    };
    let mut open: Vec<usize> = Vec::new();
    loop {
        let text_from = scan.at;
        let Some(found) = scan.rest().find('<') else {
            let inside = open
                .last()
                .and_then(|i| doc.elements.get(*i))
                .map_or(root, |e| e.name);
            return Err(ReadError::new(
                Some(scan.line_here(text.len())),
                format!("the XML ends inside <{inside}>"),
                "the file is cut off: copy it whole",
            ));
        };
        if let Some(top) = open.last().and_then(|i| doc.elements.get_mut(*i)) {
            top.text = text.get(text_from..text_from + found).unwrap_or("").trim();
        }
        scan.at += found;
        let line = scan.line_here(scan.at);
        match scan.tag()? {
            Tag::Skip => {}
            Tag::Open {
                name,
                attributes,
                closed,
            } => {
                if open.is_empty() && name != root {
                    continue;
                }
                let id = doc.add(open.as_slice(), name, attributes, line)?;
                if !closed {
                    open.push(id);
                } else if open.is_empty() {
                    return Ok(doc);
                }
            }
            Tag::Close(name) => {
                let Some(top) = open.pop() else { continue };
                let expected = doc.elements.get(top).map_or("", |e| e.name);
                if expected != name {
                    return Err(ReadError::new(
                        Some(line),
                        format!("</{name}> closes <{expected}>"),
                        "the file was edited or cut: copy it whole",
                    ));
                }
                if open.is_empty() {
                    return Ok(doc);
                }
            }
        }
    }
}

enum Tag<'a> {
    Skip,
    Open {
        name: &'a str,
        attributes: Vec<(&'a str, &'a str)>,
        closed: bool,
    },
    Close(&'a str),
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    counted: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Line of an offset; offsets come in rising order, so the whole text is counted once.
    fn line_here(&mut self, offset: usize) -> usize {
        if offset > self.counted {
            let part = self
                .text
                .as_bytes()
                .get(self.counted..offset)
                .unwrap_or_default();
            self.line += part.iter().filter(|b| **b == b'\n').count();
            self.counted = offset;
        }
        self.line
    }

    fn cut(&mut self) -> ReadError {
        let line = self.line_here(self.at);
        ReadError::new(
            Some(line),
            "an XML tag does not end",
            "the file is cut off: copy it whole",
        )
    }

    /// Reads the tag at '<'.
    fn tag(&mut self) -> Result<Tag<'a>, ReadError> {
        let rest = self.rest();
        for (start, end) in [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")] {
            if rest.starts_with(start) {
                let Some(n) = rest.find(end) else {
                    return Err(self.cut());
                };
                self.at += n + end.len();
                return Ok(Tag::Skip);
            }
        }
        if rest.starts_with("<!") {
            // A DOCTYPE, with or without an internal subset in brackets; nothing of it is used.
            let Some(n) = rest.find('>') else {
                return Err(self.cut());
            };
            let n = match rest.find('[') {
                Some(open) if open < n => rest.find("]>").map(|m| m + 1),
                _ => Some(n),
            };
            let Some(n) = n else { return Err(self.cut()) };
            self.at += n + 1;
            return Ok(Tag::Skip);
        }
        let closing = rest.starts_with("</");
        let from = if closing { 2 } else { 1 };
        let inner = rest.get(from..).unwrap_or("");
        let len = inner.find(|c: char| !is_name(c)).unwrap_or(inner.len());
        let name = inner.get(..len).unwrap_or("");
        if name.is_empty() {
            // A bare '<' in prose.
            self.at += 1;
            return Ok(Tag::Skip);
        }
        self.at += from + len;
        if closing {
            let Some(n) = self.rest().find('>') else {
                return Err(self.cut());
            };
            self.at += n + 1;
            return Ok(Tag::Close(name));
        }
        let mut attributes = Vec::new();
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("/>") {
                self.at += 2;
                return Ok(Tag::Open {
                    name,
                    attributes,
                    closed: true,
                });
            }
            if trimmed.starts_with('>') {
                self.at += 1;
                return Ok(Tag::Open {
                    name,
                    attributes,
                    closed: false,
                });
            }
            match self.attribute(trimmed) {
                Some(pair) => attributes.push(pair),
                None => return Err(self.cut()),
            }
        }
    }

    /// Reads `name="value"` or `name='value'` at the start of `text`.
    fn attribute(&mut self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let len = text.find(|c: char| !is_name(c)).filter(|n| *n > 0)?;
        let name = text.get(..len)?;
        let after = text
            .get(len..)?
            .trim_start()
            .strip_prefix('=')?
            .trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let value = after.get(1..)?;
        let end = value.find(quote)?;
        let consumed = text.len() - value.len() + end + 1;
        self.at += consumed;
        Some((name, value.get(..end)?))
    }
}

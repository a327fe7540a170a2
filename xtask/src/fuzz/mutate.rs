//! Damage to texts: what cut pastes, wrong units, wrapped tables and hostile files look like.

use serde_json::Value;

/// A small generator whose runs replay (splitmix64).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 where that is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % (end as u64).max(1)) as usize
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

/// Figures that break sums, sizes and loops.
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "64",
    "255",
    "256",
    "4095",
    "65536",
    "65537",
    "16777216",
    "1073741824",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "1099511627776",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "0.5",
    "-0.5",
    "1e-320",
    "1e308",
    "1e999",
    "-1e999",
    "NaN",
    "inf",
    "Infinity",
    "-Infinity",
    "1.2.3",
    "1,234,567",
    "0x10",
    "007",
    "1_000",
    "+5",
    "5%",
    "null",
    "true",
    "\"8\"",
    "[]",
    "{}",
    "[1,2]",
    "\"\"",
];

/// Words that readers look for, and what breaks cutting.
const WORDS: &[&str] = &[
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    "\t",
    " ",
    ",",
    ":",
    "=",
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "<",
    ">",
    "</",
    "/>",
    "<!--",
    "-->",
    "<![CDATA[",
    "&amp;",
    "#",
    "[[node]]\n",
    "[[link]]\n",
    "\u{1b}[31m",
    "\u{feff}",
    "é",
    "漢",
    "🦀",
    "\u{202e}",
    "│",
    "GPU0",
    "GPU7",
    "GPU99",
    "NIC0",
    "NV18",
    "NV0",
    "NV99999",
    "PIX",
    "SYS",
    "X",
    "N/A",
    "OK",
    "CNS",
    "GiB",
    "TP0",
    "TP99999",
    "INFO",
    "ERROR",
    "re:.*",
    "re:(((",
    "*",
    "model.layers.0.self_attn",
    "0000:00:00.0",
    "ffff:ff:1f.7",
    "-[0000:00]-",
    "+-",
    "\\-",
    "\\",
    "|",
    "LnkSta:",
    "Width x16",
    "Speed 32GT/s",
];

/// A text of the corpus with some damage; `None` where the corpus is empty.
pub(super) fn damaged(texts: &[String], random: &mut Random, limit: usize) -> Option<String> {
    let mut text = random.pick(texts)?.clone();
    if random.below(3) == 0
        && let Some(changed) = json_damaged(&text, random)
    {
        text = changed;
        if random.below(2) == 0 {
            return Some(text);
        }
    }
    // Mostly little damage: much of it is refused at the door.
    let changes = if random.below(2) == 0 {
        0
    } else {
        random.below(5)
    };
    for _ in 0..=changes {
        text = change(&text, texts, random);
        if text.len() > limit {
            text = head(&text, limit).to_string();
        }
    }
    // A file with NUL bytes is refused as binary before any reader sees it.
    Some(text.replace('\0', ""))
}

/// The longest start of at most `limit` bytes.
fn head(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

/// A place in the text, at a character.
fn place(text: &str, random: &mut Random) -> usize {
    head(text, random.below(text.len() + 1)).len()
}

fn change(text: &str, texts: &[String], random: &mut Random) -> String {
    let (a, b) = (place(text, random), place(text, random));
    let (from, to) = (a.min(b), a.max(b));
    let near = head(text, (from + random.below(40)).min(text.len()))
        .len()
        .max(from);
    let with = |from: usize, to: usize, piece: &str| {
        let (start, end) = (text.get(..from), text.get(to..));
        format!("{}{piece}{}", start.unwrap_or(""), end.unwrap_or(""))
    };
    match random.below(16) {
        0 => with(from, to, ""),
        1 => with(from, near, ""),
        2 => with(from, text.len(), ""),
        3 => with(to, to, text.get(from..near).unwrap_or("")),
        4 => {
            let times = 1 + random.below(1 + 4_000 / (near - from).max(1));
            with(
                from,
                from,
                &text.get(from..near).unwrap_or("").repeat(times),
            )
        }
        5 => with(from, from, random.pick(WORDS).unwrap_or(&"")),
        6 => with(from, near, random.pick(WORDS).unwrap_or(&"")),
        7 | 8 | 12..=15 => number_replaced(text, from, random),
        9 => lines_changed(text, random),
        10 => {
            // A part of another text of the kind.
            let other = random.pick(texts).map_or("", String::as_str);
            let start = place(other, random);
            let rest = other.get(start..).unwrap_or("");
            with(from, near, head(rest, random.below(2000)))
        }
        _ => {
            let any = char::from_u32(random.below(0x3000) as u32).unwrap_or('?');
            with(from, near, &any.to_string())
        }
    }
}

/// The first run of digits behind `from`, replaced.
fn number_replaced(text: &str, from: usize, random: &mut Random) -> String {
    let digit = |c: char| c.is_ascii_digit();
    let tail = text.get(from..).unwrap_or("");
    let Some(start) = tail.find(digit).map(|at| from + at) else {
        return text.to_string();
    };
    let rest = text.get(start..).unwrap_or("");
    let length = rest
        .find(|c: char| !(digit(c) || c == '.'))
        .unwrap_or(rest.len());
    let number = random.pick(NUMBERS).unwrap_or(&"0");
    let (before, after) = (text.get(..start), text.get(start + length..));
    format!("{}{number}{}", before.unwrap_or(""), after.unwrap_or(""))
}

fn lines_changed(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let (a, b) = (random.below(lines.len()), random.below(lines.len()));
    if lines.is_empty() {
        return String::new();
    }
    match random.below(4) {
        0 => lines.swap(a, b),
        1 => drop(lines.remove(a)),
        2 => lines.insert(a, lines.get(b).copied().unwrap_or("")),
        _ => lines.truncate(a),
    }
    lines.join("\n")
}

/// JSON that stays JSON: a value replaced, a key dropped or moved.
fn json_damaged(text: &str, random: &mut Random) -> Option<String> {
    let mut root: Value = serde_json::from_str(text).ok()?;
    for _ in 0..=random.below(4) {
        let piece = random.pick(NUMBERS).copied().unwrap_or("0");
        let new = serde_json::from_str(piece).unwrap_or_else(|_| Value::from(piece));
        let mut at = &mut root;
        // Walk down a random path, more often a short one.
        for _ in 0..=random.below(4) {
            let deeper = match &*at {
                Value::Object(map) => map.values().any(|v| v.is_object() || v.is_array()),
                Value::Array(list) => list.iter().any(|v| v.is_object() || v.is_array()),
                _ => false,
            };
            if !deeper || random.below(3) == 0 {
                break;
            }
            let nested: Vec<&mut Value> = match at {
                Value::Object(map) => map.values_mut().collect(),
                Value::Array(list) => list.iter_mut().collect(),
                _ => break,
            };
            let mut nested: Vec<&mut Value> = nested
                .into_iter()
                .filter(|v| v.is_object() || v.is_array())
                .collect();
            let which = random.below(nested.len());
            at = nested.swap_remove(which);
        }
        replace_one(at, new, random);
    }
    Some(root.to_string())
}

fn replace_one(at: &mut Value, new: Value, random: &mut Random) {
    match at {
        Value::Object(map) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let Some(key) = random.pick(&keys) else {
                return;
            };
            match random.below(5) {
                0 => drop(map.remove(key)),
                1 => {
                    // Another key's value: the right kind, the wrong size.
                    let other = random.pick(&keys).and_then(|k| map.get(k)).cloned();
                    map.insert(key.clone(), other.unwrap_or(Value::Null));
                }
                _ => drop(map.insert(key.clone(), new)),
            }
        }
        Value::Array(list) => {
            let which = random.below(list.len());
            match (random.below(4), list.get_mut(which)) {
                (0, _) => list.clear(),
                (1, Some(value)) => {
                    let copies = vec![value.clone(); random.below(300)];
                    list.extend(copies);
                }
                (_, Some(value)) => *value = new,
                (_, None) => list.push(new),
            }
        }
        other => *other = new,
    }
}

//! What the columns of a sweep are called, and what they are not.

/// Where a header puts what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Columns {
    pub(super) users: usize,
    pub(super) tok_s: usize,
    pub(super) context: Option<usize>,
}

impl Columns {
    /// Columns of users and of tokens a second; `None` where the header does not name both.
    pub(super) fn of(header: &[String]) -> Option<Self> {
        let name = |cell: &String| match other_rate(cell) {
            Some(_) => String::new(),
            None => plain(cell),
        };
        let header: Vec<String> = header.iter().map(name).collect();
        let users = first_of(&header, &USERS, &NOT_USERS)?;
        let tok_s = first_of(&header, &OVER_ALL_USERS, &NOT_TOK_S)
            .or_else(|| first_of(&header, &OUTPUT, &NOT_TOK_S))
            .or_else(|| first_of(&header, &TOK_S, &NOT_TOK_S))?;
        let context = first_of(&header, &["context", "ctx"], &[]);
        (users != tok_s).then_some(Self {
            users,
            tok_s,
            context: context.filter(|at| *at != users && *at != tok_s),
        })
    }
}

/// What a column of users may be called, the surest first, and what it is not.
const USERS: [&str; 7] = [
    "concurren",
    "users",
    "clients",
    "streams",
    "parallel",
    "batch",
    "requests",
];
const NOT_USERS: [&str; 5] = ["tok", "throughput", "rate", "per", "/"];

/// The same of tokens a second: of all users, of output alone, of which nothing more is said.
const OVER_ALL_USERS: [&str; 2] = ["aggregate", "all users"];
const OUTPUT: [&str; 8] = [
    "output tok s",
    "output tok/s",
    "output tok per",
    "output token throughput",
    "output throughput",
    "generation throughput",
    "decode tok",
    "gen tok",
];
const TOK_S: [&str; 8] = [
    "tok s",
    "tok/s",
    "tok per s",
    "throughput",
    "tps",
    "t/s",
    "tok",
    "rate",
];
const NOT_TOK_S: [&str; 13] = [
    "input", "prompt", "prefill", "per user", "/user", "per req", "/req", "request", "accept",
    "ttft", "tpot", "itl", "latency",
];

/// A cell of a header in lower case, words set apart by blanks, tokens as `tok`.
fn plain(cell: &str) -> String {
    let cell = cell.to_ascii_lowercase().replace(['_', '-', '(', ')'], " ");
    let words: Vec<&str> = cell.split_whitespace().collect();
    words
        .join(" ")
        .replace("tokens", "tok")
        .replace("tok sec", "tok s")
}

/// The column that holds the first of some words, and none of others.
fn first_of(header: &[String], words: &[&str], not: &[&str]) -> Option<usize> {
    words.iter().find_map(|word| {
        header
            .iter()
            .position(|cell| cell.contains(word) && !not.iter().any(|not| cell.contains(not)))
    })
}

/// What a rate counts that is not output tokens, where the name of its column says so.
pub(super) fn other_rate(cell: &str) -> Option<&'static str> {
    const REQUESTS: [&str; 9] = [
        "req/s",
        " req s ",
        " req per s",
        "request/s",
        "requests/s",
        " requests s ",
        "requests per s",
        " rps ",
        " qps ",
    ];
    // What serving benches print as `Total Token throughput`: prompts are in it.
    const WITH_PROMPTS: [&str; 2] = ["total token throughput", "total tok throughput"];
    let cell = format!(" {} ", plain(cell));
    let names = |words: &[&str]| words.iter().any(|word| cell.contains(word));
    if names(&REQUESTS) || cell.contains("request throughput") {
        return Some("requests");
    }
    names(&WITH_PROMPTS).then_some("tokens of prompts too")
}

/// Whether a header of two columns whose words are not those of a sweep says what they are.
pub(super) fn names_something_else(header: &[String]) -> bool {
    const OTHER: [&str; 14] = [
        "byte", "size", "time", "us", "ms", "latency", "rate", "per user", "/user", "input",
        "prompt", "prefill", "gib", "gb/s",
    ];
    header.iter().take(2).map(|cell| plain(cell)).any(|cell| {
        OTHER.iter().any(|word| match word.len() {
            2 => cell.split([' ', '/']).any(|part| part == *word),
            _ => cell.contains(word),
        })
    })
}

/// Whether the name of the throughput's column says that it is of all users together.
pub(super) fn says_sum(cell: &str) -> bool {
    let cell = plain(cell);
    let sum = ["aggregate", "total tok", "all users"];
    sum.iter().any(|word| cell.contains(word)) && !cell.contains("per user")
}

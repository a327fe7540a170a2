//! A small HTTP/1.1 client over plain TCP: what driving a local server needs and no more. Every
//! read has a deadline and a size limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::input;

/// Longest header line, and most header lines.
const MAX_LINE_BYTES: u64 = 64 << 10;
const MAX_HEADERS: usize = 200;
/// Largest answer that is kept.
const MAX_BODY_BYTES: u64 = 64 << 20;
/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(5);

/// A server's address: scheme http only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    host: String,
    port: u16,
    prefix: String,
}

impl Url {
    /// Reads `http://host[:port][/prefix]`; a trailing `/v1` is taken off.
    ///
    /// # Errors
    /// One line that names the flag.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = |why: &str| {
            input::error(format!(
                "--engine-url {text}: {why}; give the address of the server, such as \
                 http://localhost:8000"
            ))
        };
        if text.starts_with("https://") {
            return Err(wrong("only plain http is spoken here"));
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        if rest.contains("://") || rest.contains(char::is_whitespace) {
            return Err(wrong("is not an http address"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (
                host,
                port.parse()
                    .map_err(|_| wrong("the port is not a number from 1 to 65535"))?,
            ),
            None => (authority, 80),
        };
        if host.is_empty() || port == 0 {
            return Err(wrong("has no host or port"));
        }
        let path = path.trim_end_matches('/');
        let path = path
            .strip_suffix("v1")
            .unwrap_or(path)
            .trim_end_matches('/');
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_string(),
            port,
            prefix: if path.is_empty() {
                String::new()
            } else {
                format!("/{path}")
            },
        })
    }

    fn shown(&self, path: &str) -> String {
        format!("http://{}:{}{}{path}", self.host, self.port, self.prefix)
    }
}

/// An answer: its status and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Fetches `path`, waiting at most `deadline` for the whole answer.
///
/// # Errors
/// One line with the address: no connection, too late, too large, or not HTTP.
pub(crate) fn get(url: &Url, path: &str, deadline: Duration) -> anyhow::Result<Answer> {
    exchange(url, "GET", path, None, deadline, |_| {})
}

/// Posts JSON to `path`; `on_line` sees each line of the body as it comes (server-sent events).
///
/// # Errors
/// As [`get`].
pub(crate) fn post(
    url: &Url,
    path: &str,
    json: &serde_json::Value,
    deadline: Duration,
    on_line: impl FnMut(&str),
) -> anyhow::Result<Answer> {
    let body = json.to_string();
    exchange(url, "POST", path, Some(&body), deadline, on_line)
}

fn exchange(
    url: &Url,
    method: &str,
    path: &str,
    body: Option<&str>,
    deadline: Duration,
    on_line: impl FnMut(&str),
) -> anyhow::Result<Answer> {
    let shown = url.shown(path);
    let failed = |why: String| input::error(format!("--engine-url: {shown}: {why}"));
    let stream =
        connect(url).map_err(|e| failed(format!("no connection ({e}); is it running?")))?;
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            failed(format!("no answer in {:.0} s", deadline.as_secs_f64()))
        }
        _ => failed(e.to_string()),
    };
    let until = Instant::now() + deadline;
    let _ = stream.set_nodelay(true);
    stream.set_write_timeout(Some(CONNECT)).map_err(io)?;
    let mut request = format!(
        "{method} {}{path} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nAccept: */*\r\n",
        url.prefix, url.host, url.port
    );
    if let Some(body) = body {
        request.push_str(&format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        ));
    }
    request.push_str("\r\n");
    request.push_str(body.unwrap_or_default());
    (&stream).write_all(request.as_bytes()).map_err(io)?;
    let mut reader = BufReader::with_capacity(16 << 10, Bounded { stream, until });
    read_answer(&mut reader, on_line).map_err(|e| match e {
        Fault::Io(e) => io(e),
        Fault::Form(why) => failed(why.to_string()),
    })
}

fn connect(url: &Url) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A socket whose reads end at a point in time.
struct Bounded {
    stream: TcpStream,
    until: Instant,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

#[derive(Debug)]
enum Fault {
    Io(std::io::Error),
    Form(&'static str),
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

fn line(reader: &mut impl BufRead) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let got = reader
        .by_ref()
        .take(MAX_LINE_BYTES)
        .read_until(b'\n', &mut bytes)?;
    if got == 0 {
        return Err(Fault::Form("the connection closed early"));
    }
    if bytes.last() != Some(&b'\n') {
        return Err(Fault::Form(
            "a line is too long or cut off; is this an HTTP server?",
        ));
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_string())
}

fn read_answer(reader: &mut impl BufRead, on_line: impl FnMut(&str)) -> Result<Answer, Fault> {
    let first = line(reader)?;
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split_whitespace().nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or(Fault::Form("does not answer in HTTP/1"))?;
    let mut framing = Framing::UntilClose;
    for count in 0.. {
        let header = line(reader)?;
        if header.is_empty() {
            break;
        }
        if count >= MAX_HEADERS {
            return Err(Fault::Form("too many headers"));
        }
        let Some((name, value)) = header.split_once(':') else {
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let length = value
                    .trim()
                    .parse()
                    .map_err(|_| Fault::Form("a bad Content-Length"))?;
                framing = Framing::Length(length);
            }
            "transfer-encoding" if value.to_ascii_lowercase().contains("chunked") => {
                framing = Framing::Chunked;
            }
            _ => {}
        }
    }
    let body = read_body(reader, framing, on_line)?;
    Ok(Answer { status, body })
}

fn read_body(
    reader: &mut impl BufRead,
    framing: Framing,
    on_line: impl FnMut(&str),
) -> Result<String, Fault> {
    let mut body = Body {
        bytes: Vec::new(),
        told: 0,
        on_line,
    };
    match framing {
        Framing::Length(length) => body.take(reader, length)?,
        Framing::UntilClose => body.take_all(reader)?,
        Framing::Chunked => loop {
            let size = line(reader)?;
            let digits = size.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(digits, 16)
                .map_err(|_| Fault::Form("a bad chunk size in its answer"))?;
            if size == 0 {
                // Trailers, if any, end with the connection.
                break;
            }
            body.take(reader, size)?;
            line(reader)?;
        },
    }
    body.tell(true);
    Ok(String::from_utf8_lossy(&body.bytes).into_owned())
}

/// The body so far; whole lines are told as they come.
struct Body<F: FnMut(&str)> {
    bytes: Vec<u8>,
    told: usize,
    on_line: F,
}

impl<F: FnMut(&str)> Body<F> {
    fn room(&self, more: u64) -> Result<(), Fault> {
        if (self.bytes.len() as u64).saturating_add(more) > MAX_BODY_BYTES {
            return Err(Fault::Form("its answer is larger than 64 MiB"));
        }
        Ok(())
    }

    fn take(&mut self, reader: &mut impl BufRead, length: u64) -> Result<(), Fault> {
        self.room(length)?;
        let mut left = length;
        while left > 0 {
            let available = reader.fill_buf()?;
            if available.is_empty() {
                return Err(Fault::Form("the connection closed early"));
            }
            let used = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(available.len());
            self.bytes.extend_from_slice(&available[..used]);
            reader.consume(used);
            left -= used as u64;
            self.tell(false);
        }
        Ok(())
    }

    fn take_all(&mut self, reader: &mut impl BufRead) -> Result<(), Fault> {
        loop {
            let available = reader.fill_buf()?;
            let used = available.len();
            if used == 0 {
                return Ok(());
            }
            self.room(used as u64)?;
            self.bytes.extend_from_slice(available);
            reader.consume(used);
            self.tell(false);
        }
    }

    fn tell(&mut self, last: bool) {
        while let Some(at) = self.bytes[self.told..].iter().position(|b| *b == b'\n') {
            let end = self.told + at;
            let text = String::from_utf8_lossy(&self.bytes[self.told..end]);
            (self.on_line)(text.trim_end());
            self.told = end + 1;
        }
        if last && self.told < self.bytes.len() {
            let text = String::from_utf8_lossy(&self.bytes[self.told..]);
            (self.on_line)(text.trim_end());
            self.told = self.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Answer, Vec<String>), Fault> {
        let mut lines = Vec::new();
        let answer = read_answer(&mut text.as_bytes(), |line| lines.push(line.to_string()))?;
        Ok((answer, lines))
    }

    #[test]
    fn addresses_are_read_and_the_rest_is_refused_in_one_line() {
        let url = Url::parse("http://localhost:8000/v1").expect("an address");
        assert_eq!((url.host.as_str(), url.port), ("localhost", 8000));
        assert_eq!(url.prefix, "");
        assert_eq!(Url::parse("box:30000").expect("short form").port, 30000);
        let nested = Url::parse("http://gw/engine/v1/").expect("a prefix");
        assert_eq!((nested.prefix.as_str(), nested.port), ("/engine", 80));
        for bad in [
            "https://x",
            "ftp://x",
            "http://",
            "http://x:0",
            "http://x:port",
            "http://a b",
        ] {
            let error = Url::parse(bad).expect_err(bad).to_string();
            assert!(
                error.starts_with("--engine-url ") && !error.contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn bodies_are_read_by_length_by_chunks_and_to_the_end() {
        let by_length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more";
        assert_eq!(read(by_length).expect("a body").0.body, "hello");
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       8\r\ndata: a\n\r\n9;x=1\r\ndata: bc\n\r\n0\r\n\r\n";
        let (answer, lines) = read(chunked).expect("chunks");
        assert_eq!(answer.body, "data: a\ndata: bc\n");
        assert_eq!(lines, ["data: a", "data: bc"]);
        let open = "HTTP/1.0 404 Not Found\r\n\r\nnothing\nhere";
        let (answer, lines) = read(open).expect("to the end");
        assert_eq!((answer.status, lines.len()), (404, 2));
    }

    #[test]
    fn what_is_no_http_ends_in_an_error() {
        for bad in [
            "",
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}

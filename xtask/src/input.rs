//! Reading what users give: files with a size limit, text that may not be text, and the error
//! type that means "the input is at fault".

use std::fmt;
use std::path::Path;

/// Largest file read whole. Logs beyond this are cut by their owner, not by us.
pub(crate) const MAX_FILE_BYTES: u64 = 256 << 20;

/// An error the user can mend. Ends the process with exit code 2 and one line.
#[derive(Debug)]
pub(crate) struct InputError(String);

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InputError {}

/// One line that names the flag or the file and line, what is wrong, and how to mend it.
pub(crate) fn error(message: impl Into<String>) -> anyhow::Error {
    let message: String = message.into();
    anyhow::Error::new(InputError(message.replace('\n', " ")))
}

/// Reads a file as text. Not UTF-8 in places (a log with a stray byte) is read with replacement
/// characters; a file with NUL bytes is refused as binary, one over [`MAX_FILE_BYTES`] as too big.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let meta = std::fs::metadata(path)
        .map_err(|e| error(format!("{shown}: cannot be read ({e}); check the path")))?;
    if meta.is_dir() {
        return Err(error(format!("{shown}: is a folder; name a file")));
    }
    if meta.len() > MAX_FILE_BYTES {
        return Err(error(format!(
            "{shown}: {} MiB, more than the {} MiB that are read; cut it to the part that matters",
            meta.len() >> 20,
            MAX_FILE_BYTES >> 20
        )));
    }
    let bytes = std::fs::read(path)
        .map_err(|e| error(format!("{shown}: cannot be read ({e}); check the path")))?;
    text_from_bytes(bytes, &shown.to_string())
}

/// Turns bytes into text, refusing binary ones; `shown` names their origin in the error.
pub(crate) fn text_from_bytes(bytes: Vec<u8>, shown: &str) -> anyhow::Result<String> {
    if let Some(text) = utf16(&bytes) {
        return Ok(text);
    }
    if bytes.contains(&0) {
        return Err(error(format!(
            "{shown}: is binary, not text; give the text form"
        )));
    }
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// What PowerShell's `>` and Windows' editors write: UTF-16, told by its byte-order mark.
fn utf16(bytes: &[u8]) -> Option<String> {
    let (body, little) = match bytes {
        [0xff, 0xfe, body @ ..] => (body, true),
        [0xfe, 0xff, body @ ..] => (body, false),
        _ => return None,
    };
    let unit = |pair: [u8; 2]| {
        if little {
            u16::from_le_bytes(pair)
        } else {
            u16::from_be_bytes(pair)
        }
    };
    let pairs = body.chunks_exact(2);
    let units: Vec<u16> = pairs
        .filter_map(|pair| pair.try_into().ok().map(unit))
        .collect();
    Some(String::from_utf16_lossy(&units)).filter(|text| !text.contains('\0'))
}

/// Writes a file the user asked for by a flag.
pub(crate) fn write_text(path: &Path, text: &str, flag: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).map_err(|e| {
        error(format!(
            "{flag} {}: cannot be written ({e}); name a file in a folder that exists",
            path.display()
        ))
    })
}

/// Prints an answer. A reader that goes away early (`| head`) is no fault; a full disk is.
///
/// # Errors
/// Standard output took nothing, for another reason than a closed pipe.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(error(format!(
            "the answer cannot be written to standard output ({e})"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_utf16_is_read_and_binary_is_not() {
        let text = "Load weight begin. avail mem=94.00 GB\r\nü\n";
        let units: Vec<u16> = text.encode_utf16().collect();
        let little: Vec<u8> = units.iter().flat_map(|u| u.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|u| u.to_be_bytes()).collect();
        let read = |mark: [u8; 2], body: &[u8]| {
            text_from_bytes([&mark, body].concat(), "f").map_err(|e| e.to_string())
        };
        assert_eq!(read([0xff, 0xfe], &little).as_deref(), Ok(text));
        assert_eq!(read([0xfe, 0xff], &big).as_deref(), Ok(text));
        assert!(read([0xff, 0xfe], &[0, 0, 1, 0]).is_err());
        assert!(text_from_bytes(little, "f").is_err());
    }
}

//! Step time of a forward pass: the roofline that joins bytes, rates and links.

/// The folder of measured data, for tests; prints that it skips where there is none.
#[cfg(test)]
pub(crate) fn tests_data() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("SHARED_DATA").map_or_else(
        || std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")),
        std::path::PathBuf::from,
    );
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: no measured data at {}", path.display());
    None
}

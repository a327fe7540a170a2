//! The shared data folder, where a checkout has one beside it.

use std::path::PathBuf;

/// The data folder; None, with a printed line, where it is absent.
pub(crate) fn data() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let path = PathBuf::from(std::env::var("SHARED_DATA").unwrap_or_else(|_| beside.to_string()));
    if path.join("topologies").is_dir() {
        return Some(path);
    }
    println!("skipped: no data folder at {}", path.display());
    None
}

/// All topology texts: (name, text).
pub(crate) fn texts() -> Vec<(String, String)> {
    let Some(data) = data() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for folder in ["topologies", "inputs/topo"] {
        for entry in std::fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            if !name.ends_with(".source") {
                out.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    out.sort();
    out
}

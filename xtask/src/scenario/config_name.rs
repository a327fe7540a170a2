//! What to call the model of a config file.

use std::path::Path;

/// The folder's name for a plain `config.json`, that of the repository in a hub's cache, else the file's.
pub(super) fn of(config: &Path, given: &str) -> String {
    let stem = config.file_stem().and_then(|s| s.to_str()).unwrap_or(given);
    let plain = matches!(stem, "config" | "params");
    let folder = || {
        // `.` and a bare file name have no folder to read.
        let whole = std::fs::canonicalize(config).or_else(|_| std::path::absolute(config));
        let whole = whole.unwrap_or_else(|_| config.to_path_buf());
        let names = |path: &Path| -> Vec<String> {
            let parts = path.parent().into_iter().flat_map(Path::components);
            let parts = parts.filter_map(|part| part.as_os_str().to_str());
            parts.map(str::to_string).collect()
        };
        // A hub's cache links its files elsewhere: the path as given names the repository.
        repository(&names(config))
            .or_else(|| repository(&names(&whole)))
            .or_else(|| {
                let given = config.parent().and_then(Path::file_name);
                given.and_then(|name| name.to_str()).map(str::to_string)
            })
            .or_else(|| names(&whole).pop())
    };
    plain
        .then(folder)
        .flatten()
        .unwrap_or_else(|| stem.trim_end_matches("_config").to_string())
}

/// The name in `models--OWNER--NAME/snapshots/REVISION`.
fn repository(folders: &[String]) -> Option<String> {
    let of = |folder: &String| {
        let (_, name) = folder.strip_prefix("models--")?.split_once("--")?;
        (!name.is_empty()).then(|| name.to_string())
    };
    folders.iter().rev().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_in_a_hubs_cache_has_the_name_of_its_repository() {
        let of = |path: &str| of(Path::new(path), path);
        let cache = "/hub/models--deepseek-ai--DeepSeek-V3.1/snapshots/9b4c9a1f2e/config.json";
        assert_eq!(of(cache), "DeepSeek-V3.1");
        assert_eq!(of("/models/prod-chat/config.json"), "prod-chat");
        assert_eq!(of("/models/a/glm_config.json"), "glm");
        assert_ne!(of("config.json"), "config", "the folder it lies in");
    }
}

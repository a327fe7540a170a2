//! The HTML report, as a browser shows it: no console errors, the verdict in the page, every chart
//! drawn, nothing wider than a phone, nothing fetched. What needs Chromium is skipped, and says so,
//! where it is not installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The reports that are looked at: the default scenario, a box from `topo -m` with a plain sweep,
/// and a model that does not fit.
const REPORTS: [(&str, &[&str], &[&str]); 3] = [
    (
        "default",
        &[],
        &[
            "kimi-k2.5",
            "two-switch-8",
            "0.55 is refused",
            "It costs 17,470 of 159,215 KV tokens",
            "legal fraction: 0.7797 to 0.9500",
        ],
    ),
    (
        "topology",
        &[
            "--model",
            "qwen3-32b",
            "--quant",
            "int4",
            "--gpu",
            "rtx-3090",
            "--gpus",
            "4",
            "--topology",
            "docs/examples/topo-4x3090.txt",
            "--baseline",
            "docs/examples/plain-4x3090.csv",
            "--accept",
            "2.6@3",
            "--compare",
            "4x-rtx-3090,4x-rtx-3090-nvlink",
        ],
        &[
            "qwen3-32b",
            "4x-rtx-3090-nvlink",
            "your own sweep",
            "leave it off): of depths with the best verdict at the lightest load (a sure gain counts",
        ],
    ),
    (
        "too-large",
        &["--model", "kimi-k2.5", "--gpu", "rtx-3090", "--gpus", "4"],
        &["Does not fit"],
    ),
];

/// Runs in the page once it is laid out, and leaves what it found in the title: elements that reach
/// beyond the viewport (scrolling boxes may hold wider tables), charts with nothing in them, and the
/// width itself.
const PROBE: &str = "<script>addEventListener('load',()=>{
const wide=[...document.querySelectorAll('body *')].filter(e=>!e.closest('.scroll *, pre *, svg *')
 && e.getBoundingClientRect().right>document.documentElement.clientWidth+1).map(e=>e.tagName+'.'+e.className);
const drawn=e=>{try{const b=e.getBBox();return b.width+b.height>0}catch(_){return false}};
const charts=[...document.querySelectorAll('svg')];
const empty=charts.filter(s=>[...s.querySelectorAll('polyline,circle,rect,polygon,path')].filter(drawn).length<5);
document.title='PROBE width='+innerWidth+' charts='+charts.length+' empty='+empty.length
 +' page='+document.documentElement.scrollWidth+' wide='+wide.slice(0,5).join(',')+' END';
});</script>";

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("xtask-report-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn report(name: &str, arguments: &[&str], folder: &Path) -> (PathBuf, String) {
    let path = folder.join(format!("{name}.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("predict")
        .args(arguments)
        .arg("--report")
        .arg(&path)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the tool starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {error}");
    let page = std::fs::read_to_string(&path).expect("the report was written");
    (path, page)
}

fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .output()
                .is_ok_and(|o| o.status.success())
        })
}

/// The page's DOM after loading (standard output) and the browser's log (standard error).
fn browse(browser: &str, page: &Path, width: u32, profile: &Path) -> Output {
    Command::new(browser)
        .args([
            "--headless",
            "--hide-scrollbars",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            "--dump-dom",
        ])
        .arg(format!("--window-size={width},1400"))
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts")
}

fn field(probe: &str, name: &str) -> String {
    probe
        .split(&format!(" {name}="))
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or_default()
        .to_string()
}

#[test]
fn reports_are_self_contained_and_say_the_verdict() {
    let folder = Scratch::new("plain");
    for (name, arguments, words) in REPORTS {
        let (_, page) = report(name, arguments, &folder.0);
        for word in words {
            assert!(page.contains(word), "{name}: {word} is not in the page");
        }
        assert!(
            ["Pays", "Does not pay", "Measure first", "Does not fit"]
                .iter()
                .any(|verdict| page.contains(&format!("<span class=\"word\">{verdict}</span>"))),
            "{name}: no verdict"
        );
        for reference in [
            "src=\"http",
            "href=\"http",
            "url(http",
            "@import",
            "<link",
            "<iframe",
        ] {
            assert!(!page.contains(reference), "{name}: {reference} in the page");
        }
        assert!(page.contains("prefers-color-scheme:dark"), "{name}");
        assert!(page.contains("@media print"), "{name}");
        assert!(page.contains("width=device-width"), "{name}");
        assert!(
            !page.contains("NaN") && !page.contains("chart not drawn"),
            "{name}"
        );
    }
}

#[test]
fn a_browser_shows_every_chart_within_a_phones_width_and_without_errors() {
    let Some(browser) = chromium() else {
        println!("skipped: Chromium is not installed; the report was not looked at in a browser");
        return;
    };
    let folder = Scratch::new("browser");
    for (name, arguments, _) in REPORTS {
        let (path, page) = report(name, arguments, &folder.0);
        let probed = page.replacen("</head>", &format!("{PROBE}</head>"), 1);
        assert_ne!(probed, page, "{name}: no head to put the probe into");
        std::fs::write(&path, probed).expect("the probed page");
        for width in [390, 1400] {
            // A headless window may not be narrower than 500, an iframe may.
            let frame = folder.0.join("frame.html");
            let html = format!(
                "<body style='margin:0'><iframe src='{name}.html' style='border:0;width:{width}px;height:1400px' \
                 onload=\"document.title=this.contentDocument.title\"></iframe>"
            );
            std::fs::write(&frame, html).expect("the frame");
            let output = browse(browser, &frame, width, &folder.0.join("profile"));
            let log = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} at {width}: {log}");
            assert!(!log.contains("CONSOLE"), "{name} at {width}: {log}");
            let dom = String::from_utf8_lossy(&output.stdout);
            let probe = dom
                .split("<title>")
                .nth(1)
                .and_then(|rest| rest.split("</title>").next())
                .unwrap_or_default();
            assert_eq!(
                field(probe, "width"),
                width.to_string(),
                "{name}: {probe}\n{log}"
            );
            assert_ne!(field(probe, "charts"), "0", "{name}: {probe}");
            assert_eq!(
                field(probe, "empty"),
                "0",
                "{name}: a chart is empty: {probe}"
            );
            assert_eq!(field(probe, "page"), width.to_string(), "{name}: {probe}");
            assert_eq!(
                field(probe, "wide"),
                "",
                "{name}: too wide at {width}: {probe}"
            );
        }
    }
}

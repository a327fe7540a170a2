//! The frame of a report: head, style, sections. Light and dark, readable on a phone, printable.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// A titled part of a page.
pub(crate) struct Section {
    /// Heading.
    pub(crate) title: String,
    /// Body.
    pub(crate) body: Markup,
}

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--quiet:#5d646d;--line:#d9dde2;--panel:#f5f6f8}
@media(prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e8eaed;--quiet:#a0a7b0;--line:#33383e;--panel:#1d2024}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:960px;padding:20px 16px 60px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
h1{font-size:1.35rem;margin:.2rem 0 1rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.25rem}
h3{font-size:1rem;margin:1.1rem 0 .4rem}
.verdict{display:flex;flex-wrap:wrap;gap:.4rem 1rem;align-items:baseline;padding:.8rem 1rem;border-left:6px solid #888;background:var(--panel)}
.verdict.good{border-color:#3f9a55}.verdict.bad{border-color:#c24444}.verdict.open{border-color:#c98a1b}
.verdict .word{font-size:1.35rem;font-weight:700}.verdict .figure{font-size:1.35rem}
.quiet,figcaption{color:var(--quiet);font-size:.9rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem;margin:.6rem 0}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
.text{white-space:normal;min-width:9.5rem}.quiet.text{min-width:14rem}
pre.flags{white-space:pre-wrap}pre.flags,li,p{overflow-wrap:anywhere}
th{font-weight:600;white-space:normal}thead th{vertical-align:bottom}.map th{vertical-align:middle}.left{text-align:left}.map td,.map th{text-align:center}
figure{margin:0}svg{width:100%;height:auto;max-width:600px;display:block}svg text{fill:currentColor}
pre{background:var(--panel);padding:.7rem;overflow-x:auto;font-size:.85rem;line-height:1.35}
.bars .row{display:flex;align-items:center;gap:.6rem;margin:.3rem 0}
.bars .name{width:3.6rem;flex:none}.bars .value{width:5.2rem;white-space:nowrap;flex:none;text-align:right;font-variant-numeric:tabular-nums}
.track{display:flex;flex:1;height:1.3rem;background:var(--panel)}.track.tall{height:2rem}
.legend span{display:inline-block;white-space:nowrap;margin-right:.8rem;font-size:.9rem}
i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;vertical-align:-1px}
@media print{body{max-width:none}.track,i,.map td,.verdict{-webkit-print-color-adjust:exact;print-color-adjust:exact}h2{break-after:avoid}}
";

/// The page as text.
pub(crate) fn page(title: &str, head: Markup, sections: &[Section]) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                (head)
                @for section in sections {
                    section { h2 { (section.title) } (section.body) }
                }
            }
        }
    }
    .into_string()
}

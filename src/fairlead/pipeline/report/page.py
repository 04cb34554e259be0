"""The page: the findings in plain sentences, then a section for each job."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.pipeline.report.levels import Level
from fairlead.pipeline.report.markup import Markup, join, tag

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5b6470; --rule: #dfe3e8; --card: #f6f8fa;
  --red: #b3261e; --amber: #8a5a00; --green: #1a7f4b; --c0: #2563c9; --c1: #c2570c; --c2: #0f8a6d; --c3: #a63a8f;
  --c4: #6b5fd0;
  --c5: #7c8590; --c6: #8a6d00; --hot: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e6e9ed; --soft: #9aa4b0; --rule: #313841;
  --card: #1c2127; --red: #ff8a80; --amber: #ffc14d; --green: #5fd39a; --c0: #7aa7ff; --c1: #ff9f5a; --c2: #4fd1b0;
  --c3: #e48ad2;
  --c4: #a99dff; --c5: #98a2ad; --c6: #d9b43c; --hot: #f97316; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 1080px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem;
  border-top: 1px solid var(--rule); padding-top: 1rem; } h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
.findings { list-style: none; padding: 0; } .findings li { padding: .5rem .75rem; margin: .4rem 0;
  background: var(--card); border-left: 4px solid var(--c5); border-radius: 4px; }
.findings li.red { border-color: var(--red); } .findings li.amber { border-color: var(--amber); }
.findings li.green { border-color: var(--green); } .findings li.red::before { content: "! "; font-weight: 700;
  color: var(--red); }
.level { display: inline-block; min-width: 3.6rem; padding: 0 .5rem; border-radius: 4px; text-align: center;
  font-weight: 600; color: var(--paper); } .level.red { background: var(--red); }
.level.amber { background: var(--amber); } .level.green { background: var(--green); }
.verdict { font-size: 1.1rem; font-weight: 600; margin: .5rem 0; } a { color: var(--c0); }
nav a { margin-right: 1rem; color: var(--c0); } .note { color: var(--soft); font-size: .9rem; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; padding: .75rem; background: var(--card); border-radius: 6px; }
figcaption { font-size: .9rem; margin-bottom: .4rem; } svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg .mark, svg .axis { fill: var(--ink); }
svg .mark { font-weight: 700; } .grid { stroke: var(--rule); } .diagonal { stroke: var(--c5); stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 1.6; } .threshold { stroke-dasharray: 5 4; } .dot { fill-opacity: .75; }
.cell { fill: var(--hot); } svg text.hot { fill: var(--paper); }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.line.c6 { stroke: var(--c6); }
.dot.c0, .bar.c0 { fill: var(--c0); } .dot.c1, .bar.c1 { fill: var(--c1); } .dot.c2, .bar.c2 { fill: var(--c2); }
.dot.c3, .bar.c3 { fill: var(--c3); } .dot.c4, .bar.c4 { fill: var(--c4); } .dot.c5, .bar.c5 { fill: var(--c5); }
.dot.c6, .bar.c6 { fill: var(--c6); }
.legend { font-size: .85rem; } .entry { margin-right: 1rem; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; }
.key.c0 { background: var(--c0); } .key.c1 { background: var(--c1); } .key.c2 { background: var(--c2); }
.key.c3 { background: var(--c3); } .key.c4 { background: var(--c4); } .key.c5 { background: var(--c5); }
.key.c6 { background: var(--c6); }
@media (max-width: 640px) { .cards thead { display: none; } .cards tr { display: block; padding: .6rem 0;
  border-bottom: 1px solid var(--rule); } .cards td { display: flex; gap: .75rem; padding: .1rem 0; border: 0; }
  .cards td::before { content: attr(data-label); flex: 0 0 6.5rem; color: var(--soft); } }
.cards td:nth-child(n + 4), .whole { white-space: nowrap; }
.scrolls { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; margin: .5rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { font-weight: 600; } td > .number { display: block; }
td.number, td > .number { text-align: right; font-variant-numeric: tabular-nums; }
pre { margin: 0; font: 12px/1.3 ui-monospace, monospace; } code { font-family: ui-monospace, monospace; }
"""
# The page loads nothing and runs no scripts: markup in the data could do no harm, even if it were not escaped.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding as a sentence: red and amber need a person, green is good news."""

    sentence: str
    level: Level = Level.PLAIN


@dataclass(frozen=True, slots=True)
class Section:
    """The part of the page about the tables of one job."""

    name: str
    title: str
    findings: Sequence[Finding] = ()
    body: Sequence[Markup] = field(default_factory=tuple)


def missing(name: str, title: str, *, job: str) -> Section:
    """Return a section for tables that were not written yet."""
    command = tag("code", f"fairlead pipeline {job}")
    return Section(name, title, (), (tag("p", "Nothing to show yet: ", command, " fills this part.", class_="note"),))


def page(sections: Sequence[Section], *, title: str, subtitle: str, lead: Section | None = None) -> str:
    """Return the whole page as text; `lead` comes before everything else, and its findings are in its body."""
    # Red ones first, then amber ones; otherwise in the order of the sections.
    found = sorted(
        (finding for section in sections for finding in section.findings),
        key=lambda one: -one.level if one.level > Level.GREEN else 0,
    )
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            # Without this link, a browser requests a favicon.
            Markup('<link rel="icon" href="data:,">'),
            tag("title", title),
            tag("style", Markup(STYLE)),
        ]
    )
    body = join(
        [
            tag("h1", title),
            tag("p", subtitle, class_="note"),
            *([tag("h2", lead.title, id=lead.name), *lead.body] if lead is not None else []),
            *([tag("h2", "Findings", id="findings")] if lead is not None else []),
            tag("ul", *map(_item, found), class_="findings"),
            tag("nav", *(tag("a", section.title, href=f"#{section.name}") for section in sections)),
            *(tag("section", tag("h2", section.title, id=section.name), *section.body) for section in sections),
        ]
    )
    document = tag("html", tag("head", head), tag("body", body), lang="en")
    return f"<!doctype html>\n{document}\n"


def _item(finding: Finding) -> Markup:
    return tag("li", finding.sentence, class_=finding.level.name.lower())

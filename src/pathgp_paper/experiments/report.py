"""The report: one self-contained HTML file that needs no network and fits narrow screens."""

import base64
import json
import pathlib
from html import escape
from typing import NamedTuple

from pathgp.runs.atomic import write_atomically
from pathgp_paper.experiments.base import SCALES, Experiment, Record, Table, cells_folder, load, png
from pathgp_paper.experiments.verdicts import RULE, Claim, summary

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; color: #222; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
figure { margin: 0; } figcaption { color: #444; font-size: 0.85rem; }
img { width: 100%; min-width: 36rem; height: auto; } .wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.85rem; } caption { text-align: left; padding: 0.3rem 0; }
th, td { padding: 0.2rem 0.6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top; }
th { border-bottom: 2px solid #999; } td { min-width: 4rem; }
.agrees, .better { color: #00633f; } .worse, .differs { color: #a33c00; } .not-run { color: #666; }
.paper { border-left: 4px solid #ccc; padding-left: 0.8rem; color: #444; }
code { overflow-wrap: anywhere; }
"""


class Section(NamedTuple):
    """HTML section of one experiment, and a summary of its verdicts."""

    experiment: Experiment
    scale: str
    verdict: str
    html: str


def publish(experiment: Experiment, scale: str, out: pathlib.Path, published: pathlib.Path | None = None) -> Section:
    """Draw the stored results, and write figure.png, section.html and summary.json next to the folder of cells.

    The paper's figure is shown too if the folder `published` has a PNG file with the experiment's name.
    """
    records = load(experiment, scale, out)
    claims = experiment.claims(records)
    folder = cells_folder(experiment, scale, out).parent
    folder.mkdir(parents=True, exist_ok=True)
    drawn = experiment.figure(records) if any(record.result is not None for record in records) else None
    picture = None if drawn is None else png(drawn)
    theirs = None if published is None else published / f"{experiment.name}.png"
    pictures = [("The paper's", theirs.read_bytes())] if theirs is not None and theirs.is_file() else []
    pictures += [] if picture is None else [("Ours", picture)]
    html = section(experiment, scale, records, claims, pictures)
    if picture is not None:
        write_atomically(folder / "figure.png", picture)
    write_atomically(folder / "section.html", html.encode())
    stored = [{**claim._asdict(), "verdict": claim.verdict} for claim in claims]
    write_atomically(folder / "summary.json", json.dumps({"scale": scale, "claims": stored}, indent=1).encode())
    return Section(experiment, scale, summary(claims), html)


def section(
    experiment: Experiment,
    scale: str,
    records: list[Record],
    claims: list[Claim],
    pictures: list[tuple[str, bytes]],
) -> str:
    """Return the HTML of the paper's result, our figures and tables, and the verdict on each claim."""
    done = [record for record in records if record.result is not None]
    seconds, where = sum(record.seconds for record in done), {record.where for record in done if record.where}
    parts = [
        f'<section id="{experiment.name}"><h2>{escape(experiment.title)}</h2>',
        f"<p>Reproduces {escape(experiment.reproduces)}. Scale <b>{scale}</b>: {len(done)} of {len(records)} cells "
        f"done, in {seconds / 60:.1f} minutes ({escape('; '.join(sorted(where)) or 'not yet run')}). "
        f"Verdicts: <b>{summary(claims)}</b>.</p>",
        f'<p class="paper"><b>The paper:</b> {escape(experiment.published)}</p>',
    ]
    for whose, picture in pictures:
        source, said = base64.b64encode(picture).decode(), escape(f"{whose} figure: {experiment.title}")
        caption = f"<figcaption>{whose}</figcaption>" if len(pictures) > 1 else ""
        parts.append(f'<figure class="wide">{caption}<img alt="{said}" src="data:image/png;base64,{source}"></figure>')
    parts += [table(t) for t in experiment.tables(records)]
    parts.append(_claims(claims))
    reasons = {record.not_run for record in records if record.not_run}
    for reason in sorted(reasons):
        cells = ", ".join(record.cell for record in records if record.not_run == reason)
        parts.append(f'<p class="not-run">Not run: {escape(cells)} ({escape(reason)}).</p>')
    return "\n".join([*parts, "</section>"])


def table(content: Table) -> str:
    """Return the table as HTML, in a frame that scrolls sideways on narrow screens."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in content.head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in content.lines)
    return f'<div class="wide"><table><caption>{escape(content.caption)}</caption><tr>{head}</tr>{lines}</table></div>'


def _claims(claims: list[Claim]) -> str:
    head = "<tr><th>Claim</th><th>Paper, or measure</th><th>Here</th><th>Rule</th><th>Verdict</th></tr>"
    lines = ""
    for claim in claims:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (claim.what, *claim.cells))
        lines += f'<tr>{cells}<td class="{claim.verdict.replace(" ", "-")}"><b>{claim.verdict}</b></td></tr>'
    return f'<div class="wide"><table><caption>Verdicts</caption>{head}{lines}</table></div>'


def write(
    experiments: list[Experiment],
    out: pathlib.Path,
    scale: str | None = None,
    published: pathlib.Path | None = None,
) -> pathlib.Path:
    """Write OUT/report.html with a section per experiment, at this scale or that of `scale_of`, and return its path."""
    if not out.is_dir():
        raise FileNotFoundError(f"--out {out} is not a folder: name the one that `pathgp experiment run` wrote to.")
    if published is not None and not published.is_dir():
        raise FileNotFoundError(f"--published {published} is not a folder: name one with NAME.png of experiments.")
    sections = [publish(e, scale or scale_of(e, out), out, published) for e in experiments]
    page = out / "report.html"
    write_atomically(page, _page(sections).encode())
    return page


def scale_of(experiment: Experiment, out: pathlib.Path) -> str:
    """Return the largest scale of which at least half was run, or else the one with most results.

    A few cells of a larger scale therefore do not hide the results of a smaller one.
    """
    done = {scale: [record.result is not None for record in load(experiment, scale, out)] for scale in SCALES}
    half_run = [scale for scale in SCALES if 2 * sum(done[scale]) >= len(done[scale])]
    return half_run[-1] if half_run else max(SCALES, key=lambda scale: sum(done[scale]))


def _page(sections: list[Section]) -> str:
    lines = "".join(
        f'<tr><td><a href="#{s.experiment.name}">{escape(s.experiment.title)}</a></td>'
        f"<td>{escape(s.experiment.reproduces)}</td><td>{s.scale}</td><td>{s.verdict}</td></tr>"
        for s in sections
    )
    contents = f"<tr><th>Experiment</th><th>Of the paper</th><th>Scale</th><th>Verdicts</th></tr>{lines}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paper, reproduced</title><style>{STYLE}</style></head><body>
<h1>Sampling from Gaussian Process Posteriors using Stochastic Gradient Descent, reproduced</h1>
<p>Every table and figure of Lin et al. (NeurIPS 2023), computed by <code>pathgp experiment run NAME</code>.
Times are of this machine and shared with whatever else it did; the paper's are of a TPUv2 core or an A100 GPU.</p>
<p><b>The rule of the verdicts.</b> {escape(RULE)}</p>
<div class="wide"><table>{contents}</table></div>
{"".join(s.html for s in sections)}
</body></html>
"""

"""Render a plot as inline SVG that takes colours and fonts from the page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.results.figures.plots import COLOURS, GREYS, INK, QUIET, RULE, untangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLES = 65  # of an axis that is not linear; a page interpolates between them
WIDTH, DOTS = 372, 72  # pixels on a page, which at 72 dots per inch are also points
VARIABLES: Mapping[str, str] = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    RULE: "var(--rule)",
    **{colour: f"var(--s{k})" for k, colour in enumerate(COLOURS)},
    **{colour: f"var(--{bound.replace('_', '-')})" for bound, colour in GREYS.items()},
}
# The same picture gives the same bytes: identifiers are hashed with a fixed salt, text stays text, no date is written.
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "driftlab",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.unicode_minus": True,
    "lines.solid_capstyle": "round",
}


def panel(name: str, label: str, draw: Callable[[Axes], None], height: int, width: int = WIDTH) -> str:
    """Render one plot as an SVG element; `name` makes its identifiers unique on the page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS, layout="constrained")
        canvas = FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axis = figure.subplots()
        axis.patch.set_visible(False)
        draw(axis)
        untangle(axis)
        sink, unwritten = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.print_svg(sink, metadata=unwritten)  # type: ignore[no-untyped-call]  # `savefig` draws twice
        scales = _scales(axis, height)
    return _inline(sink.getvalue(), name, label, scales)


def _scales(axis: Axes, height: int) -> str:
    """Return attributes from which a page computes values: titles of the axes, and `pixel:value` pairs."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    shares = np.linspace(0, 1, 2 if {axis.get_xscale(), axis.get_yscale()} == {"linear"} else SAMPLES)[:, None]
    first, last = axis.transData.transform([(left, bottom), (right, top)])
    pixels = first + shares * (last - first)
    values = axis.transData.inverted().transform(pixels)
    columns = {"x": (pixels[:, 0], values[:, 0]), "y": (height - pixels[:, 1], values[:, 1])}
    titles = {"x": axis.get_xlabel(), "y": axis.get_ylabel()}
    found = []
    for way, places in columns.items():
        pairs = " ".join(f"{pixel:.2f}:{value:.6g}" for pixel, value in zip(*places, strict=True))
        found.append(f'data-{way}="{pairs}" data-{way}title="{html.escape(titles[way], quote=True)}"')
    return " ".join(found)


def _inline(text: str, name: str, label: str, scales: str) -> str:
    """Remove file headers, take colours and fonts from the page, and name the marks of each system."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    head = f'<svg class="plot" viewBox="{box[1]}" role="img" aria-label="{html.escape(label, quote=True)}">'
    text = head + text[text.index(">") + 1 :]
    text = re.sub(r'\bid="(series|part):', r'data-\1="', text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r" font-family: [^;\"]*;", "", text)
    text = re.sub(r"<[^>]+>", _coarse, text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    text = text.replace('role="img"', f'role="img" {scales}', 1)  # only now, as its numbers are not rounded
    return re.sub(r"\s*\n\s*", " ", text).strip()


def _coarse(tag: re.Match[str]) -> str:
    """Round coordinates to 0.01 px; text between tags is unchanged."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0])

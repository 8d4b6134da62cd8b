"""A report as one page of HTML to hand on: text, tables and pictures in one file, without links.

Theory
    All content is text here, escaped, unless it is `Markup`. Pictures are SVG inside the page,
    drawn by matplotlib without a display; the same report gives the same bytes.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

from lmerge_service.errors import ConfigurationError, EnvironmentMissingError

__all__ = (
    "COLOURS",
    "Markup",
    "check_page",
    "document",
    "figure",
    "table",
    "verdict",
    "write_page",
)

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
"""Distinguishable also for those who see few colours."""

Panel: TypeAlias = Callable[[Any], None]
"""Draws on matplotlib's axes."""

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222;
       padding: 0 1rem }
.verdict { padding: .7rem 1rem; border-radius: .4rem; color: #fff; font-size: 1.3rem }
.good { background: #006b4f } .bad { background: #a8370a }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left;
         vertical-align: top }
td.n, th.n { text-align: right }
code { font-size: .9em; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
figure { margin: 1rem 0 } svg { max-width: 100%; height: auto }
"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def check_page(path: Path) -> None:
    """Whether a page can be written there, before anything is read.

    Raises:
        ConfigurationError: there is no such folder.
        EnvironmentMissingError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise EnvironmentMissingError("a page needs matplotlib: pip install matplotlib")
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigurationError(f"cannot write {path}: {what}")


def write_page(text: str, path: Path) -> None:
    """The file is always whole: the old one or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def document(title: str, body: Iterable[str]) -> str:
    """The page; `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        + "\n".join(body)
        + "\n</html>\n"
    )


def verdict(text: str, *, good: bool) -> str:
    """What is to be read first."""
    return f'<p class="verdict {"good" if good else "bad"}">{escape(text)}</p>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Rows of text; in the columns `numbers` it stands to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        texts = (each if isinstance(each, Markup) else escape(each) for each in row)
        return "".join(
            f"<{tag}{' class=n' if n in numbers else ''}>{text}</{tag}>"
            for n, text in enumerate(texts)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{cells("th", heads)}</tr>\n{body}\n</table></div>'


def figure(
    name: str,
    panels: Sequence[Panel],
    title: str,
    *,
    size: tuple[float, float] = (4.6, 3.0),
    below: bool = False,
) -> str:
    """A picture of panels side by side, or `below` each other with one axis of x for all; `name` is
    of its own on the page, `size` inches a panel."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(
        {"svg.hashsalt": title, "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
    ):
        across, down = (1, len(panels)) if below else (len(panels), 1)
        canvas = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
        for axes, draw in zip(
            canvas.subplots(down, across, squeeze=False, sharex=below).flat, panels, strict=True
        ):
            axes.grid(visible=True, linewidth=0.3)
            draw(axes)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    ours = re.sub(r'\b(id="|url\(#|href="#)', lambda found: f"{found[0]}{name}-", svg)
    return f'<figure role="img" aria-label="{escape(title)}">{ours}</figure>'

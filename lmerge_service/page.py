"""A report as one page of HTML to hand on: text, tables and pictures in one file, without links.

Theory
    A page is a Jinja2 template that extends `templates/base.html`; what it shows is escaped, unless
    it is `Markup`. Pictures are SVG inside the page, drawn by matplotlib without a display; the
    same report gives the same bytes.
"""

import io
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, EnvironmentMissingError

__all__ = ("COLOURS", "check_page", "figure", "render", "write_page")

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
"""Distinguishable also for those who see few colours."""

Panel: TypeAlias = Callable[[Any], None]
"""Draws on matplotlib's axes."""


def _time(time: int) -> str:
    return {INFINITY: "infinity", START: "-infinity"}.get(time, f"{time}")


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


_TEMPLATES: Final = Environment(
    loader=PackageLoader("lmerge_service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"number": "{:,}".format, "time": _time, "utc": _utc}


def render(template: str, **values: Any) -> str:
    """A page by a template of `templates/`; beside Jinja2's filters there are `number` (1,234),
    `time` (of a stream) and `utc` (seconds of the wall clock)."""
    return _TEMPLATES.get_template(template).render(values)


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


def figure(
    name: str,
    panels: Sequence[Panel],
    title: str,
    *,
    size: tuple[float, float] = (4.6, 3.0),
    below: bool = False,
) -> Markup:
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
    picture = Markup(ours)  # noqa: S704 (matplotlib escapes the texts in it)
    return Markup('<figure role="img" aria-label="{}">{}</figure>').format(title, picture)

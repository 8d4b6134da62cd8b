"""Options of ECharts: the race of the replicas, who led, and the numbers of the output.

Theory
    Times of the streams are drawn as dates where their unit is known: in milliseconds since 1970,
    which a double has exactly for 285,000 years. A gap is a point without a value, which no line
    crosses. Replicas that never led and lie between others are left out where there are many.

Cost
    At most `MOST_LINES` lines of `MOST_POINTS` points, whatever the number of replicas.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmerge_service.dashboard.history import History, Points
from lmerge_service.dashboard.merged import MergeView
from lmerge_service.page import COLOURS
from lmerge_service.text import NANOSECONDS, printable

__all__ = ("MOST_LINES", "MOST_POINTS", "colours_of", "line", "numbers", "race")

MOST_POINTS: Final = 200
MOST_LINES: Final = 12
_LEAST_NAMED: Final = 0.03
"""Of the range; a shorter time of leading has no room for a name."""
_DASHES: Final = ("solid", "dashed", "dotted")
_SYMBOLS: Final = ("circle", "rect", "triangle", "diamond")

Options = dict[str, Any]


def colours_of(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The colour and the dash of each replica's line, by their order: no two are alike among
    eighteen.

    >>> colours_of(["a", "b"])
    {'a': ('#0072b2', 'solid'), 'b': ('#e69f00', 'solid')}
    """
    return {
        name: (COLOURS[at % len(COLOURS)], _DASHES[at // len(COLOURS) % len(_DASHES)])
        for at, name in enumerate(names)
    }


def race(
    view: MergeView, history: History, since: float, until: float, *, relative: bool, dark: bool
) -> Options:
    """Stable points over time, and beneath who led; `relative`: how far behind the furthest."""
    names = [each.name for each in view.replicas]
    looks = colours_of(names)
    shown = _shown(view, history, since)
    lines = {name: history.points(f"stable {name}", since, MOST_POINTS) for name in shown}
    output = history.points("output", since, MOST_POINTS)
    unit = NANOSECONDS.get(view.time_unit or "")
    if relative:
        lines, output = _behind(lines, output)
    scale = (lambda value: value) if unit is None else _scale(unit, relative=relative)
    ink = _ink(dark)
    series: list[Options] = [
        {
            **_line(name, points, scale, *looks[name]),
            "symbol": _SYMBOLS[names.index(name) % len(_SYMBOLS)],
        }
        for name, points in lines.items()
    ]
    output_line = _line("the output", output, scale, ink["text"], "solid")
    series.append({**output_line, "lineStyle": {"width": 3.5, "opacity": 0.55}, "z": 1})
    series.append(_band(history, since, looks, ink))
    axis = {"min": int(since * 1000), "max": int(until * 1000), "type": "time"}
    quiet = {"axisLine": {"lineStyle": {"color": ink["faint"]}}, "axisLabel": {"color": ink["dim"]}}
    dated = unit is not None and not relative
    dates = {"formatter": "{yyyy}-{MM}-{dd} {HH}:{mm}"} if dated else {}
    return {
        "animation": False,
        "useUTC": True,
        "aria": {"enabled": True, "label": {"description": _described(view, relative)}},
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "legend": {"type": "scroll", "top": 0, "textStyle": {"color": ink["text"]},
                   "pageTextStyle": {"color": ink["text"]}, "data": [*lines, "the output"]},
        "tooltip": {"trigger": "axis", "confine": True, **_tooltip(ink)},
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "grid": [{"left": 116, "right": 14, "top": 34, "bottom": 84},
                 {"left": 116, "right": 14, "height": 24, "bottom": 26}],
        "xAxis": [{**axis, **quiet, "axisLabel": {"show": False}, "gridIndex": 0},
                  {**axis, **quiet, "gridIndex": 1, "splitLine": {"show": False},
                   "axisLabel": {"color": ink["dim"], "hideOverlap": True}}],
        "yAxis": [{"type": "time" if dated else "value", "scale": True, "gridIndex": 0, **quiet,
                   "name": _axis_name(view, unit, relative), "nameTextStyle": {
                       "color": ink["dim"], "align": "left"}, "nameGap": 6, "nameLocation": "start",
                   "axisLabel": {"color": ink["dim"], "hideOverlap": True, **dates},
                   "splitLine": {"lineStyle": {"color": ink["faint"]}}},
                  {"type": "value", "min": 0, "max": 1, "gridIndex": 1, "show": False}],
        "series": series,
    }  # fmt: skip


def numbers(
    title: str, series: Mapping[str, Points], since: float, until: float, *, unit: str,
    dark: bool, scale: float = 1.0,
) -> Options:  # fmt: skip
    """A small chart of one or a few series with one axis from 0 on."""
    ink = _ink(dark)
    looks = colours_of(list(series))
    quiet = {"axisLine": {"lineStyle": {"color": ink["faint"]}},
             "axisLabel": {"color": ink["dim"], "hideOverlap": True}}  # fmt: skip
    return {
        "animation": False,
        "useUTC": True,
        "aria": {"enabled": True, "label": {"description": f"{title} over time"}},
        "title": {"text": f"{title}, {unit}" if unit else title, "top": 0, "left": 4,
                  "textStyle": {"fontSize": 13, "fontWeight": 600, "color": ink["text"]}},
        "tooltip": {"trigger": "axis", "confine": True, **_tooltip(ink)},
        "legend": {"show": len(series) > 1, "type": "scroll", "top": 18, "left": 4,
                   "textStyle": {"color": ink["text"]}},
        "grid": {"left": 62, "right": 12, "top": 46, "bottom": 24},
        "xAxis": {"type": "time", "min": int(since * 1000), "max": int(until * 1000), **quiet},
        "yAxis": {"type": "value", "min": 0, **quiet,
                  "splitLine": {"lineStyle": {"color": ink["faint"]}}},
        "series": [
            _line(name, points, lambda value: round(value * scale, 2), *looks[name])
            for name, points in series.items()
        ],
    }  # fmt: skip


def line(points: Points, scale: Any) -> list[list[float | None]]:
    """Points as ECharts takes them: milliseconds, and a value or null."""
    return [[int(at * 1000), None if v is None else scale(v)] for at, v in points]


def _line(name: str, points: Points, scale: Any, colour: str, dash: str) -> Options:
    return {
        "type": "line", "name": printable(name), "data": line(points, scale),
        "showSymbol": False, "connectNulls": False, "symbolSize": 7,
        "encode": {"x": 0, "y": 1, "tooltip": [1]},
        "lineStyle": {"width": 1.8, "type": dash}, "itemStyle": {"color": colour},
    }  # fmt: skip


def _band(history: History, since: float, looks: Mapping[str, Any], ink: Options) -> Options:
    """Who led, as coloured areas with names."""
    areas: list[Any] = []
    spans = history.leaders(since)
    whole = spans[-1][1] - spans[0][0] if spans else 0.0
    for start, end, leader in spans:
        colour = looks.get(leader or "", (ink["faint"], ""))[0]
        name = printable(leader or "nobody")
        named = {"show": end - start > whole * _LEAST_NAMED}
        area = {"name": name, "xAxis": int(start * 1000), "itemStyle": {"color": colour},
                "label": named}  # fmt: skip
        areas.append([area, {"xAxis": int(end * 1000)}])
    label = {"show": True, "position": "inside", "color": "#fff", "fontWeight": 600,
             "textBorderColor": "#333", "textBorderWidth": 2, "overflow": "truncate"}  # fmt: skip
    return {
        "type": "line", "name": "leader", "xAxisIndex": 1, "yAxisIndex": 1, "data": [],
        "silent": False, "markArea": {"silent": False, "data": areas, "label": label},
    }  # fmt: skip


def _shown(view: MergeView, history: History, since: float) -> list[str]:
    """Which replicas have a line: all; of many those that led, then the furthest and the last."""
    names = [each.name for each in view.replicas]
    if len(names) <= MOST_LINES:
        return names
    led = [leader for _, _, leader in history.leaders(since) if leader in names]
    order = sorted(view.replicas, key=lambda each: (each.stable_point is None, each.behind or 0))
    by_place = [each.name for each in order]
    half = MOST_LINES // 2
    chosen = dict.fromkeys([*led[-half:], *by_place[-half:], *by_place])
    kept = set(list(chosen)[:MOST_LINES])
    return [name for name in names if name in kept]


def _behind(lines: dict[str, Points], output: Points) -> tuple[dict[str, Points], Points]:
    """Distances to the furthest of all at the same moment; what is behind is below 0."""
    best: dict[float, float] = {}
    for points in (*lines.values(), output):
        for at, value in points:
            if value is not None:
                best[at] = max(value, best.get(at, value))

    def distance(points: Points) -> Points:
        return [(at, None if value is None else value - best[at]) for at, value in points]

    return {name: distance(points) for name, points in lines.items()}, distance(output)


def _scale(unit: int, *, relative: bool) -> Any:
    if relative:
        return lambda value: round(value * unit / 10**9, 3)
    return lambda value: int(value * unit / 10**6)


def _axis_name(view: MergeView, unit: int | None, relative: bool) -> str:
    if relative:
        return "behind the furthest, " + ("units" if unit is None else "s of stream time")
    return "" if unit is not None else "stable point"


def _described(view: MergeView, relative: bool) -> str:
    what = "Distances to the furthest stable point" if relative else "Stable points"
    return (
        f"{what} of {len(view.replicas)} replicas and the output; {view.leader or 'nobody'} leads"
    )


def _ink(dark: bool) -> Options:
    if dark:
        return {"text": "#e6e8ea", "dim": "#a9b0b7", "faint": "#3a4148", "paper": "#1c2126"}
    return {"text": "#222222", "dim": "#5a6168", "faint": "#d7dbdf", "paper": "#ffffff"}


def _tooltip(ink: Options) -> Options:
    return {"backgroundColor": ink["paper"], "borderColor": ink["faint"],
            "textStyle": {"color": ink["text"], "fontSize": 12}}  # fmt: skip

"""The names in a PromQL expression: enough of the language to hold queries to what there is.

>>> metrics, labels = used('sum by (job) (rate(x_total{kind!="a",job="j"}[5m])) > 1 and on (i) y')
>>> sorted(metrics), sorted(labels)
(['x_total', 'y'], ['i', 'job', 'kind'])
"""

import re

__all__ = ("used",)

_TOKEN = re.compile(
    r"""(?P<string>"[^"]*"|'[^']*')
    |(?P<range>\[[^\]]*\])
    |(?P<matchers>\{(?:[^}"']|"[^"]*"|'[^']*')*\})
    |(?P<grouping>\b(?:by|without|on|ignoring|group_left|group_right)\b\s*\([^)]*\))
    |(?P<call>[a-zA-Z_]\w*(?=\s*\())
    |(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?[smhdw]?)
    |(?P<sign>[-+*/%^(),]|[=!<>]=?|\s+)""",
    re.VERBOSE,
)
_CALLS = {
    "abs", "absent", "avg", "changes", "clamp_min", "count", "histogram_quantile", "increase",
    "label_values", "max", "max_over_time", "min", "rate", "sum", "time", "topk",
}  # fmt: skip
_WORDS = {
    "and", "or", "unless", "bool", "offset", "inf",
    # an aggregation before its grouping
    "sum", "max", "min", "avg", "count", "topk",
}  # fmt: skip


def used(expression: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that an expression names.

    Raises:
        ValueError: it is not PromQL, or more of it than is known here.
    """
    metrics: set[str] = set()
    labels: set[str] = set()
    at, depth = 0, 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:
            raise ValueError(f"what is {expression[at : at + 20]!r}?")
        at, kind, text = token.end(), token.lastgroup, token.group()
        depth += (text == "(") - (text == ")")
        if depth < 0:
            raise ValueError(f"a bracket too many in {expression!r}")
        if kind == "matchers":
            labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', text)))
        elif kind == "grouping":
            labels |= set(re.findall(r"\w+", text[text.index("(") :]))
        elif kind == "call" and text not in _CALLS | _WORDS:
            raise ValueError(f"no such function: {text}")
        elif kind == "name" and text not in _WORDS:
            metrics.add(text)
    if depth:
        raise ValueError(f"a bracket is not closed in {expression!r}")
    return metrics, labels

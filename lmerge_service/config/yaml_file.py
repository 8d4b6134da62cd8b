"""A YAML file as a mapping that knows the lines of what stands in it, for messages."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from lmerge_service.errors import ConfigurationError

__all__ = ("line_of", "parse")


def parse(path: Path, needed: str) -> Any:
    """The mapping in a file.

    Raises:
        ConfigurationError: it can't be read, isn't YAML, or is no mapping, which is `needed`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: cannot read it: not UTF-8: {error}") from None
    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise ConfigurationError(f"{path}:{line}: not YAML: {error.problem}") from None
    except (YAMLError, ValueError, AssertionError, RecursionError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(f"{path}:1: not YAML: {problem}") from None
    if not isinstance(document, CommentedMap):
        raise ConfigurationError(f"{path}:1: {needed}")
    return document


def line_of(document: Any, loc: tuple[int | str, ...]) -> int:
    """The line of the deepest part of `loc` that stands in the document, from 1."""
    line, node = 1, document
    for part in loc:
        if isinstance(node, CommentedMap) and part in node:
            line = node.lc.key(part)[0] + 1
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line = node.lc.item(part)[0] + 1
        else:
            break
        node = node[part]
    return line

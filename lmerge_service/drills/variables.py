"""The parts of an experiment's `configuration`: the drill's settings, and variables of its author.

Theory
    The Chaos Toolkit lets authors name values of their own in `configuration` and use them as
    `${name}`. To a drill, some names there are its settings (`plan`). Any other name is a
    variable if the experiment uses it, or if its value is only known when it is run (`type: env`,
    `type: probe`); else it is a mistake, a misspelt setting most likely. A setting's value may be
    a variable, too.
"""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from chaoslib import substitute
from chaoslib.configuration import load_configuration

from lmerge_service.drills.plan import DrillPlan, plan_of

__all__ = ("planned", "refuse_mistakes")

_USE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_SETTINGS: Final = tuple(field.name for field in msgspec.structs.fields(DrillPlan))


def planned(experiment: Mapping[str, Any], configuration: Mapping[str, Any]) -> DrillPlan:
    """The plan of an experiment, by its configuration as the toolkit has loaded it.

    Raises:
        Refused: a name is neither a setting nor a variable, or a value cannot be.
    """
    filled = substitute(dict(configuration), configuration, None) or {}
    variables = {
        name
        for name, value in filled.items()
        if name not in _SETTINGS and _is_variable(name, value, experiment)
    }
    return plan_of({name: value for name, value in filled.items() if name not in variables})


def refuse_mistakes(experiment: Mapping[str, Any]) -> None:
    """Before anything runs: `planned`, as far as it is known without running a probe; raises
    alike."""
    given = experiment.get("configuration", {})
    known = {name: value for name, value in given.items() if not _is_dynamic(value, "probe")}
    planned(experiment, load_configuration(known))


def _is_variable(name: str, value: Any, experiment: Mapping[str, Any]) -> bool:
    if name in _uses(experiment) or str(value) in experiment["title"]:  # it is filled in already
        return True
    given = experiment.get("configuration", {}).get(name)
    dynamic = _is_dynamic(given, "env") or _is_dynamic(given, "probe")
    return dynamic and not get_close_matches(name, _SETTINGS, cutoff=0.8)


def _uses(experiment: Mapping[str, Any]) -> set[str]:
    return {a or b for a, b in _USE.findall(json.dumps(experiment, default=str))}


def _is_dynamic(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind

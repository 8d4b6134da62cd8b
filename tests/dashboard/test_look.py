"""Colours: lines that people who see few colours can tell apart, and words that can be read."""

import itertools
import math
import re
from pathlib import Path

import pytest

import lmerge_service
from lmerge_service.dashboard.charts import colours_of
from lmerge_service.dashboard.merged import ReplicaRow, WorkerRow, merged
from lmerge_service.dashboard.shape import mark_of, tone_of, worker_tone
from lmerge_service.page import COLOURS
from tests.dashboard.documents import A, replica, status

TEMPLATES = Path(lmerge_service.__file__).parent / "templates"

Colour = tuple[float, float, float]
"""Red, green and blue as amounts of light."""

SIGHT: dict[str, tuple[Colour, Colour, Colour]] = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
               (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                 (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                (0.004733, 0.691367, 0.303900)),
}  # fmt: skip
"""What remains of light, by Machado, Oliveira and Fernandes 2009, severity 1."""
_LEAST_DISTANCE = 15.0
"""In CIELAB; 2.3 is just noticeable."""


def light_of(colour: str) -> Colour:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return r, g, b


def seen(light: Colour, sight: str) -> Colour:
    r, g, b = (
        min(1.0, max(0.0, sum(part * amount for part, amount in zip(row, light, strict=True))))
        for row in SIGHT[sight]
    )
    return r, g, b


def lab(light: Colour) -> Colour:
    rows = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750),
            (0.0193339, 0.1191920, 0.9503041))  # fmt: skip
    white = (0.95047, 1.0, 1.08883)
    parts = [
        sum(part * amount for part, amount in zip(row, light, strict=True)) / whole
        for row, whole in zip(rows, white, strict=True)
    ]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in parts)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, sight: str) -> float:
    first, second = (lab(seen(light_of(each), sight)) for each in (one, other))
    return math.dist(first, second)


@pytest.mark.parametrize("sight", SIGHT)
def test_lines_of_one_dash_differ_for_whoever_sees_few_colours(sight: str) -> None:
    for one, other in itertools.combinations(COLOURS, 2):
        assert distance(one, other, sight) >= _LEAST_DISTANCE, (one, other)


def test_red_and_green_would_not_do() -> None:
    assert distance("#e15759", "#59a14f", "all") > 90
    assert distance("#e15759", "#59a14f", "no green") < 1


def test_of_eighteen_replicas_no_two_lines_have_colour_and_dash_alike() -> None:
    looks = colours_of([f"r{number}" for number in range(18)])
    assert len(set(looks.values())) == 18


# --- words ----------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    r, g, b = light_of(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def variables(file: str) -> dict[str, str]:
    """Colours by name, `#abc` as `#aabbcc`."""
    found = re.findall(r"--([a-z]+): *#([0-9a-f]{6}|[0-9a-f]{3})\b", (TEMPLATES / file).read_text())
    return {
        name: "#" + (value if len(value) == 6 else "".join(2 * each for each in value))
        for name, value in found
    }


@pytest.mark.parametrize("file", ["look.css", "dark.css"])
def test_every_word_can_be_read_on_every_ground(file: str) -> None:
    colours = variables(file)
    words = ("ink", "dim", "accent", "good", "warn", "bad", "still")
    for word, ground in itertools.product(words, ("paper", "card", "ground")):
        assert contrast(colours[word], colours[ground]) >= 4.5, (word, ground)  # WCAG 2.2, AA


def row(**more: object) -> ReplicaRow:
    (found,) = merged([(A, status(replica("a", **more)), None)]).replicas
    return found


def test_a_state_that_is_bad_has_another_sign_and_not_only_another_colour() -> None:
    rows = [row(), row(state="joining"), row(state="paused"), row(state="excluded"),
            row(state="quarantined"), row(liveness="silent"), row(ended=True)]  # fmt: skip
    assert len({mark_of(each) for each in rows}) == len(rows)
    assert len({each.word for each in rows}) == len(rows)
    assert (tone_of(row(), quiet=True), mark_of(row(), quiet=True)) == ("warn", "▲")
    states = (("running", "ok"), ("running", "degraded"), ("starting", "ok"), ("away", "?"))
    workers = [WorkerRow(A, state, health, None) for state, health in states]
    assert len({worker_tone(each) for each in workers}) == len(workers)

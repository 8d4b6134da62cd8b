"""Topologies: what is accepted, and that every fault is one line that names the place."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from lmerge_service.config.topology import load
from lmerge_service.core import Case, Policy, lag
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.dialects import Debezium, Lateness

GOOD = """\
name: t
kafka:
  bootstrap: 127.0.0.1:9092
output:
  topic: out
replicas:
  - name: a
    topic: in.a
  - name: b
    topic: in.b
    joining_at: 100
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMERGE_BOOTSTRAP", raising=False)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    return path


def test_a_topology_is_read_with_its_defaults(tmp_path: Path) -> None:
    topology = load(write(tmp_path, GOOD))
    assert topology.output.dead_letter_topic == "out.dead-letters"
    assert [replica.joining_at for replica in topology.replicas] == [None, 100]
    assert topology.http.host == "127.0.0.1"


def test_every_shipped_topology_is_valid() -> None:
    shipped = sorted(Path("topologies").glob("*.yaml"))
    assert shipped
    for path in shipped:
        load(path)


def test_option_and_environment_take_the_place_of_the_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.setenv("LMERGE_BOOTSTRAP", "127.0.0.1:1")
    assert load(path).kafka.bootstrap == "127.0.0.1:1"
    assert load(path, bootstrap="127.0.0.1:2").kafka.bootstrap == "127.0.0.1:2"


def test_a_bad_bootstrap_option_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^--bootstrap or LMERGE_BOOTSTRAP: host:port"):
        load(write(tmp_path, GOOD), bootstrap="nowhere")


@pytest.mark.parametrize(
    ("old", "new", "line", "message_part"),
    [
        ("name: t\n", "name: t\nspeed: 3\n", 2, "speed: unknown field"),
        ("name: t\n", "", 1, "name: is missing"),
        ("    joining_at: 100", "    joining_at: soon", 11, "replicas[1].joining_at: "),
        ("  topic: out", "  topic: out/side", 5, "output.topic: a topic name has"),
        ("  topic: out", "  topic: out\n  partitions: 0", 6, "output.partitions: "),
        ("  topic: out", "  topic: out\n  partitions: 1001", 6, "output.partitions: "),
        ("name: t\n", "name: t\nkey: [a, b.c, a]\n", 2, "key: names a twice"),
        ("name: t\n", "name: t\nkey: city\n", 2, "key: "),
        ("name: t\n", "name: t\nkey: [a..b]\n", 2, "key[0]: "),
        ("name: t\n", "name: t\nkey: ['a\"b']\n", 2, "key[0]: "),
        ("    topic: in.b", "    topic: in.a", 1, "replicas share the topic in.a"),
        ("  - name: b", "  - name: a", 1, "replicas share the name a"),
        ("    topic: in.b", "    topic: out", 1, "topic out is both written and read"),
        ("  - name: a\n    topic: in.a\n", "  - name: a\n", 7, "replicas[0].topic: is missing"),
        ("output:", "http:\n  host: 0.0.0.0\noutput:", 4, "http: host 0.0.0.0 can be reached by"),
        ("output:", "http:\n  host: kafka\noutput:", 5, "http.host: an IP address of this machine"),
        ("output:", "http:\n  port: 70000\noutput:", 5, "http.port: "),
        (
            "    joining_at: 100",
            "    joining_at: 100\n    normalise: true",
            9,
            "replicas[1]: normalise needs the whole history",
        ),
        ("    joining_at: 100", "    normalise: perhaps", 11, "replicas[1].normalise: "),
        ("  bootstrap: 127.0.0.1:9092", "  bootstrap: kafka", 3, "kafka.bootstrap: host:port"),
        ("  bootstrap: 127.0.0.1:9092", "  bootstrap: k:99999", 3, "kafka.bootstrap: host:port"),
        ("name: t\n", "name: t\ncase: R9\n", 2, "case: must be one of R0, R1, R2, R3, R4, auto"),
        (
            "name: t\n",
            "name: t\npolicy: {insert: last}\n",
            2,
            "policy: insert must be one of first, leader, half_frozen, quorum(n), got 'last'",
        ),
        (
            "name: t\n",
            "name: t\npolicy: {stable: quorum(5)}\n",
            1,
            "stable=quorum(5) of 2 inputs is never reached",
        ),
        ("name: t\n", "name: t\npolicy: {when: first}\n", 2, "policy.when: "),
        ("name: t\n", "name: t\ntime_unit: minutes\n", 2, "time_unit: "),
        ("name: t\n", "name: t\nguards:\n  max_skew: -1\n", 3, "guards.max_skew: "),
        ("name: t\n", "name: t\nguards: {skew: 1}\n", 2, "guards.skew: unknown field"),
        ("name: t\n", "name: t\nlimits: {max_live_bytes: 9}\n", 2, "limits.max_live_bytes: "),
        ("name: t\n", "name: t\nname: u\n", 2, "not YAML: "),
        ("  bootstrap: 127.0.0.1:9092", "  bootstrap: [", 5, "not YAML: "),
        (GOOD, "- a\n- b\n", 1, "a topology is a mapping"),
        (GOOD, "", 1, "a topology is a mapping"),
    ],
)
def test_a_fault_is_one_line_with_file_line_and_field(
    tmp_path: Path, old: str, new: str, line: int, message_part: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: "), message
    assert message_part in message
    assert "\n" not in message


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(write(tmp_path, GOOD.replace("name: t", "speed: 3").replace("topic: out", "to: out")))
    assert len(str(caught.value).splitlines()) == 4


def test_a_file_that_is_not_there_or_not_text_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: cannot read"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"bytes\.yaml: cannot read"):
        load(tmp_path / "bytes.yaml")


def test_the_output_may_have_partitions_and_a_key(tmp_path: Path) -> None:
    text = GOOD.replace("  topic: out", "  topic: out\n  partitions: 12")
    topology = load(write(tmp_path, f"key: [city, from.city]\n{text}"))
    assert (topology.output.partitions, topology.key) == (12, ("city", "from.city"))
    assert load(write(tmp_path, GOOD)).output.partitions == 1


def test_a_replica_may_be_normalised(tmp_path: Path) -> None:
    text = GOOD.replace("joining_at: 100", "normalise: true")
    topology = load(write(tmp_path, text))
    assert [replica.normalise for replica in topology.replicas] == [False, True]


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
def test_normalising_in_a_case_without_revisions_is_a_fault(tmp_path: Path, case: str) -> None:
    text = GOOD.replace("joining_at: 100", "normalise: true") + f"case: {case}\n"
    with pytest.raises(ConfigurationError, match=f"normalise needs case R3 or R4, not {case}"):
        load(write(tmp_path, text))


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
def test_a_table_of_a_case_that_keeps_no_events_is_a_fault(tmp_path: Path, case: str) -> None:
    document = YAML(typ="safe").load(GOOD)
    document["output"]["table"], document["case"] = True, case
    text = json.dumps(document)
    with pytest.raises(ConfigurationError, match=f"output.table needs case R3 or R4, not {case}"):
        load(write(tmp_path, text))


def test_a_policy_is_part_of_the_topology(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD)).policy.policy() == Policy()
    text = GOOD + "policy: {insert: half_frozen, stable: lag(500)}\n"
    assert load(write(tmp_path, text)).policy.policy() == Policy("half_frozen", stable=lag(500))


def test_the_case_may_follow_from_the_properties_of_the_replicas(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD)).resolved_case == Case.R3
    text = GOOD + "case: auto\n"
    assert load(write(tmp_path, text)).resolved_case == Case.R4, "nothing is promised"
    ordered = "properties: {ordered: true, revises: false, key: true}"
    document = YAML(typ="safe").load(text)
    for replica in document["replicas"]:
        replica.update(YAML(typ="safe").load(ordered))
    (path := tmp_path / "auto.yaml").write_text(json.dumps(document))
    assert load(path).resolved_case == Case.R2


DIALECT = """\
    joining_at: 100
    format:
      dialect: debezium
      time: source.ts_ms
      stable:
        lateness: 5000
"""


def test_a_replica_may_write_a_dialect(tmp_path: Path) -> None:
    topology = load(write(tmp_path, GOOD.replace("    joining_at: 100\n", DIALECT)))
    wire, dialect = (replica.format for replica in topology.replicas)
    assert wire == "wire"
    assert dialect == Debezium(dialect="debezium", stable=Lateness(lateness=5000))


@pytest.mark.parametrize(
    ("old", "new", "line", "message_part"),
    [
        ("dialect: debezium", "dialect: maxwell", 12, "replicas[1].format: must be wire, or a"),
        ("      dialect: debezium\n", "", 12, "replicas[1].format: must be wire, or a mapping"),
        ("time: source.ts_ms", "when: source.ts_ms", 14, "replicas[1].format.when: unknown field"),
        ("time: source.ts_ms", "time: source..ts_ms", 14, "replicas[1].format.time: "),
        ("lateness: 5000", "lateness: -1", 16, "replicas[1].format.stable.lateness: "),
        ("lateness: 5000", "lateness: 1\n        step: 0", 17, "replicas[1].format.stable.step: "),
        ("lateness: 5000", "lateness: 1\n        w: 0", 17, ".format.stable.w: unknown field"),
        ("lateness: 5000", "late: 5000", 15, ".stable: must be a mapping with lateness, watermark"),
        (
            "      stable:\n        lateness: 5000\n",
            "",
            12,
            "[1].format.stable: is missing",
        ),
        ("lateness: 5000", "transactions: false", 16, "replicas[1].format.stable.transactions: "),
        (
            "dialect: debezium\n      time: source.ts_ms",
            "dialect: upserts\n      key_encoding: text",
            12,
            "replicas[1].format: key_encoding is of use with key_into only",
        ),
        (
            "dialect: debezium\n      time: source.ts_ms",
            "dialect: flink\n      encoding: rowkind\n      key: []",
            15,
            "replicas[1].format.key: ",
        ),
        (
            "dialect: debezium\n      time: source.ts_ms\n      stable:\n        lateness: 5000",
            "dialect: openclose\n      stable: {lateness: 5, heartbeats: true}",
            12,
            "replicas[1].format: stable.heartbeats: only Debezium has heartbeats",
        ),
        (
            "name: t\n",
            "name: t\ncase: R2\n",
            1,
            "replica b publishes in a dialect, which needs case R3 or R4, not R2",
        ),
    ],
)
def test_a_fault_in_a_format_is_one_line_with_file_line_and_field(
    tmp_path: Path, old: str, new: str, line: int, message_part: str
) -> None:
    text = GOOD.replace("    joining_at: 100\n", DIALECT)
    assert old in text
    with pytest.raises(ConfigurationError) as caught:
        load(write(tmp_path, text.replace(old, new)))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 't.yaml'}:{line}: "), message
    assert message_part in message
    assert "\n" not in message
    assert "<" not in message


@pytest.mark.parametrize("form", ["flink", "3", "[wire]", "{}"])
def test_a_format_that_is_none_is_a_fault(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, GOOD.replace("    joining_at: 100", f"    format: {form}"))
    with pytest.raises(ConfigurationError, match=r"t\.yaml:11: replicas\[1\]\.format: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("unit", "skew", "leap"),
    [
        ("ms", 3_600_000, 43_200_000),
        ("s", 3_600, 43_200),
        ("ns", 3_600 * 10**9, 43_200 * 10**9),
        ("none", 0, 0),
    ],
)
def test_guards_are_measured_in_the_unit_of_time(
    tmp_path: Path, unit: str, skew: int, leap: int
) -> None:
    topology = load(write(tmp_path, GOOD.replace("name: t\n", f"name: t\ntime_unit: {unit}\n")))
    assert (topology.max_skew, topology.max_leap) == (skew, leap)


def test_times_that_are_no_time_of_day_have_no_skew_but_may_have_leaps(tmp_path: Path) -> None:
    text = "name: t\ntime_unit: none\nguards: {max_skew: 5, max_leap: 9}\n"
    topology = load(write(tmp_path, GOOD.replace("name: t\n", text)))
    assert (topology.max_skew, topology.max_leap) == (0, 9)


@pytest.mark.parametrize(
    ("replicas", "faults"),
    [
        (
            "[{name: a, topik: a.in}]",
            ["[0].topic: is missing", "[0].topik: unknown"],
        ),
        ("[{name: a, topic: a.in, speed: 1}]", ["replicas[0].speed: unknown field"]),
        ("[7]", ["replicas[0]: Input should be a valid dictionary"]),
        ("[]", ["replicas: Tuple should have at least 1 item"]),
    ],
)
def test_n11_a_fault_of_a_replica_is_the_only_line(
    tmp_path: Path, replicas: str, faults: list[str]
) -> None:
    path = write(tmp_path, GOOD[: GOOD.index("replicas:")] + f"replicas: {replicas}\n")
    with pytest.raises(ConfigurationError) as error:
        load(path)
    lines = str(error.value).splitlines()
    assert len(lines) == len(faults), lines
    for line, fault in zip(lines, faults, strict=True):
        assert fault in line

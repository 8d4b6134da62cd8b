"""What is wrong with the folds of a run's decisions: nobody may find out who begins with one."""

from collections.abc import Iterator, Sequence

from lmerge_service.config.topology import Topology
from lmerge_service.drills.control_log_check import ControlHistory, decided
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.errors import ElementError
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.ledger import Ledger
from tests.simulation.memory import Broker

__all__ = ("wrong_folds",)


def wrong_folds(broker: Broker, topology: Topology) -> Iterator[str]:
    """Compares whoever begins with a fold to whoever has read all records that ever were."""
    name = topology.output.control_topic
    if broker.describe(name) is None:
        return
    records = broker.topic(name, ever=True).records
    holding = [each.offset for each in records if _holds(each)]
    try:
        whole = _ledger(topology, records, 0)
    except AssertionError as error:  # `adapter` checks each fold
        yield str(error)
        return
    for at in holding:
        reader = _ledger(topology, records, at)
        if (reader.state(), reader.folded) != (whole.state(), whole.folded):
            yield f"who begins with the fold at offset {at} comes to something else"
    kept = broker.topic(name).records
    if kept and kept[0].offset and kept[0].offset not in holding:
        yield f"the decisions begin at offset {kept[0].offset}, where no fold is"
    if kept and _judged(name, kept) != _judged(name, records):
        yield "the judge comes to something else without what was deleted"


def _holds(record: CommittedRecord) -> bool:
    try:
        return folds.is_fold(record.value) and folds.decode(record.value).offset == record.offset
    except ElementError:
        return False


def _ledger(topology: Topology, records: Sequence[CommittedRecord], start: int) -> Ledger:
    ledger = Ledger(topology)
    for record in records:
        if record.offset >= start:
            ledger.fold(record.offset, record.value)
    return ledger


def _judged(name: str, records: Sequence[CommittedRecord]) -> tuple[object, ...]:
    found: ControlHistory = decided(CommittedTopic(name, tuple(records)))
    replicas = {n: (r.topic, r.state, r.epoch) for n, r in found.replicas.items()}
    verdicts = {n: (v.version, v.refused) for n, v in found.verdicts.items()}
    return found.version, found.policy, replicas, verdicts, found.cutover

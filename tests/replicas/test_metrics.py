"""The metrics of a replica are those of their page."""

from pathlib import Path

from lmerge_service.kafka.connection import Connection
from lmerge_service.queries.loading import load
from lmerge_service.queries.physical import physical
from lmerge_service.replicas.metrics import metrics_of
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryReplica
from tests.operations.documented import documented_metrics

QUERIES = Path(__file__).with_name("sample_queries.py")


def test_a_replica_that_has_not_met_kafka_shows_what_it_knows() -> None:
    query = load(f"{QUERIES}:windows")
    replica = QueryReplica(
        ReplicaRequest(
            name="windows",
            query=query.plan,
            plan=physical(query),
            columns=None,
            number="1",
            connection=Connection("127.0.0.1:1"),
            to="to",
        )
    )
    families = list(metrics_of(replica).collect())
    suffixes = {"counter": "_total", "info": "_info"}
    found = {
        family.name + suffixes.get(family.type, ""): "gauge"
        if family.type == "info"
        else family.type
        for family in families
        if family.name.startswith("lmerge_")
    }
    documented = documented_metrics("query-metrics")
    assert found == {name: kind for name, (kind, _) in documented.items()}
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert (values["lmerge_query_ready"], values["lmerge_query_info"]) == (0, 1)

"""A merge in Spark over HTTP: who may decide, what it shows, and that it does what was decided."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from lmerge_service.cli.options import at_port
from lmerge_service.config.topology import load
from lmerge_service.elements import Insert
from lmerge_service.spark.merge.job import BatchProgress, JobSettings, MergeJob, _behind
from lmerge_service.spark.merge.serving import Metrics, served
from tests.service.cluster import Merge, logical, meaning, replica_streams
from tests.spark.merge.test_job import SECONDS, Process, come_true, merge_of

TOKEN = "of-those-who-may-decide"


def lmerge(address: str, *arguments: str) -> tuple[int, Any, str]:
    """Exit code, document, what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "lmerge_service.cli", *arguments, "--at", address, "--json"],
        capture_output=True, text=True, timeout=60, check=False,
        env={"LMERGE_TOKEN": TOKEN, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def with_token(bootstrap: str, folder: Path) -> Merge:
    secret = folder / "token"
    secret.write_text(TOKEN)
    return merge_of(bootstrap, folder, http={"control_token": {"file": str(secret)}})


def test_what_a_worker_is_asked_a_job_is_asked(bootstrap: str, tmp_path: Path) -> None:
    merge = with_token(bootstrap, tmp_path)
    topology = at_port(load(merge.path), 0)
    job, metrics = MergeJob(topology, JobSettings(str(tmp_path / "checkpoint"))), Metrics()
    metrics.report(BatchProgress(0, 500, 1.5, {"t": 40}))
    metrics.report(BatchProgress(1, 40, 0.3, {"u": 2}))
    with served(topology, job, metrics) as address, httpx.Client(base_url=address) as client:
        refused = client.post("/v1/replicas/d/attach", json={"topic": "t"})
        assert refused.status_code == 401
        assert client.get("/readyz").status_code == 503
        job.merging = True
        assert client.get("/readyz").json() == {"state": "running"}
        assert client.get("/healthz").json() == {"health": "ok", "reasons": []}
        job.trouble = "cannot see the topics: no answer"
        assert client.get("/healthz").json() == {"health": "degraded", "reasons": [job.trouble]}
        code, made, printed = lmerge(address, "detach", "a")
        assert code == 0, printed
        assert client.get(f"/v1/decisions/{made['id']}").json()["accepted"]
        code, _, printed = lmerge(address, "detach", "a")
        assert code == 6
        assert "replica a is detached" in printed
        scraped = client.get("/metrics").text
        for path in ("/healthz", "/readyz", "/metrics"):  # n11
            head = client.head(path)
            assert (head.status_code, head.content) == (200, b""), path
    assert scraped == generate_latest(metrics.registry).decode()
    assert "lmerge_spark_records_total 540.0" in scraped
    assert "lmerge_spark_batch_seconds_sum 1.8" in scraped
    assert 'lmerge_spark_behind_records{topic="u"} 2.0' in scraped
    assert 'topic="t"' not in scraped, "it is of the last batch"


def test_what_is_there_and_not_read_is_behind() -> None:
    there, read = '{"t":{"0":7,"1":5},"u":{"0":3}}', '{"t":{"0":7,"1":2}}'
    sources = [
        {"endOffset": read, "latestOffset": there},
        {"endOffset": None, "latestOffset": None},
    ]
    assert _behind({"sources": sources}) == {"t": 3, "u": 3}


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_replica_is_attached_from_the_command_line_while_it_merges(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = with_token(bootstrap, tmp_path)
    lives = logical(200, seed=5)
    streams = replica_streams(lives, seed=5)
    for name in "ab":
        merge.publish(name, [e for e in streams[name] if isinstance(e, Insert)][:50])
    process = Process(merge, tmp_path / "log", "--http-port", "0")
    try:
        come_true(lambda: process.has_merged(1), "a batch is through")
        found = re.search(r"HTTP at (http://127\.0\.0\.1:\d+)", process.log.read_text())
        assert found is not None
        assert httpx.get(f"{found[1]}/readyz").status_code == 200
        merge.topics["d"] = f"{merge.name}.d"
        merge.publish("d", streams["c"])
        code, _, printed = lmerge(found[1], "attach", "d", merge.topics["d"])
        assert code == 0, printed
        come_true(lambda: merge.output_is(meaning(lives)), "what d publishes is put out")
        records = httpx.get(f"{found[1]}/metrics").text
        (read,) = re.findall(r"(?m)^lmerge_spark_records_total (\S+)", records)
        assert float(read) > 100
        process.process.terminate()
        assert process.process.wait(SECONDS) == 0
    finally:
        process.kill()

"""The shipped rules, scrape configuration and compose file, as the programs that read them do: a
real Prometheus scrapes two workers."""

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from lmerge_service.local.broker import free_port
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess
from tests.operations.tools import need

PAGES = Path("docs/operations")
TopicName = Callable[..., str]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = need("promtool", "prometheus", "LMERGE_REQUIRE_PROMETHEUS")
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_promtool_takes_the_rules_and_the_scrape_configuration() -> None:
    rules = promtool("check", "rules", str(PAGES / "alerts.yaml"))
    assert rules.returncode == 0, rules.stdout + rules.stderr
    assert "SUCCESS" in rules.stdout
    scraped = promtool("check", "config", str(PAGES / "prometheus.yaml"))
    assert scraped.returncode == 0, scraped.stdout + scraped.stderr


def test_compose_takes_the_file(tmp_path: Path) -> None:
    compose = need("docker-compose", "docker-compose", "LMERGE_REQUIRE_COMPOSE")
    password = tmp_path / "password"
    password.write_text("x")
    done = subprocess.run(
        [compose, "-f", "docker-compose.yml", "config"],
        capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/bin:/bin", "GRAFANA_PASSWORD_FILE": str(password)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    services = YAML(typ="safe").load(done.stdout)["services"]
    assert {"kafka", "worker-1", "worker-2", "prometheus", "grafana"} <= set(services)


def configured(folder: Path, ports: list[int]) -> Path:
    """The shipped configuration, with these workers, and asked each second."""
    yaml = YAML(typ="safe")
    config = yaml.load((PAGES / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = ["alerts.yaml"]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    rules = (PAGES / "alerts.yaml").read_text()
    assert "for: 2m" in rules
    (folder / "alerts.yaml").write_text(rules.replace("for: 2m", "for: 5s"))  # else it takes long
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


@contextmanager
def prometheus(folder: Path, config: Path) -> Iterator[str]:
    """A real one; its address."""
    program = need("prometheus", "prometheus", "LMERGE_REQUIRE_PROMETHEUS")
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
               f"--web.listen-address={address}"]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


def until(what: str, holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.5)


def ask(address: str, path: str, **query: str) -> Any:
    try:
        answer = httpx.get(f"{address}/api/v1/{path}", params=query, trust_env=False, timeout=10)
        return answer.json()["data"]
    except (httpx.TransportError, KeyError, ValueError):
        return {}


def alerts(address: str) -> dict[str, str]:
    """Names of alerts that are pending or firing."""
    found = ask(address, "alerts").get("alerts", [])
    return {each["labels"]["alertname"]: each["state"] for each in found}


def firing(address: str) -> set[str]:
    return {name for name, state in alerts(address).items() if state == "firing"}


def scraped(address: str) -> int:
    """How many workers were scraped well."""
    found = ask(address, "query", query="up == 1").get("result", [])
    return len(found)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_no_alert_while_all_is_well_and_the_right_ones_when_a_replica_and_a_worker_stay_away(
    tmp_path: Path, bootstrap: str, topic_name: TopicName
) -> None:
    need("prometheus", "prometheus", "LMERGE_REQUIRE_PROMETHEUS")
    asyncio.run(_watched(tmp_path, bootstrap, topic_name("monitored")))


async def _watched(folder: Path, bootstrap: str, name: str) -> None:
    topology = folder / "t.yaml"
    topology.write_text(
        f"name: {name}\nkafka: {{bootstrap: '{bootstrap}'}}\noutput: {{topic: {name}.out}}\n"
        f"replicas:\n  - {{name: a, topic: {name}.a}}\n  - {{name: b, topic: {name}.b}}\n"
    )
    events = [f'{{"op":"insert","payload":{n},"vs":{n},"ve":{n + 9}}}\n'
              f'{{"op":"stable","vc":{n}}}\n' for n in range(6_000)]  # fmt: skip
    (folder / "stream").write_text("".join(events))
    async with Stage(folder, bootstrap) as stage:
        replicas = [
            await stage.lmerge(
                "publish", str(folder / "stream"), f"{name}.{replica}", "--bootstrap", bootstrap,
                "--rate", "20", log=f"{replica}.log",
            )
            for replica in "ab"
        ]  # fmt: skip
        workers = [WorkerProcess(stage, each, topology) for each in ("one", "two")]
        for worker in workers:
            await worker.start()
        await workers[0].until(lambda status: status.state in ("running", "standby"), "it to run")
        ports = [int(each.address.rpartition(":")[2]) for each in workers]
        with prometheus(folder, configured(folder, ports)) as address:
            await asyncio.to_thread(until, "both are scraped", lambda: scraped(address) == 2)
            await asyncio.sleep(15)
            assert firing(address) == set()
            await replicas[1].kill()
            lost = "LmergeRedundancyLost"
            await asyncio.to_thread(until, lost, lambda: lost in firing(address))
            assert firing(address) == {lost}
            await workers[1].kill()
            await asyncio.to_thread(until, "LmergeDown", lambda: "LmergeDown" in alerts(address))

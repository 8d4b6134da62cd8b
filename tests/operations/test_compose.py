"""The compose file and what it mounts: no engine is needed to see that the parts fit together."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lmerge_service.config.topology import load
from lmerge_service.local.jars import KAFKA_VERSION

TEXT = Path("docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = YAML(typ="safe").load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
WORKERS = {name: each for name, each in SERVICES.items() if name.startswith("worker")}
PAGES = Path("docs/operations")


def read(name: str) -> Any:
    return YAML(typ="safe").load((PAGES / name).read_text())


def test_it_runs_the_kafka_that_is_tested_and_serves_loopback_only() -> None:
    kafka = SERVICES["kafka"]
    assert kafka["image"] == f"apache/kafka:{KAFKA_VERSION}"
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    listeners = kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for worker in WORKERS.values():
        assert f"INSIDE://{worker['environment']['LMERGE_BOOTSTRAP']}" in listeners


def test_there_are_two_workers_of_one_topology_and_prometheus_scrapes_both() -> None:
    assert len(WORKERS) == 2
    (jobs,) = read("prometheus.yaml")["scrape_configs"]
    targets = {target for static in jobs["static_configs"] for target in static["targets"]}
    ports = set()
    for worker in WORKERS.values():
        assert worker["build"] == "."
        assert worker["network_mode"] == "service:prometheus", "it serves on loopback"
        assert worker["depends_on"]["kafka"] == {"condition": "service_healthy"}
        command, path, *options = worker["command"]
        assert (command, path) == ("run", "/etc/lmerge/flights.yaml")
        port = options[options.index("--http-port") + 1]
        assert f":{port}/readyz" in worker["healthcheck"]["test"][-1]
        ports.add(f"127.0.0.1:{port}")
    assert targets == ports
    topology = load(Path("topologies/flights.yaml"))
    assert jobs["job_name"] == f"lmerge-{topology.name}"
    assert topology.http.on_loopback


def test_the_image_holds_what_the_commands_name() -> None:
    dockerfile = Path("Dockerfile").read_text()
    assert "COPY topologies /etc/lmerge" in dockerfile
    assert "/opt/lmerge/bin/lmerge" in dockerfile


def test_every_file_that_is_mounted_is_there_and_is_found_where_it_is_looked_for() -> None:
    mounts = {}
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, target, mode = volume.split(":")
            assert Path(source).is_file(), source
            assert mode == "ro"
            mounts[target] = source
    rules = read("prometheus.yaml")["rule_files"]
    assert all(f"/etc/prometheus/{rule}" in mounts for rule in rules)
    (provider,) = read("grafana-dashboards.yaml")["providers"]
    assert any(target.startswith(f"{provider['options']['path']}/") for target in mounts)
    (source,) = read("grafana-datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"


def test_there_is_no_default_secret() -> None:
    file = COMPOSE["secrets"]["grafana_password"]["file"]
    assert re.fullmatch(r"\$\{GRAFANA_PASSWORD_FILE:\?.+\}", file), "it must be named"
    named = SERVICES["grafana"]["environment"]
    assert named["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in named
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            secret = re.search(r"(?i)password|secret|token", name)
            assert not secret or str(value).startswith("/run/secrets/"), name


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_compose_accepts_the_file_where_there_is_one(tmp_path: Path) -> None:
    if shutil.which("docker") is None or run("docker", "compose", "version").returncode:
        pytest.skip("no docker compose on the PATH; the parts are checked above")
    secret = tmp_path / "password"
    secret.write_text("of-the-tests")
    config = ("docker", "compose", "config", "--format", "json")
    done = run(*config, GRAFANA_PASSWORD_FILE=str(secret))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(SERVICES)
    assert run(*config, GRAFANA_PASSWORD_FILE="").returncode != 0, "there is no default secret"

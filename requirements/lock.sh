#!/bin/sh
# Rewrites the locked requirement files from pyproject.toml (run by `make lock`).
# Every file is cut from one resolution, so that they can be installed into one environment.
set -eu
cd "$(dirname "$0")/.."
compile() {
    out=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-annotate --no-header pyproject.toml "$@" -o "requirements/$out.txt"
}
compile all --extra dev --extra demo --extra dashboard --extra drills --extra spark --extra comparison
compile dev --extra dev --extra demo --extra dashboard --extra drills --extra spark -c requirements/all.txt
compile demo --extra demo --extra dashboard -c requirements/all.txt
compile drills --extra drills -c requirements/all.txt
compile spark --extra spark -c requirements/all.txt
compile base -c requirements/all.txt
compile comparison --extra comparison -c requirements/all.txt

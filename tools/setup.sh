#!/usr/bin/env bash
# Build a virtual environment in the checkout. Usage: tools/setup.sh main | bench
#   PYTHON        the interpreter to build from (default python3)
#   TORCH_INDEX   where torch's CPU build is looked for (default download.pytorch.org)
#   TORCH_ANY=1   take whatever build of torch the package index offers, however large
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
python=${PYTHON:-python3}

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

case "${1:-main}" in
main) venv=.venv; constraints=constraints.txt; packages=(-e '.[test]') ;;
bench) venv=.venv-bench; constraints=bench-constraints.txt; packages=(trl accelerate) ;;
*) fail "unknown environment '$1': use main or bench" ;;
esac
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

make_venv() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "'$python' is not Python 3.11 or newer: install one, or name it with PYTHON=/path/to/python3.11"
    # An environment whose interpreter has moved or never got pip is rebuilt, a healthy one is kept.
    if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        say "creating $venv"
        "$python" -m venv --clear "$venv" ||
            fail "'$python -m venv' failed: on Debian and Ubuntu, apt-get install python3-venv"
    fi
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

# pip waits minutes for an index that is not there, so ask once, briefly, before naming it.
reachable() {
    "$venv/bin/python" - "$1/torch/" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5).close()
PY
}

# What pip would fetch for torch, without fetching it.
torch_file() {
    "${pip[@]}" install --quiet --dry-run --no-deps --ignore-installed --report - "torch==$torch_version" |
        "$venv/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["download_info"]["url"])'
}

install_torch() {
    if "$venv/bin/python" -c "import importlib.metadata as m; assert m.version('torch').split('+')[0] == '$torch_version'" 2>/dev/null; then
        return
    fi
    local source=()
    if [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] && [ -z "${TORCH_ANY:-}" ] && ! has_gpu; then
        # Of 2.13.0 and 2.13.0+cpu pip takes the second: with the CPU index named beside the default one, the small build wins.
        if reachable "$torch_index"; then source=(--extra-index-url "$torch_index"); fi
        if [ ${#source[@]} -eq 0 ] && ! torch_file | grep -q cpu; then
            fail "no GPU here and $torch_index cannot be reached; the package index offers only a CUDA build of torch" \
                "(about 3 GB of downloads). Name a mirror with TORCH_INDEX=URL, or accept it with TORCH_ANY=1"
        fi
    fi
    say "installing torch $torch_version${source[*]:+ (CPU build)}"
    "${pip[@]}" install --quiet "${source[@]}" "torch==$torch_version" -c "$constraints"
}

make_venv
install_torch
say "installing the packages of $constraints"
"${pip[@]}" install --quiet "${packages[@]}" -c "$constraints"
touch "$venv/.installed"
say "$venv is ready"

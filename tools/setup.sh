#!/usr/bin/env bash
# Build a virtual environment in the checkout. Usage: tools/setup.sh main | bench | peers | sglang
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
peers) venv=.venv-peers; constraints=peers-constraints.txt
    packages=(trl accelerate tensordict ray hydra-core codetiming pytest); alone=(verl) ;;
sglang) venv=.venv-sglang; constraints=sglang-constraints.txt
    # What sglang imports where it serves text without a GPU; its own list asks for CUDA packages.
    packages=(aiohttp anthropic apache-tvm-ffi blobfile compressed-tensors dill distro easydict einops fastapi gguf interegular
        IPython jsonschema llguidance msgspec ninja numpy openai openai-harmony orjson packaging partial_json_parser pillow
        prometheus-client psutil pybase64 pydantic python-multipart pyzmq regex requests scipy sentencepiece setproctitle
        soundfile tiktoken tokenizers tqdm transformers triton uvicorn uvloop watchfiles xxhash zstandard)
    alone=(xgrammar sglang) ;;
*) fail "unknown environment '$1': use main, bench, peers or sglang" ;;
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

install_torch() {
    if "$venv/bin/python" -c "import importlib.metadata as m; assert m.version('torch').split('+')[0] == '$torch_version'" 2>/dev/null; then
        return
    fi
    local wanted="torch==$torch_version" source=()
    if [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] && [ -z "${TORCH_ANY:-}" ] && ! has_gpu; then
        # Asked for by its local version, torch is the CPU build or nothing: never 3 GB of CUDA libraries unannounced.
        wanted="$wanted+cpu"
        if reachable "$torch_index"; then source=(--extra-index-url "$torch_index"); fi
    fi
    say "installing $wanted"
    "${pip[@]}" install --quiet "${source[@]}" "$wanted" -c "$constraints" && return
    case "$wanted" in
    *+cpu) fail "no CPU build of torch $torch_version from $torch_index or the package index (see pip's message above)." \
        "Name a mirror with TORCH_INDEX=URL, or take the package index's CUDA build (about 3 GB) with TORCH_ANY=1" ;;
    *) fail "torch $torch_version could not be installed (see pip's message above)" ;;
    esac
}

# One package below reasoning-gym is there as source only, so a machine without a compiler goes without it.
install_gym() {
    if "${pip[@]}" install --quiet -e '.[gym]' -c "$constraints" 2>"$venv/gym.log"; then return; fi
    say "without reasoning-gym (gym: data sets), which needs a C compiler; pip's message is in $venv/gym.log"
}

make_venv
install_torch
say "installing the packages of $constraints"
"${pip[@]}" install --quiet "${packages[@]}" -c "$constraints"
if [ "${1:-main}" = main ]; then install_gym; fi
# What pins packages older than ours comes without its dependencies.
if [ -n "${alone:-}" ]; then "${pip[@]}" install --quiet --no-deps "${alone[@]}" -c "$constraints"; fi
if [ "${1:-main}" = sglang ]; then
    # A .pth file, not sitecustomize: Debian's own sitecustomize would hide one in an environment.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp tools/sglang_cpu/sglang_stand_ins.py "$site/"
    echo 'import sglang_stand_ins' >"$site/sglang_stand_ins.pth"
fi
touch "$venv/.installed"
say "$venv is ready"

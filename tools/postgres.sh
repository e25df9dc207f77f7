#!/usr/bin/env bash
# PostgreSQL's programs for the store's tests, from Debian's packages, where they are missing and we may install them.
# The tests start a server of their own. Without one they skip and say so, unless GRAFT_REQUIRE_POSTGRES=1 (as in .ci/run).
set -euo pipefail
installed() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

if installed; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "postgres: no PostgreSQL, and it can't be installed from here: its tests will be skipped"
elif apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null; then
    echo "postgres: installed PostgreSQL"
else
    echo "postgres: apt-get could not install PostgreSQL: its tests will be skipped"
fi
if [ "${GRAFT_REQUIRE_POSTGRES:-0}" = 1 ]; then installed; fi

#!/usr/bin/env bash
# A Chromium for the browser tests, from Debian's packages, where it is missing and we may install it.
# Without one those tests skip and say so, unless GRAFT_REQUIRE_BROWSER=1 (as in .ci/run).
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "browser: no Chromium, and it can't be installed from here: the browser tests will be skipped"
elif apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; then
    echo "browser: installed Chromium"
else
    echo "browser: apt-get could not install Chromium: the browser tests will be skipped"
fi
if [ "${GRAFT_REQUIRE_BROWSER:-0}" = 1 ]; then command -v chromium >/dev/null; fi

#!/bin/sh
# Takes the zone data and their version from the Go distribution in use.
set -eu
cd "$(dirname "$0")"
from="$(go env GOROOT)/lib/time"
cp "$from/zoneinfo.zip" zoneinfo.zip
sed -n 's/^DATA=//p' "$from/update.bash" > VERSION

#!/usr/bin/env bash
# Installs the servers that the tests start, and promtool, where they are missing, on
# Debian 12.
# The packages start their services on the default ports; nothing of that happens
# here, so that an installed server takes no port and no memory until a test asks.
# Usage: deps.sh [GO]
set -euo pipefail
cd "$(dirname "$0")"
go=${1:-go}

sudo=()
if [[ $(id -u) != 0 ]]; then sudo=(sudo); fi

missing=()
units=()
# need PACKAGE UNITS TEST... adds the package unless the test passes.
need() {
	local package=$1 its_units=$2
	shift 2
	if ! "$@" >/dev/null 2>&1; then
		missing+=("$package")
		read -ra more <<<"$its_units"
		units+=("${more[@]}")
	fi
}

need redis-server redis-server.service command -v redis-server
need default-jre-headless '' command -v java
need zookeeper '' test -e /usr/share/java/zookeeper.jar
need mariadb-server mariadb.service command -v mariadbd
need prometheus prometheus.service command -v promtool # checks the rules in configs/monitoring
need postgresql postgresql.service compgen -G '/usr/lib/postgresql/*/bin/postgres'

if ((${#missing[@]} > 0)); then
	echo "installing ${missing[*]}"
	# Maintainer scripts ask this program before they start a service: 101 says no.
	policy=/usr/sbin/policy-rc.d
	if [[ ! -e $policy ]]; then
		trap '"${sudo[@]}" rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
		"${sudo[@]}" chmod 755 "$policy"
	fi
	"${sudo[@]}" apt-get update -q </dev/null
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}" </dev/null
	# Nor at the next boot. Only what was installed just now: a service that was here before is somebody's.
	if ((${#units[@]} > 0)) && command -v systemctl >/dev/null; then
		"${sudo[@]}" systemctl disable --quiet "${units[@]}" </dev/null
	fi
fi

# Debian's etcd is too old, and "go install" refuses its module for its replace
# directives, so it is built as a tool of a small module, once per version.
version=$("$go" -C etcd list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)
binary=${XDG_CACHE_HOME:-$HOME/.cache}/solotick/etcd-$version
if [[ ! -x $binary ]]; then
	echo "building etcd $version"
	mkdir -p "$(dirname "$binary")"
	"$go" -C etcd build -trimpath -o "$binary.$$" go.etcd.io/etcd/server/v3
	mv "$binary.$$" "$binary"
fi

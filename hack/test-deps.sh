#!/usr/bin/env bash
# Installs what the end-to-end tests compare against beyond Go: the programs iptables (legacy and nft),
# nft, dig and rpm, and curl, which the quickstart uses; Chromium, for the tests of the page; and systemd, which runs a machine that
# joins a mesh. Does nothing where they are. Without them the tests run on nftables alone, and without one of the resolvers, so a
# machine that can't install them is no error; the tests of the page (test/ui) fail without a browser, which CHROMIUM may name, and the one
# of such a machine without systemd.
set -euo pipefail

# Not every user's PATH has the directories of administrators.
PATH="$PATH:/usr/sbin:/sbin"

have() { command -v "$1" >/dev/null 2>&1; }

if have iptables-nft-restore && have iptables-legacy-restore && have ip6tables-restore && have nft && have dig && have rpm && have curl && [ -x /lib/systemd/systemd ] && { [ -n "${CHROMIUM:-}" ] || have chromium; }; then
	exit 0
fi
remedy="install iptables, nftables, dig and rpm to test capture by iptables, lookups by dig and digests of rpm packages too, chromium to test the page at /ui and systemd to test a machine that joins a mesh; without the first ones only capture by nftables is tested, without the last two their tests fail"
if ! have apt-get; then
	echo "test-deps: there is no apt-get here: $remedy" >&2
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	echo "test-deps: this user may not install packages: $remedy" >&2
	exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "test-deps: installing iptables, nftables, dig, rpm, chromium and systemd"
export DEBIAN_FRONTEND=noninteractive
for attempt in 1 2 3; do
	if apt-get update -q >"$log" 2>&1 && apt-get install -y -q --no-install-recommends iptables nftables bind9-dnsutils rpm curl chromium systemd >>"$log" 2>&1; then
		exit 0
	fi
	sleep "$attempt"
done
tail -n 20 "$log" >&2
echo "test-deps: apt-get did not install them, see above: $remedy" >&2

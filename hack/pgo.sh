#!/usr/bin/env bash
# Writes hack/pgo/pilot-discovery.pgo, the profile by which the compiler optimizes what `make build` and a release build:
# hack/pgo.sh. It profiles bin/pilot-discovery under the load of test/xdsload, some minutes: delta in plaintext, which is
# most of it, delta with mutual TLS, and state of the world.
set -euo pipefail
cd "$(dirname "$0")/.."

out=hack/pgo/pilot-discovery.pgo
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/xdsload" ./test/xdsload
cp bin/pilot-discovery "$work/" # its path is in the profile

# Each change is repeated until its profile is full. A profile of 7 s covers a start whole.
run() {
  local name=$1
  shift
  echo "pgo: $name"
  "$work/xdsload" -discovery "$work/pilot-discovery" -repeat 40 -cpuprofile "$work/$name" -cpuprofile-time 7s "$@" >/dev/null
  rm "$work/$name"/*-heap.pprof
}
run delta-1
run delta-2
run tls -tls
run sotw -protocol sotw -repeat 5
go tool pprof -proto -output "$work/merged" "$work"/*/*.pprof >/dev/null
mv "$work/merged" "$out"
echo "pgo: $out has $(wc -c <"$out") bytes"

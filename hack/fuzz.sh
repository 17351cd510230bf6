#!/usr/bin/env bash
# Runs every fuzz test of the tree for the given time each: go test fuzzes one at a time. Inputs are minimized for ten
# runs only: minimizing new coverage would otherwise take most of the time of slow tests.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-15s}

grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | while IFS=: read -r file _ decl; do
  echo "== $(dirname "$file") ${decl#func }"
  go test "$(dirname "$file")" -run '^$' -fuzz "^${decl#func }\$" -fuzztime "$fuzztime" -fuzzminimizetime 10x </dev/null
done

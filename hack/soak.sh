#!/usr/bin/env bash
# Runs what is too long for `make test`, for the given number of minutes: end-to-end tests under faults and
# random tests with new seeds in the first half, fuzz tests in the second. It stops at the first failure, and
# prints the command that failed, seed included. A test that is running when the time is over runs to its end.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:?usage: hack/soak.sh MINUTES}
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { echo "soak: invalid SOAK_MINUTES \"$minutes\": want a positive number of minutes" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "soak: the end-to-end tests make network namespaces and need root: run 'sudo make soak'" >&2; exit 1; }
half=$((SECONDS + minutes * 30))
end=$((SECONDS + minutes * 60))

# run SECONDS COMMAND… runs the command unless SECONDS are over.
run() {
  local until=$1
  shift
  ((SECONDS < until)) || return 0
  echo "== $((SECONDS / 60)) min: $*"
  "$@" || { echo "soak: failed: $*" >&2; exit 1; }
}

# Tests that kill programs, lose connections, or change configuration under load.
faults='UnderLoad|HotRestarts|Killed|InvalidConfig|ClustersChange|RewrittenInPlace|Shutdown|CleansUpOnSignals|WithoutDiscovery'

# Once, however long it takes: three Envoys that follow 1,000 edits.
run "$half" go test -count=1 -timeout 60m ./test/e2e -run '^TestRandomEdits$' -edits 1000 -seed "$((RANDOM * 32768 + RANDOM + 1))"

round=0
while ((SECONDS < half)); do
  round=$((round + 1))
  seed=$((RANDOM * 32768 + RANDOM + 1))
  echo "== round $round"
  run "$half" go test -count=1 -timeout 15m ./test/e2e -run "$faults"
  run "$half" go test -count=3 -timeout 15m ./test/hotrestart
  run "$half" go test -count=1 -timeout 15m ./test/capture -run TestExplainIsWhatTheKernelDoes -seed "$seed"
  run "$half" go test -count=1 -timeout 15m ./internal/discovery/compile -run 'Random|Incremental' -seed "$seed"
  run "$half" go test -count=10 -timeout 15m ./internal/agent/supervise ./internal/discovery/xds
done

# Two minutes for each fuzz test, or less if time is short; a second for each even if it is over, since nothing
# may be reported as passed that was not run.
count=$(grep -rlE --include='*_test.go' '^func Fuzz' . | xargs grep -hE '^func Fuzz' | wc -l)
each=$(((end - SECONDS) / count))
((each > 120)) && each=120
((each < 1)) && each=1
run "$((SECONDS + 1))" hack/fuzz.sh "${each}s"
echo "soak: $round rounds and $count fuzz tests of $each s each passed"

#!/usr/bin/env bash
# Builds pilot-agent and pilot-discovery of the version before, from the history of this repository, into
# .tools/before-COMMIT, and packs its charts into charts there. The tests of test/skew run the programs together with those of the
# working tree, those of test/kube/faults upgrade the chart.
#
#   hack/before.sh          build them unless they are there
#   hack/before.sh --path   print the path of their directory, whether it is there or not
set -euo pipefail

# The version before: the last one that was pushed before the next release. Change it with each release.
commit=a79cfc874692e8565bea83350157f0438cc63500

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.tools/before-${commit:0:12}

die() {
  echo "before: $*" >&2
  exit 1
}

case ${1:-} in
--path)
  echo "$target"
  exit 0
  ;;
"") ;;
*) die "unknown argument \"$1\": want --path or nothing" ;;
esac

if [[ -x $target/pilot-agent && -x $target/pilot-discovery && -f $target/charts/pilothouse-0.0.0-before.tgz ]]; then
  echo "before: .tools/before-${commit:0:12} is the version before"
  exit 0
fi
command -v go >/dev/null || die "go not found: the version before is built with Go"
git -c safe.directory="$root" -C "$root" cat-file -e "$commit^{commit}" 2>/dev/null ||
  die "commit $commit is not in this clone: run 'git fetch --unshallow', or 'git fetch origin $commit'"

mkdir -p "$root/.tools"
work=$(mktemp -d "$root/.tools/before-build.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
mkdir "$work/source" "$work/bin"
git -c safe.directory="$root" -C "$root" archive "$commit" | tar -x -C "$work/source"
# The flags of make build, so that what they have in common with the working tree is compiled once.
(cd "$work/source" && CGO_ENABLED=0 GOWORK=off go build -trimpath -buildvcs=false -tags grpcnotrace \
  -ldflags "-s -w -X main.version=before-${commit:0:12}" -o "$work/bin/" ./cmd/pilot-agent ./cmd/pilot-discovery)
(cd "$work/source" && GOWORK=off go run ./hack/release -charts -version v0.0.0-before -epoch 1700000000 -o "$work/bin/charts")
chmod 755 "$work/bin"
rm -rf "$target"
mv "$work/bin" "$target"
echo "before: .tools/before-${commit:0:12} is built"

#!/usr/bin/env bash
# Builds the control plane of Kubernetes for tests, test/kube/server, into .tools/kube-HASH. HASH is of all that
# the binary depends on, so a second run costs a checksum. The first one takes four to eight minutes on 2 cores.
#
#   hack/kube.sh          build it unless it is there
#   hack/kube.sh --path   print the path of the binary, whether it is there or not
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
source=$root/test/kube/server

# The version that clients see; they cannot parse a version that is empty.
version=v$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v/ { print substr($2, 2) }' "$source/go.mod")
IFS=. read -r major minor _ <<<"${version#v}"
package=k8s.io/component-base/version
ldflags="-s -w -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
ldflags+=" -X $package.gitCommit=0000000000000000000000000000000000000000 -X $package.gitTreeState=clean -X $package.buildDate=2026-01-01T00:00:00Z"

# One set of flags, whatever the user's environment says: with others all packages are compiled again.
flags=(-trimpath -buildvcs=false -mod=readonly "-gcflags=all=-dwarf=false" -ldflags "$ldflags")
export CGO_ENABLED=0 GOWORK=off GOFLAGS=

die() {
  echo "kube: $*" >&2
  exit 1
}

command -v go >/dev/null || die "go not found: the control plane of the tests is built with Go"
toolchain=$(cd "$source" && go env GOVERSION GOOS GOARCH GOAMD64 GOARM64)
hash=$({
  cat "$source"/go.mod "$source"/go.sum "$source"/*.go
  echo "${flags[@]}"
  echo "$toolchain"
} | sha256sum | cut -c1-16)
target=$root/.tools/kube-$hash

case ${1:-} in
--path)
  echo "$target"
  exit 0
  ;;
"") ;;
*) die "unknown argument \"$1\": want --path or nothing" ;;
esac

if [[ -x $target ]]; then
  echo "kube: .tools/kube-$hash is Kubernetes $version"
  exit 0
fi

mkdir -p "$root/.tools"
work=$(mktemp -d "$root/.tools/kube-build.XXXXXX")
build=
trap '[[ -z $build ]] || kill "$build" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

echo "kube: building Kubernetes $version from its modules (4 to 8 minutes the first time on 2 cores)"
all=$(cd "$source" && go list -deps . | wc -l)
# With -v, go build prints a line for each package that it compiles.
(cd "$source" && exec go build -v "${flags[@]}" -o "$work/kube" .) >"$work/log" 2>&1 &
build=$!
while kill -0 "$build" 2>/dev/null; do
  # In the background, so that a signal ends the wait.
  sleep 1 &
  wait $! || true
  if ((SECONDS >= ${next:=20})); then
    echo "kube: $SECONDS s: $(wc -l <"$work/log") packages compiled, of at most $all"
    next=$((SECONDS + 20))
  fi
done
status=0
wait "$build" || status=$?
build=
if ((status != 0)); then
  tail -n 30 "$work/log" >&2
  die "go build failed, see above"
fi
[[ $("$work/kube" kube-apiserver --version) == "Kubernetes $version" ]] || die "the binary does not report version $version"
mv -f "$work/kube" "$target"
echo "kube: .tools/kube-$hash is Kubernetes $version, built in $SECONDS s"

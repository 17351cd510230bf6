#!/usr/bin/env bash
# Writes the packages of a virtual machine, with pilot-agent and Envoy, to dist/packages: hack/packages.sh deb|rpm…
# VERSION and SOURCE_DATE_EPOCH are the version and the time of all files, ENVOY another Envoy than .tools/envoy, OUT
# another folder. The packages are for the architecture of this machine, as Envoy is. The same input gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:?} epoch=${SOURCE_DATE_EPOCH:?} envoy=${ENVOY:-.tools/envoy} out=${OUT:-dist/packages}
nfpm=.tools/nfpm-$(awk '$1 == "github.com/goreleaser/nfpm/v2" { print $2 }' hack/packages/go.mod)
[[ -x $envoy ]] || { echo "packages: there is no Envoy at $envoy: make tools fetches it" >&2; exit 1; }
if [[ ! -x $nfpm ]]; then
  echo "packages: building nfpm"
  CGO_ENABLED=0 GOWORK=off go build -C hack/packages -trimpath -ldflags '-s -w' -o "$PWD/$nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
CGO_ENABLED=0 go build -trimpath -buildvcs=false -pgo=hack/pgo/pilot-discovery.pgo -tags grpcnotrace -ldflags "-s -w -X main.version=$version" -o "$stage/pilot-agent" ./cmd/pilot-agent
cp "$envoy" "$stage/envoy"
cp deploy/packages/{istio-start.sh,istio.service,sidecar.env} LICENSE "$stage/"
SOURCE_DATE_EPOCH=$epoch "$stage/pilot-agent" collateral --man -o "$stage/man"
gzip -n9 "$stage"/man/*.1
find "$stage" -exec touch -h -d "@$epoch" {} +

# Versions of packages begin with a digit, and may have no hyphen. One that has no tag is that of a commit.
plain=${version#v}
plain=${plain//-/+}
[[ $plain == [0-9]* ]] || plain=0+$plain
ARCH=$(go env GOARCH) PACKAGE_VERSION=$plain PACKAGE_TIME=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
export ARCH PACKAGE_VERSION PACKAGE_TIME STAGE=$stage SOURCE_DATE_EPOCH=$epoch

mkdir -p "$out"
# nfpm does not replace variables in all of its fields.
sed -e "s|\${STAGE}|$stage|g; s|\${ARCH}|$ARCH|g; s|\${PACKAGE_VERSION}|$PACKAGE_VERSION|g; s|\${PACKAGE_TIME}|$PACKAGE_TIME|g" deploy/packages/nfpm.yaml >"$stage/nfpm.yaml"
for kind; do
  "$nfpm" package --config "$stage/nfpm.yaml" --packager "$kind" --target "$out/" >/dev/null
done
ls "$out"

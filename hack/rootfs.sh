#!/usr/bin/env bash
# Writes the file system of an image to an empty folder: what its program needs and nothing else, no shell, no
# package manager. deploy/Containerfile runs it; so can anyone, to see what an image has.
#
#   hack/rootfs.sh discovery DIR [PROGRAMS [CERTIFICATES]]
#   hack/rootfs.sh agent DIR [PROGRAMS [CERTIFICATES [ENVOY]]]
#
# PROGRAMS is the folder with the programs (bin), CERTIFICATES the file with the roots that clients of public servers
# trust (/etc/ssl/certs/ca-certificates.crt), ENVOY the binary (.tools/envoy). Envoy's libraries, glibc's, are
# those of the machine.
set -euo pipefail

die() {
  echo "rootfs: $*" >&2
  exit 1
}

[[ $# -ge 2 && ( $1 == discovery || $1 == agent ) ]] || die "want discovery or agent, and an empty folder"
image=$1 dir=$2 programs=${3:-bin} certificates=${4:-/etc/ssl/certs/ca-certificates.crt} envoy=${5:-.tools/envoy}
[[ -z $(ls -A "$dir" 2>/dev/null) ]] || die "$dir is not empty"

# The user of both images, as that of Istio's proxy: capture leaves its connections alone.
uid=1337

install -d -m 0755 "$dir" "$dir/etc/ssl/certs" "$dir/usr/local/bin" "$dir/var/lib" "$dir/var/run/secrets"
install -d -m 1777 "$dir/tmp"
install -m 0644 "$certificates" "$dir/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0::/:/sbin/nologin\nmesh:x:%s:%s::/:/sbin/nologin\n' $uid $uid >"$dir/etc/passwd"
printf 'root:x:0:\nmesh:x:%s:\n' $uid >"$dir/etc/group"
echo 'hosts: files dns' >"$dir/etc/nsswitch.conf"
chmod 0644 "$dir"/etc/{passwd,group,nsswitch.conf}

case $image in
discovery)
  install -m 0755 "$programs/pilot-discovery" "$dir/usr/local/bin/"
  install -d -m 0755 "$dir/var/lib/pilothouse" "$dir/etc/istio/config" "$dir/etc/cacerts"
  ;;
agent)
  install -m 0755 "$programs/pilot-agent" "$envoy" "$dir/usr/local/bin/"
  # Where the injector mounts volumes, and where the agent writes if there is none.
  install -d -m 0755 "$dir/etc/istio"
  install -d -m 0755 -o $uid -g $uid "$dir/etc/istio/proxy" "$dir/var/lib/istio" "$dir/var/lib/istio/data"
  # What the dynamic linker finds for Envoy, at the same paths; the linker's own path is in the binary.
  ldd "$envoy" >/dev/null || die "$envoy does not run on this machine"
  ldd "$envoy" | grep -o '/[^ ]*' | while read -r library; do
    install -D -m 0755 "$(readlink -f "$library")" "$dir$library"
  done
  ;;
esac

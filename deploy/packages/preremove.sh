#!/bin/sh
# Without the programs the machine can't be in the mesh. An upgrade ("upgrade", "1") leaves it there.
set -e
case "$1" in
remove | 0) /usr/local/bin/pilot-agent leave ;;
esac

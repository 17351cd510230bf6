#!/bin/sh
# Istio's name for pilot-agent start: without arguments, or with run, init ARGUMENTS, -p ARGUMENTS, or clean.
case "${1:-}" in
init) shift && exec /usr/local/bin/pilot-agent start init -- "$@" ;;
-*) exec /usr/local/bin/pilot-agent start init -- "$@" ;;
*) exec /usr/local/bin/pilot-agent start "$@" ;;
esac

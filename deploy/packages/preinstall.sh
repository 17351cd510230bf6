#!/bin/sh
# Makes the user and the group of the proxy, whose connections are not captured.
set -e
getent group istio-proxy >/dev/null || groupadd --system istio-proxy
getent passwd istio-proxy >/dev/null ||
	useradd --system --gid istio-proxy --home-dir /var/lib/istio --no-create-home --shell /usr/sbin/nologin istio-proxy

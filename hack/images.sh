#!/usr/bin/env bash
# Builds the images pilothouse/discovery and pilothouse/agent with the first engine that this machine has. HUB is the
# first part of their names, VERSION their tag, ENGINE the engine to use. Without an engine it ends with exit code 1
# and one line: an image that was asked for and not made is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

hub=${HUB:-pilothouse}
version=${VERSION:?}
# A tag may have no +, and no more than 128 characters.
tag=$(tr -c 'A-Za-z0-9_.\n-' _ <<<"$version" | cut -c1-128)

# works reports whether an engine is installed and can build: docker's client may have no server.
works() { command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1; }

engine=${ENGINE:-}
if [[ -n $engine ]]; then
  works "$engine" || { echo "images: the engine $engine is not installed or does not answer '$engine info'" >&2; exit 1; }
else
  for candidate in podman docker buildah; do
    if works "$candidate"; then
      engine=$candidate
      break
    fi
  done
fi
if [[ -z $engine ]]; then
  echo "images: no container engine: none of podman, docker and buildah is installed and answers '… info'; hack/rootfs.sh writes the images' files without one" >&2
  exit 1
fi

# Both images come from one build stage. Buildah alone builds it anew for each unless it is told to keep layers.
options=()
[[ $engine != buildah ]] || options+=(--layers)

for image in discovery agent; do
  "$engine" build "${options[@]}" --file deploy/Containerfile --target "$image" --build-arg VERSION="$version" --tag "$hub/$image:$tag" .
  echo "images: $hub/$image:$tag"
done

#!/bin/sh
# Finds the newest Go of this machine that can build the tests' tools: prints its directory for the PATH, or fails and says on
# stderr, in one line, which Go there is and which is needed. Looks at the PATH's, and where Debian's golang-1.X-go are.
# From 1.21 on a Go fetches a newer toolchain by itself, as a go.mod asks for it (GOTOOLCHAIN=auto): so any such Go fits.
set -eu

needed=21
newest=0 found=
for go in "$(command -v go || true)" /usr/lib/go-*/bin/go; do
    [ -x "$go" ] || continue
    version=$(GOTOOLCHAIN=local "$go" version 2>/dev/null || true) # go version go1.25.0 linux/amd64
    minor=${version#*go1.}
    minor=${minor%%[!0-9]*}
    if [ "${minor:-0}" -gt "$newest" ]; then newest=$minor found=$go; fi
done
if [ "$newest" -ge $needed ]; then
    printf '%s\n' "${found%/*}"
    exit 0
fi
has="Go, which builds it, is not installed"
[ -z "$found" ] || has="the newest Go here is 1.$newest ($found)"
cure="golang-go of Debian 13, or of https://go.dev/dl"
[ ! -x /usr/local/go/bin/go ] || cure="/usr/local/go/bin is not on the PATH"
echo "$has; 1.$needed or newer is needed ($cure)" >&2
exit 1

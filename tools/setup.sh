#!/usr/bin/env bash
# Gets what the build, the tests and the demo need. Run it again at will: what is there is left alone.
#
#   tools/setup.sh             all of the below
#   tools/setup.sh system      Debian or Ubuntu packages, by apt
#   tools/setup.sh python      the virtual environment, .cache/venv
#   tools/setup.sh build       target/release/underspan
#   tools/setup.sh readers     .cache/readers: what reads the exports in tests (not part of all)

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.cache/venv
READERS=.cache/readers
SPEEDSCOPE=1.25.0
MINIMUM_RUST=1.89
PYTHON=${PYTHON:-python3}

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# at_least 1.95.0 1.89: whether the first version is the second or later.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

have_libclang() {
    local folder
    for folder in /usr/lib/llvm-*/lib ${LIBCLANG_PATH:+"$LIBCLANG_PATH"}; do
        compgen -G "$folder/libclang*.so*" >/dev/null && return
    done
    /sbin/ldconfig -p 2>/dev/null | grep -q libclang
}

have_postgres() { have initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

# The packages whose content is not there, one a line.
missing_packages() {
    have cc || echo build-essential
    have clang || echo clang                  # compiles the BPF programs
    have_libclang || echo libclang-dev        # bindgen reads their headers with it
    have pkg-config || echo pkg-config
    pkg-config --exists libelf 2>/dev/null || echo libelf-dev
    pkg-config --exists zlib 2>/dev/null || echo zlib1g-dev
    have "$PYTHON" || echo python3
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    PATH=$PATH:/usr/sbin have nginx || echo nginx   # this and the next: the demo
    have_postgres || echo postgresql
    PATH=$PATH:/usr/local/go/bin have go || echo golang-go   # a demo, and tests
    have npm || echo npm                    # speedscope's schema, for tests
    PATH=$PATH:/usr/sbin have nft || echo nftables  # this and the next: make demo-stack, tests
    PATH=$PATH:/usr/sbin have ip || echo iproute2
    have prometheus || echo prometheus      # tests ask it what it scraped
}

system() {
    local packages command
    packages=$(missing_packages | xargs)
    if [ -n "$packages" ]; then
        command="apt-get install -y --no-install-recommends $packages"
        have apt-get || die "missing: $packages (names of Debian packages). Install them, then run this again."
        if [ "$(id -u)" = 0 ]; then
            as_root=()
        elif have sudo; then
            as_root=(sudo)
        else
            die "missing: $packages. As root, run: apt-get update && $command"
        fi
        say "installing $packages"
        "${as_root[@]}" apt-get update -qq
        # shellcheck disable=SC2086  # a list of words
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $command
        packages=$(missing_packages | xargs)
        [ -z "$packages" ] || die "still missing after apt-get: $packages"
    fi
    have cargo || die "no Rust. Install it (https://rustup.rs), then run this again."
    at_least "$(cargo --version | cut -d' ' -f2)" $MINIMUM_RUST ||
        die "$(cargo --version) is too old: $MINIMUM_RUST or later is needed. Run: rustup update stable"
}

python() {
    local wanted requirements=(demo/requirements.txt)
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
        die "$("$PYTHON" --version) is too old: 3.9 or later is needed. Set PYTHON=/path/to/python3."
    local file
    for file in python/requirements*.txt tests/requirements*.txt; do
        [ -e "$file" ] && requirements+=("$file")
    done
    mkdir -p .cache
    exec 9>.cache/lock
    flock 9 # two at once would pull the environment from under each other
    # Made anew when what it is made from has changed. The underspan package in it is this checkout's, not a copy.
    wanted=$(cat "${requirements[@]}" python/pyproject.toml python/dev_install.py <("$PYTHON" -VV) <(pwd) | sha256sum)
    if [ "$(cat $VENV/stamp 2>/dev/null)" != "$wanted" ]; then
        say "making $VENV"
        rm -rf $VENV
        "$PYTHON" -m venv $VENV
        $VENV/bin/python -m pip install --quiet --disable-pip-version-check \
            "${requirements[@]/#/--requirement=}" 'tomli; python_version < "3.11"'
        $VENV/bin/python python/dev_install.py >/dev/null
        echo "$wanted" >$VENV/stamp
    fi
    # The command, where `pip install` would put it; but always the latest build.
    cat >$VENV/bin/underspan <<-EOF
		#!/bin/sh
		UNDERSPAN_PYTHON=\${UNDERSPAN_PYTHON:-"$PWD/$VENV/bin/python"} \\
		    exec "$PWD/target/release/underspan" "\$@"
	EOF
    chmod +x $VENV/bin/underspan
    exec 9>&-
}

# In an environment of their own: the other one is not made anew for them.
readers() {
    local wanted
    have npm || die "no npm, which has speedscope's schema. Install it (Debian: apt install npm), then run this again."
    mkdir -p .cache
    exec 9>.cache/lock
    flock 9
    wanted=$(cat tests/exports/requirements.txt <(echo $SPEEDSCOPE) <("$PYTHON" -VV) <(pwd) | sha256sum)
    if [ "$(cat $READERS/stamp 2>/dev/null)" != "$wanted" ]; then
        say "making $READERS"
        rm -rf $READERS
        "$PYTHON" -m venv $READERS
        $READERS/bin/python -m pip install --quiet --disable-pip-version-check --requirement=tests/exports/requirements.txt
        npm pack --silent --pack-destination $READERS "speedscope@$SPEEDSCOPE" >/dev/null
        mkdir $READERS/speedscope
        tar -xzf "$READERS/speedscope-$SPEEDSCOPE.tgz" -C $READERS/speedscope --strip-components=1
        echo "$wanted" >$READERS/stamp
    fi
    exec 9>&-
}

build() {
    say "building target/release/underspan"
    cargo build --release --locked --package underspan-cli
}

case ${1:-all} in
    system | python | build | readers) "$1" ;;
    all)
        system
        python
        build
        ;;
    *) die "usage: tools/setup.sh [system|python|build|readers]" ;;
esac

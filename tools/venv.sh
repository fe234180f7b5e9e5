# Makes virtual environments for tools/quickstart and tools/test. To be sourced by bash.

# Prints the first Python of 3.11 or newer; honours $PYTHON.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        if [ "$candidate" = "${PYTHON:-}" ]; then
            echo "PYTHON=$PYTHON: want a Python of version 3.11 or newer" >&2
            return 1
        fi
    done
    echo "found no Python of version 3.11 or newer: install one, or name one in PYTHON" >&2
    return 1
}

# make_venv FOLDER: an environment with pip at FOLDER, unless a working one is there.
make_venv() {
    local folder=$1 python
    if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python) || return 1
    rm -rf "$folder"
    if "$python" -m venv "$folder" >/dev/null 2>&1; then
        return
    fi
    # Debian's Python makes environments, but cannot put pip into them without python3-venv.
    rm -rf "$folder"
    if "$python" -m pip --version >/dev/null 2>&1 \
        && "$python" -m venv --without-pip "$folder" \
        && "$python" -m pip --python "$folder/bin/python" install --quiet pip; then
        return
    fi
    rm -rf "$folder"
    echo "$python cannot make a virtual environment with pip: install its venv package" >&2
    echo "(Debian, Ubuntu, Raspberry Pi OS: sudo apt install python3-venv), then run this again" >&2
    return 1
}

# install_once FOLDER ARGUMENT...: pip install, unless pyproject.toml and the arguments are those
# of the last time.
install_once() {
    local folder=$1 stamp
    shift
    stamp=$({ cat pyproject.toml; printf '%s\n' "$PWD" "$@"; } | cksum)
    if [ "$(cat "$folder/installed" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || return 1
    printf '%s\n' "$stamp" >"$folder/installed"
}

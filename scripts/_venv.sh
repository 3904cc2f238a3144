# Sourced by the scripts next to it: finds a suitable Python and keeps a virtual environment up to date.

# The Python versions that TensorFlow has; setup.py allows later ones for conversion.
readonly PYTHON_FIRST=11 PYTHON_LAST=13

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# python_fits COMMAND: whether it runs and has an allowed version. A command may exist without running (pyenv's shims).
python_fits() {
  "$1" -c "import sys; sys.exit(not (3, $PYTHON_FIRST) <= sys.version_info[:2] <= (3, $PYTHON_LAST))" >/dev/null 2>&1
}

# Prints the Python to use: $PYTHON if it is set, else python3 or one with its version in its name.
find_python() {
  local wanted="Python 3.$PYTHON_FIRST to 3.$PYTHON_LAST" candidate
  if [ -n "${PYTHON:-}" ]; then
    python_fits "$PYTHON" || fail "PYTHON=$PYTHON is not $wanted, or does not run"
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    if python_fits "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  local found
  found=$(python3 --version 2>/dev/null) || found="no python3"
  fail "$wanted is needed, and there is $found. Install one, or name it: PYTHON=/path/to/python3.13 $0"
}

# install FOLDER EXTRAS: installs this project with these extras, and says why it could not.
install() {
  local venv=$1 extras=$2 said status=0
  said=$(mktemp)
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 --editable ".[$extras]" 2>"$said" || status=$?
  cat "$said" >&2
  if [ "$status" != 0 ] && grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError' "$said"; then
    rm -f "$said"
    fail "the installation failed: pip reaches no package index. Connect to the network, or name an index that is reached:" \
      "PIP_INDEX_URL=URL $0"
  fi
  rm -f "$said"
  [ "$status" = 0 ] || fail "the installation failed; see above"
}

# hold FOLDER: waits until no other script makes this environment, and holds it until `exec 9>&-`.
hold() {
  local python=$1/bin/python
  python_fits "$python" || python=$(find_python) || exit 1
  exec 9>"$1.lock" || fail "$1.lock cannot be written"
  "$python" - "$1" <<'PYTHON' || fail "$1.lock cannot be locked"
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print(f"Waiting for another script that makes {sys.argv[1]}", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
PYTHON
}

# ensure_venv FOLDER EXTRAS: makes the virtual environment if it is missing, and installs this project with these extras if its
# requirements have changed. The file tpudata-installed in it has a line for each installed set of extras, and marks the environment
# as made here.
ensure_venv() {
  local venv=${1%/} extras=$2 stamp="${1%/}/tpudata-installed" python wanted
  trap 'echo "${0##*/}: interrupted; the next call goes on." >&2; exit 130' INT
  mkdir -p "$(dirname "$venv")" || fail "the folder of $venv cannot be made"
  hold "$venv"
  if ! { python_fits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    # Removes only an environment that this function has made, and that is incomplete or has lost its Python.
    if [ -e "$venv" ] && ! grep -qsx made "$stamp"; then
      fail "$venv is there, and is no virtual environment with Python 3.$PYTHON_FIRST to 3.$PYTHON_LAST and pip." \
        "Move it away, or choose another folder: VENV=/path/to/venv $0"
    fi
    python=$(find_python) || exit 1
    "$python" -c "import venv, ensurepip" >/dev/null 2>&1 ||
      fail "$python has no working venv module. On Debian and Ubuntu: apt-get install python3-venv"
    echo "Making the virtual environment $venv with $("$python" --version)"
    rm -rf "$venv"
    mkdir -p "$venv"
    echo made >"$stamp"
    "$python" -m venv "$venv" || fail "$python could not make $venv; see above"
  elif [ -n "${PYTHON:-}" ]; then
    python=$(find_python) || exit 1
    [ "$("$python" --version)" = "$("$venv/bin/python" --version)" ] ||
      fail "PYTHON=$PYTHON is $("$python" --version), and $venv has $("$venv/bin/python" --version)." \
        "Choose another folder: VENV=/path/to/venv $0"
  fi
  wanted=$("$venv/bin/python" - "$extras" <<'PYTHON'
import hashlib, sys
digest = hashlib.sha256(" ".join([sys.version, *sys.argv[1:]]).encode())
for name in ("setup.py", "tpudata/_version.py"):
    with open(name, "rb") as file:
        digest.update(file.read())
print(digest.hexdigest())
PYTHON
  ) || fail "$venv/bin/python does not run; remove $venv and start again"
  if ! grep -qsx "$wanted" "$stamp"; then
    echo "Installing tpudata[$extras] and what it needs into $venv (some minutes the first time)"
    install "$venv" "$extras"
    echo "$wanted" >>"$stamp"
  fi
  exec 9>&-
  trap - INT
}

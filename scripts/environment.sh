# Sourced by the scripts beside it: a virtual environment in the source tree, with moxtrace and what it needs.
# $1: the requirement to install, for example "." or ".[test]".  Sets $python.
: "${PYTHON:=python3}"
venv=${MOXTRACE_VENV:-.venv}
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "moxtrace needs Python 3.11 or newer; $PYTHON is $("$PYTHON" --version 2>&1). Name another: PYTHON=python3.12 bash $0" >&2
  exit 1
fi
if ! [ -x "$venv/bin/python" ] && ! "$PYTHON" -m venv "$venv"; then
  echo "$PYTHON cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2
  exit 1
fi
python=$venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m pip install --quiet "$1"

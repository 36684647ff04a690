#!/usr/bin/env bash
# Installs the grader. It needs Python 3.11 or later (Gradescope: the image of Ubuntu 24.04), and a package index for
# what grading needs: numpy, autograd, pydantic, rich and typer, under 100 MB in all.
set -e
cd "$(dirname "$0")"
PYTHON="${MINITRAIN_PYTHON:-{python}}"
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq && apt-get install -yqq python3-venv libseccomp2 bubblewrap || true  # the latter two isolate
fi
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "minitrain needs Python 3.11 or later; choose an image that has it, such as Ubuntu 24.04" >&2
    exit 1
fi
"$PYTHON" -m venv venv
venv/bin/python -m pip install -q --no-compile {requirement}

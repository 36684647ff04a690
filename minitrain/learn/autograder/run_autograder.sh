#!/usr/bin/env bash
cd "$(dirname "$0")"
[ -d exercises ] || cd source  # Gradescope unpacks the zip there, and puts this script above it
PYTHON="$PWD/venv/bin/python"
[ -x "$PYTHON" ] || PYTHON="${MINITRAIN_PYTHON:-{python}}"
SUBMISSION="${MINITRAIN_SUBMISSION:-/autograder/submission}"
RESULTS="${MINITRAIN_RESULTS:-/autograder/results/results.json}"
ERRORS="$(mktemp)"
"$PYTHON" -m minitrain learn grade "$SUBMISSION" --together --exercises exercises --format gradescope \
    --isolation "${MINITRAIN_ISOLATION:-{isolation}}" > "$RESULTS" 2> "$ERRORS"
if [ ! -s "$RESULTS" ]; then
    "$PYTHON" -c 'import json, sys; print(json.dumps(dict(score=0, output=sys.stdin.read())))' < "$ERRORS" > "$RESULTS"
fi

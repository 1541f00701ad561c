#!/usr/bin/env bash
# Sets up, gates, and says how it ended. What is made lies outside of the checkout, which stays the commit that it is.
set -euo pipefail

folder="$RUNNER_TEMP/gpuserve"
mkdir -p "$folder"
{
  echo "folder=$folder"
  # Until it is known.
  echo "outcome=error"
} >>"$GITHUB_OUTPUT"

case "$GATE_ON_FAILURE" in
  fail | warn) ;;
  *)
    echo "::error title=Performance gate::on-failure is '$GATE_ON_FAILURE', but has to be fail or warn"
    exit 4
    ;;
esac

# Words, as they were given: no name of a file is made of them.
read -r -a paths <<<"$GATE_PATHS"
read -r -a more <<<"$GATE_ARGUMENTS"
read -r -a packages <<<"$GATE_INSTALL"

"$GATE_PYTHON" -m venv "$RUNNER_TEMP/gpuserve-venv"
if [ "${#packages[@]}" -gt 0 ]; then
  "$RUNNER_TEMP/gpuserve-venv/bin/python" -m pip install --quiet "${packages[@]}"
fi

status=0
"$RUNNER_TEMP/gpuserve-venv/bin/python" -m pytest "${paths[@]}" --gpu="$GATE_GPU" ${GATE_AGAINST:+"--against=$GATE_AGAINST"} \
  -o cache_dir="$RUNNER_TEMP/gpuserve-cache" \
  --gpuserve-json="$folder/result.json" \
  --gpuserve-report="$folder/report.html" \
  --gpuserve-markdown="$folder/comment.md" \
  --junitxml="$folder/junit.xml" \
  "${more[@]}" || status=$?
if [ -f "$folder/comment.md" ]; then
  cat "$folder/comment.md" >>"$GITHUB_STEP_SUMMARY"
elif [ "$status" -le 1 ]; then
  # A gate that measured nothing must not be green.
  echo "::error title=Performance gate::no test in $GATE_PATHS measured a server; set 'paths' to the folder of a suite"
  exit 4
fi

case "$status" in
  0) echo "outcome=passed" >>"$GITHUB_OUTPUT" ;;
  1)
    echo "outcome=failed" >>"$GITHUB_OUTPUT"
    if [ "$GATE_ON_FAILURE" = warn ]; then
      echo "::warning title=Performance gate::a gate did not pass; the summary of this step says which, and why"
      status=0
    fi
    ;;
  *) echo "::error title=Performance gate::pytest ended with $status: nothing was measured, or not all" ;;
esac
exit "$status"

# Sourced: the Pythons that fastdata is released for and tested on, and where each is.
PYTHONS=${PYTHONS:-3.10 3.11 3.12 3.13}

find_python() {  # VERSION: prints the path of $PYTHON310 (or 311, …), else pyenv's, else python3.10
  local given=PYTHON${1/./}
  local found=${!given:-$(printf '%s\n' "$HOME"/.pyenv/versions/"$1".*/bin/python | tail -1)}
  [ -x "$found" ] && echo "$found" || command -v "python$1" || true
}

# make demo: search, explain, emit and check kernels of a real model; leaves report/.
# make test: format check, lint, strict types, all tests, of large corpora a part.
# make docs: the documentation as a site, in build/site.
# make soak: the tests with all of their corpora, the judge against the interpreter on 9,000
# mutants, kernels against the PTX interpreter; the last two go on where they were cut.
# All need Python 3.11 to 3.13 and make, nothing else. PYTHON=... picks an interpreter.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# With an NVIDIA driver the demo also measures, so it installs CuPy; `make GPU= demo` does not.
GPU := $(shell command -v nvidia-smi)

# Tests start many commands: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test docs soak format clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed$(if $(GPU),-gpu)
	$(BIN)/tinygpu demo

test: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the documentation: build/site/index.html"

soak: $(VENV)/.installed-dev
	SOAK=1 $(BIN)/pytest -n 2 --dist worksteal
	$(BIN)/python -m benchmarks.async_corpus
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.tcgen05_corpus --jobs 2

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info report

# The stamp is written last, so that an interrupted step is done again.
$(VENV)/.created:
	@python=; \
	for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3 python; do \
	  if $$candidate -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	      >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "tinygpu needs Python 3.11, 3.12 or 3.13 with its venv module; none is on PATH." >&2; \
	  echo "Install one (Debian, Ubuntu: apt install python3-venv) or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "creating $(VENV) with $$($$python --version)"; \
	$$python -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.created
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	$(PIP) --editable '.[$*]'
	@touch $@

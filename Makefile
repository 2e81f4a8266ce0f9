# Two commands suffice on a fresh machine with Python >= 3.11 and make: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs clean bench-frozen bench-heads bench-train bench-predict \
	bench-finetuned bench-scratch kills campaigns pretrain-demo

demo: $(VENV)/.installed  ## the whole job on drawn flowers, offline
	$(BIN)/vitft demo

test: $(VENV)/.testing  ## the tests
	$(BIN)/python -m pytest

check: $(VENV)/.testing  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p vitft -p tests

OUT ?= demo.safetensors

pretrain-demo: $(VENV)/.installed  ## train the bundled backbone again, into OUT
	$(BIN)/python weights/pretrain_demo.py --out $(OUT)

DATA ?= flower_photos
WEIGHTS ?= vit_tiny_patch16_224

bench-frozen: $(VENV)/.testing  ## ours beside the tutorial's loop, Trainer and fastai, on DATA
	$(BIN)/python -m pip install --quiet fastai accelerate
	$(BIN)/python -m benchmarks.speed.frozen --data $(DATA)

bench-heads: $(VENV)/.testing  ## accuracy of heads over split seeds, on DATA with WEIGHTS
	$(BIN)/python -m benchmarks.accuracy.heads --data $(DATA) --weights $(WEIGHTS)

bench-train: $(VENV)/.testing  ## full fine-tuning steps beside timm and transformers
	$(BIN)/python -m benchmarks.speed.train

bench-predict: $(VENV)/.testing  ## predict beside timm and transformers, on DATA
	$(BIN)/python -m benchmarks.speed.predict throughput --data $(DATA)
	$(BIN)/python -m benchmarks.speed.predict cold --data $(DATA)

bench-finetuned: $(VENV)/.testing  ## accuracy of the ways to fine-tune over split seeds, on DATA with WEIGHTS
	$(BIN)/python -m benchmarks.accuracy.finetuned --data $(DATA) --weights $(WEIGHTS)

bench-scratch: $(VENV)/.testing  ## an epoch from scratch beside the tutorials' kind of code, on DATA
	$(BIN)/python -m benchmarks.speed.from_scratch epoch --data $(DATA)

kills: $(VENV)/.testing  ## 200 kill -9 at random moments, each run resumed and compared
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.kills

campaigns: $(VENV)/.testing  ## signals, lost processes, failing calls, full disks (as root: it mounts small disks)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.kills --signals
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.rank_kills
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.fail_points
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.full_disk

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.testing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

docs: $(VENV)/.installed  ## docs/settings.md from the settings themselves
	$(BIN)/python docs/settings.py

clean:  ## the environment; runs and exports are yours and stay
	rm -rf $(VENV)

# On a new machine with Python >= 3.11: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long snapshots check docs docs-site clean bench-frozen bench-heads bench-train bench-predict \
	bench-finetuned bench-pareto bench-scratch bench-gpu kills campaign mutants pretrain-demo notebooks matrix

demo: $(VENV)/.installed  ## fine-tune, predict and export on drawn flowers, offline
	$(BIN)/vitft demo

JOBS ?= 2

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 10

test: $(VENV)/.testing  ## run the tests in JOBS processes of one thread each
	$(PYTEST) -m "not long"

test-long: $(VENV)/.testing  ## run their long forms: several processes, signals, a simulated GPU, other clients
	$(PYTEST) -m long

snapshots: $(VENV)/.testing  ## write the texts of the golden runs again; git diff shows the difference
	$(PYTEST) tests/contract/golden --snapshot-update

check: $(VENV)/.testing  ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p vitft -p tests

OUT ?= demo.safetensors

pretrain-demo: $(VENV)/.installed  ## train the bundled backbone and write it to OUT
	$(BIN)/python weights/pretrain_demo.py --out $(OUT)

DATA ?= flower_photos
WEIGHTS ?= vit_tiny_patch16_224

bench-frozen: $(VENV)/.testing  ## compare with a tutorial's loop, Trainer and fastai, on DATA
	$(BIN)/python -m pip install --quiet fastai accelerate
	$(BIN)/python -m benchmarks.speed.frozen --data $(DATA)

bench-heads: $(VENV)/.testing  ## accuracy of heads over split seeds, DATA and WEIGHTS
	$(BIN)/python -m benchmarks.accuracy.heads --data $(DATA) --weights $(WEIGHTS)

bench-train: $(VENV)/.testing  ## compare full fine-tuning steps with timm and transformers
	$(BIN)/python -m benchmarks.speed.train

bench-predict: $(VENV)/.testing  ## compare predict with timm and transformers, on DATA
	$(BIN)/python -m benchmarks.speed.predict throughput --data $(DATA)
	$(BIN)/python -m benchmarks.speed.predict cold --data $(DATA)

bench-finetuned: $(VENV)/.testing  ## accuracy of the ways to fine-tune over split seeds, DATA and WEIGHTS
	$(BIN)/python -m benchmarks.accuracy.finetuned --data $(DATA) --weights $(WEIGHTS)

AUTOGLUON ?= build/autogluon

bench-pareto: $(VENV)/.testing  ## accuracy against processor time beside other tools, DATA and WEIGHTS (a file); hours
	$(BIN)/python -m pip install --quiet --constraint constraints.txt accelerate fastai lightly-train
	test -x $(AUTOGLUON)/bin/python || $(PYTHON) -m venv $(AUTOGLUON)
	$(AUTOGLUON)/bin/python -m pip install --quiet autogluon.multimodal "torch===2.13.0"
	OMP_NUM_THREADS=1 taskset -c 0 $(BIN)/python -m benchmarks.accuracy.pareto --data $(DATA) --weights $(WEIGHTS) \
		--python AutoGluon=$(AUTOGLUON)/bin/python
	$(BIN)/python -m benchmarks.accuracy.frontier --log build/pareto.jsonl --csv build/pareto.csv

bench-gpu: $(VENV)/.testing  ## parity, throughput, memory and accuracy on a GPU, to bench-gpu.txt
	$(BIN)/python -m benchmarks.speed.gpu

bench-scratch: $(VENV)/.testing  ## compare an epoch from scratch with a tutorial's kind of code, on DATA
	$(BIN)/python -m benchmarks.speed.from_scratch --data $(DATA)

kills: $(VENV)/.testing  ## kill runs 200 times at random moments, resume and compare
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.kills

campaign: test-long  ## signals, killed processes, failing calls, fuzzing, full disks (the last as root)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.signals
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.rank_kills
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.fail_points
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.fuzz --plant
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.fuzz --scale 100
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.full_disk

mutants: $(VENV)/.testing  ## plant 300 random faults, one at a time, and count those that tests detect
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults.mutants

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.testing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs,test]'
	touch $@

docs: $(VENV)/.installed  ## write docs/settings.md and docs/options.md from the declarations in the code
	$(BIN)/python docs/reference.py

docs-site: $(VENV)/.testing  ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebooks: $(VENV)/.installed  ## execute the notebooks in examples and write their outputs
	$(BIN)/python examples/execute.py examples/*.ipynb

OLDEST ?= python3.11
NEWEST ?= $(PYTHON)

matrix: $(VENV)/.testing  ## test wheel and sdist with the Pythons OLDEST and NEWEST, their lowest and newest packages
	$(BIN)/python -m pip install --quiet build uv
	$(BIN)/python tests/matrix.py --oldest $(OLDEST) --newest $(NEWEST) --jobs $(JOBS) --out build/matrix

clean:  ## delete the environment; runs and exports stay
	rm -rf $(VENV)

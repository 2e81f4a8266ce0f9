# A server for a trained model (docs/serve.md). The image contains no model: the
# folder of runs is mounted, and its latest run answers.
#
#   docker build -t vitft .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/runs:ro" vitft
#
# For NVIDIA GPUs, take torch from PyPI, whose wheels for Linux contain CUDA:
#
#   docker build -t vitft:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
#   docker run --rm --gpus all -p 127.0.0.1:8000:8000 -v "$PWD/runs:/runs:ro" vitft:cuda
#
# Other commands: docker run --rm --user "$(id -u)" -v "$PWD:/work" -w /work vitft predict --run runs/first img.jpg

ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY docs/schemas docs/schemas
COPY recipes recipes
COPY weights weights
COPY vitft vitft
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=serve
COPY constraints.txt /tmp/constraints.txt
# torch in a layer of its own: it is large and changes rarely
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt \
    --extra-index-url "${TORCH_INDEX}" torch torchvision
COPY --from=build /wheels /tmp/wheels
RUN set -- /tmp/wheels/*.whl \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt \
    --extra-index-url "${TORCH_INDEX}" "$1[${EXTRAS}]" \
    && useradd --create-home --uid 1000 vitft

USER 1000
WORKDIR /home/vitft
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["vitft"]
CMD ["serve", "--run", "/runs/latest", "--host", "0.0.0.0"]

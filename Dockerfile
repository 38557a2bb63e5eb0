# syntax=docker/dockerfile:1
# Two images from one file:
#   docker build --target training -t qatline-python-train:0.1.0 .    every step; holds TensorFlow
#   docker build --target engine   -t qatline-python-engine:0.1.0 .   build_engine, evaluate, promote; no TensorFlow
# For a digest instead of the tag: --build-arg PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.12.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
ENV PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_PROGRESS=1 \
    UV_PROJECT_ENVIRONMENT=/opt/venv \
    UV_PYTHON_DOWNLOADS=never
RUN pip install uv==0.13.8
WORKDIR /opt/qatline
# The dependencies change less often than the code: they are layers of their own, from the lock file alone.
COPY pyproject.toml uv.lock README.md LICENSE ./

FROM base AS training-dependencies
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-default-groups --extra all --no-install-project

FROM base AS engine-dependencies
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-default-groups --extra engine --extra data --extra pipeline --extra serve --no-install-project

FROM training-dependencies AS training-build
COPY qat_lib qat_lib
COPY components components
COPY pipelines pipelines
COPY qatline qatline
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-default-groups --extra all --no-editable

FROM engine-dependencies AS engine-build
COPY qat_lib qat_lib
COPY components components
COPY pipelines pipelines
COPY qatline qatline
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-default-groups --extra engine --extra data --extra pipeline --extra serve --no-editable

# What both images share at run time. A numeric user lets Kubernetes check that it is not root.
FROM ${PYTHON_IMAGE} AS runtime
RUN useradd --create-home --uid 10001 --shell /usr/sbin/nologin qatline
ENV HOME=/home/qatline \
    PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TF_CPP_MIN_LOG_LEVEL=2
WORKDIR /home/qatline

FROM runtime AS engine
COPY --from=engine-build /opt/venv /opt/venv
USER 10001:10001
HEALTHCHECK --interval=60s --timeout=20s CMD ["qatline", "--version"]
ENTRYPOINT ["qatline"]
CMD ["--help"]

FROM runtime AS training
COPY --from=training-build /opt/venv /opt/venv
USER 10001:10001
HEALTHCHECK --interval=60s --timeout=20s CMD ["qatline", "--version"]
ENTRYPOINT ["qatline"]
CMD ["--help"]

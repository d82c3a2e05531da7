# Polyhead for CPUs. Build, train on the text of the current directory, and serve:
#   docker build -t polyhead .
#   docker run --rm -u "$(id -u)" -v "$PWD":/work polyhead init --example dates-en-zh --output dates.yaml
#   docker run --rm -u "$(id -u)" -v "$PWD":/work polyhead train dates.yaml
#   docker run --rm -v "$PWD":/work -p 8000:8000 -e POLYHEAD_API_KEY=secret polyhead serve runs/dates --host 0.0.0.0
# A mirror of PyPI: --build-arg PIP_INDEX_URL=https://...; of torch's builds for CPUs: --build-arg TORCH_INDEX=https://...
FROM python:3.12-slim

ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# g++ builds the fast kernels when they are first used; any user, with any number, has a home to keep them in
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
ENV HOME=/tmp PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /src
# torch and the other libraries lie in layers of their own, so that a change of the code does not fetch them again
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN pip install -c constraints.txt --index-url "$TORCH_INDEX" --no-deps torch
COPY recipes recipes
COPY src src
COPY experiments experiments
RUN pip install -c constraints.txt ".[all]"

USER 1000
WORKDIR /work
EXPOSE 8000
ENTRYPOINT ["polyhead"]
CMD ["--help"]

# docker build -t lockstep .
# docker run --rm -v "$PWD:/models" lockstep check model.gguf --engine ./my-engine
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends \
    ca-certificates cmake g++ git make ninja-build python3-dev python3-venv
WORKDIR /lockstep
COPY . .
# the image must run on other processors too
RUN CMAKE_ARGS=-DGGML_NATIVE=OFF make wheel \
    && python3 -m venv /opt/lockstep \
    && /opt/lockstep/bin/pip install --no-index --find-links dist gguf-lockstep

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/lockstep /opt/lockstep
ENV PATH=/opt/lockstep/bin:$PATH
WORKDIR /models
ENTRYPOINT ["lockstep"]
CMD ["check"]

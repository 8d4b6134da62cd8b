# The worker's image: docker build -t lmerge-service .
FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements/base.txt requirements/base.txt
RUN python -m venv /opt/lmerge \
    && /opt/lmerge/bin/pip install --no-cache-dir --require-hashes -r requirements/base.txt
COPY pyproject.toml README.md LICENSE ./
COPY lmerge_service lmerge_service
COPY topologies topologies
RUN /opt/lmerge/bin/pip install --no-cache-dir --no-deps .

FROM python:3.13-slim
COPY --from=build /opt/lmerge /opt/lmerge
COPY topologies /etc/lmerge
USER 65532:65532
ENTRYPOINT ["/opt/lmerge/bin/lmerge"]
CMD ["run", "/etc/lmerge/flights.yaml", "--json"]

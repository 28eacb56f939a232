# Every image of gymfleet: one build target per kind of process, and in EXTRA what of gymfleet it installs.
#   docker build -f deploy/docker/gymfleet.Dockerfile --target env --build-arg EXTRA=env-textcraft -t gymfleet/env-textcraft:0.1.0 .
#   ... --target reward --build-arg EXTRA=reward                                  (so with env-gateway and rollout)
#   ... --target trainer --build-arg EXTRA=trainer --build-arg VARIANT=cuda       (so with inference; VARIANT: cpu or cuda)
# scripts/images.sh builds them by name; docs/images.md says what arguments and secrets are for.
ARG BASE_IMAGE=debian:12-slim

FROM ${BASE_IMAGE} AS base
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/* /var/cache/ldconfig/* /var/log/* \
    && groupadd --gid 10001 gymfleet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gymfleet
COPY deploy/docker/healthcheck.py /usr/local/lib/healthcheck.py
ENV PATH=/opt/gymfleet/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM


# /opt/gymfleet, a virtual environment without pip; compilers stay in this stage.
FROM base AS build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends binutils python3-venv \
    && rm -rf /var/lib/apt/lists/*
ARG PIP_NO_INDEX=
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_FIND_LINKS=/wheels \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY requirements/lock.txt requirements/images.txt requirements/engine.txt requirements/build.txt requirements/
RUN --mount=type=bind,source=deploy/docker/wheels,target=/wheels --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m venv --without-pip /opt/gymfleet \
    && python3 -m venv /opt/build && /opt/build/bin/pip install --no-deps --require-hashes -r requirements/build.txt
ARG EXTRA
COPY environments/gymfleet_envs/os/sandbox/packages.py /opt/build/
# (Java's package links its manual there, in slim images too.)
RUN case "$EXTRA" in \
        env-alfworld) packages="cmake g++ make python3-dev" ;; \
        env-reasoning_gym) packages="gcc python3-dev" ;; \
        env-os) packages=$(cd /opt/build && python3 -c 'from packages import PACKAGES; print(*PACKAGES)') ;; \
        env-sciworld) packages=openjdk-17-jdk-headless ;; \
        *) exit 0 ;; \
    esac \
    && mkdir -p /usr/share/man/man1 \
    && apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages
COPY pyproject.toml ./
COPY deploy/docker/install.py deploy/docker/install.py
ARG VARIANT=cpu
ARG TORCH=2.13.0
ARG VLLM=0.32.0
ARG TORCH_CPU_INDEX=
RUN --mount=type=bind,source=deploy/docker/wheels,target=/wheels --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /opt/build/bin/python deploy/docker/install.py "$EXTRA" --venv /opt/gymfleet --variant "$VARIANT" \
        --torch "$TORCH" --vllm "$VLLM" --torch-cpu-index "$TORCH_CPU_INDEX"
COPY README.md LICENSE ./
COPY contracts contracts
COPY kit kit
COPY environments environments
COPY services services
COPY clients clients
COPY deploy/docker/slim.sh deploy/docker/
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir /dist . \
    && /opt/build/bin/pip --python /opt/gymfleet/bin/python install --quiet --no-deps --no-index --no-compile /dist/*.whl \
    && (cd /opt/gymfleet/lib/python3*/site-packages && /source/deploy/docker/slim.sh /opt/gymfleet) \
    && first=$(sed -n "s/^${EXTRA#env-} \([^ ]*\).*/\1/p" environments/gymfleet_envs/families.txt) \
    && printf 'from gymfleet_envs.%s.environment import ENVIRONMENT as ENVIRONMENT\n' "${first:-${EXTRA#env-}}" > /opt/gymfleet/environment.py \
    && find /opt/gymfleet -exec touch --no-dereference --date=@0 {} +
# What sessions of os have as their system: a copy of the files of the packages above, which belongs to the server's user.
RUN install -d -o 10001 -g 10001 /opt/os-root \
    && if [ "$EXTRA" = env-os ]; then setpriv --reuid 10001 --regid 10001 --clear-groups /opt/gymfleet/bin/python -c \
        'from gymfleet_envs.os.sandbox.rootfs import make_image_root; make_image_root()'; fi


# What every image of a process ends with.
FROM base AS process
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title=gymfleet org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=$VERSION org.opencontainers.image.revision=$REVISION


FROM process AS env
ARG EXTRA
RUN test "$EXTRA" != env-os || { apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/* /var/cache/ldconfig/* /var/log/*; }
COPY --from=build --chown=10001:10001 /opt/os-root /opt/os-root
COPY --from=build /opt/gymfleet /opt/gymfleet
ENV GYMFLEET_ENV_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8110
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s CMD ["python3", "-I", "/usr/local/lib/healthcheck.py", "8110"]
ENTRYPOINT ["gymfleet-env-server"]
# The environment of EXTRA, of a family the first; its name says the same, and other arguments serve others.
CMD ["/opt/gymfleet/environment.py"]


FROM process AS env-gateway
COPY --from=build /opt/gymfleet /opt/gymfleet
ENV GYMFLEET_GATEWAY_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8200
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s CMD ["python3", "-I", "/usr/local/lib/healthcheck.py", "8200"]
ENTRYPOINT ["gymfleet-env-gateway"]


FROM process AS reward
COPY --from=build /opt/gymfleet /opt/gymfleet
ENV GYMFLEET_REWARD_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8203
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s CMD ["python3", "-I", "/usr/local/lib/healthcheck.py", "8203"]
ENTRYPOINT ["gymfleet-reward"]


FROM process AS rollout
COPY --from=build /opt/gymfleet /opt/gymfleet
ENV GYMFLEET_ROLLOUT_HOST=0.0.0.0 GYMFLEET_ROLLOUT_BACKEND=server
RUN install -d -o 10001 -g 10001 /runs /cache
USER 10001:10001
EXPOSE 8202 8212
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["python3", "-I", "/usr/local/lib/healthcheck.py", "8202"]
ENTRYPOINT ["gymfleet-rollout"]


# Rollout with the embedded engine; vLLM's own server is another entrypoint of the same image (docs/images.md).
FROM process AS inference
# (vLLM's kernels for CPUs are linked with it; without them the engine does not start.)
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/* /var/cache/ldconfig/* /var/log/*
COPY --from=build /opt/gymfleet /opt/gymfleet
ENV GYMFLEET_ROLLOUT_HOST=0.0.0.0
RUN install -d -o 10001 -g 10001 /runs /cache
USER 10001:10001
EXPOSE 8000 8202 8212
HEALTHCHECK --interval=5s --timeout=3s --start-period=600s CMD ["python3", "-I", "/usr/local/lib/healthcheck.py", "8202"]
ENTRYPOINT ["gymfleet-rollout"]


FROM process AS trainer
COPY --from=build /opt/gymfleet /opt/gymfleet
ENV GYMFLEET_TRAINER_HOST=0.0.0.0
RUN install -d -o 10001 -g 10001 /runs
USER 10001:10001
EXPOSE 8204
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s CMD ["python3", "-I", "/usr/local/lib/healthcheck.py", "8204"]
ENTRYPOINT ["gymfleet-trainer"]
